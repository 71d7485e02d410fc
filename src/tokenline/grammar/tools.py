"""Tool calls as grammars: arguments alone, lists of calls, and free text in which each call holds to its schema.

The other side of `parse.tools`: what is let through here is what the parsers there read. In free text a call begins
with a marker; from there on only a call of a function that exists is possible. A marker that is a control token of the
vocabulary can only be that token; one that is text can be spelled in any way, and is.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.errors import ConstraintError, unsupported
from tokenline.grammar.limits import MAX_FUNCTIONS
from tokenline.grammar.notation import quoted
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import json_rule
from tokenline.grammar.schema_values import resolved
from tokenline.grammar.spec import Function
from tokenline.grammar.tool_formats import FORMATS, BareCalls, JsonCallFormat, NamedCallFormat, XmlCallFormat
from tokenline.grammar.xml_values import Parameters

_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_SPACE = r"/[ \t\r\n]{1,16}/"
_CALL_KEYS = ("name", "tool_name", "arguments", "parameters", "type", "id", "tool_call_id", "function")

SpecialId = Callable[[str], int | None]


def place(index: int) -> Path:
    """Where the parameters of a function stand in a request."""
    return ("tools", index, "function", "parameters")


def arguments(schemas: Schemas, function: Function, index: int) -> Any:
    """The prepared schema of a function's arguments: an object, whatever its schema leaves open."""
    given = _NOTHING if function.parameters in (None, {}) else function.parameters
    prepared = schemas.add(given, place(index))
    if prepared is False:
        raise unsupported("cannot be fulfilled by any value.", *place(index))
    seen = resolved(prepared, schemas.definitions)
    if seen is True:
        return {"type": "object"}
    if seen.get("type") == "object":
        return prepared
    made = (
        {"type": "object", "allOf": [prepared]} if {"type", "$ref"} & set(prepared) else {"type": "object", **prepared}
    )
    schemas.places[id(made)] = place(index)
    return made


def required_calls(functions: Sequence[Function], prepared: Sequence[Any], *, parallel: bool) -> Any:
    """The schema of a list of calls, at least one; exactly one unless `parallel`. `prepared`: of their arguments."""
    calls = {"anyOf": [_call(function.name, part) for function, part in zip(functions, prepared, strict=True)]}
    listed: dict[str, Any] = {"type": "array", "items": calls, "minItems": 1}
    if not parallel:
        listed["maxItems"] = 1
    return listed


def all_arguments(schemas: Schemas, functions: Sequence[Function], *, strict_only: bool) -> list[Any]:
    """The prepared arguments of each function; any object for one that is not strict, if only those are meant."""
    if not functions:
        raise ConstraintError(("tools",), "must have at least one function.")
    if len(functions) > MAX_FUNCTIONS:
        raise unsupported(f"has more than {MAX_FUNCTIONS} functions to choose from.", "tools")
    return [
        arguments(schemas, function, index) if function.strict or not strict_only else {"type": "object"}
        for index, function in enumerate(functions)
    ]


def _call(name: str, arguments: Any, name_key: str = "name", arguments_key: str = "parameters") -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name_key: {"const": name}, arguments_key: arguments},
        "required": [name_key, arguments_key],
        "additionalProperties": False,
    }


class StrictCalls:
    """Free text with calls in one parser's format, as a grammar."""

    def __init__(self, functions: Sequence[Function], parser: str, schemas: Schemas, special_id: SpecialId) -> None:
        if parser not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            raise unsupported(
                f"has strict functions, which can be enforced for the formats {known}; not for {parser}.", "tools"
            )
        self._format = FORMATS[parser]
        self._functions = functions
        self._schemas = schemas
        self._special_id = special_id
        self.prepared = all_arguments(schemas, functions, strict_only=True)
        self._rules: list[str] = []
        self._blocks: list[tuple[str, str]] = []  # each marker with what follows it

    def source(self) -> str:
        """The grammar. To be called when the schemas are finished."""
        match self._format:
            case JsonCallFormat():
                self._json_calls(self._format)
            case BareCalls():
                return self._bare_calls(self._format)
            case NamedCallFormat():
                self._named_calls(self._format)
            case XmlCallFormat():
                self._xml_calls(self._format)
        return self._free_text([])

    # Free text and markers

    def _marker(self, text: str) -> str:
        if not text:
            return ""
        token_id = self._special_id(text)
        return quoted(text) if token_id is None else f"<[{token_id}]>"

    def _free_text(self, heads: list[tuple[str, str]]) -> str:
        """Text, blocks, text. `heads`: more blocks, each with an expression of the text that leads to it."""
        special = [(marker, body) for marker, body in self._blocks if marker.startswith("<[")]
        spelled = [(f"/(?s:.*)/ {marker}", body) for marker, body in self._blocks if not marker.startswith("<[")]
        leads = [*spelled, *heads]
        lines = [f"HEAD_{number}: {head}" for number, (head, _) in enumerate(leads)]
        blocks = []
        if leads:
            lines.append(f"HEAD: {' | '.join(f'HEAD_{number}' for number in range(len(leads)))}")
        for number, (_, body) in enumerate(leads):
            # Up to the first place where it leads to a block, and no further.
            lines.append(f"OPEN_{number}: HEAD_{number} & ~(HEAD /(?s:.+)/)")
            blocks.append(f"OPEN_{number} {body}")
        lines.append("FREE: /(?s:.+)/" + (" & ~(HEAD /(?s:.*)/)" if leads else ""))
        blocks += [f"FREE? {marker} {body}" for marker, body in special]
        return "\n".join([f"start: ({' | '.join(blocks)})* FREE?", *lines, *self._rules]) + "\n"

    # Formats

    def _json_calls(self, form: JsonCallFormat) -> None:
        calls: Any = {
            "anyOf": [
                _call(function.name, arguments, form.name, form.arguments)
                for function, arguments in zip(self._functions, self.prepared, strict=True)
            ]
        }
        if form.listed:
            calls = {"type": "array", "items": calls, "minItems": 1}
        self._rule("call", json_rule(calls, self._schemas))
        self._rule("WS", _SPACE)
        end = f" WS? {self._marker(form.end)}" if form.end else ""
        self._blocks += [(self._marker(begin), f"WS? call{end}") for begin in form.begin]

    def _bare_calls(self, form: BareCalls) -> str:
        calls = [
            _call(function.name, arguments) for function, arguments in zip(self._functions, self.prepared, strict=True)
        ]
        self._rule("call", json_rule({"anyOf": calls}, self._schemas))
        self._rule("WS", _SPACE)
        self._blocks.append((self._marker(form.tag), 'WS? call (WS? ";" WS? call)*'))
        # An object at the start of a line whose first key can be a call's is one; the reader takes it for one.
        rest = [self._bare_rest(index) for index in range(len(self._functions))]
        self._rule("bare", " | ".join(rest))
        self._rule("OTHER", f'/[^"\\\\]*"/ & ~/({"|".join(_CALL_KEYS)})"/')
        head = r'/(?s:(.*\n)?[ \t\r\n]*\{[ \t\r\n]*")/'
        return self._free_text([(head, "(bare | OTHER)")])

    def _bare_rest(self, index: int) -> str:
        """A call behind its bracket and the first quote."""
        self._rule(f"arguments_{index}", json_rule(self.prepared[index], self._schemas))
        name = quoted(json.dumps(self._functions[index].name, ensure_ascii=False))
        colon, comma = "/[ \\t\\r\\n]{0,8}:[ \\t\\r\\n]{0,8}/", '/[ \\t\\r\\n]{0,8},[ \\t\\r\\n]{0,128}"/'
        return f'"name\\"" {colon} {name} {comma} "parameters\\"" {colon} arguments_{index} WS? "}}"'

    def _named_calls(self, form: NamedCallFormat) -> None:
        calls = []
        for index, function in enumerate(self._functions):
            self._rule(f"arguments_{index}", json_rule(self.prepared[index], self._schemas))
            number = " /:[0-9]{1,4}/" if form.numbered else ""
            calls.append(
                f"{quoted(form.before_name + function.name)}{number} {self._marker(form.separator)} arguments_{index}"
            )
        self._rule("call", " | ".join(f"{call} {self._marker(form.end)}" for call in calls))
        self._rule("WS", _SPACE)
        begin = self._marker(form.begin)
        self._blocks.append((begin, "call"))
        if form.section:
            body = f"{begin} call (WS? {begin} call)* WS? {self._marker(form.section_end)}"
            self._blocks.append((self._marker(form.section), "WS? " + body))

    def _xml_calls(self, form: XmlCallFormat) -> None:
        parameters = Parameters(form, self._schemas, self._rule)
        calls = []
        for index, (function, prepared) in enumerate(zip(self._functions, self.prepared, strict=True)):
            body = parameters.of(prepared, f"p{index}", place(index)) if function.strict else parameters.any()
            head = quoted(form.call + function.name + form.name_end)
            end = quoted(form.call_end) if form.call_end else ""
            calls.append(f"{head} WS? {body} {end}")
        self._rule("call", " | ".join(calls))
        if form.call:
            self._blocks.append((self._marker(form.section), f"WS? call WS? {self._marker(form.section_end)}"))
            # The reader takes a call whose section was left out, too; its beginning is a part of the call's head.
            bare = " | ".join(call.replace(quoted(form.call)[:-1], '"', 1) for call in calls)
            self._rule("bare", bare)
            self._blocks.append((quoted(form.call), "bare"))
        else:
            self._blocks.append((self._marker(form.section), f"call WS? {self._marker(form.section_end)}"))

    def _rule(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")
