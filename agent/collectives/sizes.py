"""Size classes of collectives: few enough for metric labels, whatever number of shapes a job uses.

A class is named by its upper bound. Latency dominates the small ones and bandwidth the large ones, so a bound every
factor of 16 keeps operations together that behave alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
BOUNDS = (0, 4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB, 4 * _GIB)
NAMES = ("0", "4KiB", "64KiB", "1MiB", "16MiB", "256MiB", "4GiB", "more")
_BOUNDS = np.array(BOUNDS, np.uint64)


def size_class(num_bytes: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Index into NAMES: the first class whose bound holds so many bytes."""
    return np.searchsorted(_BOUNDS, num_bytes, side="left")
