"""`tokenline render REQUEST`: the token line of a request, and where in the JSON each token came from.

Knows how to print the tokens of a traced line. The line itself is made by the functions that the server uses, and where
each token came from is `render.origins`'.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len

from tokenline.cli.console import CommandError, printable, progress_bars, stderr, stdout
from tokenline.cli.pull import MODEL_HELP
from tokenline.cli.serve_options import read_template

if TYPE_CHECKING:
    from tokenline.render.line import Line
    from tokenline.render.origins import LineToken, TokenPart
    from tokenline.render.renderer import Renderer

TEXT_WIDTH = 24
COLOURS = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")


def render(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="A JSON file, or - for stdin.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array with an object for each token.")] = False,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Jinja chat template to use instead of the model's own.")
    ] = None,
) -> None:
    """Show the token line of a request.

    REQUEST is the body of a chat completion, or {"prompt": ...}.
    """
    import json

    data = _read(request)
    template = read_template(chat_template)
    with progress_bars() as progress:
        from tokenline.models.fetch import resolve_model
        from tokenline.render.origins import token_origins
        from tokenline.render.renderer import Renderer

        path = resolve_model(model, progress=progress)
    with stderr().status("reading the tokenizer"):
        renderer = Renderer.from_model(path, chat_template=template)
    line = line_of_request(data, renderer)
    tokens = list(token_origins(line, renderer.tokenizer))
    if as_json:
        print(json.dumps([token.as_json() for token in tokens], ensure_ascii=False, indent=1))
    else:
        _print_tokens(tokens, line)


# --- from a request to its line --------------------------------------------------------------------------------------


def _read(request: str) -> bytes:
    if request == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(request).read_bytes()
    except OSError as error:
        raise CommandError(f"{request}: {error.strerror}") from error


def line_of_request(data: bytes, renderer: "Renderer") -> "Line":
    """The traced line of a request's JSON. Raises CommandError or FieldError with what the server would answer."""
    from tokenline.server.body import parse_body
    from tokenline.server.openai.read import chat_input
    from tokenline.server.openai.wire import TemplateBody

    body = parse_body(data, TemplateBody)
    fields = body.model_extra or {}
    if (body.messages is None) == ("prompt" not in fields):
        raise CommandError('the request must be an object with either "messages" or "prompt"')
    if "prompt" in fields:
        return _line_of_prompt(fields["prompt"], renderer)
    return renderer.chat(chat_input(body), trace=True)


def _line_of_prompt(given: Any, renderer: "Renderer") -> "Line":
    """A raw prompt as /v1/completions takes it: a text or ids, or an array of one such."""
    from tokenline.server.openai.read import read_prompts

    prompts, listed = read_prompts(given)
    if len(prompts) != 1:
        raise CommandError("the request has several prompts, each with a line of its own; give one")
    prompt = prompts[0]
    path = ("prompt", 0) if listed else ("prompt",)
    return renderer.text(prompt, path) if isinstance(prompt, str) else renderer.ids(prompt, path)


# --- for a person ----------------------------------------------------------------------------------------------------


def _print_tokens(tokens: "list[LineToken]", line: "Line") -> None:
    console = stdout()
    styles = _styles(tokens)
    for token in tokens:
        shown = _shown(token, line)
        console.print(f"{token.position:>5} {token.id:>7}  ", end="", style="dim")
        console.print(shown, end="", style=_style_of(token.parts[0], styles) if len(token.parts) == 1 else "red")
        console.print(" " * max(TEXT_WIDTH - cell_len(shown), 1), end="")
        for index, part in enumerate(token.parts):
            console.print(" + " if index else "", _place(part), sep="", end="", style=_style_of(part, styles))
        console.print()
    console.print(_summary(tokens), style="dim")


def _styles(tokens: "list[LineToken]") -> Mapping[str, str]:
    """A colour for each place of the request, in the order in which the places come."""
    pointers = dict.fromkeys(part.pointer for token in tokens for part in token.parts if part.pointer is not None)
    return {pointer: COLOURS[index % len(COLOURS)] for index, pointer in enumerate(pointers)}


def _style_of(part: "TokenPart", styles: Mapping[str, str]) -> str:
    if part.pointer is not None:
        return styles[part.pointer]
    return "yellow" if part.origin == "template" else "red"


def _place(part: "TokenPart") -> str:
    if part.pointer is None:
        return part.origin
    if part.offset is None or part.length is None:
        return part.pointer
    if part.key:
        return f"{part.pointer} (name)"
    return f"{part.pointer} [{part.offset}:{part.offset + part.length}]"


def _shown(token: "LineToken", line: "Line") -> str:
    """One line of a token's text; quoted, so that spaces at its ends can be seen."""
    if token.broken is not None:
        whole = line.text[token.start : token.end]
        return f'"{token.broken.decode("utf-8", errors="backslashreplace")}" of {printable(whole)}'
    return '"' + printable(token.text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")) + '"'


def _summary(tokens: "list[LineToken]") -> str:
    counts: dict[str, int] = {}
    for token in tokens:
        kind = token.parts[0].origin if len(token.parts) == 1 else "mixed"
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join([f"{len(tokens)} tokens", *(f"{count} {kind}" for kind, count in counts.items())])
