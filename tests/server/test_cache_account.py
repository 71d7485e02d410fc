"""What the cache knows of a gap reaches whoever asks: the usage of the answer, the log line, the figures at /stats."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import TEXT, Serve, Served

PROMPT = list(range(5, 205))  # 200 tokens: six whole blocks and a rest


async def ask(served: Served, prompt: list[int]) -> dict[str, Any]:
    answer = await served.http.post(TEXT, json={"prompt": prompt, "max_tokens": 1, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def block_bytes(served_model: Any, blocks: int) -> int:
    return served_model.kv_bytes_per_token() * 32 * blocks


async def test_an_evicted_prefix_says_how_much_was_held_and_how_long_ago(serve: Serve, tiny, caplog):
    served = await serve(kv_cache_memory=block_bytes(tiny.model, 10))
    first = await ask(served, PROMPT)
    assert first["cache"] == {
        "computed_tokens": 200,
        "restored_tokens": 0,
        "evicted_tokens": 0,
        "evicted_ago_s": None,
        "longest_match_tokens": 0,
    }
    await ask(served, [7, *PROMPT, *PROMPT[:60]])  # another line, which needs nearly all blocks
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tokenline.request"):
        again = await ask(served, PROMPT)
    account = again["cache"]
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert account["evicted_tokens"] > 0
    assert account["evicted_ago_s"] >= 0
    assert account["longest_match_tokens"] == cached + account["evicted_tokens"] == 192
    (fields,) = [record.fields for record in caplog.records if hasattr(record, "fields")]  # type: ignore[attr-defined]
    assert fields["evicted"] == account["evicted_tokens"]
    assert fields["match"] == 192
    assert "evicted_ago_s" in fields
    stats = (await served.http.get("/stats")).json()
    assert stats["totals"]["evicted_tokens"] == account["evicted_tokens"]
    assert stats["totals"]["prompt_tokens"] == 200 + 261 + 200
    assert stats["blocks_total"] == 10
    assert stats["disk"] is None


async def test_what_is_held_to_the_last_token_matches_whole_though_that_one_is_computed(served: Served):
    await ask(served, PROMPT)
    usage = await ask(served, PROMPT)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 199
    assert usage["cache"]["longest_match_tokens"] == 200
    assert usage["cache"]["computed_tokens"] == 1


async def test_what_comes_from_the_disk_says_so(serve: Serve, tmp_path: Path):
    options = {"cache_dir": tmp_path, "model_fingerprint": "tiny"}
    served = await serve(**options)
    await ask(served, PROMPT)
    await served.app.state.server.close()
    served = await serve(**options)
    usage = await ask(served, PROMPT)
    assert usage["cache"]["restored_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 192
    stats = (await served.http.get("/stats")).json()
    assert stats["totals"]["restored_tokens"] == 192
    assert stats["disk"]["restored"] == 6


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_figures_are_for_those_who_have_a_key(serve: Serve, key: str | None):
    served = await serve(api_keys=("secret",))
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    assert (await served.http.get("/stats", headers=headers)).status_code == 401
    assert (await served.http.get("/stats", headers={"Authorization": "Bearer secret"})).status_code == 200
