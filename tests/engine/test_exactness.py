"""A hit never changes the answer (invariant 2): real models of every family in float32, cache on against no cache.

"No cache" is the model alone: one forward pass over the whole line for every new id, no engine around it.
"""

import random

import numpy as np
import pytest

from tests.engine.test_core import Answers
from tests.tiny import make_tiny
from tokenline.engine.core import EngineCore
from tokenline.engine.request import FinishReason, Request, SamplingParams
from tokenline.models.base import Batch, BatchSequence, Model
from tokenline.models.load import load_model

FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]


def greedy_alone(model: Model, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy ids by recomputing the whole line for each, in a pool of its own."""
    line = list(prompt)
    kv = model.new_kv_pool(-(-(len(prompt) + max_tokens) // 16), 16)
    table = np.arange(kv.num_blocks, dtype=np.int32)
    for _ in range(max_tokens):
        ids = np.asarray(line, np.int32)
        batch = Batch(
            ids,
            np.arange(len(ids), dtype=np.int32),
            (BatchSequence(0, len(ids), 0, table),),
            np.asarray([len(ids) - 1], np.int32),
        )
        line.append(int(model.forward(batch, kv).best()[1][0]))
    return line[len(prompt) :]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory) -> Model:
    return load_model(make_tiny(request.param, tmp_path_factory.mktemp(request.param)), device="cpu", dtype="float32")


@pytest.mark.parametrize(
    "shape",
    [
        {"num_blocks": 200, "block_size": 16, "max_num_seqs": 16, "max_batch_tokens": 64},
        {"num_blocks": 40, "block_size": 4, "max_num_seqs": 4, "max_batch_tokens": 7},  # preemption, tiny chunks
    ],
    ids=["roomy", "tight"],
)
def test_greedy_ids_are_those_of_the_model_alone(model, shape):
    draw = random.Random(5)
    vocab = model.config.vocab_size
    core = EngineCore(model, context_limit=120, **shape)
    system = [draw.randrange(vocab) for _ in range(21)]
    prompts = [[draw.randrange(vocab)] for _ in range(2)]
    for _ in range(10):
        cut = draw.randrange(1, len(system))
        prompts.append(system[:cut] + [draw.randrange(vocab) for _ in range(draw.randrange(1, 30))])
    prompts += [prompts[5], prompts[6] + prompts[7]]
    answers = Answers()
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=6, temperature=0)
        core.add(Request(f"r{number}", np.asarray(prompt, np.int32), params))
        if number % 3 == 0:
            for _ in range(3):
                answers.take(core.step())
                core.check_integrity()
        if number == 9:
            core.add(Request("gone", np.asarray(prompts[3] + [1, 2], np.int32), params))
            answers.take(core.step())
            core.abort("gone")
    answers.run(core)
    assert core.totals.cached_tokens > 0
    for number, prompt in enumerate(prompts):
        assert answers.ids[f"r{number}", 0] == greedy_alone(model, prompt, 6)
        assert answers.finish[f"r{number}", 0] == FinishReason.LENGTH
