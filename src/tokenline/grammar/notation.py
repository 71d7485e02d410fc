"""Grammars as text: the library's Lark notation, and what clients write, GBNF (llama.cpp) or Lark."""

import json
import re
from collections.abc import Callable

from tokenline.grammar.errors import ConstraintError, unsupported
from tokenline.grammar.limits import MAX_BRACKETS, MAX_GBNF_RULES, MAX_GRAMMAR_LENGTH, MAX_LARK_RULES
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import json_rule

_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\b[^\n]*?(?<!:):(?!:=))")
_RULE = re.compile(r"(?m)^[ \t]*[?!]?[A-Za-z_][\w-]*[^:\n\"/]*:")
_JSON = re.compile(r"%json\b\s*")


def quoted(text: str) -> str:
    """A literal text in Lark notation."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def slashed(pattern: str) -> str:
    """An expression of `patterns` in Lark notation. It has slashes only as characters."""
    return "/" + pattern.replace("/", "\\/") + "/"


def lark(source: str, schemas: Callable[[], Schemas]) -> str:
    """A client's grammar in Lark notation. Raises ConstraintError. `schemas`: prepares a schema in it."""
    is_lark = _LARK.search(source) is not None
    most = MAX_LARK_RULES if is_lark else MAX_GBNF_RULES
    if len(source) > MAX_GRAMMAR_LENGTH:
        raise unsupported(f"is longer than {MAX_GRAMMAR_LENGTH:,} characters.")
    if len(_RULE.findall(source)) > most:
        raise unsupported(f"has more than {most:,} rules.")
    _check_brackets(source)
    if is_lark:
        return _with_prepared_schemas(source, schemas)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(source)
    except Exception as error:  # its own errors, and whatever else its reader meets
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ConstraintError((), f"is neither GBNF nor Lark: {reason}.") from None


def _check_brackets(source: str) -> None:
    depth = 0
    for character in source:
        if character in "([{":
            depth += 1
            if depth > MAX_BRACKETS:
                raise unsupported(f"has more than {MAX_BRACKETS} brackets in brackets.")
        elif character in ")]}":
            depth = max(0, depth - 1)


def _with_prepared_schemas(source: str, schemas: Callable[[], Schemas]) -> str:
    """The schemas in a grammar are held to what holds for all."""
    parts, at = [], 0
    while (found := _JSON.search(source, at)) is not None:
        parts.append(source[at : found.start()])
        try:
            schema, at = json.JSONDecoder().raw_decode(source, found.end())
        except ValueError as error:
            raise ConstraintError((), f"has '%json' without JSON behind it: {error}.") from None
        prepared = (these := schemas()).add(schema)
        these.finish()
        parts.append(json_rule(prepared, these))
    return "".join(parts) + source[at:]
