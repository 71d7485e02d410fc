"""The command as a whole: help, versions, and how it says what is wrong."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.cli.command import assert_one_line, run
from tests.limits import HANG_S
from tokenline import __version__
from tokenline.cli.main import app


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    heavy = {"torch", "numba", "numpy", "fastapi", "huggingface_hub", "httpx"}
    code = "import sys\nfrom tokenline.cli.main import app\ntry:\n app(['--help'])\nexcept SystemExit: pass\n"
    code += f"print('heavy:', sorted({heavy} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S).stdout
    assert "heavy: []" in output
    for name in ("serve", "chat", "render", "parse", "pull", "models"):
        assert name in output


def test_no_command_is_help() -> None:
    for group in ([], ["template"]):
        result = CliRunner().invoke(app, group)
        assert result.exit_code == 0
        assert result.output == CliRunner().invoke(app, [*group, "--help"]).output


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tokenline", "--version"], capture_output=True, text=True)
    assert done.stdout == f"tokenline {__version__}\n"


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"tokenline {__version__}\n")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["sreve"], "Did you mean 'serve'?"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "a", "b"], "b"),
        (["render"], "REQUEST"),
        (["chat", "--temperature", "3"], "--temperature: must be 0-2, not '3'"),
        (["chat", "--temperature", "nan"], "--temperature: must be 0-2, not 'nan'"),
        (["chat", "--top-p", "much"], "--top-p: must be a number, 0-1, not 'much'"),
        (["chat", "--seed", "9" * 9999], "--seed: must be a whole number, not '99999"),
    ],
)
def test_wrong_arguments_are_one_line(args: list[str], part: str) -> None:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("tokenline: ")
    assert result.stderr.count("\n") == 1
    assert part in result.stderr


def test_a_model_that_is_not_there_is_one_line_for_every_command(tmp_path: object) -> None:
    for command in (["pull"], ["serve", "--port", "0"], ["chat"]):
        assert_one_line(run(*command, f"{tmp_path}/absent.gguf"), "no such file or folder", "absent.gguf")


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tokenline.models.fetch.fetch_default_model", broken)
    assert isinstance(CliRunner().invoke(app, ["pull"]).exception, ZeroDivisionError)
