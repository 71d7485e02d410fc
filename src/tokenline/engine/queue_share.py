"""How many unfinished choices each caller may have, so that nobody fills the queue for all.

A caller has at most `most`, and at most half of what the others leave of `TOTAL` times that. So the queue is never
full: however many callers fill it, something is left for the next, and only who has much already is refused.

Knows numbers and callers' names; the engine's side of the event loop owns it.
"""

from collections import Counter

TOTAL = 4  # times what one caller may have


class QueueShare:
    """Counts choices by caller. `most`: of one caller."""

    def __init__(self, most: int):
        self._most = most
        self._taken: Counter[str | None] = Counter()
        self._total = 0

    def taken(self, sender: str | None) -> int:
        """Unfinished choices of a caller."""
        return self._taken[sender]

    @property
    def total(self) -> int:
        return self._total

    def fits(self, sender: str | None, choices: int) -> bool:
        """Whether a caller may have so many more."""
        own = self._taken[sender]
        left_by_others = TOTAL * self._most - (self._total - own)
        return own + choices <= min(self._most, -(-left_by_others // 2))

    def take(self, sender: str | None, choices: int) -> None:
        self._taken[sender] += choices
        self._total += choices

    def give_back(self, sender: str | None, choices: int) -> None:
        """So many are over."""
        self._taken[sender] -= choices
        self._total -= choices
        if not self._taken[sender]:
            del self._taken[sender]
