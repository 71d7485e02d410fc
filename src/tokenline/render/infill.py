"""Fill in the middle: a text with a gap as the line of a model that was trained to fill one.

The tokens that mark prefix, suffix and gap are found by their names, or by the ids that a GGUF file gives; their order
by the names. Formats: the model cards of Qwen2.5-Coder, CodeGemma and StarCoder; Code Llama (arXiv:2308.12950, section
2.3); DeepSeek-Coder (arXiv:2401.14196); Seed-Coder (arXiv:2506.03524); mistral-common for Codestral. What the user
sends is text: it never becomes one of these tokens, nor any other control token.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenline.fields import Path, json_pointer
from tokenline.render.control import ControlTokens
from tokenline.render.line import Line, Origin, Span
from tokenline.render.tokenizer import Tokenizer, text_for_utf8
from tokenline.render.vocabulary import Vocabulary


class _Names(NamedTuple):
    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False


_FORMATS = (
    _Names("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma, Granite 4
    _Names("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    _Names("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Names("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    _Names("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    _Names("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed-Coder
    _Names("[PREFIX]", "[SUFFIX]", None, suffix_first=True),  # Codestral: the answer goes on behind the prefix
)

# What comes behind a middle: padding, the next file, the end of the text. Beside the model's own end tokens.
_ENDS = (
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
    "▁<EOT>",
    "<|file_sep|>",
    "<file_sep>",
    "<|file_separator|>",
    "<|repo_name|>",
    "<repo_name>",
    "<reponame>",
    "<|endoftext|>",
    "<|end_of_text|>",
)

# Put before a text that goes on within a line, so that SentencePiece adds no space of its own; a token by itself in the
# vocabularies that do so (Meta's and Mistral's reference code use it too).
_MARKER = "☺"


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens around a gap, by id."""

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    end_ids: frozenset[int]  # end what is filled in; the tokens above among them
    texts: frozenset[str]  # of all these


def find_infill_tokens(vocabulary: Vocabulary) -> InfillTokens | None:
    """None: the model cannot fill in."""
    by_text, given = vocabulary.added, vocabulary.infill_ids
    text_of = {token_id: text for text, token_id in by_text.items()}
    found: tuple[int, int, int | None] | None = None
    suffix_first = False
    if {"prefix", "suffix", "middle"} <= given.keys():
        found = given["prefix"], given["suffix"], given["middle"]
        suffix_first = any(names.suffix_first and names.prefix == text_of.get(found[0]) for names in _FORMATS)
    else:
        for names in _FORMATS:
            wanted = [name for name in names[:3] if name is not None]
            if all(name in by_text for name in wanted):
                middle = None if names.middle is None else by_text[names.middle]
                found, suffix_first = (by_text[names.prefix], by_text[names.suffix], middle), names.suffix_first
                break
    if found is None:
        return None
    ends = {token_id for token_id in found if token_id is not None} | set(given.values())
    ends |= {by_text[text] for text in _ENDS if text in by_text}
    texts = frozenset(text_of[token_id] for token_id in ends if token_id in text_of)
    return InfillTokens(*found, suffix_first, frozenset(ends), texts)


class Infiller:
    """Writes the lines of one model that can fill in."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens, tokens: InfillTokens):
        self.tokens = tokens
        self._tokenizer = tokenizer
        self._added = frozenset((control.texts | tokens.texts) & tokenizer.vocabulary.added.keys())

    def line(self, prefix: str, suffix: str, prefix_path: Path, suffix_path: Path) -> Line:
        """The line behind which the model writes what stands between `prefix` and `suffix`.

        The paths say where in the request the two stand.
        """
        tokens, writer = self.tokens, _Writer(self._tokenizer)
        for token_id in self._tokenizer.vocabulary.prefix_ids:
            writer.add_token(token_id, Origin.TOKENIZER)
        prefix, suffix = text_for_utf8(prefix), text_for_utf8(suffix)
        before = (tokens.prefix, prefix, prefix_path, self._encode(prefix))
        behind = (tokens.suffix, suffix, suffix_path, self._encode_continued(suffix))
        for token_id, text, path, encoded in (behind, before) if tokens.suffix_first else (before, behind):
            writer.add_token(token_id, Origin.TEMPLATE)
            writer.add_text(text, path, *encoded)
        if tokens.middle is not None:
            writer.add_token(tokens.middle, Origin.TEMPLATE)
        return writer.line()

    def _encode(self, text: str) -> tuple[list[int], np.ndarray]:
        as_text = self._added if any(token in text for token in self._added) else frozenset()
        return self._tokenizer.encode_with_offsets(text, as_text=as_text)

    def _encode_continued(self, text: str) -> tuple[list[int], np.ndarray]:
        """A text that goes on within a line."""
        if not self._tokenizer.strips_leading_space:
            return self._encode(text)
        marker = self._tokenizer.encode(_MARKER)
        ids, offsets = self._encode(_MARKER + text)
        if ids[: len(marker)] != marker:
            return self._encode(text)
        return ids[len(marker) :], offsets[len(marker) :] - np.int32(len(_MARKER))


class _Writer:
    """A line in the making."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._offsets: list[np.ndarray] = []
        self._text: list[str] = []
        self._spans: list[Span] = []
        self._length = 0  # characters

    def add_token(self, token_id: int, origin: Origin) -> None:
        """A token that the request does not spell. One of the tokenizer's own is no character of the text."""
        text = ""
        if origin is Origin.TEMPLATE:
            text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        self._add(text, [token_id], np.array([[0, len(text)]], dtype=np.int32))
        if text:
            self._spans.append(Span(self._length - len(text), self._length, origin))

    def add_text(self, text: str, path: Path, ids: list[int], offsets: np.ndarray) -> None:
        self._add(text, ids, offsets)
        if text:
            self._spans.append(Span(self._length - len(text), self._length, Origin.REQUEST, json_pointer(path)))

    def _add(self, text: str, ids: list[int], offsets: np.ndarray) -> None:
        self._ids += ids
        self._offsets.append(offsets + np.int32(self._length))
        self._text.append(text)
        self._length += len(text)

    def line(self) -> Line:
        ids = np.array(self._ids, dtype=np.int32)
        return Line(ids, "".join(self._text), np.concatenate(self._offsets).astype(np.int32), tuple(self._spans))
