"""Which grammar an answer must hold to: `response_format`, forced or strict tools, and vLLM's guided decoding.

One request has at most one of them. Compiling can take long, so it is done in a thread, before anything is generated;
what cannot be enforced is a 400 that names the field.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tokenline.engine.request import Constraint
from tokenline.parse.constrain import Constrainer, ConstraintError
from tokenline.parse.registry import answer_begins_after
from tokenline.render.line import Line
from tokenline.server.errors import ApiError, invalid, shown
from tokenline.server.parsers import ParserChoice, asks_for_tools, named_function
from tokenline.server.wire import ChatBody, GenerationBody

MakeConstraint = Callable[[], Constraint]
Compile = Callable[[Constrainer, str], MakeConstraint]  # the text up to which the answer is free


async def chat_constraint(
    constrainer: Constrainer, choice: ParserChoice, body: ChatBody, line: Line
) -> MakeConstraint | None:
    """The constraint of a chat answer; None if it is free. Raises a 400."""
    wanted = _output(body)
    tools = _tools(choice, body)
    if tools is not None:
        if wanted is not None:
            raise invalid(f"'{wanted[0]}' cannot be combined with tools that are forced or strict.", wanted[0])
        wanted = tools
    # Reasoning that the prompt has opened is free; the grammar begins with the answer.
    begins_after = answer_begins_after(choice.reasoning_parser, choice.tool_parser, line.text)
    return None if wanted is None else await _compiled(constrainer, body, wanted, begins_after)


async def completion_constraint(constrainer: Constrainer, body: GenerationBody) -> MakeConstraint | None:
    """The constraint of a text completion; None if it is free. Raises a 400."""
    wanted = _output(body)
    return None if wanted is None else await _compiled(constrainer, body, wanted, "")


async def _compiled(
    constrainer: Constrainer, body: GenerationBody, wanted: tuple[str, Compile], begins_after: str
) -> MakeConstraint:
    param, compile_ = wanted
    if body.ignore_eos:
        raise invalid(
            f"'ignore_eos' cannot be combined with '{param}', which says where the answer ends.", "ignore_eos"
        )
    try:
        return await asyncio.to_thread(compile_, constrainer, begins_after)
    except ConstraintError as error:
        raise _unsupported(param, str(error)) from None


def _output(body: GenerationBody) -> tuple[str, Compile] | None:
    """What `response_format` and the guided fields ask for, with the name of the field."""
    found: list[tuple[str, Compile]] = []
    if (from_format := _response_format(body.response_format)) is not None:
        found.append(from_format)
    guided = {f"guided_{kind}": getattr(body, f"guided_{kind}") for kind in ("json", "regex", "choice", "grammar")}
    if body.structured_outputs is not None:
        known = ("json", "regex", "choice", "grammar", "json_object")
        for kind, value in body.structured_outputs.items():
            if kind not in known:
                raise invalid(
                    f"'structured_outputs.{kind}' is not supported; one of {', '.join(known)} is.",
                    f"structured_outputs.{kind}",
                    code="unsupported_parameter",
                )
            guided[f"structured_outputs.{kind}"] = value
    found += [
        (name, _guided(name, value)) for name, value in guided.items() if value is not None and value is not False
    ]
    if len(found) > 1:
        raise invalid(f"'{found[0][0]}' and '{found[1][0]}' cannot be combined.", found[1][0])
    return found[0] if found else None


def _response_format(chosen: Mapping[str, Any] | None) -> tuple[str, Compile] | None:
    if chosen is None or chosen == {"type": "text"}:
        return None
    kind = chosen.get("type")
    if kind == "json_object":
        return "response_format", lambda constrainer, after: constrainer.json_object(begins_after=after)
    if kind != "json_schema":
        raise invalid(
            f'\'response_format.type\' must be "text", "json_object" or "json_schema"; got {shown(kind)}.',
            "response_format.type",
        )
    named = chosen.get("json_schema")
    param = "response_format.json_schema"
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise invalid(f"'{param}.schema' must be an object (a JSON schema).", f"{param}.schema", code="invalid_type")
    schema = named["schema"]
    return f"{param}.schema", lambda constrainer, after: constrainer.json_schema(schema, begins_after=after)


def _guided(name: str, value: Any) -> Compile:
    kind = name.removeprefix("guided_").removeprefix("structured_outputs.")
    if kind == "json_object":
        _must(value is True, name, "true or false", value)
        return lambda constrainer, after: constrainer.json_object(begins_after=after)
    if kind == "json":
        _must(isinstance(value, dict), name, "an object (a JSON schema)", value)
        return lambda constrainer, after: constrainer.json_schema(value, begins_after=after)
    if kind == "choice":
        texts = isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
        _must(texts, name, "a non-empty array of strings", value)
        return lambda constrainer, after: constrainer.choice(value, begins_after=after)
    _must(isinstance(value, str), name, "a string", value)
    if kind == "regex":
        return lambda constrainer, after: constrainer.regex(value, begins_after=after)
    return lambda constrainer, after: constrainer.grammar(value, begins_after=after)


def _tools(choice: ParserChoice, body: ChatBody) -> tuple[str, Compile] | None:
    """What a forced `tool_choice` or strict tools ask for."""
    if not asks_for_tools(body):
        return None
    tools: list[dict[str, Any]] = body.tools or []
    name = named_function(body.tool_choice)
    if name is not None:
        tool = next((tool for tool in tools if tool["function"]["name"] == name), None)
        if tool is None:
            raise invalid(f"'tool_choice' names the function {shown(name)}, which 'tools' lacks.", "tool_choice")
        return "tool_choice", lambda constrainer, after: constrainer.named_call(tool, begins_after=after)
    if body.tool_choice == "required":
        parallel = body.parallel_tool_calls is not False
        return (
            "tool_choice",
            lambda constrainer, after: constrainer.required_calls(tools, parallel=parallel, begins_after=after),
        )
    parser = choice.tool_parser
    if parser is not None and any(tool["function"].get("strict") for tool in tools):
        return "tools", lambda constrainer, after: constrainer.strict_tools(tools, parser, begins_after=after)
    return None


def _must(holds: bool, param: str, accepted: str, given: Any) -> None:
    if not holds:
        raise invalid(f"'{param}' must be {accepted}; got {shown(given)}.", param, code="invalid_type")


def _unsupported(param: str, reason: str) -> ApiError:
    return invalid(f"'{param}' cannot be enforced: {reason}.", param, code="unsupported_value")
