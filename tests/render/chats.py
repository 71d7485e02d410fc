"""Random chats as clients send them, and a checker that says whether a line's spans tell the truth."""

import json
from typing import Any

import markupsafe
from hypothesis import strategies as st

from tokenline.render.call_ids import nine_characters
from tokenline.render.line import Origin, Span

SNIPPETS = (
    *(
        "Hi",
        "the quick brown fox",
        " two  spaces ",
        "\n",
        "\n\n",
        "\ttab",
        "é è",
        "你好，世界",
        "🙂👩‍💻",
        "e\u0301",
        "\u200b",
    ),
    *(
        '"quoted"',
        "it's",
        "<b>&amp;</b>",
        "a\\b",
        "{{ x }}",
        "{% if %}",
        "}}",
        "%s %d %%",
        "{0} {name}",
        "\u2028",
        "\x00",
    ),
    *("<think>", "</think>", "<think>\nhm\n</think>\n\n", "<tool_call>", "</tool_call>", "<|im_end|>", "<|im_start|>"),
    *("/no_think", "/think", "[INST]", "</s>", "<s>", "<|eot_id|>", "<|", "|>", "<", ">", "true", "null", "0", "-1.5"),
    *("<｜end▁of▁sentence｜>", "<end_of_turn>", "<|end|>", "<|channel|>final<|message|>", "\r\n", "\xa0"),
)

texts = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=6), max_size=4).map("".join)
names = st.sampled_from(("get_weather", "search", "f", "run-code", "名前"))
keys = st.sampled_from(("city", "q", "n", "a b", "ключ", 'k"', "<x>", "type", "items"))
scalars = texts | st.integers(-(10**9), 10**9) | st.booleans() | st.none() | st.floats(allow_nan=False, width=32)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=5
)
objects = st.dictionaries(keys, values, max_size=3)


@st.composite
def arguments(draw: st.DrawFn) -> Any:
    value = draw(objects)
    form = draw(st.sampled_from(("text", "text", "ascii", "spread", "object")))
    if form == "object":
        return value
    if form == "spread":
        return json.dumps(value, ensure_ascii=False, indent=1, separators=(" ,", " : "))
    return json.dumps(value, ensure_ascii=form == "ascii")


def content(*, none: bool = False) -> st.SearchStrategy[Any]:
    parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), min_size=1, max_size=3)
    options = [texts, texts, parts]
    return st.one_of(*options, st.none()) if none else st.one_of(*options)


schemas = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(("string", "integer", "number", "boolean"))},
        optional={
            "description": texts,
            "enum": st.lists(texts, max_size=3),
            "default": scalars,
            "minimum": st.integers(),
        },
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"description": texts}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(keys, inner, max_size=2)},
            optional={
                "required": st.lists(keys, max_size=2),
                "description": texts,
                "additionalProperties": st.booleans(),
            },
        ),
    ),
    max_leaves=4,
)
parameters = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(keys, schemas, max_size=3)},
    optional={"required": st.lists(keys, max_size=2)},
)
tools = st.lists(
    st.builds(
        lambda name, description, parameters: {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        },
        names,
        texts,
        parameters,
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation that mostly goes as conversations go, but now and then does not."""
    chat: list[dict[str, Any]] = []
    if draw(st.booleans()):
        chat.append({"role": draw(st.sampled_from(("system", "system", "developer"))), "content": draw(content())})
    for turn in range(draw(st.integers(1, 3))):
        chat.append({"role": "user", "content": draw(content())})
        kind = draw(st.sampled_from(("answer", "answer", "call", "think", "end")))
        if kind == "end":
            break
        message: dict[str, Any] = {"role": "assistant", "content": draw(content(none=kind == "call"))}
        if kind == "think":
            message["reasoning_content"] = draw(texts)
        chat.append(message)
        if kind == "call":
            count = draw(st.integers(1, 2))
            message["tool_calls"] = [
                {
                    "id": f"call{turn}{n}{'x' * 4}",
                    "type": "function",
                    "function": {"name": draw(names), "arguments": draw(arguments())},
                }
                for n in range(count)
            ]
            for call in message["tool_calls"]:
                result = {"role": "tool", "tool_call_id": call["id"], "content": draw(content())}
                if draw(st.booleans()):
                    result["name"] = call["function"]["name"]
                chat.append(result)
            if draw(st.booleans()):
                chat.append({"role": "assistant", "content": draw(texts)})
    return chat


template_kwargs = st.fixed_dictionaries(
    {},
    optional={
        "enable_thinking": st.booleans(),
        "thinking": st.booleans(),
        "reasoning_effort": st.sampled_from(("low", "medium", "high")),
        "functions": texts,  # these two are what Firefunction's template asks for
        "datetime": st.just("2026-03-05"),
        "documents": st.lists(st.builds(lambda t: {"title": t, "text": t, "doc_id": "1"}, texts), max_size=1),
    },
)


def value_at(request: Any, pointer: str) -> Any:
    """The value that a JSON pointer names (RFC 6901)."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        request = request[int(step)] if isinstance(request, list) else request[step]
    return request


def assert_spans_true(request: Any, text: str, spans: tuple[Span, ...]) -> None:
    """Spans cover the text in order, and each one from the request shows what the request has there."""
    at = 0
    for span in spans:
        assert span.start == at
        assert span.end > span.start
        at = span.end
        if span.origin is not Origin.REQUEST:
            assert span.pointer is None
            continue
        assert span.pointer is not None
        value = value_at(request, span.pointer)
        shown = text[span.start : span.end]
        if span.key:
            source = span.pointer.rsplit("/", 1)[1].replace("~1", "/").replace("~0", "~")
        else:
            source = value if isinstance(value, str) else json.dumps(value)
        if span.width is None:
            # true and null may be written as Python writes them
            assert shown.casefold() == source[span.offset : span.offset + len(shown)].casefold(), span
        else:
            original = source[span.offset : span.offset + span.width]
            assert len(original) == span.width, span
            assert any(shown in form for form in forms(original)), (span, shown, original)
    assert at == len(text)


def forms(original: str) -> set[str]:
    """What a few characters may turn into: read as JSON, escaped for JSON, Python or HTML, or written by a template."""
    found = {original, {"null": "None", "developer": "system"}.get(original, original), nine_characters(original)}
    for quoted in (f'"{original}"', original):
        try:
            value = json.loads(quoted)
        except ValueError:
            continue
        found |= {value} if isinstance(value, str) else {json.dumps(value), repr(value)}  # Infinity is inf in Python
    for text in list(found):
        found |= {repr(text)[1:-1], "\\" + text}
        found |= {json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    return found | {str(markupsafe.escape(text)) for text in found}
