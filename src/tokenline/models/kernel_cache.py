"""Where Numba keeps compiled kernels: in TOKENLINE_CACHE; without it beside their source, else in the user's cache
folder, else where `cache.writable_cache` says.

Numba itself tries the two in the middle and fails if neither can be written to, as in a read-only container or for a
user without a home. Called by `models.cpu` before it compiles anything. If the disk is full, the next start compiles
them again; this one goes on. The same holds for what an older version of this package left, or a damaged file.
"""

import logging
from typing import Any

import numba
from numba.core import caching

from tokenline.models.cache import chosen_cache, writable_cache

log = logging.getLogger(__name__)


def ensure_kernel_cache() -> None:
    """Give Numba a folder, unless NUMBA_CACHE_DIR does or it finds one itself, and let it overlook an index that it
    cannot read.
    """
    caching.IndexDataCacheFile._load_index = _load_index  # type: ignore[method-assign]
    if not numba.config.CACHE_DIR and (chosen_cache() is not None or not _finds_a_folder()):  # type: ignore[attr-defined]
        numba.config.CACHE_DIR = str(writable_cache() / "kernels")  # type: ignore[attr-defined]


def _finds_a_folder() -> bool:
    try:
        numba.njit(cache=True)(_any_function)  # compiles nothing yet
    except RuntimeError:  # "cannot cache function ...: no locator available"
        return False
    return True


_read_index: Any = caching.IndexDataCacheFile._load_index


def _load_index(file: Any) -> dict[Any, str]:
    """What Numba has compiled of a function, by signature. Reading it fails where it was made by a version of this
    package that had a class which is gone, and then what is there is obsolete.
    """
    try:
        return _read_index(file)
    except OSError:
        raise
    except Exception as error:
        log.info("compiled kernels of another version are not used: %s", error)
        return {}


def _any_function() -> None:
    pass


def keep_compiled(dispatcher: Any) -> Any:
    """Decorates what `njit` made: its machine code is kept, if the disk takes it."""
    dispatcher.enable_caching()
    save = dispatcher._cache.save_overload

    def save_if_possible(signature: Any, compiled: Any) -> None:
        try:
            save(signature, compiled)
        except OSError as error:
            log.warning("compiled kernels cannot be kept for the next start: %s", error)

    dispatcher._cache.save_overload = save_if_possible
    return dispatcher
