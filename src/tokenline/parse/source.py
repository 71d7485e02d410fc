"""The scanner that all parsers read from: text that comes in pieces, read as if it were all there.

A reader is a generator. It calls the methods below with `yield from`; where one needs text that has not come yet, it
yields, and is resumed when there is more or when the text has ended. So a reader is written once, in the order of the
format it reads, and serves streaming and non-streaming alike. What a method does depends only on the text, never on
how it was cut: it acts as soon as the text so far leaves no choice, and not before.

A control token that the detokenizer passes through is one character here, a lone surrogate, which decoded UTF-8 cannot
contain. So a marker that is a control token of the vocabulary, or has one in it (`function call<|role_sep|>`), is found
where the model wrote that token, and not where it spelled the same characters with ordinary ids.
"""

import re
from collections.abc import Callable, Generator, Iterable, Set
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Write = Callable[[str], None]

SPACE = " \t\r\n"  # what counts as white space in layer 4
_SPACE = re.compile(r"[ \t\r\n]*")


class Source:
    """The text of one answer, read from the front."""

    def __init__(self, control_tokens: Set[str] = frozenset(), dropped: Iterable[str] = ()) -> None:
        """`control_tokens`: what counts in a marker only as the control token. `dropped`: markers that are left out of
        content (see `blocks.read_content`).
        """
        self._character = {text: chr(0xD800 + number) for number, text in enumerate(sorted(control_tokens))}
        self._restored = {ord(character): text for text, character in self._character.items()}
        self._in_marker = re.compile("|".join(map(re.escape, sorted(control_tokens, key=len, reverse=True))) or r"(?!)")
        self._spellings: dict[str, str] = {}  # of the markers that were asked for
        self.dropped = tuple(dropped)
        self.before = ""  # the character before the marker that `until` has found; "" at the start of the answer
        self._last = ""  # the character that was taken last
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None
        self.ended = False  # no more text will come
        self.cut = False  # and it was not the model that ended it

    def push(self, text: str, *, control: bool = False) -> None:
        if control:
            text = self._character.get(text, text)
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut: bool) -> None:
        self.ended, self.cut = True, cut

    # What was read, for the case that it turns out not to be what it looked like.

    def record(self, begun: str) -> None:
        """Remember what is read from here on; `begun` was read before and belongs to it."""
        self._record = [begun]

    def recorded(self) -> str:
        """All text since `record`, which ends with this."""
        text, self._record = "".join(self._record or ()), None
        return text

    # Reading.

    def take(self, count: int) -> str:
        """The next `count` characters, which must be there."""
        piece = self._text[self._at : self._at + count]
        self._at += count
        if self._restored and not piece.isascii():
            piece = piece.translate(self._restored)
        if self._record is not None:
            self._record.append(piece)
        self._last = piece[-1:] or self._last
        return piece

    def spelled(self, marker: str) -> str:
        """The marker as it stands in the text: its control tokens are one character each."""
        if not self._character:
            return marker
        if (spelled := self._spellings.get(marker)) is None:
            spelled = self._in_marker.sub(lambda match: self._character[match[0]], marker)
            self._spellings[marker] = spelled
        return spelled

    def put_back(self, marker: str) -> None:
        """Undo the reading of a marker, the last thing that was consumed."""
        self._text = self.spelled(marker) + self._text[self._at :]
        self._at = 0
        if self._record is not None:
            self._record[-1] = self._record[-1].removesuffix(marker)

    def take_now(self, pattern: re.Pattern[str]) -> str:
        """What matches of the text that is there, perhaps nothing."""
        match = pattern.match(self._text, self._at)
        return self.take(match.end() - self._at) if match and match.end() > self._at else ""

    def peek(self) -> Reading[str]:
        """The next character, not consumed; "" at the end of the text."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def ahead(self, count: int) -> Reading[str]:
        """The next `count` characters, not consumed; fewer at the end of the text."""
        while len(self._text) - self._at < count and not self.ended:
            yield
        return self._text[self._at : self._at + count]

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """All characters up to the first that is not of the set `pattern` (a regular expression like `[..]*`)."""
        run = self.take_now(pattern)
        while self._at >= len(self._text) and not self.ended:
            yield
            run += self.take_now(pattern)
        return run

    def space(self) -> Reading[str]:
        """White space up to the next other character."""
        return (yield from self.run(_SPACE))

    def follows(self, *options: str, after_space: bool = False, consume: bool = True) -> Reading[str | None]:
        """Which of the options stands next, if any; it is consumed, with the white space before it.

        No option may be the beginning of another. If none stands next, nothing is consumed.
        """
        spelled = [(self.spelled(option), option) for option in options]
        longest = max(len(spelling) for spelling, _ in spelled)
        space = 0  # characters of white space that have been seen
        while True:
            start = self._at
            if after_space:
                space = self._space_from(space)
                start += space
            text = self._text[start : start + longest]
            for spelling, option in spelled:
                if text.startswith(spelling):
                    if consume:
                        self.take(start + len(spelling) - self._at)
                    return option
            if self.ended or not any(spelling.startswith(text) for spelling, _ in spelled):
                return None
            yield

    def at_end(self) -> Reading[bool]:
        """Whether nothing but white space is left."""
        space = 0
        while True:
            space = self._space_from(space)
            if self._at + space < len(self._text):
                return False
            if self.ended:
                return True
            yield

    def _space_from(self, count: int) -> int:
        """How many characters of white space stand next, at least `count` of them, which are not looked at again."""
        match = _SPACE.match(self._text, self._at + count)
        return count if match is None else match.end() - self._at

    def until(self, *markers: str, write: Write, tail: bool = True) -> Reading[str | None]:
        """Consume the text before the next of these markers, handing it to `write` as soon as it is certain, and the
        marker; return the marker, None at the end of the text.

        `tail`: whether the beginning of a marker at the very end of the text is text after all.
        The marker that begins first counts. No marker may contain another, except at its end.
        """
        spelled = {self.spelled(marker): marker for marker in markers}
        while True:
            found, start = None, len(self._text)
            for spelling in spelled:
                at = self._text.find(spelling, self._at, start + len(spelling))
                if 0 <= at < start:
                    found, start = spelling, at
            if found is None and not self.ended:
                start -= self._begun(spelled)
            if start > self._at:
                text = self.take(start - self._at)
                if tail or not self.ended or found is not None:
                    write(text)
            if found is not None:
                self.before = self._last
                self.take(len(found))
                return spelled[found]
            if self.ended:
                return None
            yield

    def rest(self, write: Write) -> Reading[None]:
        """Consume everything."""
        while True:
            if self._at < len(self._text):
                write(self.take(len(self._text) - self._at))
            if self.ended:
                return
            yield

    def _begun(self, spelled: Iterable[str]) -> int:
        """The length of the longest end of the text that one of these may begin with."""
        longest = 0
        for spelling in spelled:
            for length in range(min(len(spelling) - 1, len(self._text) - self._at), longest, -1):
                if self._text.endswith(spelling[:length]):
                    longest = length
                    break
        return longest
