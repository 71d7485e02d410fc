"""How long others wait while somebody asks for much, by the clock of a model that takes 8 ms a step and 1.4 ms a token:
about what two cores need for a model of 135M parameters. The same on a real server: `python -m bench.attacks`.
"""

import numpy as np
import pytest

from tests.engine.ledger import VOCAB, LedgerModel, expected_answer
from tokenline.engine.core import EngineCore
from tokenline.engine.request import Request, SamplingParams, Step

STEP_S, TOKEN_S = 0.008, 0.0014
STEPS = 200  # of an attack


class Clocked(LedgerModel):
    def __init__(self):
        super().__init__(max_positions=8192)
        self.now_s = 0.0

    def forward(self, batch, kv):
        self.now_s += STEP_S + TOKEN_S * len(batch.ids)
        return super().forward(batch, kv)


class Onlookers:
    """An engine with somebody's running stream, and newcomers who ask short questions one after another."""

    def __init__(self, num_blocks: int):
        self.model = Clocked()
        self.core = EngineCore(self.model, num_blocks, 32, 64, 512, 8192, clock=lambda: self.model.now_s)
        self.ask("first", np.arange(600) % VOCAB, 1)
        while not self.core.is_idle:
            self.core.step()
        self.ask("stream", np.arange(5), 4000)
        self.streamed: list[int] = []
        self.gaps_s: list[float] = []
        self.waits_s: list[float] = []
        self._streamed_s = self.model.now_s
        self._came_s: float | None = None
        self._answer: list[int] = []
        self._asked = 0

    def ask(self, name: str, prompt, max_tokens: int, n: int = 1) -> None:
        params = SamplingParams(max_tokens, temperature=0)
        self.core.add(Request(name, np.asarray(prompt, np.int32), params, n=n, sender=name))

    def _question(self) -> np.ndarray:
        return (self._asked * 17 + np.arange(38) ** 2) % VOCAB

    def watch(self, steps: int) -> None:
        for _ in range(steps):
            if self._came_s is None:
                self._asked += 1
                self.ask(f"new{self._asked}", self._question(), 4)
                self._came_s, self._answer = self.model.now_s, []
            for step in self.core.step():
                self._see(step)
            self.core.check_integrity()

    def _see(self, step: Step) -> None:
        if step.request_id == "stream":
            self.streamed += step.ids
            self.gaps_s.append(self.model.now_s - self._streamed_s)
            self._streamed_s = self.model.now_s
        elif step.request_id.startswith("new"):
            self._answer += step.ids
            if step.finish_reason is not None:
                assert self._came_s is not None
                assert self._answer == expected_answer(self._question().tolist(), 4)
                self.waits_s.append(self.model.now_s - self._came_s)
                self._came_s = None


@pytest.mark.parametrize("num_blocks", [4000, 364], ids=["memory", "little-memory"])
@pytest.mark.parametrize(
    ("requests", "n", "prompt"),
    [(1, 128, 3), (8, 256, 3), (1, 128, 2000), (24, 1, 2000), (3, 1, 7000), (60, 8, 200)],
    ids=["choices", "many-choices", "choices-of-a-long-prompt", "long-prompts", "longest-prompts", "many-callers"],
)
def test_a_short_question_is_answered_within_a_second_and_a_stream_goes_on(
    num_blocks: int, requests: int, n: int, prompt: int
):
    onlookers = Onlookers(num_blocks)
    onlookers.watch(5)
    for number in range(requests):
        onlookers.ask(f"attack{number}", (number + np.arange(prompt) ** 2) % VOCAB, 100, n)
    onlookers.watch(STEPS)
    assert max(onlookers.waits_s) < 1.0
    assert max(onlookers.gaps_s) < 0.5
    assert onlookers.streamed == expected_answer(list(range(5)), len(onlookers.streamed))
    attacked = [name for name in onlookers.core._sequences if name.startswith("attack")]
    assert onlookers.core.totals.generated_tokens > STEPS, "the attack goes on as well"
    assert attacked or n * requests <= 128


def test_a_crowd_that_comes_at_once_is_served_in_turn():
    """Of 128 callers with eight choices each, who have all come just before, nobody waits for another's last answer."""
    onlookers = Onlookers(4000)
    for number in range(128):
        onlookers.ask(f"attack{number}", [number % VOCAB, number // VOCAB, 5], 100, 8)
    onlookers.watch(STEPS)
    assert max(onlookers.gaps_s) < 0.5
    assert len(onlookers.waits_s) > 10
    assert max(onlookers.waits_s[1:]) < 1.1
    assert onlookers.streamed == expected_answer(list(range(5)), len(onlookers.streamed))
