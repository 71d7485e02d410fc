"""One request's answer as a response, in whatever protocol: whole as JSON, or as a stream of server-sent events."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tokenline.server.auth import sender_of
from tokenline.server.disconnect import unless_gone
from tokenline.server.errors import ApiError, api_errors
from tokenline.server.log import record_of
from tokenline.server.sse import AnswerStream, Frame, Frames
from tokenline.server.state import ServerState
from tokenline.service.answer import Answer
from tokenline.service.request import ChatRequest, TextRequest


class Shell(Protocol):
    """How a protocol writes one answer."""

    async def whole(self, answer: Answer) -> Mapping[str, Any]:
        """Read all events of an open answer and put them together."""
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
                return JSONResponse(await unless_gone(http, _whole(answer, shell)))
        handed_over = True
        frames = shell.frames(answer)
        return AnswerStream(answer, frames, shell.error_frame, record, request.places, state.settings)
    finally:
        if not handed_over:
            await answer.aclose()
            record.note(answer)


async def _whole(answer: Answer, shell: Shell) -> Mapping[str, Any]:
    await answer.open()
    return await shell.whole(answer)
