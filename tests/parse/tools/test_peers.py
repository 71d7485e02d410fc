# ruff: noqa: E501  # a row of the table is a line
"""Malformed calls for which vLLM's and llama.cpp's tests record what they expect, and what we make of them.

Every row was written for this table; `like` names the peer's test that has the same construct. The rule: a call that
is recognisable in spite of small damage is a call; a call is never made up from prose, nor its data guessed. `why`
says where we do it another way than the peer.
"""

from typing import Any, NamedTuple

import pytest

from tests.parse.answers import Answer, every_cut
from tokenline.parse.registry import make_parser


def tool(name: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [tool("run", cmd="string", n="integer"), tool("look", at="string")]
RUN: tuple[str, dict[str, Any]] = ("run", {"cmd": "ls"})
LOOK: tuple[str, dict[str, Any]] = ("look", {"at": "sky"})


class Row(NamedTuple):
    parser: str
    like: str  # the peer's test
    text: str
    calls: list[tuple[str, Any]]
    content: str | None = None
    why: str = ""  # another result than the peer's


def whole(parser: str, like: str, text: str, why: str) -> Row:
    """No call: the text stays content as it stands."""
    return Row(parser, like, text, [], text, why)


_CALL = '{"name": "run", "arguments": {"cmd": "ls"}}'
_OPEN = '{"name": "run", "arguments": {"cmd": "ls"}'  # its own bracket is missing
_LOOK = '{"name": "look", "arguments": {"at": "sky"}}'
_DSML = "｜DSML｜"
_PEER_KEEPS = "the peer hands over arguments that are no JSON; no client can use them"

MISTRAL = [
    Row("mistral", "vllm mistral: argument_before_name", '[TOOL_CALLS] [{"arguments": {"cmd": "ls"}, "name": "run"}]', [RUN]),
    Row("mistral", "vllm mistral: multiple_bot_tokens_raises", f"[TOOL_CALLS] [{_CALL}][TOOL_CALLS] [{_LOOK}]", [RUN, LOOK], None, "both can be read; an error would lose them"),
    Row("mistral", "vllm mistral: regex_fallback", f"[TOOL_CALLS] Calling: [{_CALL}]", [RUN], "Calling:", "words before the list are content"),
    whole("mistral", "vllm mistral: regex_fallback_fails", "[TOOL_CALLS] no list here", "the peer drops the marker; no text is lost here"),
    Row("mistral", "vllm mistral: trailing_data_after_json", f"[TOOL_CALLS] [{_CALL}]\nand more", [RUN], "and more", "the peer drops what follows"),
    whole("mistral", "vllm mistral: v11_without_args_skipped", "[TOOL_CALLS]run", "the peer drops it; whether arguments were meant is not known"),
    Row("mistral", "sglang mistral: unknown tool in a list", f'[TOOL_CALLS] [{{"name": "other", "arguments": {{}}}}, {_CALL}]', [RUN], '[TOOL_CALLS] [{"name": "other", "arguments": {}}', "the unknown one is content"),
    whole("mistral", "unknown tools alone", '[TOOL_CALLS] [{"name": "other", "arguments": {}}, {"name": "more", "arguments": {}}]', ""),
    Row("mistral", "list without its end", f"[TOOL_CALLS] [{_CALL}", [RUN]),
    Row("mistral", "object without its end", f"[TOOL_CALLS] [{_OPEN}]", [RUN]),
    Row("mistral", "object without its end before the next", f"[TOOL_CALLS] [{_OPEN}, {_LOOK}]", [RUN, LOOK]),
    Row("mistral", "single quotes", "[TOOL_CALLS] [{'name': 'run', 'arguments': {'cmd': 'ls'}}]", [RUN]),
    Row("mistral", "llama.cpp: Mistral Small 3.2", '[TOOL_CALLS]run[CALL_ID]000000001[ARGS]{"cmd": "ls"}[TOOL_CALLS]look[CALL_ID]000000002[ARGS]{"at": "sky"}', [RUN, LOOK]),
    whole("mistral", "vllm mistral: complex", '[TOOL_CALLS]run[ARGS]{"cmd": "ls', _PEER_KEEPS),
]  # fmt: skip
JSON = [
    Row("hermes", "vllm hermes: non_streaming_tool_call_invalid_json", f"<tool_call>\n{_OPEN}", [RUN], None, "only the call's own bracket is missing; its arguments are complete"),
    Row("hermes", "no end tag before the next call", f"<tool_call>\n{_OPEN}\n<tool_call>{_LOOK}</tool_call>", [RUN, LOOK]),
    Row("hermes", "single quotes", "<tool_call>{'name': 'run', 'arguments': {'cmd': 'say \"a\" it\\'s'}}</tool_call>", [("run", {"cmd": 'say "a" it\'s'})]),
    whole("hermes", "keys without quotes", "<tool_call>{name: run, arguments: {}}</tool_call>", "words without quotes are a guess"),
    whole("granite", "vllm granite: malformed 1", '<|tool_call|> [{"name": "run", "arguments": {', ""),
    Row("granite", "vllm granite: malformed 2, no list", f"<|tool_call|> {_CALL}", [RUN]),
    whole("granite", "vllm granite: malformed 3, no marker", f"[{_CALL}]", "JSON without the marker may be an answer"),
    Row("granite-20b-fc", "vllm granite_20b_fc: a list", f"<function_call> [{_CALL}]", [RUN]),
    whole("granite-20b-fc", "vllm granite_20b_fc: a number for a name", '<function_call> {"name": 123}', ""),
    Row("internlm", "vllm internlm2: arguments that are no object", '<|action_start|><|plugin|>{"name": "run", "parameters": "ls"}<|action_end|>', [("run", "ls")], None, "a text, as the model wrote it; the client judges"),
    whole("internlm", "vllm internlm2: no plugin marker", f"<|action_start|>{_CALL}", ""),
    whole("longcat", "vllm longcat: malformed 3", "So <longcat_tool_call>no json", ""),
    Row("phi4_mini_json", "vllm phi4mini: no brackets", 'functools{"name": "run"}', [("run", {})]),
    Row("phi4_mini_json", "vllm phi4mini: no arguments", 'functools[{"name": "run"}]', [("run", {})]),
    whole("phi4_mini_json", "vllm phi4mini: an empty list", "functools[] is a module", ""),
    whole("phi4_mini_json", "vllm phi4mini: text in a list", "functools[ some words ]", ""),
    Row("jamba", "vllm jamba: no end tag", f"<tool_calls>[\n  {_CALL}\n]", [RUN]),
    Row("xlam", "list without its end", f"[{_CALL}", [RUN]),
    Row("llama3_json", "vllm llama3_json: surrounding text", f"Here: {_CALL}; {_LOOK} done", [RUN, LOOK], "Here:   done"),
    whole("llama3_json", "vllm llama3_json: invalid_json", '{"name": "run", "parameters": {so not}', ""),
    whole("llama3_json", "vllm llama3_json: missing_name_key", '{"parameters": {}}', ""),
    whole("llama3_json", "vllm llama3_json: missing parameters", '{"name": "run"}', ""),
]  # fmt: skip
NAMED = [
    whole("deepseek_v3", "vllm deepseekv3: malformed 1", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{"cmd": "ls"\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', ""),
    Row("deepseek_v3", "vllm deepseekv3: malformed 2, no begin of the call", '<｜tool▁calls▁begin｜>function<｜tool▁sep｜>run\n```json\n{"cmd": "ls"}\n```<｜tool▁calls▁end｜>', [RUN]),
    Row("deepseek_v31", "no begin of the call", '<｜tool▁calls▁begin｜>run<｜tool▁sep｜>{"cmd": "ls"}<｜tool▁calls▁end｜>', [RUN]),
    Row("kimi_k2", "vllm kimi_k2: invalid_json_still_extracted", '<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{"cmd": "ls"<|tool_call_end|><|tool_call_begin|>functions.look:1<|tool_call_argument_begin|>{"at": "sky"}<|tool_call_end|><|tool_calls_section_end|>', [LOOK], '<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{"cmd": "ls"<|tool_call_end|>', _PEER_KEEPS),
    Row("kimi_k2", "vllm kimi_k2: invalid_funcall_id_skipped", '<|tool_calls_section_begin|><|tool_call_begin|>functions.run.0<|tool_call_argument_begin|>{"cmd": "ls"}<|tool_call_end|><|tool_calls_section_end|>', [RUN], None, "the id still names the tool"),
    Row("apertus", "vllm apertus: incomplete_tool_call", '<|tools_prefix|>[{"run": {"cmd": "ls"}', [RUN]),
    Row("apertus", "an unknown tool in a list", '<|tools_prefix|>[{"other": {}}, {"run": {"cmd": "ls"}}]<|tools_suffix|>', [RUN], '<|tools_prefix|>[{"other": {}}'),
    whole("apertus", "unknown tools alone", '<|tools_prefix|>[{"other": {}}, {"more": {}}]<|tools_suffix|>', ""),
    Row("apertus", "vllm apertus: missing_tool_suffix", '<|tools_prefix|>[{"run": {"cmd": "ls"}}]', [RUN]),
]  # fmt: skip
PYTHON = [
    Row("pythonic", "vllm utils: sed_command_recovers_exact_value", "[run(cmd='sed -n '4,8p' a')]", [("run", {"cmd": "sed -n '4,8p' a"})]),
    Row("pythonic", "vllm utils: double_quote_variant", '[run(cmd="say "hi" now")]', [("run", {"cmd": 'say "hi" now'})]),
    Row("pythonic", "vllm utils: mixed_with_already_escaped_quote", "[run(cmd='it\\'s 'so' now')]", [("run", {"cmd": "it's 'so' now"})]),
    Row("pythonic", "vllm utils: nested_quotes_before_non_string_argument", "[run(cmd='awk '{x}' f', n=2)]", [("run", {"cmd": "awk '{x}' f", "n": 2})]),
    whole("pythonic", "vllm utils: ambiguous_nesting_left_unchanged", "[run(cmd='echo 'ls', n=2)]", ""),
    Row("pythonic", "strings beside each other", "[run(cmd='l' 's')]", [RUN]),
    Row("pythonic", "unpacked keys", "[run(cmd='ls', **{'to-day': [1]})]", [("run", {"cmd": "ls", "to-day": [1]})]),
    Row("lfm2", "our own template: keys that are no identifiers", '<|tool_call_start|>[run(**{"to-day": 1, "cmd": "ls"})]<|tool_call_end|>', [("run", {"to-day": 1, "cmd": "ls"})]),
    Row("llama4_pythonic", "vllm llama4_pythonic: simple, no markers", "[run(cmd='ls'),look(at='sky')]", [RUN, LOOK]),
    Row("llama4_pythonic", "vllm llama4_pythonic: python_tag", "<|python_start|>[run(cmd='ls')]<|python_end|>", [RUN]),
    whole("llama4_pythonic", "a list in prose", "[1] and f[run(cmd='ls')]", ""),
]  # fmt: skip
XML = [
    Row("qwen3_coder", "vllm qwen3coder: fallback_no_tags", "<function=run>\n<parameter=cmd>\nls\n</parameter>\n</function>", [RUN]),
    Row("qwen3_coder", "vllm qwen3coder: malformed_xml_no_gt_delimiter", "<tool_call>\n<function=run\n<parameter=cmd>ls</parameter>\n</function>\n</tool_call>", [RUN]),
    Row("qwen3_coder", "vllm qwen3coder: missing_closing_parameter_tag", "<tool_call>\n<function=run>\n<parameter=cmd>\nls\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>", [("run", {"cmd": "ls", "n": 2})]),
    Row("qwen3_coder", "no end of the call", "<tool_call>\n<function=run>\n<parameter=cmd>\nls\n</parameter>\n</tool_call>", [RUN]),
    Row("qwen3_coder", "Hermes' form", f"<tool_call>\n{_CALL}\n</tool_call>", [RUN]),
    Row("qwen3_coder", "JSON for parameters", '<tool_call>\n<function=run>\n{"cmd": "ls"}\n</function>\n</tool_call>', [RUN]),
    whole("qwen3_coder", "a JSON object that is no call", '<tool_call>\n{"a": 1}\n</tool_call>', ""),
    whole("qwen3_coder", "a value without its end", "<tool_call>\n<function=run>\n<parameter=cmd>\nls", "the value may not be complete"),
    Row("seed_oss", "no end of the parameter", "<seed:tool_call>\n<function=run>\n<parameter=cmd>ls</function>\n</seed:tool_call>", [RUN]),
    Row("minimax_m2", "no end of the call", '<minimax:tool_call>\n<invoke name="run">\n<parameter name="cmd">ls</parameter>\n</minimax:tool_call>', [RUN]),
    whole("minimax_m2", "names without quotes", "<minimax:tool_call><invoke name=run></invoke></minimax:tool_call>", "no report of a model that writes it"),
    Row("glm45", "no end of the value", "<tool_call>run<arg_key>cmd</arg_key><arg_value>ls</tool_call>", [RUN]),
    Row("glm47", "vllm glm47: no arguments", "<tool_call>run</tool_call>", [("run", {})]),
    Row("hy_v3", "no end of the section", "<tool_calls><tool_call>run<tool_sep><arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>", [RUN]),
    Row("step3", "vllm step3: malformed 1", '<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="run">', [("run", {})], None, "the model ended its turn; nothing is missing"),
    Row("deepseek_v4", "vllm deepseekv4: missing_tool_calls_wrapper_is_recovered", f'<{_DSML}invoke name="run">\n<{_DSML}parameter name="cmd" string="true">ls</{_DSML}parameter>\n</{_DSML}invoke>\n</{_DSML}tool_calls>', [RUN]),
    Row("deepseek_v32", "vllm deepseekv32: arguments_wrapper_repaired", f'<{_DSML}function_calls><{_DSML}invoke name="run"><{_DSML}parameter name="arguments" string="false">{{"cmd": "ls"}}</{_DSML}parameter></{_DSML}invoke></{_DSML}function_calls>', [RUN]),
    Row("deepseek_v32", "vllm deepseekv32: input_wrapper_repaired", f'<{_DSML}function_calls><{_DSML}invoke name="run"><{_DSML}parameter name="input" string="true">{{"cmd": "ls"}}</{_DSML}parameter></{_DSML}invoke></{_DSML}function_calls>', [RUN]),
    Row("minicpm5", "vllm minicpm5xml: properties_wrapped_arguments", "<function name=\"run\"><param name=\"properties\">{'cmd': 'ls'}</param></function>", [RUN]),
    Row("minicpm5", "vllm minicpm5xml: wrapped_arguments_still_validate_schema", '<function name="run"><param name="properties">{"x": "y"}</param></function>', [("run", {"properties": '{"x": "y"}'})], None, "handed over as it stands; the client judges"),
    Row("minicpm5", "vllm minicpm5xml: incomplete_missing_function_end", '<function name="run"><param name="cmd">ls</param>', [RUN], None, "all parameters are closed and the model ended its turn"),
    whole("minicpm5", "vllm minicpm5xml: param_missing_name_invalid", '<function name="run"><param>ls</param></function>', ""),
    whole("minicpm5", "vllm minicpm5xml: unknown_tool_block_preserved", '<function name="other"><param name="x">1</param></function>', ""),
    Row("minicpm5", "vllm minicpm5xml: extra_arguments_ignored", '<function name="run"><param name="cmd">ls</param><param name="x">1</param></function>', [("run", {"cmd": "ls", "x": "1"})], None, "nothing that the model wrote is dropped"),
]  # fmt: skip
GEMMA = [
    Row("gemma4", "vllm gemma4: bare_opener_non_streaming", '<|tool_call>:run{cmd:<|"|>ls<|"|>}<tool_call|>', [RUN]),
    whole("gemma4", "vllm gemma4: malformed_no_brace_bounded", "<|tool_call>call:run without braces<tool_call|>", "the peer calls a tool of a name with spaces"),
    Row("functiongemma", "no end of the call", "<start_function_call>call:run{cmd:<escape>ls<escape>", [RUN]),
]  # fmt: skip
HARMONY = [
    Row("openai", "llama.cpp: spaces around the header's words", '<|start|> assistant to=functions.run<|channel|> commentary <|constrain|>  json<|message|> {"cmd": "ls"}', [RUN]),
    Row("openai", "llama.cpp: a call in the analysis channel", '<|channel|>analysis to=functions.run<|message|>{"cmd": "ls"}', [RUN]),
    Row("openai", "llama.cpp: parallel calls behind <|end|>", '<|channel|>commentary to=functions.run<|message|>{"cmd": "ls"}<|end|><|start|>assistant to=functions.look<|channel|>commentary<|message|>{"at": "sky"}', [RUN, LOOK]),
    Row("openai", "llama.cpp: commentary to=assistant", "<|channel|>commentary to=assistant<|channel|>final<|message|>Hi", [], "Hi"),
    Row("openai", "an object without its end", '<|channel|>commentary to=functions.run<|message|>{"cmd": "ls"<|call|>', [], '{"cmd": "ls"'),
]  # fmt: skip
ROWS = [*MISTRAL, *JSON, *NAMED, *PYTHON, *XML, *GEMMA, *HARMONY]


def read(row: Row) -> Answer:
    return every_cut(lambda: make_parser(row.parser, None, tools=TOOLS), row.text)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.parser}: {row.like}" for row in ROWS])
def test_malformed_calls(row: Row) -> None:
    got = read(row)
    assert got.parsed == row.calls
    assert got.content == row.content
