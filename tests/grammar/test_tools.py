"""Tool calls from both sides: what a grammar lets through is what its parser reads, and holds to the schema."""

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.grammar.drive import allowed_ids, constraint, is_allowed
from tests.parse.fake_tokens import Vocabulary
from tokenline.grammar.compiler import GrammarCompiler, MakeGrammar
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import CallsOrAnswer, Function, JsonSchema, NamedCall, RequiredCalls, StrictTools
from tokenline.grammar.tool_formats import FORMATS
from tokenline.parse.delta import ContentDelta, ToolCallDelta
from tokenline.parse.registry import make_parser, tool_parsers

MARKERS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<tool_calls>"),
    *("</tool_calls>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<seed:tool_call>", "</seed:tool_call>"),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|tool_call_start|>", "<|python_start|>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|role_sep|>", "｜DSML｜"),
]
END = 256
CONTROLS = {marker: END + 1 + index for index, marker in enumerate(MARKERS)}
TEXT_TOKENS = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|end|>"], special={END})
CONTROL_TOKENS = Vocabulary([*TEXT_TOKENS.pieces, *MARKERS], special={END, *CONTROLS.values()})


@pytest.fixture(scope="module", params=["text", "control"])
def markers(request: pytest.FixtureRequest) -> str:
    """Whether markers are ordinary text of the vocabulary, or control tokens."""
    return request.param


@pytest.fixture(scope="module")
def tokens(markers: str) -> Vocabulary:
    return CONTROL_TOKENS if markers == "control" else TEXT_TOKENS


@pytest.fixture(scope="module")
def compiler(tokens: Vocabulary) -> GrammarCompiler:
    size = len(tokens.pieces)
    return GrammarCompiler(tokens, size, size, {END})


def ids_of(text: str, tokens: Vocabulary) -> list[int]:
    """As a model writes it: markers are its control tokens, where it has them."""
    if len(tokens.pieces) == END + 1:
        return list(text.encode())
    pieces = re.split(f"({'|'.join(map(re.escape, MARKERS))})", text)
    return [i for piece in pieces for i in ([CONTROLS[piece]] if piece in CONTROLS else piece.encode())]


def lets_through(make: MakeGrammar, text: str, tokens: Vocabulary) -> bool:
    grammar = make()
    for token_id in [*ids_of(text, tokens), END]:
        if not is_allowed(grammar, token_id):
            return False
        grammar.accept(token_id)
    return True


STRING = {"type": "string"}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "text": {"type": "string"},
        "kind": {"enum": ["昆虫", "arachnid"]},
        "code": {"type": "string", "pattern": "^[a-z]{2,4}$"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "flag": {"type": "boolean"},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["count", "kind"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
FUNCTIONS = (
    Function("count_legs", PARAMETERS, strict=True),
    Function("note", {"type": "object"}),
    Function("stop", None, strict=True),
)
NO_PARAMETERS = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "function": {"name": function.name, "parameters": function.parameters or NO_PARAMETERS}}
    for function in FUNCTIONS
]


def check(name: str, arguments: str) -> None:
    """That a call holds to the schema of its function."""
    value = json.loads(arguments)
    assert isinstance(value, dict)
    if name == "stop":
        assert value == {}
    elif name == "count_legs":
        assert set(value) <= set(PARAMETERS["properties"])
        assert 0 <= value["count"] <= 99
        assert isinstance(value["count"], int)
        assert value["kind"] in ("昆虫", "arachnid")
        assert isinstance(value.get("text", ""), str)
        assert re.fullmatch("[a-z]{2,4}", value.get("code", "ab"))
        assert isinstance(value.get("maybe"), str | None)
        assert all(isinstance(item, int) for item in value.get("list", []))
        assert len(value.get("list", [])) <= 3
        assert isinstance(value.get("flag", True), bool)
        assert set(value.get("where", {"x": 1})) == {"x"}
    else:
        assert name == "note"


def read(
    ids: Sequence[int], tokens: Vocabulary, tool_parser: str | None, forced: str | None = None, tools: Any = None
) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, as the parser reads these ids."""
    controls = {tokens.pieces[i].decode() for i in tokens.special} if tokens is CONTROL_TOKENS else set()
    parser = make_parser(tool_parser, None, tools=tools or TOOLS, control_tokens=controls or None, forced=forced)
    deltas, text = [], b""
    for token_id in [*ids, None]:
        if token_id is not None and not tokens.is_special(token_id):
            text += tokens.token_bytes(token_id)
            continue
        if text:
            deltas += parser.feed(text.decode("utf-8", "replace"))
            text = b""
        if token_id is not None and tokens.pieces[token_id].decode() in parser.control_tokens:
            deltas += parser.feed(tokens.pieces[token_id].decode(), control=True)
    deltas += parser.finish(cut=False)
    content, calls = "", {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            found = calls.setdefault(delta.index, ["", ""])
            found[0] = delta.name or found[0]
            found[1] += delta.arguments
        else:
            content += delta.text if isinstance(delta, ContentDelta) else ""
    assert sorted(calls) == sorted(parser.complete_calls), "every call that was begun is complete"
    return content, [tuple(calls[index]) for index in sorted(calls)]


ARGUMENTS = {
    "count": 8,
    "text": 'a "b"\n<x> 中',
    "kind": "昆虫",
    "code": "abc",
    "maybe": None,
    "list": [1, 2],
    "flag": True,
    "where": {"x": 1.5},
}
LEAST = {"count": 0, "kind": "arachnid"}


def xml(
    name: str,
    arguments: dict[str, Any],
    opened: str,
    closed: str,
    *,
    function: str,
    key: str,
    after: str,
    end: str,
    line: str = "\n",
) -> str:
    values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
    parameters = "".join(f"{key}{k}{after}{line}{v}{line}{end}\n" for k, v in values.items())
    call_end = "</invoke>" if "invoke" in function else "</function>"
    return f"{opened}\n{function.replace('NAME', name)}\n{parameters}{call_end}\n{closed}"


def written(tool_parser: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as the models of this format write it."""
    text = json.dumps(arguments, ensure_ascii=False)
    call = f'{{"name": "{name}", "arguments": {text}}}'
    match tool_parser:
        case "apertus":
            return f'<|tools_prefix|>[{{"{name}": {text}}}]<|tools_suffix|>'
        case "internlm":
            return f'<|action_start|><|plugin|>{{"name": "{name}", "parameters": {text}}}<|action_end|>'
        case "command_r":
            return f'Action: ```json\n[{{"tool_name": "{name}", "parameters": {text}}}]```'
        case "functiongemma":
            return f"<start_function_call>call:{name}{text}<end_function_call>"
        case "minicpm5":
            values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
            pairs = "".join(f'<param name="{k}">{v}</param>' for k, v in values.items())
            return f'<function name="{name}">{pairs}</function>'
        case "step3":
            values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
            pairs = "".join(f'<steptml:parameter name="{k}">{v}</steptml:parameter>' for k, v in values.items())
            return f'<steptml:invoke name="{name}">{pairs}</steptml:invoke>'
        case "hy_v3" | "hy_v3_opensource":
            s = ":opensource" if tool_parser == "hy_v3_opensource" else ""
            values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
            pairs = "".join(
                f"<arg_key{s}>{k}</arg_key{s}>\n<arg_value{s}>{v}</arg_value{s}>\n" for k, v in values.items()
            )
            call = f"<tool_call{s}>{name}<tool_sep{s}>\n{pairs}</tool_call{s}>"
            return f"<tool_calls{s}>\n{call}\n</tool_calls{s}>"
        case "hermes" | "ernie45":
            return f"<tool_call>\n{call}\n</tool_call>"
        case "longcat":
            return f"<longcat_tool_call>\n{call}\n</longcat_tool_call>"
        case "nemotron_v2":
            return f"<TOOLCALL>[{call}]</TOOLCALL>"
        case "jamba" | "hunyuan_a13b":
            return f"<tool_calls>[\n{call}\n]</tool_calls>"
        case "minimax":
            return f"<tool_calls>\n{call}\n</tool_calls>"
        case "granite-20b-fc":
            return f"<function_call> {call}"
        case "gigachat3":
            return f"function call<|role_sep|>\n{call}"
        case "cohere":
            call = f'{{"tool_call_id": "0", "tool_name": "{name}", "parameters": {text}}}'
            return f"<|START_ACTION|>[\n{call}\n]<|END_ACTION|>"
        case "pythonic" | "llama4_pythonic" | "lfm2" | "olmo3":
            pairs = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
            call = f"{name}({', '.join(pairs)})"
            return {
                "pythonic": f"[{call}]",
                "llama4_pythonic": f"<|python_start|>[{call}]<|python_end|>",
                "lfm2": f"<|tool_call_start|>[{call}]<|tool_call_end|>",
                "olmo3": f"<function_calls>\n{call}\n</function_calls>",
            }[tool_parser]
        case "phi4_mini_json":
            return f"functools[{call}]"
        case "granite":
            return f"<|tool_call|>[{call}]"
        case "llama3_json" | "llama4_json":
            return f'{{"name": "{name}", "parameters": {text}}}'
        case "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{text}"
        case "functionary_v3_1":
            return f"<function={name}>{text}</function>"
        case "deepseek_v31":
            called = f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
            return f"<｜tool▁calls▁begin｜>{called}<｜tool▁calls▁end｜>"
        case "gemma4":
            return f"<|tool_call>call:{name}{text}<tool_call|>"
        case "deepseek_v3":
            called = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
            return f"<｜tool▁calls▁begin｜>{called}<｜tool▁calls▁end｜>"
        case "kimi_k2":
            return (
                f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{text}"
                "<|tool_call_end|><|tool_calls_section_end|>"
            )
        case "qwen3_coder" | "qwen3_xml" | "step3p5":
            return xml(
                name,
                arguments,
                "<tool_call>",
                "</tool_call>",
                function="<function=NAME>",
                key="<parameter=",
                after=">",
                end="</parameter>",
            )
        case "seed_oss":
            return xml(
                name,
                arguments,
                "<seed:tool_call>",
                "</seed:tool_call>",
                function="<function=NAME>",
                key="<parameter=",
                after=">",
                end="</parameter>",
                line="",
            )
        case "minimax_m2":
            return xml(
                name,
                arguments,
                "<minimax:tool_call>",
                "</minimax:tool_call>",
                function='<invoke name="NAME">',
                key='<parameter name="',
                after='">',
                end="</parameter>",
                line="",
            )
        case "deepseek_v32" | "deepseek_v4":
            section = "function_calls" if tool_parser == "deepseek_v32" else "tool_calls"
            lines = [f'<｜DSML｜{section}>\n<｜DSML｜invoke name="{name}">']
            for key, value in arguments.items():
                is_text = isinstance(value, str)
                shown = value if is_text else json.dumps(value, ensure_ascii=False)
                typed = f'string="{str(is_text).lower()}"'
                lines.append(f'<｜DSML｜parameter name="{key}" {typed}>{shown}</｜DSML｜parameter>')
            return "\n".join([*lines, f"</｜DSML｜invoke>\n</｜DSML｜{section}>"])
        case "glm45" | "glm47":
            values = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
            return (
                f"<tool_call>{name}\n"
                + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items())
                + "</tool_call>"
            )
    raise AssertionError(tool_parser)


@pytest.mark.parametrize("tool_parser", sorted(set(FORMATS) - {"openai"}))
class TestStrict:
    @pytest.fixture
    def make(self, compiler: GrammarCompiler, tool_parser: str) -> MakeGrammar:
        return compiler.compile(constraint(StrictTools(FUNCTIONS, tool_parser)))

    def test_the_parser_is_known(self, tool_parser: str):
        assert tool_parser in tool_parsers()

    def test_text_is_free(self, make: MakeGrammar, tokens: Vocabulary):
        for text in ("", 'Hello 中文 😀 <b>x</b> [1] {y}\n\n{"key": 1}\n- "name": <', "```json\n{}\n```"):
            assert lets_through(make, text, tokens), text

    def test_right_calls_are_let_through_and_read(self, make: MakeGrammar, tokens: Vocabulary, tool_parser: str):
        for name, arguments in (
            ("count_legs", ARGUMENTS),
            ("count_legs", LEAST),
            ("note", {"a": "x", "b": "y"}),
            ("stop", {}),
        ):
            text = "Let me see.\n" + written(tool_parser, name, arguments)
            assert lets_through(make, text, tokens), text
            content, calls = read(ids_of(text, tokens), tokens, tool_parser)
            assert content.strip() == "Let me see."
            assert [(called, json.loads(made)) for called, made in calls] == [(name, arguments)]

    def test_several_calls(self, make: MakeGrammar, tokens: Vocabulary, tool_parser: str):
        text = "\n".join(written(tool_parser, "count_legs", LEAST) for _ in range(3)) + "\nDone."
        assert lets_through(make, text, tokens)
        assert len(read(ids_of(text, tokens), tokens, tool_parser)[1]) == 3

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("count_legs", {}),
            ("count_legs", {"count": 100, "kind": "arachnid"}),
            ("count_legs", {"count": "x", "kind": "arachnid"}),
            ("count_legs", {"count": 1, "kind": "bird"}),
            ("count_legs", {**LEAST, "code": "TOO LONG"}),
            ("count_legs", {**LEAST, "list": [1, 2, 3, 4]}),
            ("count_legs", {**LEAST, "where": {}}),
            ("count_legs", {**LEAST, "more": 1}),
            ("stop", {"now": True}),
            ("unknown", {}),
            ("count", LEAST),
        ],
    )
    def test_wrong_calls_are_not(
        self, make: MakeGrammar, tokens: Vocabulary, tool_parser: str, name: str, arguments: Any
    ):
        if tool_parser == "pythonic" and name not in ("count_legs", "stop"):
            return  # without a marker, only a list of calls of the request's tools is one; the reader sees text, too
        assert not lets_through(make, "!\n" + written(tool_parser, name, arguments), tokens)

    @pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
    def test_whatever_is_drawn_holds(self, make: MakeGrammar, tokens: Vocabulary, tool_parser: str, seed: int):
        """Random ids, begun like a call, so that there are some."""
        drawn = random.Random(seed)
        grammar = make()
        start = written(tool_parser, "count_legs", LEAST)
        head = start.index("count_legs(") + 11 if tool_parser == "pythonic" else start.index("count_legs")
        ids = ids_of("A\n" + start[:head], tokens)
        for token_id in ids:
            grammar.accept(token_id)
        for _ in range(1_500):
            allowed = allowed_ids(grammar, len(tokens.pieces))
            if END in allowed:
                break
            likely = [i for i in allowed if i in (34, 125, 93, 10) or i > END or chr(i) in "</>0aspt"]
            ids.append(int(drawn.choice(likely if likely and drawn.random() < 0.7 else list(allowed))))
            grammar.accept(ids[-1])
        else:
            return  # it ran on
        _, calls = read(ids, tokens, tool_parser)
        for name, arguments in calls:
            check(name, arguments)
        assert calls


def test_calls_of_llama_behind_its_tag(compiler: GrammarCompiler, tokens: Vocabulary):
    make = compiler.compile(constraint(StrictTools(FUNCTIONS, "llama3_json")))
    call = written("llama3_json", "count_legs", LEAST)
    for text in (f"<|python_tag|>{call}", f"<|python_tag|>{call}; {call}", f"a\n  {call};\n{call} b"):
        assert lets_through(make, text, tokens)
        for name, arguments in read(ids_of(text, tokens), tokens, "llama3_json")[1]:
            check(name, arguments)
    for text in (
        "<|python_tag|>print(1)",
        '{"parameters": {}, "name": "count_legs"}',
        '\n { "type": "function"',
        '{"id": 1}',
    ):
        assert not lets_through(make, text, tokens)
    for text in ('see {"name": 1}', '{"other": {"name": "count_legs"}}', "{}\n{ }", '{"n": 1}\nx'):
        assert lets_through(make, text, tokens)


def test_a_section_that_was_left_out(compiler: GrammarCompiler, tokens: Vocabulary):
    """Parsers read such a call, so it must hold, too."""
    inner = written("qwen3_coder", "count_legs", LEAST).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    make = compiler.compile(constraint(StrictTools(FUNCTIONS, "qwen3_coder")))
    assert lets_through(make, inner, tokens)
    assert read(ids_of(inner, tokens), tokens, "qwen3_coder")[1]
    assert not lets_through(make, inner.replace("arachnid", "bird"), tokens)


def test_a_value_that_looks_like_its_end(compiler: GrammarCompiler, tokens: Vocabulary):
    make = compiler.compile(constraint(StrictTools(FUNCTIONS, "qwen3_coder")))
    for text in ("</parameter>\n</function>", "x</function>", "<parameter=count>"):
        assert not lets_through(make, written("qwen3_coder", "count_legs", {**LEAST, "text": text}) + "z", tokens)


class TestMixedTypes:
    """Formats without types: what a text is read as must be what was meant."""

    @pytest.mark.parametrize(
        ("schema", "right", "wrong"),
        [
            ({"type": ["string", "integer"]}, ["12", "x"], []),
            ({}, ["12", '{"a": 1}', "x"], []),
            ({"type": ["string", "null"], "enum": ["a", None]}, ["a", "null"], ["b", "Null"]),
            ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}, ["ab", "中文", "null"], ["abc"]),
            ({"type": ["integer", "null"]}, ["3", "null"], ["x"]),
            ({"type": "string", "format": "date-time", "minLength": 2}, ["ab"], ["a"]),
            ({"type": "string", "pattern": "^(?=.*a)[a-z]+$"}, ["bab"], ["bb"]),
            ({"const": "x\ny"}, ["x\ny"], ["x"]),
            ({"oneOf": [{"const": "a"}, {"const": "b"}]}, ["a", "b"], ["c"]),
            ({"type": ["string", "integer"], "minimum": 3}, ["a 12", "3", "x", ""], ["2", "2.5", "3 a"]),
            ({"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "integer"}]}, ["ab", "12"], ["b", "1.5"]),
            ({"anyOf": [STRING, {"type": "array", "items": {"type": "integer"}}]}, ["a [1]", "[1, 2]"], ['["a"]']),
            ({"anyOf": [STRING, {"enum": [True, None]}]}, ["yes", "true", "null"], ["false", "None", "TRUE"]),
        ],
    )  # fmt: skip
    def test_enforced(
        self, compiler: GrammarCompiler, tokens: Vocabulary, schema: Any, right: list[str], wrong: list[str]
    ):
        function = Function("f", {"type": "object", "properties": {"p": schema}, "required": ["p"]}, strict=True)
        make = compiler.compile(constraint(StrictTools((function,), "qwen3_coder")))
        for text in right:
            assert lets_through(make, written("qwen3_coder", "f", {"p": text}), tokens), text
        for text in wrong:
            assert not lets_through(make, written("qwen3_coder", "f", {"p": text}), tokens), text

    @pytest.mark.parametrize(
        "schema",
        [{"anyOf": [{"type": "string", "pattern": "^a"}, {}]}, {"anyOf": [{"maxLength": 3}, {"type": "integer"}]}],
    )
    def test_refused(self, compiler: GrammarCompiler, schema: Any):
        function = Function("f", {"type": "object", "properties": {"p": schema}}, strict=True)
        with pytest.raises(ConstraintError, match="another type than it was meant") as refused:
            compiler.compile(constraint(StrictTools((FUNCTIONS[1], function), "qwen3_coder")))
        assert refused.value.path == ("tools", 1, "function", "parameters", "properties", "p")
        compiler.compile(constraint(StrictTools((function,), "hermes")))

    @pytest.mark.parametrize(
        "schema", [{"type": ["string", "integer"], "minimum": 3}, {"type": ["string", "array"], "maxItems": 1}]
    )
    def test_what_is_meant_is_what_is_read(self, compiler: GrammarCompiler, tokens: Vocabulary, schema: Any):
        function = Function(
            "count_legs", {"type": "object", "properties": {"count": schema}, "required": ["count"]}, True
        )
        tools = [{"type": "function", "function": {"name": "count_legs", "parameters": function.parameters}}]
        make = compiler.compile(constraint(StrictTools((function,), "qwen3_coder")))
        for text in ("3", "x", "a 1", "[1]", "[1, 2]", "2", "-", "12 Main St", "[draft]", " 4 ", "none"):
            call = written("qwen3_coder", "count_legs", {"count": text})
            if not lets_through(make, call, tokens):
                continue
            ((_, arguments),) = read(ids_of(call, tokens), tokens, "qwen3_coder", tools=tools)[1]
            value = json.loads(arguments)["count"]
            assert isinstance(value, str) or (value >= 3 if isinstance(value, int) else len(value) <= 1), text


class TestForced:
    def test_named(self, compiler: GrammarCompiler, tokens: Vocabulary):
        make = compiler.compile(constraint(NamedCall(FUNCTIONS[0])))
        for indent in (None, 2):
            text = json.dumps(ARGUMENTS, ensure_ascii=False, indent=indent)
            assert lets_through(make, text, tokens)
            ((name, arguments),) = read(ids_of(text, tokens), tokens, None, forced="count_legs")[1]
            assert name == "count_legs"
            assert json.loads(arguments) == ARGUMENTS
        assert not lets_through(make, "{}", tokens)

    @pytest.mark.parametrize("parameters", [None, {}])
    def test_a_function_without_parameters_takes_none(
        self, compiler: GrammarCompiler, tokens: Vocabulary, parameters: Any
    ):
        make = compiler.compile(constraint(NamedCall(Function("f", parameters))))
        assert lets_through(make, "{}", tokens)
        assert not lets_through(make, '{"a": 1}', tokens)

    @pytest.mark.parametrize(
        "parameters",
        [
            True,
            {"properties": {"a": {"type": "integer"}}},
            {"$ref": "#/$defs/p", "$defs": {"p": {"minProperties": 0}}},
            {"type": ["object", "string"]},
            {"anyOf": [{"type": "object"}, {"type": "null"}]},
        ],
    )  # fmt: skip
    def test_arguments_are_an_object_whatever_the_schema_leaves_open(
        self, compiler: GrammarCompiler, tokens: Vocabulary, parameters: Any
    ):
        make = compiler.compile(constraint(NamedCall(Function("f", parameters))))
        assert lets_through(make, '{"a": 1}', tokens)
        for text in ("1", "null", '"x"', "[]"):
            assert not lets_through(make, text, tokens)

    @pytest.mark.parametrize("parallel", [True, False])
    def test_required(self, compiler: GrammarCompiler, tokens: Vocabulary, parallel: bool):
        make = compiler.compile(constraint(RequiredCalls(FUNCTIONS, parallel)))
        calls = [{"name": "count_legs", "parameters": LEAST}, {"name": "stop", "parameters": {}}]
        for count in (1, 2):
            text = json.dumps(calls[:count])
            assert lets_through(make, text, tokens) == (parallel or count == 1)
            found = read(ids_of(text, tokens), tokens, None, forced="")[1]
            assert [(name, json.loads(arguments)) for name, arguments in found] == [
                (call["name"], call["parameters"]) for call in calls[:count]
            ]
        for wrong in (
            [],
            [{"name": "x", "parameters": {}}],
            [{"name": "stop"}],
            [{"name": "count_legs", "parameters": {}}],
        ):
            assert not lets_through(make, json.dumps(wrong), tokens)

    def test_definitions_of_one_function_are_not_anothers(self, compiler: GrammarCompiler, tokens: Vocabulary):
        def function(name: str, kind: str) -> Function:
            schema = {
                "type": "object",
                "properties": {"p": {"$ref": "#/$defs/x"}},
                "required": ["p"],
                "$defs": {"x": {"type": kind}},
            }
            return Function(name, schema, strict=True)

        functions = (function("f", "integer"), function("g", "boolean"))
        for form, text in (
            (RequiredCalls(functions), '[{"name": "NAME", "parameters": {"p": VALUE}}]'),
            (StrictTools(functions, "hermes"), '<tool_call>{"name": "NAME", "arguments": {"p": VALUE}}</tool_call>'),
        ):
            make = compiler.compile(constraint(form))
            for name, value, right in (("f", "1", True), ("g", "true", True), ("f", "true", False), ("g", "1", False)):
                assert lets_through(make, text.replace("NAME", name).replace("VALUE", value), tokens) == right


class TestErrors:
    ODD = Function("odd", {"type": "object", "properties": {"a": {"uniqueItems": True}}}, strict=True)
    PATH = ("tools", 3, "function", "parameters", "properties", "a", "uniqueItems")

    @pytest.mark.parametrize(
        "form",
        [
            NamedCall(ODD, 3),
            RequiredCalls((*FUNCTIONS, ODD)),
            StrictTools((*FUNCTIONS, ODD), "hermes"),
            StrictTools((*FUNCTIONS, ODD), "qwen3_coder"),
        ],
    )
    def test_the_place_is_that_of_the_tool(self, compiler: GrammarCompiler, form: Any):
        with pytest.raises(ConstraintError, match="compare items") as refused:
            compiler.compile(constraint(form))
        assert refused.value.path == self.PATH

    def test_what_the_library_refuses_is_found_in_its_tool(self, compiler: GrammarCompiler):
        odd = Function(
            "odd",
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"]},
            True,
        )
        for form in (NamedCall(odd, 3), RequiredCalls((*FUNCTIONS, odd)), StrictTools((*FUNCTIONS, odd), "hermes")):
            with pytest.raises(ConstraintError, match="cannot be fulfilled") as refused:
                compiler.compile(constraint(form))
            assert refused.value.path == (*self.PATH[:-1], "minimum")

    def test_a_function_that_is_not_strict_may_say_what_it_likes(self, compiler: GrammarCompiler, tokens: Vocabulary):
        free = Function("odd", self.ODD.parameters, strict=False)
        make = compiler.compile(constraint(StrictTools((FUNCTIONS[0], free), "hermes")))
        assert lets_through(make, written("hermes", "odd", {"a": [1, 1]}), tokens)

    @pytest.mark.parametrize("tool_parser", [*sorted({*tool_parsers()} - {*FORMATS}), "nope"])
    def test_formats_that_cannot_be_enforced(self, compiler: GrammarCompiler, tool_parser: str):
        with pytest.raises(ConstraintError, match=f"parser, {tool_parser}, is not known") as refused:
            compiler.compile(constraint(StrictTools(FUNCTIONS, tool_parser)))
        assert refused.value.path == ("tools",)
        compiler.compile(constraint(CallsOrAnswer((FUNCTIONS[1],), tool_parser, JsonSchema({}), ("<call>",))))

    def test_most_formats_can_be(self):
        assert len({*tool_parsers()} - {*FORMATS}) <= 4

    def test_no_functions(self, compiler: GrammarCompiler):
        for form in (RequiredCalls(()), StrictTools((), "hermes")):
            with pytest.raises(ConstraintError, match="at least one"):
                compiler.compile(constraint(form))


def test_gemmas_own_spelling_where_nothing_is_strict(compiler: GrammarCompiler, tokens: Vocabulary):
    make = compiler.compile(constraint(StrictTools(FUNCTIONS, "gemma4")))
    text = '<|tool_call>call:note{a:<|"|>say "hi"\n<|"|>,b:[1,-2.5,true],c:{d:null}}<tool_call|>'
    assert lets_through(make, text, tokens)
    ((name, arguments),) = read(ids_of(text, tokens), tokens, "gemma4")[1]
    assert (name, json.loads(arguments)) == ("note", {"a": 'say "hi"\n', "b": [1, -2.5, True], "c": {"d": None}})
    assert not lets_through(make, text.replace("note", "count_legs"), tokens)


UNION = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": kind}, "value": {"type": "string"}}, "required": ["kind"]}
        for kind in ("a", "b")
    ]
}


def test_alternatives_that_can_be_told_apart_are_enforced(compiler: GrammarCompiler, tokens: Vocabulary):
    for strict in (True, False):
        function = Function("f", {"type": "object", "properties": {"u": UNION}, "required": ["u"]}, strict)
        make = compiler.compile(constraint(RequiredCalls((function,))))
        assert make.left_out == ()
        assert lets_through(make, '[{"name": "f", "parameters": {"u": {"kind": "b", "value": "x"}}}]', tokens)
        assert not lets_through(make, '[{"name": "f", "parameters": {"u": {"kind": "c"}}}]', tokens)


UNIQUE: Any = {"type": "object", "properties": {"a": {"type": "array", "items": STRING, "uniqueItems": True}}}


class TestLenient:
    """Case r2-08: what cannot be enforced of a tool that is not strict is left to the model."""

    PLACE = ("tools", 1, "function", "parameters", "properties", "a", "uniqueItems")

    def test_what_is_left_out_is_said(self, compiler: GrammarCompiler):
        for form in (NamedCall(Function("odd", UNIQUE), 1), RequiredCalls((FUNCTIONS[0], Function("odd", UNIQUE)))):
            assert compiler.compile(constraint(form)).left_out == (self.PLACE,)

    def test_beside_strict_ones(self, compiler: GrammarCompiler):
        """Each schema is as strict as it was asked to be, also beside an answer that is not."""
        lenient = JsonSchema(UNIQUE, lenient=True)
        strict = (FUNCTIONS[0], Function("odd", UNIQUE, strict=True))
        for form in (RequiredCalls(strict), CallsOrAnswer(strict, "hermes", lenient)):
            with pytest.raises(ConstraintError, match="compare items") as refused:
                compiler.compile(constraint(form))
            assert refused.value.path == self.PLACE
        with pytest.raises(ConstraintError, match="compare items") as refused:
            compiler.compile(constraint(CallsOrAnswer((Function("odd", UNIQUE),), "hermes", JsonSchema(UNIQUE))))
        assert refused.value.path == self.PLACE[4:]
        made = compiler.compile(constraint(CallsOrAnswer((FUNCTIONS[0],), "hermes", lenient)))
        assert made.left_out == (self.PLACE[4:],)

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            ({"type": "foo"}, "must be one of"),
            ({"properties": {"a": {"minimum": 3, "maximum": 2, "type": "integer"}}, "required": ["a"]}, "fulfilled"),
        ],
    )
    def test_what_is_wrong_is_an_error(self, compiler: GrammarCompiler, schema: Any, said: str):
        with pytest.raises(ConstraintError, match=said):
            compiler.compile(constraint(RequiredCalls((Function("f", schema),))))

    def test_a_schema_that_is_too_large_is_left_out_as_a_whole(self, compiler: GrammarCompiler, tokens: Vocabulary):
        large = Function("f", {"type": "object", "description": "x" * 600_000})
        make = compiler.compile(constraint(RequiredCalls((FUNCTIONS[0], large))))
        assert make.left_out == (self.PLACE[:4],)
        assert lets_through(make, '[{"name": "f", "parameters": {"x": 1}}]', tokens)
        assert not lets_through(make, '[{"name": "f", "parameters": 1}]', tokens)

    def test_references_that_lead_nowhere(self, compiler: GrammarCompiler, tokens: Vocabulary):
        schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}, "b": STRING}, "required": ["a", "b"]}
        make = compiler.compile(constraint(NamedCall(Function("f", schema))))
        assert lets_through(make, '{"a": [1], "b": "x"}', tokens)
        assert not lets_through(make, '{"a": [1], "b": 1}', tokens)
