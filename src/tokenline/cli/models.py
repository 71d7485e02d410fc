"""`tokenline models`: the models that were downloaded to this machine; `tokenline models rm NAME` removes one."""

import sys
from typing import Annotated

import typer

from tokenline.cli.console import CommandError, stdout
from tokenline.sizes import format_bytes

app = typer.Typer(help="List the downloaded models, or remove one.", invoke_without_command=True)


@app.callback()
def models(context: typer.Context) -> None:
    """List the downloaded models: name, size and path. `tokenline models rm NAME` removes one."""
    if context.invoked_subcommand is not None:
        return
    from tokenline.models.downloaded import downloaded_models
    from tokenline.models.hub_names import SHORT_NAMES

    console = stdout()
    found = downloaded_models()
    if not found:
        console.print("No model is downloaded yet.")
    width = max((len(model.name) for model in found), default=0)
    for model in found:
        console.print(f"{model.name:<{width}}  {format_bytes(model.size):>10}  {model.path}")
    if console.is_terminal:
        console.print(f"\nShort names, to download: {', '.join(SHORT_NAMES)}", style="dim")


@app.command()
def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `tokenline models` shows, or org/name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a downloaded model from the disk."""
    from tokenline.models.downloaded import find_downloaded

    found = find_downloaded(name)
    console = stdout()
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError("models rm asks before it removes anything; without a terminal, give --yes")
        for model in found:
            console.print(f"{model.name}  {format_bytes(model.size)}  {model.path}")
        if not typer.confirm("Remove?"):
            raise typer.Exit(1)
    for model in found:
        try:
            model.remove()
        except OSError as error:
            raise CommandError(f"cannot remove {model.path}: {error.strerror or error}") from error
        console.print(f"removed {model.name} ({format_bytes(model.size)})")
