"""Ids -> text, as the ids come. Knows bytes and characters; knows nothing of stop strings, tools or reasoning.

An id stands for bytes, not for characters: a character may lie in several ids, and some bytes can never become one.
Only a tail that is valid so far but incomplete is held back; bytes that are impossible become U+FFFD at once. The
joined pieces are exactly `b"".join(bytes of all ids).decode("utf-8", "replace")`, however the ids arrive.

Two rules of layer 4 live here. A SentencePiece answer loses the one space at the start of the whole text, never that
of a later piece. Control tokens are no text, except those that a parser has asked to see.
"""

import codecs
from collections.abc import Set
from typing import NamedTuple

from tokenline.parse.delta import TokenBytes


class DecodedText(NamedTuple):
    """What one id added to the text."""

    text: str
    control: bool = False  # the text is that of a control token, not spelled by ordinary ids


class Detokenizer:
    """One answer's ids, one after another."""

    def __init__(
        self, tokens: TokenBytes, *, control_tokens: Set[str] = frozenset(), continues_text: bool = False
    ) -> None:
        """`control_tokens`: texts of the control tokens to pass through, as they are, instead of dropping them.

        `continues_text`: the answer goes on with text of the prompt (a plain completion, `continue_final_message`),
        so a space at its start is part of the text even for SentencePiece.
        """
        self._tokens = tokens
        self._control_tokens = control_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_next = tokens.strips_leading_space and not continues_text

    def feed(self, token_id: int) -> tuple[DecodedText, ...]:
        """The text that is certain now that this id has come: nothing, a piece, or two pieces where a control token
        cuts off a character.
        """
        data = self._tokens.token_bytes(token_id)
        if self._tokens.is_special(token_id):
            if not self._control_tokens or (text := data.decode("utf-8", "replace")) not in self._control_tokens:
                return ()
            self._strip_next = False
            # A control token ends a character that has begun: its own first byte could not continue it anyway.
            broken = self._utf8.decode(b"", final=True)
            return (
                (DecodedText(broken), DecodedText(text, control=True)) if broken else (DecodedText(text, control=True),)
            )
        if data and self._strip_next:
            self._strip_next = False
            data = data.removeprefix(b" ")
        text = self._utf8.decode(data)
        # Python's decoder holds the first two bytes of a surrogate, which can never become a character.
        held = self._utf8.getstate()[0]
        if held[:1] == b"\xed" and held[1:2] >= b"\xa0":
            text += self._utf8.decode(b"", final=True)
        return (DecodedText(text),) if text else ()

    def finish(self) -> str:
        """What an unfinished character at the end becomes: U+FFFD, or nothing."""
        return self._utf8.decode(b"", final=True)
