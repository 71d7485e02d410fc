"""Gemma 4: `<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:[1,2]}<tool_call|>`, a JSON of its own spelling;
FunctionGemma: the same with `<start_function_call>`, `<escape>` and `<end_function_call>`.

What the model writes beside it, and is read too: plain quotes, `name(key=value)`, a comma that is missing before the
next parameter, words without quotes, and quote tokens within a string, where they stand for `"`. A quote token ends its
string only if what follows may stand behind a value.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.json_text import as_json_value, copy_string, escaped
from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source, Write
from tokenline.parse.tools.json_calls import read_calls
from tokenline.parse.tools.schema import ToolSchemas

_NAME = re.compile(r"[^\s{}()<>:\"\ud800-\udfff]*")
_KEY = re.compile(r"[^\s{}\[\](),:=<>\"\ud800-\udfff]*")
_BARE = re.compile(r"[^{}\[\](),<>\"\r\n\ud800-\udfff]*")
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_MAX_DEPTH = 100
_MAX_AHEAD = 100  # characters that are looked at to tell a key from text


@dataclass(frozen=True, slots=True)
class GemmaFormat:
    begin: str
    end: str
    quote: str


GEMMA4 = GemmaFormat("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = GemmaFormat("<start_function_call>", "<end_function_call>", "<escape>")


class GemmaCalls:
    """Reader of content with Gemma's calls in it."""

    def __init__(self, form: GemmaFormat, schemas: ToolSchemas) -> None:
        self._form = form
        self._schemas = schemas
        self.markers = (form.begin, form.end, form.quote)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        while (yield from read_content(source, sink, self._form.begin)) is not None:
            if (yield from self._call(source, sink)):
                source.recorded()
                yield from source.follows(self._form.end, after_space=True)
            else:
                give_back(source, sink)

    def _call(self, source: Source, sink: Sink) -> Reading[bool]:
        if (yield from source.follows("{", "[", after_space=True, consume=False)):  # as other models write it
            return (yield from read_calls(source, sink, ends=(self._form.end,)))
        yield from source.follows("call:", ":", after_space=True)
        name = yield from source.run(_NAME)
        bracket = yield from source.follows("{", "(", self._form.end, consume=False)
        if bracket is None or (name := sink.begin_call(name)) is None:
            return False
        if bracket == self._form.end:
            sink.arguments("{}")
        else:
            value = _Value(self._form, source, sink.arguments, self._schemas.positional(name))
            if not (yield from value.structure(0)):
                return False
        sink.end_call()
        return True


class _Value:
    """The copy of a value as JSON. Its methods return False if there is none, or the text ended before it did."""

    def __init__(self, form: GemmaFormat, source: Source, write: Write, parameters: list[str]) -> None:
        """`parameters`: the names that a comma may be missing in front of; with none, any name."""
        self._form = form
        self._keyed, self._key_begun = _key_patterns(source.spelled(form.quote))
        self._source = source
        self._write = write
        self._parameters = parameters

    def structure(self, depth: int) -> Reading[bool]:
        """An object or a list, from its opening bracket."""
        opening = (yield from self._source.follows(*_CLOSING)) or ""
        if not opening or depth == _MAX_DEPTH:
            return False
        closing = _CLOSING[opening]
        self._write("[" if opening == "[" else "{")
        first = True
        while not (yield from self._source.follows(closing, after_space=True)):
            comma = None if first else (yield from self._source.follows(",", after_space=True))
            if comma and (yield from self._source.follows(closing, after_space=True, consume=False)):
                continue
            if not (first or comma) and (yield from self._at_end()):
                break  # the bracket was forgotten
            if (opening == "[" and not (first or comma)) or (yield from self._source.at_end()):
                return False
            self._write("" if first else ", ")
            first = False
            if opening != "[" and not (yield from self._key()):
                return False
            if not (yield from self._value(closing, depth + 1)):
                return False
        self._write("]" if opening == "[" else "}")
        return True

    def _at_end(self) -> Reading[bool]:
        if (yield from self._source.follows(self._form.end, after_space=True, consume=False)):
            return True
        return (yield from self._source.at_end()) and not self._source.cut

    def _key(self) -> Reading[bool]:
        """A key, with or without quotes, and what separates it from its value."""
        yield from self._source.space()
        if (yield from self._source.follows(self._form.quote)):
            parts: list[str] = []
            if (yield from self._source.until(self._form.quote, write=parts.append)) is None:
                return False
            key = "".join(parts)
        elif (yield from self._source.peek()) == '"':
            parts = []
            if not (yield from copy_string(self._source, parts.append)):
                return False
            key = "".join(parts)[1:-1]
        else:
            key = yield from self._source.run(_KEY)
            if not key:
                return False
        if not (yield from self._source.follows(":", "=", after_space=True)):
            return False
        self._write(f'"{escaped(key)}": ')
        return True

    def _value(self, closing: str, depth: int) -> Reading[bool]:
        """Any value; `closing` ends the structure in which it stands."""
        yield from self._source.space()
        if (yield from self._source.follows(self._form.quote)):
            return (yield from self._string(closing, depth))
        character = yield from self._source.peek()
        if character == '"':
            return (yield from copy_string(self._source, self._write))
        if character in _CLOSING:
            return (yield from self.structure(depth))
        bare = yield from self._source.run(_BARE)
        if self._source.cut and (yield from self._source.at_end()):
            return False
        self._write(as_json_value(bare.strip(SPACE)))
        return True

    def _string(self, closing: str, depth: int) -> Reading[bool]:
        """The rest of a string. It has no escapes."""
        self._write('"')
        while True:
            found = yield from self._source.until(
                self._form.quote, write=lambda text: self._write(escaped(text)), tail=False
            )
            if found is None:
                return False
            if (yield from self._ends(closing, depth)):
                self._write('"')
                return True
            self._write('\\"')

    def _ends(self, closing: str, depth: int) -> Reading[bool]:
        """Whether what comes next may stand behind a value."""
        if (yield from self._source.follows(closing, self._form.end, after_space=True, consume=False)):
            return True
        if (yield from self._source.at_end()):
            return True
        window, known = "", ""
        while len(window) < _MAX_AHEAD:
            known, window = window, (yield from self._source.ahead(len(window) + 1))
            if (ends := self._behind_value(window.lstrip(SPACE), closing, depth)) is not None:
                return ends
            if window == known:
                return False
        return False

    def _behind_value(self, text: str, closing: str, depth: int) -> bool | None:
        """Whether this is the beginning of what may stand behind a value; None: not clear yet."""
        rest = text.removeprefix(",").lstrip(SPACE)
        if not rest:
            return None
        comma = text.startswith(",")
        if closing == "]":
            words = (self._source.spelled(self._form.quote), "true", "false", "null")
            if not comma or rest[0] in '"[{-0123456789' or any(rest.startswith(word) for word in words):
                return comma
            return None if any(word.startswith(rest) for word in words) else False
        if key := self._keyed.match(rest):
            bare = key[1] is not None and (not self._parameters or key[1] in self._parameters)
            return comma or (depth == 1 and bare)
        if not comma and not rest[0].isidentifier():
            return False
        return None if self._key_begun.fullmatch(rest) else False


@lru_cache(maxsize=8)
def _key_patterns(quote: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A key, with or without quotes, up to its colon; and the beginning of one."""
    q, name = re.escape(quote), _KEY.pattern.removesuffix("*")
    inside = rf"(?:(?!{q}).)*"
    begun = "|".join(re.escape(quote[:length]) for length in range(1, len(quote)))
    keyed = rf'(?:{q}{inside}{q}|"[^"]*"|({name}+))[ \t\r\n]*[:=]'
    key_begun = rf'{begun or "(?!)"}|(?:{q}{inside}(?:{q})?|"[^"]*"?|{name}+)[ \t\r\n]*'
    return re.compile(keyed, re.DOTALL), re.compile(key_begun, re.DOTALL)
