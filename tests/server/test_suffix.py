"""`suffix` of a text completion: a model that can fill in is shown both sides, others say that they cannot."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.server.conftest import TEXT, Served, Tiny, serving
from tests.server.helpers import joined, stream
from tests.server.scripted import Scripted
from tests.tiny import make_tiny
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>")


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A tiny model whose tokenizer has Qwen2.5-Coder's tokens for a gap."""
    path = make_tiny("llama", tmp_path_factory.mktemp("coder") / "tiny", vocab_size=605)
    add_tokens(path / "tokenizer.json")
    return Tiny(path, load_model(path, device="cpu", dtype="float32"), Renderer.from_model(path))


def add_tokens(file: Path) -> None:
    spec = json.loads(file.read_text("utf-8"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)  # as Qwen has them
    spec["added_tokens"] += [{"id": 600 + number, "content": name, **flags} for number, name in enumerate(NAMES)]
    file.write_text(json.dumps(spec), "utf-8")


@pytest_asyncio.fixture
async def filling(coder: Tiny) -> AsyncIterator[tuple[Served, Scripted]]:
    model: Any = Scripted(coder.model)
    async with serving(coder, live=False, model=model) as served:
        yield served, model


@pytest.mark.parametrize("end", [3, 4])
async def test_the_middle_is_filled_in_and_ends_where_the_file_goes_on(filling: tuple[Served, Scripted], end: int):
    served, model = filling
    encode = served.renderer.tokenizer.encode
    suffix = served.renderer.tokenizer.encode_with_offsets("): pass <|fim_pad|>", as_text=frozenset(NAMES))[0]
    ids = [600, *encode("def add("), 601, *suffix, 602]
    model.say([*encode("a, b"), 600 + end, *encode("never")], after=len(ids))
    body = {"prompt": "def add(", "suffix": "): pass <|fim_pad|>", "max_tokens": 20, "temperature": 0}
    answer = (await served.http.post(TEXT, json={**body, "return_token_ids": True})).json()
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == ids
    assert (choice["text"], choice["finish_reason"]) == ("a, b", "stop")
    assert joined(await stream(served.http, TEXT, body)) == "a, b"
    on = (await served.http.post(TEXT, json={**body, "ignore_eos": True})).json()["choices"][0]
    assert on["text"].startswith("a, b<|f")
    assert on["finish_reason"] == "length"


async def test_several_prompts_share_one_suffix(filling: tuple[Served, Scripted]):
    served, _ = filling
    body = {"prompt": ["a = ", "b = "], "suffix": "\n", "n": 2, "max_tokens": 3, "return_token_ids": True}
    choices = (await served.http.post(TEXT, json=body)).json()["choices"]
    encode = served.renderer.tokenizer.encode
    for choice in choices:
        prompt = body["prompt"][choice["index"] // 2]
        assert choice["prompt_token_ids"] == [600, *encode(prompt), 601, *encode("\n"), 602]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": [1, 2], "suffix": "x"}, "'prompt' must be text, not token ids, with 'suffix'."),
        ({"prompt": [[1], [2]], "suffix": "x"}, "'prompt[0]' must be text, not token ids, with 'suffix'."),
        ({"prompt": "a", "suffix": "x", "echo": True}, "'suffix' cannot be combined with 'echo': true."),
        ({"prompt": "a", "suffix": 5}, "'suffix' must be a string"),
        ({"prompt": "a", "suffix": "x " * 5000}, "'prompt' has at least"),
    ],
)
async def test_what_cannot_be_filled_in_is_a_400(filling: tuple[Served, Scripted], body: dict, said: str):
    response = await filling[0].http.post(TEXT, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(said)


async def test_other_models_say_that_they_cannot(served: Served):
    error = (await served.http.post(TEXT, json={"prompt": "a", "suffix": "x"})).json()["error"]
    assert error["message"] == "'suffix' is not supported by this model."
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert (await served.http.post(TEXT, json={"prompt": "a", "suffix": "", "max_tokens": 1})).status_code == 200
