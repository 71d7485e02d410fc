"""`tokenline template check`: whether a chat template keeps the prefix of a chat from turn to turn, and what breaks it.

Prints what `render.stability` found; knows nothing of templates itself.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenline.cli.console import CommandError, printable, progress_bars, stderr, stdout
from tokenline.cli.pull import MODEL_HELP

if TYPE_CHECKING:
    from tokenline.render.stability import Check, Stability

BROKEN = 1  # exit code: a prefix breaks somewhere

# A template file alone does not say what these tokens are; any text shows where they go.
PLACEHOLDERS = {"bos_token": "<bos>", "eos_token": "<eos>"}

app = typer.Typer(help="Examine chat templates.", invoke_without_command=True)


@app.callback()
def template(context: typer.Context) -> None:
    """Examine chat templates."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def check(
    target: Annotated[
        str | None, typer.Argument(metavar="MODEL|FILE", help=f"{MODEL_HELP} Or a Jinja file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Play small conversations through a template: does each turn extend the last one's tokens?

    Exit code 0: it does; 1: a prefix breaks, or the template supports none of the conversations.
    """
    found = _examine(target)
    if as_json:
        print(json.dumps(as_dict(found), ensure_ascii=False, indent=2))
    else:
        _print(found)
    raise typer.Exit(0 if found.stable else BROKEN)


def _examine(target: str | None) -> "Stability":
    from tokenline.render.chat_renderer import ChatRenderer
    from tokenline.render.errors import RenderError
    from tokenline.render.stability import check_stability

    if target is not None and target.endswith((".jinja", ".j2", ".jinja2")):
        try:
            source = Path(target).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text ({error.reason})"
            raise CommandError(f"{target}: {reason}") from error
        try:
            chats = ChatRenderer({"default": source}, PLACEHOLDERS)
        except RenderError as error:
            raise CommandError(f"{target}: {error.message}") from error
        return check_stability(chats)
    with progress_bars() as progress:
        from tokenline.models.fetch import resolve_model
        from tokenline.render.renderer import Renderer

        path = resolve_model(target, progress=progress)
    with stderr().status("checking the chat template"):
        return Renderer.from_model(path).stability()


def as_dict(found: "Stability") -> dict[str, Any]:
    """The findings as JSON values."""
    return {
        "stable": found.stable,
        "date": None if found.date_unit is None else {"changes_every": found.date_unit, "fix": found.date_fix},
        "conversations": [_check_dict(check) for check in found.checks],
    }


def _check_dict(check: "Check") -> dict[str, Any]:
    result: dict[str, Any] = {"conversation": check.conversation, "stable": check.stable, "refused": check.refused}
    if (broken := check.broken) is not None:
        result["break"] = {
            "turn": broken.turn,
            "cause": broken.cause.value,
            "characters": broken.characters,
            "tokens": broken.tokens,
            "kept": broken.kept,
            "before": broken.before,
            "after": broken.after,
            "template_line": broken.template_line,
            "template_source": broken.template_source,
            "fix": broken.fix,
        }
    return result


def _print(found: "Stability") -> None:
    from tokenline.render.stability_words import date_phrase, phrase, summary

    console = stdout()
    for check in found.checks:
        if check.refused is not None:
            console.print(f"-  {check.conversation}: not supported by this template", style="dim")
            console.print(f"     {printable(check.refused)}", style="dim")
        elif check.broken is None:
            console.print(f"ok {check.conversation}", style="green")
        else:
            broken = check.broken
            shared = f"{broken.characters} characters" if broken.tokens is None else f"{broken.tokens} tokens"
            console.print(f"✗  {check.conversation}: {phrase(broken.cause)} ({broken.cause})", style="red")
            console.print(f"     unchanged:    {shared}, up to …{_shown(broken.kept)}")
            console.print(f"     this turn:    {_shown(broken.before)}")
            console.print(f"     next turn:    {_shown(broken.after)}")
            if broken.template_line is not None:
                source = printable(broken.template_source or "")
                console.print(f"     template line {broken.template_line}: {source}")
            if broken.fix is not None:
                console.print(f"     fix:          chat_template_kwargs {json.dumps(broken.fix)}", style="cyan")
    if found.date_unit is not None:
        console.print(f"✗  {date_phrase(found.date_unit)}", style="red")
        if found.date_fix is not None:
            console.print(f"     fix:          chat_template_kwargs {json.dumps(found.date_fix)}", style="cyan")
    console.print(printable(summary(found)), style="bold")


def _shown(text: str) -> str:
    """A piece of a line, on one line."""
    return json.dumps(printable(text), ensure_ascii=False)
