"""The `tokenline` command: which commands there are, and how one ends when something is wrong.

Commands import the rooms when they run, so that `tokenline --help` answers at once.
"""

import contextlib
import errno
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from tokenline.cli import chat, keys, models, parse, pull, render, serve, template
from tokenline.cli.console import CommandError, print_error, shortened
from tokenline.fields import FieldError
from tokenline.models.errors import ModelError

USER_ERRORS = (CommandError, ModelError, FieldError, typer.TyperException)
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class OneLineErrors(TyperGroup):
    """Ends every failure that a user can cause with one line on stderr and exit code 2, without a traceback."""

    def main(self, args: Sequence[str] | None = None, standalone_mode: bool = True, **options: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **options)
        try:
            code = super().main(args, standalone_mode=False, **options)
        except USER_ERRORS as error:
            with contextlib.suppress(OSError):  # stderr may be /dev/full
                print_error(_message(error))
            code = EXIT_USER_ERROR
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            with contextlib.suppress(OSError):  # what was printed went to a full disk
                print_error(f"the output cannot be written: {error.strerror}")
            code = EXIT_USER_ERROR
        except (KeyboardInterrupt, typer.Abort):
            code = EXIT_INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str:
    """What was wrong, for a person."""
    if isinstance(error, typer.BadParameter) and isinstance(error.param, TyperOption) and error.message:
        return f"{error.param.opts[-1]}: {_reason(error, error.param)}"
    return error.format_message() if isinstance(error, typer.TyperException) else str(error)


def _reason(error: typer.BadParameter, option: TyperOption) -> str:
    """Why a value was not accepted. Typer passes on pydantic's words ("Input should be ..."); say it in ours."""
    cause = error.__cause__
    if not hasattr(cause, "errors"):  # not a pydantic.ValidationError
        return error.message
    fault: dict[str, Any] = cause.errors()[0]  # type: ignore[union-attr]
    value = shortened(repr(fault["input"]))
    if fault["type"] == "value_error":  # raised in Typer: a choice, or a path that cannot be one
        said = str(fault["ctx"]["error"])
        choices = said.removeprefix(f"{fault['input']!r} is not one of ")
        return f"{value}: {said}" if choices == said else f"must be one of {choices.rstrip('.')}, not {value}"
    kind = {"int": "a whole number", "float": "a number"}.get(fault["type"].split("_")[0])
    match option.min, option.max:
        case None, None:
            bounds = None
        case low, None:
            bounds = f"at least {low}"
        case None, high:
            bounds = f"at most {high}"
        case low, high:
            bounds = f"{low}-{high}"
    expected = ", ".join(part for part in (kind, bounds) if part is not None)
    return f"must be {expected}, not {value}" if expected else f"{value} is not a valid value"


app = typer.Typer(
    cls=OneLineErrors,
    name="tokenline",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tokenline import __version__

        print(f"tokenline {__version__}")
        raise typer.Exit


@app.callback()
def tokenline(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """An OpenAI-compatible LLM server whose prompt cache can be seen, explained and protected."""
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command()(serve.serve)
app.command()(chat.chat)
app.command()(render.render)
app.command()(parse.parse)
app.command()(pull.pull)
app.add_typer(models.app, name="models")
app.add_typer(keys.app, name="keys")
app.add_typer(template.app, name="template")


if __name__ == "__main__":
    app()
