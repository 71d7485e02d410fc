"""From the bytes of a request body to a checked object, and how OpenAPI learns of bodies that are read this way.

Knows sizes, JSON and types of fields; no route and no protocol.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from tokenline.aside import LARGE, Aside, Declined
from tokenline.fields import IDENTITY, FieldError, Path, Places, shown
from tokenline.server.encodings import decoder
from tokenline.server.errors import ApiError, ClientGone, from_declined, from_fault, queue_full
from tokenline.server.origins import require_json
from tokenline.server.parse_cost import ParseCost

logger = logging.getLogger(__name__)

BYTE_ORDER_MARK = "\ufeff".encode()
MAX_HELD_BYTES = 64 << 20
IDLE_S = 30.0  # without a byte
MIN_BYTES_PER_S = 64 * 1024  # on the whole, after the first `IDLE_S`
CLOSE = {"Connection": "close"}  # what the client still sends is not read
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


class BodyReader:
    """Reads the bodies of all requests, within bounds: of size, of what a body's kinds of JSON cost, of time, and of
    what all bodies that are on their way hold together. Belongs to the event loop.
    """

    def __init__(self, max_bytes: int, max_model_len: int, aside: Aside):
        self._max_bytes = max_bytes
        self._max_model_len = max_model_len
        self._aside = aside
        self._held = 0  # bytes of large bodies that are not parsed yet

    async def read(self, request: Request, model: type[B], *, max_bytes: int | None = None) -> B:
        """The request's body as a `model`, without the fields that are not known.

        Raises ApiError (400, 408, 413, 415, 429) or ClientGone.
        """
        require_json(request)
        held = _Held(self)
        try:
            data = await self._receive(request, min(max_bytes or self._max_bytes, self._max_bytes), held)
            data = data.removeprefix(BYTE_ORDER_MARK)  # some editors and clients write one; RFC 8259 lets it pass
            body = await self._aside.run_if_large(len(data), lambda: parse_body(data, model))
        except FieldError as fault:
            raise from_fault(fault, IDENTITY) from None
        except Declined as declined:
            raise from_declined(declined) from None
        finally:
            held.let_go()
        if body.model_extra:
            body.model_extra.clear()
        return body

    async def _receive(self, request: Request, max_bytes: int, held: "_Held") -> bytes:
        """All of the body, decoded. One that is refused is read on to its end (within reason) but not kept: a client
        that is still sending would see a broken connection instead of the answer.
        """
        self._check_length(request, max_bytes)
        encoded = decoder(request.headers.get("content-encoding", ""), max_bytes)
        chunks: list[bytes] = []
        cost, received, size = ParseCost(self._max_model_len), 0, 0
        refusal: ApiError | None = None
        stream = request.stream()
        started_s = time.monotonic()
        while True:
            rate_ends_s = started_s + IDLE_S + received / MIN_BYTES_PER_S
            try:
                async with asyncio.timeout(max(0.0, min(IDLE_S, rate_ends_s - time.monotonic()))):
                    chunk = await anext(stream, None)
            except TimeoutError:
                raise refusal or _too_slow() from None
            except ClientDisconnect:
                raise ClientGone from None
            if chunk is None:
                break
            received += len(chunk)
            if refusal is not None:
                if received > 2 * max_bytes:
                    raise refusal
                continue
            data = chunk if received > max_bytes or encoded is None else encoded.feed(chunk)
            size += len(data)
            if max(received, size) > max_bytes:
                refusal = _too_large(f"The body is larger than {max_bytes} bytes, the limit here.")
            elif not cost.add(data):
                refusal = _too_large(
                    "The body has more values, names and brackets than anything that fits the context of "
                    f"{self._max_model_len} tokens: reading it would hold up others."
                )
            elif not held.more(len(data)):
                refusal = queue_full("Other large requests are being read already; try again later.", CLOSE)
            if refusal is not None:
                chunks.clear()
                held.let_go()
            else:
                chunks.append(data)
        if refusal is not None:
            raise refusal
        if encoded is not None:
            encoded.finish()
        return b"".join(chunks)

    @staticmethod
    def _check_length(request: Request, max_bytes: int) -> None:
        """Refuse a body by what is said of its length: where the client waits for a word, or for far too long a one."""
        said = request.headers.get("content-length", "")
        length = int(said) if said.isdecimal() and len(said) < 20 else 0
        waits = request.headers.get("expect", "").lower() == "100-continue"
        if length > (max_bytes if waits else 2 * max_bytes):
            # Without "Connection: close": `http1` reads on for a while, so that the client sees this.
            message = f"The body is larger than {max_bytes} bytes, the limit here."
            raise ApiError(413, message, code="body_too_large")


class _Held:
    """What one body holds of what all may."""

    def __init__(self, reader: BodyReader):
        self._reader = reader
        self._bytes = 0

    def more(self, count: int) -> bool:
        """Whether there is room for so many more bytes, which then count. Small bodies need none."""
        if self._bytes + count > LARGE and self._reader._held + count > MAX_HELD_BYTES:
            return False
        self._bytes += count
        self._reader._held += count
        return True

    def let_go(self) -> None:
        self._reader._held -= self._bytes
        self._bytes = 0


def _too_large(message: str) -> ApiError:
    return ApiError(413, message, code="body_too_large", headers=CLOSE)


def _too_slow() -> ApiError:
    message = f"The body did not come: at least {MIN_BYTES_PER_S} bytes a second are expected, after {IDLE_S:.0f} s."
    return ApiError(408, message, code="request_timeout", headers=CLOSE)


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
    unknown = fields.keys() - model.known_fields()
    moved = _read_aliases(fields, model.aliases)
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        fault = _first_fault(error, model)
        raise FieldError(Places(moved)(fault.path), *fault.parts, code=fault.code) from None
    body._size, body._moved = len(data), moved
    if unknown and logger.isEnabledFor(logging.DEBUG):
        logger.debug("fields that are not known and were ignored: %s", ", ".join(map(repr, sorted(unknown)[:50])))
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
