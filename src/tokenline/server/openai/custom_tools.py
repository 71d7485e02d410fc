"""OpenAI's custom tools: tools whose input is free text. Rewritten both ways here; nobody else knows them.

In: such a tool is shown to the model as a function with one string, `input`, and calls of it in the history likewise.
Out: the string in a call's arguments is the `input` of a custom call, unescaped as it comes.

A `format` of syntax "regex" becomes a pattern of the string: it holds where the call is forced. Of any other format the
tool's description tells the model. Source: the types of the official client, `openai.types.chat`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenline.fields import FieldError, Path, shown

INPUT = "input"
_FIRST = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Whole characters of a JSON string: no half escapes, and no half of a surrogate pair.
_CHARACTERS = re.compile(
    r"(?:[^\"\\]"
    r"|\\[^u]"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F]))"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*"
)
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")


def with_functions(messages: Any, tools: Any) -> tuple[Any, Any, dict[Path, Path]]:
    """The messages and tools with functions for custom tools, and where what was rewritten stands. Raises FieldError
    for what is wrong with a custom tool itself; the rest is `render`'s to check.
    """
    moved: dict[Path, Path] = {}
    if isinstance(tools, list) and any(_is_custom(tool) for tool in tools):
        tools = [_function(tool, ("tools", index), moved) if _is_custom(tool) else tool
                 for index, tool in enumerate(tools)]  # fmt: skip
    if isinstance(messages, list) and any(_has_custom_calls(message) for message in messages):
        messages = [
            _with_function_calls(message, ("messages", index), moved) if _has_custom_calls(message) else message
            for index, message in enumerate(messages)
        ]
    return messages, tools, moved


def custom_names(tools: Any) -> frozenset[str]:
    """The names of the custom tools of a request that has been read."""
    return frozenset(tool["custom"]["name"] for tool in tools or () if _is_custom(tool))


def _is_custom(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "custom"


def _has_custom_calls(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return isinstance(calls, list) and any(_is_custom(call) for call in calls)


def _function(tool: Mapping[str, Any], place: Path, moved: dict[Path, Path]) -> dict[str, Any]:
    place = (*place, "custom")
    custom = _object(tool.get("custom"), place)
    name = _string(custom.get("name"), (*place, "name"))
    description = custom.get("description")
    if description is not None:
        _string(description, (*place, "description"))
    pattern, told = _format(custom.get("format"), (*place, "format"))
    text: dict[str, Any] = {"type": "string"} | ({"pattern": pattern} if pattern is not None else {})
    moved[(*place[:-1], "function", "parameters")] = (*place, "format")
    moved[(*place[:-1], "function")] = place
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "\n\n".join(part for part in (description, told) if part),
            "parameters": {
                "type": "object",
                "properties": {INPUT: text},
                "required": [INPUT],
                "additionalProperties": False,
            },
        },
    }


def _format(form: Any, place: Path) -> tuple[str | None, str]:
    """The pattern that the input must match, if it can be had, and what the model is told of it."""
    if form is None:
        return None, ""
    kind = _object(form, place).get("type")
    if kind == "text":
        return None, ""
    if kind != "grammar":
        raise FieldError((*place, "type"), f'must be "text" or "grammar"; got {shown(kind)}.')
    # The API's reference has these two in `grammar`; its guide has them beside `type`.
    inside = (*place, "grammar") if form.get("grammar") is not None else place
    grammar = _object(form.get("grammar"), inside) if inside != place else form
    syntax, definition = grammar.get("syntax"), _string(grammar.get("definition"), (*inside, "definition"))
    if syntax not in ("lark", "regex"):
        raise FieldError((*inside, "syntax"), f'must be "lark" or "regex"; got {shown(syntax)}.')
    if syntax == "lark":
        return None, f"The input must be derived from this Lark grammar:\n{definition}"
    return f"^(?:{definition})$", f"The input must match this regular expression: {definition}"


def _with_function_calls(message: Mapping[str, Any], place: Path, moved: dict[Path, Path]) -> dict[str, Any]:
    calls = [
        _function_call(call, (*place, "tool_calls", index), moved) if _is_custom(call) else call
        for index, call in enumerate(message["tool_calls"])
    ]
    return {**message, "tool_calls": calls}


def _function_call(call: Mapping[str, Any], place: Path, moved: dict[Path, Path]) -> dict[str, Any]:
    custom = _object(call.get("custom"), (*place, "custom"))
    text = _string(custom.get(INPUT), (*place, "custom", INPUT))
    moved[(*place, "function", "arguments")] = (*place, "custom", INPUT)
    moved[(*place, "function")] = (*place, "custom")
    function = {"name": custom.get("name"), "arguments": json.dumps({INPUT: text}, ensure_ascii=False)}
    return {**{key: value for key, value in call.items() if key != "custom"}, "type": "function", "function": function}


def _object(value: Any, place: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FieldError(place, f"must be an object; got {shown(value)}.", code="invalid_type")
    return value


def _string(value: Any, place: Path) -> str:
    if not isinstance(value, str):
        raise FieldError(place, f"must be a string; got {shown(value)}.", code="invalid_type")
    return value


class InputReader:
    """The input of one custom call, from the pieces of its arguments. Arguments of another form are the input
    themselves, so that nothing that the model said is lost.
    """

    def __init__(self) -> None:
        self._waiting = ""
        self._state = "before"  # "inside" the string, "behind" it

    def feed(self, arguments: str) -> str:
        """What these arguments add to the input."""
        if self._state == "behind":
            return ""
        self._waiting += arguments
        if self._state == "before":
            opening = _FIRST.match(self._waiting)
            if opening is None:
                return ""
            self._waiting = self._waiting[opening.end() :]
            self._state = "inside"
        characters = _CHARACTERS.match(self._waiting)
        assert characters is not None
        text, self._waiting = characters.group(), self._waiting[characters.end() :]
        if self._waiting.startswith('"'):
            self._state, self._waiting = "behind", ""
        return _unescaped(text)

    def finish(self) -> str:
        """The rest, where the arguments end."""
        if self._state != "before":
            return ""
        text, self._waiting = self._waiting, ""
        return "" if text.strip() == "{}" else text


def _unescaped(text: str) -> str:
    return _HALF.sub("\ufffd", _ESCAPE.sub(_character, text))


def _character(escape: re.Match[str]) -> str:
    try:
        return json.loads(f'"{escape.group()}"')
    except ValueError:  # JSON does not know it
        return escape.group()


def input_of(arguments: str) -> str:
    """The input of a whole call: the same as from its pieces."""
    reader = InputReader()
    return reader.feed(arguments) + reader.finish()
