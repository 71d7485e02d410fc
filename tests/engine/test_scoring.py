"""Log probabilities of prompts: right whatever the cache holds, for as many rows of logits at once as there is room."""

import numpy as np
import pytest

from tests.engine.ledger import LedgerModel, expected_answer
from tests.engine.test_core import Answers, check_scores, make_core, make_request, run
from tests.tiny import make_tiny
from tokenline.engine.core import EngineCore
from tokenline.engine.request import FinishReason, Request, SamplingParams, TokenLogprob
from tokenline.models.base import Batch, BatchSequence, Model
from tokenline.models.load import load_model

PROMPT = [*range(1, 30), 2, 3]


def test_a_prompt_that_the_cache_holds_is_scored_and_the_account_says_that_it_was_computed():
    core = make_core()
    run(core, make_request("first", PROMPT))
    scored = make_request("scored", PROMPT, prompt_logprobs=2)
    answers = run(core, scored)
    check_scores(scored, answers)
    use = answers.use["scored"]
    assert (use.cached, use.computed) == (0, len(PROMPT))
    assert use.longest_match == len(PROMPT), "it was held all the same"
    assert use.evicted == 0
    assert core.totals.cached_tokens == 0
    assert answers.ids["scored", 0] == expected_answer(PROMPT, 4)


def test_what_scoring_computed_is_held_for_others():
    core = make_core()
    run(core, make_request("scored", PROMPT, prompt_logprobs=0))
    assert run(core, make_request("next", PROMPT)).use["next"].cached == len(PROMPT) - 1


def test_choices_share_one_scoring():
    core = make_core()
    request = make_request("r", PROMPT, n=3, prompt_logprobs=1)
    answers = run(core, request)
    check_scores(request, answers)
    assert core.model.tokens_computed == len(PROMPT) + 2 + 3 * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_no_token_is_made_where_none_is_asked_for(prompt_logprobs):
    """llama.cpp's `n_predict: 0` and OpenAI's `max_tokens: 0`: the prompt is computed, scored and held."""
    core = make_core()
    request = make_request("r", PROMPT, max_tokens=0, n=2, prompt_logprobs=prompt_logprobs)
    answers = run(core, request)
    check_scores(request, answers)
    assert answers.ids["r", 0] == answers.ids["r", 1] == []
    assert answers.finish == {("r", 0): FinishReason.LENGTH, ("r", 1): FinishReason.LENGTH}
    assert core.totals.generated_tokens == 0
    assert core.totals.finished == 1
    assert run(core, make_request("next", PROMPT)).use["next"].cached == len(PROMPT) - 1


def test_a_prompt_of_one_token_has_no_score():
    answers = run(make_core(), make_request("r", [5], prompt_logprobs=3))
    assert answers.scores["r"] == ()


def test_logits_are_computed_for_a_few_tokens_at_a_time():
    model = LedgerModel()
    core = make_core(model=model, max_batch_tokens=64, max_scored=6)
    requests = [make_request(name, [number, *PROMPT], prompt_logprobs=0) for number, name in enumerate("abc")]
    answers = run(core, *requests)
    for request in requests:
        check_scores(request, answers)
    assert model.most_logits <= 6 + 3  # and those from which ids are sampled
    beside = make_request("scored", [7] * 60, prompt_logprobs=0)
    core.add(beside)
    core.add(make_request("plain", [8] * 50, max_tokens=1))
    answers = Answers()
    answers.take(core.step())
    assert answers.finish == {("plain", 0): FinishReason.LENGTH}, "one without scores need not wait for it"
    check_scores(beside, answers.run(core))


def test_scores_survive_preemption():
    core = make_core(num_blocks=12, block_size=4, max_num_seqs=4, max_scored=3)
    requests = [make_request(name, [number, *range(10)], 14, prompt_logprobs=0) for number, name in enumerate("abc")]
    answers = run(core, *requests)
    assert core.scheduler.preemptions > 0
    for request in requests:
        check_scores(request, answers)
        assert answers.ids[request.request_id, 0] == expected_answer(request.prompt_ids.tolist(), 14)


def test_broken_logits_in_a_prompt_end_its_own_request_only():
    model = LedgerModel()
    model.nan_on = 50
    core = make_core(model=model, max_batch_tokens=64)
    other = make_request("other", PROMPT, prompt_logprobs=0)
    answers = run(core, make_request("broken", [1, 50, 2, 3], n=2, prompt_logprobs=0), other)
    assert answers.finish["broken", 0] == answers.finish["broken", 1] == FinishReason.ERROR
    check_scores(other, answers)


@pytest.fixture(scope="module", params=["float32", "int8"])
def model(request, tmp_path_factory) -> Model:
    folder = make_tiny("qwen2", tmp_path_factory.mktemp("scored"))
    return load_model(folder, device="cpu", dtype=request.param)


def test_scores_are_those_of_the_model_alone_on_both_backends(model):
    """One pass over the whole line against chunks of 7 tokens, behind a cache that holds half of it; and a generated
    id has the same log probability when it comes back in a prompt.
    """
    line = np.random.default_rng(3).integers(0, model.config.vocab_size, 40).astype(np.int32)
    core = EngineCore(model, num_blocks=40, block_size=16, max_num_seqs=4, max_batch_tokens=7, context_limit=120)
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=3)
    generated: list[TokenLogprob] = []
    core.add(Request("half", line[:20], params))
    ids: list[int] = []
    while not core.is_idle:
        for step in core.step():
            ids += step.ids
            generated += step.logprobs
    whole = np.concatenate([line[:20], ids]).astype(np.int32)
    core.add(Request("whole", whole, SamplingParams(max_tokens=0), prompt_logprobs=3))
    answers = Answers().run(core)
    scores = answers.scores["whole"]
    assert scores is not None
    kv = model.new_kv_pool(4, 16)
    rows = np.arange(len(whole), dtype=np.int32)
    alone = model.forward(Batch(whole, rows, (BatchSequence(0, len(whole), 0, rows[:4]),), rows[:-1]), kv)
    expected = alone.logprobs(rows[:-1].tolist(), whole[1:].tolist(), 3)
    exact = 0 if model.precision.startswith("8-bit") else 1e-4  # the kernels give equal bits, however a line is cut
    assert [score.logprob for score in scores] == pytest.approx([one.logprob for one in expected], abs=exact)
    assert [score.rank for score in scores] == [one.rank for one in expected]
    assert [score.logprob for score in scores[19:]] == pytest.approx([one.logprob for one in generated], abs=exact)
