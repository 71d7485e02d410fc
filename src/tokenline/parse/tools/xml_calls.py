"""Calls as XML-like text, one element a parameter: Qwen3-Coder, Seed-OSS, MiniMax M2, DeepSeek V3.2, GLM 4.5
and others (see xml_formats.py).

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Values carry neither types nor escapes. The tools' schemas say the types (see schema.py). A closing tag that a value
contains is told from the real one by what follows it: only another parameter, or the end of the call, may.
"""

import html
import re

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source
from tokenline.parse.tools.arguments import ArgumentsWriter
from tokenline.parse.tools.json_calls import copy_arguments, read_calls
from tokenline.parse.tools.schema import ANY, STRING, ToolSchemas
from tokenline.parse.tools.xml_formats import XmlFormat

_TYPE = re.compile(r'\btype="([a-z]+)"')
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_NAME = re.compile(r"[^\s\"<>{}]+")


class XmlCalls:
    """Reader of content with XML calls in it."""

    def __init__(self, form: XmlFormat, schemas: ToolSchemas) -> None:
        self._form = form
        self._schemas = schemas
        tags = (form.section, form.section_end, form.call, form.call_end, form.parameter, form.value, form.value_end)
        self.markers = tuple(tag for tag in (*tags, form.key_end, form.name_end, *(form.json or ())) if len(tag) > 2)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        form = self._form
        begin = tuple(tag for tag in (form.section, form.call) if tag)  # models leave out the section sometimes
        while (marker := (yield from read_content(source, sink, *begin))) is not None:
            inside = marker == form.section
            if inside and form.call and (yield from source.follows("{", after_space=True, consume=False)):
                if (yield from read_calls(source, sink, ends=(form.section_end,))):  # as Hermes writes it
                    yield from source.follows(form.section_end, after_space=True)
                else:
                    give_back(source, sink)
                continue
            if inside and form.call and not (yield from source.follows(form.call, after_space=True)):
                give_back(source, sink)
                continue
            while (complete := (yield from self._call(source, sink))) and form.call:
                source.record("")
                if not (yield from source.follows(form.call, after_space=True)):
                    break
            if not complete:
                give_back(source, sink)
            else:
                source.recorded()
                if form.section_end:
                    yield from source.follows(form.section_end, after_space=True)

    def _call(self, source: Source, sink: Sink) -> Reading[bool]:
        """A call from its name to its end."""
        form = self._form
        if (name := (yield from self._name(source))) is None or (name := sink.tool(name)) is None:
            return False
        # The end tag may be missing where the section, or the whole answer, ends.
        ends = tuple(end for end in (form.call_end, form.section_end) if end)
        begins = (form.parameter, "{", *((form.json[0],) if form.json else ()))
        begun = yield from source.follows(*begins, *ends, after_space=True, consume=False)
        if begun is None and not (yield from source.at_end()):
            return False
        sink.begin_call(name)
        if begun == "{":
            return (yield from self._json(source, sink))
        if form.json and begun == form.json[0]:
            return (yield from self._json(source, sink, *form.json))
        arguments = ArgumentsWriter(sink.arguments, self._schemas, name, form.undeclared)
        while (yield from source.follows(form.parameter, after_space=True)):
            if not (yield from self._parameter(source, arguments)):
                return False
        end = yield from source.follows(*ends, after_space=True, consume=False)
        if end is None and not ((yield from source.at_end()) and not source.cut):
            return False
        if form.call_end:
            yield from source.follows(form.call_end, after_space=True)
        arguments.close()
        sink.end_call()
        return True

    def _json(self, source: Source, sink: Sink, begin: str = "", end: str = "") -> Reading[bool]:
        """All arguments as JSON, within tags of their own or, as others write them, without; and the call's end."""
        if begin:
            yield from source.follows(begin, after_space=True)
        if not (yield from copy_arguments(source, sink.arguments)):
            return False
        for tag in (end, self._form.call_end):
            if tag:
                yield from source.follows(tag, after_space=True)
        sink.end_call()
        return True

    def _name(self, source: Source) -> Reading[str | None]:
        form = self._form
        parts: list[str] = []
        if form.name_end:
            end = yield from source.until(form.name_end, "\n", write=parts.append)
            ends = (form.parameter, form.call_end)
            if end != form.name_end and not (yield from source.follows(*ends, after_space=True, consume=False)):
                return None
        else:  # the name stands by itself: it ends where the parameters, or the section, do
            end = yield from source.until("\n", form.parameter, form.section_end, write=parts.append)
            if end is None:
                return None
            if end != "\n":
                source.put_back(end)
        name = "".join(parts).partition('"')[0].strip(SPACE)
        return name if _NAME.fullmatch(name) else None

    def _parameter(self, source: Source, arguments: ArgumentsWriter) -> Reading[bool]:
        """A parameter from its key to the end of its value."""
        form = self._form
        parts: list[str] = []
        if (yield from source.until(form.key_end, "\n", write=parts.append)) != form.key_end:
            return False
        if form.value and not (yield from source.follows(form.value, after_space=True)):
            return False
        key, types = _key("".join(parts))
        arguments.begin(key.strip(SPACE), types)
        if form.value_lines:
            yield from source.follows("\n")
        in_cdata = form.cdata and (yield from source.follows(_CDATA, after_space=True))
        if in_cdata and (yield from source.until(_CDATA_END, write=arguments.text, tail=False)) is None:
            return False
        if not (yield from self._value(source, arguments)):
            return False
        arguments.end()
        return True

    def _value(self, source: Source, arguments: ArgumentsWriter) -> Reading[bool]:
        form = self._form
        closing = form.call_end or form.section_end
        ends = {form.value_end: "", closing: ""}
        if form.value_lines:
            ends |= {"\n" + end: "\n" for end in ends}
        if not form.value:
            ends["\n" + form.parameter] = "\n"
        after = tuple(tag for tag in (form.parameter, form.call_end or form.section_end, form.section_end) if tag)
        behind = (form.section_end, form.call) if form.call_end else (form.section,)
        next_calls = tuple(tag for tag in behind if tag)
        while (end := (yield from source.until(*ends, write=arguments.text, tail=False))) is not None:
            if end.endswith(form.parameter):  # the value's own end was forgotten
                source.put_back(form.parameter)
                return True
            if end.endswith(form.value_end):
                if (yield from source.follows(*dict.fromkeys(after), after_space=True, consume=False)):
                    return True
                if (yield from source.at_end()):
                    return True
            elif (yield from source.follows(*next_calls, after_space=True, consume=False)) or (
                yield from source.at_end()
            ):
                source.put_back(closing)
                return True
            if source.ended:  # in the middle of what should have followed
                return False
            arguments.text(end)
        return False


def _key(text: str) -> tuple[str, frozenset[str] | None]:
    """A key with its types, where the format says them: DeepSeek V3.2 writes `city" string="true"`, Kimi K3
    `city" type="string"`.
    """
    key, quote, attribute = text.partition('"')
    if not quote:
        return key, None
    if kind := _TYPE.search(attribute):
        return html.unescape(key), frozenset({kind[1]})
    return key, STRING if attribute.strip(SPACE).endswith('"true"') else ANY
