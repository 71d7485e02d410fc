"""Whether a rendered chat shows everything that the request says: each message's text, each call, each tool.

A template may leave something out without a word. The model then answers a chat that the client did not send, so the
request is refused instead. Reasoning of earlier turns is not looked for: templates drop it on purpose.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokenline.fields import Path, json_pointer
from tokenline.render.chat_input import ChatInput
from tokenline.render.line import Origin
from tokenline.render.provenance import runs_of

# An assistant's text with such marks may be reasoning, whole or in part.
_REASONING_MARKS = re.compile(r"think|<\|channel|\[BEGIN FINAL RESPONSE\]", re.IGNORECASE)
_COMMANDS = ("/think", "/no_think")  # some templates obey them instead of showing them
_NO_ARGUMENTS = re.compile(r"\s*(\{\s*\})?\s*")


class _Said(NamedTuple):
    """Something that a request says."""

    place: Path  # what is named if it is left out
    within: Path  # where its text stands: it is shown if any character of it is
    texts: tuple[str, ...]  # that text


def seems_whole(text: str, chat: ChatInput) -> bool:
    """A quick look at a rendering without provenance: False where something cannot be found in the order of the chat,
    which may have good reasons.
    """
    at = 0
    for said in _sayings(chat):
        for wanted in said.texts:
            found = text.find(wanted, at)
            if found < 0 and (found := text.find(json.dumps(wanted, ensure_ascii=False)[1:-1], at)) < 0:
                return False
            at = found + 1 if said.place[0] == "messages" else at
    return True


def left_out(traced: str, chat: ChatInput) -> list[Path]:
    """The places of all that a rendering with provenance does not show."""
    shown: set[str] = set()
    unknown = False
    for run in runs_of(traced):
        if run.source.pointer is not None:
            parts = run.source.pointer.split("/")
            shown.update("/".join(parts[:length]) for length in range(3, len(parts) + 1))
        unknown |= run.source.origin is Origin.UNKNOWN
    plain = str.__str__(traced)
    return [
        said.place
        for said in _sayings(chat)
        if json_pointer(said.within) not in shown
        # where origins were lost, it may be this one's
        and not (unknown and all(text in plain for text in said.texts))
    ]


def _sayings(chat: ChatInput) -> Iterator[_Said]:
    for index, tool in enumerate(chat.tools or ()):
        place: Path = ("tools", index)
        yield _Said(place, (*place, "function", "name"), (tool["function"]["name"],))
    for index, message in enumerate(chat.messages):
        place = ("messages", index)
        texts = [(within, text) for within, text in _texts(message.get("content"), (*place, "content")) if text]
        may_be_reasoning = message["role"] == "assistant" and any(_REASONING_MARKS.search(text) for _, text in texts)
        if not may_be_reasoning:
            yield from (_Said(within, within, (text,)) for within, text in texts if text not in _COMMANDS)
        for number, call in enumerate(message.get("tool_calls") or ()):
            here = (*place, "tool_calls", number)
            yield _Said(here, (*here, "function", "name"), (call["function"]["name"],))
            if _has_arguments(call["function"].get("arguments")):
                yield _Said(here, (*here, "function", "arguments"), ())


def _texts(content: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """The texts of a message's content and where they stand, without white space around them."""
    if isinstance(content, str):
        yield path, content.strip()
        return
    for index, part in enumerate(content or ()):
        yield (*path, index), (part if isinstance(part, str) else part.get("text") or "").strip()


def _has_arguments(arguments: Any) -> bool:
    return not _NO_ARGUMENTS.fullmatch(arguments) if isinstance(arguments, str) else bool(arguments)
