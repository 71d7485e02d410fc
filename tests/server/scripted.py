"""The real tiny model, made to say what a test wants: the next id of a script wins at each position after a prompt."""

from collections.abc import Sequence
from typing import Any

from tokenline.models.base import Batch, KVPool, Model
from tokenline.models.cpu.logits import NumpyLogits


class Scripted:
    """Wraps a model. `say(ids, after=prompt_tokens)` sets what comes behind prompts of that length."""

    def __init__(self, model: Model):
        self._model = model
        self._script: list[int] = []
        self._after = 0

    def say(self, ids: Sequence[int], *, after: int) -> None:
        self._script, self._after = list(ids), after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: Batch, kv: KVPool) -> NumpyLogits:
        logits = self._model.forward(batch, kv).to_numpy().copy()
        for row, position in enumerate(batch.positions[batch.logit_rows]):
            at = int(position) + 1 - self._after
            if 0 <= at < len(self._script):
                logits[row, self._script[at]] = logits[row].max() + 100
        return NumpyLogits(logits)
