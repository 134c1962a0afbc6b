"""Takes the official release files of our programs into the user's cache, each with its sum checked.

Cache: ``$XDG_CACHE_HOME/topogate/releases/<program>-<version>-<machine>/``; a program appears there whole and checked,
or not at all. What is on its way is kept beside it, so that the next attempt goes on. ``TOPOGATE_MIRROR`` names a
server that has the files under the release servers' own names and paths (``MIRROR/dl.k8s.io/v1.37.1/...``).
"""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from clock import SYSTEM, Clock
from localcluster.programs import fetch
from localcluster.programs.build import alone, cache_directory
from localcluster.programs.fetch import NotFetched
from localcluster.programs.releases import SUMS, ReleaseFile, pinned, published, releases

MIRROR: Final = "TOPOGATE_MIRROR"

Progress = Callable[[str], None]


def cached(names: Sequence[str]) -> dict[str, Path]:
    """Those that were taken before."""
    known = releases()
    places = {name: _place(known[name]) for name in names if name in known}
    return {name: path for name, path in places.items() if os.access(path, os.X_OK)}


def program(name: str, *, progress: Progress, sums: Mapping[str, str] | None = None, clock: Clock = SYSTEM) -> Path:
    """The path of a program; it is taken from its release where it is not there. Raises NotFetched.

    ``sums``: those that the repository holds, by address.
    """
    one = releases().get(name)
    if one is None:
        raise NotFetched(f"there is no release of {name} for this machine")
    held = pinned(SUMS.read_text(encoding="utf-8")) if sums is None else sums
    cache_directory().mkdir(parents=True, exist_ok=True)
    if not cached([name]):
        with alone(cache_directory(), progress):
            # Again under the lock: the process that had it may have taken this very program.
            if not cached([name]):
                _fetch_release(one, held, progress, clock)
    return _place(one)


def _fetch_release(one: ReleaseFile, held: Mapping[str, str], progress: Progress, clock: Clock) -> None:
    place = _place(one)
    place.parent.mkdir(parents=True, exist_ok=True)
    digest = _sum(one, held, progress)
    # The sum is in the name: a part of another version is never gone on with.
    part = place.with_name(f"{one.file}.{digest[:12]}.part")
    mirror = os.environ.get(MIRROR, "")
    fetch.file(
        one.address_on_mirror(mirror), part, digest, what=f"{one.program} {one.version}", progress=progress, clock=clock
    )
    if not one.member:
        # Before the rename: a program in its place is ready to be run.
        part.chmod(0o755)
        part.replace(place)
        return
    with _unpacked(part, one.member) as program:
        program.chmod(0o755)
        program.replace(place)
    part.unlink()


def _sum(one: ReleaseFile, held: Mapping[str, str], progress: Progress) -> str:
    """What its SHA-256 has to be. Raises NotFetched where nobody who may says so."""
    if digest := held.get(one.url):
        return digest
    if not one.sums:
        raise NotFetched(f"{one.url}: this repository holds no sum of it, and its release publishes none")
    # A mirror brings files and never vouches for them.
    if not one.sums.startswith("https://"):
        raise NotFetched(f"{one.sums}: a sum is asked for over TLS alone")
    digest = published(fetch.text(one.sums), one.file)
    if not digest:
        raise NotFetched(f"{one.sums} has no sum of {one.file}")
    progress(f"{one.program} {one.version}: checked against the sum of {one.sums}, as this repository holds none")
    return digest


@contextmanager
def _unpacked(archive: Path, member: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=archive.parent) as scratch:
        target = Path(scratch) / "program"
        try:
            with tarfile.open(archive) as packed, target.open("wb") as out:
                found = packed.extractfile(member)
                if found is None:
                    raise NotFetched(f"{archive.name}: {member} is no file")
                shutil.copyfileobj(found, out)
        except (tarfile.TarError, KeyError, OSError) as error:
            raise NotFetched(f"{archive.name}: {error}") from error
        yield target


def _place(one: ReleaseFile) -> Path:
    return cache_directory() / "releases" / f"{one.program}-{one.version}-{os.uname().machine}" / one.program
