"""Messages put where a template shows them: joined, split, or under another role. What they say is never changed.

A template may take one call a message, no text beside calls, one system message, no results of tools. Each function
here mends one such thing; `normalize` knows which are needed.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from tokenline.render.provenance import concat, join, literal
from tokenline.render.traced_json import with_members


class Turn(NamedTuple):
    """A message for the template."""

    message: dict[str, Any]
    source: int  # index of the request's message that it comes from


def join_systems(turns: Sequence[Turn]) -> list[Turn]:
    """The system messages at the start as one."""
    count = next((i for i, turn in enumerate(turns) if turn.message["role"] not in ("system", "developer")), len(turns))
    if count < 2:
        return list(turns)
    contents = [turn.message["content"] for turn in turns[:count]]
    if all(isinstance(content, str) for content in contents):
        content: Any = join("\n\n", contents)
    else:
        content = [part for content in contents for part in as_parts(content)]
    first = turns[0].message
    return [Turn(with_members(first, {**first, "content": content}), turns[0].source), *turns[count:]]


def systems_as_user(turns: Sequence[Turn], sources: Set[int]) -> list[Turn]:
    """System messages, those of `sources`, before the text of the user message that follows, or as one."""
    result: list[Turn] = []
    texts: list[str] = []
    for index, turn in enumerate(turns):
        message = turn.message
        if turn.source in sources:
            content = message["content"]
            texts.append(as_text(content))
            if index + 1 < len(turns) and (
                turns[index + 1].source in sources or turns[index + 1].message["role"] == "user"
            ):
                continue
            message = {"role": literal("user"), "content": join("\n\n", texts)}
        elif texts:
            message = _with_text(message, join("\n\n", texts), first=True)
        texts = []
        result.append(Turn(message, turn.source))
    return result


def text_before_calls(turns: Sequence[Turn], no_content: Mapping[str, Any], *, only_with_thought: bool) -> list[Turn]:
    """The text beside calls as a message of its own before them. `no_content`: what a message has that only calls."""
    result: list[Turn] = []
    for turn in turns:
        message = turn.message
        if message.get("tool_calls") and message.get("content") and (not only_with_thought or "thinking" in message):
            content = message["content"]
            result.append(Turn(with_members(message, {"role": message["role"], "content": content}), turn.source))
            message = with_members(message, {**_without(message, "content"), **no_content})
        result.append(Turn(message, turn.source))
    return result


def mark_text_beside_calls(turns: Sequence[Turn]) -> tuple[list[Turn], dict[str, Any]]:
    """A mark in the name of the first call of each message that has text as well; and the texts by their marks."""
    result: list[Turn] = []
    texts: dict[str, Any] = {}
    for turn in turns:
        message = turn.message
        if (calls := message.get("tool_calls")) and (content := message.get("content")):
            mark = f"\ue000{len(texts)}\ue001"  # for private use: no text has it by chance
            texts[mark] = as_text(content)
            function = calls[0]["function"]
            named = with_members(function, {**function, "name": concat([literal(mark), function["name"]])})
            first = with_members(calls[0], {**calls[0], "function": named})
            message = with_members(message, {**message, "tool_calls": [first, *calls[1:]]})
        result.append(Turn(message, turn.source))
    return result, texts


def one_call_each(turns: Sequence[Turn], no_content: Mapping[str, Any]) -> list[Turn]:
    """Each call in a message of its own, followed by its result. `no_content` as above."""
    result: list[Turn] = []
    at = 0
    while at < len(turns):
        turn = turns[at]
        calls = turn.message.get("tool_calls") or []
        at += 1
        if len(calls) < 2:
            result.append(turn)
            continue
        outcomes = []
        while at < len(turns) and turns[at].message["role"] == "tool":
            outcomes.append(turns[at])
            at += 1
        for index, call in enumerate(calls):
            message = turn.message
            rest = message if index == 0 else {"role": message["role"], **no_content}
            result.append(Turn(with_members(message, {**rest, "tool_calls": [call]}), turn.source))
            outcome = _outcome(call, calls, outcomes)
            if outcome is not None:
                outcomes.remove(outcome)
                result.append(outcome)
        result += outcomes
    return result


def results_as_user(turns: Sequence[Turn]) -> list[Turn]:
    """What tools returned as user messages, those in a row as one."""
    result: list[Turn] = []
    was_result = False
    for turn in turns:
        message = turn.message
        is_result = message["role"] == "tool"
        if is_result:
            content = message["content"]
            text = as_text(content)
            text = concat([literal("<tool_response>\n"), text, literal("\n</tool_response>")])
            if was_result:
                previous = result.pop()
                text = concat([previous.message["content"], literal("\n"), text])
            turn = Turn(with_members(message, {"role": literal("user"), "content": text}), turn.source)
        result.append(turn)
        was_result = is_result
    return result


def with_tools(turns: Sequence[Turn], text: str, *, system: bool) -> list[Turn]:
    """A text about tools at the end of the system message, or, if there can be none, before the first user message."""
    if not system:
        at = next((i for i, turn in enumerate(turns) if turn.message["role"] == "user"), 0)
        message = turns[at].message
        return [*turns[:at], turns[at]._replace(message=_with_text(message, text, first=True)), *turns[at + 1 :]]
    if turns and turns[0].message["role"] in ("system", "developer"):
        return [turns[0]._replace(message=_with_text(turns[0].message, text, first=False)), *turns[1:]]
    return [Turn({"role": literal("system"), "content": text}, 0), *turns]


def with_command(turns: Sequence[Turn], command: str) -> list[Turn]:
    """A command for the template behind the last user message."""
    at = max((i for i, turn in enumerate(turns) if turn.message["role"] == "user"), default=None)
    if at is None:
        return list(turns)
    message = _with_text(turns[at].message, literal(command), first=False)
    return [*turns[:at], turns[at]._replace(message=message), *turns[at + 1 :]]


def as_parts(content: Any) -> list[Any]:
    """A content as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def as_text(content: Any) -> str:
    """A content as one text."""
    return content if isinstance(content, str) else join("\n", [part["text"] for part in content])


def _with_text(message: Mapping[str, Any], text: str, *, first: bool) -> dict[str, Any]:
    content = message.get("content") or ""
    if isinstance(content, str):
        pieces = [text, content] if first else [content, text]
        content = concat([pieces[0], literal("\n\n"), pieces[1]]) if all(pieces) else text
    else:
        part = {"type": "text", "text": concat([text, literal("\n\n")] if first else [literal("\n\n"), text])}
        content = [part, *content] if first else [*content, part]
    return with_members(message, {**message, "content": content})


def _outcome(call: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], outcomes: Sequence[Turn]) -> Turn | None:
    """The result of a call: by its id, else the first that names no other call."""
    ids = [other.get("id") for other in calls]
    for turn in outcomes:
        if call.get("id") is not None and turn.message.get("tool_call_id") == call["id"]:
            return turn
    return next((turn for turn in outcomes if turn.message.get("tool_call_id") not in ids), None)


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}
