"""What the operator of a server can set. Knows no route and no model."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokenline.server.keys import ApiKey
from tokenline.server.origins import check_origin


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of layers 1 and 5; the engine and the renderer have their own."""

    model_names: tuple[str, ...]  # names under which the model is served; answers without a name use the first
    api_keys: tuple[ApiKey, ...] = ()  # any of them opens the API; none: no authentication
    tool_call_parser: str = "auto"  # "auto": by the chat template; "none"; or a name from `parse.registry`
    reasoning_parser: str = "auto"
    # Sampling values of requests that give none: the model's and ours, or "none": T = 1 and nothing cut off
    generation_config: Literal["auto", "none"] = "auto"
    override_generation_config: Mapping[str, float] = field(default_factory=dict)  # by name, before both
    cors_origins: tuple[str, ...] = ()  # whose web pages may use the API, see `origins`; none: no others than its own
    # Names besides those of this machine that the server may be called by; None: by any (see `origins`).
    allowed_hosts: tuple[str, ...] | None = ()
    max_body_bytes: int = 16 * 1024 * 1024
    created: int = field(default_factory=lambda: int(time.time()))  # Unix time shown by /v1/models
    shutdown_grace_s: float = 8.0  # how long running requests may go on after SIGTERM; the process ends within 10 s
    stream_open_after_s: float = 1.0  # a stream opens with the first token, or after this long in prefill
    ping_s: int = 15  # SSE comment lines that keep idle connections open; 0: none
    send_timeout_s: float = 300.0  # a client that stops reading a stream for this long has gone away
    log_level: str = "warning"  # the line of each request is logged at "info"
    log_json: bool = False

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ValueError("model_names must have at least one name, and none may be empty")
        for origin in self.cors_origins:
            check_origin(origin)
        if self.max_body_bytes < 1:
            raise ValueError(f"max_body_bytes must be at least 1, not {self.max_body_bytes}")
        if self.shutdown_grace_s < 0 or self.stream_open_after_s < 0 or self.ping_s < 0 or self.send_timeout_s <= 0:
            raise ValueError("times must not be negative, and send_timeout_s must be positive")
        if self.log_level not in ("debug", "info", "warning", "error", "critical"):
            raise ValueError(
                f'log_level must be one of "debug", "info", "warning", "error", "critical", not {self.log_level!r}'
            )
