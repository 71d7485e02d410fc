"""Where Numba keeps compiled kernels: beside their source, else in the user's cache folder, else in a temporary folder
that is removed when the process ends.

Numba itself tries the first two and fails if neither can be written to, as in a read-only container or for a user
without a home. Called by `models.cpu` before it compiles anything.
"""

import atexit
import shutil
import tempfile

import numba


def ensure_kernel_cache() -> None:
    """Give Numba a temporary folder if it finds none itself."""
    try:
        numba.njit(cache=True)(_any_function)  # compiles nothing yet
    except RuntimeError:  # "cannot cache function ...: no locator available"
        folder = tempfile.mkdtemp(prefix="tokenline-kernels-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]


def _any_function() -> None:
    pass
