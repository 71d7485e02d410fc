"""The OpenAPI page of request bodies that are read by hand (`body.py`), made from their wire types."""

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from tokenline.server.wire import Body, ChatBody, CompletionBody, DetokenizeBody, TemplateBody, TokenizeBody

_BODIES = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, TemplateBody)
_TEMPLATE = "#/components/schemas/{model}"


def takes(model: type[Body]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is a `model`."""
    schema = {"$ref": _TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def add_body_schemas(app: FastAPI) -> None:
    """Add the bodies to the components that FastAPI collects by itself."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template=_TEMPLATE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
        return document

    app.openapi = openapi
