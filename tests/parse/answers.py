"""Running a parser over an answer cut into pieces, and what must hold however it was cut."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tokenline.parse.delta import Delta, OutputParser, ToolCallDelta, join
from tokenline.parse.message import Message, assemble


class Answer(NamedTuple):
    content: str | None
    reasoning: str | None
    calls: list[tuple[str, str]]  # name, arguments; the complete ones
    begun: list[tuple[str, str]]  # all calls in the deltas, finished or not
    whole: list[tuple[str, str]]  # those of the whole answer: the complete ones and the one that was cut

    @property
    def parsed(self) -> list[tuple[str, object]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


MakeParser = Callable[[], OutputParser]


def run(parser: OutputParser, pieces: Sequence[str], *, cut: bool = False) -> tuple[Message, list[Delta]]:
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += check_chunk(parser.feed(piece))
    deltas += check_chunk(parser.finish(cut=cut))
    assert parser.has_tool_calls == bool(parser.complete_calls)
    return assemble(deltas, parser.message_calls), deltas


def check_chunk(deltas: Sequence[Delta]) -> Sequence[Delta]:
    """What a client of the stream relies on: no empty deltas."""
    for delta in deltas:
        assert isinstance(delta, ToolCallDelta) or delta.text
    return join(deltas)


def answer(parser: OutputParser, pieces: Sequence[str], *, cut: bool = False) -> Answer:
    message, deltas = run(parser, pieces, cut=cut)
    begun: dict[int, list[str]] = {}
    ids: list[str] = []
    for call in deltas:
        if isinstance(call, ToolCallDelta):
            if call.index not in begun:
                assert call.index == len(begun)
                assert call.id
                assert call.name
                ids.append(call.id)
                begun[call.index] = [call.name, ""]
            else:  # id and name come once
                assert call.id is None
                assert call.name is None
            begun[call.index][1] += call.arguments
    assert len(set(ids)) == len(ids)
    streamed = [(name, arguments) for name, arguments in begun.values()]
    calls = [streamed[index] for index in parser.complete_calls]
    whole = [(call.name, call.arguments) for call in message.tool_calls]
    for _, arguments in calls:
        json.loads(arguments)  # a finished call is always valid JSON
    assert whole == [streamed[index] for index in parser.message_calls]
    assert whole[: len(calls)] == calls
    assert len(whole) <= len(calls) + cut  # and one that was cut
    return Answer(message.content, message.reasoning, calls, streamed, whole)


def every_cut(make: MakeParser, text: str, *, cut: bool = False) -> Answer:
    """The answer, after checking that it is the same whole, in characters, and cut in two at every place."""
    whole = answer(make(), [text], cut=cut)
    assert answer(make(), list(text), cut=cut) == whole
    for place in range(1, len(text)):
        assert answer(make(), [text[:place], text[place:]], cut=cut) == whole, (text[:place], text[place:])
    return whole
