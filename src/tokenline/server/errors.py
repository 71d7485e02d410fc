"""Every error that a client can see, in OpenAI's shape, and how exceptions of the other rooms become one.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

A client's fault is a 4xx without a traceback in the log; the server's fault is a 500 whose message has no internals.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from tokenline.engine.request import RequestRefused
from tokenline.render.errors import RenderError

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left before the answer; only the log sees it
RETRY_AFTER_S = "1"

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


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

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A 400 for one field of the request."""
    return ApiError(400, message, param=param, code=code)


def internal_error(request_id: str) -> ApiError:
    return ApiError(
        500, f"The server failed on this request; its log says more under {request_id}.", code="internal_error"
    )


def shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down.", code="shutting_down", headers={"Retry-After": RETRY_AFTER_S})


def from_render(error: RenderError) -> ApiError:
    message = error.message  # may quote what the client sent, or what the template says
    return invalid(message if len(message) <= 800 else f"{message[:800]}…", error.param)


def from_refusal(error: RequestRefused) -> ApiError:
    """The engine's no: too long for ever (400), too much for now (429), or never again (503)."""
    if error.code == "queue_full":
        return ApiError(429, error.message, code=error.code, headers={"Retry-After": RETRY_AFTER_S})
    if error.code == "shutting_down":
        return shutting_down()
    if error.code == "engine_failed":
        return ApiError(503, "The engine has stopped; this server answers no more requests.", code=error.code)
    return ApiError(400, error.message, code=error.code)


def from_validation(error: ValidationError, model: type[BaseModel]) -> ApiError:
    """The first fault that pydantic found, with the field's own description of what is accepted."""
    fault = error.errors(include_url=False, include_context=True)[0]
    location, given = fault["loc"], shown(fault["input"])
    param = path(location)
    if fault["type"] == "missing":
        return invalid(f"'{param}' is missing.", param, code="missing_required_parameter")
    field = model.model_fields.get(str(location[0])) if location else None
    if field is not None and field.description and len(location) == 1:
        return invalid(f"'{param}' must be {field.description}; got {given}.", param)
    message = fault["msg"].replace("Input should be", "must be").replace("String should", "must")
    return invalid(f"'{param}' {message}; got {given}.", param)


def path(parts: Sequence[int | str]) -> str:
    """OpenAI's notation of a place in a request: messages[0].content[1].type"""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def shown(value: Any, limit: int = 60) -> str:
    """A JSON value as a short piece of an error message."""
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "a number that is not finite"
    text = json.dumps(value[:limit] if isinstance(value, str) else value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit + 2 else text[:limit] + "…"


async def handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Unknown routes (404) and wrong methods (405) come from the router."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message, code = f"There is no {request.method} {request.url.path} here.", "unknown_url"
    elif error.status_code == 405:
        message, code = f"{request.method} is not allowed on {request.url.path}.", "method_not_allowed"
    else:
        message, code = str(error.detail), None
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()
