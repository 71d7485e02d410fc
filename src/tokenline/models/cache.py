"""Where what is downloaded or compiled is kept: TOKENLINE_CACHE, else the platform's place for caches.

    models/     the default model
    hub/        models from a hub; without TOKENLINE_CACHE the hub client's own folder (HF_HOME)
    kernels/    compiled kernels; without TOKENLINE_CACHE beside their source, where that can be written to

Where that cannot be written to (a read-only container, a user without a home) a folder of this user's among the
temporary files takes its place, and a warning says so. What a read-only cache holds is used as it is.
"""

import atexit
import contextlib
import errno
import logging
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

import platformdirs

from tokenline.models.errors import ModelError

log = logging.getLogger(__name__)

UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
ADVICE = "set TOKENLINE_CACHE to a folder that can be written to"


def chosen_cache() -> Path | None:
    """TOKENLINE_CACHE, if it is set."""
    chosen = os.environ.get("TOKENLINE_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else None


def cache_folder() -> Path:
    """Where things are looked for first. It need not exist, and it may be read-only."""
    return chosen_cache() or Path(platformdirs.user_cache_dir("tokenline"))


def writable_cache() -> Path:
    """Where new things go: `cache_folder`, or what takes its place. Raises ModelError where nothing can be written."""
    folder = cache_folder()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if is_writable(folder):
            return folder
    return _temporary_instead_of(folder)


def is_writable(folder: Path) -> bool:
    """Whether files can be put into a folder, or it can be made."""
    try:
        while not os.path.lexists(folder) and folder != folder.parent:
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


@cache  # so that it is said once
def _temporary_instead_of(folder: Path) -> Path:
    try:
        instead = _temporary_folder()
    except OSError as error:
        raise ModelError(f"neither {folder} nor a temporary folder can be written to; {ADVICE}") from error
    log.warning(
        "%s cannot be written to; downloads and compiled kernels go to %s, which may not last. To keep them, %s",
        *(folder, instead, ADVICE),
    )
    return instead


def _temporary_folder() -> Path:
    """The same for each start of this user, and nobody else's: code is loaded from it."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"tokenline-{user}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_own = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)
    if stat.S_ISDIR(status.st_mode) and is_own:
        return folder
    folder = Path(tempfile.mkdtemp(prefix="tokenline-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
