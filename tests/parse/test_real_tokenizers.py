"""The detokenizer over real vocabularies: what a text is encoded to comes back, id by id."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parse.fake_tokens import content
from tests.sources import llama_cpp_source
from tokenline.parse.delta import Delta
from tokenline.parse.registry import make_parser
from tokenline.parse.stream import EndReason, OutputStream
from tokenline.render.tokenizer import Tokenizer

TEXTS = st.text(st.sampled_from("ab漢字😀é👩‍👧 \n\t.,{}\"'<|>") | st.characters(codec="utf-8"), max_size=20)


@pytest.fixture(scope="module", params=["qwen2", "llama-spm", "gpt-2"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.from_model(llama_cpp_source() / f"ggml-vocab-{request.param}.gguf")


@given(text=TEXTS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    stream = OutputStream(tokenizer)
    deltas: list[Delta] = []
    for token_id in ids:
        deltas += stream.feed([token_id])
    deltas += stream.finish(cut=False)
    assert content(deltas) == b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace").removeprefix(
        " " if tokenizer.strips_leading_space else ""
    )
    assert content(deltas) == text


def test_control_tokens_are_no_text_and_literal_ones_are(tokenizer: Tokenizer) -> None:
    space = " " if tokenizer.strips_leading_space else ""  # SentencePiece begins every encoded text with one
    for control, token_id in list(tokenizer.special_tokens.items())[:20]:
        literal = tokenizer.encode(f"a{control}b")
        assert token_id not in literal
        stream = OutputStream(tokenizer)
        text = content(stream.feed([*tokenizer.encode("a"), token_id, *literal]) + stream.finish(cut=False))
        assert text == f"a{space}a{control}b"


def test_a_call_with_the_spelling_of_a_control_token_in_it(tokenizer: Tokenizer) -> None:
    control, end_id = next(iter(tokenizer.special_tokens.items()))
    parser = make_parser("llama3_json", None, control_tokens=set(tokenizer.special_tokens))
    stream = OutputStream(tokenizer, parser=parser, end_ids={end_id})
    ids = [*tokenizer.encode(f'{{"name": "f", "parameters": {{"a": "{control}"}}}}'), end_id]
    message = stream.message(stream.feed(ids) + stream.finish(cut=False))
    assert [(made.name, made.arguments) for made in message.tool_calls] == [("f", f'{{"a": "{control}"}}')]
    assert stream.end_reason is EndReason.TOOL_CALLS
    assert stream.completion_tokens == len(ids)
