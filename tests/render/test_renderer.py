"""Layer 2 as its callers see it: lines of chats, prompts and ids; answers that come back keep their ids."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.render import chats
from tests.render.models import renderer, template_source, tokenizer, vocabulary_file, write_sentencepiece
from tests.tiny import write_tokenizer
from tokenline.ids import common_prefix
from tokenline.models.errors import ModelError
from tokenline.render.chat_input import ChatInput
from tokenline.render.chat_renderer import CHATML
from tokenline.render.errors import RenderError
from tokenline.render.line import Origin
from tokenline.render.memory import IdMemory
from tokenline.render.renderer import Renderer
from tokenline.render.tokenizer import Tokenizer


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def test_the_walk_of_the_readme(smollm2_renderer: Renderer) -> None:
    system = {"role": "system", "content": "你是助手"}
    first = smollm2_renderer.chat(ChatInput([system, user("今天星期几")]), trace=True)
    assert (
        first.text
        == "<|im_start|>system\n你是助手<|im_end|>\n<|im_start|>user\n今天星期几<|im_end|>\n<|im_start|>assistant\n"
    )
    assert first.ids.dtype == first.offsets.dtype == np.int32
    assert smollm2_renderer.tokenizer.decode(first.ids.tolist()) == first.text
    assert {span.pointer for span in first.spans if span.origin is Origin.REQUEST} == {
        "/messages/0/role",
        "/messages/0/content",
        "/messages/1/role",
        "/messages/1/content",
    }
    second = smollm2_renderer.chat(ChatInput([system, user("明天呢")]))
    shared = common_prefix(first.ids, second.ids)
    assert smollm2_renderer.tokenizer.decode(first.ids[:shared].tolist()).startswith(
        "<|im_start|>system\n你是助手<|im_end|>"
    )
    timed = smollm2_renderer.chat(ChatInput([{"role": "system", "content": "12:07 你是助手"}, user("今天星期几")]))
    assert common_prefix(first.ids, timed.ids) == 3
    assert smollm2_renderer.end_ids == {0, 2}


def test_begin_token_comes_once_and_first() -> None:
    subject = renderer("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct")
    bos = subject.tokenizer.special_tokens["<|begin_of_text|>"]
    ids = subject.chat(ChatInput([user("test")])).ids.tolist()
    assert ids[0] == bos
    assert ids.count(bos) == 1
    for prompt in ("test", "<|begin_of_text|>test"):
        ids = subject.text(prompt).ids.tolist()
        assert ids[0] == bos
        assert ids.count(bos) == 1


def test_raw_prompts(smollm2_renderer: Renderer) -> None:
    line = smollm2_renderer.text("a <|im_end|> b")
    assert 2 in line.ids.tolist()
    assert line.text == "a <|im_end|> b"
    assert smollm2_renderer.text("").ids.tolist() == []
    spm = Renderer(tokenizer("llama-spm"), {})
    line = spm.text("Hello")
    assert line.ids.tolist() == [1, 15043]
    assert line.offsets.tolist() == [[0, 0], [0, 5]]
    assert smollm2_renderer.text("x\ud800").text == "x\ufffd"


def test_a_prompt_that_goes_on_is_encoded_from_there(
    smollm2_renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Renderer(smollm2_renderer.tokenizer)
    encode = subject.tokenizer.encode_with_offsets
    encoded: list[str] = []

    def spy(text: str, **options: Any):
        encoded.append(text)
        return encode(text, **options)

    monkeypatch.setattr(subject.tokenizer, "encode_with_offsets", spy)
    story = "".join(f"Once upon a time 你好 {n}, <|im_start|> it's\n\n told 🎉 again. " for n in range(200))
    for namespace, text, most in [
        (None, story, len(story)),
        (None, story + "The end.", 1100),
        (None, story[:-500] + "Another end.", 1100),
        ("b", story, len(story)),
    ]:
        encoded.clear()
        line = subject.text(text, namespace=namespace)
        assert len("".join(encoded)) <= most
        assert (most == len(story)) == (encoded == [text])
        ids, offsets = encode(text)
        assert line.ids.tolist() == ids
        assert np.array_equal(line.offsets, offsets)


@pytest.mark.parametrize("vocabulary", ["llama-bpe", "llama-spm", "qwen2", "deepseek-llm"])
def test_prompts_that_share_a_beginning_have_the_ids_of_their_whole_text(vocabulary: str) -> None:
    subject = Renderer(tokenizer(vocabulary))
    words = st.lists(
        st.sampled_from(["word", " a b", "é", "e\u0301", " 12", "\n\n", " it's", "  ", "你好", "<s>", "x"])
    )
    whole = subject.tokenizer.encode

    @settings(max_examples=60)
    @given(
        st.lists(words.map("".join).map(lambda text: text * 150), max_size=3), st.lists(words.map("".join), max_size=3)
    )
    def check(starts: list[str], ends: list[str]) -> None:
        for end in ends:
            text = "".join(starts) + end
            ids = subject.text(text).ids.tolist()
            prefix = list(subject.tokenizer.vocabulary.prefix_ids)
            plain = whole(text, parse_special=True)
            assert ids == (plain if plain[: len(prefix)] == prefix else prefix + plain)

    check()


def test_prompts_given_as_ids(smollm2_renderer: Renderer) -> None:
    line = smollm2_renderer.text("你好 world")
    same = smollm2_renderer.ids(line.ids.tolist())
    assert same.text == line.text
    assert same.offsets.tolist() == line.offsets.tolist()
    for bad in (-1, smollm2_renderer.tokenizer.vocab_size, True, "1", 1.0):
        with pytest.raises(RenderError) as caught:
            smollm2_renderer.ids([1, bad])  # type: ignore[list-item]
        assert caught.value.param == "prompt[1]"
        with pytest.raises(RenderError) as caught:
            smollm2_renderer.ids([1, bad], ("prompt", 7))  # type: ignore[list-item]
        assert caught.value.path == ("prompt", 7, 1)
    with pytest.raises(RenderError, match="from 0 to 99; got 100"):
        smollm2_renderer.ids([99, 100], vocab_size=100)


def test_a_line_to_generate_from_is_not_empty(smollm2_renderer: Renderer) -> None:
    subject = Renderer(smollm2_renderer.tokenizer, {"default": "{# nothing #}"})
    assert len(subject.chat(ChatInput([user("Hi")]))) == 0
    with pytest.raises(RenderError, match="empty prompt") as caught:
        subject.chat(ChatInput([user("Hi")]), for_generation=True)
    assert caught.value.path == ("messages",)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    assert Renderer(tokenizer("qwen2"), {}).apply_template(ChatInput([user("Hi")])) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    bare = Renderer(tokenizer("gpt-2"))
    with pytest.raises(RenderError, match="no chat template"):
        bare.chat(ChatInput([user("Hi")]))
    assert bare.text("Hi").ids.tolist()


def test_named_templates() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    subject = Renderer(tokenizer("qwen2"), {"default": "plain", "tool_use": "with tools"})
    assert subject.apply_template(ChatInput([user("Hi")])) == "plain"
    assert subject.apply_template(ChatInput([user("Hi")], [tool])) == "with tools"
    with pytest.raises(RenderError, match="several chat templates"):
        Renderer(tokenizer("qwen2"), {"rag": "x"}).chat(ChatInput([user("Hi")]))


def test_a_folder(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    subject = Renderer.from_model(tmp_path)
    assert subject.default_sampling == {"temperature": 0.6, "top_k": 20}
    assert {subject.tokenizer.special_tokens[token] for token in ("<|im_end|>", "<|endoftext|>")} <= subject.end_ids
    assert subject.chat(ChatInput([user("Hi")])).text.endswith("<|im_start|>assistant\n")
    own = Renderer.from_model(tmp_path, chat_template="{{ messages[0].content }}!")
    assert own.chat(ChatInput([user("Hi")])).text == "Hi!"
    with pytest.raises(ModelError, match="error in line 1"):
        Renderer.from_model(tmp_path, chat_template="{% if %}")


def test_all_renderings_of_a_request_agree_on_the_time() -> None:
    """The traced rendering that a `<` asks for must not differ from the plain one because a second has passed."""
    times = iter(datetime(2026, 1, 1) + timedelta(seconds=n) for n in range(1000))
    template = "{{ strftime_now('%H:%M:%S') }}<|im_start|>{{ messages[0].content }}<|im_end|>"
    subject = Renderer(tokenizer("qwen2"), {"default": template}, clock=lambda: next(times))
    line = subject.chat(ChatInput([user("a < b")]), trace=True)
    special = subject.tokenizer.special_tokens
    assert [id for id in line.ids.tolist() if id in special.values()] == [
        special["<|im_start|>"],
        special["<|im_end|>"],
    ]
    assert not any(span.origin is Origin.UNKNOWN for span in line.spans)


# --- what is remembered ----------------------------------------------------------------------------------------------


def other_ids(subject: Renderer, text: str) -> list[int]:
    """Ids that spell a text in another way than the tokenizer would: character by character."""
    return [id for character in text for id in subject.tokenizer.encode(character)]


def test_an_answer_that_comes_back_keeps_its_ids(smollm2_renderer: Renderer) -> None:
    subject = Renderer(smollm2_renderer.tokenizer)
    chat = [user("Name a city")]
    prompt = subject.chat(ChatInput(chat))
    answer = "Brussels, of course"
    generated = [*other_ids(subject, answer), 2]
    assert generated[:-1] != subject.tokenizer.encode(answer)
    subject.remember(prompt, generated)
    later = subject.chat(ChatInput([*chat, assistant(answer), user("Another")]))
    assert later.ids.tolist()[: len(prompt.ids) + len(generated)] == [*prompt.ids.tolist(), *generated]
    assert subject.tokenizer.decode(later.ids.tolist()) == later.text
    # offsets are right, so the tokens' texts are the text
    assert "".join(later.text[a:b] for a, b in later.offsets.tolist()) == later.text
    # an edited answer, another caller, and a chat that only begins alike get the plain ids
    for changed, namespace in (("Brussels, of course!", None), (answer, "another caller")):
        line = subject.chat(ChatInput([*chat, assistant(changed), user("Another")]), namespace=namespace)
        assert line.ids.tolist() == subject.tokenizer.encode(line.text, parse_special=True)


@pytest.mark.parametrize(
    ("vocabulary", "template", "closing"),
    [
        ("qwen2", "Qwen-Qwen3-0.6B", "<|im_end|>"),
        ("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>"),
        ("llama-spm", "mistralai-Mistral-Nemo-Instruct-2407", "</s>"),
        ("phi-3", "microsoft-Phi-3.5-mini-instruct", "<|end|>"),
    ],
)
def test_answers_keep_their_ids_in_every_family(vocabulary: str, template: str, closing: str) -> None:
    subject = renderer(vocabulary, template)
    end = subject.tokenizer.special_tokens[closing]
    assert end in subject.end_ids
    chat = [user("Name a city")]
    line = subject.chat(ChatInput(chat))
    bytes_of = subject.tokenizer.token_bytes
    known = {bytes_of(id): id for id in range(subject.tokenizer.vocab_size)}
    answer = "Brussels"
    generated = [*(known[character.encode()] for character in answer), end]
    subject.remember(line, generated)
    later = subject.chat(ChatInput([*chat, assistant(answer), user("Another")]))
    assert later.ids.tolist()[: len(line.ids) + len(generated)] == [*line.ids.tolist(), *generated]
    assert later.text.startswith(line.text)
    # behind the answer all is as it would be
    plain = renderer(vocabulary, template).chat(ChatInput([*chat, assistant(answer), user("Another")]))
    rest = plain.ids.tolist().index(end, len(line.ids))
    assert later.ids.tolist()[len(line.ids) + len(generated) :] == plain.ids.tolist()[rest + 1 :]


@pytest.mark.parametrize(
    ("ids", "known"),
    [([], False), ([2], False), ([198], True), ("cut", True), ("unfinished", True)],
)
def test_answers_of_every_ending(smollm2_renderer: Renderer, ids: Any, known: bool) -> None:
    """Empty, cut inside a character (which the client gets as U+FFFD), without an end token."""
    memory = IdMemory()
    subject = Renderer(smollm2_renderer.tokenizer, memory=memory)
    chat = [user("x")]
    line = subject.chat(ChatInput(chat))
    before = len(memory)
    if ids == "cut":
        ids = subject.tokenizer.encode("🙂")[:-1]
    elif ids == "unfinished":
        ids = other_ids(subject, "and so on")
    subject.remember(line, ids)
    assert (len(memory) > before) == known
    if known:
        text = subject.tokenizer.decode(ids)
        later = subject.chat(ChatInput([*chat, assistant(text), user("y")]))
        assert later.ids.tolist()[len(line.ids) :][: len(ids)] == ids


FAMILIES = [
    ("qwen2", "Qwen-Qwen3-0.6B"),
    ("llama-bpe", "meta-llama-Llama-3.1-8B-Instruct"),
    ("llama-spm", "mistralai-Mistral-Nemo-Instruct-2407"),
    ("phi-3", "microsoft-Phi-3.5-mini-instruct"),
]


@pytest.mark.parametrize(("vocabulary", "template"), FAMILIES)
def test_memory_never_changes_a_line(vocabulary: str, template: str) -> None:
    """Whatever was rendered before, a line has the ids and offsets that it has on its own."""
    check_memory(lambda memory: renderer(vocabulary, template, memory))


@pytest.mark.parametrize("metaspace", [False, True])
def test_memory_never_changes_a_line_of_a_folder(tmp_path: Path, metaspace: bool) -> None:
    reader = Tokenizer.from_model(write_sentencepiece(tmp_path, metaspace=metaspace))
    templates = {"default": template_source("mistralai-Mistral-Nemo-Instruct-2407")}
    check_memory(lambda memory: Renderer(reader, templates, memory=memory))


def check_memory(renderer_with: Callable[[IdMemory], Renderer]) -> None:
    memory = IdMemory()
    subject, fresh = renderer_with(memory), renderer_with(IdMemory(max_bytes=0))

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(chats.messages(), st.none() | chats.tools)
    def grow(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
        for end in range(1, len(messages) + 1):
            chat = ChatInput(messages[:end], tools)
            try:
                expected = fresh.chat(chat)
            except RenderError:
                continue
            for _ in range(2):
                line = subject.chat(chat)
                assert line.text == expected.text
                assert line.ids.tolist() == expected.ids.tolist()
                assert line.offsets.tolist() == expected.offsets.tolist()

    grow()
    assert len(memory) > 0


def test_five_turns_with_tools_and_thinking_share_every_token() -> None:
    """A conversation that goes on within one user turn, as agents do: each prompt begins with all ids before it."""
    subject = renderer("qwen2", "Qwen-Qwen3-0.6B")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    messages: list[dict[str, Any]] = [user("Find the key")]
    end = subject.tokenizer.special_tokens["<|im_end|>"]
    line = subject.chat(ChatInput(messages, tools))
    for turn in range(5):
        arguments = f'{{"room":{turn} }}'
        reasoning = f"Perhaps it is in room {turn}."
        rest = f'\n</think>\n\n<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'
        encode = subject.tokenizer.encode
        generated = [*encode("<think>\n"), *other_ids(subject, reasoning), *encode(rest), end]
        subject.remember(line, generated)
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": arguments}}
        messages += [
            assistant("", reasoning_content=reasoning, tool_calls=[call]),
            {"role": "tool", "tool_call_id": f"c{turn}", "content": "Nothing <here>"},
        ]
        later = subject.chat(ChatInput(messages, tools))
        assert common_prefix(later.ids, line.ids) == len(line.ids)
        assert later.ids.tolist()[len(line.ids) :][: len(generated)] == generated
        line = later


def test_a_renderer_says_what_to_check_its_templates_by() -> None:
    file = vocabulary_file("qwen2")
    assert Renderer.from_model(file).template_source == str(file)
    assert Renderer.from_model(file, chat_template=CHATML).template_source == "the file of --chat-template"
