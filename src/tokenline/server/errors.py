"""Every error that a client can see, and how exceptions of the other rooms become one.

Without a protocol of its own, a route answers in OpenAI's shape:

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

A client's fault is a 4xx without a traceback in the log; the server's fault is a 500 whose message has no internals.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tokenline.aside import Declined
from tokenline.engine.request import RequestRefused
from tokenline.fields import FieldError, Places, dotted
from tokenline.service.answer import AnswerFailed

logger = logging.getLogger("tokenline.request")

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left before the answer; only the log sees it
RETRY_AFTER_S = "1"
MAX_MESSAGE_CHARACTERS = 800

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {"missing": "missing_required_parameter"}  # OpenAI's word where it is not ours


class ApiError(Exception):
    """An answer other than the one that was asked for."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """OpenAI's coarse class of errors."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


ErrorBody = Callable[[ApiError], Mapping[str, Any]]


def openai_body(error: ApiError) -> Mapping[str, Any]:
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def speak(http: Request, body: ErrorBody) -> None:
    """From here on, this request's errors are answered with such a body."""
    http.scope["tokenline.error_body"] = body


def error_response(http: Request, error: ApiError) -> JSONResponse:
    body: ErrorBody = http.scope.get("tokenline.error_body", openai_body)
    return JSONResponse(body(error), error.status, error.headers)


def invalid(message: str, param: str | None, code: str | None = "invalid_value") -> ApiError:
    """A 400 that names the field at fault."""
    return ApiError(400, message, param=param, code=code)


def internal_error(request_id: str) -> ApiError:
    """A failure of ours. The log has the reason under the same id."""
    return ApiError(
        500, f"The server failed on this request; its log says more under {request_id}.", code="internal_error"
    )


def from_fault(fault: FieldError, places: Places) -> ApiError:
    """A 400 that names the field as the client wrote it."""
    param = dotted(places(fault.path)) if fault.path else None
    message = places.text(fault)  # may quote what the client sent, or what a template says
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = message[:MAX_MESSAGE_CHARACTERS] + "…"
    return invalid(message, param, _CODES.get(fault.code, fault.code))


def queue_full(message: str, headers: Mapping[str, str] | None = None) -> ApiError:
    """For the moment there is no room for more."""
    return ApiError(429, message, code="queue_full", headers={"Retry-After": RETRY_AFTER_S, **(headers or {})})


def from_declined(declined: Declined) -> ApiError:
    """There is no room for more, or the server ends."""
    return from_refusal(RequestRefused(declined.code, str(declined)))


def from_refusal(refusal: RequestRefused) -> ApiError:
    """What the engine refused: for ever (400), for the moment (429), or since it takes no requests any more (503)."""
    if refusal.code == "queue_full":
        return queue_full(refusal.message)
    if refusal.code == "shutting_down":
        return ApiError(503, "The server is shutting down.", code=refusal.code, headers={"Retry-After": RETRY_AFTER_S})
    if refusal.code == "engine_failed":
        return ApiError(503, "The engine has stopped; this server answers no more requests.", code=refusal.code)
    return ApiError(400, refusal.message, code=refusal.code)


@contextmanager
def api_errors(request_id: str, places: Places) -> Iterator[None]:
    """What goes wrong inside with a request becomes an ApiError."""
    try:
        yield
    except FieldError as fault:
        raise from_fault(fault, places) from None
    except RequestRefused as refusal:
        raise from_refusal(refusal) from None
    except Declined as declined:
        raise from_declined(declined) from None
    except AnswerFailed as failure:
        logger.error("request %s failed in the engine: %s", request_id, failure)
        raise internal_error(request_id) from None


# What those who ask for another server's routes are told.
_INSTEAD = {
    "/v1/responses": "use /v1/chat/completions, which answers the same without a state",
    "/v1/messages": "use /v1/chat/completions",
    "/v1/embeddings": "this server makes text only",
    "/v1/rerank": "this server makes text only",
    "/api/chat": "this is not Ollama's API; use /v1/chat/completions",
    "/api/generate": "this is not Ollama's API; use /v1/completions",
    "/api/tags": "this is not Ollama's API; use /v1/models",
    "/completion": "use /v1/completions",
    "/infill": "use /v1/completions with 'suffix'",
    "/generate": "use /v1/completions",
    "/metrics": "use /stats",
    "/slots": "use /stats",
}


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Unknown routes (404) and wrong methods (405) come from the router. OPTIONS is the one method of all routes."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        allowed = {method for method in Headers(error.headers).get("allow", "").split(", ") if method}
        allowed |= {"OPTIONS"} | ({"HEAD"} if "GET" in allowed else set())
        allow = {"Allow": ", ".join(sorted(allowed))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allow)
        return error_response(
            request,
            ApiError(405, f"{request.method} is not allowed on {path}.", code="method_not_allowed", headers=allow),
        )
    if error.status_code == 404:
        instead = _INSTEAD.get(path) or _INSTEAD.get(f"/v1{path}")
        message = f"There is no {request.method} {path} here" + (f"; {instead}." if instead else ".")
        return error_response(request, ApiError(404, message, code="unknown_url", headers=error.headers))
    return error_response(request, ApiError(error.status_code, str(error.detail), headers=error.headers))
