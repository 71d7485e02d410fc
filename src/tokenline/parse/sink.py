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

    def __init__(
        self, new_id: Callable[[], str] = new_call_id, tool: Callable[[str], str | None] = lambda name: name or None
    ) -> None:
        """`tool`: the request's tool that is meant by a name that the model wrote; None if there is no such tool."""
        self.tool = tool
        self._new_id = new_id
        self._deltas: list[Delta] = []
        self._content = _Part()
        self._reasoning = _Part(beside_block=True)  # reasoning is always at the side of its own markers
        self._ids: set[str] = set()
        self._calls = 0
        self._call_open = False
        self.complete_calls: list[int] = []
        self.message_calls: list[int] = []  # those, and the one that the answer's end has cut
        self.in_reasoning = False
        self.closing: tuple[str, ...] = ()  # tags that end the reasoning, or may still follow where a call ended it

    def text(self, text: str) -> None:
        """Reasoning while it is open, else content."""
        if self.in_reasoning:
            self.reasoning(text)
        else:
            self.content(text)

    def content(self, text: str) -> None:
        if text := self._content.add(text):
            self._deltas.append(ContentDelta(text))

    def next_content(self) -> None:
        """Another piece of content begins, which the format keeps apart from what came before."""
        self._content.separate()

    def begin_reasoning(self, closing: tuple[str, ...] = ()) -> None:
        self.in_reasoning, self.closing = True, closing
        self._content.beside_block = True
        self._reasoning.separate()

    def reasoning(self, text: str) -> None:
        if text := self._reasoning.add(text):
            self._deltas.append(ReasoningDelta(text))

    def end_reasoning(self) -> None:
        self.in_reasoning, self.closing = False, ()

    def begin_call(self, name: str, call_id: str | None = None) -> str | None:
        """A tool call, whose name is certain. Returns the name of the request's tool; None if there is no such tool:
        then it is no call, and its text is content. It stays unfinished until `end_call`.

        A call ends the reasoning in which it stands.
        """
        if (tool := self.tool(name)) is None:
            return None
        self.in_reasoning = False
        self._content.beside_block = True
        self._call_open = True
        if call_id is None or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self._deltas.append(ToolCallDelta(self._calls, call_id, tool))
        return tool

    def arguments(self, text: str) -> None:
        if text:
            self._deltas.append(ToolCallDelta(self._calls, arguments=text))

    def end_call(self) -> None:
        """The call is complete, its arguments are valid JSON."""
        self.complete_calls.append(self._calls)
        self.drop_call(cut=True)

    def drop_call(self, *, cut: bool) -> bool:
        """The call that is open, if there is one, is over. `cut`: by the end of the answer; it stays in the message."""
        was_open, self._call_open = self._call_open, False
        if was_open and cut:
            self.message_calls.append(self._calls)
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
