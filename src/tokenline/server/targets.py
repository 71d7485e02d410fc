"""The outermost layer: what clients write as a request's target and method becomes what the routes know.

Clients differ in how they put a base URL and a path together (`//v1/models`, `/chat/completions` without `/v1`, a
proxy's `GET http://host/v1/models`), and RFC 9110 asks every server for HEAD.
"""

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ABSOLUTE = re.compile(r"^https?://[^/]*", re.IGNORECASE)
_SLASHES = re.compile("/{2,}")


class Targets:
    """ASGI middleware. `routes`: the paths of the application's routes."""

    def __init__(self, app: ASGIApp, routes: Iterable[str]):
        self._app = app
        # By their first part: "models" of /v1/models/{name}.
        self._versioned = {path.split("/")[2] for path in routes if path.startswith("/v1/")}
        self._plain = {path.split("/")[1] for path in routes if not path.startswith("/v1/")} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = self.route_path(scope["path"])
        scope = {**scope, "path": path}
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # The router is asked for GET; the log still says HEAD.
        await self._app({**scope, "method": "GET", "tokenline.method": "HEAD"}, receive, without_body)

    def route_path(self, path: str) -> str:
        """The path as the routes have it; one that no route has stays much as it is."""
        path = _SLASHES.sub("/", f"/{_ABSOLUTE.sub('', path)}")  # with its first slash: "*" has none
        if len(path) > 1:
            path = path.removesuffix("/")
        parts = path.split("/")[1:]
        while parts[:2] == ["v1", "v1"]:
            del parts[0]
        if parts[0] == "v1" and len(parts) > 1 and parts[1] in self._plain - self._versioned:
            del parts[0]
        elif parts[0] in self._versioned - self._plain:
            parts.insert(0, "v1")
        return "/" + "/".join(parts)
