"""Functionary 3.2: parts of an answer with a recipient each, `>>>all` and a line break before content, `>>>get_weather`
and a line break before a call's arguments. The prompt ends with the first `>>>`.
"""

import re

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.named_calls import named_call

_MARK, _EVERYBODY = ">>>", "all"
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")


class FunctionaryCalls:
    """Reader of an answer in parts with recipients."""

    markers = (_MARK,)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        mark = (yield from source.follows(_MARK, after_space=True)) or ""
        source.record(mark)
        while True:
            name = yield from source.run(_NAME)
            if name == _EVERYBODY and (yield from source.follows("\n")):
                source.recorded()
                sink.next_content()
            elif sink.tool(name) is None or not (yield from source.follows("\n")):
                give_back(source, sink, marked=False)
            elif not (yield from named_call(source, sink, name)):
                give_back(source, sink)
            if (yield from read_content(source, sink, _MARK)) is None:
                return
