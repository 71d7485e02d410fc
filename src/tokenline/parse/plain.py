"""The parser of a model without reasoning and tools: all text is content."""

from collections.abc import Sequence

from tokenline.parse.delta import ContentDelta, Delta


class PlainParser:
    """Everything is content, at once."""

    control_tokens: frozenset[str] = frozenset()
    complete_calls: Sequence[int] = ()
    has_tool_calls = False
    in_reasoning = False

    def feed(self, text: str, *, control: bool = False) -> Sequence[Delta]:
        return (ContentDelta(text),) if text else ()

    def finish(self, *, cut: bool) -> Sequence[Delta]:
        return ()
