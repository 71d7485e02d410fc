"""The one operation that both the line and the cache are about: how far are two lines of ids equal?"""

import numpy as np


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of equal leading elements of two int32 arrays."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
