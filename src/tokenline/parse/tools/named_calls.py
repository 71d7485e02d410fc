"""Calls whose name stands outside of the JSON: a marker, the name, a separator, and the arguments as one JSON value.

Mistral, DeepSeek V3 / R1 / V3.1, Kimi K2 and Functionary 3.1; their first lines below show what they look like.
"""

import json
import re
from collections.abc import Callable

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.json_text import copy_value
from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source
from tokenline.parse.tools.json_calls import copy_arguments, read_calls
from tokenline.parse.tools.schema import ToolSchemas

_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")  # the only form that Mistral's templates take back
_NAMELESS_ID = re.compile(r"[0-9]*|(call|chatcmpl|toolu)[\w\-]*")  # as servers make them
_MAX_NAME = 256  # characters; OpenAI allows 64


def named_call(source: Source, sink: Sink, name: str, call_id: str | None = None) -> Reading[bool]:
    """The arguments of a call, which begin here."""
    name = name.strip(SPACE)
    if not name or len(name) > _MAX_NAME or any(character in name for character in '\n{}"'):
        return False
    yield from source.space()
    if (yield from source.peek()) != "{":
        return False
    if sink.begin_call(name, call_id) is None or not (yield from copy_arguments(source, sink.arguments)):
        return False
    sink.end_call()
    source.recorded()
    return True


def header(source: Source, *separators: str) -> Reading[tuple[str, str | None]]:
    """The text up to one of the separators, and which it was."""
    parts: list[str] = []
    separator = yield from source.until(*separators, write=parts.append)
    return "".join(parts), separator


class MistralCalls:
    """`[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}`, with `[CALL_ID]abc123def` before `[ARGS]` in some versions;
    before v11 `[TOOL_CALLS][{"name": .., "arguments": {..}}]`.
    """

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        while (yield from read_content(source, sink, "[TOOL_CALLS]")) is not None:
            if (yield from source.follows("[", "{", after_space=True, consume=False)):
                complete = yield from read_calls(source, sink)
            else:
                complete = yield from self._named(source, sink)
            if not complete:
                give_back(source, sink)

    def _named(self, source: Source, sink: Sink) -> Reading[bool]:
        name, separator = yield from header(source, "[ARGS]", "[CALL_ID]", "[TOOL_CALLS]", "{")
        call_id = None
        if separator == "[CALL_ID]":
            text, separator = yield from header(source, "[ARGS]", "[TOOL_CALLS]", "{")
            call_id = text.strip(SPACE) if _MISTRAL_ID.fullmatch(text.strip(SPACE)) else None
        if separator == "{":
            source.put_back("{")
            if name.rstrip(SPACE).endswith("["):  # something else before the list of calls
                return (yield from self._list_behind(source, sink, name))
        return separator in ("[ARGS]", "{") and (yield from named_call(source, sink, name, call_id))

    def _list_behind(self, source: Source, sink: Sink, before: str) -> Reading[bool]:
        source.record("[TOOL_CALLS]" + before)
        if (yield from read_calls(source, sink, separators=(",", "]"))):
            sink.text(before.rstrip(SPACE)[:-1].rstrip(SPACE))
            return True
        return False


def read_sections(
    source: Source, sink: Sink, section: str, call: str, ends: tuple[str, ...], read_call: Callable[[], Reading[bool]]
) -> Reading[None]:
    """Content with calls that each begin with `call`, the first behind `section`; models sometimes leave out either.
    `ends`: what may stand behind a call, in this order; none of it is content.
    """
    while (marker := (yield from read_content(source, sink, section, call))) is not None:
        if marker == section:
            yield from source.follows(call, after_space=True)
        if not (yield from read_call()):
            give_back(source, sink)
            continue
        for end in ends:
            yield from source.follows(end, after_space=True)


class DeepSeekCalls:
    """V3 and R1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather`, a line break, and
    the JSON in a Markdown code block; `<｜tool▁call▁end｜>`, more calls, `<｜tool▁calls▁end｜>`.

    V3.1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>` ..
    """

    _SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    _CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    markers = (_SECTION, _SECTION_END, _CALL, _SEPARATOR, _CALL_END)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        ends = ("```", self._CALL_END, self._SECTION_END)
        return read_sections(source, sink, self._SECTION, self._CALL, ends, lambda: self._call(source, sink))

    def _call(self, source: Source, sink: Sink) -> Reading[bool]:
        name, separator = yield from header(source, self._SEPARATOR, "{", self._CALL_END)
        if separator != self._SEPARATOR:
            return False
        if not (yield from source.follows("{", after_space=True, consume=False)):
            name, separator = yield from header(source, "```json", "{", self._CALL_END)
            if separator == "{":
                source.put_back("{")
            elif separator != "```json":
                return False
        return (yield from named_call(source, sink, name))


class KimiCalls:
    """`<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{..}`
    `<|tool_call_end|><|tool_calls_section_end|>`. The header is the call's id, which the template writes back.
    """

    _SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    _CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    markers = (_SECTION, _SECTION_END, _CALL, _ARGUMENTS, _CALL_END)

    def __init__(self, schemas: ToolSchemas) -> None:
        self._schemas = schemas

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        ends = (self._CALL_END, self._SECTION_END)
        return read_sections(source, sink, self._SECTION, self._CALL, ends, lambda: self._call(source, sink))

    def _call(self, source: Source, sink: Sink) -> Reading[bool]:
        call_id, separator = yield from header(source, self._ARGUMENTS, "{", self._CALL_END)
        if separator != self._ARGUMENTS:
            return False
        call_id = call_id.strip(SPACE)
        if (name := self._schemas.meant_by_id(call_id)) is not None:
            return (yield from named_call(source, sink, name, call_id))
        return (yield from self._unnamed(source, sink, call_id))

    def _unnamed(self, source: Source, sink: Sink, call_id: str) -> Reading[bool]:
        """A call whose id has no name in it (`call00003`): the name is beside the arguments, or the arguments fit one
        tool alone.
        """
        parts: list[str] = []
        if not (yield from copy_value(source, parts.append)):
            return False
        try:
            call = json.loads("".join(parts))
        except RecursionError:
            return False
        if not isinstance(call, dict):
            return False
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if not (isinstance(name, str) and isinstance(arguments, dict) and sink.tool(name) is not None):
            name = self._schemas.taking(call) if _NAMELESS_ID.fullmatch(call_id) else None
            arguments = call
        if name is None or sink.begin_call(name, call_id) is None:
            return False
        sink.arguments(json.dumps(arguments, ensure_ascii=False))
        sink.end_call()
        source.recorded()
        return True


class FunctionTagCalls:
    """`<function=get_weather>{"city": "Oslo"}</function>` (Functionary 3.1, Llama 3's custom tools)."""

    markers = ("<function=", "</function>")

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        while (yield from read_content(source, sink, "<function=")) is not None:
            name, separator = yield from header(source, ">", "{", "\n")
            if separator != ">" or not (yield from named_call(source, sink, name)):
                give_back(source, sink)
            else:
                yield from source.follows("</function>", after_space=True)
