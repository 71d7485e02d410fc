"""Stop strings over decoded text. Knows text only: a stop string may lie across ids, or end within one.

The answer ends where the first stop string is *completed*; if several are completed by the same character, the longest
counts. That is what cutting after every single character would give, so it does not depend on how the text arrives.
The match and everything after it is cut; text that may yet become a match is held back.

The stop strings are an Aho-Corasick automaton: constant work a character, however many and long they are, and the
depth of its state is exactly how much text has to be held back.
"""

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The stop strings of one answer."""

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string, which would end every answer before it began."""
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        # Node 0 is the root; a node is a prefix of some stop string.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that is a suffix of this prefix; 0: none
        self._fallback = [0]  # the node of this prefix's longest proper suffix
        for text in stop:
            self._add(text)
        self._link()
        self._state = 0
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the answer

    def _add(self, text: str) -> None:
        node = 0
        for depth, character in enumerate(text, start=1):
            child = self._next[node].get(character)
            if child is None:
                child = len(self._next)
                self._next[node][character] = child
                self._next.append({})
                self._depth.append(depth)
                self._match.append(0)
                self._fallback.append(0)
            node = child
        self._match[node] = len(text)

    def _link(self) -> None:
        """Breadth first, so that shorter prefixes are linked before the longer ones that fall back on them."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._next[node].items():
                self._fallback[child] = self._step(self._fallback[node], character)
                self._match[child] = self._match[child] or self._match[self._fallback[child]]
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while (following := self._next[state].get(character)) is None:
            if state == 0:
                return 0
            state = self._fallback[state]
        return following

    def feed(self, text: str) -> str:
        """The text that is certain by now. After a match: what stood before it, and from then on nothing."""
        if self.matched is not None:
            return ""
        if len(self._next) == 1:
            return text
        pending = self._held + text
        state, step = self._state, self._step
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = step(state, character)
            if length := self._match[state]:
                self.matched = pending[end - length : end]
                self._held = ""
                return pending[: end - length]
        self._state = state
        certain = len(pending) - self._depth[state]
        self._held = pending[certain:]
        return pending[:certain]

    def finish(self) -> str:
        """The text is complete: what was held back is no stop string after all."""
        held, self._held, self._state = self._held, "", 0
        return held
