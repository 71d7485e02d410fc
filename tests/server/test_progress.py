"""`return_progress`, as llama.cpp has it: a stream says how far its prompt is."""

from typing import Any

import pytest

from tests.server.conftest import CHAT, TEXT, Served
from tests.server.helpers import finish_reasons, joined, stream, user

LONG = "one two three four five six seven eight nine ten " * 60


def reports(chunks: list[Any]) -> list[dict[str, int]]:
    return [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]


def check(found: list[dict[str, int]]) -> None:
    """What llama.cpp's own test asks of the reports on one prompt."""
    assert all(set(one) == {"total", "cache", "processed", "time_ms"} for one in found)
    assert found[0]["processed"] == found[0]["cache"]
    assert found[-1]["processed"] == found[-1]["total"] > 0
    assert len({(one["total"], one["cache"]) for one in found}) == 1
    processed = [one["processed"] for one in found]
    assert processed == sorted(set(processed))


async def test_a_chat_says_how_far_its_prompt_is(served: Served) -> None:
    body = {"messages": user(LONG), "max_tokens": 4, "temperature": 0, "return_progress": True}
    chunks = await stream(served.http, CHAT, {**body, "stream_options": {"include_usage": True}})
    check(reports(chunks))
    assert len(reports(chunks)) >= 3
    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    for chunk in told:
        (choice,) = chunk["choices"]
        assert (choice["index"], choice["delta"], choice["finish_reason"]) == (0, {}, None)
        assert chunk["usage"] is None
    assert reports(chunks)[-1]["total"] == chunks[-1]["usage"]["prompt_tokens"]
    again = await stream(served.http, CHAT, body)
    check(reports(again))
    assert reports(again)[0]["cache"] == reports(again)[0]["total"] - 1
    plain = await stream(served.http, CHAT, {**body, "return_progress": False})
    assert not reports(plain)
    assert joined(again) == joined(plain)
    assert finish_reasons(again) == finish_reasons(plain)


async def test_each_prompt_of_a_text_completion_has_reports_of_its_own(served: Served) -> None:
    body = {"prompt": [LONG, "A " + LONG], "n": 2, "max_tokens": 2, "temperature": 0, "return_progress": True}
    chunks = await stream(served.http, TEXT, body)
    for first_choice in (0, 2):
        own = [c for c in chunks if "prompt_progress" in c and c["choices"][0]["index"] == first_choice]
        check(reports(own))
        assert all(chunk["choices"][0]["text"] == "" for chunk in own)
    assert set(finish_reasons(chunks)) == {0, 1, 2, 3}


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_without_a_stream_it_has_no_effect(served: Served, path: str) -> None:
    body = {"messages": user("Hi")} if path == CHAT else {"prompt": "Hi"}
    answer = await served.http.post(path, json={**body, "max_tokens": 2, "temperature": 0, "return_progress": True})
    assert answer.status_code == 200
    assert "prompt_progress" not in answer.json()
