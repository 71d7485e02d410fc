"""The log: one line per request, as text or as JSON.

The line's facts are gathered in a `RequestRecord`, which handlers fill in as they learn them. Knows no route.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from tokenline.fields import Path, dotted
from tokenline.server.errors import ApiError
from tokenline.service.answer import Answer

MAX_LEFT_OUT = 8  # places in a line

logger = logging.getLogger("tokenline.request")


@dataclass(slots=True)
class RequestRecord:
    """What is known about one HTTP request. Counts are None until the engine has said them."""

    id: str
    method: str
    route: str
    client_id: str | None = None  # the client's own name for it (X-Request-Id); need not be unique
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    stream: bool = False
    prompt: int | None = None
    cached: int | None = None
    computed: int | None = None
    output: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    restored: int | None = None  # of the cached tokens, those from the disk; left out where there are none
    evicted: int | None = None  # of the computed tokens, those that were held once
    evicted_ago_s: float | None = None
    match: int | None = None  # tokens that an earlier line had, where that is more than could be used
    finish: str | None = None  # "stop", "length", "tool_calls", "abort", "error"; several choices: joined by "+"
    left_out: str | None = None  # what of the schemas could not be enforced and was left to the model
    error: str | None = None

    def note(self, answer: Answer) -> None:
        """Write down what became of an answer, which is closed."""
        usage, reasons = answer.usage(), answer.end_reasons()
        self.prompt, self.output = usage.prompt_tokens, usage.completion_tokens
        if all(reasons):
            self.finish = "+".join(sorted({reason for reason in reasons if reason}))
        elif self.finish is None:
            self.finish = "abort"
        if answer.left_out:
            self.left_out = _places(answer.left_out)
        use = usage.cache
        if use is not None:
            self.cached, self.computed = use.cached, use.computed
            self.queue_ms, self.prefill_ms = round(use.queue_s * 1000, 1), round(use.prefill_s * 1000, 1)
            self.restored, self.evicted = use.restored or None, use.evicted or None
            self.evicted_ago_s = None if use.evicted_ago_s is None else round(use.evicted_ago_s, 1)
            self.match = use.longest_match if use.longest_match > use.cached else None

    def failed(self, error: ApiError) -> None:
        """Write down that the request ended with an error, perhaps in the middle of its answer."""
        self.error = error.code
        if error.status == 500:
            self.finish = "error"

    def fields(self) -> dict[str, Any]:
        """The facts that are known, in the order in which they are written."""
        facts: dict[str, Any] = {
            "id": self.id,
            "client_id": self.client_id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "stream": self.stream or None,
            "prompt": self.prompt,
            "cached": self.cached,
            "computed": self.computed,
            "output": self.output,
            "queue_ms": self.queue_ms,
            "prefill_ms": self.prefill_ms,
            "restored": self.restored,
            "evicted": self.evicted,
            "evicted_ago_s": self.evicted_ago_s,
            "match": self.match,
            "total_ms": round((time.perf_counter() - self.started) * 1000, 1),
            "finish": self.finish,
            "left_out": self.left_out,
            "error": self.error,
        }
        return {name: value for name, value in facts.items() if value is not None}


def record_of(request: Request) -> RequestRecord:
    """The record that `RequestLog` opened for this request."""
    return request.scope["tokenline.record"]


def name_request(request: Request, prefix: str) -> RequestRecord:
    """Give the request the id that its answer will carry, e.g. chatcmpl-…"""
    record = record_of(request)
    record.id = prefix + record.id.removeprefix("req-")
    return record


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value …`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "fields", {})
        line = super().format(record)
        return " ".join([line, *(f"{name}={_plain(value)}" for name, value in facts.items())])


class JSONFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(level: str, as_json: bool) -> None:
    """Send the program's log to stderr. For a process of our own; an embedding application has its own logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter() if as_json else TextFormatter())
    for name in ("tokenline", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level.upper())


def _places(places: Sequence[Path]) -> str:
    """The first few places, short."""
    shown = [dotted(place)[:200] for place in places[:MAX_LEFT_OUT]]
    return ",".join([*shown, *([f"+{len(places) - MAX_LEFT_OUT}"] if len(places) > MAX_LEFT_OUT else [])])


def _plain(value: Any) -> str:
    """One word: text of a client (a path) can neither start a new line nor look like another key."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' ="') else json.dumps(text)
