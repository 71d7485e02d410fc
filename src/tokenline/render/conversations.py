"""The small chats by which a template is examined: plain ones, with a system message, with tools, with reasoning.

Data and nothing else: what becomes of them is `stability`'s to find out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import ChatRenderer


class Turn(NamedTuple):
    """One answer within a conversation, as three chats."""

    message: int  # index of the answer
    prompt: ChatInput  # what it was generated behind
    answered: ChatInput  # that and the answer
    later: ChatInput  # the next request


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat to play: each assistant message is generated behind what precedes it."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    as_sent: tuple[dict[str, Any], ...] | None = None  # what the client sends back, where that is not the same

    def turns(self) -> Iterator[Turn]:
        sent = self.as_sent or self.messages
        turns = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
        for turn, following in zip(turns, [*turns[1:], len(self.messages)], strict=True):
            # the earlier answers as the client sent them, the last one as it was generated
            history = [*sent[:turn], self.messages[turn]]
            yield Turn(
                turn,
                self._chat(history[:-1], True),
                self._chat(history, False),
                self._chat(sent[:following], True),
            )

    def _chat(self, messages: Sequence[Any], generate: bool) -> ChatInput:
        tools = list(self.tools) or None
        return ChatInput(list(messages), tools, add_generation_prompt=generate, template_kwargs=self.kwargs)


_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SYSTEM = {"role": "system", "content": "You answer in one sentence."}
_ASK = {"role": "user", "content": "What is the capital of France?"}
_ANSWER = {"role": "assistant", "content": "The capital is Paris."}
_MORE = {"role": "user", "content": "And of Belgium?"}
_THOUGHT = {
    "role": "assistant",
    "content": "The capital is Paris.",
    "reasoning_content": "A plain question of geography.",
}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        }
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "9 degrees, rain"}
_REPORT = {"role": "assistant", "content": "It rains in Paris."}
_WEATHER = {"role": "user", "content": "What is the weather in Paris?"}


def chat_with_arguments(arguments: str) -> ChatInput:
    """A chat with one tool call whose arguments are this JSON text."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {**_CALL, "tool_calls": [{**_CALL["tool_calls"][0], "function": function}]}
    return ChatInput([_WEATHER, call, _RESULT], [_TOOL])


def first_request() -> ChatInput:
    """The first request of a conversation."""
    return ChatInput([_SYSTEM, _ASK])


def conversations(renderer: ChatRenderer) -> Iterator[Conversation]:
    """Every kind of conversation, those with reasoning only for a template that mentions it."""
    yield Conversation("plain", (_ASK, _ANSWER, _MORE, _ANSWER, _ASK))
    yield Conversation("with a system message", (_SYSTEM, _ASK, _ANSWER, _MORE, _ANSWER, _ASK))
    yield Conversation("with a later system message", (_SYSTEM, _ASK, _ANSWER, _SYSTEM, _MORE))
    yield Conversation("tools", (_SYSTEM, _WEATHER, _CALL, _RESULT, _REPORT, _MORE), (_TOOL,))
    yield Conversation("tools, without a system message", (_WEATHER, _CALL, _RESULT, _REPORT, _MORE), (_TOOL,))
    names = renderer.template().variables()
    mentioned = any(renderer.template().mentions(word) for word in ("reasoning_content", "thinking", "think"))
    if not mentioned:
        return
    on = {name: True for name in ("enable_thinking", "thinking") if name in names}
    yield Conversation("thinking", (_ASK, _THOUGHT, _MORE, _THOUGHT, _ASK), (), on)
    bare = (_ASK, _ANSWER, _MORE, _ANSWER, _ASK)
    yield Conversation("thinking, not sent back", (_ASK, _THOUGHT, _MORE, _THOUGHT, _ASK), (), on, bare)
    calls = (_WEATHER, _thinking(_CALL), _RESULT, _thinking(_REPORT), _MORE)
    yield Conversation("thinking between tool calls", calls[:3], (_TOOL,), on)
    yield Conversation("thinking and tools over turns", calls, (_TOOL,), on)
    if on:
        yield Conversation("thinking off", bare, (), dict.fromkeys(on, False))


def _thinking(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "reasoning_content": "The question needs a look."}
