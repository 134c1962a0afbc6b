"""Counts and lists as commands say them."""

from collections.abc import Sequence


def counted(count: int, what: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{count} {what}{'s' * (count != 1)}"


def some(names: Sequence[str], most: int = 4, joint: str = ", ") -> str:
    """The first of them, and how many more there are."""
    return joint.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
