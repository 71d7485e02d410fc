"""Which branches a chat template took: the outcomes of its conditions, in the order in which a rendering reached them.

Where two renderings differ, one of the conditions came out differently; `parting_line` finds the first that did.
"""

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
import jinja2.nodes

from tokenline.render.sandbox import TemplateEnvironment
from tokenline.render.template import ChatTemplate


class Decision(NamedTuple):
    """One condition's outcome."""

    line: int  # of the template's source, from 1
    outcome: bool


class _Recording(TemplateEnvironment):
    def __init__(self) -> None:
        super().__init__(datetime.now)
        self.decisions: list[Decision] = []

    def decide(self, line: int, value: Any) -> Any:
        self.decisions.append(Decision(line, bool(value)))
        return value


def parting_line(template: ChatTemplate, first: Mapping[str, Any], second: Mapping[str, Any]) -> int | None:
    """The line of the first condition that comes out differently for two sets of variables; None if none does.

    Conditions around text are compared first. Others mostly count and search, and differ for any two chats.
    """
    for kinds in ((jinja2.nodes.Output,), (jinja2.nodes.Output, jinja2.nodes.Assign, jinja2.nodes.AssignBlock)):
        taken = [_decisions(template, variables, kinds) for variables in (first, second)]
        for one, other in zip(*taken, strict=False):
            if one != other:
                return one.line
    return None


def _decisions(
    template: ChatTemplate, variables: Mapping[str, Any], kinds: tuple[type[jinja2.nodes.Node], ...]
) -> list[Decision]:
    """The outcomes of the conditions around a node of these kinds; if the rendering fails, those before that."""
    environment = _Recording()
    tree = environment.parse(template.source)
    note = jinja2.nodes.EnvironmentAttribute("decide")
    for condition in tree.find_all((jinja2.nodes.If, jinja2.nodes.CondExpr)):
        if isinstance(condition, jinja2.nodes.CondExpr) or _contains(condition, kinds):
            line = condition.test.lineno
            arguments = [jinja2.nodes.Const(line), condition.test]
            condition.test = jinja2.nodes.Call(note, arguments, [], None, None, lineno=line, environment=environment)
    compiled = jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    with contextlib.suppress(Exception):  # a template can fail in any way; what it decided before counts
        compiled.render(dict(variables))
    return environment.decisions


def _contains(condition: jinja2.nodes.If, kinds: tuple[type[jinja2.nodes.Node], ...]) -> bool:
    parts = [*condition.body, *condition.elif_, *condition.else_]
    return any(isinstance(part, kinds) or next(part.find_all(kinds), None) is not None for part in parts)
