"""Text to ids and back, exactly as the model was trained: the `tokenizers` library plus what it lacks.

Knows special tokens, the bytes of each id, and where in the text each token lies. Knows nothing of chats. The caller
says whether special tokens in a text are read as such (`parse_special`). Safe to call from several threads.
"""

import codecs
import json
import re
import secrets
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tokenline.models.errors import ModelError, one_line
from tokenline.models.gguf_file import GGUFFile
from tokenline.render.errors import RenderError
from tokenline.render.pretokenizers import cuts_between_words
from tokenline.render.vocabulary import Vocabulary
from tokenline.render.vocabulary_gguf import read_gguf_vocabulary
from tokenline.render.vocabulary_hf import read_hf_vocabulary

_STRETCH = 1 << 15  # ids that are looked at without a pause
_BETWEEN_WORDS = re.compile("[A-Za-z](?= [A-Za-z])")


class Tokenizer:
    """The tokenizer of one model. `vocabulary` is what its files say."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.special_tokens = vocabulary.special  # control tokens, text to id
        self.strips_leading_space = vocabulary.strips_leading_space
        self._pieces = vocabulary.pieces
        self._special_ids = frozenset(vocabulary.special.values())
        self._lengths = np.array([len(piece) for piece in vocabulary.pieces], dtype=np.int64)
        self._start_differs = '"first"' in vocabulary.spec  # Metaspace's "prepend_scheme", never another word of it
        self._cuts_between_words = _cuts_between_words(vocabulary.spec)
        self._lock = threading.Lock()
        self._encoders: dict[tuple[frozenset[str], bool], tokenizers.Tokenizer] = {}
        self._full = self._encoder(frozenset(), continued=False)
        self._added_tokens = self._full.get_added_tokens_decoder()  # each call makes all of them anew; Gemma has 6,000
        for text, id in vocabulary.added.items():
            if (given := self._full.token_to_id(text)) != id:
                raise ModelError(f"the token {text!r} has id {id}, but the tokenizer gives {given}")

    @classmethod
    def from_model(cls, path: Path, gguf: GGUFFile | None = None) -> "Tokenizer":
        """Read the tokenizer of a Hugging Face folder or a GGUF file, which may be open already. Raises ModelError."""
        path = Path(path)
        with one_line(f"{path.name}: the tokenizer"):
            return cls(read_hf_vocabulary(path) if path.is_dir() else read_gguf_vocabulary(gguf or GGUFFile(path)))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._pieces)

    def unknown_ids(self, rows: int) -> list[int]:
        """The ids below `rows`, those that a model knows, which are no token: it may not say them. Ascending."""
        missing = (id for id in self.vocabulary.missing if id < rows)
        return [*sorted(missing), *range(self.vocab_size, rows)]

    def ends_segment(self, token: str) -> bool:
        """Whether what follows this added token is encoded independently of it and of what precedes it."""
        id = self.vocabulary.added.get(token)
        added = self._added_tokens.get(id) if id is not None else None
        if added is None or added.single_word:
            return False
        return not added.normalized or self._full.normalizer is None

    def swallows_space(self, token: str) -> bool:
        """Whether this added token takes the white space behind it with it (Phi-3)."""
        id = self.vocabulary.added.get(token)
        added = self._added_tokens.get(id) if id is not None else None
        return added is not None and added.rstrip

    def word_borders(self, text: str, distance: int) -> list[int]:
        """Places in a text, at least `distance` characters apart, where it can be cut and encoded in parts.

        Each is the border of two words and depends only on the text before it. An empty list for a tokenizer that is
        not known to cut there.
        """
        borders: list[int] = []
        if self._cuts_between_words:
            at = distance
            while (found := _BETWEEN_WORDS.search(text, at)) is not None:
                borders.append(found.end())
                at = found.end() + distance
        return borders

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of a text, without BOS.

        `parse_special`: the text of a control token becomes that token; otherwise it is encoded as any other text and
        no control token can come out.
        """
        as_text = frozenset() if parse_special else frozenset(self.special_tokens)
        return self.encode_with_offsets(text, as_text=as_text)[0]

    def encode_with_offsets(
        self, text: str, *, as_text: frozenset[str] = frozenset(), continued: bool = False
    ) -> tuple[list[int], np.ndarray]:
        """The ids of a text and each token's characters in it, int32 [n, 2]: start and end.

        Where several tokens make up one character, it belongs to each of them. `as_text`: added tokens that are read
        as plain text; none of their ids comes out. `continued`: the text follows an added token instead of beginning
        a line.
        """
        encoder = self._encoder(as_text, continued)
        # Without offsets it is faster, and as a batch it lets go of the interpreter's lock.
        ids = encoder.encode_batch_fast([text_for_utf8(text)], add_special_tokens=False)[0].ids
        if as_text and not {self.vocabulary.added[token] for token in as_text}.isdisjoint(ids):
            return self._encode_in_halves(text, as_text, continued)
        offsets = self.offsets_of(text, ids)
        if offsets is None:
            encoding = encoder.encode(text_for_utf8(text), add_special_tokens=False)
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        return ids, offsets

    def _encode_in_halves(self, text: str, as_text: frozenset[str], continued: bool) -> tuple[list[int], np.ndarray]:
        """For a tokenizer that merges plain text into a control token: cut the text until it no longer does."""
        if len(text) < 2:
            raise RenderError((), f"This model's tokenizer has no token for the text {text!r} but a control token.")
        middle = len(text) // 2
        left, left_offsets = self.encode_with_offsets(text[:middle], as_text=as_text, continued=continued)
        right, right_offsets = self.encode_with_offsets(text[middle:], as_text=as_text, continued=True)
        return left + right, np.concatenate((left_offsets, right_offsets + middle))

    def _encoder(self, as_text: frozenset[str], continued: bool) -> tokenizers.Tokenizer:
        """The tokenizer without some of its added tokens, or for the middle of a line; made when first needed."""
        key = (as_text, continued and self._start_differs)
        with self._lock:
            if key not in self._encoders:
                self._encoders[key] = _build(self.vocabulary.spec, *key)
            return self._encoders[key]

    def offsets_of(self, text: str, ids: Sequence[int] | np.ndarray) -> np.ndarray | None:
        """Offsets from the tokens' bytes, where these add up to the text; None where the tokenizer changed it."""
        data = text_for_utf8(text).encode()
        lengths = np.empty(len(ids), dtype=np.int64)
        at = 0
        for start in range(0, len(ids), _STRETCH):  # each of which holds the interpreter's lock
            stretch = ids[start : start + _STRETCH]
            piece = b"".join(map(self._pieces.__getitem__, stretch))
            if not data.startswith(piece, at):
                return None
            at += len(piece)
            lengths[start : start + len(stretch)] = self._lengths[np.asarray(stretch, dtype=np.int32)]
        if at != len(data):
            return None
        if not data:
            return np.zeros((len(ids), 2), dtype=np.int32)
        ends = np.cumsum(lengths)
        starts = np.concatenate(([0], ends[:-1]))
        # the character that each byte belongs to
        character = np.cumsum((np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80, dtype=np.int32) - 1
        return np.stack((character[np.minimum(starts, len(data) - 1)], character[ends - 1] + 1), axis=1)

    @staticmethod
    def as_array(ids: Sequence[int]) -> np.ndarray:
        """int32 [n]. In stretches, since each conversion holds the interpreter's lock."""
        array = np.empty(len(ids), dtype=np.int32)
        for start in range(0, len(ids), _STRETCH):
            array[start : start + _STRETCH] = ids[start : start + _STRETCH]
        return array

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids, invalid UTF-8 as U+FFFD."""
        data = b"".join(map(self.token_bytes, ids))
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def decode_with_offsets(self, ids: Sequence[int], *, continued: bool = False) -> tuple[str, np.ndarray]:
        """The text of some ids, invalid UTF-8 as U+FFFD, and each one's characters in it, int32 [n, 2].

        `continued`: they follow others.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets = np.zeros((len(ids), 2), dtype=np.int32)
        at_start = self.strips_leading_space and not continued
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


def _build(spec: str, as_text: frozenset[str], continued: bool) -> tokenizers.Tokenizer:
    if as_text or continued:
        parsed = json.loads(spec)
        vocab = parsed["model"]["vocab"]
        in_model = as_text & (vocab.keys() if isinstance(vocab, dict) else {entry[0] for entry in vocab})
        tokens = [token for token in parsed["added_tokens"] if token["content"] not in in_model]
        for token in tokens:  # one without a place in the model keeps its id only by its place in this list
            if token["content"] in as_text:
                token["content"] = f"\U0010fffd{secrets.token_hex(16)}"
        parsed["added_tokens"] = tokens
        if continued:
            _without_first_space(parsed["pre_tokenizer"])
        spec = json.dumps(parsed, ensure_ascii=False)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(spec)
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"the tokenizer cannot be used: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _cuts_between_words(spec: str) -> bool:
    """Whether nothing in this tokenizer looks across the border of two ASCII words."""
    parsed = json.loads(spec)
    if parsed.get("normalizer") not in (None, {"type": "NFC"}):
        return False
    for token in parsed["added_tokens"]:
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word") or " " in token["content"]:
            return False
    return cuts_between_words(parsed.get("pre_tokenizer"))


def _without_first_space(pre_tokenizer: dict[str, Any] | None) -> None:
    """Metaspace that puts a space before the first word of a line: none, since the line has begun already."""
    if pre_tokenizer is None:
        return
    for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"


def text_for_utf8(text: str) -> str:
    """JSON can carry halves of surrogate pairs, which UTF-8 cannot: each becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)
    return text
