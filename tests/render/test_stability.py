"""What breaks a prefix from one turn to the next is found in real templates, with the condition that does it."""

import pytest

from tests.sources import llama_cpp_source
from tokenline.render.breaks import Cause
from tokenline.render.chat_renderer import CHATML, ChatRenderer
from tokenline.render.renderer import Renderer
from tokenline.render.stability import Check, Stability, check_stability
from tokenline.render.stability_words import phrase, summary
from tokenline.render.template import ChatTemplate

TEMPLATES = llama_cpp_source() / "templates"
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


def examine(name: str) -> Stability:
    source = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    return check_stability(ChatRenderer({"default": source}, NAMED))


def find(stability: Stability, conversation: str) -> Check:
    return next(check for check in stability.checks if check.conversation == conversation)


def test_chatml_is_stable() -> None:
    stability = check_stability(ChatRenderer({"default": CHATML}, NAMED))
    assert stability.stable
    assert find(stability, "plain").stable
    assert find(stability, "tools").stable
    assert summary(stability) == "Each turn extends the last one's tokens."


def test_reasoning_that_is_dropped_is_found_with_its_condition() -> None:
    stability = examine("Qwen-Qwen3-0.6B")
    broken = find(stability, "thinking").broken
    assert broken is not None
    assert broken.cause is Cause.REASONING_DROPPED
    assert broken.turn == 1
    assert broken.kept.endswith("<|im_start|>assistant\n")
    assert broken.before.startswith("<think>\nA plain question")
    assert broken.after.startswith("The capital is Paris.")
    assert broken.template_source == "{%- if loop.index0 > ns.last_query_index %}"
    assert find(stability, "thinking between tool calls").stable
    off = find(stability, "thinking off").broken
    assert off is not None
    assert off.cause is Cause.PROMPT_NOT_KEPT
    assert not stability.stable
    assert "drops the reasoning of earlier turns" in summary(stability)


@pytest.mark.parametrize(
    ("name", "conversation", "fix"),
    [
        ("GLM-4.7-Flash", "thinking", {"clear_thinking": False}),
        ("LFM2.5-8B-A1B", "thinking", {"preserve_thinking": True}),
        ("deepseek-ai-DeepSeek-V4", "thinking", {"drop_thinking": False}),
        ("google-gemma-4-31B-it", "plain", {"enable_thinking": True}),
    ],
)
def test_a_variable_that_keeps_the_prefix_is_found(name: str, conversation: str, fix: dict[str, bool]) -> None:
    broken = find(examine(name), conversation).broken
    assert broken is not None
    assert broken.fix == fix


def test_tools_and_system_text_that_move_are_found() -> None:
    stability = examine("mistralai-Mistral-Nemo-Instruct-2407")
    moved = find(stability, "tools, without a system message").broken
    assert moved is not None
    assert moved.cause is Cause.TOOLS_MOVED
    system = find(stability, "with a system message").broken
    assert system is not None
    assert system.cause is Cause.SYSTEM_MOVED
    assert "alternate" in (find(stability, "with a later system message").refused or "")
    late = find(examine("deepseek-ai-DeepSeek-V3.1"), "with a later system message").broken
    assert late is not None
    assert late.cause is Cause.SYSTEM_MOVED


def test_arguments_written_anew_are_found() -> None:
    rewritten = find(examine("Qwen-Qwen2.5-7B-Instruct"), "tool-call arguments as generated").broken
    assert rewritten is not None
    assert rewritten.cause is Cause.ARGUMENTS
    assert rewritten.kept.endswith('"arguments": {"city":')
    assert rewritten.before.startswith('"Paris","days":3}')
    assert rewritten.after.startswith(' "Paris", "days": 3}')
    assert find(examine("Qwen-Qwen3-0.6B"), "tool-call arguments as generated").stable


def test_a_reasoning_that_the_client_drops_is_the_clients() -> None:
    broken = find(examine("GLM-4.6"), "thinking, not sent back").broken
    assert broken is not None
    assert broken.cause is Cause.REASONING_NOT_SENT
    assert find(examine("GLM-4.6"), "tools").stable


def test_white_space_that_changes_is_found() -> None:
    template = CHATML.replace("message['content']", "(message['content'] if loop.last else ' ' + message['content'])")
    broken = find(check_stability(ChatRenderer({"default": template}, NAMED)), "plain").broken
    assert broken is not None
    assert broken.cause is Cause.WHITESPACE


def test_date_is_reported_with_what_holds_it_still() -> None:
    stability = examine("meta-llama-Llama-3.2-3B-Instruct")
    assert stability.date_unit == "day"
    assert stability.date_fix == {"date_string": "01 Jan 2026"}
    assert not stability.stable
    assert "writes the date, which changes every day; the cached prefix ends there." in summary(stability)


def test_a_break_says_how_much_is_shared(smollm2_renderer: Renderer) -> None:
    source = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    subject = Renderer(smollm2_renderer.tokenizer, {"default": source})
    broken = find(subject.stability(explain=False), "thinking").broken
    assert broken is not None
    shared = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert broken.characters == len(shared)
    assert broken.tokens == len(subject.tokenizer.encode(shared, parse_special=True))
    without_tokenizer = find(examine("Qwen-Qwen3-0.6B"), "thinking").broken
    assert without_tokenizer is not None
    assert (without_tokenizer.characters, without_tokenizer.tokens) == (len(shared), None)


def test_every_cause_has_its_words() -> None:
    assert len({phrase(cause) for cause in Cause}) == len(Cause)
    both = examine("Qwen-Qwen2.5-7B-Instruct")
    assert both.causes == (Cause.ARGUMENTS,)
    assert summary(both) == "This template rewrites tool-call arguments; the cached prefix ends there."
    nemo = summary(examine("mistralai-Mistral-Nemo-Instruct-2407"))
    assert nemo.startswith("This template moves system messages when another turn follows")
    assert " and " in nemo


def test_a_template_that_refuses_everything() -> None:
    found = check_stability(ChatRenderer({"default": "{{ raise_exception('not today') }}"}, NAMED))
    assert not found.stable
    assert not found.supports_any
    assert summary(found).startswith("This template refuses every conversation tried: ")
    assert summary(found).endswith("The chat template refused the request: not today.")


@pytest.mark.parametrize(
    ("source", "unit"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "day"),
        ("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}", "second"),
        (
            "{% if day is not defined %}{% set day = strftime_now('%B %Y') %}{% endif %}{{ day }}",
            "month",
        ),
        ("{{ strftime_now('%Y') }}{{ strftime_now('%-d') }}", "day"),
        ("{{ strftime_now(format) }}", "unknown"),
        ("{{ messages }}", None),
    ],
)
def test_finest_unit_of_a_date(source: str, unit: str | None) -> None:
    assert ChatTemplate(source).date_unit() == unit


def test_any_template_can_be_examined() -> None:
    for file in sorted(TEMPLATES.glob("*.jinja"))[::5]:
        renderer = ChatRenderer({"default": file.read_text("utf-8")}, NAMED)
        stability = check_stability(renderer, explain=False)
        assert len(stability.checks) >= 5
        assert all(check.broken is None or check.refused is None for check in stability.checks)
