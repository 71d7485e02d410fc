"""Grammars driven by hand: which texts they let through, id by id, and what random sampling makes of them."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.parse.fake_tokens import Vocabulary
from tokenline.grammar.compiler import GrammarCompiler, MakeGrammar
from tokenline.grammar.matching import GrammarState
from tokenline.grammar.spec import ConstraintSpec

PIECES = [bytes([byte]) for byte in range(256)] + ['{"', '":', '", "', "true", "12", "中", "😀", "name", "]}", "  "]
END = len(PIECES)
CONTROL = END + 1
TOKENS = Vocabulary([*PIECES, "<|end|>", "<tool_call>"], special={END, CONTROL})
VOCAB = len(TOKENS.pieces)
PADDED = VOCAB + 70  # models pad their logits

Encode = Callable[[str], Sequence[int]]


def encode_bytes(text: str) -> list[int]:
    """A tokenizer that has a token for each byte and uses no other."""
    return list(text.encode())


def byte_compiler(**options: Any) -> GrammarCompiler:
    """A compiler for bytes, an end and nothing else: every text has one spelling."""
    tokens = Vocabulary([*(bytes([byte]) for byte in range(256)), "<|end|>"], special={256})
    return GrammarCompiler(tokens, 257, 257, {256}, encode=encode_bytes, **options)


def allowed_ids(grammar: GrammarState, vocab_size: int = PADDED) -> np.ndarray:
    mask = grammar.mask()
    assert mask.dtype == np.int32
    assert len(mask) == -(-vocab_size // 32)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size])


def is_allowed(grammar: GrammarState, token_id: int) -> bool:
    return bool(grammar.mask().view(np.uint32)[token_id // 32] >> token_id % 32 & 1)


def lets_through(make: MakeGrammar, text: str, *, encode: Encode = encode_bytes, end: int = 256) -> bool:
    """Whether the grammar takes the text as a whole answer."""
    return stops_at(make, text, encode=encode, end=end) is None


def stops_at(make: MakeGrammar, text: str, *, encode: Encode = encode_bytes, end: int = 256) -> int | None:
    """Which of the text's ids, the end being one, the grammar forbids; None if it takes the text."""
    grammar = make()
    for index, token_id in enumerate([*encode(text), end]):
        if not is_allowed(grammar, token_id):
            return index
        grammar.accept(token_id)
    return None


LAYOUTS: list[dict[str, Any]] = [{"separators": (",", ":")}, {}, {"indent": 2}]


def spellings(value: Any, layout: dict[str, Any], most: int = 60) -> list[str]:
    """A JSON value as text, with its members in every order: the order is the grammar's to choose."""
    return [json.dumps(one, ensure_ascii=False, **layout) for one in itertools.islice(_orders(value), most)]


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        names = list(value)
        inner = [list(itertools.islice(_orders(value[name]), 24)) for name in names]
        orders = itertools.permutations(range(len(names))) if len(names) <= 4 else [range(len(names))]
        for order in orders:
            for parts in itertools.islice(itertools.product(*(inner[index] for index in order)), 50):
                yield {names[index]: part for index, part in zip(order, parts, strict=True)}
    elif isinstance(value, list):
        for parts in itertools.islice(itertools.product(*(itertools.islice(_orders(x), 24) for x in value)), 50):
            yield list(parts)
    else:
        yield value


def takes(
    make: MakeGrammar, value: Any, layout: dict[str, Any], *, encode: Encode = encode_bytes, end: int = 256
) -> bool:
    """Whether a grammar takes this value, in any order of members."""
    return any(lets_through(make, text, encode=encode, end=end) for text in spellings(value, layout))


def random_answer(
    make: MakeGrammar, seed: int, *, limit: int = 2000, end_early: bool = True, vocab_size: int = PADDED
) -> str | None:
    """One random answer over TOKENS; None if it did not end within the limit."""
    grammar, drawn, text = make(), random.Random(seed), b""
    for _ in range(limit):
        ids = allowed_ids(grammar, vocab_size)
        assert len(ids) > 0
        assert ids.max() < VOCAB, "padding is never allowed"
        if END in ids and (end_early or len(ids) == 1):
            return text.decode("utf-8", "replace")
        # ASCII first, so that random strings end some day
        likely = [token_id for token_id in ids if token_id in (34, 125, 93)]
        token_id = int(drawn.choice(likely if likely and drawn.random() < 0.5 else list(ids)))
        grammar.accept(token_id)
        text += TOKENS.token_bytes(token_id)
    return None


def random_answers(make: MakeGrammar, count: int = 20) -> list[str]:
    found = [text for seed in range(count) if (text := random_answer(make, seed)) is not None]
    assert len(found) >= count // 2
    return found


def constraint(form: Any, before: Any = None) -> ConstraintSpec:
    return ConstraintSpec(form, before)
