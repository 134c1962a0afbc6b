"""Tree order: natural order of names, so that rack-2 comes before rack-10."""

import re
from collections.abc import Callable
from typing import Final

NaturalKey = tuple[tuple[str | int, ...], str]

_DIGITS: Final = re.compile(r"(\d+)", re.ASCII)


def natural(text: str) -> NaturalKey:
    """Sort key: runs of digits compare as numbers, the rest as text; equal numbers (``01``, ``1``) by plain text."""
    parts = _DIGITS.split(text)
    # `split` puts the digits at the odd places of every name, so numbers meet numbers when keys are
    # compared. A name has 253 characters at most, far below the 4,300 digits that `int` refuses.
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), text


def natural_cache() -> Callable[[str], NaturalKey]:
    """``natural`` that remembers: a cluster asks for the same few rack names once a node."""
    known: dict[str, NaturalKey] = {}

    def key(text: str) -> NaturalKey:
        found = known.get(text)
        if found is None:
            found = known[text] = natural(text)
        return found

    return key
