"""Float32 to int8 with one float16 scale per 32 inputs, at a speed that a disk cannot outrun.

NumPy takes three times as long: it goes over the values once for each operation, and is slow at finding the largest of
32. Called by `pack.py`.
"""

import numpy as np
from numba import njit

from tokenline.models.cpu.linear import GROUP


def quantise_q8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float32 [rows, columns] -> int8 [rows, columns padded to 32] and float16 scales [rows, groups].

    A scale is infinite or NaN where the values are, or where they are beyond 8.3 million.
    """
    rows, columns = values.shape
    if columns % GROUP:
        values = np.pad(values, ((0, 0), (0, GROUP - columns % GROUP)))
    groups = np.ascontiguousarray(values).reshape(-1, GROUP)
    largest = np.empty(len(groups), np.int32)
    _largest_bits(groups.view(np.int32), largest)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (largest.view(np.float32) / 127).astype(np.float16)
    inverse = np.divide(1, scale, out=np.zeros(len(scale), np.float32), where=scale > 0, dtype=np.float32)
    q = np.empty(groups.shape, np.int8)
    _round(groups, inverse, q)
    return q.reshape(rows, -1), scale.reshape(rows, -1)


@njit(nogil=True, cache=True)
def _largest_bits(groups, largest):  # type: ignore[no-untyped-def]
    """The bits of the largest magnitude of each group. Integers, since LLVM makes vector code of their maximum only;
    the bits of floats of one sign lie in the order of the floats, with NaN above infinity.
    """
    for group in range(len(groups)):
        most = np.int32(0)
        for i in range(GROUP):
            most = max(most, groups[group, i] & np.int32(0x7FFFFFFF))
        largest[group] = most


@njit(nogil=True, cache=True)
def _round(groups, inverse, q):  # type: ignore[no-untyped-def]
    for group in range(len(groups)):
        factor = inverse[group]
        for i in range(GROUP):
            # the bounds matter where float16 has few digits left for the scale
            q[group, i] = np.int8(min(max(np.rint(groups[group, i] * factor), np.float32(-127)), np.float32(127)))
