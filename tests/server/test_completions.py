"""POST /v1/completions: all forms of a prompt, several at once, echo and log probabilities."""

import pytest

from tests.server.conftest import TEXT, Served
from tests.server.helpers import finish_reasons, joined, stream


def greedy(prompt, **more) -> dict:
    return {"prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **more}


async def test_the_answer_has_openais_shape(served: Served):
    response = await served.http.post(TEXT, json=greedy("The quick brown"))
    answer = response.json()
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert response.headers["x-request-id"] == answer["id"]
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    prompt = len(served.renderer.text("The quick brown"))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 8,
        "total_tokens": prompt + 8,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "cache": {
            "computed_tokens": prompt,
            "restored_tokens": 0,
            "evicted_tokens": 0,
            "evicted_ago_s": None,
            "longest_match_tokens": 0,
        },
    }


async def test_sixteen_tokens_unless_asked_otherwise(served: Served):
    answer = (await served.http.post(TEXT, json={"prompt": "x", "ignore_eos": True, "max_tokens": None})).json()
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("streamed", [False, True])
async def test_cached_tokens_are_there_also_when_zero(served: Served, streamed: bool):
    """A client that adds up cached tokens must find the field in every answer."""
    for expected in (0, len(served.renderer.text("one-off 7c1e")) - 1):
        body = greedy("one-off 7c1e", max_tokens=4)
        if streamed:
            chunks = await stream(served.http, TEXT, {**body, "stream_options": {"include_usage": True}})
            assert all(chunk["usage"] is None for chunk in chunks[:-1])
            assert chunks[-1]["choices"] == []
            usage = chunks[-1]["usage"]
        else:
            usage = (await served.http.post(TEXT, json=body)).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": expected}


async def test_text_and_its_ids_are_the_same_prompt(served: Served):
    text = "今天是 Monday; tomorrow 😀"
    ids = served.renderer.text(text).ids.tolist()
    answers = [(await served.http.post(TEXT, json=greedy(prompt))).json() for prompt in (text, ids, [text], [ids])]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [len(ids)] * 4
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1


@pytest.mark.parametrize("n", [1, 2])
async def test_several_prompts_are_several_choices(served: Served, n: int):
    prompts = ["The quick", "brown fox jumps", "over"]
    body = greedy(prompts, n=n, return_token_ids=True)
    answer = (await served.http.post(TEXT, json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(3 * n))
    for number, prompt in enumerate(prompts):
        alone = (await served.http.post(TEXT, json=greedy(prompt))).json()
        for choice in answer["choices"][number * n : (number + 1) * n]:
            assert choice["text"] == alone["choices"][0]["text"]
            assert choice["prompt_token_ids"] == served.renderer.text(prompt).ids.tolist()
    assert answer["usage"]["prompt_tokens"] == sum(len(served.renderer.text(prompt)) for prompt in prompts)
    assert answer["usage"]["completion_tokens"] == 3 * n * 8
    chunks = await stream(served.http, TEXT, body)
    assert [joined(chunks, index) for index in range(3 * n)] == [choice["text"] for choice in answer["choices"]]
    assert finish_reasons(chunks) == dict.fromkeys(range(3 * n), "length")


async def test_one_prompt_may_stop_while_others_go_on(served: Served):
    prompts = ["The quick", "brown fox jumps", "over"]
    free = (await served.http.post(TEXT, json=greedy(prompts, max_tokens=40))).json()["choices"]
    texts = [choice["text"] for choice in free]
    stop = next(c for c in texts[0][3:] if c not in texts[1] and c != "�")
    body = greedy(prompts, max_tokens=40, stop=stop)
    answer = (await served.http.post(TEXT, json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == [text.split(stop)[0] for text in texts]
    chunks = await stream(served.http, TEXT, body)
    assert finish_reasons(chunks) == {choice["index"]: choice["finish_reason"] for choice in answer["choices"]}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][1]["finish_reason"] == "length"


@pytest.mark.parametrize("as_ids", [False, True])
async def test_echo_repeats_the_prompt_before_the_answer(served: Served, as_ids: bool):
    text = "Heute ist ein schöner Tag, 你好"
    prompt = served.renderer.text(text).ids.tolist() if as_ids else text
    plain = (await served.http.post(TEXT, json=greedy(prompt))).json()
    echoed = (await served.http.post(TEXT, json=greedy(prompt, echo=True))).json()
    assert echoed["choices"][0]["text"] == text + plain["choices"][0]["text"]
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    chunks = await stream(served.http, TEXT, greedy(prompt, echo=True, n=2))
    assert joined(chunks, 0) == joined(chunks, 1) == echoed["choices"][0]["text"]


async def test_logprobs_point_into_the_text(served: Served):
    body = greedy("print(add(1", logprobs=2, max_tokens=12)
    answer = (await served.http.post(TEXT, json=body)).json()
    text, logprobs = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]
    assert {len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {12}
    for token, offset, likely in zip(
        logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"], strict=True
    ):
        if not token.startswith("bytes:"):  # half a character that was waiting may come out ahead of this token
            assert text[offset:].lstrip("�").startswith(token)
        assert token in likely  # greedy
        assert len(likely) <= 3  # and the token itself
    chunks = await stream(served.http, TEXT, body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [token for part in parts for token in part["tokens"]] == logprobs["tokens"]
    assert [offset for part in parts for offset in part["text_offset"]] == logprobs["text_offset"]
    none = (await served.http.post(TEXT, json=greedy("print(add(1", logprobs=0))).json()
    assert [len(likely) for likely in none["choices"][0]["logprobs"]["top_logprobs"]] == [1] * 8  # the token itself
    assert len(none["choices"][0]["logprobs"]["tokens"]) == 8


async def test_a_seed_repeats_an_answer(served: Served):
    body = {"prompt": "Once", "max_tokens": 12, "temperature": 1.5, "seed": 11, "ignore_eos": True}
    first, second = [(await served.http.post(TEXT, json=body)).json()["choices"] for _ in range(2)]
    other = (await served.http.post(TEXT, json={**body, "seed": 12})).json()["choices"]
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    "more",
    [
        {"top_p": 0}, {"top_k": 1}, {"top_k": -1, "temperature": 0}, {"min_p": 1}, {"top_p": 1e-300},
        {"temperature": 1e-300}, {"temperature": 5e-324},
    ],
)  # fmt: skip
async def test_the_narrowest_sampling_is_greedy(served: Served, more: dict):
    best = (await served.http.post(TEXT, json=greedy("The"))).json()["choices"][0]["text"]
    response = await served.http.post(TEXT, json={"prompt": "The", "max_tokens": 8, "ignore_eos": True, **more})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == best


@pytest.mark.parametrize(
    "more",
    [
        {"repetition_penalty": 100}, {"repetition_penalty": 0.01}, {"presence_penalty": 2, "frequency_penalty": -2},
        {"seed": -(2**63)}, {"seed": 2**63 - 1}, {"seed": 0}, {"top_k": 2**31 - 1}, {"temperature": 2},
        {"logit_bias": {str(token): -100 for token in range(600)}}, {"min_tokens": 8}, {"logprobs": 20},
        {"stop_token_ids": list(range(600))}, {"stop": ["�"]}, {"n": 8},
    ],
)  # fmt: skip
async def test_the_ends_of_the_ranges_are_answered(served: Served, more: dict):
    response = await served.http.post(TEXT, json={"prompt": "The", "max_tokens": 8, **more})
    assert response.status_code == 200, response.text
