"""Small arrays lie side by side, unchanged; large ones stay where they are."""

import itertools

import numpy as np

from tokenline.models.cpu.arena import CHUNK_BYTES, LINE, SMALL_BYTES, Arena


def test_small_arrays_lie_side_by_side() -> None:
    arena = Arena()
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 255, (rows, 1001), dtype=np.uint8) for rows in rng.integers(1, 2000, 60)]
    kept = [arena.put(array.copy()) for array in arrays]
    for array, copy in zip(arrays, kept, strict=True):
        assert np.array_equal(array, copy)
        assert copy.ctypes.data % LINE == 0
    gaps = [b.ctypes.data - a.ctypes.data - a.nbytes for a, b in itertools.pairwise(kept)]
    assert sum(gap not in range(LINE) for gap in gaps) <= sum(a.nbytes for a in arrays) // (CHUNK_BYTES - SMALL_BYTES)


def test_large_arrays_stay() -> None:
    array = np.zeros(SMALL_BYTES, np.uint8)
    assert Arena().put(array) is array
