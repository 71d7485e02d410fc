"""Every parser over generated answers: whatever the calls, however the text is cut, they come out as they went in."""

import json
from collections.abc import Callable
from functools import partial
from keyword import iskeyword
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parse.answers import Answer, answer, every_cut
from tests.sources import llama_cpp_source
from tokenline.parse.delta import ContentDelta
from tokenline.parse.registry import detect, make_parser, reasoning_parsers, tool_parsers
from tokenline.parse.source import SPACE

QUICK = settings(max_examples=25, deadline=None)  # a family; there are some thirty
Call = tuple[str, dict[str, Any]]


class Family(NamedTuple):
    """How a model of this family writes an answer with calls."""

    write: Callable[[list[Call]], str]
    untyped: bool = False  # values carry neither types nor escapes
    flat: bool = False  # nor do values within values


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def objects(calls: list[Call], arguments: str = "arguments", name: str = "name") -> list[str]:
    return [dumps({name: call, arguments: values}) for call, values in calls]


def json_list(begin: str, end: str = "", **keys: str) -> Family:
    return Family(lambda calls: f"{begin}[{', '.join(objects(calls, **keys))}]{end}")


def json_blocks(begin: str, end: str, **keys: str) -> Family:
    return Family(lambda calls: "\n".join(begin + call + end for call in objects(calls, **keys)))


def xml(section: str, call: str, parameter: str, lines: bool) -> Family:
    edge = "\n" if lines else ""

    def write(calls: list[Call]) -> str:
        text = ""
        for name, arguments in calls:
            inside = ""
            for key, value in arguments.items():
                shown = value if isinstance(value, str) else dumps(value)
                inside += f"<{parameter.format(key)}>{edge}{shown}{edge}</{parameter.split('=')[0].split()[0]}>\n"
            text += f"<{call.format(name)}>\n{inside}</{call.split('=')[0].split()[0]}>\n"
        return f"<{section}>\n{text}</{section}>"

    return Family(write, untyped=True)


def one_section_each(family: Family) -> Family:
    return Family(lambda calls: "\n".join(family.write([call]) for call in calls), family.untyped)


def glm(line: str) -> Family:
    def write(calls: list[Call]) -> str:
        blocks = []
        for name, arguments in calls:
            inside = ""
            for key, value in arguments.items():
                shown = value if isinstance(value, str) else dumps(value)
                inside += f"<arg_key>{key}</arg_key>{line}<arg_value>{shown}</arg_value>{line}"
            blocks.append(f"<tool_call>{name}{line}{inside}</tool_call>")
        return "\n".join(blocks)

    return Family(write, untyped=True)


def dsml(calls: list[Call], section: str = "function_calls") -> str:
    text = f"<｜DSML｜{section}>\n"
    for name, arguments in calls:
        text += f'<｜DSML｜invoke name="{name}">\n'
        for key, value in arguments.items():
            string, shown = ("true", value) if isinstance(value, str) else ("false", dumps(value))
            text += f'<｜DSML｜parameter name="{key}" string="{string}">{shown}</｜DSML｜parameter>\n'
        text += "</｜DSML｜invoke>\n"
    return f"{text}</｜DSML｜{section}>"


def gemma(begin: str, end: str, quote: str) -> Family:
    def write_value(value: object) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{quote}{key}{quote}:{write_value(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(write_value, value))}]"
        return dumps(value)

    def write(calls: list[Call]) -> str:
        text = ""
        for name, arguments in calls:
            inside = ",".join(f"{key}:{write_value(value)}" for key, value in arguments.items())
            text += f"{begin}call:{name}{{{inside}}}{end}"
        return text

    return Family(write, untyped=True)


def python_calls(calls: list[Call]) -> list[str]:
    return [f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls]


def deepseek(head: str, tail: str) -> Family:
    def write(calls: list[Call]) -> str:
        blocks = [
            f"<｜tool▁call▁begin｜>{head.format(name)}{dumps(arguments)}{tail}<｜tool▁call▁end｜>"
            for name, arguments in calls
        ]
        return f"<｜tool▁calls▁begin｜>{chr(10).join(blocks)}<｜tool▁calls▁end｜>"

    return Family(write)


def kimi(calls: list[Call]) -> str:
    blocks = [
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(blocks)}<|tool_calls_section_end|>"


def harmony(calls: list[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}<|call|>"
        for name, arguments in calls
    )


def hunyuan(suffix: str) -> Family:
    def write(calls: list[Call]) -> str:
        text = "<tool_calls@>\n"
        for name, arguments in calls:
            text += f"<tool_call@>{name}<tool_sep@>\n"
            for key, value in arguments.items():
                shown = value if isinstance(value, str) else dumps(value)
                text += f"<arg_key@>{key}</arg_key@>\n<arg_value@>{shown}</arg_value@>\n"
            text += "</tool_call@>\n"
        return f"{text}</tool_calls@>".replace("@", suffix)

    return Family(write, untyped=True)


def minicpm5(calls: list[Call]) -> str:
    text = ""
    for name, arguments in calls:
        inside = ""
        for key, value in arguments.items():
            shown = f"<![CDATA[{value}]]>" if isinstance(value, str) and set("<&\n") & set(value) else value
            inside += f'<param name="{key}">{shown if isinstance(shown, str) else dumps(shown)}</param>'
        text += f'<function name="{name}">{inside}</function>'
    return text


def step3(calls: list[Call]) -> str:
    text = ""
    for name, arguments in calls:
        inside = "".join(
            f'<steptml:parameter name="{key}">{value if isinstance(value, str) else dumps(value)}</steptml:parameter>'
            for key, value in arguments.items()
        )
        text += f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{inside}</steptml:invoke>'
        text += "<｜tool_call_end｜>"
    return f"<｜tool_calls_begin｜>{text}<｜tool_calls_end｜>"


def kimi_k3(calls: list[Call]) -> str:
    text = ""
    for number, (name, arguments) in enumerate(calls, start=1):
        text += f'<|open|>call tool="{name}" index="{number}"<|sep|>'
        for key, value in arguments.items():
            shown = value if isinstance(value, str) else dumps(value)
            named = {"integer": "number", "float": "number"}.get(kind(value), kind(value))
            text += f'<|open|>argument key="{key}" type="{named}"<|sep|>{shown}<|close|>argument<|sep|>'
        text += "<|close|>call<|sep|>"
    return f"<|open|>tools<|sep|>{text}<|close|>tools<|sep|>"


def minimax_m3(calls: list[Call]) -> str:
    def write_value(value: object) -> str:
        if isinstance(value, dict):
            return "".join(element(name, inner) for name, inner in value.items())
        if isinstance(value, list):
            return "".join(element("item", inner) for inner in value)
        return value if isinstance(value, str) else dumps(value)

    def element(name: str, value: object) -> str:
        return f"@<{name}>{write_value(value)}@</{name}>"

    text = "@<tool_call>\n"
    for name, arguments in calls:
        inside = "".join(element(key, value) for key, value in arguments.items())
        text += f'@<invoke name="{name}">{inside}@</invoke>\n'
    return f"{text}@</tool_call>".replace("@", "]<]minimax[>[")


HERMES = json_blocks("<tool_call>\n", "\n</tool_call>")
LLAMA3 = Family(lambda calls: "; ".join(objects(calls, "parameters")))
QWEN3_CODER = one_section_each(xml("tool_call", "function={}", "parameter={}", lines=True))

FAMILIES = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "qwen3_xml": QWEN3_CODER,
    "seed_oss": one_section_each(xml("seed:tool_call", "function={}", "parameter={}", lines=False)),
    "minimax_m2": xml("minimax:tool_call", 'invoke name="{}"', 'parameter name="{}"', lines=False),
    "glm45": glm("\n"),
    "glm47": glm(""),
    "deepseek_v3": deepseek("function<｜tool▁sep｜>{}\n```json\n", "\n```"),
    "deepseek_v31": deepseek("{}<｜tool▁sep｜>", ""),
    "deepseek_v32": Family(dsml, untyped=True),
    "deepseek_v4": Family(partial(dsml, section="tool_calls"), untyped=True),
    "gemma4": gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "kimi_k2": Family(kimi),
    "mistral": Family(lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(values)}" for name, values in calls)),
    "llama3_json": LLAMA3,
    "llama4_json": LLAMA3,
    "pythonic": Family(lambda calls: f"[{', '.join(python_calls(calls))}]"),
    "llama4_pythonic": Family(lambda calls: f"<|python_start|>[{', '.join(python_calls(calls))}]<|python_end|>"),
    "lfm2": Family(lambda calls: f"<|tool_call_start|>[{', '.join(python_calls(calls))}]<|tool_call_end|>"),
    "olmo3": Family(lambda calls: "<function_calls>\n" + "\n".join(python_calls(calls)) + "\n</function_calls>"),
    "granite": json_list("<|tool_call|>"),
    "granite-20b-fc": json_blocks("<function_call> ", ""),
    "phi4_mini_json": json_list("functools"),
    "jamba": json_list("<tool_calls>", "</tool_calls>"),
    "hunyuan_a13b": json_list("<tool_calls>", "</tool_calls>"),
    "minimax": Family(lambda calls: "<tool_calls>\n" + "\n".join(objects(calls)) + "\n</tool_calls>"),
    "longcat": json_blocks("<longcat_tool_call>", "</longcat_tool_call>"),
    "gigachat3": json_blocks("function call<|role_sep|>\n", ""),
    "nemotron_v2": json_list("<TOOLCALL>", "</TOOLCALL>"),
    "cohere": json_list("<|START_ACTION|>", "<|END_ACTION|>", arguments="parameters", name="tool_name"),
    "functionary_v3_1": Family(
        lambda calls: "\n".join(f"<function={name}>{dumps(values)}</function>" for name, values in calls)
    ),
    "functionary_v3_2": Family(lambda calls: "".join(f">>>{name}\n{dumps(values)}" for name, values in calls)),
    "command_r": json_list("Action:\n```json\n", "\n```", arguments="parameters", name="tool_name"),
    "xlam": json_list(""),
    "minicpm5": Family(minicpm5, untyped=True),
    "minimax_m3": Family(minimax_m3, untyped=True, flat=True),
    "kimi_k3": Family(kimi_k3, untyped=True),
    "step3": Family(step3, untyped=True),
    "step3p5": QWEN3_CODER,
    "hy_v3": hunyuan(""),
    "hy_v3_opensource": hunyuan(":opensource"),
    "ernie45": HERMES,
    "apertus": Family(
        lambda calls: f"<|tools_prefix|>[{', '.join(dumps({name: values}) for name, values in calls)}]<|tools_suffix|>"
    ),
    "internlm": json_blocks("<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters"),
    "openai": Family(harmony),
}

# Strings with what could be taken for structure: brackets, quotes, escapes, markers of every family, line breaks.
TEXT = st.text(
    st.sampled_from("ab漢😀é \n\t\"'\\{}[](),:;=<>|/#") | st.characters(codec="utf-8", exclude_characters="\r"),
    max_size=8,
)
MARKERS = st.sampled_from(
    [
        "</tool_call>",
        "<tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "</parameter>",
        "<|call|>",
        "```",
        "</arg_value>",
        "}}",
        '"}',
    ]
)
STRINGS = st.lists(TEXT | MARKERS, max_size=3).map("".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3), max_leaves=6
)
NAMES = st.from_regex(r"\A[a-z][a-z0-9_]{0,9}\Z")
ARGUMENTS = st.dictionaries(NAMES.filter(lambda name: not iskeyword(name)), VALUES, max_size=3)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)
PROSE = st.text(st.sampled_from("abc 漢😀.,!?\n"), max_size=12)


def kind(value: object) -> str:
    return {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}.get(
        type(value), "null"
    )


def schema_of(value: object) -> dict[str, Any]:
    """A schema for a value and all that is in it."""
    schema: dict[str, Any] = {"type": kind(value)}
    if isinstance(value, dict):
        schema["properties"] = {key: schema_of(item) for key, item in value.items()}
    if isinstance(value, list) and value:
        schema["items"] = {"anyOf": [schema_of(item) for item in value]}
    return schema


def tools_for(calls: list[Call]) -> list[dict[str, Any]]:
    """A schema for every call that says exactly what was meant."""
    tools: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        tools[name] = {key: schema_of(value) for key, value in arguments.items()}
    return [{"type": "function", "function": {"name": n, "parameters": {"properties": p}}} for n, p in tools.items()]


def cut_up(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12), label="cut at"))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", tool_parsers())
@QUICK
@given(data=st.data())
def test_calls_come_out_as_they_were_written(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    calls = data.draw(CALLS)
    if family.untyped:  # values without escapes: those that contain the format's own tags cannot be told apart
        calls = [(call, {k: v for k, v in values.items() if "<" not in dumps(v)}) for call, values in calls]
        calls = list({call: (call, values) for call, values in calls}.values())  # one schema a name
    if family.flat:
        calls = [(call, {k: v for k, v in values.items() if not isinstance(v, dict | list)}) for call, values in calls]
    text = family.write(calls)
    make = partial(make_parser, name, None, tools=tools_for(calls))
    got = answer(make(), cut_up(data, text))
    assert got.parsed == calls
    assert got.content is None
    assert got == answer(make(), [text])


@pytest.mark.parametrize("name", tool_parsers())
@QUICK
@given(data=st.data(), before=PROSE, after=PROSE)
def test_text_before_and_after_is_content(name: str, data: st.DataObject, before: str, after: str) -> None:
    calls: list[Call] = [("f", {"a": "x"}), ("g", {"b": "y"})]
    written = FAMILIES[name].write(calls)
    if name in ("llama3_json", "llama4_json", "pythonic", "xlam"):  # nothing marks the call but the start of a line
        before = before + "\n"
    text = before + written + after
    if name == "openai":
        text = f"<|channel|>final<|message|>{before}<|end|><|start|>assistant{written}" + (
            f"<|start|>assistant<|channel|>final<|message|>{after}<|return|>"
        )
    make = partial(make_parser, name, None, tools=tools_for(calls))
    got = answer(make(), cut_up(data, text))
    assert got == answer(make(), [text])
    assert got.parsed == calls
    if name == "openai":  # messages, with a line break between them where they have none
        assert (got.content or "").split() == f"{before} {after}".split()
    elif before.strip(SPACE) and after.strip(SPACE):
        content = got.content or ""
        assert content.startswith(before)
        assert content.endswith(after)
        assert not content[len(before) : len(content) - len(after)].strip(SPACE)
    else:
        assert (got.content or "") == (before.rstrip(SPACE) or after.lstrip(SPACE))


@pytest.mark.parametrize("name", tool_parsers())
@QUICK
@given(data=st.data())
def test_an_answer_cut_at_any_place_delivers_only_what_is_complete(name: str, data: st.DataObject) -> None:
    calls: list[Call] = [("first", {"a": "x {", "n": 12}), ("second", {"b": [1, {"c": "}"}]})]
    text = FAMILIES[name].write(calls)
    text = text[: data.draw(st.integers(0, len(text)))]
    make = partial(make_parser, name, None, tools=tools_for(calls))
    got = answer(make(), cut_up(data, text), cut=True)
    assert got == answer(make(), [text], cut=True)
    assert got.parsed == calls[: len(got.calls)]
    # A call that was begun is a beginning of the real one, never something else.
    assert got.whole == got.begun  # what was streamed is what the whole answer has
    for (call, arguments), (wanted, values) in zip(got.begun, calls, strict=False):
        assert call == wanted
        assert len(arguments) <= len(dumps(values))


# Any text at all: pieces of every format, thrown together.
MARKERS_OF_ALL = {marker for name in tool_parsers() for marker in make_parser(name, None).control_tokens}
FRAGMENTS = [
    '{"name": "f", "arguments": ',
    '{"a": 1}',
    "f(a=1",
    "f",
    "to=functions.f",
    "```json\n",
    "```",
    "null",
    "1",
    "漢😀",
]
PIECES = st.sampled_from([*sorted(MARKERS_OF_ALL), *FRAGMENTS, *"{}[]()\"'\\,;=>\n x", '" string="true">'])


@pytest.mark.parametrize("name", tool_parsers())
@QUICK
@given(data=st.data(), parts=st.lists(PIECES, max_size=12), cut=st.booleans())
def test_any_text_gives_the_same_in_all_pieces(name: str, data: st.DataObject, parts: list[str], cut: bool) -> None:
    text = "".join(parts)
    reasoning = data.draw(st.sampled_from([None, *reasoning_parsers()]))
    prompt_end = data.draw(st.sampled_from(["", "<think>\n", "<|start|>assistant", "</think>"]))
    make = partial(make_parser, name, reasoning, prompt_end=prompt_end)
    got = answer(make(), cut_up(data, text), cut=cut)
    assert got == answer(make(), [text], cut=cut)
    assert got == answer(make(), list(text), cut=cut)


REASONING = {
    "openai_gptoss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "granite": ("Here is my thought process:", "Here is my response:"),
    "gemma4": ("<|channel>thought", "<channel|>"),
    "apriel": ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "hunyuan_a13b": ("<think>", "</think><answer>"),
}


@pytest.mark.parametrize("name", reasoning_parsers())
@QUICK
@given(data=st.data(), thoughts=PROSE, said=PROSE)
def test_reasoning_opened_by_the_model(name: str, data: st.DataObject, thoughts: str, said: str) -> None:
    begin, end = REASONING.get(name, ("<think>", "</think>"))
    text = f"{begin}{thoughts}{end}{said}"
    got = answer(make_parser(None, name), cut_up(data, text))
    assert got == answer(make_parser(None, name), [text])
    assert (got.reasoning or "") == thoughts.strip(" \n")
    # White space behind the answer has no block beside it.
    assert (got.content or "") == (said.lstrip(" \n") if name != "openai_gptoss" else got.content or "")
    assert (got.content or "").strip(" \n") == said.strip(" \n")


@pytest.mark.parametrize("name", sorted(set(reasoning_parsers()) - {"openai_gptoss"}))
@QUICK
@given(data=st.data(), thoughts=PROSE, said=PROSE.filter(str.strip))
def test_reasoning_opened_or_closed_by_the_prompt(name: str, data: st.DataObject, thoughts: str, said: str) -> None:
    begin, end = REASONING.get(name, ("<think>", "</think>"))
    text = f"{thoughts}{end}{said}"
    got = answer(make_parser(None, name, prompt_end=f"assistant\n{begin}\n"), cut_up(data, text))
    assert (got.reasoning or "") == thoughts.strip(" \n")
    assert got.content == said.lstrip(" \n")
    closed = "<|END_THINKING|>" if name == "cohere" else end.removesuffix("<answer>")
    got = answer(make_parser(None, name, prompt_end=f"{begin}\n\n{closed}\n\n"), cut_up(data, said))
    assert got[:2] == (said, None)
    got = answer(make_parser(None, name, prompt_end="<|im_start|>assistant\n"), cut_up(data, said))
    assert got[:2] == (said, None)


@QUICK
@given(data=st.data(), thoughts=PROSE, calls=CALLS)
def test_reasoning_and_then_calls(data: st.DataObject, thoughts: str, calls: list[Call]) -> None:
    # Thoughts about a call are no call: one in quotes, one of a tool that there is not, a marker without a call.
    literal = (
        'I `<tool_call>{"name": "a", "arguments": {}}</tool_call>` <tool_call>{"name": "No"}</tool_call><tool_call>'
    )
    text = f"{thoughts}{literal}\n</think>\n\n{HERMES.write(calls)}"
    make = partial(make_parser, "hermes", "qwen3", prompt_end="<think>\n", tools=tools_for(calls))
    got = answer(make(), cut_up(data, text))
    assert got.parsed == calls
    assert got.content is None
    assert got.reasoning == (thoughts + literal).lstrip(" \n")


def test_unknown_names_are_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"unknown tool parser 'herms'.*hermes"):
        make_parser("herms", None)
    with pytest.raises(ValueError, match=r"unknown reasoning parser 'r1'.*deepseek_r1"):
        make_parser(None, "r1")


def test_every_parser_is_tested_here() -> None:
    assert set(FAMILIES) == set(tool_parsers())


DETECTED = {
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "qwen3"),
    "Qwen-QwQ-32B": ("hermes", "qwen3"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "qwen3"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "HuggingFaceTB-SmolLM3-3B": (None, "qwen3"),  # this copy of the template has no tools
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", None),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "deepseek_r1"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "deepseek_v3"),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v4", "deepseek_v3"),
    "google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "Apriel-1.6-15b-Thinker-fixed": ("jamba", "apriel"),
    "GigaChat3-10B-A1.8B": ("gigachat3", None),
    "LFM2.5-Instruct": ("lfm2", "qwen3"),
    "MiniMax-M3": ("minimax_m3", "minimax_m3"),
    "Kimi-K3": ("kimi_k3", "kimi_k3"),
    "Apertus-8B-Instruct": ("apertus", "apertus"),
    "openbmb-MiniCPM5-1B": ("minicpm5", "qwen3"),
    "tencent-Hy3": ("hy_v3_opensource", "hy_v3"),
    "meetkai-functionary-medium-v3.2": ("functionary_v3_2", None),
    "CohereForAI-c4ai-command-r-plus-tool_use": ("command_r", None),
    "StepFun3.5-Flash": ("qwen3_coder", "qwen3"),
    "GLM-4.6": ("glm45", "glm45"),
    "GLM-4.7-Flash": ("glm45", "glm45"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "granite"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere", "cohere"),
    "openai-gpt-oss-120b": ("openai", "openai_gptoss"),
    "Kimi-K2-Instruct": ("kimi_k2", None),
    "Kimi-K2-Thinking": ("kimi_k2", "kimi_k2"),
    "MiniMax-M2": ("minimax_m2", "minimax_m2"),
    "ByteDance-Seed-OSS": ("seed_oss", "seed_oss"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron_v2", "qwen3"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("qwen3_coder", "qwen3"),
    "LFM2.5-8B-A1B": ("lfm2", "qwen3"),
    "fireworks-ai-llama-3-firefunction-v2": ("phi4_mini_json", None),
    "meetkai-functionary-medium-v3.1": ("functionary_v3_1", None),
    "google-gemma-2-2b-it": (None, None),
    "microsoft-Phi-3.5-mini-instruct": (None, None),
}


@pytest.mark.parametrize("template", sorted(DETECTED))
def test_the_parsers_are_chosen_from_the_template(template: str) -> None:
    text = (llama_cpp_source() / "templates" / f"{template}.jinja").read_text()
    assert detect(text) == DETECTED[template]


def test_chatml_without_tools_needs_no_parser() -> None:
    assert detect("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}") == (
        None,
        None,
    )


def test_every_cut_is_a_cut() -> None:
    """The helper itself: it must notice a parser that depends on the cutting."""

    class Wrong:
        control_tokens: frozenset[str] = frozenset()
        complete_calls = ()
        message_calls = ()
        has_tool_calls = False
        in_reasoning = False

        def feed(self, text: str, *, control: bool = False):
            return [ContentDelta(text.replace("ab", "X"))] if text else []

        def finish(self, *, cut: bool):
            return []

    with pytest.raises(AssertionError):
        every_cut(Wrong, "cabc")
    assert isinstance(every_cut(lambda: make_parser(None, None), "cabc"), Answer)
