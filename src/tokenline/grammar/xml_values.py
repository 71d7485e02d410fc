"""Parameters that are written as plain text between tags, without types and escapes (Qwen3-Coder and its relatives).

The reader decides by the schema what a text means: with a type that can only be a string, the text itself; else a
number, JSON and so on, and a string where nothing else fits. So a parameter can be enforced where each text that is let
through is read as a value that the schema allows: strings alone, anything but strings, or a mixture without conditions.
"""

from collections.abc import Sequence
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.errors import unsupported
from tokenline.grammar.notation import quoted, slashed
from tokenline.grammar.rules import Rules
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import json_rule
from tokenline.grammar.schema_values import Values, listed_values, resolved, value_type
from tokenline.grammar.tool_formats import XmlCallFormat
from tokenline.grammar.vocabulary import ABOUT

_PLAIN = {"type"}  # keywords of a schema without conditions
_MAX_NESTING = 8


class Parameters:
    """Rules for the parameters of functions in one format."""

    def __init__(self, form: XmlCallFormat, schemas: Schemas, rules: Rules) -> None:
        self._form = form
        self._schemas = schemas
        self._rules = rules
        self._values = Values(schemas.definitions)
        self._rule = rule = rules.add
        # A value ends with text, perhaps with a control token in it, behind which rules take over from terminals.
        first, *rest = rules.parts(self._line + form.value_end)
        end_text, rest = (first, rest) if isinstance(first, str) else ("", [first, *rest])
        self._end_rest = " ".join(quoted(part) if isinstance(part, str) else f"<[{part}]>" for part in rest)
        # What the reader may take for a value's end does not stand in a value.
        ends = [text for text in (form.value_end, form.call_end, form.parameter, form.section_end) if text]
        rule("RAW", f"/(?s:.*)/ & ~(/(?s:.*)/ ({' | '.join(map(quoted, ends))}) /(?s:.*)/)")
        rule("END", quoted(end_text))
        rule("KEY", r'/[^\s"<>{}]{1,64}/')
        rule("RAW_VALUE", "RAW END")
        rule("value", f"RAW_VALUE {self._end_rest}")
        if form.typed:
            rule("json", json_rule(True, schemas))

    @property
    def _line(self) -> str:
        return "\n" if self._form.value_lines else ""

    def any(self) -> str:
        """Parameters of any name with any text."""
        return f"({self._any('KEY')} WS?)*"

    def _any(self, key: str) -> str:
        text = f"{self._opened(key, is_text=True)} value"
        if not self._form.typed:
            return text
        return f"({text} | {self._opened(key, is_text=False)} {self._json('json')})"

    def _json(self, rule: str) -> str:
        """A value as JSON, and its end."""
        return f"{rule} WS? {self._rules.marker(self._form.value_end)}"

    def of(self, prepared: Any, prefix: str, at: Path) -> str:
        """Parameters that hold to this prepared schema, in its order."""
        schema = resolved(prepared, self._schemas.definitions)
        schema = {} if schema is True else schema
        known = {"type", "properties", "required", "additionalProperties", "allOf"}
        others = schema.get("additionalProperties", True)
        if set(schema) - known or self._only_type(schema.get("allOf")) or not isinstance(others, bool):
            raise unsupported("can be enforced in this format only by 'properties' and 'required'.", *at)
        parts = []
        properties: dict[str, Any] = schema.get("properties", {})
        required = schema.get("required", [])
        for number, name in enumerate([*properties, *(name for name in required if name not in properties)]):
            part = properties.get(name, others)
            if part is False:
                continue
            whole = f"{self._parameter(name, part, f'{prefix}_{number}', (*at, 'properties', name))} WS?"
            parts.append(whole if name in required else f"({whole})?")
        if others:
            if properties:
                taken = " | ".join(quoted(name) for name in {**properties, **dict.fromkeys(required)})
                self._rule(f"KEY_{prefix.upper()}", f"KEY & ~({taken})")
                parts.append(f"({self._any(f'KEY_{prefix.upper()}')} WS?)*")
            else:
                parts.append(self.any())
        return " ".join(parts)

    def _only_type(self, parts: Sequence[Any] | None) -> bool:
        return any(part is not True for part in parts or ())

    def _opened(self, key: str, *, is_text: bool) -> str:
        """What stands before a value. `is_text`: in formats that say it."""
        form, marker = self._form, self._rules.marker
        typed = f' string="{"true" if is_text else "false"}">' if form.typed else ""
        value = f" WS? {marker(form.value)}" if form.value else ""
        line = ' "\\n"' if form.value_lines else ""
        return f"{marker(form.parameter)} {key} {quoted(form.key_end + typed)}{value}{line}"

    def _parameter(self, key: str, schema: Any, name: str, at: Path) -> str:
        """A parameter with its value."""
        forms = self._forms(schema)
        texts = [form for form in forms if "string" in self._values.types(form)]
        others = [form for form in forms if "string" not in self._values.types(form)]
        text = self._opened(quoted(key), is_text=True)
        json = self._opened(quoted(key), is_text=False)
        if not texts:
            self._rule(name, json_rule(schema, self._schemas))
            return f"{json} {self._json(name)}"
        if self._form.typed:
            return self._typed(text, json, texts, others, name, at)
        if all(_is_plain(form) for form in forms):
            return f"{text} value"
        only_null = all(self._values.types(form) == {"null"} for form in others)
        if only_null and all(self._values.types(form) == {"string"} for form in texts):
            return f"{text} {self._text_value(texts, name, at, null=bool(others))}"
        if any(self._values.types(form) != {"string"} for form in texts):
            raise unsupported(
                "cannot be enforced in this format, in which a text may be read as another type than it was meant.", *at
            )
        self._rule(name, json_rule({"anyOf": others}, self._schemas))
        types = frozenset[str]().union(*map(self._values.types, others))
        value = self._text_value(texts, name, at, null=False, without=_read_otherwise(types))
        return f"({text} {value} | {json} {self._json(name)})"

    def _typed(self, text: str, json: str, texts: list[Any], others: list[Any], name: str, at: Path) -> str:
        """Texts and other values told apart by the format. `text` and `json`: what stands before them."""
        others = [*others, *(_without_strings(form) for form in texts if self._values.types(form) != {"string"})]
        texts = [form if form is True else {**form, "type": "string"} for form in texts]
        plain = any(_is_plain(form) for form in texts)
        ways = [f"{text} value" if plain else f"{text} {self._text_value(texts, name, at, null=False)}"]
        if others:
            self._rule(name, json_rule({"anyOf": others}, self._schemas))
            ways.append(f"{json} {self._json(name)}")
        return f"({' | '.join(ways)})"

    def _text_value(self, texts: list[Any], name: str, at: Path, *, null: bool, without: str = "") -> str:
        """Texts of these schemas, and their end. `without`: an expression of texts that are left out."""
        terminals = [self._text(form, at) for form in texts] + (['"null"'] if null else [])
        left = f" & ~({without})" if without else ""
        self._rule(f"TEXT_{name.upper()}", f"(({' | '.join(terminals)}){left}) END")
        return f"TEXT_{name.upper()} {self._end_rest}"

    def _forms(self, schema: Any, nesting: int = 0) -> list[Any]:
        """The schema's alternatives."""
        schema = resolved(schema, self._schemas.definitions)
        if isinstance(schema, dict) and nesting < _MAX_NESTING:
            if list(schema) == ["allOf"] and len(schema["allOf"]) == 1:
                return self._forms(schema["allOf"][0], nesting + 1)
            if list(schema) == ["anyOf"]:
                return [form for option in schema["anyOf"] for form in self._forms(option, nesting + 1)]
        if schema is False:
            return []
        return _by_type(schema) if isinstance(schema, dict) and isinstance(schema.get("type"), list) else [schema]

    def _text(self, schema: dict[str, Any], at: Path) -> str:
        """A terminal for the texts of a schema of strings."""
        if _is_plain(schema):
            return "RAW"
        values = listed_values(schema)
        if values is not None:
            return "(" + " | ".join(quoted(value) for value in values if isinstance(value, str)) + ")"
        known = {"type", "pattern", "minLength", "maxLength", "format", "allOf"}
        more = [part["pattern"] for part in schema.get("allOf", ()) if set(part) == {"type", "pattern"}]
        if set(schema) - known or len(more) < len(schema.get("allOf", ())):
            raise unsupported("cannot be enforced in this format.", *at)
        terminals = ["RAW"]
        for pattern in [*([schema["pattern"]] if "pattern" in schema else []), *more]:
            terminals.append(slashed(pattern.removeprefix("^").removesuffix("$")))
        if "minLength" in schema or "maxLength" in schema:
            terminals.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
        return f"({' & '.join(terminals)})"


# Beginnings of JSON values, at which a text could not be told from one.
_BEGINNINGS = {"null": "null", "boolean": "true|false", "number": r"[+\-.\p{Nd}]", "object": r"\{", "array": r"\["}
_WORDS = {"null": "null|none", "boolean": "true|false"}  # in letters of any case


def _read_otherwise(types: frozenset[str]) -> str:
    """An expression of the texts that may be read as one of these types; some more, so that the first characters say
    which a text is.
    """
    begins = "|".join(_BEGINNINGS[name] for name in sorted(types))
    words = "|".join(_WORDS[name] for name in sorted(types) if name in _WORDS)
    space = r"[\s\x1c-\x1f]*"
    return f"/{space}({begins})(?s:.*)/" + (f" | /{space}(?i:{words}){space}/" if words else "")


def _is_plain(schema: Any) -> bool:
    """Whether it sets no conditions."""
    return schema is True or set(schema) <= _PLAIN


def _without_strings(schema: Any) -> Any:
    return {"allOf": [schema, {"type": ["null", "boolean", "number", "array", "object"]}]}


def _by_type(schema: dict[str, Any]) -> list[Any]:
    """A schema of several types as one for each."""
    parts = []
    for name in schema["type"]:
        kind = "number" if name == "integer" else name
        part = {
            key: value for key, value in schema.items() if ABOUT.get(key, kind) == kind and key not in ("enum", "const")
        }
        if (values := listed_values(schema)) is not None:
            part["enum"] = [value for value in values if value_type(value) == kind]
        if part.get("enum") != []:
            parts.append({**part, "type": name})
    return parts
