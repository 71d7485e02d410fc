"""Schemas against the values that they allow: what a compiler refuses, forbids in error, and lets through in error."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.grammar.drive import LAYOUTS, Encode, encode_bytes, is_allowed, spellings
from tests.grammar.kinds import KINDS
from tests.grammar.real_schemas import REAL, changed
from tests.sources import json_schema_suite
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import ConstraintSpec, JsonSchema


class Case(NamedTuple):
    name: str
    schema: Any
    values: list[tuple[Any, bool]]  # with whether they are valid


@dataclass
class Comparison:
    schemas: int = 0
    values: int = 0
    refused: list[str] = field(default_factory=list)
    too_tight: list[str] = field(default_factory=list)
    by_format: int = 0  # forbidden, since formats are enforced, which are annotations by default
    by_closing: int = 0  # forbidden, since objects are closed that do not say whether they are
    too_loose: list[str] = field(default_factory=list)
    # CPU time, which other work on the machine does not change
    compile_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)


def hand_written() -> list[Case]:
    return [
        Case(
            json.dumps(kind.schema)[:80],
            kind.schema,
            [(v, True) for v in kind.valid] + [(v, False) for v in kind.invalid],
        )
        for kind in KINDS
    ]


def official() -> Iterator[Case]:
    """The JSON-Schema-Test-Suite for draft 2020-12, what every implementation must do."""
    for file in sorted(json_schema_suite().glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            values = [(test["data"], test["valid"]) for test in group["tests"]]
            yield Case(f"{file.stem}: {group['description']}", group["schema"], values)


def real(changes: int = 40) -> Iterator[Case]:
    """Schemas as people send them; the package `jsonschema` says which values are valid."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    for case in REAL:
        validator = validator_for(case.schema, Draft202012Validator)(case.schema)
        assert validator.is_valid(case.value), case.name
        values = [case.value, *changed(case.value, changes)]
        yield Case(case.name, case.schema, [(value, validator.is_valid(value)) for value in values])


def compare(
    compiler: GrammarCompiler,
    cases: Iterable[Case],
    *,
    encode: Encode = encode_bytes,
    end: int = 256,
    most: int = 60,
    lenient: bool = False,
    leaving_open: GrammarCompiler | None = None,
) -> Comparison:
    """Walk each value in three layouts, in any order of members (at most `most` spellings).

    lenient: what cannot be enforced is left out. leaving_open: where `compiler` closes objects, one that does not.
    """
    found = Comparison()
    for case in cases:
        found.schemas += 1
        start = time.process_time()
        try:
            make = compiler.compile(ConstraintSpec(JsonSchema(case.schema, lenient)))
        except ConstraintError as error:
            found.refused.append(f"{case.name}: {error}")
            continue
        found.compile_s.append(time.process_time() - start)
        for value, valid in case.values:
            found.values += 1
            for layout in LAYOUTS:
                texts = spellings(value, layout, most)
                taken = any(_walked(make, text, encode, end, found.mask_s.append) for text in texts)
                if valid and not taken and _is_by_format(compiler, case.schema, texts[0], encode, end, lenient):
                    found.by_format += 1
                    break
                if valid and not taken and leaving_open is not None:
                    make_open = leaving_open.compile(ConstraintSpec(JsonSchema(case.schema, lenient)))
                    if any(_walked(make_open, text, encode, end, lambda _: None) for text in texts):
                        found.by_closing += 1
                        break
                if taken != valid:
                    (found.too_loose if taken else found.too_tight).append(f"{case.name}: {texts[0]}")
                    break
    return found


def _is_by_format(compiler: GrammarCompiler, schema: Any, text: str, encode: Encode, end: int, lenient: bool) -> bool:
    """Whether the text is forbidden by a format alone."""
    without = _without_formats(schema)
    if without == schema:
        return False
    make = compiler.compile(ConstraintSpec(JsonSchema(without, lenient)))
    return _walked(make, text, encode, end, lambda _: None)


def _without_formats(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_formats(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_formats(part) for key, part in schema.items() if not (key == "format" and isinstance(part, str))
    }


def _walked(make: Any, text: str, encode: Encode, end: int, took: Callable[[float], None]) -> bool:
    grammar = make()
    for token_id in [*encode(text), end]:
        start = time.process_time()
        allowed = is_allowed(grammar, token_id)
        took(time.process_time() - start)
        if not allowed:
            return False
        grammar.accept(token_id)
    return True
