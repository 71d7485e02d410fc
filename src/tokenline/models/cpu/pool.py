"""The paged pool of keys and values in main memory.

bfloat16 bits in uint16 arrays, laid out for dot products of bfloat16 pairs (`attention.py`):

    keys    [layer, block, kv head, head_dim / 2, token, 2]    pairs of dimensions, tokens as lanes
    values  [layer, block, kv head, token / 2, head_dim, 2]    pairs of tokens, dimensions as lanes

In memory all layers of a block lie together: memory is then taken block by block as tokens come to be held. Layer by
layer, a block would touch a huge page of its own in every layer, and the first prompt to reach them would wait while
the system clears all these.
"""

import numpy as np

from tokenline.models.cpu.prefault import Prefaulter
from tokenline.models.errors import ModelError

TOKENS_A_VECTOR = 16  # a block holds a multiple of this


class CPUKVPool:
    """See `models.base.KVPool`."""

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int) -> None:
        if block_size <= 0 or block_size % TOKENS_A_VECTOR:
            raise ModelError(f"block_size must be a multiple of {TOKENS_A_VECTOR} on this device, not {block_size}")
        if num_blocks <= 0:
            raise ModelError(f"a KV pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        try:
            # zeros, not empty: a slot that was never written must be finite, and the pages come only when touched
            keys = np.zeros((num_blocks, num_layers, num_kv_heads, head_dim // 2, block_size, 2), np.uint16)
            values = np.zeros((num_blocks, num_layers, num_kv_heads, block_size // 2, head_dim, 2), np.uint16)
        except (MemoryError, ValueError) as error:
            size = 4 * num_layers * num_blocks * num_kv_heads * block_size * head_dim
            raise ModelError(f"no memory for a KV pool of {size / 2**30:.1f} GiB") from error
        self.keys, self.values = keys.swapaxes(0, 1), values.swapaxes(0, 1)
        self.prefaulter = Prefaulter((keys, values), num_blocks)
        self.layout = (
            f"cpu bfloat16 pairs [k v, layers {num_layers}, kv heads {num_kv_heads}, block, head dim {head_dim}]"
        )

    def copy_block_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copy a block, in every layer (copy-on-write).

        All of it, which is one copy of memory; what lies behind the first `tokens` is written before it is read.
        """
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def export_block(self, block: int) -> np.ndarray:
        """A copy of the block's keys and values, all layers, as bytes in the order that `layout` says."""
        return np.concatenate([array[:, block].reshape(-1) for array in (self.keys, self.values)]).view(np.uint8)

    def import_block(self, block: int, data: np.ndarray) -> None:
        """Write what `export_block` of a pool with the same layout and block size gave."""
        half = self.keys[:, block].nbytes
        if data.dtype != np.uint8 or data.shape != (2 * half,):
            raise ValueError(f"a block has {2 * half} bytes, not {data.dtype} {list(data.shape)}")
        for array, part in ((self.keys, data[:half]), (self.values, data[half:])):
            array[:, block] = np.frombuffer(part.tobytes(), np.uint16).reshape(array[:, block].shape)
