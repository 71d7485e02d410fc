"""How a template is told to reason or not, and how much: found out once by trying its own variables.

Templates have many names for it: enable_thinking, thinking, thinking_budget, thinking_mode, reasoning_effort. A
variable is a switch if one of its values changes the opening of an answer; so variables that only keep or drop the
reasoning of earlier turns are none.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenline.fields import Path, shown
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.provenance import literal
from tokenline.render.template import ChatTemplate

_OFF = ("none", "off", "disabled", "disable", "no_think", "nothink", "no", "false")
_ON = ("on", "enabled", "enable", "think", "yes", "true")
_COMMON_EFFORTS = frozenset({"low", "medium", "high"})
# marks around reasoning, and members and variables about it; not the words in prose
_REASONING = re.compile(
    r"think\w*(\|?>|\])|analysis<\|message|reasoning_(content|effort)|message\.(thinking|reasoning)|['\"](thinking|reasoning)['\"]",
    re.IGNORECASE,
)
_NO_THINK = "/no_think"
_UNSET = object()


@dataclass(frozen=True, slots=True)
class Thinking:
    """What one template offers."""

    mentioned: bool  # it says something of reasoning; if not, the model is taken for one that does not reason
    off: Mapping[str, Any]  # variables that turn reasoning off; empty where it has no such switch
    on: Mapping[str, Any]  # variables that turn it on
    off_command: str  # a text that does it in a message, where no variable does; "" if there is none
    effort_names: frozenset[str]  # variables that say how much
    efforts: frozenset[str]  # their values, apart from those that mean none


def find_thinking(template: ChatTemplate, named_tokens: Mapping[str, str]) -> Thinking:
    """Try the template's variables on a small chat."""
    names = sorted(name for name in template.variables() if "think" in name or "reason" in name or "effort" in name)
    off: dict[str, Any] = {}
    on: dict[str, Any] = {}

    def opening(name: str, value: Any) -> str | None:
        set_by_request = {} if value is _UNSET else {name: value}
        return template.attempt([{"role": "user", "content": "probe question"}], named_tokens, **set_by_request)

    for name in names:
        known = template.values_of(name)
        for value, opposite in _switches(known, is_effort="effort" in name, is_budget="budget" in name):
            outputs = (opening(name, value), opening(name, opposite))
            if None not in outputs and outputs[0] != outputs[1]:
                off[name] = literal(value) if isinstance(value, str) else value
                if opposite is not _UNSET:
                    on[name] = literal(opposite) if isinstance(opposite, str) else opposite
                break
    effort_names = frozenset(name for name in names if name.endswith("effort"))
    efforts = frozenset(value for name in effort_names for value in template.values_of(name)) - {"", *_OFF}
    mentioned = _REASONING.search(template.source) is not None
    command = "" if off else _off_command(template, named_tokens)
    return Thinking(mentioned, off, on, command, effort_names, efforts | _COMMON_EFFORTS)


def _off_command(template: ChatTemplate, named_tokens: Mapping[str, str]) -> str:
    """`/no_think`, if the template obeys it in a user message and does not show it (Nemotron)."""
    if _NO_THINK not in template.constants:
        return ""

    def output(content: str) -> str:
        return template.attempt([{"role": "user", "content": content}], named_tokens) or ""

    commanded = output(f"probe question {_NO_THINK}")
    return _NO_THINK if commanded != output("probe question") and _NO_THINK not in commanded else ""


def _switches(known: frozenset[str], *, is_effort: bool, is_budget: bool) -> Iterator[tuple[Any, Any]]:
    """Pairs of values to try: one that means off, and one to compare it with. `known`: the variable's values."""
    for value in _OFF:
        if value in known:
            yield from ((value, word) for word in _ON if word in known)
            yield from ((value, effort) for effort in sorted(known & _COMMON_EFFORTS))
            yield value, _UNSET
    if is_budget:
        yield 0, _UNSET
    elif not is_effort:
        yield False, True


def thinking_variables(chat: ChatInput, thinking: Thinking) -> tuple[dict[str, Any], str]:
    """The template variables that a request's `reasoning_effort` and `thinking` stand for, and the text that the last
    user message needs. Its `chat_template_kwargs` win. Raises RenderError for what this template cannot do.
    """
    kwargs = chat.template_kwargs
    effort, place = chat.reasoning_effort, ("reasoning_effort",)
    if kwargs.get("reasoning_effort") is not None:
        effort, place = kwargs["reasoning_effort"], ("chat_template_kwargs", "reasoning_effort")
    variables: dict[str, Any] = {}
    if isinstance(effort, str):
        if effort == "none":
            variables |= _off(thinking, place)
        elif thinking.effort_names and effort not in thinking.efforts:
            listed = ", ".join(f'"{value}"' for value in sorted(thinking.efforts))
            raise RenderError(place, f"must be one of {listed} for this model; got {shown(effort)}.")
        else:
            variables |= dict.fromkeys([*thinking.effort_names, "reasoning_effort"], effort)
    if chat.thinking is False:
        variables |= _off(thinking, ("enable_thinking",))
    elif chat.thinking:
        if not thinking.on and not thinking.mentioned:
            raise RenderError(("enable_thinking",), "is not supported: this model's chat template has no reasoning.")
        variables = {**thinking.on, **variables}
    if effort == "none":  # the template has its own word for it, or none
        kwargs = {name: value for name, value in kwargs.items() if name != "reasoning_effort"}
    return {**variables, **kwargs}, thinking.off_command if effort == "none" or chat.thinking is False else ""


def _off(thinking: Thinking, place: Path) -> dict[str, Any]:
    if thinking.mentioned and not thinking.off and not thinking.off_command:
        raise RenderError(
            place,
            "cannot turn reasoning off: this model's chat template has no switch for it.",
            code="unsupported_value",
        )
    return dict(thinking.off)
