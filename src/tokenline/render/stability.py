"""Whether a chat grows at its end only: is the line of turn n, with its answer, the beginning of that of turn n + 1?

Where it is, the next request finds all of the last one in the prefix cache. Many templates break it somewhere: they
drop the reasoning of earlier turns, move tools or a system text, or write an answer another way than it was generated.
This plays small conversations through a template and says where a line breaks, by which condition of the template, and
whether a template variable would keep it whole.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from tokenline.render.branches import parting_line
from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import ChatRenderer
from tokenline.render.errors import RenderError
from tokenline.render.line import Span
from tokenline.render.normalize import CallStyle, normalize
from tokenline.render.provenance import spans_of
from tokenline.render.template import to_json


class Cause(StrEnum):
    """Why a line breaks. The words are those of the cases in which such breaks were reported."""

    REASONING_DROPPED = "reasoning_dropped_by_template"
    REASONING_NOT_SENT = "reasoning_dropped_by_client"
    PROMPT_NOT_KEPT = "generation_prompt_not_kept"
    TOOLS_MOVED = "template_moves_tools"
    SYSTEM_MOVED = "template_moves_system"
    ARGUMENTS = "arguments_rewritten"
    WHITESPACE = "whitespace_trim"
    ASYMMETRY = "template_asymmetry"


_SAID = {
    Cause.REASONING_DROPPED: "the reasoning of an earlier turn is left out, though the model generated it",
    Cause.REASONING_NOT_SENT: "the client did not send the reasoning back",
    Cause.PROMPT_NOT_KEPT: "what opened the answer in the prompt is not written before it in the history",
    Cause.TOOLS_MOVED: "the tools stand elsewhere once there is another turn",
    Cause.SYSTEM_MOVED: "a later system message changes what stands before it",
    Cause.ARGUMENTS: "tool-call arguments are written another way than they were generated",
    Cause.WHITESPACE: "white space around an answer changes",
    Cause.ASYMMETRY: "an earlier turn is written another way than the last one",
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat to play: each assistant message is generated behind what precedes it."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    as_sent: tuple[dict[str, Any], ...] | None = None  # what the client sends back, where that is not the same


@dataclass(frozen=True, slots=True)
class Break:
    """The first place at which a line does not go on from the line before."""

    turn: int  # index of the assistant message whose text is not found again as it was
    cause: Cause
    kept: str  # the last characters that both lines share
    before: str  # how the line went on, with its answer
    after: str  # how the next line goes on instead
    line: int | None  # of the template, counted from 1: the condition that decided it
    source: str | None  # that line
    fix: dict[str, Any] | None  # chat_template_kwargs that keep the line whole

    @property
    def said(self) -> str:
        """The cause in words."""
        return _SAID[self.cause]


@dataclass(frozen=True, slots=True)
class Check:
    """What became of one conversation. Stable if nothing broke and nothing was refused."""

    conversation: str
    broken: Break | None = None
    refused: str | None = None  # the template's own words, where it does not take such a conversation

    @property
    def stable(self) -> bool:
        return self.broken is None and self.refused is None


@dataclass(frozen=True, slots=True)
class Stability:
    """What a template does to lines."""

    checks: tuple[Check, ...]
    date_unit: str | None  # the template writes the date, which changes that often: "day", "second", ...
    date_fix: dict[str, Any] | None  # chat_template_kwargs that hold the date still

    @property
    def stable(self) -> bool:
        """Whether every conversation that the template takes stays whole, whatever the time, and it takes some."""
        return self.date_unit is None and self.takes_any and all(check.broken is None for check in self.checks)

    @property
    def takes_any(self) -> bool:
        """Whether at least one of the conversations is not refused."""
        return any(check.refused is None for check in self.checks)

    def summary(self) -> str:
        """One line for a log."""
        if not self.takes_any:
            return f"chat template takes no conversation: {self.checks[0].refused}"
        parts = [f"injects the date ({self.date_unit})"] if self.date_unit else []
        by_cause: dict[Cause, list[str]] = {}
        for check in self.checks:
            if check.broken is not None:
                by_cause.setdefault(check.broken.cause, []).append(check.conversation)
        parts += [f"{_SAID[cause]} ({', '.join(names)})" for cause, names in by_cause.items()]
        if not parts:
            return "chat template: every line stays whole from turn to turn"
        return "chat template breaks lines: " + "; ".join(parts)


_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_NOON = datetime(2026, 3, 5, 12)
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


def _thinking(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "reasoning_content": "The question needs a look."}


def _conversations(renderer: ChatRenderer) -> Iterator[Conversation]:
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


def check_stability(renderer: ChatRenderer, *, explain: bool = True) -> Stability:
    """Play every kind of conversation through the renderer's template. Raises RenderError where it has none.

    `explain`: where a line breaks, find the template's condition and try template variables, which takes longer.
    """
    template = renderer.template()
    checks = [_check(renderer, conversation, explain) for conversation in _conversations(renderer)]
    if renderer.needs(tools=True).calls is CallStyle.TEMPLATE:
        checks.append(_check_arguments(renderer))
    unit = template.date_unit()
    return Stability(tuple(checks), unit, _date_fix(renderer) if unit and explain else None)


def _check(renderer: ChatRenderer, conversation: Conversation, explain: bool) -> Check:
    try:
        broken = _first_break(renderer, conversation, explain)
    except RenderError as error:
        return Check(conversation.name, refused=error.message)
    if explain and broken is not None and broken.cause is not Cause.REASONING_NOT_SENT:
        broken = replace(broken, fix=_fix(renderer, conversation))
    return Check(conversation.name, broken)


def _fix(renderer: ChatRenderer, conversation: Conversation) -> dict[str, Any] | None:
    """Template variables with which nothing breaks, tried one at a time."""
    names = sorted(renderer.template(tools=bool(conversation.tools)).switches() - conversation.kwargs.keys())
    for name, value in itertools.product(names, (True, False)):
        changed = replace(conversation, kwargs={**conversation.kwargs, name: value})
        try:
            if all(_whole(renderer, *chats) for _, *chats in _turns(changed)):
                return {name: value}
        except RenderError:
            continue
    return None


def _turns(conversation: Conversation) -> Iterator[tuple[int, ChatInput, ChatInput, ChatInput]]:
    """For each answer: its message's index, the prompt behind which it was generated, that with it, the next prompt."""
    messages = conversation.messages
    sent = conversation.as_sent or messages
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        # the earlier answers as the client sent them, the last one as it was generated
        history = [*sent[:turn], messages[turn]]
        yield (
            turn,
            _input(conversation, history[:-1], True),
            _input(conversation, history, False),
            _input(conversation, sent[:following], True),
        )


def _whole(renderer: ChatRenderer, prompt: ChatInput, answered: ChatInput, later: ChatInput) -> bool:
    """Whether nothing breaks, seen without asking where characters come from."""
    before, whole, after = (renderer.render(chat, now=_NOON).text for chat in (prompt, answered, later))
    return whole.startswith(before) and after.startswith(whole.rstrip())


def _first_break(renderer: ChatRenderer, conversation: Conversation, explain: bool) -> Break | None:
    for turn, *chats in _turns(conversation):
        if not _whole(renderer, *chats):
            broken = _compare(renderer, turn, *chats, explain=explain)
            if broken is not None:
                return broken
    return None


def _check_arguments(renderer: ChatRenderer) -> Check:
    """Whether tool-call arguments keep the JSON text that the model wrote, with its spaces."""
    name = "tool-call arguments as generated"
    function = {"name": "get_weather", "arguments": '{"city":"Paris","days":3}'}
    call = {**_CALL, "tool_calls": [{**_CALL["tool_calls"][0], "function": function}]}
    spaced = to_json(json.loads(function["arguments"]))
    try:
        text = renderer.render(ChatInput([_WEATHER, call, _RESULT], [_TOOL]), now=_NOON).text
    except RenderError as error:
        return Check(name, refused=error.message)
    if function["arguments"] in text or spaced not in text:  # kept, or not written as JSON at all
        return Check(name)
    at = text.index(spaced)
    broken = Break(1, Cause.ARGUMENTS, text[max(0, at - 40) : at], function["arguments"], spaced, None, None, None)
    return Check(name, broken)


def _input(conversation: Conversation, messages: Sequence[Any], generate: bool) -> ChatInput:
    tools = list(conversation.tools) or None
    return ChatInput(list(messages), tools, add_generation_prompt=generate, template_kwargs=conversation.kwargs)


def _compare(
    renderer: ChatRenderer, turn: int, prompt: ChatInput, answered: ChatInput, later: ChatInput, *, explain: bool
) -> Break | None:
    """Where `later` stops to begin with `prompt` and with `answered`, up to the end of what the answer says."""
    before, whole, after = (renderer.render(chat, traced=True, now=_NOON).text for chat in (prompt, answered, later))
    opening = _common(before, renderer.render(replace(prompt, add_generation_prompt=False), now=_NOON).text)
    at = _common(before, after)
    one, first = before, prompt
    if at == len(before):
        end = max((span.end for span in spans_of(whole) if _points_to(span, turn)), default=len(whole.rstrip()))
        at = min(_common(whole, after), _common(whole, before) if not whole.startswith(before) else end)
        if at >= end:
            return None
        one, first = whole, answered
    place = _Place(turn, at, spans_of(one), spans_of(after), opening if at < len(before) else None)
    template = renderer.template(tools=bool(prompt.tools))
    line = parting_line(template, *(_variables(renderer, chat) for chat in (first, later))) if explain else None
    return Break(
        turn=turn,
        cause=_cause(place, str.__str__(one), str.__str__(after), later),
        kept=str.__str__(one)[max(0, at - 40) : at],
        before=str.__str__(one)[at : at + 60],
        after=str.__str__(after)[at : at + 60],
        line=line,
        source=template.source.splitlines()[line - 1].strip() if line else None,
        fix=None,
    )


def _variables(renderer: ChatRenderer, chat: ChatInput) -> dict[str, Any]:
    values = normalize(chat, renderer.needs(tools=bool(chat.tools)))
    switches = {"add_generation_prompt": chat.add_generation_prompt, "documents": None}
    return {**renderer.named_tokens, **chat.template_kwargs, **values, **switches}


def _points_to(span: Span, turn: int) -> bool:
    return span.pointer is not None and span.pointer.startswith(f"/messages/{turn}/") and "/role" not in span.pointer


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where two lines part."""

    turn: int
    at: int
    of_one: Sequence[Span]
    of_other: Sequence[Span]
    opening: int | None  # if in the prompt: where the words begin that only open the answer


def _cause(place: _Place, one: str, other: str, later: ChatInput) -> Cause:
    here = [_pointer_behind(spans, place.at) for spans in (place.of_one, place.of_other)]
    if place.opening is not None and place.at >= place.opening:
        return Cause.PROMPT_NOT_KEPT
    if any(pointer.startswith("/tools") for pointer in here):
        return Cause.TOOLS_MOVED
    if any(pointer in _system_pointers(later) for pointer in here):
        return Cause.SYSTEM_MOVED
    reasoning = [_is_reasoning(span) and span.end > place.at for span in place.of_one]
    kept = [_is_reasoning(span) and span.start >= place.at for span in place.of_other]
    if any(reasoning) and not any(kept):
        sent = later.messages[place.turn].get("reasoning_content")
        return Cause.REASONING_DROPPED if sent else Cause.REASONING_NOT_SENT
    words = [text[place.at :].split()[:3] for text in (one, other)]
    if words[0] and words[0] == words[1]:
        return Cause.WHITESPACE
    return Cause.ASYMMETRY


def _is_reasoning(span: Span) -> bool:
    return span.pointer is not None and span.pointer.endswith("/reasoning_content") and not span.key


def _system_pointers(chat: ChatInput) -> set[str]:
    return {f"/messages/{i}/content" for i, message in enumerate(chat.messages) if message["role"] == "system"}


def _pointer_behind(spans: Sequence[Span], at: int) -> str:
    """The pointer of the first request text at or behind a place."""
    for span in spans:
        if span.end > at and span.pointer is not None and not span.pointer.endswith("/role"):
            return span.pointer
    return ""


def _date_fix(renderer: ChatRenderer) -> dict[str, Any] | None:
    """A template variable that takes the place of the clock."""
    chat = ChatInput([_SYSTEM, _ASK])
    names = [name for name in sorted(renderer.template().variables()) if "date" in name or "time" in name]
    for name in names:
        fixed = replace(chat, template_kwargs={name: "01 Jan 2026"})
        try:
            texts = {renderer.render(fixed, now=datetime(year, 7, 9, 8, 7, 6)).text for year in (2027, 2028)}
        except RenderError:
            continue
        if len(texts) == 1:
            return {name: "01 Jan 2026"}
    return None
