"""`tokenline pull [MODEL]`: download a model, or check the one that is here."""

from typing import Annotated

import typer

from tokenline.cli.console import progress_bars, stdout

MODEL_HELP = (
    "A folder in Hugging Face layout, a .gguf file, or a hub id such as org/name, org/name@revision or "
    "org/name:file.gguf. Default: SmolLM2-135M-Instruct."
)


def pull(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)] = None,
) -> None:
    """Download a model and print its path.

    The SHA-256 of the default model is checked even if it is here already.
    """
    from tokenline.models.fetch import fetch_default_model, resolve_model

    with progress_bars() as progress:
        path = (
            fetch_default_model(verify=True, progress=progress)
            if model is None
            else resolve_model(model, progress=progress)
        )
    stdout().print(path)
