"""Small requests for much work, beside which others wait."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench.bombs.bomb import TEXT, Bomb, Target, many, post

VOCABULARY = 200  # ids that every model here has


def _ids(tokens: int, seed: int) -> list[int]:
    """A prompt of so many ids that begins like no other's."""
    return [(seed + place * place) % VOCABULARY for place in range(tokens)]


def _different(name: str, count: int, make: Callable[[int], Any], *expects: int, slow: bool = False) -> Bomb:
    """So many requests at once, each with a body of its own; 429 is right for any of them too."""

    async def attack(target: Target) -> str:
        answers = await asyncio.gather(*(target.http.post(TEXT, json=make(number)) for number in range(count)))
        statuses = {answer.status_code for answer in answers} - {429}
        return ",".join(map(str, sorted(statuses)))

    return Bomb(name, attack, tuple(map(str, expects)), slow)


def _storm(name: str, count: int, body: Any, slow: bool = False) -> Bomb:
    """So many streams at once, each left after its first bytes."""

    async def open_and_leave(target: Target) -> int:
        async with target.http.stream("POST", TEXT, json={**body, "stream": True}) as answer:
            await anext(answer.aiter_bytes(), None)
            return answer.status_code

    async def attack(target: Target) -> str:
        statuses = await asyncio.gather(*(open_and_leave(target) for _ in range(count)))
        return ",".join(map(str, sorted(set(statuses) - {429})))

    return Bomb(name, attack, ("200",), slow)


def _all_of(n: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": "x", "n": n, "max_tokens": 48, "ignore_eos": True, **fields}


_BIAS = {str(token_id): 1 + token_id % 3 for token_id in range(VOCABULARY)}

BOMBS = [
    post("prompts-times-n", TEXT, lambda: {"prompt": ["x"] * 256, "n": 128, "max_tokens": 64}, 400),
    post("prompts-times-n-at-the-bound", TEXT, lambda: _all_of(128, prompt=["x", "y"]), 200, slow=True),
    post("many-prompts", TEXT, lambda: _all_of(1, prompt=[f"x{i}" for i in range(256)]), 200, slow=True),
    many(
        "many-times-the-bound",
        8,
        post("", TEXT, lambda: _all_of(128, prompt=["x", "y"], max_tokens=16), 200, slow=True),
    ),
    _different("many-connections", 128, lambda i: _all_of(8, prompt=f"x{i}", max_tokens=16), 200, slow=True),
    _different("long-prompts", 24, lambda i: {"prompt": _ids(2000, i), "max_tokens": 8}, 200, slow=True),
    _different(
        "one-long-prompt-of-many", 64, lambda i: {"prompt": [*_ids(2000, 0), i], "max_tokens": 8}, 200, slow=True
    ),
    _different(
        "scores",
        8,
        lambda i: {"prompt": _ids(2000, i), "max_tokens": 1, "prompt_logprobs": 20},
        200,
        slow=True,
    ),
    _storm("cancel-storm", 200, _all_of(1, max_tokens=2000)),
    _storm("cancel-storm-of-choices", 32, _all_of(128, max_tokens=2000), slow=True),
    post("top-logprobs-of-many", TEXT, lambda: _all_of(128, logprobs=20), 200, slow=True),
    post("logit-bias-of-many", TEXT, lambda: _all_of(128, logit_bias=_BIAS), 200, 400, slow=True),
    post(
        "penalties-of-many",
        TEXT,
        lambda: _all_of(128, prompt=_ids(2000, 7), repetition_penalty=1.1, frequency_penalty=0.5),
        200,
        slow=True,
    ),
    post(
        "stop-ids-of-many",
        TEXT,
        lambda: _all_of(128, min_tokens=40, stop_token_ids=list(range(VOCABULARY))),
        200,
        slow=True,
    ),
]
