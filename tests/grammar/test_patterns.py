"""Expressions against Python's own: what is let through matches, and what matches is let through."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grammar.drive import byte_compiler
from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.library import Library
from tokenline.grammar.patterns import PatternError, whole_patterns


@pytest.fixture(scope="module")
def library() -> Library:
    compiler: GrammarCompiler = byte_compiler()
    return compiler._library


PATTERNS = [
    *("^a$", "a", "^a", "a$", "^a|b$", "(^a|b)c", "x(y|z$)", "^(a|b)$", "^(?:)$", "", "^$|^a+$", "a|", "(|a)b"),
    *(r"^\d{3}-\w+$", "a.c", "a{2,3}?b", "(a|b)*?c$", "a{2}", "a{0,2}b", "(?:ab)+", "(?P<n>a)b", "a{1}{"),
    *(r"[^\d\s]+", r"^[\w.-]+@x$", r"[\S\s]", r"^[a\-z]+$", "^[-a]$", r"[\]a]", "[^a]", "[a-cx-z]", r"[\[\]]"),
    *("[&&~|]", "[.]", r"\D", r"[^\D]", "{", "a{b}", "(?#note)a", r"\.", r"\/", r"a\nb", r"\t?"),
    *(r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{2,5}$", r"^(?!\.)(?!.*\.\.)([A-Za-z.]*)$", "^(?!a)", r"^(?!.*\d)[a-z1-9]*$"),
    *("^(?!ab).*$", "^(?!ab|b1)[a-z0-9]*$", "^(?!(?:ab|a)$)[ab]*$", "^(?!a$|ab)", "^(?!-)(?!a-)[a-b-]+$"),
    *("^(?=a)", r"\u4e2d", "中+", "(?i)abc", "(?i:a)b", r"\x41", r"^[\u4e00-\u9fff]+$"),
]
ALPHABET = "abc.dA1-]x yz中\n@Z{}/[&~|\t"
TEXTS = st.text(ALPHABET, max_size=6).filter(lambda text: not text.endswith("\n"))  # Python's $ matches before it


@pytest.mark.parametrize("search", [True, False], ids=["anywhere", "whole"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_as_python(library: Library, pattern: str, search: bool):
    expressions = whole_patterns(pattern, search=search)

    @settings(max_examples=30)
    @given(text=TEXTS)
    def check(text: str) -> None:
        expected = re.search(pattern, text, re.ASCII) if search else re.fullmatch(pattern, text, re.ASCII)
        assert all(library.matches(one, text) for one in expressions) == (expected is not None), (expressions, text)

    check()


def test_ecma_differs(library: Library):
    """Classes are those of ECMA-262 in schemas, and Python's for whole answers."""

    def matches(pattern: str, text: str, search: bool) -> bool:
        return all(library.matches(one, text) for one in whole_patterns(pattern, search=search))

    assert not matches(r"^\d$", "٣", True)
    assert matches(r"\w", "中", False)
    assert not matches(r"\w", "中", True)
    assert not matches(r"\D", "٣", False)
    assert matches(r"\D", "٣", True)
    assert matches(r"^\s$", "\ufeff", True)
    assert not matches("^.$", "\r", True)
    assert matches(".", "\r", False)
    assert matches("^[^]$", "]", True)
    assert matches("[]]", "]", False)
    assert matches("a$", "xa", True)
    assert not matches("a", "xa", False)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("x(^a)", "elsewhere"),
        ("(a$)b", "elsewhere"),
        ("a^b", "elsewhere"),
        ("a$b", "elsewhere"),
        ("(^a)*", "repeats a group"),
        ("^*", "repeats an anchor"),
        ("a(?=b)", "lookahead elsewhere"),
        ("(?=a)|b", "lookahead elsewhere"),
        ("^(?!a.b)c", "negative lookahead"),
        ("(?<=a)b", "lookbehind"),
        ("(?<!a)b", "lookbehind"),
        (r"(a)\1", "what a group has matched"),
        (r"(?P<n>a)(?P=n)", "what a group has matched"),
        (r"\bword\b", "word boundaries"),
        ("a++", "possessive"),
        ("a**", "repeats a repetition"),
        ("+a", "nothing to repeat"),
        ("(a", "not closed"),
        ("[a", "not closed"),
        ("a)", "too many"),
        ("a\\", "backslash"),
        (r"\q", "unknown escape"),
        (r"\x4", "incomplete"),
        (r"\ud800", "no character"),
        ("[b-a]", "ends before it begins"),
        ("a{3,2}", "out of range"),
        ("a{9999999}", "out of range"),
        ("(?m)a", "flag 'm'"),
        ("a(?i)b", "flags"),
        ("(?>a)", "unknown kind"),
        ("(a{1000}){1000}", "repeats its parts"),
        ("(" * 60 + ")" * 60, "groups in groups"),
        ("a" * 30_000, "longer"),
    ],
)
def test_refused(pattern: str, reason: str):
    for search in (True, False):
        with pytest.raises(PatternError, match=reason):
            whole_patterns(pattern, search=search)


@given(pattern=st.text("ab^$|()[]?*+{}.\\d,1-:=!<P", max_size=10))
def test_whatever_comes_is_read_or_refused(library: Library, pattern: str):
    """What is read is what Python reads, too, and the library takes it."""
    try:
        expressions = whole_patterns(pattern, search=False)
    except PatternError:
        return
    try:
        python = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError):
        return  # Python is stricter in a few places
    for text in ("", "a", "ab", "1", "aab", "b1a", "-", "d"):
        if all(library.matches(one, text) for one in expressions):
            assert python.fullmatch(text), (expressions, text)
