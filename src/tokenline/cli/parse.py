"""`tokenline parse`: what this server would make of a raw model output, e.g. to see why a tool call is not found.

The output goes the same way as a generated answer: detokenizer, stop strings, parser. A text is one piece; with
--pieces, each piece stands for one token. Raw text has no control tokens, so a marker counts wherever it is spelled.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenline.cli.console import CommandError

if TYPE_CHECKING:
    from tokenline.parse.delta import Delta


def parse(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The raw output; -: stdin.")] = "-",
    tool_call_parser: Annotated[
        str, typer.Option(metavar="NAME", help="Tool-call format, as for `tokenline serve`, but not auto.")
    ] = "none",
    reasoning_parser: Annotated[
        str, typer.Option(metavar="NAME", help="Format of the reasoning, as for `tokenline serve`, but not auto.")
    ] = "none",
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The request's tools as a JSON list; some formats need the types of their parameters."
        ),
    ] = None,
    prompt_end: Annotated[
        str,
        typer.Option(metavar="TEXT", help="End of the rendered prompt; give it if it already opens <think>."),
    ] = "",
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop string. Repeat the option for several.")
    ] = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="FILE is a JSON list of strings, each parsed as one token.")
    ] = False,
    cut: Annotated[bool, typer.Option("--cut", help="The output was stopped by max_tokens.")] = False,
) -> None:
    """Parse a raw model output.

    Prints the message, finish_reason and deltas as JSON.
    """
    from tokenline.parse.registry import make_parser
    from tokenline.parse.stream import OutputStream
    from tokenline.server.openai.answers import DeltaWriter, finish_reason_of, message_object

    parts = _pieces(file) if pieces else [_text(file)]
    if not all(stop or ()):
        raise CommandError("--stop: a stop string must not be empty")
    try:
        names = (None if name == "none" else name for name in (tool_call_parser, reasoning_parser))
        parser = make_parser(*names, tools=_tools(tools), prompt_end=prompt_end)
    except ValueError as error:
        raise CommandError(str(error)) from error
    stream = OutputStream(_Pieces(parts), stop=stop or (), parser=parser)
    deltas: list[Delta] = []
    for index in range(len(parts)):
        deltas += stream.feed([index])
    deltas += stream.finish(cut)
    writer = DeltaWriter()
    result = {
        "message": message_object(stream.message(deltas)),
        "finish_reason": finish_reason_of(stream.end_reason),
        "deltas": [written for delta in deltas for written in writer.write(delta)],
    }
    print(json.dumps(result, ensure_ascii=False, indent=2))


class _Pieces:
    """A vocabulary whose k-th id is the k-th piece."""

    strips_leading_space = False

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = [piece.encode() for piece in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


# --- input ----------------------------------------------------------------------------------------------------------


def _text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{_name(file)} is not UTF-8: {error.reason} at byte {error.start}") from error


def _json(file: str) -> Any:
    try:
        return json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{_name(file)} is not valid JSON: {error}") from error


def _pieces(file: str) -> list[str]:
    value = _json(file)
    if not isinstance(value, list):
        raise CommandError(f"{_name(file)}: with --pieces it must be a JSON list of strings")
    for index, piece in enumerate(value):
        if not isinstance(piece, str):
            raise CommandError(f"{_name(file)}: piece {index} is not a string")
        if any("\ud800" <= character <= "\udfff" for character in piece):
            raise CommandError(f"{_name(file)}: piece {index} has an unpaired surrogate")
    return value


def _tools(file: str | None) -> list[dict[str, Any]] | None:
    if file is None:
        return None
    value = _json(file)
    if isinstance(value, dict) and isinstance(value.get("tools"), list):
        value = value["tools"]  # a whole request
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise CommandError(f"--tools: {_name(file)} must be a JSON list of tools, as in a request")
    for index, tool in enumerate(value):
        function = tool.get("function", tool)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise CommandError(f"--tools: {_name(file)}: tool {index} has no function.name")
    return value


def _name(file: str) -> str:
    return "stdin" if file == "-" else file
