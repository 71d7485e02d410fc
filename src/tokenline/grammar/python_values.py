"""Calls as Python, `name(key=value, ..)`, with values that are written as JSON, which the reader takes as well.

JSON escapes of strings mean the same in Python, except halves of surrogate pairs and `\\/`, which are not let through.
"""

from collections.abc import Sequence
from typing import Any

from tokenline.grammar.errors import unsupported
from tokenline.grammar.notation import quoted
from tokenline.grammar.rules import Rules
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import json_rule
from tokenline.grammar.schema_values import resolved
from tokenline.grammar.spec import Function
from tokenline.grammar.tools import place

_KNOWN = {"type", "properties", "required", "additionalProperties"}


def python_calls(
    functions: Sequence[Function], prepared: Sequence[Any], schemas: Schemas, rules: Rules
) -> list[tuple[str, str]]:
    """For each function its name, and the rule of its arguments with the closing bracket."""
    schemas.escapes = False
    rules.add("COMMA", "/,[ \\t\\r\\n]{0,16}/")
    rules.add("KEY", "/[A-Za-z_][A-Za-z0-9_]{0,63}/")
    rules.add("python_any", json_rule(True, schemas))
    return [
        (function.name, f'{_arguments(index, part, schemas, rules)} ")"')
        for index, (function, part) in enumerate(zip(functions, prepared, strict=True))
    ]


def _arguments(index: int, prepared: Any, schemas: Schemas, rules: Rules) -> str:
    schema = resolved(prepared, schemas.definitions)
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required = schema.get("required", [])
    others = schema.get("additionalProperties", True)
    if set(schema) - _KNOWN:
        raise unsupported("can be enforced in this format only by 'properties' and 'required'.", *place(index))
    properties |= {name: others for name in required if name not in properties}
    names = [name for name, part in properties.items() if part is not False]
    for name in names:
        if not name.isidentifier():
            raise unsupported("has a name that cannot be written in this format.", *place(index), "properties", name)
    # `first`: nothing is written yet, so no comma; `next`: something is.
    end = len(names)
    free = others is not False
    other = ""
    if free:
        taken = " | ".join(map(quoted, names))
        key = rules.add(f"KEY_{index}", f"KEY & ~({taken})") if names else "KEY"
        value = "python_any" if others is True else rules.add(f"other_{index}", json_rule(others, schemas))
        other = f'{key} "=" {value}'
    rules.add(f"first_{index}_{end}", f"({other} (COMMA {other})*)?" if free else '""')
    rules.add(f"next_{index}_{end}", f"(COMMA {other})*" if free else '""')
    for number in reversed(range(end)):
        name = names[number]
        value = rules.add(f"value_{index}_{number}", json_rule(properties[name], schemas))
        written = f"{quoted(name + '=')} {value} next_{index}_{number + 1}"
        rest = "" if name in required else f" | {{}}_{index}_{number + 1}"
        rules.add(f"first_{index}_{number}", written + rest.format("first"))
        rules.add(f"next_{index}_{number}", f"COMMA {written}" + rest.format("next"))
    return f"first_{index}_0"
