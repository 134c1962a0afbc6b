"""How long decisions take: their CPU time, without what was there before them."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from clock import cpu_seconds

Found = TypeVar("Found")


@contextmanager
def undisturbed(*, collect: bool = True) -> Iterator[None]:
    """What is left of building, or of reading a file, is no part of a decision: no garbage is collected meanwhile.

    ``collect``: it is before, which takes a while.
    """
    if collect:
        gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def measured(search: Callable[[], Found], cpu: Callable[[], float] = cpu_seconds) -> tuple[Found, float]:
    """What a search found, and its CPU time in microseconds."""
    # CPU time: on a shared machine the wall clock measures the neighbors.
    began = cpu()
    found = search()
    return found, (cpu() - began) * 1e6
