"""The tools' JSON schemas, as far as they decide what a value written as plain text means (XML formats, GLM).

Such a format carries no types: `00417` is a number or a string as the schema says. A value that does not fit its
schema is handed over as a string, for the client to judge; a call is never dropped for it.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenline.fields import pointer_parts
from tokenline.parse.json_text import escaped, whole_value
from tokenline.parse.source import SPACE
from tokenline.parse.tools.python_value import python_to_json

Schema = Mapping[str, Any]

STRING = frozenset({"string"})
ANY: frozenset[str] = frozenset()  # nothing is known of the type

_ALIASES = {"str": "string", "text": "string", "int": "integer", "float": "number", "double": "number"} | {
    "bool": "boolean", "dict": "object", "map": "object", "list": "array", "tuple": "array"
}  # fmt: skip  # as schemas made by hand have them
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
_NAMESPACE = "functions."
_ID_NAMESPACE, _ID_NUMBER = re.compile(r"\Afunctions?[._:\-]?"), re.compile(r"[._:\-]*[0-9]*")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_MAX_DEPTH = 16  # of references and alternatives


class ToolSchemas:
    """Names and parameters of a request's tools. Tolerates any JSON: checking the request is the server's business."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._parameters: dict[str, Schema] = {}
        self._any_strict = False
        for tool in tools or ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                parameters = function.get("parameters")
                self._any_strict |= function.get("strict") is True
                self._parameters[name] = parameters if isinstance(parameters, Mapping) else {}

    @property
    def allow_unmarked(self) -> bool:
        """Calls may come without their markers. Those of strict tools may not: their grammar begins at the marker."""
        return bool(self._parameters) and not self._any_strict

    def meant(self, name: str) -> str | None:
        """The tool that is meant by a name that the model wrote, None if there is no such tool. Without tools, every
        name is one.

        A namespace in front (`functions.get_weather`, as gpt-oss and Kimi write it) is no part of the name.
        """
        name = name.strip(SPACE)
        if not self._parameters:
            return name.removeprefix(_NAMESPACE) or None
        return self.first(name, name.removeprefix(_NAMESPACE))

    def meant_by_id(self, call_id: str) -> str | None:
        """The same for an id that has the name in it: `functions.get_weather:0`, `functions_get_weather_0`,
        `functionsget_weather0`. The longest name that fits.
        """
        call_id = call_id.strip(SPACE)
        if not self._parameters:
            return self.meant(call_id.rpartition(":")[0] or call_id)
        bare = _ID_NAMESPACE.sub("", call_id)
        fitting = [
            name
            for name in self._parameters
            for text in (call_id, bare)
            if text.startswith(name) and _ID_NUMBER.fullmatch(text[len(name) :])
        ]
        return max(fitting, key=len, default=None)

    def taking(self, arguments: Collection[str]) -> str | None:
        """The only tool that can take these arguments, for a call whose name was lost."""
        tools = [tool for tool in self._parameters if self._takes(tool, arguments)]
        return tools[0] if len(tools) == 1 else None

    def _takes(self, tool: str, arguments: Collection[str]) -> bool:
        required = self._parameters[tool].get("required")
        needed = required if isinstance(required, list) else []
        return set(arguments) <= set(self.positional(tool)) and all(name in arguments for name in needed)

    def first(self, *names: str) -> str | None:
        """The first of these that is a tool."""
        return next((name for name in names if name in self._parameters), None)

    def positional(self, tool: str) -> list[str]:
        """The parameters in the order of the schema."""
        properties = self._parameters.get(tool, {}).get("properties")
        return list(properties) if isinstance(properties, Mapping) else []

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """JSON types that the schema allows for this parameter; empty if it says nothing."""
        return self.arguments(tool).member(parameter).types

    def arguments(self, tool: str) -> "ValueSchema":
        """The schema of all arguments of a tool."""
        root = self._parameters.get(tool, {})
        return ValueSchema(root, root)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """The schema of a value; `root` is that of the tool, to which references point."""

    schema: object
    root: Schema

    @property
    def types(self) -> frozenset[str]:
        """The JSON types it allows; empty if it says nothing."""
        return _types(self.schema, self.root, 0)

    def member(self, name: str) -> "ValueSchema":
        """Of a property of the object; an empty one if nothing is said of it."""
        return self._inner(lambda schema: _member(schema, name))

    @property
    def items(self) -> "ValueSchema":
        """Of the items of the list."""
        return self._inner(lambda schema: schema.get("items"))

    def _inner(self, inner: Callable[[Schema], object]) -> "ValueSchema":
        found = next((schema for schema in _alternatives(self.schema, self.root, 0) if inner(schema) is not None), {})
        return ValueSchema(inner(found), self.root)


def _member(schema: Schema, name: str) -> object:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def _alternatives(schema: object, root: Schema, depth: int) -> Iterator[Schema]:
    """The schemas of which a value may be, itself first."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    if isinstance(reference := schema.get("$ref"), str):
        yield from _alternatives(_resolve(reference, root), root, depth + 1)
        return
    yield schema
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(alternatives := schema.get(keyword), list):
            for alternative in alternatives:
                yield from _alternatives(alternative, root, depth + 1)


def _types(schema: object, root: Schema, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_resolve(reference, root), root, depth + 1)
    types: set[str] = set()
    match schema.get("type"):
        case str() as kind:
            types.add(_ALIASES.get(kind.lower(), kind.lower()))
        case list() as kinds:
            types.update(_ALIASES.get(kind.lower(), kind.lower()) for kind in kinds if isinstance(kind, str))
    if not types:
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(alternatives := schema.get(keyword), list):
                types.update(*(_types(alternative, root, depth + 1) for alternative in alternatives))
    if not types and isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        types.update(_KINDS.get(type(value), "null") for value in values)
    if not types and "properties" in schema:
        types.add("object")
    if not types and "items" in schema:
        types.add("array")
    if types and schema.get("nullable") is True:
        types.add("null")
    return frozenset(types)


def _resolve(reference: str, root: Schema) -> object:
    """A reference inside the schema: `#/$defs/Place`."""
    found: object = root if reference.startswith("#") else None
    for name in pointer_parts(reference.lstrip("#")):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def text_to_json(text: str, types: frozenset[str]) -> str:
    """The JSON value that `text` means where the schema allows these types; with none, whatever it looks like."""
    bare = text.strip(SPACE)
    if not types:
        return whole_value(bare) or f'"{escaped(text)}"'
    if "null" in types and bare.lower() in ("null", "none"):
        return "null"
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    if "integer" in types and (number := _integer(bare)) is not None:
        return number
    if "number" in types and (number := _number(bare)) is not None:
        return number
    for kind, bracket in (("object", "{"), ("array", "[")):
        if kind in types and (value := _structure(bare, bracket)) is not None:
            return value
    return f'"{escaped(text)}"'


def _integer(text: str) -> str | None:
    whole = text.removesuffix(".0")
    return str(int(whole)) if _INTEGER.fullmatch(whole) else None


def _number(text: str) -> str | None:
    if _INTEGER.fullmatch(text):
        return str(int(text))
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or "_" in text:
        return None
    return whole_value(text) or json.dumps(number)


def _structure(text: str, bracket: str) -> str | None:
    """An object or array: JSON, JSON in a JSON string, or Python."""
    value = whole_value(text)
    if value is not None and value.startswith('"'):
        value = whole_value(json.loads(value))
    if value is None:
        try:
            value = python_to_json(text)
        except ValueError:
            return None
    return value if value.startswith(bracket) else None
