"""The sandbox has what transformers' has, and stops what would run away."""

import json
from datetime import datetime

import pytest

from tokenline.render.errors import RenderError
from tokenline.render.template import ChatTemplate

CLOCK = datetime(2026, 3, 5, 14, 7, 9)


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, clock=lambda: CLOCK).render(variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "05 Mar 2026"),
        ("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}", "2026-03-05 14:07:09"),
        (
            "{% if date is not defined %}{% set date = strftime_now('%B %Y') %}{% endif %}{{ date }}",
            "March 2026",
        ),
    ],
)
def test_clock(source: str, expected: str) -> None:
    assert render(source) == expected


def test_json_is_neither_sorted_nor_escaped() -> None:
    value = {"b": "<é & \"'\u2028>", "a": [1, 2.5, True, None]}
    assert render("{{ v | tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ v | tojson(indent=2) }}", v=value) == json.dumps(value, ensure_ascii=False, indent=2)
    assert render("{{ v | tojson(ensure_ascii=true, separators=(',', ':')) }}", v=value) == json.dumps(
        value, separators=(",", ":")
    )


def test_blocks_take_their_white_space_with_them() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_loop_controls_and_generation_blocks() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
    )
    assert render(source + "{% endfor %}") == "02"
    assert render("{% for m in [1, 2] %}{% generation %}<{{ m }}>{% endgeneration %}{% endfor %}") == "<1><2>"


def test_what_a_template_raises_is_its_message() -> None:
    with pytest.raises(RenderError, match=r"refused the request: roles must alternate\.$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ namespace(a=1).__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ 'x' * 100000000 }}",
        "{{ [1] * 99999999 }}",
        "{{ 10 ** 100000 }}",
        "{% for i in range(99999999) %}{% endfor %}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '{0.__class__}'.format('') + 1 }}",
    ],
)
def test_what_a_template_must_not_do_is_one_line(source: str) -> None:
    with pytest.raises(RenderError) as caught:
        render(source, messages=[])
    assert "\n" not in caught.value.message


def test_a_template_that_never_ends_writing_is_stopped() -> None:
    source = (
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ 'xxxxxxxxxx' * 100000 }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(RenderError, match=r"wrote more than|did more work"):
        render(source)


def test_a_templates_long_message_is_cut() -> None:
    with pytest.raises(RenderError) as caught:
        render("{{ raise_exception(text) }}", text="two\nlines " + "x" * 10_000)
    assert "request: two lines xxx" in caught.value.message
    assert len(caught.value.message) < 600


def test_an_error_in_a_template_names_the_line() -> None:
    with pytest.raises(RenderError, match="error in line 2"):
        ChatTemplate("fine\n{% if %}")
    with pytest.raises(RenderError, match=r"error in line 1.*no_such_filter"):
        ChatTemplate("{{ a | no_such_filter }}")


def test_what_a_template_can_be_asked() -> None:
    template = ChatTemplate(
        "{% if enable_thinking %}{{ messages[0]['role'] == 'tool' }}{% endif %}"
        "{% if message.role in ['ipython', 'user'] and m['x'] == 'no role' %}{% endif %}{{ shown }}"
    )
    assert template.roles() == {"tool", "ipython", "user"}
    assert template.switches() == {"enable_thinking", "message", "m"}
    assert template.variables() == {"enable_thinking", "message", "m", "shown"}
    assert template.mentions("enable_thinking")
    assert not template.mentions("thinking")
