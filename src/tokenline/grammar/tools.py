"""The arguments of tools as schemas, and forced calls: arguments alone, and lists of calls, as JSON without markers."""

from collections.abc import Sequence
from typing import Any

from tokenline.fields import Path
from tokenline.grammar.errors import ConstraintError, impossible, unsupported
from tokenline.grammar.limits import MAX_FUNCTIONS
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_values import resolved
from tokenline.grammar.spec import Function

_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def place(index: int) -> Path:
    """Where the parameters of a function stand in a request."""
    return ("tools", index, "function", "parameters")


def arguments(schemas: Schemas, function: Function, index: int) -> Any:
    """The prepared schema of a function's arguments: an object, whatever its schema leaves open."""
    given = _NOTHING if function.parameters in (None, {}) else function.parameters
    schemas.lenience.add(place(index), lenient=not function.strict)
    prepared = schemas.add(given, place(index))
    if prepared is False:
        raise impossible("cannot be fulfilled by any value.", *place(index))
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


def all_arguments(schemas: Schemas, functions: Sequence[Function], *, strict_only: bool, first: int = 0) -> list[Any]:
    """The prepared arguments of each function; any object for one that is not strict, if only those are meant.

    first: the index of the first function in the request's tools.
    """
    if not functions:
        raise ConstraintError(("tools",), "must have at least one function.")
    if len(functions) > MAX_FUNCTIONS:
        raise unsupported(f"has more than {MAX_FUNCTIONS} functions to choose from.", "tools")
    return [
        arguments(schemas, function, index) if function.strict or not strict_only else {"type": "object"}
        for index, function in enumerate(functions, first)
    ]


def required_calls(functions: Sequence[Function], prepared: Sequence[Any], *, parallel: bool) -> Any:
    """The schema of a list of calls, at least one; exactly one unless `parallel`. `prepared`: of their arguments."""
    calls = {"anyOf": [call(function.name, part) for function, part in zip(functions, prepared, strict=True)]}
    listed: dict[str, Any] = {"type": "array", "items": calls, "minItems": 1}
    if not parallel:
        listed["maxItems"] = 1
    return listed


def call(name: str, arguments: Any, name_key: str = "name", arguments_key: str = "parameters") -> dict[str, Any]:
    """The schema of one call. `arguments`: prepared. Without `name_key` the name is itself the key of the arguments."""
    if not name_key:
        return {"type": "object", "properties": {name: arguments}, "required": [name], "additionalProperties": False}
    return {
        "type": "object",
        "properties": {name_key: {"const": name}, arguments_key: arguments},
        "required": [name_key, arguments_key],
        "additionalProperties": False,
    }
