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


class TemplateCodeGenerator(jinja2.compiler.CodeGenerator):
    """Compiles a template so that the lists it makes are known as its own (see `sandbox.OwnList`), and that each run of
    a block of its code is counted (see `budget`).

    The environment has to have `own_list`, `spend` and `joined`.
    """

    def blockvisit(self, nodes: Iterable[jinja2.nodes.Node], frame: jinja2.compiler.Frame) -> None:
        self.writeline("environment.spend()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:
        self.write("environment.joined((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")

    def visit_Const(self, node: jinja2.nodes.Const, frame: jinja2.compiler.Frame) -> None:
        self.write(self._source_of(node.as_const(frame.eval_ctx)))

    def visit_List(self, node: jinja2.nodes.List, frame: jinja2.compiler.Frame) -> None:
        self.write("environment.own_list(")
        super().visit_List(node, frame)
        self.write(")")

    def _source_of(self, value: Any) -> str:
        """Python source for a constant."""
        if isinstance(value, str) and not isinstance(value, Markup):
            return self._source_of_text(value)
        if type(value) is tuple:
            return "(" + "".join(self._source_of(item) + ", " for item in value) + ")"
        if type(value) is list:
            return "environment.own_list([" + ", ".join(map(self._source_of, value)) + "])"
        if type(value) is dict:
            members = (f"{self._source_of(key)}: {self._source_of(item)}" for key, item in value.items())
            return "{" + ", ".join(members) + "}"
        return str(value) if isinstance(value, float) else repr(value)

    def _source_of_text(self, text: str) -> str:
        return repr(text)


class TracedCodeGenerator(TemplateCodeGenerator):
    """Compiles a template so that its own texts are marked as its own.

    The environment has to have `literal` and `shown`, too.
    """

    def _output_child_pre(self, node: Any, frame: jinja2.compiler.Frame, finalize: Any) -> None:
        self.write("environment.shown(")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._source_of("".join(group))

    def _source_of_text(self, text: str) -> str:
        return f"environment.literal({str.__repr__(text)})"
