"""A chat template: Jinja2 in a sandbox, with exactly the extensions, filters and globals that transformers gives it.

Knows how to turn template variables into text and which strings a template's source contains. Knows nothing of what
a message should look like (see `normalize`) or of tokens.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.defaults
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenline.render.errors import RenderError
from tokenline.render.provenance import concat

Clock = Callable[[], datetime]

_MAX_OUTPUT = 64 * 1024 * 1024  # characters; far beyond any context, so only a runaway template gets there
_MAX_REASON = 500  # characters of a message with a template's own words, which may quote all that a client sent
_MAX_REPEAT = 1024 * 1024  # of "x" * n and [x] * n in a template


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it only renders them."""

    tags = {"generation"}  # noqa: RUF012 (the base class has it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace`, refusing names that could reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=...)` works
        self, *positional = args
        attributes = dict(*positional, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template may not store the attribute {name!r} on a namespace")


class _DictGlobal:
    """The global `dict`: makes dicts, and gives no way to the class itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: Any) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter of chat templates. Unlike Jinja's own it neither escapes HTML nor sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. `clock` is what `strftime_now` reads."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, clock: Clock = datetime.now):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = to_json
        self.filters["from_json"] = json.loads  # transformers has none; the templates of DeepSeek V3.2 need one
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: clock().strftime(format)
        self.globals["dict"] = _DictGlobal()
        self.globals["namespace"] = _Namespace

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                repeats = isinstance(sequence, str | list | tuple) and isinstance(times, int)
                if repeats and len(sequence) * times > _MAX_REPEAT:
                    raise jinja2.exceptions.SecurityError("a template may not repeat a text that often")
        elif isinstance(right, int | float) and abs(right) > 1000:
            raise jinja2.exceptions.SecurityError("a template may not raise to such a power")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One compiled template. Immutable, safe to render from several threads."""

    def __init__(self, source: str, *, clock: Clock = datetime.now):
        """Compile; raises RenderError with the line if `source` is not a template."""
        self.source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._traced: jinja2.Template | None = None  # compiled when first asked for
        environment = TemplateEnvironment(clock)
        try:
            self._tree = environment.parse(source)
            self._compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            said = _sentence(f"The chat template has an error in line {error.lineno}: {error.message}")
            raise RenderError((), said) from error
        self.constants = frozenset(
            node.value for node in self._tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)
        )
        self.literals = self.constants | {node.data for node in self._tree.find_all(jinja2.nodes.TemplateData)}

    def roles(self) -> frozenset[str]:
        """The strings that the template compares a role with."""
        found: set[str] = set()
        for compare in self._tree.find_all(jinja2.nodes.Compare):
            sides = [compare.expr, *(operand.expr for operand in compare.ops)]
            if any(_is_role(side) for side in sides):
                for side in sides:
                    items = side.items if isinstance(side, jinja2.nodes.List | jinja2.nodes.Tuple) else [side]
                    found.update(
                        item.value
                        for item in items
                        if isinstance(item, jinja2.nodes.Const) and isinstance(item.value, str)
                    )
        return frozenset(found)

    def variables(self) -> frozenset[str]:
        """The names that a request may set for the template: it reads them and does not set them first."""
        inside = {name.name for macro in self._tree.find_all(jinja2.nodes.Macro) for name in macro.args}
        return frozenset(jinja2.meta.find_undeclared_variables(self._tree)) - _GIVEN - inside

    def switches(self) -> frozenset[str]:
        """Those of `variables` that decide something: they stand in a condition."""
        tests = [condition.test for condition in self._tree.find_all((jinja2.nodes.If, jinja2.nodes.CondExpr))]
        tests += list(self._tree.find_all((jinja2.nodes.And, jinja2.nodes.Or, jinja2.nodes.Not, jinja2.nodes.Filter)))
        names = {
            name.name
            for test in tests
            for name in ([test] if isinstance(test, jinja2.nodes.Name) else test.find_all(jinja2.nodes.Name))
        }
        return self.variables() & names

    def date_unit(self) -> str | None:
        """How often a text with the template's date changes: the finest unit of its calls of `strftime_now`; None if
        it has no date. "unknown" where the format is not written in the call.
        """
        units = []
        for call in self._tree.find_all(jinja2.nodes.Call):
            if isinstance(call.node, jinja2.nodes.Name) and call.node.name == "strftime_now":
                format = call.args[0] if call.args else None
                units.append(_finest_unit(format.value) if isinstance(format, jinja2.nodes.Const) else "unknown")
        return min(units, key=_UNITS.index, default=None)

    def mentions(self, word: str) -> bool:
        """Whether the word stands in the template's code or text, whole."""
        return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", self.source) is not None

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for these variables. Raises RenderError with the template's own message."""
        return _run(self._compiled, variables, "".join)

    def render_traced(self, variables: Mapping[str, Any]) -> str:
        """The same text with provenance, for variables whose texts are traced (see `provenance`)."""
        from tokenline.render.tracing import TracedEnvironment  # which builds on this module

        with self._lock:
            if self._traced is None:
                self._traced = TracedEnvironment(self._clock).from_string(self.source)
        return _run(self._traced, variables, concat)


# strftime's directives by what they tell, finest first
_DIRECTIVES = {
    "second": "STsfcXr+",
    "minute": "MR",
    "hour": "HIpkl",
    "day": "deajuwDFxAUWVv",
    "month": "mbBh",
    "year": "yYGCg",
}
_UNITS = ["unknown", *_DIRECTIVES]
_GIVEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception", "namespace", "dict"}
    | {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
    | set(jinja2.defaults.DEFAULT_NAMESPACE)
)


def _finest_unit(format: Any) -> str:
    directives = set(re.findall(r"%[-_0^#EO]*([a-zA-Z+])", str(format)))
    return next((unit for unit, letters in _DIRECTIVES.items() if directives & set(letters)), "unknown")


def _is_role(node: jinja2.nodes.Node) -> bool:
    match node:
        case jinja2.nodes.Getattr(attr="role") | jinja2.nodes.Name(name="role"):
            return True
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value="role")):
            return True
    return False


def _run(compiled: jinja2.Template, variables: Mapping[str, Any], join: Callable[[list[str]], str]) -> str:
    """Render piece by piece, so that a template that never ends is stopped by the size of what it writes."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in compiled.root_render_func(compiled.new_context(dict(variables))):
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_OUTPUT:
                raise RenderError((), f"The chat template wrote more than {_MAX_OUTPUT:,} characters.")
        return join(pieces)
    except RenderError:
        raise
    except RecursionError as error:
        raise RenderError((), "The request is nested too deeply for the chat template.") from error
    except jinja2.TemplateError as error:
        said = _sentence(f"The chat template refused the request: {error.message or error}")
        raise RenderError((), said) from error
    except Exception as error:  # a template can fail in any way that Python can
        raise RenderError((), _sentence(f"The chat template failed: {type(error).__name__}: {error}")) from error


def _sentence(text: str) -> str:
    """Somebody else's words at the end of ours: on one line, not too long, and with a full stop."""
    text = " ".join(text.split())
    if len(text) > _MAX_REASON:
        return text[:_MAX_REASON] + "…"
    return text if text.endswith((".", "!", "?")) else text + "."
