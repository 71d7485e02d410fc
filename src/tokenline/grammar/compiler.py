"""Descriptions of answers (`spec`) to what the engine asks before each id: which ids may come next.

Compiling takes a millisecond, so it is done where requests wait, on any number of threads; what was compiled is kept.
What cannot be enforced, or is too large, is a ConstraintError before anything is generated.
"""

import itertools
import time
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tokenline.fields import Path
from tokenline.grammar import notation, spec, tools
from tokenline.grammar.calls import Calls, Lead, unknown_calls
from tokenline.grammar.errors import ConstraintError, impossible, unsupported
from tokenline.grammar.frame import Content, framed
from tokenline.grammar.kept import Kept
from tokenline.grammar.lenient import Lenience
from tokenline.grammar.library import Library, LibraryError, Matcher, Tokens
from tokenline.grammar.limits import MAX_CHOICES_LENGTH, MAX_KEPT, MAX_KEPT_LENGTH
from tokenline.grammar.matching import GrammarState
from tokenline.grammar.notation import quoted, slashed
from tokenline.grammar.patterns import PatternError, whole_patterns
from tokenline.grammar.rules import Rules
from tokenline.grammar.schema import Schemas
from tokenline.grammar.schema_source import blame, in_words, json_rule
from tokenline.grammar.tool_formats import FORMATS, ChannelCalls

Blame = Callable[[str], ConstraintError]

MAX_TRIES = 30  # of leaving something out of lenient schemas that only the library has refused
MAX_TRIES_S = 3.0
_CALLS = (spec.NamedCall, spec.RequiredCalls, spec.StrictTools, spec.CallsOrAnswer)


@dataclass(frozen=True, slots=True)
class MakeGrammar:
    """Makes a `GrammarState` for each choice, which is cheap."""

    _matcher: Matcher
    left_out: tuple[Path, ...] = ()  # the places of what could not be enforced, and is left to the model

    def __call__(self) -> GrammarState:
        return GrammarState(self._matcher)


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
        self._library = Library(tokens, tokenizer_size, vocab_size, end_ids, encode)
        self._close_objects = close_objects
        self._kept: Kept[Matcher] = Kept(MAX_KEPT, MAX_KEPT_LENGTH)

    def prepare(self) -> None:
        """Read the vocabulary, which takes a tenth of a second or more and holds the interpreter's lock meanwhile."""
        self._library.compile('start: "x"')

    def compile(self, constraint: spec.ConstraintSpec, namespace: Hashable = None) -> MakeGrammar:
        """Raises ConstraintError. What was compiled is kept for the namespace."""
        lenience = Lenience()
        until = time.monotonic() + MAX_TRIES_S
        for number in itertools.count():
            schemas = self._schemas(lenience)
            try:
                matcher = self._compiled(constraint, schemas, namespace)
            except ConstraintError as error:
                last = number >= MAX_TRIES or time.monotonic() > until
                left = not last and lenience.leave(error, schemas.seen)
                if not left and not lenience.open_all(error):
                    raise
            else:
                return MakeGrammar(matcher, tuple(lenience.places))
        raise AssertionError

    def _compiled(self, constraint: spec.ConstraintSpec, schemas: Schemas, namespace: Hashable) -> Matcher:
        parts = self._parts(constraint.form, constraint.before, schemas)
        source = framed(parts.content, constraint.before, parts.rules)
        try:
            source.encode()
        except UnicodeEncodeError:
            raise ConstraintError((), "has half of a surrogate pair, which is no character.") from None
        if (kept := self._kept.get(namespace, source)) is not None:
            return kept
        # Of several functions the library would leave out one that cannot be called, and not say so.
        for part in parts.arguments:
            if message := self._library.accepts(f"start: {json_rule(part, schemas)}"):
                raise blame(part, schemas, self._library.accepts, message)
        try:
            matcher = self._library.compile(source)
        except LibraryError as error:
            raise parts.blame(str(error)) from None
        self._kept.put(namespace, source, matcher)
        return matcher

    def _schemas(self, lenience: Lenience | None = None) -> Schemas:
        return Schemas(self._library, close_objects=self._close_objects, lenience=lenience)

    def _parts(self, form: Any, before: spec.Reasoning | spec.Channels | None, schemas: Schemas) -> "_Parts":
        rules = Rules(self._library.special_ids)
        if isinstance(before, spec.Channels) and isinstance(form, _CALLS):
            return self._messages(form, schemas, rules)
        match form:
            case spec.StrictTools(functions, parser):
                if parser not in FORMATS:
                    raise _not_enforced(parser)
                prepared = tools.all_arguments(schemas, functions, strict_only=True)
                schemas.finish()
                return _Parts(Content(None, self._leads(form, prepared, schemas, rules)), rules, prepared)
            case spec.CallsOrAnswer(functions):
                prepared = tools.all_arguments(schemas, functions, strict_only=True)
                answer, blame_it = self._answer(form.answer, schemas)
                schemas.finish()
                leads = self._leads(form, prepared, schemas, rules, parallel=form.parallel)
                return _Parts(Content(answer(), leads, form.parallel), rules, prepared, blame_it)
            case spec.RequiredCalls(functions):
                prepared = tools.all_arguments(schemas, functions, strict_only=False)
                calls = tools.required_calls(functions, prepared, parallel=form.parallel)
                schemas.finish()
                return _Parts(Content(json_rule(calls, schemas)), rules, prepared, self._blame(calls, schemas))
        answer, blame_it = self._answer(form, schemas)
        schemas.finish()
        return _Parts(Content(answer()), rules, blame=blame_it)

    def _answer(self, form: Any, schemas: Schemas) -> tuple[Callable[[], str], Blame]:
        """What makes the rule of an answer once the schemas are finished, and whose fault an error is."""
        match form:
            case spec.JsonSchema(schema, lenient):
                schemas.lenience.add((), lenient=lenient)
                prepared = schemas.add(schema)
            case spec.NamedCall():
                prepared = tools.arguments(schemas, form.function, form.index)
            case spec.Regex(pattern):
                return lambda: _nested(_regex_source(pattern)), _plain_blame
            case spec.Choice(options):
                return lambda: _nested(_choice_source(options)), _plain_blame
            case spec.Grammar(source):
                return lambda: _nested(notation.lark(source, self._schemas)), _plain_blame
            case _:
                raise TypeError(f"no constraint: {form!r}")
        if prepared is False:
            raise impossible("cannot be fulfilled by any value.")
        return lambda: json_rule(prepared, schemas), self._blame(prepared, schemas)

    def _blame(self, prepared: Any, schemas: Schemas) -> Blame:
        return lambda message: blame(prepared, schemas, self._library.accepts, message)

    def _leads(
        self,
        form: spec.StrictTools | spec.CallsOrAnswer,
        prepared: Sequence[Any],
        schemas: Schemas,
        rules: Rules,
        *,
        parallel: bool = True,
    ) -> list[Lead]:
        """Where calls begin in a free text or instead of an answer, and what follows."""
        if form.tool_parser in FORMATS:
            return Calls(FORMATS[form.tool_parser], form.functions, prepared, schemas, rules).leads(parallel=parallel)
        if any(function.strict for function in form.functions):
            raise _not_enforced(form.tool_parser)
        assert isinstance(form, spec.CallsOrAnswer)
        return unknown_calls(form.markers, rules)

    def _messages(self, form: Any, schemas: Schemas, rules: Rules) -> "_Parts":
        """Calls as messages, forced or beside an answer."""
        functions = (form.function,) if isinstance(form, spec.NamedCall) else form.functions
        first = form.index if isinstance(form, spec.NamedCall) else 0
        forced = isinstance(form, spec.NamedCall | spec.RequiredCalls)
        prepared = tools.all_arguments(schemas, functions, strict_only=not forced, first=first)
        answer = self._answer(form.answer, schemas)[0] if isinstance(form, spec.CallsOrAnswer) else None
        schemas.finish()
        calls = Calls(ChannelCalls(), functions, prepared, schemas, rules)
        messages = [(function.name, calls.arguments(index)) for index, function in enumerate(functions)]
        return _Parts(Content(answer() if answer else None, messages=messages, is_forced=forced), rules, prepared)


def _plain_blame(message: str) -> ConstraintError:
    return unsupported(in_words(message))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a grammar is made of."""

    content: Content
    rules: Rules
    arguments: Sequence[Any] = ()  # of functions, each a schema
    blame: Blame = _plain_blame  # whose fault an error of the library is


def _not_enforced(parser: str) -> ConstraintError:
    return unsupported(
        "has functions with 'strict': true, which cannot be enforced for this model: the format of its tool-call "
        f"parser, {parser}, is not known to the grammar. Leave 'strict' out, or set 'tool_choice' to \"required\".",
        "tools",
    )


def _nested(source: str) -> str:
    """A grammar with a start rule of its own, inside another."""
    return f"%lark {{\n{source}\n}}"


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
    # As one terminal, which is matched like an expression: as so many rules it would be slow, and too much for more
    # than some 9,000.
    return "start: TEXT\nTEXT: " + " | ".join(map(quoted, options))
