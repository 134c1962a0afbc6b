"""JSON that is nested as deeply as the API server stores it: in 10,000 levels, by those who may make custom resources.

Python's own limit is far lower, also for what is skipped. It is raised for the moment in which such a text is taken
apart: of a list, so that the other objects of it are read; of an event, so that it is known which object it is about.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

DEEPEST = 10_000  # levels, of Go's decoder of JSON
AROUND = 1000  # levels of the calls that lead here, and of the list around an object

T = TypeVar("T")


def deep(decode: Callable[[bytes | msgspec.Raw], T], data: bytes | msgspec.Raw) -> T:
    """What ``decode`` makes of it, however deeply it is nested. Raises RecursionError beyond what is ever stored."""
    try:
        return decode(data)
    except RecursionError:
        # The limit is of the whole process. Nothing is awaited until it is back, so no other task runs with it.
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, DEEPEST + AROUND))
        try:
            return decode(data)
        finally:
            sys.setrecursionlimit(before)
