"""What the code generator overrides in Jinja2 is there, is called, and gets what it expects."""

import inspect
from typing import Any

import jinja2
import jinja2.compiler
import pytest

from tokenline.render.jinja_compiler import TemplateCodeGenerator, TracedCodeGenerator
from tokenline.render.line import Origin
from tokenline.render.provenance import runs_of
from tokenline.render.template import ChatTemplate

OVERRIDDEN = {
    "visit_Const": ["self", "node", "frame"],
    "visit_List": ["self", "node", "frame"],
    "visit_Concat": ["self", "node", "frame"],
    "blockvisit": ["self", "nodes", "frame"],
    "_output_child_pre": ["self", "node", "frame", "finalize"],
    "_output_const_repr": ["self", "group"],
}


@pytest.mark.parametrize(("name", "parameters"), OVERRIDDEN.items())
def test_jinja_has_the_method_with_these_parameters(name: str, parameters: list[str]) -> None:
    known = getattr(jinja2.compiler.CodeGenerator, name, None)
    assert known is not None, f"Jinja2 {jinja2.__version__} has no CodeGenerator.{name} any more"
    assert list(inspect.signature(known).parameters) == parameters, f"Jinja2 {jinja2.__version__} changed {name}"
    assert list(inspect.signature(getattr(TracedCodeGenerator, name)).parameters) == parameters


def test_nothing_else_is_overridden() -> None:
    ours = vars(TemplateCodeGenerator) | vars(TracedCodeGenerator)
    assert {
        name for name in ours if hasattr(jinja2.compiler.CodeGenerator, name) and name[:2] != "__"
    } == OVERRIDDEN.keys()


def test_jinja_calls_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[str] = set()
    for name in OVERRIDDEN:
        original: Any = getattr(TracedCodeGenerator, name)

        def spy(self: Any, *arguments: Any, name: str = name, original: Any = original) -> Any:
            called.add(name)
            return original(self, *arguments)

        monkeypatch.setattr(TracedCodeGenerator, name, spy)
    text = ChatTemplate("text{{ x ~ 'constant' }}{{ x }}{% set y = [x] %}").render_traced({"x": "?"})
    assert text == "text?constant?"
    assert called == OVERRIDDEN.keys()
    assert [(run.length, run.source.origin) for run in runs_of(text)] == [
        (4, Origin.TEMPLATE),
        (1, Origin.UNKNOWN),
        (8, Origin.TEMPLATE),
        (1, Origin.UNKNOWN),
    ]
