"""MiniMax M3: each tag behind a mark of its own, an element a parameter, and elements within elements.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="order">]<]minimax[>[<user>42]<]minimax[>[</user>
    ]<]minimax[>[<items>]<]minimax[>[<item>]<]minimax[>[<sku>a]<]minimax[>[</sku>]<]minimax[>[</item>]<]minimax[>[</items>
    ]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Values have no types but those of the tool's schema (see schema.py). Elements named `item` are those of a list.
"""

from collections.abc import Sequence

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.json_text import escaped
from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source
from tokenline.parse.tools.arguments import ArgumentsWriter
from tokenline.parse.tools.schema import STRING, ToolSchemas, ValueSchema, text_to_json

_MARK = "]<]minimax[>["
_BEGIN, _END = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_CALL, _CALL_END = f'{_MARK}<invoke name="', f"{_MARK}</invoke>"
_OPEN, _CLOSE = f"{_MARK}<", f"{_MARK}</"
_MAX_DEPTH = 50

Element = tuple[str, str]  # its name, and its value as JSON


class MinimaxM3Calls:
    """Reader of content with MiniMax M3's calls in it."""

    markers = (_MARK, _BEGIN, _END, _CALL, _CALL_END)

    def __init__(self, schemas: ToolSchemas) -> None:
        self._schemas = schemas

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        while (marker := (yield from read_content(source, sink, _BEGIN, _CALL))) is not None:
            if marker == _BEGIN and not (yield from source.follows(_CALL, after_space=True)):
                give_back(source, sink)
                continue
            while complete := (yield from self._call(source, sink)):
                source.record("")
                if not (yield from source.follows(_CALL, after_space=True)):
                    break
            if complete:
                source.recorded()
                yield from source.follows(_END, after_space=True)
            else:
                give_back(source, sink)

    def _call(self, source: Source, sink: Sink) -> Reading[bool]:
        """A call from its name to its end."""
        parts: list[str] = []
        if (yield from source.until('">', "\n", write=parts.append)) != '">':
            return False
        if (name := sink.begin_call("".join(parts))) is None:
            return False
        arguments = ArgumentsWriter(sink.arguments, self._schemas, name, STRING)
        schema = self._schemas.arguments(name)
        while not (yield from source.follows(_CALL_END, after_space=True)):
            if (key := (yield from _tag(source))) is None:
                return False
            if (inner := schema.member(key)).types == STRING:
                arguments.begin(key, STRING)
                if not (yield from _text(source, key, arguments)):
                    return False
                arguments.end()
            else:
                if (value := (yield from _value(source, key, inner, 1))) is None:
                    return False
                arguments.value(key, value)
        arguments.close()
        sink.end_call()
        return True


def _tag(source: Source) -> Reading[str | None]:
    """The name in the opening tag that begins here, after white space; None if there is none."""
    if not (yield from source.follows(_OPEN, after_space=True)):
        return None
    parts: list[str] = []
    if (yield from source.until(">", "<", "\n", write=parts.append)) != ">":
        return None
    name = "".join(parts)
    return None if not name or name.startswith("/") else name


def _text(source: Source, name: str, arguments: ArgumentsWriter) -> Reading[bool]:
    """A text up to its closing tag."""
    return (yield from source.until(f"{_CLOSE}{name}>", write=arguments.text, tail=False)) is not None


def _value(source: Source, name: str, schema: ValueSchema, depth: int) -> Reading[str | None]:
    """The value of an element up to its closing tag, as JSON; None if it is broken or the text ended."""
    text: list[str] = []
    elements: list[Element] = []
    while True:
        if (yield from source.until(_MARK, write=text.append, tail=False)) is None or depth > _MAX_DEPTH:
            return None
        source.put_back(_MARK)
        if (yield from source.follows(f"{_CLOSE}{name}>")):
            return _json("".join(text), elements, schema)
        if (inner := (yield from _tag(source))) is None:
            return None
        of_list = inner == "item" and "object" not in schema.types
        inner_schema = schema.items if of_list else schema.member(inner)
        if (value := (yield from _value(source, inner, inner_schema, depth + 1))) is None:
            return None
        elements.append((inner, value))


def _json(text: str, elements: Sequence[Element], schema: ValueSchema) -> str:
    types = schema.types
    if not elements:
        if not text.strip(SPACE) and "string" not in types and types & {"array", "object"}:
            return "[]" if "array" in types else "{}"  # so are empty ones written
        return text_to_json(text, types or STRING)
    if "object" not in types and all(name == "item" for name, _ in elements):
        return f"[{', '.join(value for _, value in elements)}]"
    members: dict[str, list[str]] = {}
    for name, value in elements:
        members.setdefault(name, []).append(value)
    return "{" + ", ".join(f'"{escaped(name)}": {_one(values)}' for name, values in members.items()) + "}"


def _one(values: list[str]) -> str:
    """A member; one that comes several times is a list."""
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"
