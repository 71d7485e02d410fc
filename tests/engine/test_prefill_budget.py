"""Prefill beside running streams: as much as takes a given time, by what the latest steps took."""

from tokenline.engine.prefill_budget import MIN_TOKENS, ROWS, PrefillBudget, PrefillSpeed


def settled(tokens_per_s: float, seconds: float = 0.1, decoding: int = 0) -> tuple[int, float]:
    """Tokens and seconds of a step, after many steps of a machine that computes so many tokens a second."""
    speed = PrefillSpeed()
    budget = PrefillBudget(speed, seconds)
    step_s = 0.0
    for _ in range(30):
        tokens = budget.tokens + decoding
        step_s = tokens / tokens_per_s
        speed.saw_step(budget.tokens, tokens, step_s)
    return budget.tokens, step_s


def test_a_chunk_takes_the_time_it_may_take():
    for tokens_per_s in (1_000, 2_000, 20_000, 300_000):
        tokens, step_s = settled(tokens_per_s)
        assert tokens % ROWS == 0
        assert 0.1 - ROWS / tokens_per_s <= step_s <= 0.1
    assert settled(2_000, seconds=0.5)[0] > 4 * settled(2_000, seconds=0.1)[0]


def test_a_slow_machine_still_goes_on_with_the_prompt():
    assert settled(40)[0] == MIN_TOKENS


def test_many_streams_leave_prefill_its_time():
    tokens, step_s = settled(2_000, decoding=60)
    assert tokens > 150
    assert step_s < 0.1 * (1 + 60 / tokens) + 1e-9


def test_speed_that_falls_along_a_line_is_followed():
    speed = PrefillSpeed()
    budget = PrefillBudget(speed, 0.1)
    speed.saw_step(512, 512, 512 / 2_000)
    held_up_s = []
    for tokens_per_s in range(2_000, 700, -25):
        held_up_s.append(budget.tokens / tokens_per_s)
        speed.saw_step(budget.tokens, budget.tokens, held_up_s[-1])
    assert max(held_up_s) < 0.12


def test_what_is_not_known_is_not_taken_to_be_fast():
    speed = PrefillSpeed()
    budget = PrefillBudget(speed, 0.1)
    assert budget.tokens == MIN_TOKENS
    speed.saw_step(0, 64, 0.001)  # decoding only
    speed.saw_step(MIN_TOKENS - 1, 64, 0.001)
    speed.saw_step(512, 512, 0.0)
    assert budget.tokens == MIN_TOKENS
