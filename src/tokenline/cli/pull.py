"""`tokenline pull [MODEL]`: download a model, or check the one that is here."""

from typing import Annotated

import typer

from tokenline.cli.console import progress_bars, stdout

MODEL_HELP = (
    "A folder in Hugging Face layout, a .gguf file, a short name such as qwen3:0.6b (`tokenline models` lists them), "
    "or a model of the Hugging Face hub: org/name, org/name@revision, org/name-GGUF:Q4_K_M, org/name:file.gguf or its "
    "address. Default: SmolLM2-135M-Instruct, a tiny model to try."
)


def pull(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)] = None,
) -> None:
    """Download a model, check that it can be read, and print its path.

    The SHA-256 of the default model is checked even if it is here already.
    """
    from tokenline.models.fetch import fetch_default_model, resolve_model
    from tokenline.models.load import read_config

    with progress_bars() as progress:
        path = (
            fetch_default_model(verify=True, progress=progress)
            if model is None
            else resolve_model(model, progress=progress)
        )
    read_config(path)
    stdout().print(path)
