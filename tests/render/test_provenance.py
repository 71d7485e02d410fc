"""A traced string is a string in every operation, and what it says of its characters is true."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render import chats
from tokenline.render.errors import RenderError
from tokenline.render.line import Origin
from tokenline.render.provenance import Traced, concat, from_request, join, literal, runs_of, spans_of
from tokenline.render.template import ChatTemplate
from tokenline.render.traced_json import dump, parse, trace_value
from tokenline.render.tracing import TracedEnvironment

short = st.text(alphabet="ab,. \n\t\"'<ßİé{}%", max_size=8)
widths = st.integers(-1, 14)
counts = st.integers(-1, 4)

# name: (arguments of the method), tried with plain arguments and with traced ones
METHODS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "strip": st.tuples() | st.tuples(short),
    "lstrip": st.tuples() | st.tuples(short),
    "rstrip": st.tuples() | st.tuples(short),
    "removeprefix": st.tuples(short),
    "removesuffix": st.tuples(short),
    "split": st.tuples() | st.tuples(st.none() | short, counts),
    "rsplit": st.tuples() | st.tuples(st.none() | short, counts),
    "partition": st.tuples(short),
    "rpartition": st.tuples(short),
    "splitlines": st.tuples() | st.tuples(st.booleans()),
    "replace": st.tuples(short, short) | st.tuples(short, short, counts),
    "center": st.tuples(widths) | st.tuples(widths, st.sampled_from("* ")),
    "ljust": st.tuples(widths) | st.tuples(widths, st.sampled_from("* ")),
    "rjust": st.tuples(widths) | st.tuples(widths, st.sampled_from("* ")),
    "join": st.tuples(st.lists(short, max_size=3)),
    "upper": st.tuples(),
    "lower": st.tuples(),
    "title": st.tuples(),
    "capitalize": st.tuples(),
    "swapcase": st.tuples(),
    "casefold": st.tuples(),
    "__mul__": st.tuples(counts),
    "__rmul__": st.tuples(counts),
    "__add__": st.tuples(short),
    "__mod__": st.tuples(short) | st.tuples(st.tuples(short, st.integers())),
    "__getitem__": st.tuples(st.integers(-9, 9))
    | st.tuples(st.slices(8))
    | st.tuples(st.builds(slice, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from((None, 1, 2, -1)))),
}


def traced(value: Any, path: str, sources: dict[str, str]) -> Any:
    """A value with its strings traced, each to a pointer of its own, which `sources` remembers."""
    if isinstance(value, str):
        sources[path] = value
        return from_request(value, path)
    if isinstance(value, list | tuple):
        return type(value)(traced(item, f"{path}/{i}", sources) for i, item in enumerate(value))
    return value


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", call()
    except Exception as error:
        return "error", type(error)


def strings_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in strings_in(item)] if isinstance(value, list | tuple) else []


def assert_true(text: str, sources: dict[str, str]) -> None:
    """Every run from a request shows what its source has there."""
    at = 0
    for run in runs_of(text):
        shown = str.__str__(text)[at : at + run.length]
        assert len(shown) == run.length > 0
        at += run.length
        if run.source.origin is Origin.REQUEST:
            source = sources[run.source.pointer or ""]
            if run.width is None:
                original = source[run.offset : run.offset + run.length]
                assert shown.casefold() == original.casefold()
            else:
                original = source[run.offset : run.offset + run.width]
                assert any(shown in form for form in chats.forms(original))
    assert at == len(text)


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=80, deadline=None)
@given(data=st.data(), text=short, trace_arguments=st.booleans())
def test_method_gives_what_str_gives_and_tells_the_truth(
    name: str, data: st.DataObject, text: str, trace_arguments: bool
) -> None:
    arguments = data.draw(METHODS[name])
    sources: dict[str, str] = {}
    subject = traced(text, "/text", sources)
    given_arguments = traced(arguments, "/arguments", sources) if trace_arguments else arguments
    expected = outcome(lambda: getattr(text, name)(*arguments))
    found = outcome(lambda: getattr(subject, name)(*given_arguments))
    assert found == expected
    if found[0] == "value":
        for piece in strings_in(found[1]):
            assert_true(piece, sources)


@settings(max_examples=100, deadline=None)
@given(text=short, other=short)
def test_what_can_be_followed_is(text: str, other: str) -> None:
    subject = from_request(text, "/a")
    for result in (other + subject, subject + other, subject.strip(), subject[1:-1], *subject.split(","), *subject):
        known = sum(run.length for run in runs_of(result) if run.source.origin is not Origin.UNKNOWN)
        assert known >= len(result) - len(other)
    assert [str(character) for character in subject] == list(text)
    assert str(subject) is subject
    assert isinstance(f"{subject}", str)
    assert hash(subject) == hash(text)
    assert {text: 1}[subject] == 1


@settings(max_examples=100, deadline=None)
@given(value=chats.values, indent=st.sampled_from((None, 0, 2, 4)), ascii=st.booleans(), sort=st.booleans())
def test_json_is_written_as_the_library_writes_it(value: Any, indent: int | None, ascii: bool, sort: bool) -> None:
    found = dump(trace_value(value, ""), ensure_ascii=ascii, indent=indent, sort_keys=sort)
    assert found == json.dumps(value, ensure_ascii=ascii, indent=indent, sort_keys=sort)
    assert not any(run.source.origin is Origin.UNKNOWN for run in runs_of(found))
    chats.assert_spans_true(value, found, spans_of(found))


@settings(max_examples=80, deadline=None)
@given(value=chats.values, ascii=st.booleans(), separators=st.sampled_from(((",", ":"), (" , ", " :\n"))))
def test_json_in_a_text_keeps_its_place_in_that_text(value: Any, ascii: bool, separators: tuple[str, str]) -> None:
    text = json.dumps(value, ensure_ascii=ascii, separators=separators)
    found = parse(from_request(text, "/text"))
    assert found == value
    written = dump(found)
    assert written == json.dumps(value, ensure_ascii=False)
    chats.assert_spans_true({"text": text}, written, spans_of(written))


@pytest.mark.parametrize("text", ["", "{", '{"a" 1}', '"\\ud8"', "[1,]", "nul", "{'a': 1}", '{"a": 1} x'])
def test_json_that_is_not_is_refused_as_the_library_refuses_it(text: str) -> None:
    with pytest.raises(ValueError) as expected:  # noqa: PT011 (the message is compared below)
        json.loads(text)
    with pytest.raises(ValueError) as found:  # noqa: PT011
        parse(from_request(text, "/text"))
    assert str(found.value) == str(expected.value)


@settings(max_examples=100, deadline=None)
@given(value=chats.values)
def test_containers_print_as_python_prints_them(value: Any) -> None:
    found = str(trace_value(value, ""))
    assert found == str(value)
    chats.assert_spans_true(value, found, spans_of(found))


EXPRESSIONS = (
    "{{ a }}|{{ b }}{{ a ~ b }}{{ a + b }}",
    "{{ [a, b] | join(', ') }}{{ [a, b] | join }}",
    "{{ a | trim | upper | replace('A', b) | indent(2, true) }}",
    "{{ (a ~ '\n' ~ b) | indent }}{{ (a ~ '\n\n' ~ b) | indent(width='> ', blank=true) }}",
    "{{ '%s=%s;' | format(a, b) }}{{ '%s' % a }}{{ '{}/{b}'.format(a, b=b) }}{{ '{0!r}{1:>5}'.format(a, b) }}",
    "{% macro m(x) %}<{{ x }}>{{ caller() }}{% endmacro %}{% call m(a) %}({{ b }}){% endcall %}",
    "{% set x %}{{ a }}-{{ b }}{% endset %}{{ x }}{{ x[1:3] }}{{ x | first }}{{ x | last }}{{ x | reverse }}",
    "{% for c in a %}{{ loop.index0 }}{{ c }}{% endfor %}{{ a | list | tojson }}",
    "{{ d|tojson }}{{ d | tojson(indent=2) }}{{ d }}{{ d.items()|list }}{% for k in d %}{{ k }}{{ d[k] }}{% endfor %}",
    "{{ d | dictsort }}{{ d | items | list | tojson }}{{ d | length }}{{ d.get('no', b) }}",
    "{{ a | safe }}{{ (a | safe) + b }}{{ b + (a | safe) }}{{ ('<' | safe) ~ a }}{{ a | e }}",
    "{{ a | capitalize }}{{ a | title }}{{ a | lower }}{{ a | center(12) }}{{ a | wordcount }}{{ a | truncate(3) }}",
    "{{ d.n is none }}{{ d.t is true }}{{ d.t is boolean }}{{ d.i is integer }}{{ d.t is integer }}{{ d.f is float }}",
    "{{ d.n is sameas none }}{{ d.t is false }}{{ d.n or a }}{{ d.n == none }}{{ 1 if d.t }}{{ d.i + 1 }}{{ -d.f }}",
    "{{ a.split('\\n') | map('trim') | list }}{{ a.split('a')[-1].lstrip() }}{{ a.startswith('a') }}{{ 'a' in a }}",
    "{% set ns = namespace(t='') %}{% for x in [a, b] %}{% set ns.t = ns.t ~ x ~ '.' %}{% endfor %}{{ ns.t }}",
    "{{ [b, a] | sort | join('') }}{{ [a, a] | unique | list }}{{ [d] | map(attribute='s') | join(':') }}",
    "{% filter upper %}x{{ a }}{% endfilter %}{{ ('a' if a else b) * 3 }}{{ a * 2 }}{{ strftime_now('%d') | length }}",
)


@pytest.mark.parametrize("source", EXPRESSIONS)
@settings(max_examples=40, deadline=None)
@given(
    a=short,
    b=short,
    d=st.fixed_dictionaries(
        {"s": short, "n": st.none(), "t": st.booleans(), "i": st.integers(), "f": st.floats(-9, 9), "l": chats.values}
    ),
)
def test_template_writes_the_same_text_with_provenance(source: str, a: str, b: str, d: dict[str, Any]) -> None:
    template = ChatTemplate(source)
    request = {"a": a, "b": b, "d": d}

    def attempt(render: Callable[[dict[str, Any]], str], variables: dict[str, Any]) -> str | None:
        try:
            return render(variables)
        except RenderError:
            return None

    expected = attempt(template.render, request)
    found = attempt(template.render_traced, {name: trace_value(value, f"/{name}") for name, value in request.items()})
    assert found == expected
    if found is not None:
        chats.assert_spans_true(request, found, spans_of(found))


def test_constants_of_the_template_are_its_own() -> None:
    environment = TracedEnvironment()
    template = environment.from_string("x{{ 'y' ~ 'z' }}{{ ['p', 'q'] | join('-') }}{{ {'k': 'v'}.k }}{{ ('t',)[0] }}")
    text = environment.concat(template.generate())
    assert text == "xyzp-qvt"
    assert {run.source.origin for run in runs_of(text)} == {Origin.TEMPLATE}


def test_numbers_are_the_templates_only_if_no_request_had_a_part_in_them() -> None:
    request = {"d": {"i": 12, "s": "abc12"}, "l": [1, 2]}
    own = "{% set n = namespace(v=3) %}{% for x in l %}{{ loop.index }}{% set n.v = n.v + 1 %}{% endfor %}{{ n.v }}4"
    derived = (
        "d.i + 1",
        "1 + d.i",
        "-d.i",
        "l | length",
        "d.s | int(7)",
        "d.s.find('c')",
        "[d.i] | sum",
        "d.i // 5",
        "d.i % 5",
    )
    variables = {name: trace_value(value, f"/{name}") for name, value in request.items()}

    def origins(source: str) -> set[Origin]:
        return {run.source.origin for run in runs_of(ChatTemplate(source).render_traced(variables))}

    assert ChatTemplate(own).render(request) == "1254"
    assert origins(own) == {Origin.TEMPLATE}
    for expression in derived:
        assert origins("{{ " + expression + " }}") == {Origin.UNKNOWN}, expression
        assert origins("{{ '' ~ (" + expression + ") }}") == {Origin.UNKNOWN}, expression
    assert origins("{{ d.i }}{{ d.i | string }}{{ [d.i] | join }}") == {Origin.REQUEST}


def test_names_and_places() -> None:
    value = {"a/b": ["x", {"~k": "line\nfeed"}]}
    text = dump(trace_value(value, "/tools"))
    spans = {text[span.start : span.end]: span for span in spans_of(text) if span.origin is Origin.REQUEST}
    assert spans["a/b"].pointer == "/tools/a~1b"
    assert spans["a/b"].key
    assert spans["x"].pointer == "/tools/a~1b/0"
    assert (spans["line"].offset, spans["\\n"].offset, spans["\\n"].width, spans["feed"].offset) == (0, 4, 1, 5)
    assert spans["feed"].pointer == "/tools/a~1b/1/~0k"


def test_unknown_is_not_claimed() -> None:
    text = from_request("abc", "/a")
    hidden = str(text.encode().decode())
    assert [run.source.origin for run in runs_of(concat([text, hidden]))] == [Origin.REQUEST, Origin.UNKNOWN]
    assert join("-", ["a", "b"]) == "a-b"
    assert not isinstance(join("-", ["a", "b"]), Traced)
    assert runs_of(literal("")) == ()
