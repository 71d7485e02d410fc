"""Prepared schemas in the library's notation, and which place of the client's JSON is to blame where it refuses one."""

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.errors import ConstraintError, impossible, unsupported
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_values import REFERENCE, children
from tokenline.grammar.vocabulary import ABOUT, NAMED, ONE

# At most one line break in a place, and behind it at most what 32 levels of four columns need: a small model otherwise
# writes white space until its tokens run out.
WHITE_SPACE = r"[ \t]{1,8}|[ \t]?\r?\n[ \t]{0,128}"
_SHORT_ESCAPES = 'nrbtf\\"'
MAX_TRIES, MAX_TIME_S = 100, 0.5  # compilations to find the place that is to blame

_SAID = (  # what the library's messages begin with or contain, and what it means
    ("panic", "cannot be enforced: the grammar library fails at it"),
    ("min/maxProperties only", "cannot be enforced: properties can be counted only where all listed ones are required"),
    ("are not disjoint", "cannot be enforced: two of its expressions may match the same name"),
    ("if regexes are disjoint", "cannot be enforced: two of its expressions may match the same name"),
    ("regex is empty", "cannot be enforced: its expressions and lengths are too complicated together"),
    ("regex parse error", "cannot be enforced: it is beyond what can be written as an expression"),
    ("range: min=", "cannot be enforced: its bounds are out of range"),
    ("circular references", "cannot be enforced: it refers to itself beside other keywords"),
    ("stack level exceeded", "cannot be enforced: it combines itself with itself"),
    ("too large", "is too large to be enforced"),
    ("too big", "is too large to be enforced"),
    ("too many", "is too large to be enforced"),
    ("fuel", "is too large to be enforced"),
)


def json_rule(prepared: Any, schemas: Schemas) -> str:
    """What stands for a value of this schema in a rule."""
    return "%json " + json.dumps({"x-guidance": _options(schemas), **_rooted(prepared, schemas.definitions)})


def _options(schemas: Schemas) -> dict[str, Any]:
    options: dict[str, Any] = {"whitespace_pattern": WHITE_SPACE}
    if schemas.escapes:
        options["json_allow_general_unicode_escapes"] = True
    else:
        options["json_allowed_escapes"] = _SHORT_ESCAPES
    return options


def _rooted(prepared: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    root = dict(prepared) if isinstance(prepared, dict) else {} if prepared else {"enum": []}
    return {**root, "$defs": dict(definitions)} if definitions else root


def blame(prepared: Any, schemas: Schemas, accepts: Callable[[str], str], message: str) -> ConstraintError:
    """The error of a schema that the library has refused with this message, at the innermost place that it refuses.

    accepts: what the library says of a grammar; "" if nothing.
    """
    search = _Search(schemas, accepts)
    node, path, keyword = search.innermost(prepared, message)
    message = search.said(node) or message
    made = impossible if _no_value(message) else unsupported
    return made(in_words(message), *path, *([keyword] if keyword else []))


def in_words(message: str) -> str:
    """What the library says of a grammar, as an error says it."""
    line = re.sub(r"^(at [\d()]+: )?(failed to compile JSON schema: )?", "", message.strip().split("\n")[0]).rstrip(
        ".:"
    )
    if _no_value(line):
        line = line.removeprefix("Unsatisfiable schema: ")
        return f"cannot be fulfilled by any value ({_shortened(line)})."
    for sign, meaning in _SAID:
        if sign in line:
            return meaning + "."
    return f"cannot be enforced ({_shortened(line)})."


def _shortened(text: str) -> str:
    return text if len(text) <= 150 else text[:147] + "..."


def _no_value(message: str) -> bool:
    return "nsatisfiable" in message


class _Search:
    def __init__(self, schemas: Schemas, accepts: Callable[[str], str]) -> None:
        self._schemas = schemas
        self._accepts = accepts
        self._left = MAX_TRIES
        self._until = time.monotonic() + MAX_TIME_S
        self._seen: set[int] = set()

    def said(self, node: Any) -> str:
        if self._is_over:
            return ""
        self._left -= 1
        return self._accepts(f"start: {json_rule(node, self._schemas)}")

    @property
    def _is_over(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._until

    def innermost(self, node: Any, message: str) -> tuple[Any, Path, str | None]:
        path: Path = ()
        while True:
            self._seen.add(id(node))
            path = self._schemas.places.get(id(node), path)
            inner = next((part for part in self._parts(node, _no_value(message)) if self._refused(part, message)), None)
            if inner is None:
                return node, path, self._keyword(node)
            node = inner

    def _refused(self, part: Any, message: str) -> bool:
        said = self.said(part)
        return bool(said) and _no_value(said) == _no_value(message)

    def _parts(self, node: Any, no_value: bool) -> list[Any]:
        """The schemas in this one; of a schema that no value fulfils, those that a value must fulfil."""
        if not isinstance(node, dict):
            return []
        parts = [
            inner
            for holder, key, inner in children(node)
            if not no_value or key in node.get("required", ()) or holder is node.get("allOf") or "anyOf" in node
        ]
        if "$ref" in node:
            parts.append(self._schemas.definitions.get(node["$ref"].removeprefix(REFERENCE)))
        return [part for part in parts if isinstance(part, dict) and id(part) not in self._seen]

    def _keyword(self, node: Any) -> str | None:
        """The keyword without which the library would take the schema; of several, the one that is least."""
        keywords = [keyword for keyword in node if keyword != "type"] if isinstance(node, dict) else []
        if len(keywords) == 1:
            return keywords[0]
        for keyword in sorted(keywords, key=lambda keyword: ABOUT.get(keyword) is None or keyword in ONE + NAMED):
            rest = {key: value for key, value in node.items() if key != keyword}
            if not self.said(rest) and not self._is_over:
                return keyword
        return None
