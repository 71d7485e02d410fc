"""Tool calls and tools as text, for templates that write no calls or show no tools.

The words that are added count as the template's own: control tokens in them are control tokens.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenline.render.needs import CallStyle, TemplateNeeds
from tokenline.render.provenance import concat, join, literal
from tokenline.render.traced_json import dump

_EXAMPLE: Mapping[str, Any] = {"name": literal("FUNCTION_NAME"), "arguments": {literal("ARGUMENT"): literal("VALUE")}}


def with_calls(content: Any, calls: Sequence[Mapping[str, Any]], style: CallStyle) -> Any:
    """A message's content with the calls behind it; their arguments are objects."""
    text = calls_text([call["function"] for call in calls], style)
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return concat([content, literal("\n"), text]) if content and style is CallStyle.TAGGED else concat([content, text])


def calls_text(functions: Sequence[Mapping[str, Any]], style: CallStyle) -> str:
    """Calls, each with `name` and `arguments`, in a format that the model knows and a parser reads."""
    if style is CallStyle.PYTHONIC:
        return concat(
            [
                literal("<|tool_call_start|>["),
                join(", ", [*map(_python_call, functions)]),
                literal("]<|tool_call_end|>"),
            ]
        )
    named = [{literal(key): function[key] for key in ("name", "arguments")} for function in functions]
    if style is CallStyle.LISTED:
        return concat([literal("<|tool_call|>"), dump(named)])
    return join("\n", [concat([literal("<tool_call>\n"), dump(call), literal("\n</tool_call>")]) for call in named])


def _python_call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if all(re.fullmatch(r"[^\W\d]\w*", key) for key in arguments):
        inside = join(", ", [concat([key, literal("="), _python(value)]) for key, value in arguments.items()])
    else:  # names that Python has no way to write
        inside = concat([literal("**"), _python(arguments)])
    return concat([function["name"], literal("("), inside, literal(")")])


def _python(value: Any) -> str:
    """A JSON value as Python, with strings in double quotes."""
    if isinstance(value, str):
        return dump(value)
    if isinstance(value, Mapping):
        members = [concat([_python(key), literal(": "), _python(item)]) for key, item in value.items()]
        return concat([literal("{"), join(", ", members), literal("}")])
    if isinstance(value, list):
        return concat([literal("["), join(", ", [_python(item) for item in value]), literal("]")])
    return str(value)  # True, False, None and numbers, traced or not


def tools_text(tools: Sequence[Any], needs: TemplateNeeds) -> str:
    """The tools and how to call them, for the system message of a template that does not show tools."""
    example = literal(needs.call_example) if needs.call_example else calls_text([_EXAMPLE], needs.calls)
    return concat(
        [
            literal("# Tools\n\nYou may call one or more of these functions:\n\n"),
            join("\n", [dump(tool) for tool in tools]),
            literal("\n\nTo call a function, answer in exactly this format:\n\n"),
            example,
        ]
    )
