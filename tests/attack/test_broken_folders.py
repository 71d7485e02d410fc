# ruff: noqa: E501 (tables)
"""Tokenizers, templates and configurations that are broken or hostile: one line that says so, and never a hang."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_tiny
from tokenline.fields import FieldError
from tokenline.models.errors import ModelError
from tokenline.render.renderer import Renderer
from tokenline.service.default_sampling import DefaultSampling

Edit = Callable[[dict[str, Any]], None]


def put(*path: str, value: Any = None) -> Edit:
    """An edit of a tokenizer.json: another value at a place, or none there."""

    def edit(spec: dict[str, Any]) -> None:
        for part in path[:-1]:
            spec = spec[part]
        spec[path[-1]] = value

    return edit


def token(**changes: Any) -> Edit:
    """One more added token."""

    def edit(spec: dict[str, Any]) -> None:
        spec["added_tokens"].append({**spec["added_tokens"][0], "content": "<new>", **changes})

    return edit


def word(id: Any) -> Edit:
    """One more entry of the vocabulary."""
    return lambda spec: spec["model"]["vocab"].update({"zzzz": id})


def same_ids(spec: dict[str, Any]) -> None:
    spec["model"]["vocab"] = dict.fromkeys(spec["model"]["vocab"], 0)


def split(pattern: str) -> Edit:
    value = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return put("pre_tokenizer", value=value)


REFUSED: dict[str, Edit] = {
    "no-model": put("model"), "model-of-text": put("model", value="x"), "no-vocabulary": put("model", "vocab"),
    "vocabulary-of-numbers": put("model", "vocab", value=[1]), "empty-vocabulary": put("model", "vocab", value={}),
    "unknown-model": put("model", "type", value="Bomb"), "negative-id": word(-5), "fraction-id": word(1.5),
    "text-id": word("5"), "true-id": word(True), "id-of-50-million": word(50_000_000), "id-of-2-to-31": word(2**31),
    "id-of-2-to-32": word(2**32 - 1), "id-of-2-to-64": word(2**64), "one-id-for-all": same_ids,
    "merges-of-nothing": put("model", "merges", value=["zz qq"]), "merges-of-text": put("model", "merges", value="x"),
    "merges-of-numbers": put("model", "merges", value=[[1, 2]]), "half-a-merge": put("model", "merges", value=["x"]),
    "huge-added-id": token(id=4_000_000_000), "negative-added-id": token(id=-1), "added-text": put("added_tokens", value=["x"]),
    "added-number": put("added_tokens", value=5), "wrong-expression": split("("),
    "unknown-splitter": put("pre_tokenizer", value={"type": "Bomb"}), "unknown-normalizer": put("normalizer", value={"type": "Bomb"}),
    "wrong-normalizer": put("normalizer", value={"type": "Replace", "pattern": {"Regex": "["}, "content": "x"}),
    "decoder-of-a-number": put("decoder", value=5), "no-decoder": put("decoder"), "dropout": put("model", "dropout", value=2.0),
}  # fmt: skip
TEXTS: dict[str, tuple[str, bytes]] = {
    f"{file.split('.')[0]}-{number}": (file, text if isinstance(text, bytes) else text.encode())
    for file, texts in {
        "tokenizer.json": ["", "null", "[]", "5", "{}", b"\xff\xfe{}", "[" * 200_000, '{"model":' * 100_000, "\x00" * 100],
        "tokenizer_config.json": ["[]", "5", "[" * 200_000, '{"a":' * 200_000, "\x00", b"\xff", '{"chat_template": "{{"}',
                                  '{"additional_special_tokens": 5}'],
        "generation_config.json": ["[]", "[" * 100_000, '{"eos_token_id": "x"}', '{"eos_token_id": [true]}',
                                   '{"eos_token_id": -5}', '{"eos_token_id": 1.5}', '{"eos_token_id": {}}'],
        "special_tokens_map.json": ["[]", "{"],
        "chat_template.jinja": [b"\xff\xfe", "{% for %}", "{{ " + "(" * 50_000, "x" * (2 << 20),
                                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"],
        "chat_template.json": ["[]", "5"],
    }.items()
    for number, text in enumerate(texts)
}  # fmt: skip
ODD: dict[str, tuple[str, str]] = {
    f"{file.split('.')[0]}-{number}": (file, text)
    for file, texts in {
        "tokenizer_config.json": [
            '{"chat_template": 5}', '{"chat_template": [1]}', '{"chat_template": [{"name": 1, "template": 2}]}',
            '{"bos_token": 5}', '{"bos_token": {"content": 5}}', '{"added_tokens_decoder": [1]}', '{"added_tokens_decoder": {"x": 1}}',
            '{"added_tokens_decoder": {"5": {"content": ""}}}', '{"additional_special_tokens": [5, {}]}', '{"extra_special_tokens": "abc"}',
            '{"add_bos_token": "x"}', '{"chat_template": "\\ud800"}', '{"eos_token": "<never seen>"}',
        ],
        "generation_config.json": ['{"eos_token_id": 99999999999}', '{"eos_token_id": null}', '{"top_k": null}'],
        "special_tokens_map.json": ['{"bos_token": []}', '{"eos_token": {"content": {}}}'],
        "added_tokens.json": ["[]", '{"x": "y"}'],
    }.items()
    for number, text in enumerate(texts)
}  # fmt: skip
SAMPLING = [
    ("top_k", 1.5), ("top_k", "x"), ("top_k", [1]), ("min_p", 2), ("min_p", True), ("temperature", float("nan")),
    ("temperature", float("inf")), ("temperature", -1), ("temperature", 10**400), ("repetition_penalty", 0), ("top_p", {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("broken") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as error:
        Renderer.from_model(folder)
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < 800
    return said


@pytest.mark.parametrize("edit", REFUSED.values(), ids=REFUSED)
def test_a_tokenizer_that_is_wrong_is_refused(folder: Path, edit: Edit):
    file = folder / "tokenizer.json"
    spec = json.loads(file.read_text())
    edit(spec)
    file.write_text(json.dumps(spec))
    assert "tokenizer" in refusal(folder)


@pytest.mark.parametrize(("file", "data"), TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_wrong_is_named(folder: Path, file: str, data: bytes):
    (folder / file).write_bytes(data)
    said = refusal(folder)
    assert file in said or (file.startswith("chat") and "chat template" in said) or "chat_template" in str(data)


@pytest.mark.parametrize(("file", "text"), ODD.values(), ids=ODD)
def test_what_is_odd_and_harmless_is_overlooked(folder: Path, file: str, text: str):
    (folder / file).write_text(text)
    assert len(Renderer.from_model(folder).text("hello"))


@pytest.mark.parametrize(
    "file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_what_is_no_file_is_not_waited_for(folder: Path, file: str, make: Callable[[Path], None]):
    (folder / file).unlink(missing_ok=True)
    make(folder / file)
    if file == "tokenizer.json":
        refusal(folder)
    else:
        Renderer.from_model(folder)


@pytest.mark.parametrize(("name", "value"), SAMPLING)
def test_sampling_values_of_a_model_are_checked(folder: Path, name: str, value: Any):
    (folder / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(FieldError, match=name):
        DefaultSampling.of(Renderer.from_model(folder).default_sampling)
