"""A request's chat to text: normalised, then rendered by the model's template, plainly or with provenance.

Knows templates and messages; knows no tokens but the names that templates have for some. `Renderer` adds the tokenizer;
`stability` examines templates with this alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tokenline.render.chat_input import ChatInput
from tokenline.render.check import check_chat
from tokenline.render.errors import RenderError
from tokenline.render.normalize import TemplateNeeds, find_needs, normalize
from tokenline.render.provenance import literal
from tokenline.render.sandbox import Clock
from tokenline.render.template import ChatTemplate
from tokenline.render.traced_json import trace_value

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered chat. With provenance, `text` is traced."""

    text: str
    sent: list[Any]  # the request's values that went into it, as normalised


class ChatRenderer:
    """The chat templates of one model. Immutable, safe to use from several threads."""

    def __init__(self, sources: Mapping[str, str], named_tokens: Mapping[str, str], *, clock: Clock = datetime.now):
        """`sources`: templates by name, "default" and perhaps "tool_use". `named_tokens`: what they may call by name,
        {"bos_token": "<s>", ...}. Raises RenderError for one that is no template.
        """
        self.named_tokens = dict(named_tokens)
        self.templates = {name: ChatTemplate(source, clock=clock) for name, source in sources.items()}
        self._needs = {name: find_needs(template, named_tokens) for name, template in self.templates.items()}
        self._clock = clock

    def template(self, *, tools: bool = False) -> ChatTemplate:
        """The template for a request, with or without tools. Raises RenderError where the model has none."""
        return self.templates[self._name(tools)]

    def needs(self, *, tools: bool = False) -> TemplateNeeds:
        """What that template wants its messages to be like."""
        return self._needs[self._name(tools)]

    def _name(self, tools: bool) -> str:
        if tools and "tool_use" in self.templates:
            return "tool_use"
        if "default" in self.templates:
            return "default"
        if self.templates:
            names = ", ".join(sorted(self.templates))
            raise RenderError((), f"This model has several chat templates ({names}) and none is named default.")
        raise RenderError(
            (), "This model has no chat template, and its tokenizer no ChatML markers: a chat template must be given."
        )

    def now(self) -> datetime:
        """The time, for renderings of one request to agree on it."""
        return self._clock()

    def render(self, chat: ChatInput, *, traced: bool = False, now: datetime | None = None) -> Rendering:
        """Render a chat. Raises RenderError."""
        check_chat(chat)
        name = self._name(bool(chat.tools))
        template = self.templates[name]
        time = now or self.now()
        named: Mapping[str, Any] = {**self.named_tokens, "strftime_now": time.strftime}
        render = template.render
        try:
            if traced:
                named = {name: literal(text) for name, text in self.named_tokens.items()}
                named["strftime_now"] = lambda format: literal(time.strftime(format))
                chat = _traced(chat)
                render = template.render_traced
            values = normalize(chat, self._needs[name])
        except RecursionError as error:
            raise RenderError((), "The request is nested too deeply.") from error
        variables = {
            **named,
            "documents": None,
            **chat.template_kwargs,
            **values,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        sent = [*values.values(), chat.template_kwargs]
        if chat.continue_final_message:
            return Rendering(_render_open_end(render, variables, len(values["messages"]) - 1), sent)
        try:
            return Rendering(render(variables), sent)
        except RenderError as error:
            raise _with_place(error, render, variables) from error


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
    path = ("messages", last, "content")
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
        raise RenderError(path, "must be text for ", ("continue_final_message",), " to continue.")
    text = render({**variables, "messages": [*messages[:-1], final]})
    cut = text.rfind(_CONTINUE.strip())
    if cut < 0 or shown.strip() not in text:
        raise RenderError(path, "cannot be continued: the chat template does not write its end.")
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
            return shorter.parts == error.parts
        return False

    low, high = 1, len(messages)
    if not fails(high):
        return error
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle + 1, high)
    return RenderError(("messages", low - 1), "cannot be rendered. ", *error.parts, code=error.code)
