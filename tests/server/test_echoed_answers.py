"""What a client got of an answer, and sends back as history, is found in the cache to the last id (invariant 7),
however the answer ended, and though its text would be encoded otherwise, as it is at temperature 1.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import CHAT, Serve, Served, Tiny, serving
from tests.server.helpers import Slow, eventually, user
from tests.server.scripted import Scripted
from tests.service.test_fit import add, with_tokenizer
from tests.tiny import make_tiny
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer

QUESTION = user("Tell me a story, please.")
SAMPLED = {"temperature": 1, "logit_bias": {"0": -100, "1": -100, "2": -100}}  # none of the control tokens


async def cached_of(served: Served, messages: list[dict[str, Any]], **options: Any) -> int:
    """How much of these messages the cache holds, up to a next question."""
    body = {"messages": [*messages, *user("Go on.")], "max_tokens": 1, "temperature": 0, **options}
    answer = await served.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def leave_after(http: httpx.AsyncClient, body: dict[str, Any], chunks: int) -> tuple[str, int, int]:
    """Stream an answer and go away: its text so far, its ids so far, and the prompt's ids."""
    text, ids, prompt, seen = "", 0, 0, 0
    async with http.stream("POST", CHAT, json={**body, "stream": True, "return_token_ids": True}) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            prompt = prompt or len(chunk.get("prompt_token_ids", ()))
            (choice,) = chunk["choices"]
            delta = choice["delta"]
            text += (delta.get("content") or "") + (delta.get("reasoning_content") or "")
            ids += len(choice.get("token_ids") or ())
            seen += 1
            if seen > chunks:
                break
    return text, ids, prompt


@pytest.mark.parametrize("seed", range(4))
async def test_a_client_that_leaves_finds_all_it_got(serve: Serve, tiny, seed: int):
    served = await serve(live=True, model=Slow(tiny.model, 0.002))
    body = {"messages": QUESTION, "max_tokens": 3000, "seed": seed, **SAMPLED}
    text, ids, prompt = await leave_after(served.http, body, chunks=60)
    assert len(tiny.renderer.tokenizer.encode(text)) != ids, "the text by itself has other ids"
    await eventually(lambda: served.engine.num_open == 0)
    cached = await cached_of(served, [*QUESTION, {"role": "assistant", "content": text}])
    # Of a character that has begun, and which the client did not get, no id counts.
    assert cached >= prompt + ids - 3
    # What is remembered is this caller's alone, and of this text alone.
    other = [*QUESTION, {"role": "assistant", "content": "Not " + text}]
    assert await cached_of(served, other) <= prompt


@pytest.mark.parametrize(
    "options", [{"max_tokens": 50}, {"max_tokens": 50, "n": 3}, {"max_tokens": 50, "stream": True}]
)
async def test_an_answer_that_was_cut(served: Served, options: dict[str, Any]):
    body = {"messages": QUESTION, "seed": 5, "return_token_ids": True, **SAMPLED, **options}
    response = await served.http.post(CHAT, json=body)
    if options.get("stream"):
        text, ids, prompt = await leave_after(served.http, body, chunks=1000)
        answers = [(text, ids)]
    else:
        whole = response.json()
        answers = [(choice["message"]["content"], len(choice["token_ids"])) for choice in whole["choices"]]
        prompt = whole["usage"]["prompt_tokens"]
    for text, ids in answers:
        # the last id that was sampled is not computed
        assert await cached_of(served, [*QUESTION, {"role": "assistant", "content": text}]) == prompt + ids - 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_a_stop_string_ended_inside_a_token(served: Served, stream: bool):
    plain = {"messages": QUESTION, "max_tokens": 60, "seed": 9, "return_token_ids": True, **SAMPLED}
    whole = (await served.http.post(CHAT, json=plain)).json()
    (choice,) = whole["choices"]
    pieces = [served.renderer.tokenizer.token_bytes(id) for id in choice["token_ids"]]
    # the end of a longer token, whose characters come nowhere before
    number, stop = next(
        (n, piece[1:].decode())
        for n, piece in enumerate(pieces)
        if n > 20 and len(piece) > 2 and (pieces[n - 1] + piece).isascii() and piece[1:] not in b"".join(pieces[:n])
    )
    await served.engine.reset_prefix_cache()
    body = {**plain, "stop": stop}
    if stream:
        text, _, prompt = await leave_after(served.http, body, chunks=1000)
    else:
        answer = (await served.http.post(CHAT, json=body)).json()
        text, prompt = answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]
    assert text.encode()[-1:] == pieces[number][:1]
    cached = await cached_of(served, [*QUESTION, {"role": "assistant", "content": text}])
    assert cached >= prompt + number


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content is defined and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


async def test_reasoning_that_was_stopped(tmp_path: Path):
    """The template closes the reasoning that had only begun. Its markers are tokens, as in all models that reason."""
    padded = make_tiny("llama", tmp_path / "padded", vocab_size=602, max_position_embeddings=2048)
    folder = with_tokenizer(padded, tmp_path / "thinking", add("<think>", "</think>"))
    renderer = Renderer.from_model(folder, chat_template=THINKING)
    model = load_model(folder, dtype="float32")
    async with serving(Tiny(folder, model, renderer), live=True, model=Slow(model, 0.002)) as served:  # pyright: ignore[reportArgumentType]
        bias = {**SAMPLED["logit_bias"], "600": -100, "601": -100}
        body = {"messages": QUESTION, "max_tokens": 1000, "temperature": 1, "logit_bias": bias, "seed": 3}
        text, ids, prompt = await leave_after(served.http, body, chunks=50)
        assert text
        await eventually(lambda: served.engine.num_open == 0)
        stopped = {"role": "assistant", "content": "", "reasoning_content": text}
        assert await cached_of(served, [*QUESTION, stopped]) >= prompt + ids - 3


async def test_a_whole_answer_keeps_its_ids_as_before(serve: Serve, tiny):
    model = Scripted(tiny.model)
    served = await serve(model=model)
    encode = tiny.renderer.tokenizer.encode
    prompt = len((await served.http.post("/tokenize", json={"messages": QUESTION})).json()["tokens"])
    said = [id for character in "Once upon a time" for id in encode(character)]
    end = tiny.renderer.tokenizer.special_tokens["<|im_end|>"]
    model.say([*said, end], after=prompt)
    body = {"messages": QUESTION, "max_tokens": 60, "temperature": 0}
    answer = (await served.http.post(CHAT, json=body)).json()
    assert answer["choices"][0]["message"]["content"] == "Once upon a time"
    assert await cached_of(served, [*QUESTION, answer["choices"][0]["message"]]) == prompt + len(said)
