"""The image's root file system, put together by the Dockerfile's own instructions without a container engine.

In the place of the base image stands this machine: its /usr, and the Python of the tests. What pip would download is
linked from the environment of the tests, if that has the locked version; all other steps run as they are written. With
``TOPOGATE_IMAGE=whole`` these run too, and ask the package index.

Steps and programs see such a root as a container does: in namespaces of their own, as the user that the image names,
without a capability. ``image_root.py TASK PROGRAM ARGUMENT...`` becomes such a program; TASK is JSON of `Inside`.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from localcluster.real import enter

ROOT: Final = Path(__file__).parents[2]
WHOLE: Final = os.environ.get("TOPOGATE_IMAGE") == "whole"
PACKAGES: Final = "/packages"  # of the tests' environment, as steps and programs see them
BASE: Final = "/base"  # its Python
OF_THIS_MACHINE: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", sys.base_prefix)
ETC: Final = (
    "passwd",
    "group",
    "hosts",
    "resolv.conf",
    "nsswitch.conf",
    "ld.so.cache",
    "pip.conf",
    "ssl",
    "alternatives",
)
DOWNLOADS: Final = re.compile(r"(?:python -m |\S+/)pip install [^&]*--require-hashes[^&]*")
_NO_NEW_PRIVILEGES, _DROP = 38, 24  # PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP: prctl(2)

Mounts = Sequence[tuple[str, str, bool]]  # path in the root, folder of this machine, whether it is read-only


@dataclass(frozen=True)
class Inside:
    """Where a program is, and as whom."""

    root: str
    user: int = 0
    group: int = 0
    read_only: bool = False
    folder: str = "/"
    mounts: Mounts = ()


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of every instruction of the Dockerfile, lines that go on joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, rest in (line.split(maxsplit=1) for line in lines if line.strip())]


def sent() -> set[str]:
    """What .dockerignore lets through, by its own order."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    return {line.removeprefix("!") for line in lines if line.startswith("!")}


class Image:
    """What the Dockerfile makes, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}
        self.user = "0:0"
        self.entry_point: list[str] = []
        self.root = folder
        self._folder = folder
        self._directory = "/"
        for word, rest in instructions():
            {
                "ARG": self._ignore,
                "LABEL": self._ignore,
                "FROM": self._from,
                "WORKDIR": self._workdir,
                "COPY": self._copy,
                "RUN": self._run,
                "ENV": self._env,
                "USER": self._user,
                "ENTRYPOINT": self._entrypoint,
            }[word](rest)

    def start(
        self, command: list[str], *, user: tuple[int, int], environment: Mapping[str, str], log: Path, mounts: Mounts
    ) -> "subprocess.Popen[bytes]":
        """Start a program as a container of this image that may write nothing but what is mounted for it."""
        task = Inside(str(self.root), *user, read_only=True, mounts=mounts)
        with log.open("wb") as out:
            return subprocess.Popen(
                entered(task, command), env={**self.environment, **environment}, stdout=out, stderr=subprocess.STDOUT
            )

    def _ignore(self, rest: str) -> None:
        pass

    def _from(self, rest: str) -> None:
        """Begin a stage upon the base."""
        self.root = self._folder / (rest.split(" AS ")[1] if " AS " in rest else "image")
        self.environment, self._directory = {"PATH": f"{BASE}/bin:/usr/bin:/bin"}, "/"
        for path in ("tmp", "etc", "proc", "dev", "var", PACKAGES[1:]):
            (self.root / path).mkdir(parents=True, exist_ok=True)
        for name in ETC:
            if (source := Path("/etc", name)).is_dir():
                shutil.copytree(source, self.root / "etc" / name, symlinks=True)
            elif source.exists():
                shutil.copy(source, self.root / "etc" / name)
        packaged = ["--without-pip"] if not WHOLE else []
        self._call([os.path.realpath(sys.executable), "-m", "venv", *packaged, BASE])
        if not WHOLE:
            self._link({"pip"}, BASE)

    def _workdir(self, rest: str) -> None:
        self._directory = rest
        self._place(rest).mkdir(parents=True)

    def _copy(self, rest: str) -> None:
        *options, target = rest.split()
        if options[0] == "--from=build":
            (self._folder / "build" / options[1][1:]).rename(self._place(target))
            return
        for name in sorted(sent()) if options == ["."] else options:
            source, place = ROOT / name, self._place(target) / name
            if source.is_dir():
                shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
            else:
                shutil.copy(source, place)
        shutil.rmtree(self._place(target) / "web" / "page", ignore_errors=True)

    def _run(self, rest: str) -> None:
        text = rest if WHOLE else DOWNLOADS.sub("true", rest)
        self._call(["sh", "-euc", text])
        if text != rest:
            from support.wheel import required

            self._link(required("hatchling"), BASE)
            self._link(required("topogate") - {"topogate"}, "/venv")

    def _env(self, rest: str) -> None:
        for word in rest.split():
            name, _, value = word.partition("=")
            self.environment[name] = value.replace(f"${name}", self.environment.get(name, ""))

    def _user(self, rest: str) -> None:
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.entry_point = json.loads(rest)

    def _place(self, path: str) -> Path:
        return self.root / (Path(self._directory) / path).relative_to("/")

    def _call(self, command: list[str]) -> None:
        task = Inside(str(self.root), folder=self._directory)
        given = {name: value for name, value in os.environ.items() if name.startswith("PIP_")} if WHOLE else {}
        environment = {**given, **self.environment, "HOME": "/tmp"}
        done = subprocess.run(entered(task, command), env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _link(self, distributions: set[str], environment: str) -> None:
        """Have these distributions there, as if pip had installed them. They are those that the lock files name."""
        from support.wheel import tops

        locked = locks()
        (site,) = (self.root / environment[1:]).glob("lib/python*/site-packages")
        for name in distributions:
            assert name == "pip" or metadata.version(name) in locked[name], f"{name} is not here as it is locked"
            for top in tops(metadata.distribution(name)):
                if not os.path.lexists(site / top):
                    (site / top).symlink_to(f"{PACKAGES}/{top}")


def locks() -> dict[str, set[str]]:
    """Distribution -> its versions in the lock files."""
    from image.sbom import pinned

    found: dict[str, set[str]] = {}
    for name in ("requirements.lock", "requirements-build.lock"):
        for one in pinned((ROOT / name).read_text()):
            found.setdefault(one.name, set()).add(one.version)
    return found


def entered(task: Inside, command: list[str]) -> list[str]:
    """The command that becomes ``command`` there."""
    return [sys.executable, __file__, json.dumps(asdict(task)), *command]


def refusal() -> str:
    """Why this system does not let this user do it; "" where it does."""
    done = subprocess.run([sys.executable, enter.__file__, "--check"], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode != 0 else ""


def become(task: Inside, command: list[str]) -> None:
    """Enter, and go on as the program."""
    user, group = os.geteuid(), os.getegid()
    enter._checked(enter.libc.unshare(enter.CLONE_NEWUSER | enter.CLONE_NEWNS), "unshare", "user and mounts")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{task.user} {user} 1"),
        ("gid_map", f"{task.group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)
    enter._mount("none", "/", enter.MS_REC | enter.MS_PRIVATE)
    _bind(Path(task.root), Path(task.root))
    _stand_in(Path(task.root))
    for target, source, read_only in task.mounts:
        _bind(Path(source), Path(task.root + target))
        if read_only:
            enter._read_only(task.root + target, yes=True)
    if task.read_only:
        enter._read_only(task.root, yes=True)
    os.chroot(task.root)
    os.chdir(task.folder)
    enter._checked(enter.libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl", "PR_SET_NO_NEW_PRIVS")
    if task.read_only:
        _drop_capabilities()
    os.execvpe(command[0], command, os.environ)


def _stand_in(root: Path) -> None:
    """Have of this machine there what the base image would bring."""
    for path in map(Path, OF_THIS_MACHINE):
        place = root / path.relative_to("/")
        if path.is_symlink():  # /bin of most distributions
            if not os.path.lexists(place):
                place.symlink_to(path.readlink())
        elif path.exists():
            _bind(path, place)
            enter._read_only(str(place), yes=True, recursive=True)
    packages = root / PACKAGES[1:]
    _bind(Path(str(metadata.distribution("pip").locate_file(""))), packages)
    enter._read_only(str(packages), yes=True)
    for name in ("proc", "dev"):
        _bind(Path("/", name), root / name)


def _bind(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    enter._mount(str(source), str(target), enter.MS_BIND | enter.MS_REC)


def _drop_capabilities() -> None:
    """All of them, root's too, as a container that drops ALL: exec gives nothing that the bounding set has not."""
    capability = 0
    while enter.libc.prctl(_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    assert ctypes.get_errno() == errno.EINVAL, "past the last one"


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    become(Inside(**given), sys.argv[2:])
