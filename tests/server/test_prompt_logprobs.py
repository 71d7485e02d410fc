"""Log probabilities of prompts on the wire: `echo` with `logprobs` as OpenAI had it, vLLM's `prompt_logprobs`."""

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.server.conftest import CHAT, TEXT, Served, Tiny
from tests.server.helpers import joined, stream, user

PROMPT = "The capital of Fränce is 你好"


def greedy(prompt, **more) -> dict:
    return {"prompt": prompt, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **more}


@pytest.fixture(scope="module")
def reference(tiny: Tiny) -> Callable[[list[int]], list[float]]:
    """The log probability of each id of a line but the first, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32)

    @torch.inference_mode()
    def logprobs(ids: list[int]) -> list[float]:
        line = torch.tensor([ids])
        rows = torch.log_softmax(model(line).logits[0, :-1].double(), dim=-1)
        return rows.gather(1, line[0, 1:, None])[:, 0].tolist()

    return logprobs


async def post(served: Served, body: dict, url: str = TEXT) -> dict:
    response = await served.http.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("max_tokens", [1, 0])
async def test_r2_43_an_evaluation_scores_by_echo_and_logprobs(served: Served, reference, max_tokens: int):
    """Case r2-43: what lm-evaluation-harness sends, and the same without a new token."""
    prompt = "The capital of France is"
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    answer = await post(served, body)
    ids = served.renderer.text(prompt).ids.tolist()
    (choice,) = answer["choices"]
    assert choice["text"].startswith(prompt)
    logprobs = choice["logprobs"]
    assert {key: len(values) for key, values in logprobs.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), len(ids) + max_tokens
    )
    assert "".join(logprobs["tokens"][: len(ids)]) == prompt
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1 : len(ids)] == pytest.approx(reference(ids), abs=1e-4)
    for logprob, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True):
        assert logprob in top.values()  # so that a client can compare it with the largest
        assert max(top.values()) >= logprob
        assert 1 <= len(top) <= 2
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert max_tokens == 1 or (choice["text"], choice["finish_reason"]) == (prompt, "length")


async def test_offsets_point_into_prompt_and_answer(served: Served):
    (choice,) = (await post(served, greedy(PROMPT, echo=True, logprobs=2)))["choices"]
    logprobs = choice["logprobs"]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].lstrip("�").startswith(token)
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


async def test_logprobs_zero_has_the_tokens_own(served: Served):
    (choice,) = (await post(served, greedy(PROMPT, echo=True, logprobs=0)))["choices"]
    for logprob, top in list(zip(*[choice["logprobs"][k] for k in ("token_logprobs", "top_logprobs")], strict=True))[
        1:
    ]:
        assert list(top.values()) == [logprob]


async def test_what_was_generated_scores_alike_when_it_comes_back(served: Served):
    """And whatever the cache holds: such a prompt is computed anew, and says so."""
    first = (await post(served, greedy(PROMPT, logprobs=3, max_tokens=12, return_token_ids=True)))["choices"][0]
    ids = first["prompt_token_ids"] + first["token_ids"]
    for _ in range(2):
        again = await post(served, greedy(ids, echo=True, logprobs=3, max_tokens=0))
        logprobs = again["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"][-12:] == pytest.approx(first["logprobs"]["token_logprobs"], abs=1e-4)
        usage = again["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert usage["cache"]["computed_tokens"] == usage["prompt_tokens"] == len(ids)
        assert usage["cache"]["longest_match_tokens"] >= len(ids) - 1
    plain = await post(served, greedy(ids, max_tokens=1))
    assert plain["usage"]["prompt_tokens_details"] == {"cached_tokens": len(ids) - 1}


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_several_prompts_and_choices_streamed_and_whole(served: Served, as_ids: bool, max_tokens: int):
    texts = ["A first prompt", "and another, longer one", "x"]
    prompts = [served.renderer.text(text).ids.tolist() for text in texts] if as_ids else texts
    body = greedy(prompts, n=2, echo=True, logprobs=2, max_tokens=max_tokens)
    whole = await post(served, body)
    for _ in range(2):  # nothing held, and all of it
        chunks = await stream(served.http, TEXT, body)
        for choice in whole["choices"]:
            index, text = choice["index"], texts[choice["index"] // 2]
            assert choice["text"].startswith(text)
            assert joined(chunks, index) == choice["text"]
            parts = [one["logprobs"] for chunk in chunks for one in chunk["choices"] if one["index"] == index]
            assert parts[0]["token_logprobs"][0] is None, "the prompt comes first"
            of = {key: [value for part in parts for value in part[key]] for key in parts[0]}
            assert of["tokens"] == choice["logprobs"]["tokens"]
            assert of["text_offset"] == choice["logprobs"]["text_offset"]
            assert of["token_logprobs"][1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-4)
        ends = {one["index"]: one["finish_reason"] for chunk in chunks for one in chunk["choices"]}
        assert ends == {choice["index"]: choice["finish_reason"] for choice in whole["choices"]}


async def test_max_tokens_zero_computes_a_prompt_for_later(served: Served):
    """llama.cpp's `n_predict: 0`, with and without `echo`, up to the whole context."""
    empty = await post(served, {"prompt": "warm this up, please", "max_tokens": 0, "n": 2})
    assert [(one["text"], one["finish_reason"], one["logprobs"]) for one in empty["choices"]] == [
        ("", "length", None)
    ] * 2
    assert empty["usage"]["completion_tokens"] == 0
    after = await post(served, greedy("warm this up, please"))
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == after["usage"]["prompt_tokens"] - 1
    chunks = await stream(served.http, TEXT, {"prompt": "warm", "max_tokens": 0})
    assert [one["finish_reason"] for chunk in chunks for one in chunk["choices"]] == ["length"]
    limit = served.engine.limits.max_model_len
    for prompt in ([5] * limit, "x " * (limit // 2)):
        assert (await served.http.post(TEXT, json={"prompt": prompt, "max_tokens": 0})).status_code == 200
    over = await served.http.post(TEXT, json={"prompt": [5] * (limit + 1), "max_tokens": 0})
    assert over.status_code == 400
    assert over.json()["error"]["message"].startswith(
        f"'prompt' has {limit + 1} tokens, more than the maximum context length of {limit} tokens"
    )


async def test_vllms_prompt_logprobs_of_texts_and_chats(served: Served, reference):
    text = await post(served, greedy([PROMPT, "x"], n=2, prompt_logprobs=2, return_token_ids=True))
    chat = await post(
        served, {"messages": user("hi"), "max_tokens": 2, "prompt_logprobs": 0, "return_token_ids": True}, CHAT
    )
    listed = [(one["prompt_token_ids"], one["prompt_logprobs"], 2) for one in text["choices"]]
    assert "prompt_logprobs" not in chat["choices"][0]
    for ids, places, top in [*listed, (chat["prompt_token_ids"], chat["prompt_logprobs"], 0)]:
        assert len(places) == len(ids)
        assert places[0] is None
        scores = [place[str(token_id)] for token_id, place in zip(ids[1:], places[1:], strict=True)]
        assert [score["logprob"] for score in scores] == pytest.approx(reference(ids), abs=1e-4)
        for place, score in zip(places[1:], scores, strict=True):
            assert set(score) == {"logprob", "rank", "decoded_token"}
            ranks = sorted(entry["rank"] for entry in place.values())
            assert ranks == sorted({score["rank"], *range(1, top + 1)})
            assert [e["logprob"] for e in sorted(place.values(), key=lambda e: e["rank"])] == sorted(
                (entry["logprob"] for entry in place.values()), reverse=True
            )
    decoded = [place[str(i)]["decoded_token"] for i, place in zip(listed[2][0], listed[2][1], strict=True) if place]
    assert "x".endswith("".join(decoded))


async def test_both_forms_at_once_and_each_of_its_own_length(served: Served):
    (choice,) = (await post(served, greedy("some words", echo=True, logprobs=1, prompt_logprobs=4)))["choices"]
    prompt = len(choice["prompt_logprobs"])
    assert all(4 <= len(place) <= 5 for place in choice["prompt_logprobs"][1:])
    assert all(1 <= len(top) <= 2 for top in choice["logprobs"]["top_logprobs"][1:])
    for place, logprob in zip(
        choice["prompt_logprobs"][1:], choice["logprobs"]["token_logprobs"][1:prompt], strict=True
    ):
        assert logprob in [entry["logprob"] for entry in place.values()]


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_usage_on_every_chunk(served: Served, url: str):
    """vLLM's `continuous_usage_stats`: what is counted up to each chunk, consistent in itself."""
    prompt = {"messages": user("count")} if url == CHAT else {"prompt": "count"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**prompt, "max_tokens": 6, "ignore_eos": True, "n": 2, "stream_options": options}
    *chunks, last = await stream(served.http, url, body)
    assert last["choices"] == []
    before = 0
    for chunk in chunks:
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert before <= usage["completion_tokens"]
        before = usage["completion_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage.get("cache", last["usage"]["cache"]) == last["usage"]["cache"]
        assert ("cache" in usage) == ("prompt_tokens_details" in usage)
    assert "cache" in chunks[-1]["usage"]
    assert chunks[-1]["usage"] == last["usage"]
    for off in ({"include_usage": False, "continuous_usage_stats": True}, {"continuous_usage_stats": True}):
        assert not any("usage" in chunk for chunk in await stream(served.http, url, {**body, "stream_options": off}))


async def test_another_key_learns_nothing_by_scoring(served: Served):
    """Within another salt a scored prompt looks the same, whether or not somebody else's cache holds it."""
    held, new = "somebody's held prompt", "somebody's fresh prompt"
    await post(served, greedy(held, cache_salt="theirs"))
    for prompt in (held, new):
        usage = (await post(served, greedy(prompt, cache_salt="mine", echo=True, logprobs=0)))["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert usage["cache"]["evicted_tokens"] == 0


@pytest.mark.parametrize(
    ("more", "named"), [({"echo": True, "logprobs": 20}, "logprobs"), ({"prompt_logprobs": 20}, "prompt_logprobs")]
)
async def test_an_answer_that_would_fill_the_memory_is_a_400(served: Served, more: dict, named: str):
    body = {"prompt": [[5] * 1000, [6] * 1000], "n": 25, "max_tokens": 1, **more}
    response = await served.http.post(TEXT, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == named
    assert error["message"].startswith(
        f"'{named}' asks for 1050000 log probabilities of 2000 prompt tokens; at most 262144"
    )
