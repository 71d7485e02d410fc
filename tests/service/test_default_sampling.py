"""The sampling values of a request that gives none: the operator's, else the model's, else llama.cpp's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tokenline.engine.settings import EngineLimits
from tokenline.fields import FieldError
from tokenline.render.chat_input import ChatInput
from tokenline.render.renderer import Renderer
from tokenline.render.vocabulary_gguf import vocabulary_from_metadata
from tokenline.service.default_sampling import PLAIN, DefaultSampling
from tokenline.service.prepare import Room
from tokenline.service.request import ChatRequest, Sampling

LIMITS = EngineLimits(max_model_len=64, pool_tokens=64, num_blocks=2, block_size=32, vocab_size=10)
RENDERER = cast(
    Renderer, SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=10), end_ids=frozenset({1}), default_sampling={})
)


def used(given: Sampling, defaults: DefaultSampling) -> tuple[float, int, float, float]:
    """temperature, top_k, top_p and min_p with which a request is answered."""
    request = ChatRequest(id="r", chat=ChatInput([{"role": "user", "content": "hi"}]), sampling=given)
    params = Room(RENDERER, LIMITS, defaults).sampling_params(request, 5, ("messages",))
    return params.temperature, params.top_k, params.top_p, params.min_p


def test_without_a_generation_config_they_are_llama_cpps() -> None:
    assert used(Sampling(), DefaultSampling.of({})) == (0.8, 40, 0.95, 0.05)


def test_the_models_own_values_come_first_each_by_itself() -> None:
    assert used(Sampling(), DefaultSampling.of({"temperature": 0.6, "top_k": 20})) == (0.6, 20, 0.95, 0.05)


def test_the_operators_values_come_before_the_models() -> None:
    model = DefaultSampling.of({"temperature": 0.6, "top_k": 20})
    assert used(Sampling(), DefaultSampling.of({"top_k": -1, "min_p": 0}, model)) == (0.6, 0, 0.95, 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Sampling(temperature=1), (1, 40, 0.95, 0.05)),
        (Sampling(temperature=0), (0, 40, 0.95, 0.05)),
        (Sampling(temperature=1, top_k=0, top_p=1, min_p=0), (1, 0, 1, 0)),
        (Sampling(top_k=-1), (0.8, 0, 0.95, 0.05)),
    ],
)
def test_a_requests_own_values_always_count(given: Sampling, expected: tuple[float, ...]) -> None:
    assert used(given, DefaultSampling()) == expected


def test_turned_off_nothing_is_changed() -> None:
    assert used(Sampling(), PLAIN) == (1, 0, 1, 0)


@pytest.mark.parametrize(
    ("defaults", "text"),
    [
        (DefaultSampling(), "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05"),
        (PLAIN, "temperature 1"),
        (DefaultSampling(temperature=0), "temperature 0 (always the most likely token)"),
        (DefaultSampling.of({"repetition_penalty": 1.1}, PLAIN), "temperature 1, repetition_penalty 1.1"),
    ],
)
def test_as_the_banner_shows_them(defaults: DefaultSampling, text: str) -> None:
    assert str(defaults) == text


@pytest.mark.parametrize("value", [-1, 7, float("nan"), "hot", True])
def test_a_value_of_a_model_that_cannot_be_is_named(value: Any) -> None:
    with pytest.raises(FieldError, match="'temperature' must be a number from 0 to 2"):
        DefaultSampling.of({"temperature": value})


def test_a_gguf_files_own_values(smollm2: Path) -> None:
    """llama.cpp's converter copies them from generation_config.json, in 32 bits."""
    from tokenline.models.gguf_file import GGUFFile

    metadata = dict(GGUFFile(smollm2).metadata)
    metadata |= {"general.sampling.temp": 1.0, "general.sampling.top_p": 0.949999988079071}
    metadata |= {"general.sampling.top_k": -1, "general.sampling.penalty_repeat": 1.0499999523162842}
    found = vocabulary_from_metadata(metadata, "x").default_sampling
    assert found == {"temperature": 1.0, "top_p": 0.95, "top_k": -1, "repetition_penalty": 1.05}
    assert str(DefaultSampling.of(found)) == "temperature 1, top_p 0.95, min_p 0.05, repetition_penalty 1.05"
