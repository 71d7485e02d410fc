"""`tokenline template check`: what it prints, as text and as JSON, and its exit code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.sources import llama_cpp_source
from tokenline.cli.console import CommandError
from tokenline.cli.template import BROKEN, app

QWEN3 = llama_cpp_source() / "templates" / "Qwen-Qwen3-0.6B.jinja"


def test_the_default_model_is_stable(smollm2: Path) -> None:
    result = CliRunner().invoke(app, ["check", str(smollm2)])
    assert result.exit_code == 0
    assert "ok plain" in result.stdout
    assert "Each turn extends the last one's tokens." in result.stdout


def test_a_break_is_shown_with_its_condition() -> None:
    result = CliRunner().invoke(app, ["check", str(QWEN3)])
    assert result.exit_code == BROKEN
    assert "reasoning_dropped_by_template" in result.stdout
    assert "template line 39: {%- if loop.index0 > ns.last_query_index %}" in result.stdout


def test_json() -> None:
    found = json.loads(CliRunner().invoke(app, ["check", str(QWEN3), "--json"]).stdout)
    assert found["stable"] is False
    thinking = next(check for check in found["conversations"] if check["conversation"] == "thinking")
    assert thinking["break"]["template_line"] == 39
    assert thinking["break"]["tokens"] is None
    assert thinking["break"]["characters"] > 0


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), (b"\xff", "not UTF-8"), (b"{% if %}", "line 1")]
)
def test_a_file_that_is_no_template(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "chat.jinja"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(app, ["check", str(file)])
    assert isinstance(result.exception, CommandError)
    assert message in str(result.exception)


def test_a_template_that_takes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ raise_exception('not today') }}")
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == BROKEN
    assert "extends" not in result.stdout
    assert "-  plain: not supported by this template" in result.stdout
    assert "refuses every conversation" in result.stdout
    assert "not today" in result.stdout.splitlines()[-1]
