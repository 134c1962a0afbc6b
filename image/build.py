"""Builds the image upon a base with a digest: ``python -m image.build --tag NAME --base NAME@sha256:...``.

A tag may be another image tomorrow. So the base is given with its digest, by ``--base`` or in ``image/base.txt``, or
nothing is built. Whichever of docker, podman and buildah is there builds it.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASE_FILE = ROOT / "image" / "base.txt"
ENGINES = ("docker", "podman", "buildah")
_PINNED = re.compile(r"[^@\s]+@(sha256:[0-9a-f]{64})")
_LABEL = "org.opencontainers.image.base"


class BuildError(Exception):
    """What keeps the image from being built; the text says what to do."""


def base(given: str, file: Path = BASE_FILE) -> tuple[str, str]:
    """The base as ``name@digest``, and the digest. Raises BuildError."""
    found, where = given.strip(), "--base"
    if not found and file.exists():
        lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        found, where = next((line for line in lines if line and not line.startswith("#")), ""), str(file)
    if match := _PINNED.fullmatch(found):
        return found, match[1]
    tagged = found.partition("@")[0] or _default()
    what = f'{where}: "{found}" has no digest' if found else "no base image is given"
    raise BuildError(
        f"{what}, and a tag may be another image tomorrow. Expected NAME@sha256:... with 64 hexadecimal digits.\n"
        f"`docker pull {tagged}` prints the digest. Then: make image BASE={tagged}@sha256:...\n"
        f"or write {tagged}@sha256:... into {file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}"
    )


def _default() -> str:
    """The tag that the Dockerfile is written for."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    return found[1] if found else "python"


def engine(wanted: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """The program that builds images. Raises BuildError."""
    for name in (wanted,) if wanted else ENGINES:
        if which(name):
            return name
    raise BuildError(
        f"none of {', '.join((wanted,) if wanted else ENGINES)} is here: one of them has to build the image"
    )


def command(program: str, tag: str, pinned: str, digest: str) -> list[str]:
    """What is run; the image says upon which base it stands."""
    name = pinned.partition("@")[0]
    labels = [f"--label={_LABEL}.name={name}", f"--label={_LABEL}.digest={digest}"]
    return [program, "build", f"--build-arg=BASE={pinned}", *labels, f"--tag={tag}", "."]


def main(arguments: Sequence[str]) -> int:
    """Build, and return the engine's exit status. Raises BuildError."""
    parser = argparse.ArgumentParser(prog="make image", description="Build the image upon a base with a digest.")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--base", default="")
    parser.add_argument("--engine", default="")
    given = parser.parse_args(arguments)
    pinned, digest = base(given.base)
    line = command(engine(given.engine), given.tag, pinned, digest)
    sys.stdout.write(" ".join(line) + "\n")
    sys.stdout.flush()
    return subprocess.run(line, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BuildError as failed:
        sys.exit(f"the image was not built: {failed}")
