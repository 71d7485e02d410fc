"""Server-sent events: frames, and the response that sends an answer's. What a frame says is a protocol's business."""

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from tokenline.fields import Places
from tokenline.server.errors import ApiError, ClientGone, api_errors, internal_error
from tokenline.server.log import RequestRecord
from tokenline.server.settings import ServerSettings
from tokenline.service.answer import Answer

logger = logging.getLogger(__name__)


class Frame(NamedTuple):
    """One event: JSON, or a text without line breaks; named where the protocol names its events."""

    data: Mapping[str, Any] | str
    event: str | None = None


Frames = AsyncGenerator[Frame, None]


def encode(frame: Frame) -> bytes:
    """The bytes of an event. JSON has no line breaks, so it is one line whatever the text."""
    data = frame.data
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    name = f"event: {frame.event}\n" if frame.event else ""
    return f"{name}data: {data}\n\n".encode()


class AnswerStream(EventSourceResponse):
    """Sends the frames of one answer that is open. Whatever ends the response, the answer is closed with it.

    sse-starlette watches the connection, so a client that leaves is noticed also while nothing is being sent, and sends
    comment lines meanwhile.
    """

    def __init__(
        self,
        answer: Answer,
        frames: Frames,
        error_frame: Callable[[ApiError], Frame],
        record: RequestRecord,
        places: Places,
        settings: ServerSettings,
    ):
        super().__init__(
            _bytes(frames, error_frame, record, places),
            ping=settings.ping_s,
            sep="\n",
            send_timeout=settings.send_timeout_s,
            # On SIGTERM the engine ends what is still running after its own grace period, with an error event;
            # cutting streams before that is only the last resort.
            shutdown_grace_period=settings.shutdown_grace_s + 5,
        )
        self._answer = answer
        self._record = record
        record.stream = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            raise ClientGone from None
        finally:
            await self._answer.aclose()
            self._record.note(self._answer)


async def _bytes(
    frames: Frames, error_frame: Callable[[ApiError], Frame], record: RequestRecord, places: Places
) -> AsyncGenerator[bytes, None]:
    try:
        with api_errors(record.id, places):
            async with aclosing(frames):
                async for frame in frames:
                    yield encode(frame)
    except ApiError as error:
        # The status is long sent; the only honest end is an error event and a closed connection.
        record.failed(error)
        yield encode(error_frame(error))
    except Exception:
        logger.exception("stream %s failed", record.id)
        error = internal_error(record.id)
        record.failed(error)
        yield encode(error_frame(error))
