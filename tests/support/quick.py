"""``make quick``: lint, types, and the unit tests that a change can break, the nearest first, for some two minutes.

A test is near where it imports a module that was changed, and farther for each import between them. Tests of the house,
which read all of the source, run always. A change is what differs from the commit on ``main`` that it began at.
"""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from support.imports import PACKAGES, ROOT, Graph, imports, modules

SECONDS = 110.0
TESTS = "tests"


def distances(graph: Graph, changed: Iterable[str]) -> dict[str, int]:
    """How many imports lie between a module and the nearest changed one; those without a link to one are left out."""
    users: Graph = {}
    for module, used in graph.items():
        for one in used:
            users.setdefault(one, set()).add(module)
    found = dict.fromkeys(changed, 0)
    edge = list(found)
    while edge:
        following = sorted({user for one in edge for user in users.get(one, ())} - found.keys())
        distance = max(found.values()) + 1
        found |= dict.fromkeys(following, distance)
        edge = following
    return found


def rings(near: dict[str, int]) -> list[list[str]]:
    """Files of unit tests, the nearest ring first; those of the house are in the first."""
    house = sorted(str(path.relative_to(ROOT)) for path in (ROOT / TESTS / "unit" / "house").glob("test_*.py"))
    found: dict[int, list[str]] = {0: house}
    for module, distance in near.items():
        parts = module.split(".")
        if parts[:2] == [TESTS, "unit"] and parts[-1].startswith("test_") and (name := _file(module)) not in house:
            found.setdefault(max(distance - 1, 0), []).append(name)
    return [sorted(found[distance]) for distance in sorted(found)]


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def changed_files() -> list[str]:
    """Files that differ from the commit on main that the work began at, and new ones."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return [*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()


@cache
def _graph() -> Graph:
    texts = modules(*PACKAGES, TESTS)
    # Tests import `support.x`, whose file is tests/support/x.py.
    short = {name.removeprefix(f"{TESTS}."): text for name, text in texts.items()}
    graph = imports(short)
    return {_long(name, texts): {_long(one, texts) for one in used} for name, used in graph.items()}


def _long(name: str, texts: dict[str, str]) -> str:
    return name if name in texts else f"{TESTS}.{name}"


def _modules(files: Sequence[str]) -> Iterator[str]:
    for file in files:
        if file.endswith(".py"):
            yield file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _run(*command: str, seconds: float | None = None) -> int:
    """The status of a command; 0 too where its time was up and no test had failed."""
    try:
        return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        return 0


def main() -> int:
    """Exit status: 0 where all that ran is well."""
    end = time.monotonic() + SECONDS
    files = changed_files()
    for command in (("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",)):
        if (status := _run(*command)) != 0:
            return status
    todo = rings(distances(_graph(), _modules(files)))
    sys.stdout.write(f"{len(files)} files differ from main; {sum(map(len, todo))} files of unit tests are near\n")
    for number, ring in enumerate(todo):
        left = end - time.monotonic()
        if left <= 0:
            sys.stdout.write(f"{sum(map(len, todo[number:]))} files of tests farther off did not run: make unit\n")
            break
        status = _run("pytest", "-q", "-x", "-n", "auto", "--dist", "loadfile", *ring, seconds=left)
        if status not in {0, 5}:  # 5: none was collected
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
