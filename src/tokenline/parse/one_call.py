"""`parallel_tool_calls: false`: of an answer's tool calls the first complete one, and no other."""

from collections.abc import Sequence

from tokenline.parse.delta import Delta, OutputParser, ToolCallDelta


class OneCall:
    """An OutputParser that leaves out what another one finds behind its first complete call."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self.control_tokens = parser.control_tokens

    def feed(self, text: str, *, control: bool = False) -> Sequence[Delta]:
        return self._up_to_first(self._parser.feed(text, control=control))

    def finish(self, *, cut: bool) -> Sequence[Delta]:
        return self._up_to_first(self._parser.finish(cut=cut))

    def _up_to_first(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        if not self.complete_calls:
            return deltas
        (first,) = self.complete_calls
        return [delta for delta in deltas if not isinstance(delta, ToolCallDelta) or delta.index <= first]

    @property
    def complete_calls(self) -> Sequence[int]:
        return self._parser.complete_calls[:1]

    @property
    def has_tool_calls(self) -> bool:
        return self._parser.has_tool_calls

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning
