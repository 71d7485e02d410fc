"""gpt-oss ("harmony"): an answer is a chain of messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>The user wants ..<|end|>
    <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It rains.<|return|>

`analysis` is reasoning, `commentary` and `final` are content, and a message to a recipient is a tool call. The header
may also have the recipient before the channel. Format: https://cookbook.openai.com/articles/openai-harmony (the library
`openai-harmony` fetches its vocabulary from the net when it is first used, and reads that vocabulary's ids only).
"""

import re

from tokenline.parse.blocks import give_back
from tokenline.parse.json_text import ignore
from tokenline.parse.sink import Sink
from tokenline.parse.source import Reading, Source, Write
from tokenline.parse.tools.named_calls import named_call

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_NOT_TOOLS = ("assistant", "user", "all")


class HarmonyReader:
    """Reader of a whole harmony answer."""

    markers = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)

    def __init__(self, prompt_end: str = "", *, tools: bool = True) -> None:
        """`prompt_end`: a prompt that ends inside a message, or in its header, decides what the answer begins with.
        `tools`: whether calls are read as such; else they are content.
        """
        self._tools = tools
        self._header = prompt_end.rpartition(_START)[2] if _START in prompt_end else ""
        if any(end in self._header for end in _ENDS):
            self._header = ""

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        header, in_message, _ = self._header.partition(_MESSAGE)
        if in_message:
            yield from self._message(source, sink, header)
        elif _CHANNEL in header or (yield from source.follows("to=", after_space=True, consume=False)):
            yield from self._headed(source, sink, header)
        # Text outside of messages is not foreseen; whatever it is, it is not lost.
        while (marker := (yield from source.until(_START, _CHANNEL, _MESSAGE, *_ENDS, write=sink.content))) is not None:
            if marker == _MESSAGE:
                yield from self._message(source, sink, "")
            elif marker not in _ENDS:
                yield from self._headed(source, sink, marker)

    def _headed(self, source: Source, sink: Sink, header: str) -> Reading[None]:
        """The rest of a header, and its message."""
        parts = [header]
        while True:
            marker = yield from source.until(_MESSAGE, _START, *_ENDS, write=parts.append)
            if marker == _MESSAGE:
                return (yield from self._message(source, sink, "".join(parts)))
            if marker != _START:
                return None
            parts = []

    def _message(self, source: Source, sink: Sink, header: str) -> Reading[None]:
        """The text of a message, after its header."""
        header = header.replace(_CONSTRAIN, " ")
        recipient = _RECIPIENT.search(header.replace(_CHANNEL, " "))
        if self._tools and recipient and recipient[1] not in _NOT_TOOLS:
            yield from self._call(source, sink, recipient[1].removeprefix("functions."))
        elif header.rpartition(_CHANNEL)[2].split()[:1] == ["analysis"]:
            sink.begin_reasoning()
            yield from self._to_end(source, sink.reasoning)
            sink.end_reasoning()
        else:
            sink.next_content()
            yield from self._to_end(source, sink.content)

    def _call(self, source: Source, sink: Sink, name: str) -> Reading[None]:
        source.record("")
        if (yield from source.follows(*_ENDS, after_space=True)):
            source.recorded()
            if sink.begin_call(name) is not None:
                sink.arguments("{}")
                sink.end_call()
        elif (yield from named_call(source, sink, name)):
            yield from self._to_end(source, ignore)
        else:  # a built-in tool's code, or broken JSON
            sink.next_content()
            give_back(source, sink, marked=True)
            yield from self._to_end(source, sink.content)

    def _to_end(self, source: Source, write: Write) -> Reading[None]:
        """The text of a message up to its end; the next message's start ends it too."""
        if (yield from source.until(*_ENDS, _START, write=write)) == _START:
            source.put_back(_START)
