"""What models really write beside the plain form: broken calls, missing tags, lists, calls in prose."""

from typing import Any

import pytest

from tests.parse.answers import Answer, every_cut
from tokenline.parse.delta import ToolCallDelta, join
from tokenline.parse.registry import make_parser


def read(name: str, text: str, tools: list[dict[str, Any]] | None = None, cut: bool = False, **options: Any) -> Answer:
    return every_cut(lambda: make_parser(name, None, tools=tools, **options), text, cut=cut)


def tool(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


class TestHermes:
    @pytest.mark.parametrize(
        "text",
        [
            '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
            '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>',
            '<tool_call>\n{"name": "f", "parameters": {"a": 1}, "id": [{"x": "}"}]}\n</tool_call>',
            '<tool_call>\n{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}\n</tool_call>',
            '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}',  # the end tag is the end of the turn
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>',  # one bracket too many
            '<tool_call>\n[{"name": "f", "arguments": {"a": 1}}]\n</tool_call>',
            '<tool_call>\n{"name": "\\u0066", "arguments": {"a": 1}}\n</tool_call>',
        ],
    )
    def test_one_call_in_many_spellings(self, text: str) -> None:
        assert read("hermes", text)[:3] == (None, None, [("f", '{"a": 1}')])

    @pytest.mark.parametrize("arguments", ["null", "None", '""', "{}"])
    def test_no_arguments(self, arguments: str) -> None:
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        assert read("hermes", text).calls == [("f", "{}")]
        assert read("hermes", '<tool_call>{"name": "f"}</tool_call>').calls == [("f", "{}")]

    @pytest.mark.parametrize(
        "text",
        [
            "Use the <tool_call> tag.",
            "<tool_call>\nnot json\n</tool_call>",
            '<tool_call>\n{"arguments": {}}\n</tool_call>',
            '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
            '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>',
            "<tool_call></tool_call>",
            "<tool_call>",
            '<tool_call>{"name": "f", "arg',  # the model ended its turn here
        ],
    )
    def test_what_is_no_call_is_content_as_it_stands(self, text: str) -> None:
        assert read("hermes", text)[:4] == (text, None, [], [])

    @pytest.mark.parametrize(
        "text",
        [
            '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"a": "no end}}</tool_call>',
        ],
    )
    def test_a_call_that_the_model_broke_is_handed_over_as_text(self, text: str) -> None:
        got = read("hermes", text)
        assert got[:3] == (text, None, [])
        assert got.begun  # its beginning was in the stream already

    def test_a_broken_call_does_not_take_the_next_one_with_it(self) -> None:
        good = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
        got = read("hermes", f'<tool_call>{{"name": "f", "arguments": x}}</tool_call>{good}')
        assert got.calls == [("g", "{}")]

    def test_markers_inside_of_strings_are_text(self) -> None:
        text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>{"}}</tool_call>'
        assert read("hermes", text).calls == [("f", '{"a": "</tool_call><tool_call>{"}')]


class TestQwen3Coder:
    def test_a_closing_tag_inside_of_a_value(self) -> None:
        value = "<parameter>\n1\n</parameter>\nand </function> too"
        text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
        assert read("qwen3_coder", text).parsed == [("f", {"a": value})]

    @pytest.mark.parametrize(
        "text",
        [
            "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",  # the section was left out
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>",
            "<tool_call><function=f><parameter=a>x</parameter></function></tool_call>",
        ],
    )
    def test_missing_tags(self, text: str) -> None:
        assert read("qwen3_coder", text)[:2] == (None, None)
        assert read("qwen3_coder", text).parsed == [("f", {"a": "x"})]

    def test_a_forgotten_end_of_a_value(self) -> None:
        text = "<tool_call>\n<function=f>\n<parameter=a>\nx\n<parameter=b>\ny\n</parameter>\n</function>\n</tool_call>"
        assert read("qwen3_coder", text).parsed == [("f", {"a": "x", "b": "y"})]

    def test_values_keep_their_white_space(self) -> None:
        text = "<tool_call>\n<function=f>\n<parameter=a>\n  x\n\n</parameter>\n</function>\n</tool_call>"
        assert read("qwen3_coder", text).parsed == [("f", {"a": "  x\n"})]

    def test_a_string_streams_before_its_end(self) -> None:
        parser = make_parser("qwen3_coder", None)
        deltas = [*parser.feed("<tool_call>\n<function=f>\n<parameter=a>\nfirst line\nsec")]
        assert (
            "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta))
            == '{"a": "first line\\nsec'
        )

    def test_no_parameters(self) -> None:
        assert read("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>").calls == [("now", "{}")]

    def test_text_about_the_format(self) -> None:
        text = "Write <function=name> and <tool_call> as they are."
        assert read("qwen3_coder", text)[:4] == (text, None, [], [])


class TestGlm:
    def test_without_a_schema_a_value_is_what_it_looks_like(self) -> None:
        text = (
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>7</arg_value>\n<arg_key>b</arg_key>\n<arg_value>x y"
            '</arg_value>\n<arg_key>c</arg_key>\n<arg_value>{"d": [1]}</arg_value>\n</tool_call>'
        )
        assert read("glm45", text).parsed == [("f", {"a": 7, "b": "x y", "c": {"d": [1]}})]

    def test_with_a_schema_a_string_stays_one(self) -> None:
        text = "<tool_call>f<arg_key>a</arg_key><arg_value>007</arg_value></tool_call>"
        assert read("glm45", text, [tool("f", a="string")]).parsed == [("f", {"a": "007"})]

    def test_no_parameters(self) -> None:
        assert read("glm45", "<tool_call>now\n</tool_call>").calls == [("now", "{}")]
        assert read("glm47", "<tool_call>now</tool_call>").calls == [("now", "{}")]

    def test_text_about_the_format(self) -> None:
        text = "The <tool_call> tag opens a call."
        assert read("glm45", text)[:4] == (text, None, [], [])


class TestDeepSeek:
    def test_v32_says_the_types_itself(self) -> None:
        text = (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
            '<｜DSML｜parameter name="a" string="true">7</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="b" string="false">7</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
        assert read("deepseek_v32", text).parsed == [("f", {"a": "7", "b": 7})]

    def test_a_call_without_its_section(self) -> None:
        assert read("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>").calls == [("f", "{}")]


class TestKimi:
    def test_the_id_is_the_models_own(self) -> None:
        text = (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>"
        )
        (call,) = join(make_parser("kimi_k2", None).feed(text))
        assert call == ToolCallDelta(0, "functions.f:3", "f", "{}")


class TestMistral:
    @pytest.mark.parametrize(
        "text",
        [
            '[TOOL_CALLS]f[ARGS]{"a": 1}',
            '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}',
            '[TOOL_CALLS]f{"a": 1}',
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]',
            '[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}}',
        ],
    )
    def test_all_versions(self, text: str) -> None:
        assert read("mistral", text)[:3] == (None, None, [("f", '{"a": 1}')])

    def test_the_models_own_id_is_used_where_the_template_takes_it_back(self) -> None:
        for given, kept in (("abc123def", True), ("call_1", False)):
            (call,) = join(make_parser("mistral", None).feed(f"[TOOL_CALLS]f[CALL_ID]{given}[ARGS]{{}}"))
            assert isinstance(call, ToolCallDelta)
            assert (call.id == given) == kept
            assert call.id is not None
            assert len(call.id) == 9


class TestLlama3:
    def test_calls_with_semicolons(self) -> None:
        text = '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
        assert read("llama3_json", text)[:3] == (None, None, [("f", '{"a": 1}'), ("g", "{}")])
        assert read("llama3_json", "<|python_tag|>" + text).calls == [("f", '{"a": 1}'), ("g", "{}")]

    @pytest.mark.parametrize(
        "text",
        [
            '{"city": "Oslo", "name": "f", "parameters": {}}',  # some other object
            '{"name": "Ann", "parameters": {}}',  # no such tool
            '{"name": "f"}',
            'For example: `{"name": "f", "parameters": {}}`',  # quoted
            '{"tools": [{"name": "f", "parameters": {}}]}',  # part of another object
            '{"tool": {"name": "f", "parameters": {}}}',
            "{",
            "Sets are {1, 2}.",
        ],
    )
    def test_json_that_is_no_call(self, text: str) -> None:
        assert read("llama3_json", text, [tool("f")])[:4] == (text, None, [], [])

    @pytest.mark.parametrize("before", ["I will look. ", "I call: ", "So,\n", "Sets are {1, 2}. "])
    def test_a_call_behind_text(self, before: str) -> None:
        got = read("llama3_json", before + '{"name": "f", "parameters": {"a": 1}}', [tool("f")])
        assert got[:3] == (before.rstrip(), None, [("f", '{"a": 1}')])

    def test_json_that_was_cut_before_it_is_clear_what_it_is_stays_content(self) -> None:
        assert read("llama3_json", '{"name": "An', [tool("f")], cut=True).content == '{"name": "An'

    def test_built_in_tools(self) -> None:
        text = '<|python_tag|>brave_search.call(query="weather in Oslo")'
        assert read("llama3_json", text).parsed == [("brave_search", {"query": "weather in Oslo"})]

    def test_code_for_the_interpreter(self) -> None:
        code = 'print("hello")\nx = {1: 2}'
        text = "<|python_tag|>" + code
        assert read("llama3_json", text, [tool("code_interpreter")]).parsed == [("code_interpreter", {"code": code})]
        assert read("llama3_json", text, [tool("code_interpreter")], cut=True).calls == []
        assert read("llama3_json", text, [tool("f")])[:3] == (text, None, [])


class TestPythonic:
    @pytest.mark.parametrize(
        ("text", "arguments"),
        [
            ('[f(city="Oslo", n=-1.5, on=True, x=None)]', {"city": "Oslo", "n": -1.5, "on": True, "x": None}),
            ("[f(a={'k': [1, (2, 3)]}, b='it\\'s, (b)')]", {"a": {"k": [1, [2, 3]]}, "b": "it's, (b)"}),
            ('[f(code="""x = "1"\ny""")]', {"code": 'x = "1"\ny'}),
            ('[f(a="line\nbreak")]', {"a": "line\nbreak"}),
            ("[f(a=now())]", {"a": "now()"}),  # no literal: handed over as it is
            ("[f()]", {}),
            ("[ f( a = 1 , b = 2 ) ]", {"a": 1, "b": 2}),
            ("[f(1, b=2)]", {"a": 1, "b": 2}),  # the schema knows the first parameter's name
            ("[f(a=true)]", {"a": True}),
            ("[f(a='')]", {"a": ""}),
        ],
    )
    def test_arguments(self, text: str, arguments: object) -> None:
        got = read("pythonic", text, [tool("f", a="integer", b="integer")])
        assert got.parsed == [("f", arguments)]
        assert got.content is None

    @pytest.mark.parametrize(
        "text",
        [
            "Use this format: [link text](url).",
            "[Wikipedia](https://www.wikipedia.org)",
            "[1, 2, 3]",
            "[]",
            "[g(a=1)]",  # no such tool
            "so [f(a=1)]",  # not at the start of a line
            "[f(a=1",
            "[f(a=1 # comment)]",
            "[f(a=(1]",
            "[f(a=)]",
        ],
    )
    def test_what_is_no_call(self, text: str) -> None:
        got = read("pythonic", text, [tool("f", a="integer")])
        assert got[:3] == (text, None, [])

    def test_any_name_with_dots(self) -> None:
        text = '<|tool_call_start|>[Calendar.create(title="demo")]<|tool_call_end|>'
        assert read("lfm2", text).parsed == [("Calendar.create", {"title": "demo"})]


class TestForced:
    """The answer is JSON without markers, since constrained decoding has made it so."""

    def test_a_named_function(self) -> None:
        got = every_cut(lambda: make_parser("hermes", None, forced="f"), '{"a": {"b": 1}}')
        assert got[:3] == (None, None, [("f", '{"a": {"b": 1}}')])

    def test_required(self) -> None:
        text = '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]'
        got = every_cut(lambda: make_parser(None, None, forced=""), text)
        assert got[:3] == (None, None, [("f", '{"a": 1}'), ("g", "{}")])

    def test_after_reasoning(self) -> None:
        text = 'hm\n</think>\n\n{"a": 1}'
        got = every_cut(lambda: make_parser("hermes", "qwen3", forced="f", prompt_end="<think>\n"), text)
        assert got[:3] == (None, "hm", [("f", '{"a": 1}')])

    def test_cut(self) -> None:
        got = every_cut(lambda: make_parser("hermes", None, forced="f"), '{"a": {"b": 1', cut=True)
        assert got[:3] == (None, None, [])
        assert got.whole == [("f", '{"a": {"b": 1')]
