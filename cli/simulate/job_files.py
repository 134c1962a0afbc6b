"""Files of jobs, each read once, and what each of them is."""

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from cli.output import Failure
from cli.simulate.sacct import is_sacct, is_unparsable
from cli.simulate.trace import is_trace
from cli.whatif.cases import opened


class JobFormat(Enum):
    """How jobs stand in a file."""

    CSV = auto()
    SACCT = auto()
    MANIFESTS = auto()


class JobFile(msgspec.Struct, frozen=True):
    """A file, ``stdin`` for ``-``."""

    name: str
    content: bytes

    @property
    def format(self) -> JobFormat:
        """Traces are recognised by their header, CSV also by its name; everything else is manifests."""
        # A binary file may have no line end at all. Spreadsheets put a byte order mark before the header.
        header = self.content[: 1 << 16].partition(b"\n")[0].decode("utf-8-sig", errors="replace")
        csv = self.name.removesuffix(".gz").endswith(".csv") or is_trace(header)
        # What sacct prints to people is taken as well, so that its reader can say which option was forgotten.
        if is_sacct(header) or (is_unparsable(header) and not csv):
            return JobFormat.SACCT
        return JobFormat.CSV if csv else JobFormat.MANIFESTS

    @property
    def text(self) -> str:
        """Its text. Failure where it is none."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Failure(f"{self.name}: expected text in UTF-8: {error}") from None


def read_job_files(files: Sequence[str]) -> tuple[JobFile, ...]:
    """The files of these names; ``-`` is stdin. Failure where one cannot be read."""
    return tuple(map(_read, files))


def _read(file: str) -> JobFile:
    name = "stdin" if file == "-" else file
    with opened(file) as stream:
        try:
            return JobFile(name, stream.read())
        except (OSError, EOFError) as error:
            raise Failure(f"{name}: {error}") from None
