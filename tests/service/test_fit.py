"""A tokenizer that does not fit its model: ids that the model has no row for, and rows that are no token."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.limits import HANG_S
from tests.server.conftest import CHAT, TEXT, Tiny, serving
from tests.server.helpers import user
from tests.tiny import make_tiny
from tokenline.models.errors import ModelError
from tokenline.models.load import load_model
from tokenline.render.renderer import Renderer
from tokenline.service.fit import check_fit

ROWS = 600


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("fit") / "plain", max_position_embeddings=2048)


def with_tokenizer(plain: Path, folder: Path, change: Callable[[dict[str, Any]], None], **config: str) -> Path:
    """A copy of a model whose tokenizer.json (and tokenizer_config.json) is changed."""
    folder.mkdir()
    for file in plain.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    spec = json.loads((folder / "tokenizer.json").read_text())
    change(spec)
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    known = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, **config}))
    return folder


def add(*texts: str, special: bool = False) -> Callable[[dict[str, Any]], None]:
    """Tokens behind all others, as somebody adds them who does not resize the model."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}

    def change(spec: dict[str, Any]) -> None:
        spec["added_tokens"] += [{"id": ROWS + at, "content": text, **flags} for at, text in enumerate(texts)]

    return change


async def test_a_text_that_meets_an_unknown_id_is_a_400_and_nobody_else_notices(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = with_tokenizer(plain, tmp_path / "more", add("<one>", "<two>"))
    renderer = Renderer.from_model(folder)
    with caplog.at_level(logging.WARNING):
        check_fit(renderer, ROWS)
    assert "2 tokens that the model does not know (from id 600 on)" in caplog.text
    async with serving(Tiny(folder, load_model(plain, dtype="float32"), renderer), live=False) as served:
        messages = [*user("Hello"), {"role": "assistant", "content": "Hi"}, *user("a <two> b")]
        refused = [
            (CHAT, {"messages": messages}, "messages[2].content"),
            (TEXT, {"prompt": "a <two> b"}, "prompt"),
            (TEXT, {"prompt": ["fine", "a <two> b"]}, "prompt[1]"),
            (TEXT, {"prompt": [1, 2, 601]}, "prompt[2]"),
            (TEXT, {"prompt": [[1], [601]]}, "prompt[1][0]"),
            (CHAT, {"messages": user("Hi"), "logit_bias": {"601": 1}}, "logit_bias.601"),
            (CHAT, {"messages": user("Hi"), "stop_token_ids": [601]}, "stop_token_ids[0]"),
        ]
        for path, body, place in refused:
            for stream in (False, True):
                answer = await served.http.post(path, json={**body, "max_tokens": 4, "stream": stream})
                assert answer.status_code == 400, (body, answer.text)
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == (place, "invalid_value")
                assert "601" in error["message"] or "0 to 599" in error["message"]
        good = await served.http.post(CHAT, json={"messages": user("Hello"), "max_tokens": 4})
        assert good.status_code == 200
        assert (await served.http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}<one>{{ m.content }}{% endfor %}", "the chat template writes '<one>' (id 600)"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}<two>", "the chat template writes '<two>' (id 601)"),
    ],
)
def test_a_template_that_no_chat_can_work_with_is_refused_at_the_start(
    plain: Path, tmp_path: Path, template: str, said: str
):
    folder = with_tokenizer(plain, tmp_path / "more", add("<one>", "<two>"), chat_template=template)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ModelError) as refused:
        check_fit(Renderer.from_model(folder), ROWS)
    assert said in str(refused.value)
    assert "0 to 599" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_end_and_a_beginning_that_the_model_does_not_know_are_refused(plain: Path):
    renderer = Renderer.from_model(plain)
    check_fit(renderer, ROWS)
    renderer.end_ids = frozenset({600})
    with pytest.raises(ModelError, match=r"answers end with '' \(id 600\)"):
        check_fit(renderer, ROWS)
    object.__setattr__(renderer.tokenizer.vocabulary, "prefix_ids", (700,))
    with pytest.raises(ModelError, match=r"begins every prompt with .* \(id 700\)"):
        check_fit(renderer, ROWS)


def move_last(spec: dict[str, Any]) -> None:
    """The last token moves to id 650, so that there is a hole before it."""
    vocab = spec["model"]["vocab"]
    last = next(text for text, id in vocab.items() if id == ROWS - 1)
    vocab[last] = 650


UNKNOWN = [*range(599, 650), *range(651, 700)]


@pytest.mark.parametrize("dtype", ["auto", "float32"])
async def test_ids_that_are_no_token_are_never_sampled(tmp_path: Path, dtype: str):
    """Neither those behind the tokenizer's last one nor those in a hole, in no way of sampling."""
    padded = make_tiny("llama", tmp_path / "padded", vocab_size=700, max_position_embeddings=2048)
    folder = with_tokenizer(padded, tmp_path / "hole", move_last)
    renderer = Renderer.from_model(folder)
    assert renderer.tokenizer.unknown_ids(700) == UNKNOWN
    assert renderer.tokenizer.unknown_ids(620) == list(range(599, 620))
    model = load_model(folder, dtype=dtype)
    everything = "(.|\\n)*"
    ways: list[dict[str, Any]] = [
        {"temperature": 2},
        {"temperature": 0},
        {"temperature": 2, "top_k": 40},
        {"temperature": 2, "top_p": 0.99, "min_p": 0.0001},
        {"temperature": 2, "presence_penalty": 2, "repetition_penalty": 1.2},
        {"temperature": 0, "frequency_penalty": 2},
        {"temperature": 0, "logit_bias": {"649": 100, "620": 100}},
        {"temperature": 2, "min_tokens": 30},
        {"temperature": 2, "guided_regex": everything},
        {"temperature": 0, "guided_regex": everything},
    ]
    async with serving(Tiny(folder, model, renderer), live=False) as served:
        served.http.timeout = HANG_S
        said: set[int] = set()
        for way in ways:
            body = {"prompt": [5, 6, 7], "n": 4, "max_tokens": 40, "ignore_eos": "guided_regex" not in way, **way}
            answer = await served.http.post(TEXT, json={**body, "return_token_ids": True, "logprobs": 20})
            assert answer.status_code == 200, answer.text
            for choice in answer.json()["choices"]:
                said |= set(choice["token_ids"])
                for top in choice["logprobs"]["top_logprobs"]:
                    assert len(top) >= 15  # distinct texts of the 20
                    assert np.isfinite(list(top.values())).all()
        assert len(said) > 200
        assert not said & set(UNKNOWN)
