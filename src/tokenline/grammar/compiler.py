"""Descriptions of answers (`spec`) to what the engine asks before each id: which ids may come next.

Compiling takes a millisecond, so it is done where requests wait, on any number of threads; what was compiled is kept.
What cannot be enforced, or is too large, is a ConstraintError before anything is generated.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Any

import numpy as np

from tokenline.grammar import notation, spec, tools
from tokenline.grammar.errors import ConstraintError, unsupported
from tokenline.grammar.library import Library, LibraryError, Matcher, Tokens
from tokenline.grammar.limits import MAX_CHOICES_LENGTH, MAX_KEPT, MAX_KEPT_LENGTH
from tokenline.grammar.matching import GrammarState
from tokenline.grammar.notation import quoted, slashed
from tokenline.grammar.patterns import PatternError, whole_patterns
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import blame, in_words, json_rule

MakeGrammar = Callable[[], GrammarState]
Source = tuple[str, Callable[[str], ConstraintError]]


class GrammarCompiler:
    """Compiles constraints for one tokenizer. Built once; may be used by several threads."""

    def __init__(
        self,
        tokens: Tokens,
        tokenizer_size: int,
        vocab_size: int,
        end_ids: Set[int],
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        close_objects: bool = False,
    ) -> None:
        """
        vocab_size: rows of the model's logits; ids from `tokenizer_size` on are never allowed.
        end_ids: allowed where the grammar is complete, and nowhere else.
        encode: the ids of a text in the middle of another; without it nothing is known to be forced.
        close_objects: whether objects whose schema lists properties, and does not say whether there may be others,
            have none. JSON Schema says they may.
        """
        self._tokens = tokens
        self._library = Library(tokens, tokenizer_size, vocab_size, end_ids, encode)
        self._close_objects = close_objects
        self._end_ids = sorted(token_id for token_id in end_ids if token_id < vocab_size)
        self._anything = _bits(range(min(tokenizer_size, vocab_size)), vocab_size)
        self._lock = threading.Lock()  # held for look-ups only
        self._kept: OrderedDict[str, Matcher] = OrderedDict()
        self._kept_length = 0

    def compile(self, constraint: spec.ConstraintSpec) -> MakeGrammar:
        """What makes a `GrammarState` for each choice, which is cheap. Raises ConstraintError."""
        source, blame = self._source(constraint.form)
        matcher = self._matcher(source, blame)
        free = self._anything
        may_end = isinstance(constraint.form, spec.StrictTools)  # before it has begun, in the reasoning
        if not may_end:
            free = free.copy()
            for token_id in self._end_ids:
                free.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return partial(GrammarState, matcher, free, constraint.begins_after.encode(), self._tokens)

    def _matcher(self, source: str, blame: Callable[[str], ConstraintError]) -> Matcher:
        try:
            source.encode()
        except UnicodeEncodeError:
            raise ConstraintError((), "has half of a surrogate pair, which is no character.") from None
        with self._lock:
            if source in self._kept:
                self._kept.move_to_end(source)
                return self._kept[source]
        try:
            matcher = self._library.compile(source)
        except LibraryError as error:
            raise blame(str(error)) from None
        with self._lock:
            if source not in self._kept:
                self._kept[source] = matcher
                self._kept_length += len(source)
            while len(self._kept) > MAX_KEPT or (self._kept_length > MAX_KEPT_LENGTH and len(self._kept) > 1):
                self._kept_length -= len(self._kept.popitem(last=False)[0])
        return matcher

    def _source(self, form: Any) -> Source:
        """The grammar in the library's notation, and what says whose fault an error of the library is."""
        match form:
            case spec.JsonSchema() | spec.NamedCall() | spec.RequiredCalls():
                return self._schema_source(form)
            case spec.Regex(pattern):
                return _regex_source(pattern), _plain_blame
            case spec.Choice(options):
                return _choice_source(options), _plain_blame
            case spec.Grammar(source):
                return notation.lark(source, self._schemas), _plain_blame
            case spec.StrictTools():
                return self._strict_source(form)
        raise TypeError(f"no constraint: {form!r}")

    def _schemas(self) -> Schemas:
        return Schemas(self._library, close_objects=self._close_objects)

    def _schema_source(self, form: spec.JsonSchema | spec.NamedCall | spec.RequiredCalls) -> Source:
        schemas = self._schemas()
        if isinstance(form, spec.JsonSchema):
            prepared = schemas.add(form.schema)
            schemas.finish()
        elif isinstance(form, spec.NamedCall):
            prepared = tools.arguments(schemas, form.function, form.index)
            schemas.finish()
        else:
            each = tools.all_arguments(schemas, form.functions, strict_only=False)
            schemas.finish()
            self._check_each(each, schemas)
            prepared = tools.required_calls(form.functions, each, parallel=form.parallel)
        if prepared is False:
            raise unsupported("cannot be fulfilled by any value.")
        source = f"start: {json_rule(prepared, schemas)}"
        return source, lambda message: blame(prepared, schemas, self._library.accepts, message)

    def _strict_source(self, form: spec.StrictTools) -> Source:
        schemas = self._schemas()
        strict = tools.StrictCalls(form.functions, form.tool_parser, schemas, self._library.special_id)
        schemas.finish()
        self._check_each(strict.prepared, schemas)
        return strict.source(), _plain_blame

    def _check_each(self, prepared: Sequence[Any], schemas: Schemas) -> None:
        """Of several functions the library would leave out one that cannot be called, and not say so."""
        for part in prepared:
            if message := self._library.accepts(f"start: {json_rule(part, schemas)}"):
                raise blame(part, schemas, self._library.accepts, message)


def _regex_source(pattern: str) -> str:
    try:
        patterns = whole_patterns(pattern, search=False)
    except PatternError as error:
        raise unsupported(f"{error}.") from None
    return "start: TEXT\nTEXT: " + " & ".join(map(slashed, patterns))


def _choice_source(options: Sequence[str]) -> str:
    if not options:
        raise ConstraintError((), "must have at least one choice.")
    if sum(map(len, options)) > MAX_CHOICES_LENGTH:
        raise unsupported(f"has choices of more than {MAX_CHOICES_LENGTH:,} characters.")
    return "start: " + " | ".join(map(quoted, options))


def _plain_blame(message: str) -> ConstraintError:
    return unsupported(in_words(message))


def _bits(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """A mask of these ids, int32 [words]."""
    bits = np.zeros(-(-vocab_size // 32) * 32, bool)
    bits[list(ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
