"""Gemma 4: `<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:[1,2]}<tool_call|>`, a JSON of its own spelling."""

import re

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.json_text import copy_atom, escaped
from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source, Write

_BEGIN, _END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"[^\s{}<>:\"]*")
_KEY = re.compile(r"[^\s{}\[\],:<>\"]*")
_MAX_DEPTH = 100


class GemmaCalls:
    """Reader of content with Gemma's calls in it."""

    markers = (_BEGIN, _END, _QUOTE)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        while (yield from read_content(source, sink, _BEGIN)) is not None:
            if (yield from self._call(source, sink)):
                source.recorded()
                yield from source.follows(_END, after_space=True)
            else:
                give_back(source, sink)

    def _call(self, source: Source, sink: Sink) -> Reading[bool]:
        if not (yield from source.follows("call:", after_space=True)):
            return False
        name = yield from source.run(_NAME)
        if not name or (yield from source.peek()) != "{":
            return False
        sink.begin_call(name)
        if not (yield from _copy(source, sink.arguments, 0)):
            return False
        sink.end_call()
        return True


def _copy(source: Source, write: Write, depth: int) -> Reading[bool]:
    """Copy the value that begins here, as JSON. False if it is none, or the text ended before it did."""
    if (yield from source.follows(_QUOTE, after_space=True)):
        return (yield from _string(source, write))
    opening = yield from source.follows("{", "[", after_space=True)
    if opening is None:
        yield from source.space()
        return (yield from copy_atom(source, write))
    if depth == _MAX_DEPTH:
        return False
    closing = "}" if opening == "{" else "]"
    write(opening)
    separator = ""
    while not (yield from source.follows(closing, after_space=True)):
        if separator and not (yield from source.follows(",", after_space=True)):
            return False
        write(separator)
        separator = ", "
        if opening == "{" and not (yield from _key(source, write)):
            return False
        if not (yield from _copy(source, write, depth + 1)):
            return False
    write(closing)
    return True


def _key(source: Source, write: Write) -> Reading[bool]:
    """A key, with or without quotes, and the colon."""
    if (yield from source.follows(_QUOTE, after_space=True)):
        if not (yield from _string(source, write)):
            return False
    else:
        yield from source.space()
        key = yield from source.run(_KEY)
        if not key.strip(SPACE):
            return False
        write(f'"{escaped(key)}"')
    if not (yield from source.follows(":", after_space=True)):
        return False
    write(": ")
    return True


def _string(source: Source, write: Write) -> Reading[bool]:
    """The rest of a string. It has no escapes: nothing but the quote token ends it."""
    write('"')
    if (yield from source.until(_QUOTE, write=lambda text: write(escaped(text)), tail=False)) is None:
        return False
    write('"')
    return True
