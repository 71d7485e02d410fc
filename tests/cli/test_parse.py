import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tokenline.cli.main import OneLineErrors
from tokenline.cli.parse import parse

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": "scan", "parameters": {"properties": {"limit": {"type": "integer"}}}}}
]


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    app = typer.Typer(cls=OneLineErrors)
    app.callback()(lambda: None)  # so that "parse" is a command of the app, as it is of `tokenline`
    app.command()(parse)
    return CliRunner().invoke(app, ["parse", *arguments], input=stdin)


def parsed(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_tool_call_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    file.write_text("On it.\n" + CALL)
    got = parsed(str(file), "--tool-call-parser", "hermes")
    (call,) = got["message"]["tool_calls"]
    assert got["message"]["content"] == "On it."
    assert (call["type"], call["function"]) == ("function", {"name": "weather", "arguments": '{"city": "Oslo"}'})
    assert got["finish_reason"] == "tool_calls"
    assert got["deltas"][0] == {"content": "On it."}


def test_pieces_give_deltas_as_a_client_gets_them() -> None:
    pieces = ['<tool_call>\n{"name": "weather", "arguments": {"ci', 'ty": "Os', 'lo"}}\n</tool_call>']
    got = parsed("-", "--pieces", "--tool-call-parser", "hermes", stdin=json.dumps(pieces))
    first, *later = [call for delta in got["deltas"] for call in delta["tool_calls"]]
    assert first["id"] == got["message"]["tool_calls"][0]["id"]
    assert first["function"]["name"] == "weather"
    assert [call["function"] for call in later] == [{"arguments": 'ty": "Os'}, {"arguments": 'lo"}'}]
    assert all("id" not in call and "type" not in call for call in later)


def test_without_a_file_it_reads_stdin() -> None:
    got = parsed(stdin="just text\n")
    assert got == {
        "message": {"role": "assistant", "content": "just text\n"},
        "finish_reason": "stop",
        "deltas": [{"content": "just text\n"}],
    }


def test_reasoning_that_the_prompt_has_opened() -> None:
    got = parsed("--reasoning-parser", "qwen3", "--prompt-end", "<think>\n", stdin="Hm.\n</think>\n\n4")
    assert got["message"] == {"role": "assistant", "content": "4", "reasoning_content": "Hm.", "reasoning": "Hm."}


def test_the_types_come_from_the_tools(tmp_path: Path) -> None:
    text = "<tool_call>\n<function=scan>\n<parameter=limit>\n7\n</parameter>\n</function>\n</tool_call>"
    file = tmp_path / "tools.json"
    for content in (TOOLS, {"messages": [], "tools": TOOLS}):
        file.write_text(json.dumps(content))
        got = parsed("--tool-call-parser", "qwen3_coder", "--tools", str(file), stdin=text)
        assert got["message"]["tool_calls"][0]["function"]["arguments"] == '{"limit": 7}'


def test_stop_strings() -> None:
    got = parsed("--stop", "\nQ7:", "--stop", "END", "--pieces", stdin=json.dumps(["fine\nQ", "7: why"]))
    assert got["message"]["content"] == "fine"
    assert got["finish_reason"] == "stop"


def test_a_call_that_was_cut() -> None:
    got = parsed("--cut", "--tool-call-parser", "hermes", stdin=CALL[:60])
    assert got["finish_reason"] == "length"
    (call,) = got["message"]["tool_calls"]  # as far as it came, as in a stream
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"'}


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (["--tool-call-parser", "herms"], "x", "unknown tool parser 'herms'"),
        (["--reasoning-parser", "r1"], "x", "unknown reasoning parser 'r1'"),
        (["--pieces"], "not json", "stdin is not valid JSON"),
        (["--pieces"], '{"a": 1}', "must be a JSON list of strings"),
        (["--pieces"], '["a", 1]', "piece 1 is not a string"),
        (["--pieces"], r'["\ud83d"]', "piece 0 has an unpaired surrogate"),
        (["--pieces"], "[" * 100_000, "not valid JSON"),
        (["--stop", ""], "x", "a stop string must not be empty"),
        (["/does/not/exist"], None, "No such file"),
        ([], b"\xff\xfe", "stdin is not UTF-8"),
        (["--tools", "/does/not/exist"], "x", "No such file"),
        (["--no-such-option"], "x", "No such option"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], stdin: str | bytes | None, says: str) -> None:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", ["7", '["f"]', '[{"type": "function"}]', '[{"function": {"name": 1}}]'])
def test_tools_that_are_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tools.json"
    file.write_text(content)
    result = run("--tools", str(file), stdin="x")
    assert result.exit_code == 2
    assert "--tools" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_parser_by_name() -> None:
    got = parsed("--tool-call-parser", "none", "--reasoning-parser", "none", stdin="<think>a</think>" + CALL)
    assert got["message"] == {"role": "assistant", "content": "<think>a</think>" + CALL}
