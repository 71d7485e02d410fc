"""`tokenline keys add FILE NAME`: a new API key for `tokenline serve --api-key-file FILE`."""

from pathlib import Path
from typing import Annotated

import typer

from tokenline.cli.console import CommandError, stderr

app = typer.Typer(help="Make API keys for `tokenline serve --api-key-file`.", no_args_is_help=True)


@app.callback()
def keys() -> None:
    """Make API keys for `tokenline serve --api-key-file`."""


@app.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The key file; a new one is made if there is none.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the key is for: letters, digits, - and _.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="The key may do what reaches beyond its own cache, as clearing all of it.")
    ] = False,
) -> None:
    """Make a key, print it, and write its hash to FILE. The key itself is kept nowhere.

    To take a key away, delete its lines in FILE and start the server again.
    """
    from tokenline.server.keys import add_key

    try:
        key = add_key(file, name, is_admin=admin)
    except ValueError as error:
        raise CommandError(f"{file}: {error}") from error
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from error
    print(key)
    stderr().print(f"The key of {name} is above, and only there; {file} has its hash.", style="dim")
