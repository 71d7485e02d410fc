"""Writing a file all or nothing. Used by every room that keeps something on disk."""

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(
    path: Path, data: bytes, *, mode: int = 0o600, sync: bool = False, modified_ns: int | None = None
) -> None:
    """Put `data` at `path`, all of it or nothing, whatever was there before. Raises OSError.

    `mode`: permissions, less the umask. `sync`: the data reaches the disk before the name does, so that a power cut
    cannot leave an empty file either. `modified_ns`: the file's time of change; None: now. A process that is killed
    here leaves a file beside `path` whose name ends in ".tmp"; an error leaves none.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(descriptor)
        if modified_ns is not None:
            os.utime(temporary, ns=(modified_ns, modified_ns))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
