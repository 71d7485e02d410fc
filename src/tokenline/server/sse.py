"""Server-sent events as OpenAI's clients expect them: `data: {json}` frames, then `data: [DONE]`.

Knows frames and connections; what a chunk looks like is the routes' business.
"""

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self

from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tokenline.server.disconnect import unless_gone
from tokenline.server.errors import ApiError, ClientGone, internal_error
from tokenline.server.generate import Generation
from tokenline.server.settings import ServerSettings

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def frame(data: Mapping[str, Any]) -> bytes:
    """One event. JSON has no line breaks, so it is one line whatever the text."""
    return b"data: " + json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"


class AnswerStream(EventSourceResponse):
    """Sends the chunks of one generation. Whatever ends the response, the generation is closed with it.

    sse-starlette watches the connection, so a client that leaves is noticed also while nothing is being sent, and sends
    comment lines meanwhile.
    """

    def __init__(
        self,
        generation: Generation,
        chunks: AsyncGenerator[Mapping[str, Any], None],
        settings: ServerSettings,
    ):
        super().__init__(
            _frames(generation, chunks),
            ping=settings.ping_s,
            sep="\n",
            send_timeout=settings.send_timeout_s,
            # On SIGTERM the engine ends what is still running after its own grace period, with an error event;
            # cutting streams before that is only the last resort.
            shutdown_grace_period=settings.shutdown_grace_s + 5,
        )
        self._generation = generation

    @classmethod
    async def open(
        cls,
        http: Request,
        generation: Generation,
        chunks: AsyncGenerator[Mapping[str, Any], None],
        settings: ServerSettings,
    ) -> Self:
        """Begin the generation, so that a refusal or an early failure is still a plain error answer."""
        try:
            await unless_gone(http, generation.open(settings.stream_open_after_s))
        except BaseException:
            await generation.aclose()
            raise
        generation.record.stream = True
        return cls(generation, chunks, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            raise ClientGone from None
        finally:
            await self._generation.aclose()


async def _frames(
    generation: Generation, chunks: AsyncGenerator[Mapping[str, Any], None]
) -> AsyncGenerator[bytes, None]:
    record = generation.record
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield frame(chunk)
        yield DONE
    except ApiError as error:
        # The status is long sent; the only honest end is an error event and a closed connection.
        record.error = error.code
        yield frame(error.body())
    except Exception:
        logger.exception("stream %s failed", record.id)
        record.finish, record.error = "error", "internal_error"
        yield frame(internal_error(record.id).body())
