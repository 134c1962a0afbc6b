"""The wheel as a release has it, and an environment in which it and what it requires are all there is."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from support.packages import ROOT

# Folders that a person may well have where the command is run.
SHADOWS = ("agent", "certs", "cli", "clock", "crds", "engine", "kube", "localcluster", "manifests", "queueing", "web")


def build(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """The ``wheel`` or the ``sdist``, by the backend that pyproject.toml names."""
    command = [sys.executable, "-P", "-m", "hatchling", "build", "--target", kind, "--directory", folder]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])
    return made


def required(name: str, found: set[str] | None = None) -> set[str]:
    """A distribution and all that it requires on this machine, by name; they have to be installed here."""
    found = set() if found is None else found
    if (plain := re.sub(r"[-_.]+", "-", name).lower()) in found:
        return found
    found.add(plain)
    for requirement in map(Requirement, metadata.requires(name) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required(requirement.name, found)
    return found


def install(wheel: Path, environment: Path) -> Path:
    """A new virtual environment with the wheel; its folder of programs.

    What the wheel requires is linked from here, and nothing else is: neither this checkout nor what tests alone need.
    So no package index is asked.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-cache", "--offline", "--no-index"]
    subprocess.run([*uv, "--no-deps", "--python", python, wheel], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    _link(required("topogate") - {"topogate"}, site)
    return python.parent


def tops(distribution: metadata.Distribution) -> set[str]:
    """What it has put into the folder of installed packages."""
    return {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}


def _link(distributions: set[str], site: Path) -> None:
    for distribution in map(metadata.distribution, distributions):
        for top in tops(distribution):
            if not (site / top).exists():  # some bring a LICENSE beside their package
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))


def elsewhere(folder: Path) -> Path:
    """A folder to run commands in, with folders of a person's own that are called as packages of ours."""
    for name in SHADOWS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('this is of the person who runs the command')\n")
    return folder


def person(home: Path, programs: Path) -> dict[str, str]:
    """What is set for a person who has installed the wheel; the programs of the control plane are at hand."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"HOME": str(home), "XDG_CACHE_HOME": cache, "PATH": f"{programs}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
