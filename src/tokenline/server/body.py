"""From the bytes of a request body to a checked object, and how OpenAPI learns of bodies that are read this way.

Knows sizes, JSON and types of fields; no route and no protocol.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from tokenline.fields import IDENTITY, FieldError, Path, Places, shown
from tokenline.server.encodings import decoder
from tokenline.server.errors import ApiError, ClientGone, from_fault
from tokenline.server.origins import require_json

logger = logging.getLogger(__name__)

BYTE_ORDER_MARK = "\ufeff".encode()
_COMPONENT = "#/components/schemas/{model}"


class Body(BaseModel):
    """The base of all request bodies. Types are strict: "5" is no number and `true` no integer.

    A field's description says what is accepted; the error of a wrong value quotes it. Unknown fields are accepted.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    aliases: ClassVar[Mapping[str, str]] = {}  # names of other servers to the fields here that mean the same

    _size: int = PrivateAttr(default=0)
    _moved: dict[Path, Path] = PrivateAttr(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of JSON that this was read from."""
        return self._size

    @property
    def moved(self) -> Mapping[Path, Path]:
        """Fields that the client wrote under an alias: their paths here to those in its JSON (see `Places`)."""
        return self._moved

    @classmethod
    def refuse_unsupported(cls, fields: dict[str, Any]) -> None:
        """Raise FieldError for a field that is known and cannot be honoured. Called before types are checked."""

    @classmethod
    def known_fields(cls) -> set[str]:
        return {*cls.model_fields, *cls.aliases}


B = TypeVar("B", bound=Body)


async def read_body(request: Request, model: type[B], *, max_bytes: int) -> B:
    """The request's body as a `model`. Raises ApiError (400, 413, 415) or ClientGone."""
    require_json(request)
    data = await _read(request, max_bytes)
    data = data.removeprefix(BYTE_ORDER_MARK)  # some editors and clients write one; RFC 8259 lets it pass
    try:
        return parse_body(data, model)
    except FieldError as fault:
        raise from_fault(fault, IDENTITY) from None


def parse_body(data: bytes, model: type[B]) -> B:
    """A body of these bytes. Raises FieldError."""
    try:
        # Refuses NaN, Infinity, lone surrogates, invalid UTF-8 and nesting deeper than about 200.
        fields: Any = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise FieldError((), f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise FieldError((), f"The body must be a JSON object; got {shown(fields)}.", code="invalid_json")
    model.refuse_unsupported(fields)
    unknown = sorted(fields.keys() - model.known_fields())
    moved = _read_aliases(fields, model.aliases)
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        fault = _first_fault(error, model)
        raise FieldError(Places(moved)(fault.path), *fault.parts, code=fault.code) from None
    body._size, body._moved = len(data), moved
    if unknown:
        logger.debug("fields that are not known and were ignored: %s", ", ".join(map(repr, unknown)))
    return body


def _read_aliases(fields: dict[str, Any], aliases: Mapping[str, str]) -> dict[Path, Path]:
    """Give fields that have another name the one that the model has. Returns where the client wrote them."""
    moved: dict[Path, Path] = {}
    for alias, name in aliases.items():
        value = fields.pop(alias, None)
        if value is None:
            continue
        if fields.get(name) is not None and fields[name] != value:
            before = moved.get((name,), (name,))
            raise FieldError((alias,), "cannot be combined with ", before, ", which means the same.")
        fields[name] = value
        moved[(name,)] = (alias,)
    return moved


def _first_fault(error: ValidationError, model: type[BaseModel]) -> FieldError:
    """The first fault that pydantic found, with the field's own description of what is accepted."""
    fault = error.errors(include_url=False, include_context=True)[0]
    place, given = fault["loc"], shown(fault["input"])
    if fault["type"] == "missing":
        return FieldError(place, "is missing.", code="missing")
    field = model.model_fields.get(str(place[0])) if place else None
    if field is not None and field.description and len(place) == 1:
        return FieldError(place, f"must be {field.description}; got {given}.")
    message = fault["msg"].replace("Input should be", "must be").replace("String should", "must")
    return FieldError(place, f"{message}; got {given}.")


async def _read(request: Request, max_bytes: int) -> bytes:
    """All of the body, decoded. One that is too large is read to its end (within reason) but not kept: a client that is
    still sending would see a broken connection instead of the answer.
    """
    encoded = decoder(request.headers.get("content-encoding", ""), max_bytes)
    chunks: list[bytes] = []
    received = size = 0
    try:
        async for chunk in request.stream():
            received += len(chunk)
            if received > 8 * max_bytes:
                break
            if max(received, size) > max_bytes:
                continue
            data = chunk if encoded is None else encoded.feed(chunk)
            size += len(data)
            chunks.append(data)
    except ClientDisconnect:
        raise ClientGone from None
    if max(received, size) > max_bytes:
        raise ApiError(413, f"The body is larger than {max_bytes} bytes, the limit here.", code="body_too_large")
    if encoded is not None:
        encoded.finish()
    return b"".join(chunks)


def takes(model: type[Body]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is a `model`."""
    schema = {"$ref": _COMPONENT.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def add_body_schemas(app: FastAPI, bodies: Sequence[type[Body]]) -> None:
    """Add the bodies to the components that FastAPI collects by itself."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_COMPONENT)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return document

    app.openapi = openapi
