"""Descriptions of what an answer may be. Plain data: it is pickled on its way to the engine's side and compiled there.

Values are JSON as the client sent it; `compiler` says what of it can be enforced.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value of this schema."""

    schema: Any  # an object, true or false


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
    strict: bool = False  # the call must hold to the schema also where calls are free


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
class ConstraintSpec:
    """What an answer may be, and from where on."""

    form: JsonSchema | Regex | Choice | Grammar | NamedCall | RequiredCalls | StrictTools
    begins_after: str = ""  # text up to which the answer is free (reasoning that the prompt has opened); "": at once
