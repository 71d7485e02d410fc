"""`tokenline render REQUEST`: the token line of a request, and where in the JSON each token came from.

Knows how to show a traced `Line`; what becomes of a request is the renderer's business, and which fields of a request
the renderer sees is the server's: the same functions run here.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len

from tokenline.cli.console import CommandError, printable, progress_bars, stdout
from tokenline.cli.pull import MODEL_HELP
from tokenline.cli.serve_options import read_template

if TYPE_CHECKING:
    from tokenline.render.line import Line, Span
    from tokenline.render.renderer import Renderer
    from tokenline.render.tokenizer import Tokenizer

REQUEST = "request"  # render.line.Origin.REQUEST
TEXT_WIDTH = 24
COLOURS = ("cyan", "green", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")


def render(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="A JSON file, or - for stdin.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list with an object for each token.")] = False,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Jinja chat template to use in place of the model's own.")
    ] = None,
) -> None:
    """Show the token line of a request: the body of a chat completion, or {"prompt": ...}."""
    import json

    data = _read(request)
    template = read_template(chat_template)
    with progress_bars() as progress:
        from tokenline.models.fetch import resolve_model
        from tokenline.render.renderer import Renderer

        path = resolve_model(model, progress=progress)
    tokens = tokens_of_request(data, Renderer.from_model(path, chat_template=template))
    if as_json:
        print(json.dumps([token.as_json() for token in tokens], ensure_ascii=False, indent=1))
    else:
        _print_tokens(tokens)


# --- from a request to its line --------------------------------------------------------------------------------------


def _read(request: str) -> bytes:
    if request == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(request).read_bytes()
    except OSError as error:
        raise CommandError(f"{request}: {error.strerror}") from error


def tokens_of_request(data: bytes, renderer: "Renderer") -> "list[Token]":
    """The traced line of a request's JSON. Raises CommandError with what the server would answer."""
    from pydantic import ValidationError
    from pydantic_core import from_json

    from tokenline.server.errors import ApiError, from_validation
    from tokenline.server.rendering import chat_input
    from tokenline.server.wire import TemplateBody

    try:
        fields: Any = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise CommandError(f"the request is not valid JSON: {error}") from error
    if not isinstance(fields, dict) or ("messages" in fields) == ("prompt" in fields):
        raise CommandError('the request must be an object with either "messages" or "prompt"')
    if "prompt" in fields:
        return _tokens_of_prompt(fields["prompt"], renderer)
    try:
        chat = chat_input(TemplateBody.model_validate(fields))
    except ValidationError as error:
        raise CommandError(from_validation(error, TemplateBody).message) from error
    except ApiError as error:
        raise CommandError(error.message) from error
    return list(tokens_of_line(renderer.chat(chat, trace=True), renderer.tokenizer))


def _tokens_of_prompt(prompt: Any, renderer: "Renderer") -> "list[Token]":
    """A raw prompt as /v1/completions takes it: a text or ids, or an array of one such."""
    from tokenline.render.line import Origin, Span

    pointer = "/prompt"
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise CommandError("the request has several prompts, each with a line of its own; give one")
        prompt, pointer = prompt[0], "/prompt/0"
    if isinstance(prompt, str):
        line = renderer.text(prompt)
        spans = (Span(0, len(line.text), Origin.REQUEST, pointer, 0),)
        return list(tokens_of_line(replace(line, spans=spans), renderer.tokenizer))
    if isinstance(prompt, list):
        return list(_tokens_of_ids(renderer.ids(prompt), renderer.tokenizer, pointer))
    raise CommandError("'prompt' must be a string, or an array of token ids")


# --- from the line to tokens with their origin -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one token's characters with one origin. `offset` is a character of the value at `pointer`."""

    start: int
    end: int
    origin: str  # as `Origin`, or "tokenizer"
    pointer: str | None
    offset: int | None  # None: the value is no string, or the origin is not the request

    def as_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "origin": self.origin,
            "pointer": self.pointer,
            "offset": self.offset,
        }


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a line. `start` and `end` are characters of the rendered text."""

    id: int
    text: str  # U+FFFD for bytes that are no whole character
    broken: bytes | None  # its bytes, where `text` cannot show them
    whole: str  # the characters of the line that it is part of
    start: int
    end: int
    parts: tuple[Part, ...]  # one, or several where the token straddles a border of spans

    @classmethod
    def of(cls, token_id: int, line: "Line", tokenizer: "Tokenizer", parts: tuple[Part, ...]) -> "Token":
        start, end = parts[0].start, parts[-1].end
        data = tokenizer.token_bytes(token_id)
        text = data.decode("utf-8", errors="replace")
        broken = data if text.encode() != data else None
        return cls(token_id, text, broken, line.text[start:end], start, end, parts)

    def as_json(self) -> dict[str, Any]:
        """A token of several origins says "mixed", and which under "parts"; one of half a character has "bytes"."""
        common: dict[str, Any] = {"id": self.id, "text": self.text}
        if self.broken is not None:
            common["bytes"] = list(self.broken)
        if len(self.parts) == 1:
            return common | self.parts[0].as_json()
        mixed = Part(self.start, self.end, "mixed", None, None).as_json()
        return common | mixed | {"parts": [part.as_json() for part in self.parts]}


def tokens_of_line(line: "Line", tokenizer: "Tokenizer") -> Iterator[Token]:
    """The tokens of a traced line in order."""
    spans = line.spans
    first = 0  # the first span that can still touch a token; both run from left to right
    for token_id, (start, end) in zip(line.ids.tolist(), line.offsets.tolist(), strict=True):
        while first < len(spans) and spans[first].end <= start:
            first += 1
        parts = tuple(_parts(spans, first, start, end))
        if not parts:
            # No character of the text is its own: BOS, which the tokenizer puts in front of a raw prompt.
            origin = "tokenizer" if tokenizer.is_special(token_id) else "unknown"
            parts = (Part(start, end, origin, None, None),)
        yield Token.of(token_id, line, tokenizer, parts)


def _tokens_of_ids(line: "Line", tokenizer: "Tokenizer", pointer: str) -> Iterator[Token]:
    """The tokens of a prompt given as ids: each is itself a value of the request."""
    for index, (token_id, (start, end)) in enumerate(zip(line.ids.tolist(), line.offsets.tolist(), strict=True)):
        part = Part(start, end, REQUEST, f"{pointer}/{index}", None)
        yield Token.of(token_id, line, tokenizer, (part,))


def _parts(spans: "tuple[Span, ...]", first: int, start: int, end: int) -> Iterator[Part]:
    for span in spans[first:]:
        low, high = max(start, span.start), min(end, span.end)
        if low < high:
            offset = span.offset + low - span.start if span.pointer is not None else None
            yield Part(low, high, str(span.origin), span.pointer, offset)
        if span.end >= end:
            return


# --- for a person ----------------------------------------------------------------------------------------------------


def _print_tokens(tokens: list[Token]) -> None:
    console = stdout()
    styles = _styles(tokens)
    for position, token in enumerate(tokens):
        shown = _shown(token)
        console.print(f"{position:>5} {token.id:>7}  ", end="", style="dim")
        console.print(shown, end="", style=_style_of(token.parts[0], styles) if len(token.parts) == 1 else "red")
        console.print(" " * max(TEXT_WIDTH - cell_len(shown), 1), end="")
        for index, part in enumerate(token.parts):
            console.print(" + " if index else "", _place(part), sep="", end="", style=_style_of(part, styles))
        console.print()
    console.print(_summary(tokens), style="dim")


def _styles(tokens: list[Token]) -> Mapping[str, str]:
    """A colour for each place of the request, in the order in which the places come."""
    pointers = dict.fromkeys(part.pointer for token in tokens for part in token.parts if part.pointer is not None)
    return {pointer: COLOURS[index % len(COLOURS)] for index, pointer in enumerate(pointers)}


def _style_of(part: Part, styles: Mapping[str, str]) -> str:
    if part.pointer is not None:
        return styles[part.pointer]
    return "yellow" if part.origin == "template" else "red"


def _place(part: Part) -> str:
    if part.pointer is None:
        return part.origin
    if part.offset is None:
        return part.pointer
    return f"{part.pointer} [{part.offset}:{part.offset + part.end - part.start}]"


def _shown(token: Token) -> str:
    """One line of a token's text; quoted, so that spaces at its ends can be seen."""
    if token.broken is not None:
        return f'"{token.broken.decode("utf-8", errors="backslashreplace")}" of {printable(token.whole)}'
    return '"' + printable(token.text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")) + '"'


def _summary(tokens: list[Token]) -> str:
    counts: dict[str, int] = {}
    for token in tokens:
        kind = token.parts[0].origin if len(token.parts) == 1 else "mixed"
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join([f"{len(tokens)} tokens", *(f"{count} {kind}" for kind, count in counts.items())])
