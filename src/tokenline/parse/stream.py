"""The whole of layer 4 for one answer: ids -> text -> stop strings -> parser -> deltas. Called by the service.

Streaming and non-streaming answers go through the same object; a non-streaming one only keeps the deltas until the end.
"""

from collections.abc import Sequence, Set
from enum import StrEnum

from tokenline.parse.delta import Delta, OutputParser, TokenBytes, join
from tokenline.parse.detokenize import Detokenizer
from tokenline.parse.message import Message, assemble
from tokenline.parse.parser import PlainParser
from tokenline.parse.stop import StopStrings


class EndReason(StrEnum):
    """Why an answer is over."""

    END_OF_TURN = "stop"  # the model ended it
    STOP_STRING = "stop_string"
    TOOL_CALLS = "tool_calls"  # it calls at least one tool
    LENGTH = "length"  # a limit cut it


class OutputStream:
    """One choice of one request. Feed it the ids of each engine step, then `finish` it once."""

    def __init__(
        self,
        tokens: TokenBytes,
        *,
        stop: Sequence[str] = (),
        parser: OutputParser | None = None,
        end_ids: Set[int] = frozenset(),
        continues_text: bool = False,
    ) -> None:
        """`end_ids` end the answer and are no text, whether control tokens or not. Pass none with `ignore_eos`.

        `continues_text`: see Detokenizer. Raises ValueError for an empty stop string.
        """
        self._parser: OutputParser = parser or PlainParser()
        self._detokenizer = Detokenizer(
            tokens, control_tokens=self._parser.control_tokens, continues_text=continues_text
        )
        self._stop = StopStrings(stop)
        self._end_ids = end_ids
        self._decoded = 0  # characters, before stop strings
        self._cut = False
        self.ended = False  # an end id has come
        self.reasoning_tokens = 0  # ids of reasoning, its markers included
        self.token_offsets: list[int] = []  # per counted id: the character of the text at which it was added

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing more will come, the engine's request should be aborted."""
        return self._stop.matched is not None

    @property
    def completion_tokens(self) -> int:
        """Ids that count as generated: all fed ones up to the one that ended the answer, itself included."""
        return len(self.token_offsets)

    @property
    def end_reason(self) -> EndReason:
        """Why the answer is over, after `finish`. One that was cut says so, whatever came before."""
        if self._cut:
            return EndReason.LENGTH
        if self._parser.has_tool_calls:
            return EndReason.TOOL_CALLS
        return EndReason.STOP_STRING if self.stopped else EndReason.END_OF_TURN

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._stop.matched

    def message(self, deltas: Sequence[Delta]) -> Message:
        """The whole answer, after `finish`, of all deltas that `feed` and `finish` have returned."""
        return assemble(deltas, self._parser.message_calls)

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next ids; return what is certain by now. Ids after the end of the answer are ignored."""
        deltas: list[Delta] = []
        for token_id in ids:
            if self.ended or self.stopped:
                break
            self.token_offsets.append(self._decoded)
            in_reasoning = self._parser.in_reasoning
            if token_id in self._end_ids:
                self.ended = True
                break
            for piece in self._detokenizer.feed(token_id):
                self._decoded += len(piece.text)
                if piece.control:
                    # Not text, so no part of a stop string: what was held back is none.
                    deltas.extend(self._parse(self._stop.finish()))
                    deltas.extend(self._parser.feed(piece.text, control=True))
                else:
                    deltas.extend(self._parse(self._stop.feed(piece.text)))
            self.reasoning_tokens += in_reasoning or self._parser.in_reasoning
        return join(deltas)

    def finish(self, cut: bool) -> list[Delta]:
        """No more ids will come; `cut`: not because the model ended its turn (a length limit, an abort). Returns what
        was held back.
        """
        deltas: list[Delta] = []
        if not self.stopped:
            deltas.extend(self._parse(self._stop.feed(self._detokenizer.finish())))
        if not self.stopped:
            deltas.extend(self._parse(self._stop.finish()))
        self._cut = cut and not (self.ended or self.stopped)
        deltas.extend(self._parser.finish(cut=self._cut or self.stopped))
        return join(deltas)

    def _parse(self, text: str) -> Sequence[Delta]:
        return self._parser.feed(text) if text else ()
