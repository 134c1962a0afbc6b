"""Finds the programs of the control plane, the kubelet, and helm and kustomize, which the tests of manifests run.

They come from KUBEBUILDER_ASSETS, from PATH, from our cache, from their official releases, or are built.
Outside our cache only the exact version counts, as the program itself prints it. What the cache holds was built from
the pinned modules, under a key made of everything that went into it, or is a release file whose sum was checked; so it
is taken as it is. ``TOPOGATE_BINARIES`` decides by hand: ``build``, ``download``, or a folder that has them.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from localcluster.errors import BinariesMissing
from localcluster.programs import build, download
from localcluster.programs.fetch import NotFetched

Progress = Callable[[str], None]
VERSION_SECONDS = 20
CHOICE: Final = "TOPOGATE_BINARIES"
BUILD: Final = "build"
DOWNLOAD: Final = "download"

# program -> (arguments that print its version, version)
PROGRAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "etcd": (("--version",), build.ETCD_VERSION),
    "kube-apiserver": (("--version",), build.KUBERNETES_VERSION),
    "kube-controller-manager": (("--version",), build.KUBERNETES_VERSION),
    "kube-scheduler": (("--version",), build.KUBERNETES_VERSION),
    "kubectl": (("version", "--client"), build.KUBERNETES_VERSION),
    "kwok": (("--version",), build.KWOK_VERSION),
}
# What only real nodes need.
NODE_PROGRAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    build.KUBELET: (("--version",), build.KUBERNETES_VERSION),
}
# What a control plane does not need, but the tests of manifests do.
TOOLS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "helm": (("version", "--template", "{{.Version}}"), build.HELM_VERSION),
    "kustomize": (("version",), build.KUSTOMIZE_VERSION),
}
_KNOWN = {**PROGRAMS, **NODE_PROGRAMS, **TOOLS}


@dataclass(frozen=True)
class Binaries:
    """Absolute paths of programs, by name."""

    paths: Mapping[str, Path]

    @classmethod
    def find(cls, names: Collection[str] = PROGRAMS, *, progress: Progress | None = None) -> Self:
        """Find every program; those that are nowhere are downloaded, or built (minutes, when nothing was compiled).

        Raises BinariesMissing where that is not possible. ``progress`` is told what is under way and how far it is.
        """
        choice = os.environ.get(CHOICE, "")
        if choice not in {"", BUILD, DOWNLOAD}:
            return cls(_of_folder(Path(choice), names))
        # Each program on PATH is run to ask for its version.
        with ThreadPoolExecutor(4) as pool:
            found = {name: path for name, path in zip(names, pool.map(_existing, names), strict=True) if path}
        missing = [name for name in names if name not in found]
        if missing:
            found |= _made(missing, choice, progress or (lambda _: None))
        return cls({name: found[name] for name in names})


def at_hand(names: Collection[str]) -> bool:
    """Whether all these programs are there, and none would have to be downloaded or built."""
    choice = os.environ.get(CHOICE, "")
    if choice not in {"", BUILD, DOWNLOAD}:
        try:
            return bool(_of_folder(Path(choice), names))
        except BinariesMissing:
            return False
    rest = [name for name in names if _existing(name) is None]
    taken = download.cached(rest) if choice != BUILD else {}
    made = build.built(rest) if choice != DOWNLOAD else {}
    return {*taken, *made} >= set(rest)


def _made(names: Sequence[str], choice: str, progress: Progress) -> dict[str, Path]:
    """From our cache, else from the release, else built. ``choice``: the one of these that is allowed; "": all."""
    found: dict[str, Path] = {}
    # Our cache first: neither a network nor a compiler is needed.
    if choice != BUILD:
        found |= download.cached(names)
    if choice != DOWNLOAD:
        found |= build.built([name for name in names if name not in found])
    for name in [name for name in names if name not in found and name not in TOOLS and choice != BUILD]:
        try:
            found[name] = download.program(name, progress=progress)
        except NotFetched as error:
            # A user who chose downloads does not wait for a build of minutes.
            if choice == DOWNLOAD:
                raise BinariesMissing(f"{CHOICE}={DOWNLOAD}: {error}") from error
            progress(f"{name} is to be built, for its release file cannot be had: {error}")
            if error.away:
                break  # nor would the next one be answered
    missing = [name for name in names if name not in found]
    return found | (build.programs(missing, progress=progress) if missing else {})


def _of_folder(folder: Path, names: Collection[str]) -> dict[str, Path]:
    """All of them from a folder that somebody named. Raises BinariesMissing."""
    if not folder.is_dir():
        raise BinariesMissing(f"{CHOICE}={folder}: expected {BUILD}, {DOWNLOAD}, or a folder that has the programs")
    wrong = []
    for name in names:
        has, wanted = version(name, folder / name), _KNOWN[name][1]
        if has != wanted:
            wrong.append(f"{name} {wanted} (it has {has or 'none that runs'})")
    if wrong:
        raise BinariesMissing(f"{CHOICE}={folder}: the folder lacks {', '.join(wrong)}")
    return {name: (folder / name).absolute() for name in names}


def _existing(name: str) -> Path | None:
    return next((path for path in _candidates(name) if version(name, path) == _KNOWN[name][1]), None)


def _candidates(name: str) -> Iterator[Path]:
    # Programs of a controller test environment come before those on PATH.
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets) / name, os.X_OK):
        yield (Path(assets) / name).absolute()
    if on_path := shutil.which(name):
        yield Path(on_path).absolute()


def version(name: str, path: Path) -> str | None:
    """The version that a program prints of itself, without the ``v``; None where it does not run or says nothing."""
    try:
        done = subprocess.run(
            [path, *_KNOWN[name][0]], capture_output=True, text=True, check=False, timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stdout) if done.returncode == 0 else None


def parse_version(text: str) -> str | None:
    """The first version number in a text: ``Kubernetes v1.36.3`` -> ``1.36.3``; a pre-release keeps its suffix."""
    found = re.search(r"\bv?(\d+\.\d+\.\d+(?:[-+][\w.+-]+)?)", text)
    return found.group(1) if found else None
