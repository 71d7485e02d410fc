"""Tools filled in with what their schemas mean, for templates that fail without.

In OpenAI's API and in MCP a tool may do without a description, without parameters, and say null for either. Some
templates fail then, leave the tool out, or write "None". `fitting` gives the least change with which a template copes,
so that what it can show stays as the client wrote it.
"""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from tokenline.render.provenance import literal
from tokenline.render.sandbox import to_json
from tokenline.render.traced_json import TracedBool, TracedDict, TracedNone, dump, with_members

Show = Callable[[Mapping[str, Any]], str | None]

_OPTIONAL = ("description", "parameters", "properties", "required", "strict", "items", "type", "enum", "title", "anyOf")
_SUBSCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_PROBE_NAME = "probe_tool_name"
_MAX_KEPT = 1024  # tools whose fitting form is remembered


class ToolForms:
    """For one template: in which form it shows a tool. Safe to use from several threads."""

    def __init__(self, show: Show):
        """`show`: what the template makes of a chat with this one tool; None if it fails."""
        self._show = show
        self._fitting = functools.lru_cache(_MAX_KEPT)(self._find)

    def fitting(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tool as it is, without its nulls, or completed: the first that the template shows properly."""
        if without_nulls(tool) == tool == complete(tool):
            return tool
        written = dump(tool) if isinstance(tool, TracedDict) else to_json(tool)
        return self._fitting(str.__str__(written))(tool)

    def _find(self, written: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        tool = json.loads(written)
        tool["function"]["name"] = _PROBE_NAME  # which no template has in its own words
        forms: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = [_as_it_is, without_nulls, complete]
        shown = [self._show(form(tool)) for form in forms]
        best = shown[-1]
        if best is None:  # nothing helps: what the template says of the client's own words is the clearest
            return _as_it_is
        for form, text in zip(forms, shown, strict=True):
            if (
                text is not None
                and (_PROBE_NAME in text or _PROBE_NAME not in best)
                and text.count("None") <= best.count("None")
            ):
                return form
        return complete


def _as_it_is(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool


def without_nulls(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool without the members that are null where that means the same as absent; a description becomes ""."""
    function: dict[str, Any] = {}
    for key, value in tool["function"].items():
        if not _is_null(value):
            function[key] = _schema(value, _drop_nulls) if key == "parameters" else value
        elif key == "description":
            function[key] = literal("")
    return with_members(tool, {**tool, "function": with_members(tool["function"], function)})


def complete(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool with a type, a description and an object schema, all of its properties likewise."""
    function = tool["function"]
    parameters = _schema(function.get("parameters") or {}, _complete)
    parameters = {"type": literal("object"), "properties": {}, **parameters}
    given = {key: value for key, value in function.items() if not _is_null(value)}
    full = {"name": function["name"], "description": literal(""), **given, "parameters": parameters}
    return with_members(tool, {"type": literal("function"), **tool, "function": with_members(function, full)})


def _schema(schema: Any, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    """A JSON schema with `change` made in it and in every schema inside."""
    if not isinstance(schema, Mapping):
        return schema
    changed = change(schema)
    for key, value in list(changed.items()):
        if key in _SUBSCHEMAS and isinstance(value, Mapping):
            changed[key] = _schema(value, change)
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            changed[key] = [_schema(item, change) for item in value]
        elif key in _SCHEMA_MAPS and isinstance(value, Mapping):
            changed[key] = with_members(value, {name: _schema(item, change) for name, item in value.items()})
    return with_members(schema, changed)


def _drop_nulls(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if not _is_null(value) or key not in _OPTIONAL}


def _complete(schema: Mapping[str, Any]) -> dict[str, Any]:
    schema = _drop_nulls(schema)
    if isinstance(properties := schema.get("properties"), Mapping):
        described = {name: _described(item) for name, item in properties.items()}
        schema["properties"] = with_members(properties, described)
    items = schema.get("items")
    if isinstance(items, list):  # draft 7's tuples: a schema for each place
        schema["items"] = items[0] if len(items) == 1 else {literal("anyOf"): items}
    elif isinstance(items, bool | TracedBool):
        schema["items"] = {}
    types = schema.get("type")
    if isinstance(types, list):
        wanted = [type for type in types if type != "null"] or types
        del schema["type"]
        if len(wanted) == 1:
            schema = {"type": wanted[0], **schema}
        elif "anyOf" not in schema:
            schema["anyOf"] = [{literal("type"): type} for type in wanted]
    return schema


def _described(schema: Any) -> Any:
    """A property's schema as an object with a description."""
    if isinstance(schema, bool | TracedBool):
        schema = {}
    if not isinstance(schema, Mapping) or not _is_null(schema.get("description")):
        return schema
    return with_members(schema, {**schema, "description": literal("")})


def _is_null(value: Any) -> bool:
    return value is None or isinstance(value, TracedNone)
