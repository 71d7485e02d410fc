"""The API's description: GET /openapi.json, /docs and /redoc. Asks for a key where keys are set, and declares it."""

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from tokenline.server.state import ServerState

OPEN = ("/health",)  # what is described, and needs no key
_KEY = {"type": "http", "scheme": "bearer", "description": "An API key of this server."}


def document_routes(state: ServerState, app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/openapi.json")
    async def openapi(http: HTTPRequest) -> Response:
        """Bodies and answers as JSON schemas."""
        state.check_reader(http)
        return JSONResponse(app.openapi())

    @router.get("/docs")
    async def docs(http: HTTPRequest) -> Response:
        state.check_reader(http)
        return get_swagger_ui_html(openapi_url="openapi.json", title=app.title)

    @router.get("/redoc")
    async def redoc(http: HTTPRequest) -> Response:
        state.check_reader(http)
        return get_redoc_html(openapi_url="openapi.json", title=app.title)

    return router


def declare_security(app: FastAPI) -> None:
    """Say in the document that every route but `OPEN` needs a key."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        document.setdefault("components", {})["securitySchemes"] = {"key": _KEY}
        document["security"] = [{"key": []}]
        for path in OPEN:
            for operation in document["paths"][path].values():
                operation["security"] = []
        return document

    app.openapi = openapi
