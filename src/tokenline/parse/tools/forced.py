"""Calls that the request has forced, and constrained decoding has shaped: the whole answer is JSON, without markers."""

from tokenline.parse.blocks import give_back, read_reasoning
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.json_calls import copy_arguments, read_calls


class NamedCallReader:
    """`tool_choice` names a function: the answer is its arguments."""

    markers = ()

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from read_reasoning(source, sink)
        source.record("")
        yield from source.space()
        begun = bool((yield from source.peek())) and sink.begin_call(self._name)
        if begun and (yield from copy_arguments(source, sink.arguments)):
            sink.end_call()
            source.recorded()
            return
        give_back(source, sink)


class RequiredCallsReader:
    """`tool_choice: "required"`: the answer is a list of `{"name": .., "parameters": {..}}`, or one of them."""

    markers = ()

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from read_reasoning(source, sink)
        source.record("")
        if not (yield from read_calls(source, sink, separators=(",", ";"))):
            give_back(source, sink)
