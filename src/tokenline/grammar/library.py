"""The grammar library (llguidance), kept from harming the process: the only module that imports it.

It is imported on first use. Its errors, panics (which derive from BaseException) and limits become ordinary exceptions.
It recurses over what it compiles, so it compiles on threads of its own whose stacks are large enough for all that the
limits of this room let through.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from tokenline.grammar.notation import quoted, slashed

_BEYOND = (" max is ", "limit", "too many", "too large", "fuel")  # what it says of what is beyond its limits
STACK_BYTES = 256 * 2**20  # address space, of which only what is used is ever taken
MAX_TOKEN_BYTES = 500  # the library panics at tokens of 1,024 bytes and more; nothing that is constrained needs them
_T = TypeVar("_T")
_STACK_LOCK = threading.Lock()  # the size is the process's: held while a thread starts, which takes microseconds


class Tokens(Protocol):
    """What is needed of a tokenizer (`render.tokenizer.Tokenizer` has it)."""

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that this id stands for, perhaps part of a character."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token, which no text contains."""
        ...


class LibraryError(Exception):
    """What the library said of a grammar, a mask or a token."""


@contextlib.contextmanager
def ordinary_errors() -> Iterator[None]:
    """Let the library's panics out as LibraryError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise LibraryError(f"the grammar library failed: {error}") from None
        raise


def on_large_stack(work: Callable[[], _T]) -> _T:
    """Do this on a thread of its own, and wait for it."""
    result: list[_T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            with ordinary_errors():
                result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _STACK_LOCK:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


class Library:
    """The library with one vocabulary. May be used by several threads."""

    def __init__(
        self,
        tokens: Tokens,
        tokenizer_size: int,
        vocab_size: int,
        end_ids: Set[int],
        encode: Callable[[str], Sequence[int]] | None,
    ) -> None:
        self._tokens = tokens
        self._size = min(tokenizer_size, vocab_size)
        self._vocab_size = vocab_size
        self._end_ids = sorted(token_id for token_id in end_ids if token_id < vocab_size)
        self._encode = encode
        self._lock = threading.Lock()  # held by the first use, while the vocabulary is read
        self._vocabulary: _Vocabulary | None = None

    @cached_property
    def _bytes(self) -> Any:
        """Each byte as a token."""
        import llguidance

        return llguidance.LLTokenizer("byte")

    @property
    def vocabulary(self) -> "_Vocabulary":
        if self._vocabulary is None:
            with self._lock:
                if self._vocabulary is None:
                    self._vocabulary = _Vocabulary(
                        self._tokens, self._size, self._vocab_size, self._end_ids, self._encode
                    )
        return self._vocabulary

    @property
    def special_ids(self) -> Mapping[bytes, int]:
        """The ids of control tokens by their spelling, without those that end an answer."""
        return self.vocabulary.special_ids

    def compile(self, source: str) -> "Matcher":
        """A grammar in the library's Lark notation, at its start, with its first mask worked out so that what is too
        large shows now. Raises LibraryError.
        """
        import llguidance

        limits = _limits()
        options = '%llguidance {"no_forcing": true}\n' if self._encode is None else ""
        vocabulary = self.vocabulary

        def work() -> Matcher:
            matcher = llguidance.LLMatcher(
                vocabulary.tokenizer,
                llguidance.LLMatcher.grammar_from_lark(options + source),
                log_level=0,
                limits=limits,
            )
            made = Matcher(matcher, vocabulary)
            made.mask()
            return made

        return on_large_stack(work)

    def accepts(self, source: str) -> str:
        """What is wrong with a grammar, without its vocabulary; "" if nothing. Cheaper than `compile`."""
        import llguidance

        limits = _limits()
        try:
            return on_large_stack(
                lambda: llguidance.LLMatcher.validate_grammar(
                    llguidance.LLMatcher.grammar_from_lark(source), limits=limits
                )
            )
        except LibraryError as error:
            return str(error)

    def matches_others(self, pattern: str, texts: Sequence[str]) -> bool:
        """Whether an expression matches anything but these texts. Raises LibraryError where that is not found out."""
        import llguidance

        source = f"start: TEXT\nTEXT: {slashed(pattern)} & ~({' | '.join(map(quoted, texts))})"
        with ordinary_errors():
            matcher = llguidance.LLMatcher(self._bytes, llguidance.LLMatcher.grammar_from_lark(source), log_level=0)
            if matcher.is_error():
                raise LibraryError(_first_line(matcher.get_error()))
            matcher.compute_bitmask()
            error = matcher.get_error()
        if error and "NoExtension" not in error:
            raise LibraryError(_first_line(error))
        return not error

    def matches(self, pattern: str, text: str) -> bool:
        """Whether an expression (`patterns`) matches a whole text, in time linear in its length."""
        import llguidance

        source = f"start: {slashed(pattern)}"
        with ordinary_errors():
            matcher = llguidance.LLMatcher(self._bytes, llguidance.LLMatcher.grammar_from_lark(source), log_level=0)
            data = list(text.encode())
            return matcher.try_consume_tokens(data) == len(data) and bool(matcher.is_accepting())


def _limits() -> Any:
    """Above the library's defaults where those are too small for what people send (1,000 optional properties make 2,000
    items in a row), below them where they are more than an answer's thread should wait for.
    """
    import llguidance

    return llguidance.LLParserLimits(
        max_items_in_row=10_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,  # 1 to 2 kB each, for every choice
        max_grammar_size=200_000,
        verbose_errors=False,  # grammars do not belong into messages
    )


class _Vocabulary:
    """The vocabulary as the library takes it (its wrapper's attributes), and what is known of it besides."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: Tokens,
        size: int,
        vocab_size: int,
        end_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]] | None,
    ) -> None:
        import llguidance

        # No bytes: never allowed. So are the ids between the tokenizer's and the model's sizes.
        pieces = [tokens.token_bytes(token_id) for token_id in range(size)]
        specials = [token_id for token_id in range(size) if tokens.is_special(token_id)]
        self.special_ids = {pieces[token_id]: token_id for token_id in specials if token_id not in end_ids}
        self.special_token_ids = sorted({*specials, *end_ids})
        self.tokens = [piece if len(piece) <= MAX_TOKEN_BYTES else b"" for piece in pieces]
        self.tokens += [b""] * (vocab_size - size)
        named = set()
        for token_id in self.special_token_ids:  # the library knows them by their texts, so each needs one of its own
            if not self.tokens[token_id] or self.tokens[token_id] in named:
                self.tokens[token_id] = b"<|%d|>" % token_id
            named.add(self.tokens[token_id])
        if not end_ids:  # the library needs one; beyond the model's ids it is never sampled
            end_ids = [len(self.tokens)]
            self.tokens.append(b"<|end|>")
            self.special_token_ids.append(end_ids[0])
        self.eos_token_id = end_ids[0]
        self.words = -(-len(self.tokens) // 32)
        self.model_words = -(-vocab_size // 32)
        # A grammar may name ids that are none of the tokenizer's.
        bits = np.zeros(32 * self.words, bool)
        bits[:size] = True
        bits[list(end_ids)] = True
        self.real = np.packbits(bits, bitorder="little").view(np.int32)
        self._encode = encode
        self._pieces = pieces
        self._special = frozenset(self.special_token_ids)
        with ordinary_errors():
            wrapper: Any = self  # what a TokenizerWrapper has
            self.tokenizer = llguidance.LLTokenizer(wrapper, eos_token=list(end_ids))

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text that is forced. Those of another text would be a wrong answer, so it is compared: some
        tokenizers begin every text with a space, and some read control tokens in it.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        ids = self._encoded(text)
        return list(self.tokenizer.greedy_tokenize(text)) if ids is None else ids

    def _encoded(self, text: str) -> list[int] | None:
        if self._encode is None:
            return None
        try:
            ids = list(self._encode(text))
            spelled = b"".join(self._pieces[token_id] for token_id in ids)
        except Exception:  # what is raised here would come out of the library as a panic
            return None
        return ids if spelled == text.encode() and not self._special.intersection(ids) else None


class Matcher:
    """A place in a compiled grammar. Used by one thread at a time."""

    def __init__(self, matcher: Any, vocabulary: _Vocabulary, mask: np.ndarray | None = None) -> None:
        """`mask`: where it is known what comes next."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._is_known = mask is not None
        self._mask = np.empty(vocabulary.words, np.int32) if mask is None else mask.copy()

    def copy(self) -> "Matcher":
        """Another one at the same place."""
        with ordinary_errors():
            return Matcher(self._matcher.deep_copy(), self._vocabulary, self._mask if self._is_known else None)

    def mask(self) -> np.ndarray:
        """int32 [words]: bit i of word w is set if id 32 * w + i may come next. Raises LibraryError."""
        if self._is_known:
            return self._mask[: self._vocabulary.model_words]
        with ordinary_errors():
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            # The library answers "only the end" to what it cannot work out.
            if self._matcher.is_error():
                raise LibraryError(_first_line(self._matcher.get_error()))
        self._mask &= self._vocabulary.real
        self._is_known = True
        return self._mask[: self._vocabulary.model_words]

    def accept(self, token_id: int) -> bool:
        """Go on with this id; False, and no way on, if it may not come next. Raises LibraryError where that is not
        found out within the limits.
        """
        self._is_known = False
        with ordinary_errors():
            if self._matcher.consume_token(token_id):
                return True
            error = _first_line(self._matcher.get_error() or "")
        if any(word in error for word in _BEYOND):
            raise LibraryError(error)
        return False

    def forced(self) -> list[int]:
        """The ids that come next whatever is sampled."""
        with ordinary_errors():
            return list(self._matcher.compute_ff_tokens())


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].removesuffix(".")
