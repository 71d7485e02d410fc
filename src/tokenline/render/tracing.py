"""A chat template rendered with provenance: the same source, the same sandbox, but texts that know their origin.

What differs from `sandbox.TemplateEnvironment`: constants and text of the template become `Traced`, pieces of output
are joined by `provenance.concat`, and the few filters that Jinja implements with `str.join` are replaced. What has no
traced form gives its plain text, whose origin is unknown.
"""

import string
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.filters
import jinja2.nodes
from jinja2.sandbox import SandboxedFormatter
from markupsafe import Markup, escape

from tokenline.render.budget import after, look_at
from tokenline.render.jinja_compiler import TracedCodeGenerator
from tokenline.render.provenance import Runs, Traced, concat, literal, runs_of, standing_for, trace
from tokenline.render.sandbox import Clock, TemplateEnvironment
from tokenline.render.traced_json import TracedBool, TracedNone, computed, dump, parse


class _TracedMarkup(Markup):
    """The result of the filter `safe`, which escapes what is added to it; other operations' results are unknown."""

    _runs: Runs | None = None

    def __str__(self) -> str:
        text = str.__str__(self)
        return text if self._runs is None else trace(text, self._runs)

    def __add__(self, other: Any, /) -> Markup:  # type: ignore[override]
        return _mark(super().__add__(other), concat([self, _escaped(other)]))

    def __radd__(self, other: Any, /) -> Markup:  # type: ignore[override]
        return _mark(super().__radd__(other), concat([_escaped(other), self]))


def _mark(plain: Markup, traced: str) -> Markup:
    marked = _TracedMarkup(plain)
    if isinstance(traced, Traced) and traced == plain:
        marked._runs = traced._runs
    return marked


def _escaped(text: Any) -> str:
    """Text as Markup escapes it."""
    if isinstance(text, Markup):
        return str(text)
    pieces = [
        piece
        if piece not in "&<>\"'"
        else trace(str(escape(str.__str__(piece))), standing_for(piece, len(escape(piece))))
        for piece in _as_traced(text)
    ]
    return concat(pieces)


class TracedEnvironment(TemplateEnvironment):
    """The sandbox in which provenance survives."""

    code_generator_class = TracedCodeGenerator
    literal = staticmethod(literal)

    @staticmethod
    def concat(pieces: Iterable[Any]) -> str:  # type: ignore[override]
        return concat(map(_shown, pieces))

    @staticmethod
    def joined(values: tuple[Any, ...]) -> str:
        look_at(*values)
        return after(concat(map(_shown, values)))

    @staticmethod
    def shown(value: Any) -> str:
        """What `{{ value }}` writes."""
        look_at(value)
        return _shown(value)

    def call(self, context: Any, callee: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return computed(super().call(context, callee, *args, **kwargs))  # "text".find("x") counts in a request's text

    def __init__(self, clock: Clock = datetime.now):
        super().__init__(clock)
        self.finalize = None  # `shown` does that
        self.filters |= {
            "tojson": dump,
            "from_json": parse,
            "join": _join,
            "indent": _indent,
            "safe": _safe,
            "title": _title,
            "string": lambda value: value if isinstance(value, str) else _shown(value),
        }
        for name in ("length", "count", "wordcount", "int"):
            self.filters[name] = _computing(self.filters[name])
        self.guard_filters()
        self.tests |= {
            "none": lambda value: value is None or isinstance(value, TracedNone),
            "boolean": lambda value: isinstance(value, bool | TracedBool),
            "true": lambda value: value is True or (isinstance(value, TracedBool) and value == 1),
            "false": lambda value: value is False or (isinstance(value, TracedBool) and value == 0),
            "integer": lambda value: isinstance(value, int) and not isinstance(value, bool | TracedBool),
            "sameas": lambda value, other: _untraced(value) is _untraced(other),
        }
        self.globals["strftime_now"] = lambda format: literal(clock().strftime(format))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None or not isinstance(pattern := value.__self__, Traced):
            return wrapped
        plain_format = super().wrap_str_format(getattr(str.__str__(pattern), value.__name__))
        assert plain_format is not None

        def traced_format(*args: Any, **kwargs: Any) -> str:
            plain = plain_format(*args, **kwargs)
            if value.__name__ == "format_map":
                args, kwargs = (), args[0]
            traced = _format(SandboxedFormatter(self), pattern, args, kwargs)
            return traced if traced is not None and traced == plain else plain

        return traced_format


def _shown(value: Any) -> str:
    """A value as text. An integer that no request had a part in is the template's own: a loop's index, a count of its
    own making.
    """
    return literal(int.__repr__(value)) if type(value) is int else str(value)


def _computing(filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that computes a number from a request's values."""
    return lambda *args, **kwargs: computed(filter(*args, **kwargs))


def _untraced(value: Any) -> Any:
    """The constant that a traced one stands for; anything else as it is."""
    if isinstance(value, TracedBool):
        return bool(value)
    return None if isinstance(value, TracedNone) else value


def _format(
    formatter: string.Formatter, pattern: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    pieces: list[Any] = []
    at = counter = 0
    for text, field, spec, conversion in formatter.parse(pattern):
        if "{" in text or "}" in text or (spec and "{" in spec):
            return None  # doubled braces and nested fields: not worth following
        pieces.append(pattern[at : at + len(text)])
        at += len(text)
        if field is None:
            continue
        at = pattern.find("}", at) + 1
        if field == "" or field[0] in ".[":
            field, counter = f"{counter}{field}", counter + 1
        value, _ = formatter.get_field(field, args, kwargs)
        value = formatter.convert_field(value, conversion) if conversion and conversion != "s" else value
        pieces.append(format(value, spec) if spec else value)
    return concat(pieces)


def _as_traced(text: str) -> Traced:
    return text if isinstance(text, Traced) else trace(text, runs_of(text))


@jinja2.pass_eval_context
def _join(
    eval_ctx: jinja2.nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(eval_ctx.environment, attribute), value)
    separator = literal("") if d == "" else _as_traced(str(d))
    return separator.join(map(_shown, value))


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    plain = jinja2.filters.do_indent(s, width, first, blank)
    if isinstance(s, Markup) or not isinstance(s, str):
        return plain
    indention = width if isinstance(width, str) else literal(" " * width)
    lines = _as_traced(s + literal("\n")).splitlines()
    pieces: list[str] = []
    for i, line in enumerate(lines):
        if i:
            pieces.append(literal("\n"))
        if first if i == 0 else line or blank:
            pieces.append(indention)
        pieces.append(line)
    traced = concat(pieces)
    return traced if traced == plain else plain


def _safe(value: Any) -> Markup:
    return _mark(Markup(value), str(value))


def _title(s: Any) -> str:
    plain = jinja2.filters.do_title(s)
    text = str(s)
    return trace(plain, text._runs) if isinstance(text, Traced) and len(plain) == len(text) else plain
