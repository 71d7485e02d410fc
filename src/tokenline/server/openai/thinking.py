"""Wire in: whether and how much the model is to reason before it answers, under the names that servers have for it.

OpenAI says `reasoning_effort`, OpenRouter and SGLang `reasoning`, Qwen's servers `enable_thinking`, DeepSeek's and
GLM's `thinking`, Ollama `think`; llama.cpp and vLLM also know a budget. What a template makes of it, the render room
says.
"""

from typing import Any, NamedTuple

from tokenline.fields import FieldError, Path, shown
from tokenline.server.openai.wire import EFFORTS, TemplateBody


class Thinking(NamedTuple):
    """None: the client has not said."""

    on: bool | None = None
    effort: str | None = None


def read_thinking(body: TemplateBody) -> Thinking:
    """What the body asks for. Raises FieldError, also where two fields contradict each other."""
    switches: dict[Path, bool] = {}
    efforts: dict[Path, str] = {}
    if body.reasoning_effort is not None:
        efforts[("reasoning_effort",)] = body.reasoning_effort
    if body.enable_thinking is not None:
        switches[("enable_thinking",)] = body.enable_thinking
    if body.thinking is not None:
        _thinking(body.thinking, switches)
    if isinstance(body.think, bool):
        switches[("think",)] = body.think
    elif body.think is not None:
        efforts[("think",)] = _effort(("think",), body.think)
    if body.reasoning is not None:
        _reasoning(body.reasoning, switches, efforts)
    if body.thinking_budget is not None and not _unlimited(("thinking_budget",), body.thinking_budget):
        switches[("thinking_budget",)] = False
    thinking = Thinking(_one(switches), _one(efforts))
    if thinking.on and thinking.effort == "none":
        raise FieldError(next(iter(efforts)), '("none") contradicts ', next(iter(switches)), ", which asks to reason.")
    return thinking


def _thinking(value: Any, switches: dict[Path, bool]) -> None:
    """A boolean; or DeepSeek's, GLM's and Anthropic's `{"type": "enabled"}`."""
    if isinstance(value, bool):
        switches[("thinking",)] = value
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("enabled", "disabled", "auto", "adaptive"):
        accepted = 'true, false or {"type": "enabled"} or {"type": "disabled"}'
        raise FieldError(("thinking",), f"must be {accepted}; got {shown(value)}.")
    budget = value.get("budget_tokens")
    if kind == "enabled" and budget is not None:
        _unlimited(("thinking", "budget_tokens"), budget)
    if kind in ("enabled", "disabled"):
        switches[("thinking", "type")] = kind == "enabled"


def _reasoning(value: dict[str, Any], switches: dict[Path, bool], efforts: dict[Path, str]) -> None:
    """`{"effort": ..., "enabled": ..., "max_tokens": ..., "exclude": ...}`"""
    if (effort := value.get("effort")) is not None:
        efforts[("reasoning", "effort")] = _effort(("reasoning", "effort"), effort)
    if (enabled := value.get("enabled")) is not None:
        if not isinstance(enabled, bool):
            raise FieldError(("reasoning", "enabled"), f"must be true or false; got {shown(enabled)}.")
        switches[("reasoning", "enabled")] = enabled
    if (budget := value.get("max_tokens")) is not None and not _unlimited(("reasoning", "max_tokens"), budget):
        switches[("reasoning", "max_tokens")] = False
    if value.get("exclude") not in (None, False):
        reason = "is not supported: the answer has its reasoning in a field of its own."
        raise FieldError(("reasoning", "exclude"), reason, code="unsupported_parameter")


def _effort(place: Path, value: Any) -> str:
    if value not in EFFORTS:
        raise FieldError(place, f"must be one of {', '.join(EFFORTS)}; got {shown(value)}.")
    return value


def _unlimited(place: Path, budget: Any) -> bool:
    """Whether a budget asks for no limit (-1); 0 asks for no reasoning. Raises for any other."""
    if type(budget) is int and budget in (-1, 0):
        return budget == -1
    raise FieldError(
        place,
        "can only be -1 (no limit) or 0 (no reasoning): a budget of reasoning tokens is not supported; use ",
        ("max_tokens",),
        f" for the whole answer. Got {shown(budget)}.",
        code="unsupported_value",
    )


def _one(asked: dict[Path, Any]) -> Any:
    """What all of them say; None if there are none."""
    if not asked:
        return None
    (first, said), *others = asked.items()
    for place, value in others:
        if value != said:
            raise FieldError(place, f"({shown(value)}) contradicts ", first, f" ({shown(said)}).")
    return said
