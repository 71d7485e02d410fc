"""Every chat template of the llama.cpp collection renders as `transformers` renders it, and says truly where each
character came from.
"""

import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from tests.render import chats
from tests.sources import template_files
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.line import Line, Origin
from tokenline.render.renderer import Renderer
from tokenline.render.tokenizer import Tokenizer
from tokenline.render.vocabulary import Vocabulary

NOW = datetime(2026, 3, 5, 14, 7, 9)
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {file.stem: file for file in template_files()}
# templates that transformers cannot run: they use a filter that it does not have
BEYOND_TRANSFORMERS = {
    *("deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
    *("Kimi-K2-Instruct", "Kimi-K2-Thinking"),  # or that change a list
    "llama-cpp-deepseek-r1",  # or that write what `map` gives as JSON
}


def byte_tokenizer() -> tokenizers.Tokenizer:
    """One token a byte: enough to make a line of any text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="module")
def reference() -> Any:
    logging.getLogger("transformers").setLevel(logging.ERROR)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return NOW

    patch = pytest.MonkeyPatch()
    patch.setattr(chat_template_utils, "datetime", Clock)
    yield PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), **NAMED)
    patch.undo()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    library = byte_tokenizer()
    pieces = [b""] * 256
    table = {character: byte for byte, character in chat_template_bytes().items()}
    for character, id in library.get_vocab().items():
        pieces[id] = bytes([table[character]])
    return Tokenizer(Vocabulary(spec=library.to_str(), pieces=pieces, special={}, added={}, named=NAMED))


def chat_template_bytes() -> dict[int, str]:
    """Byte to printable character, as GPT-2 published it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()


@pytest.fixture
def renderer(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Renderer:
    name = request.param
    source = TEMPLATES[name].read_text("utf-8")
    return Renderer(tokenizer, {"default": source}, clock=lambda: NOW)


def rendered_by_transformers(reference: Any, source: str, chat: ChatInput, given: dict[str, Any]) -> str | None:
    values = {name: given[name] for name in ("messages", "tools")}
    kwargs = {name: value for name, value in given.items() if name not in (*values, *NAMED, "add_generation_prompt")}
    switches = {
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
    }
    try:
        if any(value is None for message in values["messages"] for value in message.values()):
            # apply_chat_template drops what is null, which a few templates ask for; one step further in it does not
            variables: dict[str, Any] = {**NAMED, **kwargs, **switches}
            render: Any = chat_template_utils.render_jinja_template
            rendered, _ = render([values["messages"]], values["tools"], chat_template=source, **variables)
            return rendered[0]
        return reference.apply_chat_template(
            values["messages"],
            tools=values["tools"],
            chat_template=source,
            tokenize=False,
            **kwargs,
            **switches,
        )
    except Exception:
        return None


def check(renderer: Renderer, reference: Any, source: str, chat: ChatInput, shares: list[int], *, beyond: bool) -> None:
    request = {"messages": chat.messages, "tools": chat.tools, "chat_template_kwargs": dict(chat.template_kwargs)}
    try:
        variables, _ = renderer.chats.variables(chat)
    except RenderError as error:
        place = error.param or ""
        assert place.startswith(("messages[", "tools["))
        return
    expected = None if beyond else rendered_by_transformers(reference, source, chat, variables)
    try:
        line: Line | None = renderer.chat(chat, trace=True)
    except RenderError as error:
        line = None
        if "left out" in error.message:  # Firefunction's template takes tools by another name
            return
    changed = expected is not None and (hides_a_system_message(chat, expected) or "\ue000" in expected)
    if not beyond and not changed:
        assert (None if line is None else line.text) == expected
    if line is not None:
        chats.assert_spans_true(request, line.text, line.spans)
        for span in line.spans:
            if span.origin is not Origin.TEMPLATE:
                shares[span.origin is Origin.REQUEST] += span.end - span.start


def hides_a_system_message(chat: ChatInput, text: str) -> bool:
    """Whether the template leaves one out, which then stands in a user message."""
    systems = (message["content"] for message in chat.messages if message["role"] in ("system", "developer"))
    texts = ([content] if isinstance(content, str) else [part["text"] for part in content] for content in systems)
    return any(text_part.strip() not in text for parts in texts for text_part in parts)


@st.composite
def chat_inputs(draw: st.DrawFn) -> ChatInput:
    ending = draw(st.sampled_from(("generate", "generate", "plain", "continue")))
    return ChatInput(
        draw(chats.messages()),
        draw(st.none() | chats.tools),
        add_generation_prompt=ending == "generate",
        continue_final_message=ending == "continue",
        template_kwargs=draw(chats.template_kwargs),
    )


def run_grid(name: str, renderer: Renderer, reference: Any, examples: int) -> None:
    source = TEMPLATES[name].read_text("utf-8")
    shares = [0, 0]  # characters of unknown origin, and from the request

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=(Phase.generate, Phase.shrink),
    )
    @given(chat_inputs())
    def grid(chat: ChatInput) -> None:
        check(renderer, reference, source, chat, shares, beyond=name in BEYOND_TRANSFORMERS)

    grid()
    print(f"{name}: {shares[1] / max(1, sum(shares)):.4%} of {sum(shares)} request characters traced")
    assert shares[1] >= 0.99 * sum(shares)


@pytest.mark.parametrize(("renderer", "name"), [(name, name) for name in TEMPLATES], indirect=["renderer"])
def test_template_is_rendered_as_transformers_renders_it(name: str, renderer: Renderer, reference: Any) -> None:
    run_grid(name, renderer, reference, examples=8)


@pytest.mark.slow
@pytest.mark.parametrize(("renderer", "name"), [(name, name) for name in TEMPLATES], indirect=["renderer"])
def test_template_is_rendered_as_transformers_renders_it_on_a_larger_grid(
    name: str, renderer: Renderer, reference: Any
) -> None:
    run_grid(name, renderer, reference, examples=300)


def test_the_collection_is_there() -> None:
    assert len(TEMPLATES) > 60
    assert all(isinstance(file, Path) for file in TEMPLATES.values())
