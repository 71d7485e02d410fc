"""Apertus: `<|tools_prefix|>[{"get_weather": {"city": "Oslo"}}, ..]<|tools_suffix|>`, the name as the only key."""

from tokenline.parse.blocks import give_back, read_content
from tokenline.parse.json_text import copy_value, ignore, read_string
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.json_calls import copy_arguments

_BEGIN, _END = "<|tools_prefix|>", "<|tools_suffix|>"


class ApertusCalls:
    """Reader of content with Apertus' calls in it."""

    markers = (_BEGIN, _END)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        while (yield from read_content(source, sink, _BEGIN)) is not None:
            yield from source.follows("[", after_space=True)
            if (yield from self._calls(source, sink)):
                source.recorded()
                yield from source.follows(_END, after_space=True)
            else:
                give_back(source, sink)

    def _calls(self, source: Source, sink: Sink) -> Reading[bool]:
        calls = 0
        while (yield from source.follows("{", after_space=True)):
            yield from source.space()
            name = yield from read_string(source)
            if name is None or not (yield from source.follows(":", after_space=True)):
                return False
            if sink.begin_call(name) is not None:
                if not (yield from copy_arguments(source, sink.arguments)):
                    return False
                sink.end_call()
                calls += 1
                yield from source.follows("}", after_space=True)
            else:  # there is no such tool: this object alone is content
                if not (yield from copy_value(source, ignore)):
                    return False
                yield from source.follows("}", after_space=True)
                give_back(source, sink)
            source.record("")  # what is complete is not given back
            if (yield from source.follows(",", "]", after_space=True)) != ",":
                return calls > 0
        return False
