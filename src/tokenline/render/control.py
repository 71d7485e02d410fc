"""Which control tokens in a rendered chat the template wrote, and which a user only typed.

A template writes `<|im_end|>` to end a turn. The same characters in a message are text that somebody sent, and must be
encoded as text: otherwise a user could end their turn and speak as the system. The rendered text alone does not tell
the two apart; provenance does. Since that costs more than plain rendering, `may_forge` first asks whether the request
holds any character that a control token could be made of.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenline.render.line import Origin
from tokenline.render.provenance import Runs, runs_of
from tokenline.render.template import ChatTemplate
from tokenline.render.vocabulary import Vocabulary

_STRETCH = 1 << 17  # characters that are searched without a pause
_ROLE = re.compile(r"/messages/\d+/role")


class ControlTokens:
    """The control tokens of a model's chats: the tokenizer's own, and other added tokens that its templates write.

    The second kind are tokens like `<tool_call>`: they structure a chat, even if the tokenizer does not mark them as
    special.
    """

    def __init__(self, vocabulary: Vocabulary, templates: Iterable[ChatTemplate]):
        literals = frozenset(literal for template in templates for literal in template.literals)
        written = [text for text in vocabulary.added if any(text in literal for literal in literals)]
        self.texts = frozenset(vocabulary.special) | frozenset(written)
        longest_first = sorted(self.texts, key=len, reverse=True)
        self._longest = len(longest_first[0]) if longest_first else 0
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        ends = {end for text in self.texts for end in (text[0], text[-1])}
        self._needed = re.compile("[" + "".join(map(re.escape, sorted(ends))) + r"]|\\u" if ends else r"\\u")
        self._always = self._completed_by(literals)

    def _completed_by(self, literals: frozenset[str]) -> bool:
        """Whether a template's own texts could be both ends of a control token with a request's text between them, as
        "<|" and "|>" around a role.
        """
        longest = max(map(len, self.texts), default=0)
        heads = {literal[:n] for literal in literals for n in range(1, longest)}
        tails = {literal[-n:] for literal in literals for n in range(1, longest)}
        return any(
            any(text[:n] in tails for n in range(1, len(text))) and any(text[n:] in heads for n in range(1, len(text)))
            for text in self.texts
        )

    def may_forge(self, values: Iterable[Any]) -> bool:
        """False only if no control token in the rendering of these JSON values can hold a character of theirs.

        For that, its first or last character must come from the request, or the template must write both ends around a
        text of the request. Escapes in JSON text count, since a template may parse JSON.
        """
        return self._always or any(_found_in(value, self._needed, 2) for value in values)

    def occur_in(self, values: Iterable[Any]) -> bool:
        """Whether a whole control token's text stands in one of these JSON values."""
        return any(_found_in(value, self._pattern, self._longest) for value in values)

    def find(self, text: str) -> list[tuple[int, int]]:
        """Every text of a control token, start and end, as the tokenizer finds them."""
        return list(self._matches(text, 0, len(text)))

    def find_written(self, text: str) -> list[tuple[int, int]]:
        """The control tokens of a traced rendering that the template wrote, all of their characters.

        The names of roles, which were checked before, count as the template's: some write "<|" + role + "|>".
        """
        found: list[tuple[int, int]] = []
        for start, end in _trusted(runs_of(text)):
            found += self._matches(text, start, end)
        return found

    def _matches(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What the pattern finds, in stretches: each search holds the interpreter's lock."""
        at = start
        while at < end:
            border = at + _STRETCH
            match = self._pattern.search(text, at, min(end, border + self._longest))
            if match is None or match.start() >= border:
                at = border
            else:
                yield match.span()
                at = match.end()


def _found_in(value: Any, pattern: re.Pattern[str], longest: int) -> bool:
    """Whether the pattern, of so many characters at most, is found in any text of a JSON value, names of members
    included.
    """
    if isinstance(value, str):
        starts = range(0, len(value), _STRETCH)
        return any(pattern.search(value, start, start + _STRETCH + longest) is not None for start in starts)
    if isinstance(value, Mapping):
        return any(_found_in(key, pattern, longest) or _found_in(item, pattern, longest) for key, item in value.items())
    return isinstance(value, list | tuple) and any(_found_in(item, pattern, longest) for item in value)


def _trusted(runs: Runs) -> Iterator[tuple[int, int]]:
    """The longest stretches in which every character is the template's own."""
    start = at = 0
    for run in runs:
        source = run.source
        by_role = source.pointer is not None and _ROLE.fullmatch(source.pointer) and not source.key
        if source.origin is not Origin.TEMPLATE and not by_role:
            if start < at:
                yield start, at
            start = at + run.length
        at += run.length
    if start < at:
        yield start, at
