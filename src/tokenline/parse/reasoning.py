"""Reasoning in front of the answer: `<think>..</think>` and its relatives. (Harmony's channels: harmony.py.)

Whether the answer starts inside of the block is read off the end of the rendered prompt: it ends with the opening tag,
or has closed the block already, or leaves it to the model to open one. Only what stands first in the answer opens the
block, and the first closing tag closes it; every later tag is text. A tool call closes it too (see
`blocks.read_content`): some models call from within their thoughts.
"""

from dataclasses import dataclass, replace

from tokenline.parse.sink import Sink
from tokenline.parse.source import SPACE, Reading, Source


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    begin: tuple[str, ...] = ("<think>",)
    end: tuple[str, ...] = ("</think>",)
    opened: bool = False  # where the prompt's end is not known: whether the model's templates open the block
    dropped: tuple[str, ...] = ()  # tags around the answer itself


THINK = ReasoningFormat()
THINK_OPENED = replace(THINK, opened=True)
MISTRAL = ReasoningFormat(("[THINK]",), ("[/THINK]",))
SEED_OSS = ReasoningFormat(("<seed:think>",), ("</seed:think>",))
GEMMA4 = ReasoningFormat(("<|channel>thought",), ("<channel|>",))
HUNYUAN = ReasoningFormat(dropped=("<answer>", "</answer>"))
APRIEL = ReasoningFormat(
    ("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",), dropped=("[END FINAL RESPONSE]",)
)
COHERE = ReasoningFormat(
    ("<|START_THINKING|>",),
    ("<|END_THINKING|>",),
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
KIMI_K3 = ReasoningFormat(
    ("<|open|>think<|sep|>",),
    ("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
    dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
)
MINIMAX_M3 = ReasoningFormat(("<mm:think>",), ("</mm:think>",))
HUNYUAN_V3 = ReasoningFormat(("<think>", "<think:opensource>"), ("</think>", "</think:opensource>"))
ERNIE45 = ReasoningFormat(opened=True, dropped=("<response>", "</response>"))
APERTUS = ReasoningFormat(("<|inner_prefix|>",), ("<|inner_suffix|>",))
GRANITE = ReasoningFormat(
    ("<think>", "Here is my thought process:", "Here's my thought process:"),
    ("</think>", "Here is my response:", "Here's my response:"),
    dropped=("<response>", "</response>"),
)


class ReasoningReader:
    """Reader of the tag in front of an answer that opens reasoning."""

    def __init__(self, form: ReasoningFormat, prompt_end: str = "") -> None:
        """`prompt_end`: the rendered prompt, or its last characters; "" if it is not known."""
        self._form = form
        self.markers = (*form.begin, *form.end)
        end = prompt_end.rstrip(SPACE)
        self.opened = end.endswith(form.begin) if end else form.opened
        self.closed = end.endswith(form.end)

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        """Open the reasoning. The reader of the answer reads its text, since a tool call may end it too."""
        if self.closed:
            return
        if self.opened:
            sink.begin_reasoning(self._form.end)
        # A model may repeat the tag that its prompt ends with.
        begun = yield from source.follows(*self._form.begin, after_space=True)
        if begun is not None and not self.opened:
            sink.begin_reasoning(self._form.end)
