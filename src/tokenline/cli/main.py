"""The `tokenline` command: which commands there are, and how one ends when something is wrong.

Commands import what they need when they run, so that `tokenline --help` does not wait for PyTorch.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tokenline.cli import chat, parse, pull, render, serve, template
from tokenline.cli.console import CommandError, print_error
from tokenline.models.errors import ModelError
from tokenline.render.errors import RenderError

USER_ERRORS = (CommandError, ModelError, RenderError, typer.TyperException)
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
            print_error(error.format_message() if isinstance(error, typer.TyperException) else str(error))
            code = EXIT_USER_ERROR
        except (KeyboardInterrupt, typer.Abort):
            code = EXIT_INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=OneLineErrors,
    name="tokenline",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
app.add_typer(template.app, name="template")


if __name__ == "__main__":
    app()
