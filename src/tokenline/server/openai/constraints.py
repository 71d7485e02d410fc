"""Wire in: what the answer must be, under all the names that servers of this protocol have for it.

OpenAI says `response_format`; vLLM `structured_outputs`, and before it `guided_…`; llama.cpp `json_schema` and
`grammar`; SGLang `regex` and `ebnf`; Ollama `format`; older clients `json_mode`. One request has at most one of them.
Which of what they ask for can be enforced, the grammar room says.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tokenline.fields import FieldError, Path, shown
from tokenline.grammar.spec import Choice, Grammar, JsonSchema, Regex
from tokenline.server.openai.wire import GenerationBody
from tokenline.service.request import OutputFormat

Found = tuple[OutputFormat, Path]  # what is asked for, and where it stands

ANY_OBJECT = {"type": "object"}
FORMATS = '"text", "json_object", "json_schema", "regex" or "grammar"'
FIELDS = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
    "json_schema", "regex", "grammar", "ebnf", "json_mode", "format",
)  # fmt: skip
STRUCTURED_OUTPUTS = ("json", "regex", "choice", "grammar", "json_object")
_WRAPPER = {"name", "description", "schema", "strict"}  # what OpenAI puts around a schema


def output_format(body: GenerationBody) -> tuple[OutputFormat | None, Path]:
    """What the answer must be (None: any text), and the place to name where that cannot be. Raises FieldError."""
    found = [one for one in (_response_format(body.response_format), *_named(body)) if one is not None]
    if len(found) > 1:
        raise FieldError(found[1][1], "cannot be combined with ", found[0][1], ".")
    return found[0] if found else (None, ("response_format",))


def _named(body: GenerationBody) -> list[Found | None]:
    """From all fields but `response_format`."""
    asked: dict[Path, Any] = {(name,): getattr(body, name) for name in FIELDS}
    for name, value in (body.structured_outputs or {}).items():
        if value is None or value is False:
            continue  # vLLM's own client sends all of its keys
        place = ("structured_outputs", name)
        if name not in STRUCTURED_OUTPUTS:
            known = ", ".join(STRUCTURED_OUTPUTS)
            raise FieldError(place, f"is not supported; one of {known} is.", code="unsupported_parameter")
        asked[place] = value
    return [
        _READERS[str(place[-1]).removeprefix("guided_")](place, value)
        for place, value in asked.items()
        if value is not None
    ]


def _response_format(chosen: Mapping[str, Any] | None) -> Found | None:
    place = ("response_format",)
    if chosen is None:
        return None
    kind = chosen.get("type")
    schema = _schema_of(chosen)
    if kind == "text":
        if schema is not None:
            raise FieldError(schema[1], "needs ", (*place, "type"), ': "json_schema".')
        return None
    if kind in ("json_object", "json"):
        return (JsonSchema(ANY_OBJECT), place) if schema is None else schema
    if kind == "json_schema":
        if schema is None:
            raise _wrong((*place, "json_schema", "schema"), "an object (a JSON schema)", None)
        return schema
    if kind in ("regex", "grammar"):
        names = (kind, "value", "pattern") if kind == "regex" else (kind, "value")
        name = next((name for name in names if chosen.get(name) is not None), kind)
        return _READERS[kind]((*place, name), chosen.get(name))
    raise FieldError((*place, "type"), f"must be {FORMATS}; got {shown(kind)}.")


def _schema_of(chosen: Mapping[str, Any]) -> Found | None:
    """The schema in a `response_format`: where OpenAI has it, in `schema` (llama.cpp) or in `value` (TGI).

    Without `strict: true` it is lenient, as OpenAI's is.
    """
    place = ("response_format",)
    wrapped = chosen.get("json_schema")
    if wrapped is not None:
        if not isinstance(wrapped, dict) or wrapped.get("schema") is None:
            raise _wrong((*place, "json_schema", "schema"), "an object (a JSON schema)", None)
        return _json((*place, "json_schema", "schema"), wrapped["schema"], lenient=wrapped.get("strict") is not True)
    for name in ("schema", "value"):
        if chosen.get(name) is not None and str(chosen.get("type")) != "regex":
            return _json((*place, name), chosen[name], lenient=chosen.get("strict") is not True)
    return None


def _json(place: Path, value: Any, *, lenient: bool = False) -> Found:
    """A schema: an object, or (SGLang) JSON text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise FieldError(place, f"is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise _wrong(place, "an object (a JSON schema)", value)
    return JsonSchema(value, lenient), place


def _json_schema(place: Path, value: Any) -> Found | None:
    """llama.cpp's: a schema; or one with OpenAI's name around it."""
    if value == "":
        return None
    if isinstance(value, dict) and isinstance(value.get("schema"), dict) and value.keys() <= _WRAPPER:
        return _json((*place, "schema"), value["schema"])
    return _json(place, value)


def _switch(place: Path, value: Any) -> Found | None:
    if not isinstance(value, bool):
        raise _wrong(place, "true or false", value)
    return (JsonSchema(ANY_OBJECT), place) if value else None


def _format(place: Path, value: Any) -> Found | None:
    """Ollama's: "json", or a schema."""
    if value == "":
        return None
    if value == "json":
        return JsonSchema(ANY_OBJECT), place
    if not isinstance(value, dict):
        raise _wrong(place, '"json" or an object (a JSON schema)', value)
    return _json(place, value)


def _choice(place: Path, value: Any) -> Found:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise _wrong(place, "a non-empty array of strings", value)
    return Choice(tuple(value)), place


def _text(make: Callable[[str], OutputFormat]) -> Callable[[Path, Any], Found | None]:
    def read(place: Path, value: Any) -> Found | None:
        if not isinstance(value, str):
            raise _wrong(place, "a string", value)
        if value == "" and len(place) == 1 and not str(place[0]).startswith("guided_"):
            return None  # llama.cpp's default
        return make(value), place

    return read


def _grammar(place: Path, value: Any) -> Found | None:
    """GBNF or Lark; or, in TGI's way, an object that says what it is."""
    if isinstance(value, dict) and "type" in value:
        kind = value["type"]
        if kind in ("json", "json_object", "json_schema") and value.get("value") is not None:
            return _json((*place, "value"), value["value"])
        if kind == "regex":
            return _text(Regex)((*place, "value"), value.get("value"))
        raise FieldError((*place, "type"), f'must be "json" or "regex"; got {shown(kind)}.')
    return _text(Grammar)(place, value)


_READERS: Mapping[str, Callable[[Path, Any], Found | None]] = {
    "json": _json,
    "regex": _text(Regex),
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _switch,
    "ebnf": _text(Grammar),
    "json_schema": _json_schema,
    "json_mode": _switch,
    "format": _format,
}


def _wrong(place: Path, accepted: str, given: Any) -> FieldError:
    return FieldError(place, f"must be {accepted}; got {shown(given)}.", code="invalid_type")
