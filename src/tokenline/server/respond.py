"""One request's answer as a response, in whatever protocol: whole as JSON, or as a stream of server-sent events."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import Response

from tokenline.aside import Aside
from tokenline.server.auth import sender_of
from tokenline.server.disconnect import unless_gone
from tokenline.server.errors import ApiError, api_errors
from tokenline.server.json_answer import json_answer
from tokenline.server.log import record_of
from tokenline.server.sse import AnswerStream, Frame, Frames
from tokenline.server.state import ServerState
from tokenline.service.answer import Answer
from tokenline.service.request import ChatRequest, TextRequest


class Whole(NamedTuple):
    """A whole answer that has come to its end."""

    values: int  # about how many texts and numbers it has
    make: Callable[[], Mapping[str, Any]]  # puts it together, on any thread


class Shell(Protocol):
    """How a protocol writes one answer."""

    async def whole(self, answer: Answer) -> Whole:
        """Read all events of an open answer."""
        ...

    def frames(self, answer: Answer) -> Frames:
        """The frames of an open answer, the protocol's own end included."""
        ...

    def error_frame(self, error: ApiError) -> Frame:
        """What a stream ends with when its answer fails."""
        ...


async def respond(
    http: Request, state: ServerState, request: ChatRequest | TextRequest, shell: Shell, *, stream: bool
) -> Response:
    """Answer a request. Raises ApiError, ClientGone."""
    record = record_of(http)
    request = replace(request, sender=sender_of(http, request.caller))
    with api_errors(record.id, request.places):
        answer = await state.service.answer(request)
    handed_over = False
    try:
        with api_errors(record.id, request.places):
            if stream:
                # A refusal or an early failure is still a plain error answer.
                await unless_gone(http, answer.open(state.settings.stream_open_after_s))
            else:
                return await unless_gone(http, _whole(answer, shell, state.service.aside))
        handed_over = True
        frames = shell.frames(answer)
        return AnswerStream(answer, frames, shell.error_frame, record, request.places, state.settings)
    finally:
        if not handed_over:
            await answer.aclose()
            record.note(answer)


async def _whole(answer: Answer, shell: Shell, aside: Aside) -> Response:
    await answer.open()
    whole = await shell.whole(answer)
    return await json_answer(aside, whole.values, whole.make)
