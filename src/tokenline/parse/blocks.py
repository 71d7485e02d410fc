"""What the readers of all formats do alike: content up to a marked block, and a block that is none after all."""

from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source, Write

_QUOTES = tuple("`'\"")


def read_content(source: Source, sink: Sink, *markers: str, write: Write | None = None) -> Reading[str | None]:
    """Text up to the next of these markers, which is returned; None at the end of the text. It is reasoning where that
    is open, up to its closing tag, and content from there on.

    From the marker on, the source records, for `give_back`. A marker inside of reasoning is returned too: models call
    tools without closing it. If it proves to be no call, it is given back as reasoning; one in quotes is only talk.
    """
    while True:
        closing = sink.closing
        dropped = () if sink.in_reasoning else source.dropped
        marker = yield from source.until(*markers, *closing, *dropped, write=write or sink.text)
        if marker in markers and sink.in_reasoning and source.before in _QUOTES:
            (write or sink.text)(marker)
        elif marker in closing:
            sink.end_reasoning()
        elif marker not in dropped:
            if marker is not None:
                source.record(marker)
            return marker


def read_reasoning(source: Source, sink: Sink) -> Reading[None]:
    """The rest of open reasoning, where no call can end it."""
    while sink.in_reasoning:
        yield from source.until(*sink.closing, write=sink.reasoning)
        sink.end_reasoning()


def give_back(source: Source, sink: Sink, *, marked: bool = True, write: Write | None = None) -> None:
    """The text that was recorded is no tool call, or a broken one: a reader of the answer gets it as text.

    Where the answer was cut it may well have become a call. One that had begun stays in the message as far as it came.
    One that had not is dropped, and the finish reason says why; without a marker, or in reasoning, it is more likely to
    be text.

    The stream has shown the beginning of a call that the model broke; a whole answer has its text alone. They could
    agree only if arguments did not stream, or if whole answers had calls whose arguments are no JSON, on which agents
    fail.
    """
    text = source.recorded()
    begun = sink.drop_call(cut=source.cut)
    if not source.cut or not (begun or (marked and not sink.in_reasoning)):
        (write or sink.text)(text)


class Surroundings:
    """Text on its way to the sink, and what stands before the place it has come to. A call without a marker is looked
    for only where one can begin.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._before = ""  # the last characters that are no white space, at most two
        self._line_start = True

    def write(self, text: str) -> None:
        _, line_break, last = text.rpartition("\n")
        self._line_start = not last.strip(SPACE) and (bool(line_break) or self._line_start)
        end = text.rstrip(SPACE)
        self._before = (self._before + end[:-1].rstrip(SPACE)[-1:] + end[-1:])[-2:]
        self._sink.text(text)

    @property
    def starts_line(self) -> bool:
        """The next character is the first of its line (indentation does not count), and no thought."""
        return self._line_start and not self._sink.in_reasoning

    @property
    def in_prose(self) -> bool:
        """The next character may begin an object that is no part of another, nor quoted, and no thought."""
        return not (self._sink.in_reasoning or self._before.endswith((*"`'\"{[(", '":', '",', "},", "],")))
