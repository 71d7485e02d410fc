"""Where the parsers put what they found: content, reasoning and tool calls, as deltas. Knows no format.

The rule for white space (space, tab, line breaks), the only one in layer 4:

- Reasoning is stripped at both ends.
- White space between content and a marked block (reasoning, a tool call) is no content, unless there is content on
  both sides of the block, which it then keeps apart.
- All other white space is content; that at the very start and end of the answer too, where no block is beside it.
"""

import uuid
from collections.abc import Callable, Sequence

from tokenline.parse.delta import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from tokenline.parse.source import SPACE


def new_call_id() -> str:
    """An id for a tool call, unique among all answers."""
    return "call_" + uuid.uuid4().hex[:24]


class Sink:
    """The deltas of one answer."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._content = _Part()
        self._reasoning = _Part(beside_block=True)  # reasoning is always at the side of its own markers
        self._calls = 0
        self._call_open = False
        self.complete_calls: list[int] = []
        self.in_reasoning = False

    def content(self, text: str) -> None:
        if text := self._content.add(text):
            self._deltas.append(ContentDelta(text))

    def next_content(self) -> None:
        """Another piece of content begins, which the format keeps apart from what came before."""
        self._content.separate()

    def begin_reasoning(self) -> None:
        self.in_reasoning = True
        self._content.beside_block = True
        self._reasoning.separate()

    def reasoning(self, text: str) -> None:
        if text := self._reasoning.add(text):
            self._deltas.append(ReasoningDelta(text))

    def end_reasoning(self) -> None:
        self.in_reasoning = False

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """A tool call whose name is certain. It stays unfinished until `end_call`."""
        self._content.beside_block = True
        self._call_open = True
        self._deltas.append(ToolCallDelta(self._calls, call_id or self._new_id(), name))

    def arguments(self, text: str) -> None:
        if text:
            self._deltas.append(ToolCallDelta(self._calls, arguments=text))

    def end_call(self) -> None:
        """The call is complete, its arguments are valid JSON."""
        self.complete_calls.append(self._calls)
        self.drop_call()

    def drop_call(self) -> bool:
        """The call that is open, if there is one, is over."""
        was_open, self._call_open = self._call_open, False
        self._calls += was_open
        return was_open

    def finish(self) -> None:
        """The answer is complete."""
        if text := self._content.rest():
            self._deltas.append(ContentDelta(text))

    def take(self) -> Sequence[Delta]:
        """The deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas


class _Part:
    """The white space of content, or of reasoning, that is still undecided."""

    def __init__(self, *, beside_block: bool = False) -> None:
        self.beside_block = beside_block  # a block stands somewhere in the undecided white space
        self._always_beside = beside_block
        self._space = ""
        self._begun = False

    def add(self, text: str) -> str:
        """The text that is certain by now."""
        inside = text.rstrip(SPACE)
        if not inside:
            self._space += text
            return ""
        certain = self._space + inside
        if self.beside_block and not self._begun:
            certain = certain.lstrip(SPACE)
        self._space = text[len(inside) :]
        self._begun, self.beside_block = True, self._always_beside
        return certain

    def separate(self) -> None:
        if self._begun and not self._space:
            self._space = "\n"

    def rest(self) -> str:
        return "" if self.beside_block else self._space
