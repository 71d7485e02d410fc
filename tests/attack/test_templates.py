"""Templates that come with a model, from anybody: what they may do is bounded, at the start and for each request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.hostile_templates import BROKEN, DEAR, ESCAPES
from tests.limits import HANG_S
from tokenline.render.errors import RenderError
from tokenline.render.template import ChatTemplate, TooMuch

ROOT = Path(__file__).parents[2]
MEMORY = 1 << 30  # bytes more than a process that has only imported this

CHILD = """
import resource, sys
from tests.attack import hostile_templates
from tokenline.render.template import ChatTemplate, TooMuch
in_use = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (in_use + int(sys.argv[1]), in_use + int(sys.argv[1])))
for name, source in hostile_templates.DEAR.items():
    for method in ("render", "render_traced"):
        try:
            template = ChatTemplate(source)
            getattr(template, method)({"messages": [{"role": "user", "content": "x"}]})
        except TooMuch as error:
            print(name, method, "stopped")
        except BaseException as error:
            print(name, method, type(error).__name__, str(error)[:200])
        else:
            print(name, method, "done")
"""


def test_templates_that_do_too_much_are_stopped():
    """In a process whose memory is bounded, so that one which is not stopped fails instead of filling the machine."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(MEMORY)], env=environment, capture_output=True, text=True, timeout=2 * HANG_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {tuple(line.split(" ", 2)[:2]): line.split(" ", 2)[2] for line in done.stdout.splitlines()}
    wrong = {key: said for key, said in found.items() if said != "stopped" and "may do" not in said}
    assert not wrong
    assert len(found) == 2 * len(DEAR)


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_templates_that_are_none_are_a_line(source: str):
    with pytest.raises(RenderError) as error:
        ChatTemplate(source).render({"messages": [], "x": 1, "b": []})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_templates_do_not_leave_the_sandbox(source: str):
    messages = [{"role": "user", "content": "x"}]
    template = ChatTemplate(source)
    for render in (template.render, template.render_traced):
        try:
            text = render({"messages": messages})
        except RenderError:
            continue
        for word in ("<class", "function", "module", "root:", "object at"):
            assert word not in text
    assert messages == [{"role": "user", "content": "x"}]


def test_a_long_conversation_may_do_more():
    source = "{% for m in messages %}{% for word in m.content.split() %}{{ word }} {% endfor %}{% endfor %}"
    template = ChatTemplate(source)
    text = "word " * 400_000
    assert template.render({"messages": [{"role": "user", "content": text}]}) == text
    with pytest.raises(TooMuch):
        ChatTemplate("{% for i in range(30) %}" + source + "{% endfor %}").render({"messages": [{"content": text}]})
