"""The grammar engine: what it refuses, forbids in error and lets through in error, and how long it takes.

    python -m bench.grammars [--xgrammar]

Each value of the official JSON-Schema-Test-Suite (draft 2020-12) and of schemas as people send them is walked through
its schema's grammar in three layouts, in the tokens of the default model; members in any order. "As served" closes
objects that do not say whether they are; "not strict" leaves out what cannot be enforced besides. Times are of the CPU:
median and largest of compiling, median and 99th percentile of masks. With --xgrammar the same for xgrammar as it comes,
if it is installed.
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.grammar.compare import Case, Comparison, compare, hand_written, official, real
from tests.grammar.drive import lets_through

from tokenline.grammar.compiler import GrammarCompiler
from tokenline.grammar.errors import ConstraintError
from tokenline.grammar.spec import ConstraintSpec, JsonSchema, Regex
from tokenline.models.fetch import fetch_default_model
from tokenline.render.tokenizer import Tokenizer

# With a text that matches as a whole and one that does not.
EXPRESSIONS = [
    (r"\d{3}-\d{4}", "555-1234", "555-123"),
    (r"^[A-Z][a-z]+$", "Oslo", "oslo"),
    (r"(yes|no|maybe)", "maybe", "yess"),
    (r"[\w.+-]+@[\w-]+\.[\w.]+", "a.b@example.com", "a.b"),
    (r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", "2026-11-30", "2026-13-01"),
    (r"([01]\d|2[0-3]):[0-5]\d", "23:59", "24:00"),
    (r"(?:\d{1,3}\.){3}\d{1,3}", "127.0.0.1", "127.0.0"),
    (r"#[0-9a-fA-F]{6}", "#00ffAA", "#00ffA"),
    (r"v?\d+\.\d+\.\d+(-[a-z0-9.]+)?", "v1.2.3-rc.1", "1.2"),
    (r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", "-1.5e10", "01"),
    (r"\+?[1-9]\d{6,14}", "+4712345678", "+047"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    (r"(?i)select .+ from \w+", "SELECT * FROM users", "SELECT *"),
    (r"[\u4e00-\u9fff]{2,4}", "蜘蛛", "spider"),
    (r"\p{Lu}\p{Ll}*", "Ærlig", "ærlig"),
    (r"\w+(, \w+)*", "a, b, 中", "a,"),
    (r"(\(\d+\))+", "(1)(22)", "()"),
    (r"\S+\s\S+", "a b", "ab"),
    (r"[^\n]+\n?", "one line\n", "\n"),
    (r".*", "any text", "two\nlines"),
    (r"(?s).*", "two\nlines", None),
    (r"a{2,3}?b*?", "aab", "ab"),
    (r"\"[^\"\\]*(\\.[^\"\\]*)*\"", '"a\\"b"', '"a'),
    (r"\$\d+(?:,\d{3})*(?:\.\d{2})?", "$1,234.50", "1,234"),
    (r"(?P<year>\d{4})/(?P<month>\d\d)", "2026/11", "2026-11"),
    (r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,}$", "abC1", "abc1"),
    (r"^(?!\.)[a-z.]+$", "a.b", ".a"),
    (r"^(?!.*\.\.)[a-z.]+$", "a.b", "a..b"),
    (r"https?://[^\s/$.?#].[^\s]*", "https://a.b/c", "ftp://a"),
    (r"\A\w+\Z", "word", "two words"),
    (r"^a|b$", "b", "c"),
    (r"(^|x)a($|y)", "xay", "xa y"),
    (r"[+\-*/]", "/", "x"),
    (r"\x41\u0042\t", "AB\t", "AB"),
    (r"\[[^\]]*\]", "[a b]", "[a"),
    (r"(?:ab|cd){1,3}ef", "abcdef", "ef"),
    (r"[^\W\d_]+", "æøå", "a1"),
    (r"\b\w+\b", "word", ""),
    (r"(\w)\1", "aa", "ab"),
    (r"(?<=\$)\d+", None, "5"),
    (r"\d+(?=%)", None, "5"),
    (r"^(?!foo).*$", "bar", "foobar"),
    (r"(?m)^a$", "a", "b"),
    (r"\d++", "12", "x"),
    (r"(?>a|ab)c", "ac", "abc"),
    (r"x(?!y)", "x", "xy"),
    (r"(?(1)a|b)", None, "x"),
]


class XGrammar:
    """xgrammar as it comes, as a compiler for `compare`."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        xgrammar = importlib.import_module("xgrammar")  # no dependency of ours: whoever compares installs it
        vocabulary = [
            tokenizer.token_bytes(i) if not tokenizer.is_special(i) else b"" for i in range(tokenizer.vocab_size)
        ]
        self._library = xgrammar
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[end])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._words = -(-tokenizer.vocab_size // 32)

    def compile(self, constraint: ConstraintSpec) -> Callable[[], Any]:
        import json

        form = constraint.form
        try:
            if isinstance(form, Regex):
                compiled = self._compiler.compile_regex(form.pattern)
            else:
                assert isinstance(form, JsonSchema)
                compiled = self._compiler.compile_json_schema(
                    json.dumps(form.schema), any_whitespace=True, max_whitespace_cnt=8, strict_mode=False
                )
        except (RuntimeError, ValueError) as error:
            raise ConstraintError((), str(error).split("\n")[0]) from None
        return lambda: _XMatcher(self._library.GrammarMatcher(compiled), self._words)


class _XMatcher:
    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher = matcher
        self._mask = np.empty((1, words), np.int32)

    def mask(self) -> np.ndarray:
        if not self._matcher.fill_next_token_bitmask(self._mask):
            self._mask.fill(-1)
        return self._mask[0]

    def accept(self, token_id: int) -> None:
        self._matcher.accept_token(token_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xgrammar", action="store_true", help="compare with xgrammar as it comes")
    parser.add_argument("--changes", type=int, default=40, help="changed values for each schema of people (default 40)")
    chosen = parser.parse_args()
    tokenizer = Tokenizer.from_model(fetch_default_model())
    end = tokenizer.special_tokens["<|im_end|>"]
    size = tokenizer.vocab_size
    engines: dict[str, Any] = {}
    if chosen.xgrammar:
        engines["xgrammar as it comes"] = XGrammar(tokenizer, end)
    start = time.perf_counter()
    engines["tokenline"] = GrammarCompiler(tokenizer, size, size, {end}, encode=tokenizer.encode)
    engines["tokenline"].compile(ConstraintSpec(Regex("a")))
    print(f"first use (library imported, vocabulary of {size:,} read): {1e3 * (time.perf_counter() - start):.0f} ms\n")
    served = GrammarCompiler(tokenizer, size, size, {end}, encode=tokenizer.encode, close_objects=True)
    suites: dict[str, Sequence[Case]] = {
        "official suite": list(official()),
        "real schemas": list(real(chosen.changes)),
        "hand-written kinds": hand_written(),
    }
    columns = "engine, suite, schemas and values, refused, too tight (by format; closing), too loose, compile, mask"
    print(f"| {columns.replace(', ', ' | ')} |")
    print("|---|---|---|---|---|---|---|---|")
    for name, engine in engines.items():
        for suite, cases in suites.items():
            print(_row(name, suite, compare(engine, cases, encode=tokenizer.encode, end=end, most=12)))
    for lenient in (False, True):
        for suite, cases in suites.items():
            found = compare(
                served,
                cases,
                encode=tokenizer.encode,
                end=end,
                most=12,
                lenient=lenient,
                leaving_open=engines["tokenline"],
            )
            print(_row(f"tokenline, {'not strict' if lenient else 'as served'}", suite, found))
    print()
    for name, engine in engines.items():
        print(f"{name}: {_expressions(engine, tokenizer, end)} of {len(EXPRESSIONS)} expressions")


def _row(engine: str, suite: str, found: Comparison) -> str:
    compiled, masks = found.compile_s, np.array(found.mask_s)
    times = f"{1e3 * statistics.median(compiled):.2f}, {1e3 * max(compiled):.1f} ms"
    mask = f"{1e6 * np.median(masks):.0f}, {1e6 * np.percentile(masks, 99):.0f} us"
    tight = f"{len(found.too_tight)} ({found.by_format}; {found.by_closing})"
    counts = f"{len(found.refused)} | {tight} | {len(found.too_loose)}"
    return f"| {engine} | {suite} | {found.schemas}, {found.values} | {counts} | {times} | {mask} |"


def _expressions(engine: Any, tokenizer: Tokenizer, end: int) -> int:
    """How many expressions are enforced as they stand."""
    right = 0
    for pattern, matching, other in EXPRESSIONS:
        try:
            make = engine.compile(ConstraintSpec(Regex(pattern)))
        except ConstraintError:
            continue
        takes = [
            text is not None and lets_through(make, text, encode=tokenizer.encode, end=end)
            for text in (matching, other)
        ]
        right += takes == [matching is not None, False]
    return right


if __name__ == "__main__":
    main()
