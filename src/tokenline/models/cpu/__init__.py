"""The fast CPU backend: quantised weights, a paged bfloat16 pool, and one compiled function for a whole forward pass.

The way in is `model.CPUModel`; `step.py` says how the pieces make a step.
"""

from tokenline.models.kernel_cache import ensure_kernel_cache

ensure_kernel_cache()
