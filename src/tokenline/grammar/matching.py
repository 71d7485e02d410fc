"""One choice's way through a compiled grammar: what the engine asks before each id, and tells after it."""

from collections.abc import Sequence

import numpy as np

from tokenline.grammar.library import LibraryError, Matcher


class GrammarState:
    """Fulfils the engine's Constraint protocol. Its errors are ordinary exceptions, and end this one answer."""

    def __init__(self, compiled: Matcher) -> None:
        self._compiled = compiled
        self._matcher: Matcher | None = None  # made by the first use, on the engine's thread

    @property
    def _begun(self) -> Matcher:
        if self._matcher is None:
            self._matcher = self._compiled.copy()
        return self._matcher

    def mask(self) -> np.ndarray:
        """int32 [words]: bit i of word w is set if id 32 * w + i may come next. Raises LibraryError."""
        return self._begun.mask()

    def accept(self, token_id: int) -> None:
        """The id has been sampled. Raises ValueError for one that the mask forbade."""
        if not self._begun.accept(token_id):
            raise ValueError(f"token {token_id} is outside the grammar")

    def forced(self) -> Sequence[int]:
        """The ids that come next whatever is sampled, in order; () where there is a choice, or it is not known.

        They may be accepted at once instead of being sampled. Each is allowed by `mask` in its turn.
        """
        try:
            return tuple(self._begun.forced())
        except LibraryError:
            return ()  # `mask` says what is wrong
