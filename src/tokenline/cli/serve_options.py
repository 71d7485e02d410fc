"""The options of `tokenline serve`, checked as far as they can be without a model.

Knows what values are possible; does not know the command line's parser nor what an option leads to. A wrong value is a
CommandError that names its option, raised before anything is downloaded or loaded.
"""

import ipaddress
import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenline.cli.console import CommandError, shortened
from tokenline.models.cache import is_writable

if TYPE_CHECKING:
    from tokenline.server.keys import ApiKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """None: the default depends on the model or the machine."""

    model: str | None  # a path or a hub id; None: the default model
    host: str
    port: int  # 0: any free one
    device: str
    dtype: str
    max_model_len: int | None  # tokens
    kv_cache_memory: int | None  # bytes
    cache_dir: Path | None  # None: evicted prefixes are not kept
    cache_dir_size: int | None  # bytes
    max_num_seqs: int
    served_model_names: tuple[str, ...]
    chat_template: str | None  # Jinja source; None: the model's own
    tool_call_parser: str
    reasoning_parser: str
    generation_config: Literal["auto", "none"]
    override_generation_config: Mapping[str, float]
    api_keys: tuple[str, ...]  # as clients send them
    listed_keys: "tuple[ApiKey, ...]"  # of the key file
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    log_level: str
    log_json: bool

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise CommandError("--api-key: a key must be printable ASCII without spaces, and not empty")
        for name in self.served_model_names:
            if not name.strip() or not name.isprintable():
                raise CommandError("--served-model-name: a name must be printable and not empty")
        self._check_pages()
        self._check_parsers()
        if self.cache_dir is None and self.cache_dir_size is not None:
            raise CommandError("--cache-dir-size: needs --cache-dir")
        if self.cache_dir is not None:
            _check_cache_dir(self.cache_dir)

    def _check_pages(self) -> None:
        from tokenline.server.origins import check_origin

        for origin in self.cors_origins:
            try:
                check_origin(origin)
            except ValueError as error:
                raise CommandError(f"--cors-origins: {error}") from None
        for name in self.allowed_hosts:
            if not name.isascii() or not name.isprintable() or set(name) & set(" /:"):
                raise CommandError(f"--allowed-hosts: a host is a name without scheme and port, not {name!r}")

    @property
    def guarded_hosts(self) -> tuple[str, ...] | None:
        """Names that the server may be called by besides this machine's (see `server.origins`); None: by any.

        A server that the whole network may reach has names that it cannot know.
        """
        if self.allowed_hosts or is_loopback(self.host):
            return (self.host, *self.allowed_hosts)
        return None

    @property
    def all_keys(self) -> "tuple[ApiKey, ...]":
        """Those of the file first: what it says of a key holds if the key was given as an option too."""
        from tokenline.server.keys import ApiKey

        known = {key.digest for key in self.listed_keys}
        given = (ApiKey.of(key) for key in self.api_keys)
        return (*self.listed_keys, *(key for key in given if key.digest not in known))

    def _check_parsers(self) -> None:
        from tokenline.parse.registry import reasoning_parsers, tool_parsers

        for option, name, known in (
            ("--tool-call-parser", self.tool_call_parser, tool_parsers()),
            ("--reasoning-parser", self.reasoning_parser, reasoning_parsers()),
        ):
            if name not in ("auto", "none", *known):
                raise CommandError(f"{option}: must be one of auto, none, {', '.join(known)}, not {name!r}")


def _check_cache_dir(folder: Path) -> None:
    option = f"--cache-dir {shortened(str(folder), 200)}"
    try:
        mode = folder.stat().st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as error:  # too long a name, a null character
        raise CommandError(f"{option}: {getattr(error, 'strerror', None) or error}") from error
    if mode is not None and not stat.S_ISDIR(mode):
        raise CommandError(f"{option}: not a directory")
    if not is_writable(folder):
        raise CommandError(f"{option}: cannot be written to")
    if mode is not None and mode & stat.S_IWOTH:  # what is kept there becomes part of answers
        raise CommandError(f"{option}: every user of this machine may write to it; make it private: chmod o-w")


def read_keys(file: Path | None) -> "tuple[ApiKey, ...]":
    """The keys of an --api-key-file."""
    from tokenline.server.keys import read_key_file

    if file is None:
        return ()
    try:
        return read_key_file(file)
    except ValueError as error:
        raise CommandError(f"--api-key-file {file}: {error}") from error
    except OSError as error:
        raise CommandError(f"--api-key-file {file}: {error.strerror or error}") from error


def read_template(file: Path | None) -> str | None:
    """The text of a --chat-template FILE."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"--chat-template {file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise CommandError(f"--chat-template {file}: {error.strerror}") from error


def read_sampling(text: str | None) -> dict[str, float]:
    """The JSON object of --override-generation-config, with values that are possible."""
    from tokenline.fields import FieldError
    from tokenline.service.default_sampling import DefaultSampling

    if text is None:
        return {}
    option = "--override-generation-config"
    try:
        values = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{option}: not JSON ({error}); write it like '{{\"temperature\": 0.5}}'") from error
    if not isinstance(values, dict):
        raise CommandError(f"{option}: must be a JSON object such as '{{\"temperature\": 0.5}}'")
    try:
        DefaultSampling.of(values)
    except FieldError as error:
        raise CommandError(f"{option}: {error}") from error
    return values


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def comma_separated(values: Sequence[str] | None) -> tuple[str, ...]:
    """What an option lists that may be given several times, and several values each time."""
    listed = [part.strip() for value in values or () for part in value.split(",")]
    return tuple(dict.fromkeys(part for part in listed if part))
