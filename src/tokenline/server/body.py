"""From the bytes of a request body to a checked object. Knows sizes, JSON and wire types; no route."""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from tokenline.server.errors import ApiError, ClientGone, from_validation, invalid, shown
from tokenline.server.unsupported import Refusal, refuse_unsupported
from tokenline.server.wire import Body

logger = logging.getLogger(__name__)

B = TypeVar("B", bound=Body)


async def read_body(
    request: Request, model: type[B], *, max_bytes: int, unsupported: Mapping[str, Refusal] | None = None
) -> B:
    """The request's body as a `model`. Raises ApiError (400, 413, 415) or ClientGone."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        # Not mere pedantry: a web page may send any other type to this server without asking it first (CORS).
        raise ApiError(
            415,
            f"The body must be JSON with 'Content-Type: application/json'; got {shown(kind)}.",
            code="unsupported_media_type",
        )
    data = await _read(request, max_bytes)
    try:
        # Refuses NaN, Infinity, lone surrogates, invalid UTF-8 and nesting deeper than about 200.
        fields: Any = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is not valid JSON: {error}.", None, code="invalid_json") from None
    if not isinstance(fields, dict):
        raise invalid(f"The body must be a JSON object; got {shown(fields)}.", None, code="invalid_json")
    if unsupported is not None:
        refuse_unsupported(fields, unsupported)
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error, model) from None
    body._size = len(data)
    unknown = sorted((body.model_extra or {}).keys() - (unsupported or {}).keys())
    if unknown:
        logger.debug("fields that are not known and were ignored: %s", ", ".join(map(repr, unknown)))
    return body


async def _read(request: Request, max_bytes: int) -> bytes:
    """All of the body. One that is too large is read to its end (within reason) but not kept: a client that is still
    sending would see a broken connection instead of the answer.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= max_bytes:
                chunks.append(chunk)
            else:
                chunks.clear()
                if size > 8 * max_bytes:
                    break
    except ClientDisconnect:
        raise ClientGone from None
    if size > max_bytes:
        raise ApiError(413, f"The body is larger than {max_bytes} bytes, the limit here.", code="body_too_large")
    return b"".join(chunks)
