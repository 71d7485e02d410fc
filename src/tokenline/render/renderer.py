"""Layer 2 as one object: a request becomes a `Line`.

    ChatInput -> normalize -> template -> text -> tokenizer -> Line

The server, the command line and the diagnosis call this and nothing below it. Immutable after loading and safe to
call from several threads.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tokenline.models.errors import ModelError
from tokenline.render.chat_input import ChatInput
from tokenline.render.control import ControlTokens
from tokenline.render.encoder import LineEncoder
from tokenline.render.errors import RenderError
from tokenline.render.line import Line, Span
from tokenline.render.normalize import TemplateNeeds, find_needs, normalize
from tokenline.render.provenance import literal, spans_of
from tokenline.render.template import ChatTemplate, Clock
from tokenline.render.tokenizer import Tokenizer, text_for_utf8
from tokenline.render.traced_json import trace_value

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "


class Renderer:
    """Chat template and tokenizer of one model."""

    def __init__(
        self, tokenizer: Tokenizer, templates: Mapping[str, str] | None = None, *, clock: Clock = datetime.now
    ):
        """`templates`: by name, "default" and perhaps "tool_use"; None for those that came with the tokenizer."""
        self.tokenizer = tokenizer
        self.end_ids: frozenset[int] = tokenizer.vocabulary.end_ids
        self.default_sampling: dict[str, Any] = dict(tokenizer.vocabulary.default_sampling)
        sources = dict(tokenizer.vocabulary.chat_templates if templates is None else templates)
        if not sources and {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys():
            sources["default"] = _CHATML
        try:
            self._templates = {name: ChatTemplate(source, clock=clock) for name, source in sources.items()}
        except RenderError as error:
            raise ModelError(error.message) from error
        self._needs = {name: find_needs(t, self._named_tokens) for name, t in self._templates.items()}
        self._encoder = LineEncoder(tokenizer, ControlTokens(tokenizer.vocabulary, self._templates.values()))

    @classmethod
    def from_model(cls, path: Path, *, chat_template: str | None = None, clock: Clock = datetime.now) -> "Renderer":
        """Load from a Hugging Face folder or a GGUF file. `chat_template` is a template's text that replaces the
        model's own. Raises ModelError.
        """
        templates = None if chat_template is None else {"default": chat_template}
        return cls(Tokenizer.from_model(path), templates, clock=clock)

    @property
    def _named_tokens(self) -> dict[str, str]:
        return self.tokenizer.vocabulary.named

    @property
    def has_template(self) -> bool:
        """Whether chats can be rendered at all; prompts always can."""
        return bool(self._templates)

    def template(self, *, tools: bool = False) -> ChatTemplate:
        """The template for a request, with or without tools. Raises RenderError where the model has none."""
        return self._templates[self._template_name(tools)]

    def needs(self, *, tools: bool = False) -> TemplateNeeds:
        """What that template wants its messages to be like."""
        return self._needs[self._template_name(tools)]

    def _template_name(self, tools: bool) -> str:
        if tools and "tool_use" in self._templates:
            return "tool_use"
        if "default" in self._templates:
            return "default"
        if self._templates:
            names = ", ".join(sorted(self._templates))
            raise RenderError(f"this model has several chat templates ({names}) and none is called default")
        raise RenderError(
            "this model has no chat template and its vocabulary has no ChatML markers; "
            "use /v1/completions, or start the server with --chat-template"
        )

    def apply_template(self, chat: ChatInput) -> str:
        """The rendered chat as text. Raises RenderError."""
        return self._render(chat)[0]

    def chat(self, chat: ChatInput, trace: bool = False, *, namespace: Hashable = None) -> Line:
        """The line of a chat. Raises RenderError.

        `trace`: with the origin of every character. `namespace`: whose remembered ids may be used (see `remember`).
        The ids are the same with and without `trace`.
        """
        text, values = self._render(chat)
        traced: str | None = None
        spans: tuple[Span, ...] = ()
        if trace or self._encoder.control.may_forge(values):
            traced = self._render(chat, traced=True)[0]
            if traced != text:  # then nothing is known of where the text came from: no origins, no control tokens
                traced = text
        if trace and traced is not None:
            spans = spans_of(traced)
        text = text_for_utf8(text)
        ids, offsets = self._encoder.encode(text, traced, namespace)
        return Line(ids, text, offsets, spans)

    def remember(self, line: Line, generated: Sequence[int], *, namespace: Hashable = None) -> None:
        """Show what was generated behind a line of `chat`: when a client sends that text back as history, its line
        will have these ids and no others that spell the same. Call it when an answer is complete, with all its ids.
        """
        closing = [id for id in self.end_ids if self._closes_turns(id)]
        self._encoder.remember(line, generated, self.end_ids, closing, namespace)

    def _closes_turns(self, id: int) -> bool:
        """Whether a template writes this token itself."""
        text = self.tokenizer.token_bytes(id).decode("utf-8", "replace")
        names = [name for name, token in self._named_tokens.items() if token == text]
        return any(
            any(text in literal for literal in template.literals) or any(map(template.mentions, names))
            for template in self._templates.values()
        )

    def _render(self, chat: ChatInput, *, traced: bool = False) -> tuple[str, list[Any]]:
        """The text, and the request's values that went into it."""
        template_name = self._template_name(bool(chat.tools))
        template = self._templates[template_name]
        named: Mapping[str, str] = self._named_tokens
        render = template.render
        try:
            if traced:
                named = {name: literal(text) for name, text in named.items()}
                chat = _traced(chat)
                render = template.render_traced
            values = normalize(chat, self._needs[template_name])
        except RecursionError as error:
            raise RenderError("the request is nested too deeply") from error
        variables = {
            **named,
            "documents": None,
            **chat.template_kwargs,
            **values,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        sent = [*values.values(), chat.template_kwargs]
        if chat.continue_final_message:
            return _render_open_end(render, variables, len(values["messages"]) - 1), sent
        try:
            return render(variables), sent
        except RenderError as error:
            raise _with_place(error, render, variables) from error

    def text(self, prompt: str) -> Line:
        """The line of a raw prompt (/v1/completions): BOS where the tokenizer asks for it, unless it is there already.

        Special tokens in it are read as such, as vLLM does it: whoever writes a raw prompt writes all of it.
        """
        prompt = text_for_utf8(prompt)
        ids, offsets = self.tokenizer.encode_with_offsets(prompt)
        prefix = list(self.tokenizer.vocabulary.prefix_ids)
        if prefix and ids[: len(prefix)] != prefix:
            ids = [*prefix, *ids]
            offsets = np.concatenate((np.zeros((len(prefix), 2), dtype=np.int32), offsets))
        return Line(np.array(ids, dtype=np.int32), prompt, offsets)

    def ids(self, ids: Sequence[int]) -> Line:
        """The line of a prompt that is given as ids. Raises RenderError for an id outside the vocabulary."""
        size = self.tokenizer.vocab_size
        for i, id in enumerate(ids):
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < size:
                raise RenderError(f"prompt[{i}] is {id!r}; ids are integers from 0 to {size - 1}", f"prompt[{i}]")
        text, offsets = self.tokenizer.decode_with_offsets(ids)
        return Line(np.array(ids, dtype=np.int32), text, offsets)


def _traced(chat: ChatInput) -> ChatInput:
    """The same request with texts that know where in it they stand."""
    return ChatInput(
        trace_value(chat.messages, "/messages", constants=False),
        None if chat.tools is None else trace_value(chat.tools, "/tools"),
        chat.add_generation_prompt,
        chat.continue_final_message,
        trace_value(chat.template_kwargs, "/chat_template_kwargs", constants=False),
    )


def _render_open_end(render: Callable[[Mapping[str, Any]], str], variables: dict[str, Any], last: int) -> str:
    """Render with the last message's content left open: a mark behind it shows where the text is to be cut."""
    place = f"messages[{last}].content"
    messages = list(variables["messages"])
    final = dict(messages[-1])
    content = final.get("content")
    if isinstance(content, list) and content:
        part = dict(content[-1])
        shown = part["text"]
        part["text"] = shown + _CONTINUE
        final["content"] = [*content[:-1], part]
    elif isinstance(content, str):
        shown = content
        final["content"] = shown + _CONTINUE
    else:
        raise RenderError("continue_final_message needs content in the last message", place)
    text = render({**variables, "messages": [*messages[:-1], final]})
    cut = text.rfind(_CONTINUE.strip())
    if cut < 0 or shown.strip() not in text:
        raise RenderError("the chat template does not show the last message's end, so it cannot be continued", place)
    if text.startswith(_CONTINUE, cut):
        return text[:cut]
    return text[:cut].rstrip()  # the template trimmed the mark's own space, so it would have trimmed the content's


def _with_place(
    error: RenderError, render: Callable[[Mapping[str, Any]], str], variables: dict[str, Any]
) -> RenderError:
    """The same error with the first message that brings it about, found by rendering shorter chats."""
    messages = variables["messages"]

    def fails(count: int) -> bool:
        try:
            render({**variables, "messages": messages[:count], "add_generation_prompt": False})
        except RenderError as shorter:
            return shorter.message == error.message
        return False

    low, high = 1, len(messages)
    if not fails(high):
        return error
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle + 1, high)
    place = f"messages[{low - 1}]"
    return RenderError(f"{place}: {error.message}", place)
