"""Copies the few files of the kubelet that the agent reads: ``python -I -m agent.copies FROM TO``.

The kubelet's directory holds its credentials too. So the process that talks to the API server does not see it: this one
does, beside it and without a token, and keeps copies in a folder that both share.

Rules
- It imports the standard library and the clock alone: it runs on every node, in about 10 MB.
- A copy is whole at any moment: it is written under another name, and renamed.
- No link is followed, of a file or of a folder, so nothing else of the machine comes out.
- What is gone is gone here too. What cannot be read is not here either, but a note that says why.
- It says every second that it lives, so that nobody takes old copies for new ones.
"""

import contextlib
import errno
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator

from clock import SYSTEM, Clock

CPU_STATE = "cpu_manager_state"
MEMORY_STATE = "memory_manager_state"
DEVICE_STATE = "device-plugins/kubelet_internal_checkpoint"
CONFIG = "config.yaml"
NAMES = (CONFIG, CPU_STATE, MEMORY_STATE, DEVICE_STATE)
UNREADABLE = ".unreadable"  # what the name of a note ends with
ALIVE = "alive"

MOST_BYTES = 4 << 20  # of one file; the kubelet's are some kB
# With this the process takes 0.2% of a core, and a change is copied before the agent looks for it.
EVERY_SECONDS = 0.1
BEAT_SECONDS = 1.0
SILENT_SECONDS = 15.0  # whoever has not said for so long that it lives does not

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in its place keeps nobody waiting
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

Seen = tuple[int, int, int]  # of a file: inode, time of its last change, size


class Copies:
    """The copies of one kubelet's files."""

    def __init__(self, source: str, target: str) -> None:
        self._source = source
        self._target = target
        self._copied: dict[str, Seen] = {}
        self.problems: dict[str, str] = {}  # by file

    def update_copies(self) -> None:
        """Bring all copies up to date. Raises OSError where they cannot be written."""
        for name in NAMES:
            why = ""
            folder, _, base = name.rpartition("/")
            try:
                with _opened(self._source, folder) as at:
                    data, seen = _read(at, base, self._copied.get(name))
            except FileNotFoundError:
                self._take_away(name)
            except _Refused as refused:
                why = str(refused)
                self._take_away(name)
            else:
                if data is not None:
                    self._write(name, data)
                # After the write: a copy that failed is made again the next time.
                self._copied[name] = seen
            if why != self.problems.get(name, ""):
                self.problems.pop(name, None)
                if why:
                    self._write(name + UNREADABLE, why.encode())
                    self.problems[name] = why
                else:
                    _remove(self._path(name + UNREADABLE))

    def beat(self) -> None:
        """Say that it lives."""
        self._write(ALIVE, b"")

    def _take_away(self, name: str) -> None:
        """Have no copy of it; that its folder is there is told all the same."""
        self._copied.pop(name, None)
        _remove(self._path(name))
        if folder := name.rpartition("/")[0]:
            if os.path.isdir(f"{self._source}/{folder}"):
                os.makedirs(self._path(folder), mode=0o700, exist_ok=True)
            else:
                with contextlib.suppress(OSError):  # not there, or with a note in it
                    os.rmdir(self._path(folder))

    def _write(self, name: str, data: bytes) -> None:
        folder, _, base = name.rpartition("/")
        if folder:
            os.makedirs(self._path(folder), mode=0o700, exist_ok=True)
        new = self._path(f"{folder}/.{base}.new" if folder else f".{base}.new")
        with open(os.open(new, _NEW, 0o600), "wb") as file:
            file.write(data)
        os.replace(new, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._target}/{name}"


class _Refused(Exception):  # noqa: N818 -- reads as what it is
    """A file that cannot be copied; the text says why."""


@contextlib.contextmanager
def _opened(source: str, folder: str) -> Iterator[int]:
    """The file descriptor of a folder below the source. Raises FileNotFoundError and _Refused."""
    with _refusing(), _closing(os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        if not folder:
            yield root
            return
        if stat.S_ISLNK(os.stat(folder, dir_fd=root, follow_symlinks=False).st_mode):  # else told as no directory
            raise _Refused(f"{folder} is a link, and none is followed")
        # Below the open folder and not by a path: what is replaced by a link in between leads nowhere else.
        with _closing(os.open(folder, _FOLDER, dir_fd=root)) as below:
            yield below


def _read(at: int, name: str, before: Seen | None) -> tuple[bytes | None, Seen]:
    """A file's content and what tells it from others; no content where it is the one that was seen before.

    Raises FileNotFoundError and _Refused.
    """
    with _refusing(), _closing(os.open(name, _FILE, dir_fd=at)) as file:
        # Of the file that is open: under its name there may be another one by now.
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise _Refused("it is no regular file")
        if found.st_size > MOST_BYTES:
            raise _Refused(f"it has {found.st_size} bytes, more than {MOST_BYTES}")
        seen = found.st_ino, found.st_mtime_ns, found.st_size
        if seen == before:
            return None, seen
        parts = []
        while part := os.read(file, 1 << 20):
            parts.append(part)
            # The size was told before it was read, and a file may grow.
            if sum(map(len, parts)) > MOST_BYTES:
                raise _Refused(f"it has more than {MOST_BYTES} bytes")
        return b"".join(parts), seen


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        link = error.errno == errno.ELOOP
        raise _Refused("it is a link, and none is followed" if link else error.strerror or str(error)) from error


@contextlib.contextmanager
def _closing(file: int) -> Iterator[int]:
    try:
        yield file
    finally:
        os.close(file)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def _log_line(clock: Clock, level: str, event: str, **more: object) -> None:
    stamp = clock.utc().isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = json.dumps({**more, "event": event, "level": level, "timestamp": stamp})
    sys.stderr.write(f"{line}\n")


def note(path: str) -> str:
    """Why there is no copy of a file; "" where nobody says."""
    try:
        with open(path + UNREADABLE, encoding="utf-8", errors="replace") as file:
            return file.read(1000)
    except OSError:
        return ""


def silent_seconds(target: str, now: float) -> float:
    """How long the copies' keeper has not said that it lives; 0.0 where none ever did: these are no copies.

    ``now``: seconds since the epoch.
    """
    try:
        return max(0.0, now - os.stat(f"{target}/{ALIVE}").st_mtime)
    except OSError:
        return 0.0


def main(source: str, target: str, clock: Clock = SYSTEM) -> None:
    """Copy for ever, until SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    copies, told, due = Copies(source, target), dict[str, str](), 0.0
    _log_line(clock, "info", "copying", source=source, target=target, files=len(NAMES))
    while True:
        try:
            copies.update_copies()
            if clock.monotonic() >= due:
                copies.beat()
                due = clock.monotonic() + BEAT_SECONDS
            problems = copies.problems
        except OSError as error:  # the folder is full, or not there: without a sign of life nobody reads what is left
            problems = {target: error.strerror or str(error)}
        if problems != told:
            told = dict(problems)
            _log_line(clock, "warning" if told else "info", "files that cannot be copied", **told)
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -I -m agent.copies FROM TO")
    main(sys.argv[1], sys.argv[2])
