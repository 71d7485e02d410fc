"""Text to ids and back, exactly as the model was trained: the `tokenizers` library plus what it does not tell.

Knows special tokens, the bytes of each id and where in the text each token lies. Knows nothing of chats. Whether a
text may contain special tokens is the caller's to say: `parse_special`. Safe to call from several threads.
"""

import codecs
import json
import secrets
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from tokenline.models.errors import ModelError
from tokenline.render.vocabulary import Vocabulary
from tokenline.render.vocabulary_gguf import read_gguf_vocabulary
from tokenline.render.vocabulary_hf import read_hf_vocabulary


class Tokenizer:
    """The tokenizer of one model. `vocabulary` is what its files say."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.strips_leading_space = vocabulary.strips_leading_space
        self._pieces = vocabulary.pieces
        self._special_ids = frozenset(vocabulary.special.values())
        self._full = _build(vocabulary.spec)
        for text, id in vocabulary.added.items():
            if self._full.token_to_id(text) != id:
                raise ModelError(
                    f"the token {text!r} has id {id}, but the tokenizer gives {self._full.token_to_id(text)}"
                )
        self._without: dict[frozenset[str], tokenizers.Tokenizer] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_model(cls, path: Path) -> "Tokenizer":
        """Read the tokenizer of a Hugging Face folder or a GGUF file. Raises ModelError."""
        path = Path(path)
        return cls(read_hf_vocabulary(path) if path.is_dir() else read_gguf_vocabulary(path))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._pieces)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Control tokens, text to id."""
        return self.vocabulary.special

    def encode(self, text: str, *, parse_special: bool = False, add_special: bool = False) -> list[int]:
        """The ids of a text.

        `parse_special`: the text of a control token becomes that token; otherwise it is encoded as any other text and
        no control token can come out. `add_special`: put BOS (and EOS) where this tokenizer asks for it.
        """
        ids = self.encode_with_offsets(text, parse_special=parse_special)[0]
        if add_special:
            ids = [*self.vocabulary.prefix_ids, *ids, *self.vocabulary.suffix_ids]
        return ids

    def encode_with_offsets(
        self, text: str, *, parse_special: bool, as_text: frozenset[str] | None = None
    ) -> tuple[list[int], np.ndarray]:
        """The ids of a text and each token's characters in it, int32 [n, 2]: start and end.

        A character of several tokens is given to each of them. `as_text`: added tokens that are to be read as plain
        text although `parse_special` is set.
        """
        excluded = as_text if as_text is not None else frozenset()
        if not parse_special:
            excluded |= frozenset(self.vocabulary.special)
        encoder = self._encoder(excluded)
        encoding = encoder.encode(_encodable(text), add_special_tokens=False)
        ids = encoding.ids
        if not parse_special and not self._special_ids.isdisjoint(ids):
            return self._encode_in_halves(text, excluded)
        offsets = self._offsets(text, ids)
        if offsets is None:
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        return ids, offsets

    def _encode_in_halves(self, text: str, excluded: frozenset[str]) -> tuple[list[int], np.ndarray]:
        """For a tokenizer that makes a control token from plain text: cut the text until it no longer does."""
        if len(text) < 2:
            raise ModelError(f"this tokenizer has no other token for {text!r} than a control token")
        middle = len(text) // 2
        left, left_offsets = self.encode_with_offsets(text[:middle], parse_special=False, as_text=excluded)
        right, right_offsets = self.encode_with_offsets(text[middle:], parse_special=False, as_text=excluded)
        return left + right, np.concatenate((left_offsets, right_offsets + middle))

    def _encoder(self, excluded: frozenset[str]) -> tokenizers.Tokenizer:
        """The tokenizer without some of its added tokens; made when first needed."""
        if not excluded:
            return self._full
        with self._lock:
            if excluded not in self._without:
                self._without[excluded] = _build(self.vocabulary.spec, excluded)
            return self._without[excluded]

    def _offsets(self, text: str, ids: Sequence[int]) -> np.ndarray | None:
        """Offsets from the tokens' bytes, where these add up to the text; None where the tokenizer changed it."""
        pieces = [self._pieces[id] for id in ids]
        data = text.encode("utf-8", "replace")
        if b"".join(pieces) != data:
            return None
        ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
        # the character that byte i belongs to; one more entry for the end of the text
        character = np.cumsum((np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80) - 1
        offsets = np.empty((len(ids), 2), dtype=np.int32)
        if len(ids):
            offsets[:, 0] = character[np.minimum(starts, len(data) - 1)]
            offsets[:, 1] = character[ends - 1] + 1
        return offsets

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of some ids, invalid UTF-8 as U+FFFD; without the control tokens if `skip_special`."""
        kept = (id for id in ids if not (skip_special and id in self._special_ids))
        data = b"".join(self.token_bytes(id) for id in kept)
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def decode_with_offsets(self, ids: Sequence[int]) -> tuple[str, np.ndarray]:
        """The text of some ids and each one's characters in it, int32 [n, 2]."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets = np.zeros((len(ids), 2), dtype=np.int32)
        at_start = self.strips_leading_space
        parts: list[str] = []
        length = 0
        for i, id in enumerate(ids):
            data = self.token_bytes(id)
            if at_start and data:
                data, at_start = data.removeprefix(b" "), False
            parts.append(decoder.decode(data))
            start, length = length, length + len(parts[-1])
            offsets[i] = start, length + bool(decoder.getstate()[0] and data)
        text = "".join(parts) + decoder.decode(b"", final=True)
        return text, offsets

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for, perhaps part of a character; b"" for an id outside the vocabulary."""
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token (BOS, EOS, `<|im_end|>`), which never appears in content."""
        return token_id in self._special_ids

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its text, as the vocabulary writes it."""
        return self._full.token_to_id(token)


def _build(spec: str, excluded: frozenset[str] = frozenset()) -> tokenizers.Tokenizer:
    if excluded:
        parsed = json.loads(spec)
        vocab = parsed["model"]["vocab"]
        in_model = excluded & (vocab.keys() if isinstance(vocab, dict) else {entry[0] for entry in vocab})
        tokens = [token for token in parsed["added_tokens"] if token["content"] not in in_model]
        for token in tokens:  # one without a place in the model keeps its id only by its place in this list
            if token["content"] in excluded:
                token["content"] = f"\U0010fffd{secrets.token_hex(16)}"
        parsed["added_tokens"] = tokens
        spec = json.dumps(parsed, ensure_ascii=False)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(spec)
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"the tokenizer cannot be used: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _encodable(text: str) -> str:
    """JSON can carry lone surrogates, which UTF-8 cannot: they become U+003F, as `str.encode` replaces them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
