"""One line a request, and the outermost layer of the application that writes it.

The line's facts are gathered in a `RequestRecord`, which handlers fill in as they learn them. Knows no route.
"""

import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenline.server.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGone, internal_error

logger = logging.getLogger("tokenline.request")

QUIET_ROUTES = ("/health",)  # asked every few seconds by whoever watches the server


@dataclass(slots=True)
class RequestRecord:
    """What is known about one HTTP request. Counts are None until the engine has said them."""

    id: str
    method: str
    route: str
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    stream: bool = False
    prompt: int | None = None
    cached: int | None = None
    computed: int | None = None
    output: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    finish: str | None = None  # "stop", "length", "tool_calls", "abort", "error"; several choices: joined by "+"
    error: str | None = None

    def fields(self) -> dict[str, Any]:
        """The facts that are known, in the order in which they are written."""
        facts: dict[str, Any] = {
            "id": self.id,
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
            "total_ms": round((time.perf_counter() - self.started) * 1000, 1),
            "finish": self.finish,
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


async def handle_api_error(request: Request, error: Exception) -> Response:
    """Answer with the error, and note its code for the line."""
    assert isinstance(error, ApiError)
    record_of(request).error = error.code
    return error.response()


class RequestLog:
    """ASGI middleware: opens the record, adds `x-request-id`, answers what nobody caught, writes the line."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(id=f"req-{uuid.uuid4().hex}", method=scope["method"], route=scope["path"])
        scope["tokenline.record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            # Nobody reads this, but a server wants every request to be answered.
            record.finish = "abort"
            if record.status is None:
                await send_with_id({"type": "http.response.start", "status": CLIENT_CLOSED_REQUEST, "headers": []})
                await send_with_id({"type": "http.response.body", "body": b""})
        except Exception:
            logger.exception("request %s failed", record.id)
            record.finish, record.error = "error", "internal_error"
            if record.status is None:
                await internal_error(record.id).response()(scope, receive, send_with_id)
            else:
                raise
        finally:
            level = logging.DEBUG if record.route in QUIET_ROUTES and record.status == 200 else logging.INFO
            logger.log(level, "request", extra={"fields": record.fields()})


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


def _plain(value: Any) -> str:
    """One word: text of a client (a path) can neither start a new line nor look like another key."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' ="') else json.dumps(text)
