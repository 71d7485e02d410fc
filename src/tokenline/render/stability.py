"""Whether a chat grows at its end only: is the line of turn n, with its answer, the beginning of that of turn n + 1?

Where it is, the next request finds all of the last one in the prefix cache. Many templates break it somewhere: they
drop the reasoning of earlier turns, move tools or a system text, or write an answer differently from how it was
generated. This plays small conversations through a template and gives what it finds as data: where a line breaks, by
which condition of the template, and whether a template variable would avoid it. The words are `stability_words`'.
"""

import itertools
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tokenline.render.breaks import NOON, Break, Cause, Encode, break_at, find_break, is_whole
from tokenline.render.chat_renderer import ChatRenderer
from tokenline.render.common import common_characters
from tokenline.render.conversations import Conversation, chat_with_arguments, conversations, first_request
from tokenline.render.errors import RenderError
from tokenline.render.needs import CallStyle
from tokenline.render.sandbox import to_json


@dataclass(frozen=True, slots=True)
class Check:
    """What became of one conversation. Stable if nothing broke and nothing was refused."""

    conversation: str
    broken: Break | None = None
    refused: str | None = None  # why the template does not support such a conversation

    @property
    def stable(self) -> bool:
        return self.broken is None and self.refused is None


@dataclass(frozen=True, slots=True)
class Stability:
    """What a template does to prefixes."""

    checks: tuple[Check, ...]
    date_unit: str | None  # the template writes the date, which changes that often: "day", "second", ...
    date_fix: dict[str, Any] | None  # chat_template_kwargs that replace the date

    @property
    def stable(self) -> bool:
        """Whether no supported conversation breaks, there is one, and the text does not depend on the date."""
        return self.date_unit is None and self.supports_any and all(check.broken is None for check in self.checks)

    @property
    def supports_any(self) -> bool:
        """Whether the template takes at least one of the conversations."""
        return any(check.refused is None for check in self.checks)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Each cause of a break once, in the order in which they were found."""
        return tuple(dict.fromkeys(check.broken.cause for check in self.checks if check.broken is not None))


def check_stability(renderer: ChatRenderer, *, explain: bool = True, encode: Encode | None = None) -> Stability:
    """Play every kind of conversation through the renderer's template. Raises RenderError where it has none.

    `explain`: where a line breaks, find the template's condition and try template variables, which takes longer.
    `encode`: the model's tokenizer, to count the tokens up to a break.
    """
    unit = renderer.template().date_unit()
    checks = [_check(renderer, conversation, encode, explain) for conversation in conversations(renderer)]
    if renderer.needs(tools=True).calls is CallStyle.TEMPLATE:
        checks.append(_check_arguments(renderer, encode))
    return Stability(tuple(checks), unit, _date_fix(renderer) if unit and explain else None)


def _check(renderer: ChatRenderer, conversation: Conversation, encode: Encode | None, explain: bool) -> Check:
    try:
        broken = _first_break(renderer, conversation, encode, explain)
    except RenderError as error:
        return Check(conversation.name, refused=error.message)
    if explain and broken is not None and broken.cause is not Cause.REASONING_NOT_SENT:
        broken = replace(broken, fix=_fix(renderer, conversation))
    return Check(conversation.name, broken)


def _first_break(
    renderer: ChatRenderer, conversation: Conversation, encode: Encode | None, explain: bool
) -> Break | None:
    for turn in conversation.turns():
        if not is_whole(renderer, turn):
            broken = find_break(renderer, turn, encode, explain=explain)
            if broken is not None:
                return broken
    return None


def _fix(renderer: ChatRenderer, conversation: Conversation) -> dict[str, Any] | None:
    """Template variables with which nothing breaks, tried one at a time."""
    names = sorted(renderer.template(tools=bool(conversation.tools)).switches() - conversation.kwargs.keys())
    for name, value in itertools.product(names, (True, False)):
        changed = replace(conversation, kwargs={**conversation.kwargs, name: value})
        try:
            if all(is_whole(renderer, turn) for turn in changed.turns()):
                return {name: value}
        except RenderError:
            continue
    return None


def _check_arguments(renderer: ChatRenderer, encode: Encode | None) -> Check:
    """Whether tool-call arguments keep the JSON text that the model wrote, with its spaces."""
    name = "tool-call arguments as generated"
    generated = '{"city":"Paris","days":3}'
    rewritten = to_json(json.loads(generated))
    try:
        text = renderer.render(chat_with_arguments(generated), now=NOON).text
    except RenderError as error:
        return Check(name, refused=error.message)
    if generated in text or rewritten not in text:  # kept, or not written as JSON at all
        return Check(name)
    at = text.index(rewritten) + common_characters(generated, rewritten)
    return Check(name, break_at(1, Cause.ARGUMENTS, text.replace(rewritten, generated, 1), text, at, encode))


def _date_fix(renderer: ChatRenderer) -> dict[str, Any] | None:
    """A template variable that takes the place of the clock."""
    chat = first_request()
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
