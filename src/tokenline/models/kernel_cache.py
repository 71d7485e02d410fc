"""Where Numba keeps compiled kernels: beside their source, else in the user's cache folder, and where neither can be
written to, in a folder that goes with the process.

Numba itself knows the first two and fails without them, as in a read-only container or for a user without a home.
Called by `models.cpu` before it has anything compiled.
"""

import atexit
import shutil
import tempfile

import numba


def ensure_kernel_cache() -> None:
    """Give Numba a folder of ours if it has none of its own."""
    try:
        numba.njit(cache=True)(_any_function)  # compiles nothing yet
    except RuntimeError:  # "cannot cache function ...: no locator available"
        folder = tempfile.mkdtemp(prefix="tokenline-kernels-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]


def _any_function() -> None:
    pass
