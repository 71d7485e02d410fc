"""Which web pages may use the server. Knows headers, no route.

A browser lets any page send requests to a server on its user's machine. Two rules keep foreign pages out:

- `Origin`: a page's request names where the page comes from. One that is not the server itself must be allowed
  (`cors_origins`); it then gets the CORS headers without which its browser would not let it read the answer.
- `Host`: a page can have its own domain point to this machine (DNS rebinding), so that it counts as the server itself.
  Then the Host is that domain, and not a name of this machine.

With API keys neither is needed, since a foreign page does not know the key: then only the CORS headers remain.

A page can send a *simple* request without asking first, and browsers add no Origin to some of them. So whatever changes
something takes only what no page can send unasked: JSON, or a key (`require_json`, `refuse_simple`). And what browsers
mark as coming from another site, for something other than to show it as a page of its own, is refused.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from functools import cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenline.fields import shown
from tokenline.server.errors import ApiError, error_response
from tokenline.server.log import record_of

ANY = "*"
METHODS = "GET, HEAD, POST, OPTIONS"
EXPOSED = "x-request-id, retry-after"
PREFLIGHT_S = "600"  # how long a browser may remember that it may ask
# Nobody can own a domain below these (RFC 6761, 6762, 8375; ICANN keeps .internal), so no page can come from one.
_LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.*-]*://[^/?#\s]+", re.IGNORECASE)


def check_origin(pattern: str) -> None:
    """Raise ValueError for what is no origin that could be allowed."""
    if pattern not in (ANY, "null") and not _ORIGIN.fullmatch(pattern):
        raise ValueError(
            f"an origin is a scheme, a host and perhaps a port, as https://chat.example.com, app://obsidian.md or "
            f"http://localhost:*, or * for all; got {shown(pattern)}"
        )


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    """`*` stands for any characters but a slash."""
    return re.compile("[^/]*".join(map(re.escape, pattern.split(ANY))), re.IGNORECASE)


def allows(origins: Sequence[str], origin: str) -> bool:
    return any(pattern == ANY or _expression(pattern).fullmatch(origin) for pattern in origins)


def is_local_name(host: str) -> bool:
    """Whether a Host, without a port, can only be a name or an address of a machine, not of a foreign domain."""
    host = host.lower().removesuffix(".")
    if host in ("localhost", socket.gethostname().lower()) or host.endswith(_LOCAL_DOMAINS):
        return True
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return False
    return True


def require_json(request: Request) -> None:
    """Raise a 415 for a body of another type. A page may send only other types without a preflight request."""
    kind = _content_type(request)
    if not _is_json(kind):
        message = f"The body must be JSON with 'Content-Type: application/json'; got {shown(kind)}."
        raise ApiError(415, message, code="unsupported_media_type")


def refuse_simple(request: Request) -> None:
    """Raise a 415 for a request that any page could have sent; for routes that change something and read no body."""
    if "authorization" not in request.headers and not _is_json(_content_type(request)):
        message = "Send this with 'Content-Type: application/json', without which any web page could send it."
        raise ApiError(415, message, code="unsupported_media_type")


def _content_type(request: Request) -> str:
    """Without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def _host_name(host: str) -> str:
    """A Host without its port."""
    return host if host.endswith("]") else re.sub(r":[0-9]*$", "", host)


class CorsHeaders:
    """ASGI middleware: lets allowed pages read all answers, errors and streams among them."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]):
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" and self._origins else None
        if origin is None or not allows(self._origins, origin):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["access-control-allow-origin"] = origin
                headers["access-control-expose-headers"] = EXPOSED
                headers.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class PageGuard:
    """ASGI middleware: refuses foreign pages, and answers what browsers ask first for allowed ones (preflight).

    `hosts`: names besides those of this machine that the server may be called by; None: by any. `has_keys`: see above.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], hosts: Sequence[str] | None, has_keys: bool):
        self._app = app
        self._origins = origins
        self._hosts = None if hosts is None or has_keys else [host.lower() for host in hosts]
        self._has_keys = has_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        preflight = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        refusal = self._refuse_host(host)
        if refusal is None and origin is None and not self._has_keys:
            refusal = self._refuse_embedding(request)
        if refusal is None and origin is not None and (preflight or not self._has_keys):
            refusal = self._refuse_origin(origin, host)
        if refusal is not None:
            record_of(request).failed(refusal)
            await error_response(request, refusal)(scope, receive, send)
        elif preflight:
            await _preflight(request)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refuse_host(self, host: str) -> ApiError | None:
        name = _host_name(host)
        if self._hosts is None or not name or ANY in self._hosts or name in self._hosts or is_local_name(name):
            return None
        message = (
            f"This server does not go by the name {shown(name)}. If it should, start it with --allowed-hosts {name}."
        )
        return ApiError(403, message, code="host_not_allowed")

    def _refuse_embedding(self, request: Request) -> ApiError | None:
        """A page may link here, but not have its images, scripts or forms fetch from here. Only browsers send this."""
        site = request.headers.get("sec-fetch-site", "none")
        if site in ("none", "same-origin") or ANY in self._origins:
            return None
        if request.method in ("GET", "HEAD") and request.headers.get("sec-fetch-dest") == "document":
            return None
        return ApiError(403, "Pages of other sites may only link to this server.", code="origin_not_allowed")

    def _refuse_origin(self, origin: str, host: str) -> ApiError | None:
        if allows(self._origins, origin) or (host and _host_of(origin) == host):
            return None
        message = f"Pages from {shown(origin)} may not use this server; --cors-origins can allow them."
        return ApiError(403, message, code="origin_not_allowed")


def _host_of(origin: str) -> str | None:
    """Host and port of an http origin, as a Host header has them."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def _preflight(request: Request) -> Response:
    """Yes: an allowed page may send that. `CorsHeaders` adds who."""
    headers = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": request.headers.get("access-control-request-headers", "*"),
        "Access-Control-Max-Age": PREFLIGHT_S,
    }
    if request.headers.get("access-control-request-private-network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=headers)
