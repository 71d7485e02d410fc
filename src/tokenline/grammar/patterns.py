"""Regular expressions of clients (Python's for answers, ECMA-262's in JSON schemas) in the grammar library's words.

The library matches by derivatives: it knows classes, groups, alternatives and repetitions, and neither anchors inside
an expression, nor lookaround, nor word boundaries, nor what was matched before. Here an expression is parsed and
written anew as one that matches whole texts, so that nothing is overlooked: anchors are resolved, lazy repetitions
(which match the same texts) become plain ones, lookahead at the start becomes a second expression that must match, too,
and what is left is refused by name. Sizes are bounded, since `(a{1000}){1000}` is small only on paper.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tokenline.grammar.limits import MAX_ATOMS, MAX_GROUPS, MAX_PATTERN_LENGTH

_REST = "(?s:.*)"
_ALL = "(?s:.)"
_DOT = r"[^\n]"
_ECMA_DOT = r"[^\n\r\x{2028}\x{2029}]"
_ECMA_SPACE = r"\x{9}-\x{d}\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_ECMA_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _ECMA_SPACE}
# Python's classes. Digits are ASCII's where they are asked for, and all there are where they are excluded.
_PYTHON_CLASSES = {"d": "0-9", "w": r"\p{L}\p{N}_", "s": r"\s\x{1c}-\x{1f}"}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_FLAGS = re.compile(r"\(\?([a-zA-Z]+)(:|\))")
_MAX_WORDS = 500  # characters of words that a text must not begin with
_NAME = re.compile(r"\(\?P?<([A-Za-z_]\w*)>")


class PatternError(Exception):
    """What of an expression is wrong or cannot be enforced, as a sentence's end: "has ..."."""


@dataclass(slots=True)
class _Item:
    """A part of a branch, not yet repeated, with what it costs."""

    kind: str  # "text", "^", "$", "group", "ahead" or "not ahead"
    text: str = ""
    size: int = 1
    branches: "list[list[_Item]]" = field(default_factory=list)
    flags: str = ""  # of a group
    repeat: str = ""
    inside: str | None = None  # of a class or character: what stands between its brackets, without the ^
    negated: bool = False
    character: str | None = None  # where it is one, unescaped

    @property
    def anchored(self) -> bool:
        return any(item.kind != "text" and (item.kind != "group" or item.anchored) for b in self.branches for item in b)


def whole_patterns(pattern: str, *, search: bool) -> list[str]:
    """Expressions without anchors that, each for the whole text, match exactly where the pattern does.

    search: the pattern is ECMA-262's and matches anywhere in the text (JSON schemas); else it is Python's and matches
    the whole text. Raises PatternError.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise PatternError(f"is longer than {MAX_PATTERN_LENGTH:,} characters")
    parser = _Parser(pattern, ecma=search)
    branches = parser.parse()
    if sum(_size(branch) for branch in branches) > MAX_ATOMS:
        raise PatternError(f"repeats its parts more than {MAX_ATOMS:,} times")
    found = []
    if len(branches) == 1:
        branches, found = _without_lookahead(branches[0], search)
    variants = [variant for branch in branches for variant in _resolved(branch)]
    found.insert(0, parser.flagged(_joined(variants, search)))
    if sum(map(len, found)) > 8 * MAX_PATTERN_LENGTH:
        raise PatternError("has too many anchors within groups")
    return found


def _joined(variants: Sequence[tuple[bool, bool, str]], search: bool) -> str:
    """One expression of the texts that begin, or end, as they say."""
    texts = []
    for begins, ends, text in variants:
        before = "" if begins or not search else _REST
        after = "" if ends or not search else _REST
        texts.append(before + text + after)
    return _either(texts)


def _either(texts: Sequence[str]) -> str:
    return f"(?:{'|'.join(dict.fromkeys(texts))})"


def _size(branch: Sequence[_Item]) -> int:
    return sum(item.size for item in branch)


def _resolved(branch: Sequence[_Item]) -> list[tuple[bool, bool, str]]:
    """What a branch matches without its anchors, and whether it must begin, and end, with the text."""
    items = list(branch)
    begins = ends = False
    while items and items[0].kind == "^":
        items.pop(0)
        begins = True
    while items and items[-1].kind == "$":
        items.pop()
        ends = True
    variants = [(begins, ends, "")]
    for index, item in enumerate(items):
        if item.kind == "group" and item.anchored:
            if item.repeat:
                raise PatternError("repeats a group that has an anchor or lookahead in it, which cannot be enforced")
            inner = [variant for inside in item.branches for variant in _resolved(inside)]
            if (index and any(begins for begins, _, _ in inner)) or (
                index < len(items) - 1 and any(ends for _, ends, _ in inner)
            ):
                _misplaced()
            kinds = dict.fromkeys((begins, ends) for begins, ends, _ in inner)
            by_kind = [
                (kind, _flagged(item.flags, _either([text for *its, text in inner if tuple(its) == kind])))
                for kind in kinds
            ]
            variants = [
                (begins or kind[0], ends or kind[1], before + text)
                for begins, ends, before in variants
                for kind, text in by_kind
            ]
        elif item.kind in ("text", "group"):
            text = _text(item)
            variants = [(begins, ends, before + text) for begins, ends, before in variants]
        elif item.kind in "^$":
            _misplaced()
        else:
            raise PatternError("has lookahead elsewhere than at its start, which cannot be enforced")
    return variants


def _misplaced() -> NoReturn:
    raise PatternError("has '^' or '$' elsewhere than at its start and its end, which cannot be enforced")


def _text(item: _Item) -> str:
    if item.kind == "text":
        return item.text + item.repeat
    inside = ["".join(map(_text, branch)) for branch in item.branches]
    return _flagged(item.flags, f"(?:{'|'.join(inside)})") + item.repeat


def _flagged(flags: str, text: str) -> str:
    return f"(?{flags}:{text})" if flags else text


def _without_lookahead(branch: list[_Item], search: bool) -> tuple[list[list[_Item]], list[str]]:
    """The branch without the lookahead at its start, and what that demands of the whole text."""
    start = next((index for index, item in enumerate(branch) if item.kind != "^"), len(branch))
    if search and not start:
        return [branch], []
    demands = []
    rest = branch[start:]
    while rest and rest[0].kind in ("ahead", "not ahead"):
        item = rest.pop(0)
        if item.kind == "ahead":
            inner = [variant for inside in item.branches for variant in _resolved(inside)]
            demands.append(_either([text + ("" if ends else _REST) for _, ends, text in inner]))
        else:
            demands.append(_without(item.branches))
    return [[*branch[:start], *rest]], demands


def _without(branches: list[list[_Item]]) -> str:
    """What does not begin with this: for words, one class, and one or two equal ones behind `.*`."""
    if (words := _words(branches)) is not None:
        return _begins_otherwise(words)
    if len(branches) == 1:
        items = branches[0]
        anywhere = len(items) > 1 and items[0].kind == "text" and (items[0].text, items[0].repeat) in _ANY_TEXT
        classes = items[1:] if anywhere else items
        first = classes[0] if classes else None
        plain = first is not None and all(
            item.inside is not None and not item.repeat and (item.inside, item.negated) == (first.inside, first.negated)
            for item in classes
        )
        if first is not None and plain and len(classes) <= 1 + anywhere:
            its, others = f"[{'^' * first.negated}{first.inside}]", f"[{'^' * (not first.negated)}{first.inside}]"
            if not anywhere:
                return f"(?:{others}{_REST})?"
            return f"{others}*" if len(classes) == 1 else f"(?:{others}|{its}{others})*{its}?"
    raise PatternError(
        "has negative lookahead, which can be enforced only for words at the start, or one character anywhere"
    )


def _words(branches: list[list[_Item]]) -> list[tuple[str, bool]] | None:
    """The words that these are, each with whether the text ends behind it; None if they are something else."""
    all_whole = False
    while len(branches) == 1 and branches[0] and (first := branches[0][0]).kind == "group":
        rest = [item.kind for item in branches[0][1:]]
        if first.repeat or first.flags or rest not in ([], ["$"]):
            return None
        all_whole = all_whole or bool(rest)
        branches = first.branches
    words = []
    for items in branches:
        whole = bool(items) and items[-1].kind == "$"
        characters = items[:-1] if whole else items
        if any(item.character is None or item.repeat for item in characters):
            return None
        words.append(("".join(item.character or "" for item in characters), whole or all_whole))
    return words if sum(len(word) for word, _ in words) <= _MAX_WORDS else None


def _begins_otherwise(words: Sequence[tuple[str, bool]]) -> str:
    """An expression of what begins with none of these words, nor is one of those that are whole texts."""
    if any(not word and not whole for word, whole in words):
        return r"[^\s\S]"
    following: dict[str, list[tuple[str, bool]]] = {}
    for word, whole in words:
        if word:
            following.setdefault(word[0], []).append((word[1:], whole))
    firsts = "".join(map(_escaped, following))
    ways = [f"[^{firsts}]{_REST}" if firsts else f"{_ALL}{_REST}"]
    for first, rest in following.items():
        if all(word or whole for word, whole in rest):
            ways.append(_escaped(first) + _begins_otherwise(rest))
    return f"(?:{'|'.join(ways)})" + ("" if ("", True) in words else "?")


_ANY_TEXT = {(_ECMA_DOT, "*"), (_DOT, "*"), (_ALL, "*")}


class _Parser:
    """Reads an expression once, from left to right."""

    def __init__(self, pattern: str, *, ecma: bool) -> None:
        self._pattern = pattern
        self._at = 0
        self._ecma = ecma
        self._depth = 0
        self._flags = ""  # for the whole expression
        self._dot_is_all = False

    def parse(self) -> list[list[_Item]]:
        while (found := _FLAGS.match(self._pattern, self._at)) and found[2] == ")":
            self._flags += self._known_flags(found[1])
            self._at = found.end()
        branches = self._branches()
        if self._at < len(self._pattern):
            raise PatternError(f"has a ')' too many at position {self._at}")
        return branches

    def flagged(self, text: str) -> str:
        return _flagged(self._flags, text)

    def _known_flags(self, flags: str) -> str:
        for flag in flags:
            if flag not in "isuL":
                raise PatternError(f"has the flag {flag!r}, which cannot be enforced")
        if "s" in flags:
            self._dot_is_all = True
        return "i" if "i" in flags else ""

    @property
    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _branches(self) -> list[list[_Item]]:
        branches: list[list[_Item]] = [[]]
        while self._next and self._next != ")":
            if self._take("|"):
                branches.append([])
            elif (item := self._item()) is not None:
                branches[-1].append(self._repeated(item))
        return branches

    def _item(self) -> _Item | None:
        character = self._next
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        self._at += 1
        if character in "^$":
            return _Item(character, size=0)
        if character == ".":
            return _Item("text", _ALL if self._dot_is_all else _ECMA_DOT if self._ecma else _DOT)
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise PatternError(f"has nothing to repeat at position {self._at - 1}")
        return _literal(character)

    def _repeated(self, item: _Item) -> _Item:
        start = self._at
        if self._next and self._next in "*+?":
            item.repeat = self._next
            self._at += 1
        elif found := _COUNT.match(self._pattern, self._at):
            least, comma, most = found.groups()
            if not (least or (comma and most and not self._ecma)):
                return item  # a bracket like any other
            self._at = found.end()
            if len(least) > 6 or len(most) > 6 or (most and int(most) < int(least or 0)):
                raise PatternError(f"has the repetition {found[0]}, which is out of range")
            item.repeat = f"{{{least or 0}{comma}{most}}}"
            item.size *= max(1, int(most or least))
        else:
            return item
        if item.kind not in ("text", "group"):
            raise PatternError(f"repeats an anchor or lookahead at position {start}")
        if self._take("+"):
            raise PatternError("has possessive repetition, which cannot be enforced")
        self._take("?")  # lazy: the same texts
        if (self._next and self._next in "*+?") or (
            (more := _COUNT.match(self._pattern, self._at)) and (more[1] or more[3])
        ):
            raise PatternError(f"repeats a repetition at position {self._at}")
        return item

    def _group(self) -> _Item | None:
        start = self._at
        kind, flags, dot = "group", "", self._dot_is_all
        if self._take("(?#"):
            while self._next and not self._take(")"):
                self._at += 1
            return None
        if self._take("(?="):
            kind = "ahead"
        elif self._take("(?!"):
            kind = "not ahead"
        elif self._take("(?<=") or self._take("(?<!"):
            raise PatternError("has lookbehind, which cannot be enforced")
        elif found := _NAME.match(self._pattern, self._at):
            self._at = found.end()
        elif self._take("(?P="):
            raise PatternError("refers to what a group has matched, which cannot be enforced")
        elif found := _FLAGS.match(self._pattern, self._at):
            if found[2] == ")":
                raise PatternError("sets flags elsewhere than at its start")
            flags = self._known_flags(found[1])
            self._at = found.end()
        elif not self._take("(?:"):
            self._at += 1
            if self._next == "?":
                raise PatternError(f"has an unknown kind of group at position {start}")
        self._depth += 1
        if self._depth > MAX_GROUPS:
            raise PatternError(f"has more than {MAX_GROUPS} groups in groups")
        branches = self._branches()
        self._depth -= 1
        self._dot_is_all = dot
        if not self._take(")"):
            raise PatternError(f"has a group that is not closed, at position {start}")
        return _Item(kind, branches=branches, flags=flags, size=sum(map(_size, branches)))

    def _class(self) -> _Item:
        start = self._at
        self._at += 1
        negated = self._take("^")
        parts: list[str] = []
        first = True
        while not (self._next == "]" and not (first and not self._ecma)):
            if not self._next:
                raise PatternError(f"has a '[' that is not closed, at position {start}")
            first = False
            low = self._member(negated)
            high = None
            if self._next == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member(negated)
            if high is None:
                parts.append(low if len(low) > 1 else _escaped(low))
            elif len(low) > 1 or len(high) > 1:
                parts += [part if len(part) > 1 else _escaped(part) for part in (low, "-", high)]
            elif ord(high) < ord(low):
                raise PatternError(f"has the range {low}-{high}, which ends before it begins")
            else:
                parts.append(f"{_escaped(low)}-{_escaped(high)}")
        self._at += 1
        inside = "".join(parts)
        if not inside:
            if not negated:
                raise PatternError("has an empty class, which nothing can match")
            return _Item("text", _ALL)
        return _Item("text", f"[{'^' * negated}{inside}]", inside=inside, negated=negated)

    def _member(self, excluded: bool) -> str:
        """One character of a class, or (longer) a class in it."""
        character = self._next
        self._at += 1
        if character != "\\":
            return character
        if self._take("b"):
            return "\b"
        item = self._escape(excluded)
        if item.inside is None:
            raise PatternError("has an anchor in a class")
        return item.character or item.text

    def _escape(self, excluded: bool = False) -> _Item:
        """What stands behind a backslash. `excluded`: in a class of all that does not stand in it."""
        letter = self._next
        self._at += 1
        if not letter:
            raise PatternError("ends with a backslash")
        if letter.lower() in "dws":
            negated = letter.isupper()
            inside = (_ECMA_CLASSES if self._ecma else _PYTHON_CLASSES)[letter.lower()]
            if letter.lower() == "d" and negated != excluded and not self._ecma:
                inside = r"\d"
            return _Item("text", f"[{'^' * negated}{inside}]", inside=inside, negated=negated)
        if letter in "pP" and (found := re.compile(r"\{([\w=:^ -]+)\}").match(self._pattern, self._at)):
            self._at = found.end()
            return _Item("text", f"[\\{letter}{found[0]}]", inside=f"\\{letter}{found[0]}")
        if letter in "AZz" and not self._ecma:
            return _Item("^" if letter == "A" else "$", size=0)
        if letter in "bB":
            raise PatternError("has word boundaries, which cannot be enforced")
        if letter == "k" or letter in "123456789":
            raise PatternError("refers to what a group has matched, which cannot be enforced")
        if letter == "0" and not self._next.isdigit():
            return _literal("\0")
        if letter in _CONTROLS:
            return _literal(_CONTROLS[letter])
        if letter == "c" and self._next.isascii() and self._next.isalpha():
            self._at += 1
            return _literal(chr(ord(self._pattern[self._at - 1]) % 32))
        if letter in "xuU":
            return _literal(self._code_point(letter))
        if letter.isalnum():
            raise PatternError(f"has the unknown escape \\{letter}")
        return _literal(letter)

    def _code_point(self, letter: str) -> str:
        width = {"x": 2, "u": 4, "U": 8}[letter]
        found = re.compile(rf"([0-9a-fA-F]{{{width}}})|\{{([0-9a-fA-F]{{1,6}})\}}").match(self._pattern, self._at)
        if found is None:
            raise PatternError(f"has an incomplete \\{letter}")
        self._at = found.end()
        code = int(found[1] or found[2], 16)
        low = re.compile(r"\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE).match(self._pattern, self._at)
        if 0xD800 <= code < 0xDC00 and low:
            self._at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise PatternError(f"has \\{letter}{found[0]}, which is no character")
        return chr(code)


def _literal(character: str) -> _Item:
    if "\ud800" <= character <= "\udfff":
        raise PatternError("has half of a surrogate pair, which is no character")
    escaped = _escaped(character)
    return _Item("text", escaped, inside=escaped, character=character)


def _escaped(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return character if ord(character) >= 0xA0 and character.isprintable() else f"\\x{{{ord(character):x}}}"
