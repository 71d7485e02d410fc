"""The second collection of reported problems (`r2-` cases), as far as the parsers decide them, and their kinds."""

from typing import Any

import pytest

from tests.parse.answers import Answer, every_cut
from tokenline.parse.registry import make_parser


def tool(name: str, **types: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = [tool("get_weather", city="string"), tool("get_time")]


def read(
    name: str, text: str, tools: list[dict[str, Any]], reasoning: str | None = None, prompt_end: str = ""
) -> Answer:
    return every_cut(lambda: make_parser(name, reasoning, tools=tools, prompt_end=prompt_end), text)


def kimi(call_id: str, arguments: str = '{"city": "Oslo"}') -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


@pytest.mark.parametrize(
    "text",
    [
        kimi("functions.get_weather:0"),
        kimi("functions_get_weather_1"),
        kimi("functionsget_weather5"),
        kimi("get_weather"),
        kimi("call00003"),  # only one tool takes a city
        kimi("3"),
        kimi("call_abc", '{"name": "get_weather", "arguments": {"city": "Oslo"}}'),
    ],
)
def test_r2_25_kimi_ids_without_the_names_form(text: str) -> None:
    got = read("kimi_k2", f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>", WEATHER)
    assert got.parsed == [("get_weather", {"city": "Oslo"})]
    assert got.content is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kimi_k2", kimi("functions.no_such:0")),
        ("kimi_k2", kimi("call00003", '{"town": "Oslo"}')),
        ("hermes", '<tool_call>{"name": "no_such", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}, "name": "no_such"}</tool_call>'),
        ("mistral", "[TOOL_CALLS]no_such[ARGS]{}"),
        ("qwen3_coder", "<tool_call>\n<function=no_such>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>no_such</tool_call>"),
        ("lfm2", "<|tool_call_start|>[no_such()]<|tool_call_end|>"),
        ("llama3_json", '{"name": "no_such", "parameters": {}}'),
        ("gemma4", "<|tool_call>call:no_such{}<tool_call|>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>no_such<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
    ],
)
def test_r2_25_a_call_of_a_tool_that_is_not_there_is_content(name: str, text: str) -> None:
    got = read(name, text, WEATHER)
    assert got.begun == []
    assert got.content == text


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (
            'run{code:<|"|>x = sql(<|"|><|"|><|"|> SELECT 1 <|"|><|"|><|"|>).df()<|"|>,refs:[<|"|>a<|"|>]}',
            ("run", {"code": 'x = sql(""" SELECT 1 """).df()', "refs": ["a"]}),
        ),
        ('look{cmd:<|"|>look<|"|>angle:90}', ("look", {"cmd": "look", "angle": 90})),
        ('create{"content": "has } brace"}', ("create", {"content": "has } brace"})),
        ('create(content=<|"|>abc<|"|>)', ("create", {"content": "abc"})),
        ('create{content:<|"|>abc<|"|>', ("create", {"content": "abc"})),  # no bracket
        ("look{cmd:up, angle:108.}", ("look", {"cmd": "up", "angle": 108.0})),
    ],
)
def test_r2_26_dialects_of_gemma(text: str, call: tuple[str, object]) -> None:
    tools = [tool("run", code="string", refs="array"), tool("look", cmd="string", angle="integer")]
    tools.append(tool("create", content="string"))
    got = read("gemma4", f"<|tool_call>call:{text}<tool_call|>", tools)
    assert got.parsed == [call]
    assert got.content is None


def test_r2_28_glm_without_arguments_and_with_line_breaks() -> None:
    assert read("glm47", "<tool_call>get_time</tool_call>", WEATHER).parsed == [("get_time", {})]
    text = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>10001</arg_value>\n</tool_call>"
    assert read("glm47", text, WEATHER).parsed == [("get_weather", {"city": "10001"})]


def test_r2_29_qwen3_coder_without_the_opening_tag() -> None:
    call = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    got = read("qwen3_coder", f"I'll look.\n\n{call}", WEATHER)
    assert (got.content, got.parsed) == ("I'll look.", [("get_weather", {"city": "Oslo"})])


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis to=functions.get_weather code",
    ],
)
def test_r2_31_recipients_in_other_places(header: str) -> None:
    text = f'<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{header}<|message|>{{"city": "Oslo"}}<|call|>'
    got = read("openai", text, WEATHER, "openai_gptoss")
    assert (got.reasoning, got.parsed) == ("Hm.", [("get_weather", {"city": "Oslo"})])


@pytest.mark.parametrize(
    ("name", "section", "inside", "value"),
    [
        ("seed_oss", "seed:tool_call", "l1\nl2\n", "l1\nl2\n"),
        ("seed_oss", "seed:tool_call", "\nl1\n", "\nl1\n"),
        ("qwen3_coder", "tool_call", "\nl1\nl2\n\n", "l1\nl2\n"),  # this template writes a line break around the value
    ],
)
def test_r2_32_the_line_breaks_of_a_value(name: str, section: str, inside: str, value: str) -> None:
    text = f"<{section}>\n<function=write>\n<parameter=text>{inside}</parameter>\n</function>\n</{section}>"
    assert read(name, text, [tool("write", text="string")]).parsed == [("write", {"text": value})]


CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
IN_REASONING = [
    ("hermes", "qwen3", f"<tool_call>\n{CALL}\n</tool_call>"),
    ("mistral", "mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}'),
    ("kimi_k2", "kimi_k2", f"<|tool_calls_section_begin|>{kimi('functions.get_weather:0')}<|tool_calls_section_end|>"),
    ("qwen3_coder", "qwen3", "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
    ("glm45", "glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"),
    ("gemma4", "gemma4", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'),
]  # fmt: skip
OPENING = {"mistral": "[THINK]", "gemma4": "<|channel>thought"}
CLOSING = {"mistral": "[/THINK]", "gemma4": "<channel|>"}


@pytest.mark.parametrize(("name", "reasoning", "call"), IN_REASONING)
@pytest.mark.parametrize("by_prompt", [True, False])
@pytest.mark.parametrize("closed_late", [True, False])
def test_a_call_within_unclosed_reasoning(
    name: str, reasoning: str, call: str, by_prompt: bool, closed_late: bool
) -> None:
    opening, closing = OPENING.get(name, "<think>"), CLOSING.get(name, "</think>")
    text = ("" if by_prompt else opening) + f"\nI must look.\n{call}" + (f"\n{closing}\n\n" if closed_late else "")
    got = read(name, text, WEATHER, reasoning, f"assistant\n{opening}\n" if by_prompt else "")
    assert got.parsed == [("get_weather", {"city": "Oslo"})]
    assert got.reasoning == "I must look."
    assert got.content is None


@pytest.mark.parametrize(
    "thoughts",
    ["I could use <tool_call> now.", f"Like `<tool_call>{CALL}</tool_call>`, I think.", "A <tool_call>\n{} it was."],
)
def test_a_marker_that_is_only_talked_about_is_reasoning(thoughts: str) -> None:
    got = read("hermes", f"{thoughts}\n</think>\n\nDone.", WEATHER, "qwen3", "<think>\n")
    assert got[:4] == ("Done.", thoughts, [], [])


def test_a_forgotten_outer_bracket_and_a_code_block() -> None:
    for text in (f"<tool_call>\n{CALL[:-1]}\n</tool_call>", f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>"):
        assert read("hermes", text, WEATHER).parsed == [("get_weather", {"city": "Oslo"})]


CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, None),
        (f"```json\n{CALL}\n```", None),
        (f"```\n{CALL}```", None),
        (f"I will look.\n\n{CALL}", "I will look."),
        (f"<think>hm</think>{CALL}", None),
        ('{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo"\n  }\n}\n', None),
        ('{"arguments": {"city": "Oslo"}, "name": "get_weather"}', None),
    ],
)
def test_a_call_of_hermes_without_its_markers(text: str, content: str | None) -> None:
    """As Qwen2.5-Coder writes nearly all of them."""
    got = read("hermes", text, WEATHER, reasoning="qwen3")
    assert (got.parsed, got.content) == ([("get_weather", {"city": "Oslo"})], content)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Alice", "arguments": {"city": "Oslo"}}',  # not a tool
        '{"name": "get_weather", "arguments": {"city": "Oslo"}, "why": "x"}',
        '{"name": "get_weather"}',
        f"[{CALL}]",
        f"Like this: `{CALL}`",
        f'{{"example": {CALL}}}',
        '```json\n{"city": "Oslo"}\n```',
        "```python\nprint({})\n```",
        "``` {",
        "{" * 50,
    ],
)
def test_json_that_is_no_call_of_hermes(text: str) -> None:
    got = read("hermes", text, WEATHER)
    assert (got.parsed, got.content) == ([], text)


def test_a_call_of_a_strict_tool_needs_its_markers() -> None:
    """What stands before them is not held to the tool's schema."""
    strict = [{"type": "function", "function": {**WEATHER[0]["function"], "strict": True}}]
    assert read("hermes", CALL, strict).content == CALL
    assert read("hermes", f"<tool_call>{CALL}</tool_call>", strict).parsed == [("get_weather", {"city": "Oslo"})]
