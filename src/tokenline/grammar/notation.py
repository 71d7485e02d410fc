"""Grammars as text: the library's Lark notation, and what clients write, GBNF (llama.cpp) or Lark."""

import json
import re

from tokenline.grammar.errors import ConstraintError

MAX_BYTES = 128 * 1024
MAX_RULES = 2_000
MAX_DEPTH = 50  # brackets in brackets
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:(?!:))")
_RULE = re.compile(r"(?m)^[ \t]*[?!]?[A-Za-z_][\w-]*[^:\n\"/]*(::=|:)")
_REPEATED = re.compile(r"\{\s*(\d+)?\s*(?:,\s*(\d+)?\s*)?\}|~\s*(\d+)(?:\.\.(\d+))?")
MAX_REPEAT = 2_000


def quoted(text: str) -> str:
    """A literal text in Lark notation."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def slashed(pattern: str) -> str:
    """An expression of `patterns` in Lark notation. It has slashes only as characters."""
    return "/" + pattern.replace("/", "\\/") + "/"


def lark(source: str) -> str:
    """A client's grammar in Lark notation. Raises ConstraintError."""
    if len(source) > MAX_BYTES:
        raise ConstraintError((), f"is longer than {MAX_BYTES:,} characters.", code="unsupported_value")
    if len(_RULE.findall(source)) > MAX_RULES:
        raise ConstraintError((), f"has more than {MAX_RULES:,} rules.", code="unsupported_value")
    _check_brackets(source)
    if _LARK.search(source):
        return source
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(source)
    except RecursionError:
        raise ConstraintError((), "is nested too deeply.", code="unsupported_value") from None
    except Exception as error:  # its own errors, and whatever else its reader meets
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ConstraintError((), f"is neither GBNF nor Lark: {reason}.") from None


def _check_brackets(source: str) -> None:
    depth = 0
    for character in source:
        if character in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ConstraintError((), f"has more than {MAX_DEPTH} brackets in brackets.")
        elif character in ")]}":
            depth = max(0, depth - 1)
