"""The fast CPU backend: quantised weights, a paged bfloat16 pool, and one compiled function for a whole forward pass.

`model.load_cpu_model` is the way in. `docs`: see `step.py` for how the pieces make a step.
"""

from tokenline.models.kernel_cache import ensure_kernel_cache

ensure_kernel_cache()
