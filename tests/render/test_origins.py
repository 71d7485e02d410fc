"""What is said of each token is true of the request: its value or name, the characters of it, and escapes."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.render import chats
from tests.render.models import template_source, tokenizer
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.line import Line, Origin, Span
from tokenline.render.origins import LineToken, TokenPart, token_origins
from tokenline.render.renderer import Renderer

JSON_TEMPLATE = "{{ messages | tojson }}"


def tokens_of(line: Line, subject: Renderer) -> list[LineToken]:
    return list(token_origins(line, subject.tokenizer))


def where(part: TokenPart) -> str:
    if part.pointer is None:
        return str(part.origin)
    end = None if part.offset is None or part.length is None else part.offset + part.length
    return f"{part.pointer}{' name' if part.key else ''} {part.offset}:{end}{' escape' if part.escape else ''}"


def assert_true(request: Any, line: Line, tokens: list[LineToken]) -> None:
    """Every claim is checked against the request; together the parts have every character of the text."""
    assert [token.position for token in tokens] == list(range(len(line)))
    assert [token.id for token in tokens] == line.ids.tolist()
    covered = np.zeros(len(line.text), dtype=bool)
    for token in tokens:
        assert [token.start, token.end] == line.offsets[token.position].tolist()
        assert (token.parts[0].start, token.parts[-1].end) == (token.start, token.end)
        assert all(a.end == b.start for a, b in zip(token.parts, token.parts[1:], strict=False))
        for part in token.parts:
            covered[part.start : part.end] = True
            if part.origin is not Origin.REQUEST:
                assert (part.pointer, part.key, part.offset, part.length, part.escape) == (
                    None,
                    False,
                    None,
                    None,
                    False,
                )
                continue
            assert part.pointer is not None
            assert part.offset is not None
            assert part.length is not None
            value = chats.value_at(request, part.pointer)
            if part.key:
                source = part.pointer.rsplit("/", 1)[1].replace("~1", "/").replace("~0", "~")
            else:
                source = value if isinstance(value, str) else json.dumps(value)
            original = source[part.offset : part.offset + part.length]
            assert len(original) == part.length
            shown = line.text[part.start : part.end]
            if part.escape:
                assert any(shown in form for form in chats.forms(original)), (part, shown, original)
            else:  # true and null may be written as Python writes them
                assert shown.casefold() == original.casefold(), part
    assert covered.all()


@pytest.fixture(scope="module")
def as_json(smollm2_renderer: Renderer) -> Renderer:
    return Renderer(smollm2_renderer.tokenizer, {"default": JSON_TEMPLATE})


def test_a_name_a_value_and_an_escape(as_json: Renderer) -> None:
    line = as_json.chat(ChatInput([{"role": "user", "content": 'a\n"b'}]), trace=True)
    assert line.text == '[{"role": "user", "content": "a\\n\\"b"}]'
    shown = {}
    for token in tokens_of(line, as_json):
        (part,) = token.parts
        if part.origin is Origin.REQUEST:
            shown.setdefault(where(part), []).append(token.text)
    assert shown == {
        "/messages/0/role name 0:4": ["role"],
        "/messages/0/role 0:4": ["user"],
        "/messages/0/content name 0:7": ["content"],
        "/messages/0/content 0:1": ["a"],
        "/messages/0/content 1:2 escape": ["\\", "n"],
        "/messages/0/content 2:3 escape": ['\\"'],
        "/messages/0/content 3:4": ["b"],
    }


def test_characters_of_several_tokens(as_json: Renderer) -> None:
    line = as_json.chat(ChatInput([{"role": "user", "content": "你好🦜x"}]), trace=True)
    data: dict[str, bytes] = {}
    for token in tokens_of(line, as_json):
        place = where(token.parts[0])
        if place.startswith("/messages/0/content ") and not token.parts[0].key:
            assert (token.broken is None) == (token.text == "x")
            assert token.broken is None or "\ufffd" in token.text
            data[place] = data.get(place, b"") + (token.broken or token.text.encode())
    assert {place.split()[1]: piece.decode() for place, piece in data.items()} == {
        "0:1": "你",
        "1:2": "好",
        "2:3": "🦜",
        "3:4": "x",
    }


def test_a_token_in_which_origins_meet(smollm2_renderer: Renderer) -> None:
    plain = smollm2_renderer.text("hello world")
    pointer = "/messages/0/content"
    spans = (
        Span(0, 3, Origin.TEMPLATE),
        Span(3, 5, Origin.REQUEST, pointer, 10),
        Span(5, 7, Origin.REQUEST, pointer, 12, width=1),
        Span(7, 9, Origin.REQUEST, pointer, 0, key=True),
        Span(9, 11, Origin.UNKNOWN),
    )
    tokens = tokens_of(Line(plain.ids, plain.text, plain.offsets, spans), smollm2_renderer)
    assert [[where(part) for part in token.parts] for token in tokens] == [
        ["template", f"{pointer} 10:12"],
        [f"{pointer} 12:13 escape", f"{pointer} name 0:2", "unknown"],
    ]
    assert tokens[0].as_json() == {
        "id": tokens[0].id,
        "text": "hello",
        "start": 0,
        "end": 5,
        "origin": "mixed",
        "pointer": None,
        "key": False,
        "offset": None,
        "length": None,
        "escape": False,
        "parts": [
            {
                "start": 0,
                "end": 3,
                "origin": "template",
                "pointer": None,
                "key": False,
                "offset": None,
                "length": None,
                "escape": False,
            },
            {
                "start": 3,
                "end": 5,
                "origin": "request",
                "pointer": pointer,
                "key": False,
                "offset": 10,
                "length": 2,
                "escape": False,
            },
        ],
    }


def test_numbers_and_constants_count_in_their_json_text(smollm2_renderer: Renderer) -> None:
    subject = Renderer(smollm2_renderer.tokenizer, {"default": "{{ tools | tojson }}|{{ tools[0].function.strict }}"})
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "n": -12.5, "none": None}}]
    request = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    line = subject.chat(ChatInput(request["messages"], tools), trace=True)
    assert line.text.endswith("|True")
    tokens = tokens_of(line, subject)
    assert_true(request, line, tokens)
    places = {part.pointer: part for token in tokens for part in token.parts if not part.key}
    assert {"/tools/0/function/strict", "/tools/0/function/n", "/tools/0/function/none"} <= places.keys()


def test_raw_prompts_and_ids(smollm2_renderer: Renderer) -> None:
    for path, pointer in ((("prompt",), "/prompt"), (("prompt", 3), "/prompt/3")):
        line = smollm2_renderer.text("Hello,  wörld", path)
        assert {part.pointer for token in tokens_of(line, smollm2_renderer) for part in token.parts} == {pointer}
        assert_true(
            {"prompt": ["", "", "", line.text] if len(path) == 2 else line.text},
            line,
            tokens_of(line, smollm2_renderer),
        )
        ids = smollm2_renderer.ids(line.ids.tolist(), path)
        assert [where(token.parts[0]) for token in tokens_of(ids, smollm2_renderer)] == [
            f"{pointer}/{i} None:None" for i in range(len(ids))
        ]
        assert [token.text for token in tokens_of(ids, smollm2_renderer)] == [
            token.text for token in tokens_of(line, smollm2_renderer)
        ]
    assert tokens_of(smollm2_renderer.text(""), smollm2_renderer) == []


def test_what_the_tokenizer_adds_is_its_own() -> None:
    spm = Renderer(tokenizer("llama-spm"), {})
    begin, hello = tokens_of(spm.text("Hello"), spm)
    assert (where(begin.parts[0]), begin.text, begin.start, begin.end) == ("tokenizer", "<s>", 0, 0)
    assert where(hello.parts[0]) == "/prompt 0:5"


def test_a_line_without_spans_claims_nothing(as_json: Renderer) -> None:
    line = as_json.chat(ChatInput([{"role": "user", "content": "x"}]))
    assert {where(part) for token in tokens_of(line, as_json) for part in token.parts} == {"unknown"}


SUBJECTS = [
    ("qwen2", JSON_TEMPLATE + "{{ tools | tojson }}"),
    ("llama-spm", "{{ messages | tojson(indent=2, ensure_ascii=true) }}{{ tools | tojson }}"),
    ("qwen2", "Qwen-Qwen3-0.6B"),
    ("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct"),
]


@pytest.mark.parametrize(("vocabulary", "template"), SUBJECTS)
def test_every_part_of_every_token_is_true(vocabulary: str, template: str) -> None:
    source = template if "{" in template else template_source(template)
    subject = Renderer(tokenizer(vocabulary), {"default": source})

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(chats.messages(), st.none() | chats.tools)
    def check(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
        try:
            line = subject.chat(ChatInput(messages, tools), trace=True)
        except RenderError:
            return
        assert_true({"messages": messages, "tools": tools}, line, tokens_of(line, subject))

    check()
