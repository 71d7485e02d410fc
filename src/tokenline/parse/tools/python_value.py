"""Python literals as JSON: `{'a': True}` -> `{"a": true}`. For models that write calls, or values, as Python."""

import ast
import json

MAX_LENGTH = 1_000_000  # characters; the parser of Python is not made for more


def python_to_json(source: str) -> str:
    """JSON text of a literal; names `true`, `false` and `null` are taken as what they mean in JSON.

    Raises ValueError for anything that is no literal, or that JSON cannot say (bytes, infinity, keys that are lists).
    """
    if len(source) > MAX_LENGTH:
        raise ValueError("too long for a literal")
    try:
        return json.dumps(_value(ast.parse(source.strip(), mode="eval").body), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not a literal: {error}") from error


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return _text(value) if isinstance(value, str) else value
        case ast.Name(id="true" | "false" | "null" as name):
            return {"true": True, "false": False, "null": None}[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else +number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    value = _value(node) if node is not None else None
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) or (value is None and node is not None):
        return json.dumps(value)  # as json.dumps writes such keys
    raise ValueError("not a key")


def _text(value: str) -> str:
    """Half a surrogate pair can be written as an escape, but not sent as UTF-8."""
    return value.encode("utf-8", "replace").decode() if any("\ud800" <= c <= "\udfff" for c in value) else value
