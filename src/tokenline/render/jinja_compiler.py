"""The one place that depends on how Jinja2 compiles a template, which Jinja2 does not promise to keep.

`jinja2.nativetypes` of Jinja2 itself overrides the same methods for the same purpose. If a release renames them, a
template would render without provenance instead of failing; `tests/render/test_jinja_compiler.py` fails then, and says
which of the methods below has changed.
"""

from collections.abc import Iterable
from typing import Any

import jinja2.compiler
import jinja2.nodes
from markupsafe import Markup


class TracedCodeGenerator(jinja2.compiler.CodeGenerator):
    """Compiles a template so that its own texts are marked as its own.

    The environment has to have `literal`, `concat` and `shown`.
    """

    def visit_Const(self, node: jinja2.nodes.Const, frame: jinja2.compiler.Frame) -> None:
        self.write(_source_of(node.as_const(frame.eval_ctx)))

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:
        self.write("environment.concat((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: Any, frame: jinja2.compiler.Frame, finalize: Any) -> None:
        self.write("environment.shown(")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return _source_of("".join(group))


def _source_of(value: Any) -> str:
    """Python source for a constant, with its texts as literals of the template."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return f"environment.literal({str.__repr__(value)})"
    if type(value) is tuple:
        return "(" + "".join(_source_of(item) + ", " for item in value) + ")"
    if type(value) is list:
        return "[" + ", ".join(map(_source_of, value)) + "]"
    if type(value) is dict:
        return "{" + ", ".join(f"{_source_of(key)}: {_source_of(item)}" for key, item in value.items()) + "}"
    return str(value) if isinstance(value, float) else repr(value)
