"""What may stand before an answer that holds to a grammar, by the model's parsers and the end of the prompt."""

from typing import cast

import pytest

from tokenline.grammar.spec import Channels, Reasoning
from tokenline.parse.delta import ToolCallDelta
from tokenline.parse.registry import make_parser, tool_markers, tool_parsers
from tokenline.render.line import Line
from tokenline.service.parsers import ParserChoice

THINK = (("<think>",), ("</think>",))


class Prompt:
    """As much of a `Line` as is looked at."""

    def __init__(self, text: str):
        self.text = text


@pytest.mark.parametrize(
    ("tools", "reasoning", "prompt", "before"),
    [
        ("hermes", None, "<|im_start|>assistant\n", None),
        ("hermes", "qwen3", "<|im_start|>assistant\n", Reasoning(*THINK)),  # r2-13
        ("hermes", "qwen3", "<|im_start|>assistant\n<think>\n", Reasoning(*THINK, opened=True)),
        ("hermes", "qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", None),  # switched off
        ("glm45", "glm45", "<|assistant|>\n", Reasoning(*THINK)),
        ("deepseek_v31", "deepseek_v3", "<｜Assistant｜></think>", None),
        ("mistral", "mistral", "[/INST]", Reasoning(("[THINK]",), ("[/THINK]",))),
        ("openai", "openai_gptoss", "<|start|>assistant", Channels()),
        ("openai", "openai_gptoss", "<|start|>assistant<|channel|>analysis<|message|>Hm", Channels(in_message=True)),
        ("openai", "openai_gptoss", "<|start|>assistant<|channel|>final<|message|>", None),
        (None, "openai_gptoss", "<|end|><|start|>assistant", Channels()),
    ],
)
def test_before_answer(tools: str | None, reasoning: str | None, prompt: str, before: Reasoning | Channels | None):
    assert ParserChoice(tools, reasoning).before_answer(cast(Line, Prompt(prompt))) == before


@pytest.mark.parametrize("forced", ["", "weather"])
def test_forced_calls_of_harmony_are_messages(forced: str):
    parser = make_parser("openai", "openai_gptoss", prompt_end="<|start|>assistant", forced=forced)
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}'
    )
    deltas = [*parser.feed(text), *parser.finish(cut=False)]
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert calls[0].name == "weather"
    assert "".join(call.arguments for call in calls) == '{"city": "Oslo"}'


@pytest.mark.parametrize("name", tool_parsers())
def test_a_formats_markers_are_known(name: str):
    """Beside an answer the first of them begins a call, where the grammar knows no more of the format."""
    assert all(isinstance(marker, str) and marker for marker in tool_markers(name))
