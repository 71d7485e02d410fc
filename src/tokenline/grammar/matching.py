"""One choice's way through a compiled grammar: what the engine asks before each id, and tells after it."""

from collections.abc import Sequence

import numpy as np

from tokenline.grammar.library import LibraryError, Matcher, Tokens

_KEPT = 256  # bytes before the awaited text that are kept; no token is longer


class GrammarState:
    """Fulfils the engine's Constraint protocol. Its errors are ordinary exceptions, and end this one answer."""

    def __init__(self, compiled: Matcher, free: np.ndarray, begins_after: bytes, tokens: Tokens) -> None:
        """`free`: the mask of the text before it begins."""
        self._compiled = compiled
        self._matcher: Matcher | None = None  # made by the first use, on the engine's thread
        self._free = free
        self._tokens = tokens
        self._awaited = begins_after
        self._seen = b""

    @property
    def _begun(self) -> Matcher:
        if self._matcher is None:
            self._matcher = self._compiled.copy()
        return self._matcher

    def mask(self) -> np.ndarray:
        """int32 [words]: bit i of word w is set if id 32 * w + i may come next. Raises LibraryError."""
        return self._free if self._awaited else self._begun.mask()

    def accept(self, token_id: int) -> None:
        """The id has been sampled. Raises ValueError for one that the mask forbade."""
        if not self._awaited:
            if not self._begun.accept(token_id):
                raise ValueError(f"token {token_id} is outside the grammar")
            return
        self._seen += self._tokens.token_bytes(token_id)
        _, found, rest = self._seen.partition(self._awaited)
        self._seen = self._seen[-len(self._awaited) - _KEPT :]
        if found:
            self._awaited = b""
            # What the same token says beyond it is the answer's; white space is not, since parsers drop it there.
            if rest.strip() and not self._begun.accept_text(rest):
                raise ValueError(f"token {token_id} begins an answer outside the grammar")

    def forced(self) -> Sequence[int]:
        """The ids that come next whatever is sampled, in order; () where there is a choice, or it is not known.

        They may be accepted at once instead of being sampled. Each is allowed by `mask` in its turn.
        """
        if self._awaited:
            return ()
        try:
            return tuple(self._begun.forced())
        except LibraryError:
            return ()  # `mask` says what is wrong
