"""xLAM: `[{"name": .., "arguments": {..}}, ..]`, a list of calls that stands by itself, in a code block, or between the
markers of other formats (`<tool_call>`, `[TOOL_CALLS]`).
"""

from tokenline.parse.blocks import Surroundings, give_back, read_content
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.json_calls import read_calls

_ENDS = {"<tool_call>": "</tool_call>", "```": "```"}


class XlamCalls:
    """Reader of content with xLAM's calls in it."""

    markers = (*_ENDS, "</tool_call>")

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        text = Surroundings(sink)
        while (marker := (yield from read_content(source, sink, *_ENDS, "[", write=text.write))) is not None:
            if not (yield from self._calls(source, sink, marker, text.starts_line)):
                give_back(source, sink, marked=False, write=text.write)

    def _calls(self, source: Source, sink: Sink, marker: str, starts_line: bool) -> Reading[bool]:
        if marker == "```":
            yield from source.follows("json")
        elif marker == "[" and not (yield from source.follows("TOOL_CALLS]")):
            if not starts_line:
                return False
            source.put_back("[")
        end = _ENDS.get(marker)
        if not (yield from read_calls(source, sink, bare=True, ends=(end,) if end else ())):
            return False
        if end:
            yield from source.follows(end, after_space=True)
        return True
