"""docs/api.md names every route, every field of requests and answers and every error code, and no other ones."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest

from tests.server.conftest import Served
from tokenline.engine.client import EngineStats
from tokenline.server.openai import aliases, answers, wire
from tokenline.server.openai.unsupported import CHAT, COMPLETION

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
SECTIONS: dict[str, str] = dict(re.findall(r"^##+ (.+)\n((?:(?!^##).*\n)*)", PAGE, re.M))

GENERATION, CONVERSATION = ["Generation fields"], ["Conversation fields"]


def rows(*titles: str) -> set[str]:
    """What the first columns of these sections' tables name."""
    return {name for title in titles for name in re.findall(r"^\| `([^`]+)` \|", SECTIONS[title], re.M)}


@pytest.mark.parametrize(
    ("body", "sections"),
    [
        (wire.ChatBody, [*GENERATION, *CONVERSATION, "Chat fields"]),
        (wire.CompletionBody, [*GENERATION, "Text completion fields"]),
        (wire.TemplateBody, CONVERSATION),
        (wire.TokenizeBody, [*CONVERSATION, "Tokenize fields"]),
        (wire.DetokenizeBody, ["Detokenize fields"]),
    ],
)
def test_every_field_of_a_request_is_named(body: type[wire.NamedBody], sections: list[str]) -> None:
    assert rows(*sections) == set(body.model_fields)


def test_every_body_has_been_looked_at() -> None:
    checked = {wire.ChatBody, wire.CompletionBody, wire.TemplateBody, wire.TokenizeBody, wire.DetokenizeBody}
    assert checked == set(wire.BODIES)


def test_every_field_that_is_refused_is_named_with_its_routes() -> None:
    found = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", SECTIONS["Refused fields"], re.M))
    routes = {(True, True): "both", (True, False): "chat", (False, True): "text"}
    assert found == {name: routes[name in CHAT, name in COMPLETION] for name in CHAT.keys() | COMPLETION.keys()}


def test_every_other_name_of_a_field_is_named() -> None:
    named = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", SECTIONS["Other names"], re.M))
    assert named == {**aliases.GENERATION, **aliases.CHAT}


@pytest.mark.parametrize(
    ("answer", "section"),
    [
        (answers.ChatCompletion, "Chat completion"),
        (answers.ChatCompletionChunk, "Chat completion"),
        (answers.Completion, "Text completion"),
        (answers.UsageObject, "Usage"),
        (answers.ModelList, "Models"),
        (answers.TokensObject, "Tokens"),
        (answers.Props, "Props"),
    ],
)
def test_every_field_of_an_answer_is_named(answer: type, section: str) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", SECTIONS[section]))))
    missing = {name for name in _keys(answer) if name not in words}
    if section != "Usage":
        missing -= _keys(answers.UsageObject)  # it has a section of its own
    assert not missing


def _keys(answer: Any) -> set[str]:
    """The keys of a TypedDict and of all that lie within it."""
    if not is_typeddict(answer) and not hasattr(answer, "__required_keys__"):
        return {key for part in get_args(answer) for key in _keys(part)}
    hints = get_type_hints(answer)
    return set(hints) | {key for hint in hints.values() for key in _keys(hint)}


def test_every_figure_of_the_stats_is_named() -> None:
    assert rows("Stats") == set(EngineStats.__dataclass_fields__)


def test_every_error_code_is_named() -> None:
    code = re.compile(r"(?:code=|RequestRefused\(\s*)\"(\w+)\"")
    raised = {name for file in (ROOT / "src").rglob("*.py") for name in code.findall(file.read_text())}
    raised -= {"missing", "constraint"}  # which clients see under other names
    raised |= {"missing_required_parameter", "unknown_url", "method_not_allowed"}
    named = set(re.findall(r"^\| [\d, ]+ \| [^|]*\| `(\w+)` \|", SECTIONS["Errors"], re.M))
    assert named == raised


async def test_every_route_is_named(served: Served) -> None:
    document = (await served.http.get("/openapi.json")).json()
    there = {
        f"{method.upper()} {path.replace('{name:path}', '{name}')}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert rows("All routes") == there
