"""What somebody meant who wrote a name that is not there."""

from collections.abc import Iterable
from difflib import get_close_matches

# Comparing is quadratic in the length, and the name is what somebody wrote.
LONGEST = 100  # characters of a name that are compared


def closest(word: str, known: Iterable[str]) -> str:
    """The known name that is most like it, whatever the case; "" where none is."""
    lower = {one.lower(): one for one in known}
    found = get_close_matches(word[:LONGEST].lower(), lower, n=1)
    return lower[found[0]] if found else ""


def meant(word: str, known: Iterable[str]) -> str:
    """``did you mean rack?``, or ""."""
    found = closest(word, known)
    return f"did you mean {found}?" if found else ""
