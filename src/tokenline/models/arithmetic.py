"""Names the arithmetic that a model runs with: two runs that may round differently get different names.

The disk cache keeps keys and values under it, so that a hit never changes an answer after an update or on another CPU.
Nothing here must be remembered when code changes: the room's own source files are part of the name.
"""

import hashlib
from functools import cache
from pathlib import Path


def arithmetic_name(*parts: object) -> str:
    """64 hex digits for the source of this room and `parts`: what else the results depend on, such as the versions of
    compilers and libraries, the instructions in use, and the device.
    """
    return hashlib.sha256(repr((source_digest(), *parts)).encode()).hexdigest()


@cache
def source_digest(folder: Path = Path(__file__).parent) -> str:
    """SHA-256 of the names and bytes of all Python files in a folder and below."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(
            f"{file.relative_to(folder).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
        )
    return digest.hexdigest()
