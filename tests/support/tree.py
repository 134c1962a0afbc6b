"""Trees of small files in a compact text form, for machines' sysfs.

A line is ``PATH = TEXT`` or, for a symbolic link, ``PATH -> TARGET`` (under the tree's root); ``#`` begins a comment.
``{0-3,8}`` in a path stands for each of these numbers; ``{i}``, ``{i+64}``, ``{i%8}`` or any such sum then gives a
number in the rest of the path and in the text. ``\\n`` in a text is a line break.
"""

import re
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
_RANGE = re.compile(r"\{([0-9]+[-,0-9]*)\}")
_SUM = re.compile(r"\{([i0-9+*/%() -]*i[i0-9+*/%() -]*)\}")


def unpack(text: str, root: Path) -> Path:
    """Make the tree under ``root``; returns it."""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        for path, kind, value in _expand(line):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if kind == "->":
                file.symlink_to(root / value)
            else:
                file.write_text(value.replace("\\n", "\n") + "\n")
    return root


def machine(name: str, root: Path) -> Path:
    """The sysfs tree of one of the machines in ``tests/data/sysfs``."""
    return unpack((DATA / "sysfs" / f"{name}.txt").read_text(), root)


def _expand(line: str) -> Iterator[tuple[str, str, str]]:
    path, kind, value = re.split(r"\s+(=|->)\s*", line, maxsplit=1)
    found = _RANGE.search(path)
    if found is None:
        yield path, kind, value
        return
    for number in _numbers(found[1]):
        yield (
            _sums(path[: found.start()] + str(number) + path[found.end() :], number),
            kind,
            _sums(value, number),
        )


def _sums(text: str, number: int) -> str:
    return _SUM.sub(lambda match: str(eval(match[1], {"__builtins__": {}}, {"i": number})), text)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
