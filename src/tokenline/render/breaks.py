"""Where the line of a chat stops to begin with the line of the turn before, and why.

Compares the renderings of one turn and of the next. Which chats are compared is `stability`'s business, and how a cause
is put into words `stability_words`'.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import numpy as np

from tokenline.ids import common_prefix
from tokenline.render.branches import parting_line
from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import ChatRenderer
from tokenline.render.common import common_characters
from tokenline.render.conversations import Turn
from tokenline.render.line import Span
from tokenline.render.provenance import spans_of

NOON = datetime(2026, 3, 5, 12)  # all renderings agree on the time
Encode = Callable[[str], Sequence[int]]

_SHOWN_BEFORE, _SHOWN_AFTER = 40, 60  # characters


class Cause(StrEnum):
    """Why a prefix breaks."""

    REASONING_DROPPED = "reasoning_dropped_by_template"  # of an earlier turn, though the model generated it
    REASONING_NOT_SENT = "reasoning_dropped_by_client"
    PROMPT_NOT_KEPT = "generation_prompt_not_kept"  # what opened the answer is not written before it in the history
    TOOLS_MOVED = "template_moves_tools"  # they stand elsewhere once there is another turn
    SYSTEM_MOVED = "template_moves_system"  # a later system message changes what precedes it
    ARGUMENTS = "arguments_rewritten"  # of a tool call: not the JSON text that the model generated
    WHITESPACE = "whitespace_trim"  # around an answer
    ASYMMETRY = "template_asymmetry"  # an earlier turn is written differently from the last one


@dataclass(frozen=True, slots=True)
class Break:
    """The first place at which a line does not begin with all of the line before it."""

    turn: int  # index of the assistant message whose text is not found again as it was
    cause: Cause
    characters: int  # that both lines share from the start
    tokens: int | None  # that they share; None where only the template is known
    kept: str  # the last of the shared characters
    before: str  # how the line went on, with its answer
    after: str  # how the next line goes on instead
    template_line: int | None = None  # counted from 1: the condition that decided it
    template_source: str | None = None  # that line
    fix: dict[str, Any] | None = None  # chat_template_kwargs that avoid the break


def break_at(turn: int, cause: Cause, one: str, other: str, at: int, encode: Encode | None) -> Break:
    """The break between two texts that are equal up to the character `at`."""
    one, other = str.__str__(one), str.__str__(other)
    return Break(
        turn=turn,
        cause=cause,
        characters=at,
        tokens=None if encode is None else common_prefix(*(np.array(encode(text), np.int32) for text in (one, other))),
        kept=one[max(0, at - _SHOWN_BEFORE) : at],
        before=one[at : at + _SHOWN_AFTER],
        after=other[at : at + _SHOWN_AFTER],
    )


def is_whole(renderer: ChatRenderer, turn: Turn) -> bool:
    """Whether nothing breaks at this turn, seen without asking where characters come from."""
    chats = (turn.prompt, turn.answered, turn.later)
    before, whole, after = (renderer.render(chat, now=NOON).text for chat in chats)
    return whole.startswith(before) and after.startswith(whole.rstrip())


def find_break(renderer: ChatRenderer, turn: Turn, encode: Encode | None, *, explain: bool) -> Break | None:
    """Where the next request's line leaves the prompt or the answer of this turn, up to the end of what the answer
    says; None if it does not. `explain`: with the template's condition that decided it.
    """
    chats = (turn.prompt, turn.answered, turn.later)
    before, whole, after = (renderer.render(chat, traced=True, now=NOON).text for chat in chats)
    opening = common_characters(
        before, renderer.render(replace(turn.prompt, add_generation_prompt=False), now=NOON).text
    )
    at = common_characters(before, after)
    one, first = before, turn.prompt
    if at == len(before):
        of_answer = (span.end for span in spans_of(whole) if _points_to(span, turn.message))
        end = max(of_answer, default=len(whole.rstrip()))
        at = min(
            common_characters(whole, after), common_characters(whole, before) if not whole.startswith(before) else end
        )
        if at >= end:
            return None
        one, first = whole, turn.answered
    place = _Place(turn, at, spans_of(one), spans_of(after), opening if at < len(before) else None)
    cause = _cause(place, str.__str__(one), str.__str__(after))
    broken = break_at(turn.message, cause, one, after, at, encode)
    template = renderer.template(tools=bool(turn.prompt.tools))
    line = parting_line(template, *(renderer.variables(chat)[0] for chat in (first, turn.later))) if explain else None
    if line is None:
        return broken
    return replace(broken, template_line=line, template_source=template.source.splitlines()[line - 1].strip())


def _points_to(span: Span, turn: int) -> bool:
    return span.pointer is not None and span.pointer.startswith(f"/messages/{turn}/") and "/role" not in span.pointer


@dataclass(frozen=True, slots=True)
class _Place:
    """Where two lines part."""

    turn: Turn
    at: int
    of_one: Sequence[Span]
    of_other: Sequence[Span]
    opening: int | None  # if in the prompt: where the words begin that only open the answer


def _cause(place: _Place, one: str, other: str) -> Cause:
    here = [_pointer_behind(spans, place.at) for spans in (place.of_one, place.of_other)]
    later = place.turn.later
    if place.opening is not None and place.at >= place.opening:
        return Cause.PROMPT_NOT_KEPT
    if any(pointer.startswith("/tools") for pointer in here):
        return Cause.TOOLS_MOVED
    if any(pointer in _system_pointers(later) for pointer in here):
        return Cause.SYSTEM_MOVED
    reasoning = [_is_reasoning(span) and span.end > place.at for span in place.of_one]
    kept = [_is_reasoning(span) and span.start >= place.at for span in place.of_other]
    if any(reasoning) and not any(kept):
        sent = later.messages[place.turn.message].get("reasoning_content")
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
