"""What the readers of all formats do alike: content up to a marked block, and a block that is none after all."""

from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source, Write


def read_content(source: Source, sink: Sink, *markers: str, write: Write | None = None) -> Reading[str | None]:
    """Content up to the next of these markers, which is returned; None at the end of the text.

    From the marker on, the source records, for `give_back`.
    """
    while True:
        marker = yield from source.until(*markers, *source.dropped, write=write or sink.content)
        if marker in source.dropped:
            continue
        if marker is not None:
            source.record(marker)
        return marker


def give_back(source: Source, sink: Sink, *, marked: bool = True, write: Write | None = None) -> None:
    """The text that was recorded is no tool call, or a broken one: a reader of the answer gets it as content.

    Where the answer was cut it may well have become a call; then it is dropped, and the finish reason says why. Without
    a marker it is more likely to be text, unless the call has begun.
    """
    text = source.recorded()
    begun = sink.drop_call()
    if not source.cut or not (marked or begun):
        (write or sink.content)(text)


class LineStarts:
    """Content on its way to the sink, and whether the next character will be the first of its line (indentation
    does not count). A call without a marker is looked for only there.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.at_start = True

    def write(self, text: str) -> None:
        _, line_break, last = text.rpartition("\n")
        self.at_start = not last.strip(SPACE) and (bool(line_break) or self.at_start)
        self._sink.content(text)
