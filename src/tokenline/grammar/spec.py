"""Descriptions of what an answer may be. Plain data: it is pickled on its way to the engine's side and compiled there.

Values are JSON as the client sent it; `compiler` says what of it can be enforced.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value of this schema."""

    schema: Any  # an object, true or false
    lenient: bool = False  # keywords that cannot be enforced are left to the model; else they are an error


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole answer matches the expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """Derived from the start rule of a grammar in GBNF or Lark notation."""

    source: str


@dataclass(frozen=True, slots=True)
class Function:
    """A tool as a grammar sees it."""

    name: str
    parameters: Any = None  # a JSON schema; None: takes no parameters
    # Strict: calls hold to the schema also where they are free, and a schema that cannot be enforced is an error.
    # Others hold to it where a call is forced, as far as it can be enforced.
    strict: bool = False


@dataclass(frozen=True, slots=True)
class NamedCall:
    """The arguments of this function, as JSON without anything around them (see `parse.tools.forced`)."""

    function: Function
    index: int = 0  # of the function in the request's tools, for errors


@dataclass(frozen=True, slots=True)
class RequiredCalls:
    """A JSON list of calls, at least one: [{"name": ..., "parameters": {...}}] (see `parse.tools.forced`)."""

    functions: tuple[Function, ...]
    parallel: bool = True  # False: exactly one


@dataclass(frozen=True, slots=True)
class StrictTools:
    """Free text in which each call, in this tool parser's format, holds to its function's schema if that is strict."""

    functions: tuple[Function, ...]
    tool_parser: str


@dataclass(frozen=True, slots=True)
class CallsOrAnswer:
    """Calls of these functions in a tool parser's format, or an answer that holds to its own description."""

    functions: tuple[Function, ...]
    tool_parser: str
    answer: JsonSchema | Regex | Choice | Grammar
    # The parser's markers. Where its format is not known here, the first one begins a text that is free.
    markers: tuple[str, ...] = ()
    parallel: bool = True  # False: at most one call


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that may stand in front of an answer, from one of these markers to the first of those."""

    begin: tuple[str, ...]
    end: tuple[str, ...]
    opened: bool = False  # the prompt ends with the beginning: the answer starts inside


@dataclass(frozen=True, slots=True)
class Channels:
    """An answer of gpt-oss: a chain of messages. Those to nobody and not in the channel `final` are free."""

    in_message: bool = False  # the prompt ends within such a message, else at its header


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """What an answer may be, and what may stand in front of it."""

    form: JsonSchema | Regex | Choice | Grammar | NamedCall | RequiredCalls | StrictTools | CallsOrAnswer
    before: Reasoning | Channels | None = None  # None: the answer begins at once
