"""Calls as Python: `[get_weather(city="Paris"), add(a=1, b=2)]` (Llama 4, Llama 3.2's other style, LFM2, Olmo 3).

Between markers where the format has them; without, a list of calls is looked for at the start of a line, and must name
a tool of the request, if it has any. Llama 4 writes it both ways.

Keys that are no identifiers come as `f(**{"to-day": 1})`. A quote that the model forgot to escape is part of its string
(`run(cmd='sed -n '1,9p' f')`) if nothing that may follow a string follows it, and there is a second one.
"""

import json
import re
from dataclasses import dataclass

from tokenline.parse.blocks import Surroundings, give_back, read_content
from tokenline.parse.json_text import escaped
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.arguments import ArgumentsWriter
from tokenline.parse.tools.python_value import python_to_json
from tokenline.parse.tools.schema import ToolSchemas

_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_KEYWORD = re.compile(r"\s*[^\W\d]\w*\s*")
_PLAIN = re.compile(r"[^'\"\\()\[\]{},=#\s]+|\s+")
_IN_STRING = re.compile(r"[^'\"\\\r\n]+")
_LINE_BREAKS = {"\n": "\\n", "\r": "\\r"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_AHEAD = 100  # white space behind a quote
_BEHIND_STRING = ",)]}:=+%'\""  # what may follow a string in an expression


@dataclass(frozen=True, slots=True)
class PythonicFormat:
    begin: str | None = None
    end: str | None = None
    bare: bool = False  # also without its markers


class PythonicCalls:
    """Reader of content with calls written as Python."""

    def __init__(self, form: PythonicFormat, schemas: ToolSchemas) -> None:
        self._form = form
        self._schemas = schemas
        self.markers = tuple(marker for marker in (form.begin, form.end) if marker)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        lines = Surroundings(sink)
        begin = tuple(text for text in (self._form.begin, "[" if self._form.bare else None) if text)
        while (marker := (yield from read_content(source, sink, *begin, write=lines.write))) is not None:
            marked = marker == self._form.begin
            if marked:
                bracket = (yield from source.follows("[", after_space=True)) is not None
                complete = yield from self._calls(source, sink, bracket)
            else:
                complete = lines.starts_line and (yield from self._calls(source, sink, True))
            if not complete:
                give_back(source, sink, marked=marked, write=lines.write)
            elif self._form.end is not None:
                yield from source.follows(self._form.end, after_space=True)

    def _calls(self, source: Source, sink: Sink, bracket: bool) -> Reading[bool]:
        """One call after another: with commas in a list, else also on lines of their own up to the end marker."""
        while True:
            yield from source.space()
            if not (yield from read_call(source, sink, self._schemas)):
                return False
            source.record("")  # what is complete is not given back
            separator = yield from source.follows(*(",]" if bracket else ","), after_space=True)
            if separator == "," or (not bracket and (yield from self._more(source))):
                continue
            source.recorded()
            return True

    def _more(self, source: Source) -> Reading[bool]:
        if self._form.end is None or (yield from source.at_end()):
            return False
        return (yield from source.follows(self._form.end, after_space=True, consume=False)) is None


def read_call(source: Source, sink: Sink, schemas: ToolSchemas) -> Reading[bool]:
    """`name(key=value, ...)`. False if it is none, or the text ended before it did."""
    name = sink.tool((yield from source.run(_NAME)))
    if name is None or (yield from source.peek()) != "(":
        return False
    return (yield from read_arguments(source, sink, schemas, name))


def read_arguments(source: Source, sink: Sink, schemas: ToolSchemas, name: str) -> Reading[bool]:
    """The arguments of a tool's call, from the opening bracket. Those without a keyword are named in the schema's
    order.
    """
    source.take(1)
    arguments = ArgumentsWriter(sink.arguments, schemas, name, frozenset())
    positional = schemas.positional(name)
    begun = False
    while True:
        expression, stop = yield from _expression(source)
        keyword = None
        if stop == "=" and _KEYWORD.fullmatch(expression):
            keyword = expression.strip()
            expression, stop = yield from _expression(source)
        if stop not in (",", ")"):
            return False
        if keyword is None and (members := _unpacked(expression)) is not None:
            if not begun:
                sink.begin_call(name)
                begun = True
            for key, value in members.items():
                arguments.value(key, json.dumps(value, ensure_ascii=False))
        elif expression.strip():
            if keyword is None:
                if not positional:
                    return False
                keyword = positional[0]
            if keyword in positional:
                positional.remove(keyword)
            if not begun:
                sink.begin_call(name)
                begun = True
            arguments.value(keyword, _json(expression))
        elif keyword is not None or stop == ",":
            return False
        if stop == ")":
            if not begun:
                sink.begin_call(name)
            arguments.close()
            sink.end_call()
            return True


def _unpacked(expression: str) -> dict[str, object] | None:
    """The members of `**{..}`; None for any other expression."""
    bare = expression.strip()
    if not bare.startswith("**"):
        return None
    try:
        members = json.loads(python_to_json(bare.removeprefix("**")))
    except ValueError:
        return None
    return members if isinstance(members, dict) else None


def _json(expression: str) -> str:
    try:
        return python_to_json(expression)
    except ValueError:
        return f'"{escaped(expression.strip())}"'  # no literal: handed over as it is, for the client to judge


def _expression(source: Source) -> Reading[tuple[str, str]]:
    """The Python expression that begins here, and what ended it: `,`, `=` or `)` outside of brackets and strings; ""
    if it is broken or the text ended. What ended it is consumed too.
    """
    parts: list[str] = []
    closing: list[str] = []
    while True:
        if plain := source.take_now(_PLAIN):
            parts.append(plain)
            continue
        character = yield from source.peek()
        if not closing and character in (",", "=", ")"):
            source.take(1)
            return "".join(parts), character
        if not character or character in "\\#":
            return "", ""
        if character in "'\"":
            if not (yield from _string(source, parts)):
                return "", ""
            continue
        parts.append(source.take(1))
        if character in _CLOSING:
            closing.append(_CLOSING[character])
        elif character in ")]}" and (not closing or character != closing.pop()):
            return "", ""


def _string(source: Source, parts: list[str]) -> Reading[bool]:
    """A Python string, with one or three quotes, as it is written; in a plain one a line break is escaped, and a quote
    that cannot be its end.
    """
    quote = (yield from source.peek()) * 3
    if (yield from source.ahead(3)) != quote:
        quote = quote[0]
    triple = len(quote) == 3
    inner = 0  # quotes within the string that are not escaped
    parts.append(source.take(len(quote)))
    while True:
        if inside := source.take_now(_IN_STRING):
            parts.append(inside)
        character = yield from source.peek()
        if not character:
            return False
        if character == "\\":
            if len((yield from source.ahead(2))) < 2:
                return False
            parts.append(source.take(2))
        elif (yield from source.ahead(len(quote))) == quote:
            source.take(len(quote))
            if triple or (yield from _may_end(source)):
                parts.append(quote)
                return inner % 2 == 0  # with one too many it is not clear which of them ends the string
            inner += 1
            parts.append("\\" + quote)
        else:
            source.take(1)
            parts.append(character if triple else _LINE_BREAKS.get(character, character))


def _may_end(source: Source) -> Reading[bool]:
    """Whether a string may end here: what follows is no part of one, or nothing does."""
    window = ""
    while not window.strip():
        known, window = window, (yield from source.ahead(len(window) + 1))
        if window == known or len(window) > _MAX_AHEAD:
            return True
    return window.strip()[0] in _BEHIND_STRING
