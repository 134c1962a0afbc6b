"""Arrays of numbers: their type, and ranges of them."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def ranges(starts: Ints, ends: Ints) -> Ints:
    """The concatenation of ``arange(starts[i], ends[i])``."""
    if len(starts) == 1:
        return np.arange(starts[0], ends[0])
    sizes = ends - starts
    before = np.cumsum(sizes) - sizes
    found: Ints = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return found
