"""A chat template: its text for some variables, plainly or with provenance, and what can be asked of its source.

Knows nothing of what a message should look like (see `normalize`) or of tokens. What a template may do is `sandbox`'s
to say.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.defaults
import jinja2.meta
import jinja2.nodes

from tokenline.render.budget import MAX_SOURCE, MAX_STEPS_OF_ATTEMPT, MAX_TEXT, BudgetSpent, budget, steps_for
from tokenline.render.errors import RenderError
from tokenline.render.provenance import concat
from tokenline.render.sandbox import Clock, TemplateEnvironment
from tokenline.render.tracing import TracedEnvironment

_MAX_REASON = 500  # characters of a message with a template's own words, which may quote all that a client sent


class ChatTemplate:
    """One compiled template. Immutable, safe to render from several threads."""

    def __init__(self, source: str, *, clock: Clock = datetime.now):
        """Compile; raises RenderError with the line if `source` is not a template."""
        self.source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._traced: jinja2.Template | None = None  # compiled when first asked for
        environment = TemplateEnvironment(clock)
        if len(source) > MAX_SOURCE:
            raise RenderError((), f"The chat template has more than {MAX_SOURCE:,} characters.")
        try:
            with budget(MAX_STEPS_OF_ATTEMPT):
                self._tree = environment.parse(source)
                self._compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            said = _sentence(f"The chat template has an error in line {error.lineno}: {error.message}")
            raise RenderError((), said) from error
        except RecursionError as error:
            raise RenderError((), "The chat template is nested too deeply.") from error
        except Exception as error:  # Python itself refuses some of what Jinja makes, such as 21 loops in each other
            said = _sentence(f"The chat template cannot be compiled: {type(error).__name__}: {error}")
            raise RenderError((), said) from error
        self.constants = frozenset(
            node.value for node in self._tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)
        )
        self.literals = self.constants | {node.data for node in self._tree.find_all(jinja2.nodes.TemplateData)}

    def roles(self) -> frozenset[str]:
        """The strings that the template compares a role with."""
        return self._compared(_is_role)

    def values_of(self, variable: str) -> frozenset[str]:
        """The strings that the template knows for a variable: it compares it with them, or gives it as a default."""

        def is_meant(node: jinja2.nodes.Node) -> bool:
            names = [node] if isinstance(node, jinja2.nodes.Name) else node.find_all(jinja2.nodes.Name)
            return any(name.name == variable for name in names)

        defaults = {
            const.value
            for assign in self._tree.find_all(jinja2.nodes.Assign)
            if isinstance(assign.target, jinja2.nodes.Name) and assign.target.name == variable
            for const in [assign.node, *assign.node.find_all(jinja2.nodes.Const)]
            if isinstance(const, jinja2.nodes.Const) and isinstance(const.value, str)
        }
        return self._compared(is_meant) | defaults

    def _compared(self, is_meant: Callable[[jinja2.nodes.Node], bool]) -> frozenset[str]:
        """The strings that stand on one side of a comparison, alone or in a list, with what is meant on another."""
        found: set[str] = set()
        for compare in self._tree.find_all(jinja2.nodes.Compare):
            sides = [compare.expr, *(operand.expr for operand in compare.ops)]
            if any(is_meant(side) for side in sides):
                found.update(text for side in sides for text in _texts_of(side))
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
        return _run(self._compiled, variables, "".join, _steps_for(variables))

    def attempt(
        self,
        messages: Sequence[Mapping[str, Any]],
        named_tokens: Mapping[str, str],
        *,
        tools: Sequence[Any] | None = None,
        **variables: Any,
    ) -> str | None:
        """What the template makes of a small chat, with an answer's opening; None if it refuses. To find out its ways.

        `variables` are set in addition, or instead.
        """
        chat = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        try:
            return _run(self._compiled, {**named_tokens, **chat, **variables}, "".join, MAX_STEPS_OF_ATTEMPT)
        except TooMuch:
            raise  # it will not do better with what is not small
        except RenderError:
            return None

    def render_traced(self, variables: Mapping[str, Any]) -> str:
        """The same text with provenance, for variables whose texts are traced (see `provenance`)."""
        with self._lock:
            if self._traced is None:
                self._traced = TracedEnvironment(self._clock).from_string(self.source)
        return _run(self._traced, variables, concat, _steps_for(variables))


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


def _texts_of(node: jinja2.nodes.Node) -> Iterator[str]:
    """The strings that a constant is, or a list of constants, which Jinja may have made one constant."""
    if isinstance(node, jinja2.nodes.List | jinja2.nodes.Tuple):
        for item in node.items:
            yield from _texts_of(item)
    elif isinstance(node, jinja2.nodes.Const):
        values = node.value if isinstance(node.value, list | tuple) else [node.value]
        yield from (value for value in values if isinstance(value, str))


def _is_role(node: jinja2.nodes.Node) -> bool:
    match node:
        case jinja2.nodes.Getattr(attr="role") | jinja2.nodes.Name(name="role"):
            return True
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value="role")):
            return True
    return False


class TooMuch(RenderError):
    """The template does more than any conversation needs."""


def _steps_for(variables: Mapping[str, Any]) -> int:
    return steps_for(variables.get("messages"), variables.get("tools"))


def _run(compiled: jinja2.Template, variables: Mapping[str, Any], join: Callable[[list[str]], str], steps: int) -> str:
    """Render piece by piece, within so many steps, so that a template that never ends is stopped."""
    pieces: list[str] = []
    size = 0
    try:
        with budget(steps):
            for piece in compiled.generate(dict(variables)):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_TEXT:
                    raise BudgetSpent(f"wrote more than {MAX_TEXT:,} characters")
        return join(pieces)
    except BudgetSpent as error:
        raise TooMuch((), f"The chat template {error}.") from error
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
