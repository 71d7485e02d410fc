"""Every bomb of `bench.bombs` ends as it should, and harms nobody else. How long others wait is `bench.attacks`'s."""

import pytest
from bench.attacks import MEMORY, outcome_of
from bench.bombs import all_bombs
from bench.bombs.bomb import CHAT, Bomb, Target
from bench.process import resident_bytes

CASES = [pytest.param(bomb, id=bomb.name, marks=[pytest.mark.slow] * bomb.slow) for bomb in all_bombs()]


async def answer(target: Target) -> str:
    """What somebody else is told, greedily."""
    body = {"messages": [{"role": "user", "content": "Hello 你好 😀"}], "max_tokens": 16, "temperature": 0}
    response = await target.http.post(CHAT, json=body)
    return response.raise_for_status().json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("bomb", CASES)
async def test_a_bomb_harms_nobody_else(bomb: Bomb, target: Target):
    async with target.http:
        before, resident = await answer(target), resident_bytes(target.pid)
        assert await outcome_of(bomb, target) in bomb.expects
        assert await answer(target) == before
        assert (await target.http.get("/health")).status_code == 200
        assert resident_bytes(target.pid) - resident < MEMORY
