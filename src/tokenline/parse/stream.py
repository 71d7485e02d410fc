"""The whole of layer 4 for one answer: ids -> text -> stop strings -> parser -> deltas. Called by the server.

Streaming and non-streaming answers go through the same object; a non-streaming one only keeps the deltas until the end.
"""

from collections.abc import Sequence, Set

from tokenline.parse.delta import Delta, OutputParser, TokenBytes
from tokenline.parse.detokenize import Detokenizer
from tokenline.parse.plain import PlainParser
from tokenline.parse.stop import StopStrings


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
        self.token_offsets: list[int] = []  # per counted id: the character of the text at which it was added

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing more will come, the engine's request should be aborted."""
        return self._stop.matched is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that was found."""
        return self._stop.matched

    @property
    def completion_tokens(self) -> int:
        """Ids that count as generated: all fed ones up to the one that ended the answer, itself included."""
        return len(self.token_offsets)

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason, after `finish`. An answer that was cut says so, whatever came before."""
        if self._cut:
            return "length"
        return "tool_calls" if self._parser.has_tool_calls else "stop"

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next ids; return what is certain by now. Ids after the end of the answer are ignored."""
        deltas: list[Delta] = []
        for token_id in ids:
            if self.ended or self.stopped:
                break
            self.token_offsets.append(self._decoded)
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
        return join(deltas)

    def finish(self, cut: bool) -> list[Delta]:
        """No more ids will come; `cut`: because of a length limit. Returns what was held back."""
        deltas: list[Delta] = []
        self._cut = cut and not (self.ended or self.stopped)
        if not self.stopped:
            deltas.extend(self._parse(self._stop.feed(self._detokenizer.finish())))
        if not self.stopped:
            deltas.extend(self._parse(self._stop.finish()))
        deltas.extend(self._parser.finish(cut=self._cut))
        return join(deltas)

    def _parse(self, text: str) -> Sequence[Delta]:
        return self._parser.feed(text) if text else ()


def join(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring pieces of the same part become one delta, so that one engine step sends few chunks."""
    joined: list[Delta] = []
    for delta in deltas:
        if not delta:
            continue
        last = joined[-1] if joined else None
        if last is not None and not (last.tool_calls or delta.tool_calls):
            if not (last.reasoning or delta.reasoning):
                joined[-1] = Delta(content=last.content + delta.content)
                continue
            if not (last.content or delta.content):
                joined[-1] = Delta(reasoning=last.reasoning + delta.reasoning)
                continue
        joined.append(delta)
    return joined
