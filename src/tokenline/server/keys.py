"""API keys as they rest: digests with a name, of the command line or of a key file. Knows no request.

A key file is TOML with a table for each key, made by `tokenline keys add`:

    [alice]
    sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    admin = true

A plain SHA-256 is enough for keys of 256 random bits, which nobody can try out; it is not for words that people choose.
"""

import hashlib
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenline.fields import shown
from tokenline.files import write_atomically

MAX_FILE_BYTES = 1 << 20
_PREFIX = "tl-"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what TOML takes without quotes
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"sha256", "admin"}


@dataclass(frozen=True, slots=True)
class ApiKey:
    digest: str  # SHA-256 of the key in hexadecimal; also the first part of its holder's cache namespace
    name: str | None = None  # None: from the command line or the environment
    is_admin: bool = False  # may do what reaches beyond its own namespace

    @classmethod
    def of(cls, key: str | bytes) -> "ApiKey":
        """Raises ValueError for an empty one."""
        if not key:
            raise ValueError("api_keys: an empty API key would let everybody in")
        return cls(digest_of(key.encode() if isinstance(key, str) else key))


def digest_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a file, at least one. Raises OSError, and ValueError with a reason of one line."""
    keys = _parse(_read(path))
    if not keys:
        raise ValueError("has no key; `tokenline keys add` makes one")
    return keys


def add_key(path: Path, name: str, *, is_admin: bool) -> str:
    """Make a key, write its digest to the file (a new one if there is none), and return it: it is kept nowhere.

    Raises OSError, and ValueError for a file that is none of ours, or a name that is taken or cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"a name has 1 to 64 letters, digits, - and _; got {shown(name)}")
    text = _read(path) if path.exists() else ""
    if name in {key.name for key in _parse(text)}:
        raise ValueError(f"there is a key of the name {name} already; delete its lines to make a new one")
    key = _PREFIX + secrets.token_urlsafe(32)
    entry = f'[{name}]\nsha256 = "{digest_of(key.encode())}"\n' + "admin = true\n" * is_admin
    text = f"{text.rstrip()}\n\n{entry}" if text.strip() else entry
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    write_atomically(path.resolve(), text.encode(), mode=mode, sync=True)
    return key


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None


def _parse(text: str) -> tuple[ApiKey, ...]:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not TOML: {error}") from None
    keys = tuple(_key(name, table) for name, table in tables.items())
    _check_digests(keys)
    return keys


def _key(name: str, table: Any) -> ApiKey:
    """One entry."""
    if not isinstance(table, Mapping):
        raise ValueError(f"[{shown(name)}] must be a table with sha256, as `tokenline keys add` writes it")
    fields: Mapping[str, Any] = table
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise ValueError(f"[{name}] has a field {shown(unknown[0])}; there are sha256 and admin")
    digest, is_admin = fields.get("sha256"), fields.get("admin", False)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
        raise ValueError(f"[{name}] sha256 must be 64 hexadecimal digits, the SHA-256 of the key")
    if not isinstance(is_admin, bool):
        raise ValueError(f"[{name}] admin must be true or false; got {shown(is_admin)}")
    return ApiKey(digest.lower(), name, is_admin)


def _check_digests(keys: Sequence[ApiKey]) -> None:
    names: dict[str, str | None] = {}
    for key in keys:
        if key.digest in names:
            raise ValueError(f"[{names[key.digest]}] and [{key.name}] are the same key")
        names[key.digest] = key.name
