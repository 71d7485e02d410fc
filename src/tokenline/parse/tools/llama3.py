"""Llama 3.x: calls as JSON objects `{"name": .., "parameters": {..}}`, bare or behind `<|python_tag|>`, several with a
semicolon between them; built-in tools as `<|python_tag|>brave_search.call(query="..")`; and code for the interpreter.

A bare object is looked for in prose, not within other JSON, and must name a tool of the request, if it has any.
"""

import re

from tokenline.parse.blocks import Surroundings, give_back, read_content
from tokenline.parse.json_text import escaped
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source
from tokenline.parse.tools.json_calls import read_call, read_calls
from tokenline.parse.tools.pythonic import read_arguments
from tokenline.parse.tools.schema import ToolSchemas

PYTHON_TAG = "<|python_tag|>"
_BUILT_IN = re.compile(r"[A-Za-z0-9_.]*")
_INTERPRETERS = ("code_interpreter", "python", "ipython")  # tools that take what is not a call, as `code`


class Llama3Calls:
    """Reader of content with Llama 3's calls in it."""

    markers = (PYTHON_TAG,)

    def __init__(self, schemas: ToolSchemas) -> None:
        self._schemas = schemas

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        lines = Surroundings(sink)
        while (marker := (yield from read_content(source, sink, PYTHON_TAG, "{", write=lines.write))) is not None:
            if marker == PYTHON_TAG:
                if not (yield from self._tagged(source, sink)):
                    give_back(source, sink, write=lines.write)
            elif not (lines.in_prose and (yield from self._bare(source, sink))):
                give_back(source, sink, marked=False, write=lines.write)

    def _bare(self, source: Source, sink: Sink) -> Reading[bool]:
        """The object whose opening bracket has been read; a semicolon behind it is no content."""
        if not (yield from read_call(source, sink, bare=True, opened=True)):
            return False
        source.recorded()
        yield from source.follows(";", after_space=True)
        return True

    def _tagged(self, source: Source, sink: Sink) -> Reading[bool]:
        if (yield from source.follows("{", after_space=True, consume=False)):
            return (yield from read_calls(source, sink, separators=(";", ",")))
        name = yield from source.run(_BUILT_IN)
        if name.endswith(".call") and (yield from source.peek()) == "(":
            tool = sink.tool(name.removesuffix(".call"))
            complete = tool is not None and (yield from read_arguments(source, sink, self._schemas, tool))
            if complete:
                source.recorded()
            return complete
        interpreter = self._schemas.first(*_INTERPRETERS)
        if interpreter is None:
            return False
        sink.begin_call(interpreter)
        sink.arguments(f'{{"code": "{escaped(source.recorded().removeprefix(PYTHON_TAG))}')
        yield from source.rest(lambda code: sink.arguments(escaped(code)))
        if not source.cut:
            sink.arguments('"}')
            sink.end_call()
        else:
            sink.drop_call(cut=True)
        return True
