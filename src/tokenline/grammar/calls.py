"""Calls in the formats of models (`tool_formats`) as rules of a grammar, each held to its function's schema.

The other side of `parse.tools`: what is let through here is what the parsers there read. A call begins with a marker,
or with a text that its reader takes for a call's beginning; from there on only a call of a function that exists is
possible.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenline.grammar.notation import quoted
from tokenline.grammar.python_values import python_calls
from tokenline.grammar.rules import FreeText, Rules
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import json_rule
from tokenline.grammar.spec import Function
from tokenline.grammar.tool_formats import (
    BareCalls,
    CallFormat,
    ChannelCalls,
    JsonCallFormat,
    NamedCallFormat,
    PythonCallFormat,
    XmlCallFormat,
)
from tokenline.grammar.tools import call, place
from tokenline.grammar.xml_values import Parameters

_CALL_KEYS = ("name", "tool_name", "arguments", "parameters", "type", "id", "tool_call_id", "function")
_LINE_START = r"(.*\n)?[ \t\r\n]*"


@dataclass(frozen=True, slots=True)
class Lead:
    """A place in a text where calls begin, and the rules of what follows."""

    marker: str  # "": none, then `head` says how a text ends that leads to a call
    body: str
    head: str = ""
    alone: str = ""  # without a marker: the whole of the calls, where they are all that is said


class Calls:
    """The rules of calls in one format."""

    def __init__(
        self, form: CallFormat, functions: Sequence[Function], prepared: Sequence[Any], schemas: Schemas, rules: Rules
    ) -> None:
        """`prepared`: the schemas of the functions' arguments."""
        self._form = form
        self._functions = functions
        self._prepared = prepared
        self._schemas = schemas
        self._rules = rules
        self._parallel = True

    def leads(self, *, parallel: bool = True) -> list[Lead]:
        """Where calls begin. `parallel`: several may stand in one list or section. To be called once."""
        self._parallel = parallel
        match self._form:
            case JsonCallFormat():
                return self._json_calls(self._form)
            case BareCalls():
                return self._bare_calls(self._form)
            case NamedCallFormat():
                return self._named_calls(self._form)
            case PythonCallFormat():
                return self._python_calls(self._form)
            case XmlCallFormat():
                return self._xml_calls(self._form)
            case ChannelCalls():
                return []  # they are messages (`frame`)

    def arguments(self, index: int) -> str:
        """The rule of a function's arguments as JSON."""
        return self._rules.add(f"arguments_{index}", json_rule(self._prepared[index], self._schemas))

    def _json_calls(self, form: JsonCallFormat) -> list[Lead]:
        calls: Any = {
            "anyOf": [
                self._numbered(form, call(function.name, arguments, form.name, form.arguments))
                for function, arguments in zip(self._functions, self._prepared, strict=True)
            ]
        }
        if form.many == "list":
            calls = {"type": "array", "items": calls, "minItems": 1}
            if not self._parallel:
                calls["maxItems"] = 1
        self._rules.add("call", json_rule(calls, self._schemas))
        body = "WS? call (WS? call)*" if form.many == "lines" and self._parallel else "WS? call"
        if form.fence:
            body = f"WS? {quoted(form.fence)} {body}"
        if form.end:
            body += f" WS? {self._rules.marker(form.end)}"
        return [Lead(begin, body) for begin in form.begin]

    def _numbered(self, form: JsonCallFormat, schema: dict[str, Any]) -> dict[str, Any]:
        if form.number:
            number = {"type": "string", "pattern": "^(?:[0-9]{1,4})$"}
            schema["properties"] = {form.number: number, **schema["properties"]}
        return schema

    def _bare_calls(self, form: BareCalls) -> list[Lead]:
        calls = [call(function.name, part) for function, part in zip(self._functions, self._prepared, strict=True)]
        self._rules.add("call", json_rule({"anyOf": calls}, self._schemas))
        more = ' (WS? ";" WS? call)*' if self._parallel else ""
        # An object at the start of a line whose first key can be a call's is one; the reader takes it for one.
        self._rules.add("bare", " | ".join(map(self._bare_rest, range(len(self._functions)))))
        self._rules.add("OTHER", f'/[^"\\\\]*"/ & ~/({"|".join(_CALL_KEYS)})"/')
        head = r"/(?s:" + _LINE_START + r'\{[ \t\r\n]*")/'
        return [
            Lead(form.tag, f"WS? call{more}"),
            Lead("", "(bare | OTHER)", head, f"call{more}"),
        ]

    def _bare_rest(self, index: int) -> str:
        """A call behind its bracket and the first quote."""
        name = quoted(json.dumps(self._functions[index].name, ensure_ascii=False))
        colon, comma = "/[ \\t\\r\\n]{0,8}:[ \\t\\r\\n]{0,8}/", '/[ \\t\\r\\n]{0,8},[ \\t\\r\\n]{0,128}"/'
        return f'"name\\"" {colon} {name} {comma} "parameters\\"" {colon} {self.arguments(index)} WS? "}}"'

    def _named_calls(self, form: NamedCallFormat) -> list[Lead]:
        marker = self._rules.marker
        calls = []
        for index, function in enumerate(self._functions):
            number = " /:[0-9]{1,4}/" if form.numbered else ""
            name = marker(form.before_name + function.name)
            own = bool(form.quote) and not function.strict
            arguments = f"({self.arguments(index)} | own_object)" if own else self.arguments(index)
            calls.append(f"{name}{number} {marker(form.separator)} {arguments} {marker(form.end)}")
        if form.quote:
            self._own_spelling(form.quote)
        self._rules.add("call", " | ".join(calls))
        if not form.section:
            return [Lead(form.begin, "call")]
        begin, end = marker(form.begin), marker(form.section_end)
        more = f" (WS? {begin} call)*" if self._parallel else ""
        return [
            Lead(form.begin, f"call WS? ({end})?"),
            Lead(form.section, f"WS? {begin} call{more} WS? {end}"),
        ]

    def _own_spelling(self, quote: str) -> None:
        """Rules of any object in a JSON of the model's own spelling."""
        rules = self._rules
        text = FreeText("OWN", rules)
        text.lead(quote, "")
        text.finish("own_text")
        rules.add("OWN_WORD", r"/-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null/")
        rules.add("OWN_KEY", r"/[^\s\x00-\x1f{}\[\](),:=<>\"|]{1,64}/")
        rules.add("own_value", f"{rules.marker(quote)} own_text | OWN_WORD | own_list | own_object")
        rules.add("own_member", 'OWN_KEY ":" own_value')
        rules.add("own_list", '"[" (own_value ("," own_value)*)? "]"')
        rules.add("own_object", '"{" (own_member ("," own_member)*)? "}"')

    def _python_calls(self, form: PythonCallFormat) -> list[Lead]:
        calls = python_calls(self._functions, self._prepared, self._schemas, self._rules)
        self._rules.add("call", " | ".join(f"{quoted(name + '(')} {body}" for name, body in calls))
        comma = "/,[ \\t\\r\\n]{0,16}/"
        more = f" ({comma} call)*" if self._parallel else ""
        listed = f'"[" WS? call{more} WS? "]"'
        if not form.begin:
            head = f"/(?s:{_LINE_START}\\[[ \\t\\r\\n]*)/"
            return [Lead("", f'{body}{more} WS? "]"', f"{head} {quoted(name + '(')}", listed) for name, body in calls]
        lines = "call (WS call)*" if self._parallel else "call"
        inside = listed if form.listed else f"({lines} | {listed})"
        return [Lead(form.begin, f"WS? {inside} WS? {self._rules.marker(form.end)}")]

    def _xml_calls(self, form: XmlCallFormat) -> list[Lead]:
        parameters = Parameters(form, self._schemas, self._rules)
        heads, bodies = [], []
        for index, (function, prepared) in enumerate(zip(self._functions, self._prepared, strict=True)):
            body = parameters.of(prepared, f"p{index}", place(index)) if function.strict else parameters.any()
            heads.append(function.name + form.name_end)
            bodies.append(f"WS? {body} {self._rules.marker(form.call_end)}")
        bare = [f"{quoted(head)} {body}" for head, body in zip(heads, bodies, strict=True)]
        end = self._rules.marker(form.section_end)
        if not form.call:
            self._rules.add("call", " | ".join(bare))
            return [Lead(form.section, f"call WS? {end}")]
        marker = self._rules.marker
        calls = [f"{marker(form.call + head)} {body}" for head, body in zip(heads, bodies, strict=True)]
        self._rules.add("call", " | ".join(calls))
        # The reader takes a call whose section was left out, too; its beginning is a part of the call's head.
        self._rules.add("bare", " | ".join(bare))
        more = " (WS? call)*" if self._parallel else ""
        if not form.section:
            return [Lead(form.call, "bare")]
        return [
            Lead(form.section, f"WS? call{more} WS? {end}"),
            Lead(form.call, f"bare WS? ({end})?"),
        ]


def lead_to(text: FreeText, lead: Lead, then: str = "") -> None:
    """Let a free text lead to calls. `then`: what follows them."""
    body = f"({lead.body}) {then}".strip()
    if lead.marker:
        text.lead(lead.marker, body)
    else:
        text.head(lead.head, body)


def unknown_calls(markers: Sequence[str], rules: Rules) -> list[Lead]:
    """Calls in a format of which only the markers are known: behind the first one text and markers are free."""
    if not markers:
        return []
    control = [rules.marker(text) for text in markers if isinstance(rules.parts(text)[0], int)]
    rules.add("UNKNOWN", "/(?s:.+)/")
    return [Lead(markers[0], f"({' | '.join(['UNKNOWN', *control])})*")]
