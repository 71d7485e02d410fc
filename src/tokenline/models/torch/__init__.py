"""The reference backend: one plain PyTorch decoder for all families, on every device, in float32, bfloat16 or int8.

The only package that imports PyTorch, which the extra `torch` installs. `models.load` imports `models.torch.load`, when
a model needs it, and nothing else of the project imports this package.
"""

from tokenline.models.base import Backend
from tokenline.models.config import Feature

TORCH = Backend(
    "the PyTorch decoder",
    frozenset(
        {
            Feature.SILU,
            Feature.GELU_TANH,
            Feature.ROPE,
            Feature.NO_ROPE,
            Feature.SEVERAL_ROPES,
            Feature.SLIDING_WINDOW,
            Feature.BIASES,
            Feature.QK_NORM,
            Feature.POST_NORMS,
            Feature.EMBEDDING_SCALE,
            Feature.QUERY_SCALE,
        }
    ),
)
