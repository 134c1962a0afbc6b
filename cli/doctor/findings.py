"""What the doctor says: a finding, how bad it is, and what mends it."""

from enum import StrEnum

import msgspec


class Weight(StrEnum):
    """How bad a finding is. `ERROR`: something does not work; `WARNING`: it works worse than it could, or soon not."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be. ``mend``: a command, or "" where only a person knows."""

    weight: Weight
    about: str
    message: str
    mend: str


def error(about: str, message: str, mend: str) -> Finding:
    """Something does not work."""
    return Finding(Weight.ERROR, about, message, mend)


def warning(about: str, message: str, mend: str) -> Finding:
    """Something works worse than it could."""
    return Finding(Weight.WARNING, about, message, mend)


def unknown(about: str, message: str, mend: str) -> Finding:
    """Something could not be looked at."""
    return Finding(Weight.UNKNOWN, about, message, mend)
