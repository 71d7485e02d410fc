"""uvicorn's HTTP/1.1 protocol with bounds, and with answers in this server's shape to what is no HTTP.

What uvicorn leaves open: how long a request's head may take, what happens to a body that nobody reads, and that two
statements of a body's length are an attack on whoever stands in front (request smuggling).
"""

import json
import logging
import sys
import time
import uuid
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokenline.server.connections import Connections
from tokenline.server.errors import ApiError, openai_body
from tokenline.server.log import RequestRecord, logger

READ_BYTES = 16 * 1024  # at once: a body in chunks of one byte has 2,700 of them in there, and each takes 10 µs
UNREAD_BYTES = 1 << 20  # of a body that is not wanted: so much of it is read, so that the client sees the answer
MAX_HEAD_BYTES = 64 * 1024


class Http1(H11Protocol):
    """One connection."""

    def __init__(self, open_connections: Connections, **given: Any):
        super().__init__(**given)
        self._all = open_connections
        self.opened_s = time.monotonic()
        self._head_since_s: float | None = self.opened_s
        self._unread = 0  # bytes of a body that came after its answer

    # ---- what `connections` asks

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def head_since_s(self) -> float | None:
        return self._head_since_s

    @property
    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def head_is_late(self) -> None:
        if self.conn.trailing_data[0] and self.conn.our_state is h11.IDLE:
            self._refuse(ApiError(408, "The request did not come to its end.", code="request_timeout"))
        else:
            self.close()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    # ---- what asyncio and uvicorn say

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = READ_BYTES
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_unread:
            self._unread += len(data)
            if self._unread > UNREAD_BYTES:
                self.close()
                return
        super().data_received(data)
        self._note_head()

    def handle_events(self) -> None:
        super().handle_events()
        self._note_head()

    @property
    def _is_unread(self) -> bool:
        """Whether a body is still coming whose request is answered."""
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)

    def _note_head(self) -> None:
        """A request whose head is not complete has a time until which it must be; so has the rest of an unread body."""
        waits = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not (waits or self._is_unread):
            self._head_since_s = None
        elif self._head_since_s is None:
            self._head_since_s = time.monotonic()

    def on_response_complete(self) -> None:
        self._unread = 0
        self.opened_s = time.monotonic()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server ends: a request whose body has not come is refused, for it may never come."""
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_started:
            self._refuse(ApiError(503, "The server is shutting down.", code="shutting_down"))
        else:
            super().shutdown()

    def _should_upgrade(self) -> bool:
        """Called by uvicorn for each request. There is nothing to upgrade to; but one that would be is never begun."""
        return self._refusal() is not None

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        refusal = self._refusal()
        assert refusal is not None
        self._refuse(refusal)

    def _refusal(self) -> ApiError | None:
        """What h11 lets pass, and nobody behind it may see."""
        if not self.scope["http_version"].startswith("1."):
            return ApiError(505, f"This server speaks HTTP/1.1, not HTTP/{self.scope['http_version']}.")
        names = [name for name, _ in self.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            # Whoever stands in front may have taken the other one for true: request smuggling.
            message = "The request has both Content-Length and Transfer-Encoding."
            return ApiError(400, message, code="invalid_request")
        return None

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no HTTP, while it handles the error that says so."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        message = f"The request is not valid HTTP/1.1: {str(error)[:200]}."
        self._refuse(ApiError(status, message, code="invalid_request"))

    def _refuse(self, error: ApiError) -> None:
        """Answer what no route sees, and close the connection."""
        record = RequestRecord(id=f"req-{uuid.uuid4().hex}", method="-", route="-", status=error.status)
        record.failed(error)
        if self.cycle is not None and not self.cycle.response_complete:
            started = self.cycle.response_started
            self.cycle.disconnected = True  # whoever waits for the body learns that no more of it comes
            self.cycle.message_event.set()
        else:
            started = False
        if not started and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(openai_body(error)).encode()
            headers = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                (b"x-request-id", record.id.encode()),
            ]
            events = (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(cast(bytes, self.conn.send(event)) for event in events))
            logger.log(logging.INFO, "request", extra={"fields": record.fields()})
        self.transport.close()
