"""Builds the control plane, the kubelet, helm and kustomize from their Go modules into the user's cache.

Cache: ``$XDG_CACHE_HOME/topogate/bin/<key>/<program>``; the key is made of the module files, the linker flags and the
Go version. A program appears there whole or not at all, and only one process at a time builds.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clock import SYSTEM, Clock
from localcluster.errors import BinariesMissing
from localcluster.programs import golang

KUBERNETES_VERSION = "1.37.1"
ETCD_VERSION = "3.7.0"
KWOK_VERSION = "0.8.0"
HELM_VERSION = "3.21.4"
KUSTOMIZE_VERSION = "5.8.1"
MODULES = Path(__file__).parent.parent / "modules"
PROGRESS_SECONDS = 2.0
LOG_SECONDS = 20.0  # where nobody watches
ERROR_LINES = 15

Progress = Callable[[str], None]

_COMPONENT_BASE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")
# Without a version clients refuse the API server or misjudge what it can do.
_KUBERNETES_FLAGS = (
    f"-X {_COMPONENT_BASE}.gitVersion=v{KUBERNETES_VERSION} "
    f"-X {_COMPONENT_BASE}.gitMajor={_MAJOR} -X {_COMPONENT_BASE}.gitMinor={_MINOR}"
)

_HELM = "helm.sh/helm/v3"
# Without a Kubernetes version charts are rendered for one that is years old.
_HELM_FLAGS = " ".join(
    [
        f"-X {_HELM}/internal/version.version=v{HELM_VERSION}",
        *(
            f"-X {_HELM}/pkg/{package}.k8sVersionMajor={_MAJOR} -X {_HELM}/pkg/{package}.k8sVersionMinor={_MINOR}"
            for package in ("chartutil", "lint/rules")
        ),
    ]
)

_NO_DWARF = "-dwarf=false"
# Thin or seldom run, and a fifth of all that is compiled: not worth the time that optimising takes.
_COLD = (
    "k8s.io/client-go/applyconfigurations/...",
    "k8s.io/client-go/informers/...",
    "k8s.io/client-go/kubernetes/...",
    "k8s.io/kubectl/...",
    "k8s.io/kubernetes/pkg/generated/...",
    "sigs.k8s.io/kustomize/...",
)


@dataclass(frozen=True)
class Target:
    """What one ``go build`` makes: programs by package, in one of our modules."""

    module: str
    packages: Mapping[str, str]
    variables: str = ""

    @property
    def flags(self) -> list[str]:
        """Flags of ``go build``: debug information, which the linker drops, is not made at all."""
        cold = [f"-gcflags={pattern}={_NO_DWARF} -N -l" for pattern in _COLD]
        return ["-trimpath", f"-gcflags=all={_NO_DWARF}", *cold, "-ldflags", f"-s -w {self.variables}".strip()]

    @property
    def directory(self) -> Path:
        """The folder of the Go module."""
        return MODULES / self.module

    def key(self, go_version: str) -> str:
        """Hash of everything that decides what is built."""
        digest = hashlib.sha256("\0".join([go_version, *self.flags]).encode())
        for name in ("go.mod", "go.sum", "tools.go"):
            digest.update((self.directory / name).read_bytes())
        return digest.hexdigest()[:16]


KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
KUBELET = "kubelet"
TARGETS = (
    Target("controlplane", {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS}, _KUBERNETES_FLAGS),
    Target("controlplane", {"etcd": "go.etcd.io/etcd/server/v3"}),
    # Their modules pin what the control plane's does, so that Go compiles little again: a minute after it for all.
    Target("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Target("kubelet", {KUBELET: f"k8s.io/kubernetes/cmd/{KUBELET}"}, _KUBERNETES_FLAGS),
    Target("helm", {"helm": f"{_HELM}/cmd/helm"}, _HELM_FLAGS),
    Target(
        "kustomize",
        {"kustomize": "sigs.k8s.io/kustomize/kustomize/v5"},
        f"-X sigs.k8s.io/kustomize/api/provenance.version=v{KUSTOMIZE_VERSION}",
    ),
)


def cache_directory() -> Path:
    """Our folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "topogate"


def built(names: Sequence[str]) -> dict[str, Path]:
    """Those that were built before; none where no Go is there to tell by what they were built."""
    cache = cache_directory()
    version = golang.present(cache)
    if version is None:
        return {}
    places = {name: cache / "bin" / target.key(version) / name for target in TARGETS for name in target.packages}
    return {name: places[name] for name in names if places[name].exists()}


def programs(names: Sequence[str], *, progress: Progress, clock: Clock = SYSTEM) -> dict[str, Path]:
    """Paths of the programs in the cache; what is not there is built first.

    Raises BinariesMissing with Go's own words.
    """
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    go = golang.find(cache, progress=progress)
    paths: dict[str, Path] = {}
    for target in TARGETS:
        wanted = [name for name in target.packages if name in names]
        folder = cache / "bin" / target.key(go.version)
        paths |= {name: folder / name for name in wanted}
        if not all(paths[name].exists() for name in wanted):
            with alone(cache, progress):
                _build(
                    go,
                    target,
                    # Looked at again under the lock: another process may have built them meanwhile.
                    [name for name in wanted if not paths[name].exists()],
                    folder,
                    progress=progress,
                    clock=clock,
                )
    return paths


@contextmanager
def alone(cache: Path, progress: Progress) -> Iterator[None]:
    """Hold the one lock of the cache; says so where another process builds at this moment."""
    with (cache / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is building; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(
    go: golang.Go, target: Target, names: Sequence[str], folder: Path, *, progress: Progress, clock: Clock
) -> None:
    """Build into a temporary folder beside the final one, then move each program into place."""
    if not names:  # the process we waited for has built them
        return
    folder.mkdir(parents=True, exist_ok=True)
    packages = [target.packages[name] for name in names]
    watch = _Watch(", ".join(names), progress, clock)
    dependencies = _run(go, ["list", "-deps", *packages], target.directory, watch)
    watch.expect(len(dependencies))
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder.parent) as scratch:
        for name, package in zip(names, packages, strict=True):
            watch.go_on_with(name)
            output = Path(scratch) / name
            _run(go, ["build", "-v", *target.flags, "-o", str(output), package], target.directory, watch)
            output.replace(folder / name)


class _Watch:
    """Counts what Go says on the way and reports it every few seconds, to a log less often.

    Go names packages as it compiles them and is silent about those in its cache, so the count may stay behind.
    """

    def __init__(self, what: str, progress: Progress, clock: Clock) -> None:
        self._what = what
        self._expected = 0
        self._progress = progress
        self._clock = clock
        self._started = clock.monotonic()
        self._reported = 0.0
        self._pause = PROGRESS_SECONDS if sys.stderr.isatty() else LOG_SECONDS
        self._modules = self._packages = 0

    def expect(self, packages: int) -> None:
        """There are so many packages to compile."""
        self._expected = packages

    def go_on_with(self, what: str) -> None:
        """This is built next."""
        self._what = what

    def line(self, line: str) -> None:
        """Take one line of Go's standard error."""
        if line.startswith("go: downloading"):
            self._modules += 1
        elif re.fullmatch(r"[\w.~/-]+", line):
            self._packages += 1
        self.report()

    def report(self) -> None:
        """Tell how far it is, if the last time was long enough ago."""
        now = self._clock.monotonic()
        if self._reported and now - self._reported < self._pause:
            return
        self._reported = now
        if self._packages:
            state = f"{self._packages} of {self._expected} packages compiled"
        else:
            state = f"{self._modules} modules downloaded" if self._modules else "reading modules"
        minutes, seconds = divmod(int(now - self._started), 60)
        self._progress(f"building {self._what} ({minutes}:{seconds:02}): {state}")


def _run(go: golang.Go, arguments: Sequence[str], directory: Path, watch: _Watch) -> list[str]:
    """Run Go, show its progress and return the lines it printed. Raises BinariesMissing with its last words."""
    last: deque[str] = deque(maxlen=ERROR_LINES)
    watch.report()
    with (
        tempfile.TemporaryFile("w+") as output,  # a pipe could fill up while standard error is read
        subprocess.Popen(
            [go.path, *arguments], cwd=directory, env=go.environment(), stdout=output, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        # Standard error alone is read while Go runs; it carries the progress.
        for line in process.stderr or ():
            last.append(line.rstrip())
            watch.line(last[-1])
        if process.wait() != 0:
            raise BinariesMissing(
                f"go {' '.join(arguments[:2])} failed in {directory} with:\n" + "\n".join(f"  {line}" for line in last)
            )
        output.seek(0)
        return output.read().splitlines()
