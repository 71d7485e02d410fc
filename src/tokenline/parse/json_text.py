"""JSON values in a text that comes in pieces: where one ends, and a valid copy of it on the way. Knows no tool calls.

The copy is the model's own text, with white space and spelling as they were, so that an echoed call renders to what was
generated. Only what JSON forbids and can be meant in one way alone is mended:

- a raw control character in a string (usually a line break) is escaped,
- a backslash that begins no JSON escape is doubled, except before an apostrophe, where it is dropped,
- Python's `True`, `False` and `None` become JSON's,
- a string in single quotes, within an object or list, gets double ones,
- a comma before a closing bracket is dropped.

Anything else that is no JSON ends the copy. No recursion: a million open brackets are a list of a million.
"""

import json
import re
from collections.abc import Callable

from tokenline.parse.source import Reading, Source, Write

_QUOTES = ('"', "'")
_IN_STRING = {quote: re.compile(rf"[^\"{quote}\\\x00-\x1f]*") for quote in _QUOTES}
_IN_ATOM = re.compile(r"[A-Za-z0-9+.\-]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = re.compile(r"u[0-9a-fA-F]{4}")
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_SURROGATES = re.compile("[\ud800-\udfff]")


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def ignore(_: str) -> None:
    """For `write`: throw away."""


def copy_value(source: Source, write: Write) -> Reading[bool]:
    """Copy the JSON value that begins here, after white space. False if it is none, or the text ended before it did."""
    closing: list[str] = []  # the brackets that are still to come
    comma = ""  # a comma, and the white space behind it, that may yet turn out to be before a closing bracket
    key_next = False  # in an object: a key (or the end) comes next, not a value
    yield from source.space()
    while True:
        character = yield from source.peek()
        if closing and character == closing[-1]:  # right after the opening one, or after a comma
            write(source.take(1))
            closing.pop()
        else:
            write(comma)
            if key_next:
                if not (character in _QUOTES and (yield from _copy_key(source, write))):
                    return False
                character = yield from source.peek()
            if character in ("{", "["):
                write(source.take(1))
                closing.append("}" if character == "{" else "]")
                key_next, comma = character == "{", ""
                write((yield from source.space()))
                continue
            quoted = character == '"' or (closing and character == "'")
            if not (yield from (copy_string if quoted else copy_atom)(source, write)):
                return False
        # A value is complete: what comes behind it?
        while closing:
            space = yield from source.space()
            character = yield from source.peek()
            if character == ",":
                write(space)
                comma = source.take(1) + (yield from source.space())
                key_next = closing[-1] == "}"
                break
            if character != closing[-1]:
                return False
            write(space + source.take(1))
            closing.pop()
        else:
            return True


def _copy_key(source: Source, write: Write) -> Reading[bool]:
    """A key, the colon and the white space around it."""
    if not (yield from copy_string(source, write)):
        return False
    write((yield from source.space()))
    if (yield from source.peek()) != ":":
        return False
    write(source.take(1) + (yield from source.space()))
    return True


def copy_string(source: Source, write: Write) -> Reading[bool]:
    """Copy the string that begins here, with its quotes. False if the text ended before it did."""
    quote = source.take(1)
    write('"')
    while True:
        if inside := source.take_now(_IN_STRING[quote]):
            write(inside)
        character = yield from source.peek()
        if character == "\\":
            if not (yield from _copy_escape(source, write)):
                return False
        elif character == quote:
            source.take(1)
            write('"')
            return True
        elif not character:
            return False
        elif character < " " or character == '"':
            write(escaped(source.take(1)))


def _copy_escape(source: Source, write: Write) -> Reading[bool]:
    two = yield from source.ahead(2)
    if len(two) < 2:
        return False
    if two[1] in '"\\/bfnrt':
        write(source.take(2))
    elif two[1] == "'":
        source.take(1)
        write(source.take(1))
    elif two[1] == "u" and _HEX.fullmatch((yield from source.ahead(6))[1:]):
        write(source.take(6))
    else:
        write(source.take(1) + "\\")
    return True


def copy_atom(source: Source, write: Write) -> Reading[bool]:
    """A number, or one of the words."""
    atom = yield from source.run(_IN_ATOM)
    if atom in _LITERALS:
        write(_LITERALS[atom])
        return True
    if _NUMBER.fullmatch(atom):
        write(atom)
        return True
    return False


def as_json_value(text: str) -> str:
    """A bare word as JSON: a number, one of the words, else a string."""
    if text in _LITERALS:
        return _LITERALS[text]
    number = text + "0" if text.endswith(".") else text
    return number if _NUMBER.fullmatch(number) else f'"{escaped(text)}"'


def read_string(source: Source) -> Reading[str | None]:
    """The decoded JSON string that begins here; None if there is none, or the text ended before it did."""
    if (yield from source.peek()) not in _QUOTES:
        return None
    parts: list[str] = []
    if not (yield from copy_string(source, parts.append)):
        return None
    # Half a surrogate pair is an escape that JSON allows and UTF-8 cannot carry.
    return _SURROGATES.sub("\ufffd", json.loads("".join(parts)))


def read_members(source: Source, read: Callable[[str], Reading[bool]], *, opened: bool = False) -> Reading[bool]:
    """Walk over the object that begins here; `read` is called with each key and has to consume the value.

    False as soon as it is no object, or `read` says so. `opened`: its bracket was read already.
    """
    if not opened:
        if (yield from source.peek()) != "{":
            return False
        source.take(1)
    while True:
        yield from source.space()
        character = yield from source.peek()
        if character == "}":
            source.take(1)
            return True
        key = yield from read_string(source)
        yield from source.space()
        if key is None or (yield from source.peek()) != ":":
            return False
        source.take(1)
        yield from source.space()
        if not (yield from read(key)):
            return False
        yield from source.space()
        character = yield from source.peek()
        if character == ",":
            source.take(1)
        elif character != "}":
            return False


def whole_value(text: str) -> str | None:
    """`text` as valid JSON (mended as in a copy), white space around it left out; None if it is no JSON."""
    source, copy = Source(), []
    source.push(text)
    source.end(cut=False)

    def read() -> Reading[bool]:
        return (yield from copy_value(source, copy.append)) and (yield from source.at_end())

    return "".join(copy) if complete(read()) else None


def complete(reading: Reading[bool]) -> bool:
    """Run a reading of a text that has ended, which therefore never waits."""
    try:
        next(reading)
    except StopIteration as done:
        return done.value
    raise AssertionError("a reading waits for more of a text that has ended")
