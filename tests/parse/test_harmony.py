import pytest

from tests.parse.answers import Answer, every_cut
from tokenline.parse.registry import make_parser


def harmony(text: str, prompt_end: str = "<|start|>assistant", cut: bool = False, tools: bool = True) -> Answer:
    return every_cut(
        lambda: make_parser("openai" if tools else None, "openai_gptoss", prompt_end=prompt_end), text, cut=cut
    )


THOUGHTS = "<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>final<|message|>Hello<|return|>", ("Hello", None, [])),
        (THOUGHTS + "<|channel|>final<|message|>Hello", ("Hello", "I'm\nthinking", [])),
        (THOUGHTS + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}',
         (None, "I'm\nthinking", 1)),
        (THOUGHTS + ' to=functions.f<|channel|>analysis<|message|>{"a": 1}<|call|>', (None, "I'm\nthinking", 1)),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', (None, None, 1)),
        ("<|channel|>commentary<|message|>First I look.<|end|>" + "<|start|>assistant"
         '<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>', ("First I look.", None, 1)),
        ("<|channel|>commentary to=assistant" + THOUGHTS + "<|channel|>final<|message|>Hello",
         ("Hello", "I'm\nthinking", [])),
        ("no header at all", ("no header at all", None, [])),
        ("<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b", ("a\nb", None, [])),
    ],
)  # fmt: skip
def test_channels(text: str, expected: tuple[object, ...]) -> None:
    content, reasoning, calls = expected
    assert harmony(text)[:3] == (content, reasoning, [("f", '{"a": 1}')] if calls else [])


def test_a_call_without_arguments() -> None:
    assert harmony("<|channel|>commentary to=functions.now<|message|><|call|>").calls == [("now", "{}")]


def test_code_for_a_built_in_tool_is_not_lost() -> None:
    text = "<|channel|>commentary to=python <|constrain|>code<|message|>print('hello')<|call|>"
    assert harmony(text)[:3] == ("print('hello')", None, [])


def test_a_call_is_content_where_no_tools_were_asked_for() -> None:
    text = '<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>'
    assert harmony(text, tools=False)[:3] == ('{"a": 1}', None, [])


def test_the_prompt_may_end_in_a_header_or_in_a_message() -> None:
    assert harmony("inal<|message|>Hi", "<|end|><|start|>assistant<|channel|>f")[:2] == ("Hi", None)
    assert harmony("a thought<|end|>", "<|start|>assistant<|channel|>analysis<|message|>")[:2] == (None, "a thought")


def test_cut_inside_of_a_call() -> None:
    got = harmony('<|channel|>commentary to=functions.f<|message|>{"a": 1', cut=True)
    assert (got.content, got.calls, got.begun) == (None, [], [("f", '{"a": 1')])
    assert got.whole == got.begun
