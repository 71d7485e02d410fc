import pytest

from tests.parse.answers import every_cut
from tokenline.parse.registry import make_parser


@pytest.mark.parametrize(
    ("name", "prompt_end", "text", "content", "reasoning"),
    [
        # Where nothing is known of the prompt, R1's templates are known to open the block.
        ("deepseek_r1", "", "hm</think>4", "4", "hm"),
        ("deepseek_r1", "", "<think>\nhm\n</think>\n4", "4", "hm"),
        ("deepseek_r1", "<｜Assistant｜>", "just 4", "just 4", None),
        ("qwen3", "", "just 4", "just 4", None),
        ("qwen3", "", "\n<think>hm</think>4", "4", "hm"),
        ("qwen3", "", "4 is <think> no", "4 is <think> no", None),
        ("qwen3", "", "hm</think>4", "hm</think>4", None),
        ("qwen3", "<think>\n", "<think>\nhm</think>4", "4", "hm"),  # the model repeats the tag
        ("qwen3", "<think>\n", "</think>4", "4", None),
        ("qwen3", "<think>\n\n</think>\n\n", "<think> is a tag", "<think> is a tag", None),
        ("qwen3", "they wrote <think>, then <|im_start|>assistant\n", "4", "4", None),
        ("qwen3", "<think>\n", "no end", None, "no end"),
        ("granite", "", "Here is my thought process: hm Here is my response: 4", "4", "hm"),
        ("granite", "", "<think>hm</think>\n<response>4</response>", "4", "hm"),
        ("granite", "", "Here is my car.", "Here is my car.", None),
        ("hunyuan_a13b", "", "<think>\nhm\n</think>\n<answer>\n4\n</answer>", "4\n", "hm"),
        ("cohere", "", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>", "4", "hm"),
        ("mistral", "", "[THINK]hm [TOOL_CALLS]f[ARGS]{}[/THINK]4", "4", "hm [TOOL_CALLS]f[ARGS]{}"),
        ("gemma4", "", "<|channel>thought\nhm<channel|>4", "4", "hm"),
    ],
)
def test_where_reasoning_begins_and_ends(
    name: str, prompt_end: str, text: str, content: str | None, reasoning: str | None
) -> None:
    assert every_cut(lambda: make_parser(None, name, prompt_end=prompt_end), text)[:2] == (content, reasoning)


def test_tags_around_the_answer_are_left_out_with_tools_too() -> None:
    text = '<think>hm</think>\n<response>On it.</response>\n<|tool_call|>[{"name": "f", "arguments": {}}]'
    got = every_cut(lambda: make_parser("granite", "granite"), text)
    assert got[:3] == ("On it.", "hm", [("f", "{}")])
