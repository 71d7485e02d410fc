"""The whole answer from its deltas: what a non-streaming response, or a client that adds up the stream, has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenline.parse.delta import ContentDelta, Delta, ReasoningDelta, ToolCallDelta


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON text; its beginning where a limit or a stop string has cut the call


@dataclass(frozen=True, slots=True)
class Message:
    """The parts of an assistant's message."""

    content: str | None  # None if there is none, but reasoning or a tool call
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...] = ()


def assemble(deltas: Iterable[Delta], message_calls: Sequence[int]) -> Message:
    """Join all deltas of an answer, with these calls (see `OutputParser.message_calls`)."""
    content: list[str] = []
    reasoning: list[str] = []
    heads: dict[int, tuple[str, str]] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallDelta(index, id, name):
                if id is not None and name is not None:
                    heads[index] = (id, name)
                arguments.setdefault(index, []).append(delta.arguments)
    calls = tuple(ToolCall(*heads[index], "".join(arguments[index])) for index in message_calls)
    text, thoughts = "".join(content), "".join(reasoning)
    return Message(text if text or not (thoughts or calls) else None, thoughts or None, calls)
