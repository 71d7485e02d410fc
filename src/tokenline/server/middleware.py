"""Around all routes: opens a request's record, answers what nobody caught, writes the log line."""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenline.server.errors import CLIENT_CLOSED_REQUEST, ApiError, ClientGone, error_response, internal_error
from tokenline.server.log import RequestRecord, logger, record_of

_CLIENT_ID = re.compile(r"[\x21-\x7e]{1,128}")
QUIET_ROUTES = ("/health",)  # asked every few seconds by whoever watches the server


async def handle_api_error(request: Request, error: Exception) -> Response:
    """Answer with the error, and note its code for the line."""
    assert isinstance(error, ApiError)
    record_of(request).failed(error)
    return error_response(request, error)


def _client_id(scope: Scope) -> str | None:
    """The `X-Request-Id` that the client has sent, if it is short and of printable characters."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else None


class RequestLog:
    """ASGI middleware: opens the record, adds `x-request-id`, answers what nobody caught, writes the line."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            id=f"req-{uuid.uuid4().hex}",
            method=scope.get("tokenline.method", scope["method"]),
            route=scope["path"],
            client_id=_client_id(scope),
        )
        scope["tokenline.record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.client_id or record.id
                headers["x-content-type-options"] = "nosniff"  # no browser takes an answer for a page or a script
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
            error = internal_error(record.id)
            record.failed(error)
            if record.status is None:
                await error_response(Request(scope), error)(scope, receive, send_with_id)
            else:
                raise
        finally:
            level = logging.DEBUG if record.route in QUIET_ROUTES and record.status == 200 else logging.INFO
            logger.log(level, "request", extra={"fields": record.fields()})
