"""The paged pool of keys and values in main memory.

bfloat16 bits in uint16 arrays, laid out for dot products of bfloat16 pairs (`attention.py`):

    keys    [layer, block, kv head, head_dim / 2, token, 2]    pairs of dimensions, tokens as lanes
    values  [layer, block, kv head, token / 2, head_dim, 2]    pairs of tokens, dimensions as lanes
"""

import numpy as np

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
            self.keys = np.zeros((num_layers, num_blocks, num_kv_heads, head_dim // 2, block_size, 2), np.uint16)
            self.values = np.zeros((num_layers, num_blocks, num_kv_heads, block_size // 2, head_dim, 2), np.uint16)
        except (MemoryError, ValueError) as error:
            size = 4 * num_layers * num_blocks * num_kv_heads * block_size * head_dim
            raise ModelError(f"no memory for a KV pool of {size / 2**30:.1f} GiB") from error

    def copy_block_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of a block, in every layer (copy-on-write)."""
        self.keys[:, target, :, :, :tokens] = self.keys[:, source, :, :, :tokens]
        pairs = (tokens + 1) // 2  # an odd last token brings its neighbour, which nobody has read or written yet
        self.values[:, target, :, :pairs] = self.values[:, source, :, :pairs]
