"""Where chat templates run: Jinja2 in a sandbox, with the extensions, filters and globals that transformers gives them,
no others, and limits on what a single operation may make.

Knows nothing of chats. `tracing` has the same environment with provenance.
"""

import functools
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenline.render import budget
from tokenline.render.jinja_compiler import TemplateCodeGenerator

Clock = Callable[[], datetime]


_SMALL = 1024  # characters
_COUNTED = "__counted"  # a filter that no template can name


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
    if isinstance(value, Iterator):  # what a filter such as `map` gives
        value = list(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class OwnList(list[Any]):
    """A list that the template made, which it may also change: that of a request must stay as it came."""

    CHANGES = frozenset({"append", "clear", "extend", "insert", "pop", "remove", "reverse"})

    def __add__(self, other: Any) -> "OwnList":  # type: ignore[override]
        return OwnList(super().__add__(other))

    def __radd__(self, other: Any) -> "OwnList":
        return OwnList([*other, *self]) if isinstance(other, list) else NotImplemented

    def extend(self, items: Any) -> None:
        items = list(items)
        budget.before_operation("+", self, items)  # a list may be added to itself
        super().extend(items)


def _looked_at(value: Any) -> Any:
    """What `{{ value }}` writes."""
    if not isinstance(value, str):
        budget.look_at(value)
    return value


def _guarded(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that counts what it does."""
    takes_context = hasattr(filter, "jinja_pass_arg")

    @functools.wraps(filter)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget.before_filter(name, args[takes_context:], kwargs)
        return budget.after(filter(*args, **kwargs))

    return guarded


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. `clock` is what `strftime_now` reads."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = TemplateCodeGenerator
    own_list = OwnList
    spend = staticmethod(budget.spend)

    def __init__(self, clock: Clock = datetime.now):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = to_json
        self.filters["from_json"] = json.loads  # transformers has none; the templates of DeepSeek V3.2 need one
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: clock().strftime(format)
        self.globals["dict"] = _DictGlobal()
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]
        self.filters[_COUNTED] = budget.counted
        self.finalize = _looked_at
        if type(self) is TemplateEnvironment:
            self.guard_filters()

    def _generate(self, source: jinja2.nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in source.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        return super()._generate(source, *args, **kwargs)

    def guard_filters(self) -> None:
        """Have each filter count what it does."""
        for name, filter in self.filters.items():
            if name != _COUNTED:
                self.filters[name] = _guarded(name, filter)

    @staticmethod
    def joined(values: tuple[Any, ...]) -> str:
        """What `~` makes of these."""
        budget.look_at(*values)
        return budget.after(jinja2.runtime.str_join(values))

    def call(self, context: Any, callee: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        text = getattr(callee, "__self__", None)
        if isinstance(text, str):
            budget.before_call(callee.__name__, text, args)
        else:
            budget.spend()
        return budget.after(super().call(context, callee, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Called for each method that a template takes: what `str.format` and `str.format_map` become."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def guarded(*args: Any, **kwargs: Any) -> str:
            budget.before_format(value.__self__, args, kwargs)
            return wrapped(*args, **kwargs)

        return guarded

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, OwnList) and attr in OwnList.CHANGES:  # templates of Kimi K2 keep ids in a list
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):  # by far the most of them
            if (length := len(left) + len(right)) > _SMALL:  # a small one is counted with the block that it stands in
                budget.text_of(length)
            return left + right
        budget.before_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)
