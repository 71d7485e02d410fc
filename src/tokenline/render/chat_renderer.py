"""A request's chat to text: normalised, then rendered by the model's template, plainly or with provenance.

Knows templates and messages; knows no tokens but the names that templates have for some. `Renderer` adds the tokenizer;
`stability` examines templates with this alone.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tokenline.render.chat_input import ChatInput
from tokenline.render.check import check_chat
from tokenline.render.errors import RenderError
from tokenline.render.left_out import left_out, seems_whole
from tokenline.render.needs import TemplateNeeds, find_needs
from tokenline.render.normalize import Normalized, insert_texts, normalize
from tokenline.render.provenance import from_request, literal
from tokenline.render.sandbox import Clock
from tokenline.render.template import ChatTemplate
from tokenline.render.thinking import find_thinking, thinking_variables
from tokenline.render.tool_schemas import ToolForms
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
        self._thinking = {name: find_thinking(template, named_tokens) for name, template in self.templates.items()}
        self._tool_forms = {name: ToolForms(self._show_tool(template)) for name, template in self.templates.items()}
        self._clock = clock

    def _show_tool(self, template: ChatTemplate) -> Callable[[Mapping[str, Any]], str | None]:
        def show(tool: Mapping[str, Any]) -> str | None:
            return template.attempt([{"role": "user", "content": "-"}], self.named_tokens, tools=[tool])

        return show

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
        """Render a chat. Raises RenderError, also where the template leaves out something of it."""
        check_chat(chat)
        time = now or self.now()
        rendering = self._render(chat, traced, time)
        if not self.template(tools=bool(chat.tools)).mentions("messages"):
            return rendering  # no chat template at all: it leaves out everything
        if not traced and seems_whole(rendering.text, chat):
            return rendering
        places = left_out((rendering if traced else self._render(chat, True, time)).text, chat)
        hidden = {place[:2] for place in places if place[2:3] == ("content",)}
        systems = frozenset(
            index
            for index, message in enumerate(chat.messages)
            if message["role"] in ("system", "developer") and ("messages", index) in hidden
        )
        if systems:
            rendering = self._render(chat, traced, time, systems)
            places = left_out((rendering if traced else self._render(chat, True, time, systems)).text, chat)
        if places:
            raise RenderError(places[0], "is left out by this model's chat template.", code="unsupported_value")
        return rendering

    def _render(
        self, chat: ChatInput, traced: bool, time: datetime, hidden_systems: Set[int] = frozenset()
    ) -> Rendering:
        try:
            if traced:
                chat = _traced(chat)
            variables, normalized = self.variables(chat, traced=traced, hidden_systems=hidden_systems)
        except RecursionError as error:
            raise RenderError((), "The request is nested too deeply.") from error
        variables["strftime_now"] = (lambda format: literal(time.strftime(format))) if traced else time.strftime
        sent = [normalized.messages, normalized.tools, chat.template_kwargs, chat.reasoning_effort]
        template = self.template(tools=bool(chat.tools))
        render = template.render_traced if traced else template.render
        try:
            if chat.continue_final_message:
                text = _render_open_end(render, variables, normalized)
            else:
                text = render(variables)
        except RenderError as error:
            raise error if error.path else _with_place(error, render, variables, normalized) from error
        text = insert_texts(text, normalized.texts, self.needs(tools=bool(chat.tools)))
        return Rendering(text if traced else str.__str__(text), sent)

    def variables(
        self, chat: ChatInput, *, traced: bool = False, hidden_systems: Set[int] = frozenset()
    ) -> tuple[dict[str, Any], Normalized]:
        """What the template is given for a checked chat, but for the clock. `traced`: the chat's texts are."""
        name = self._name(bool(chat.tools))
        thinking, command = thinking_variables(chat, self._thinking[name])
        normalized = normalize(
            chat, self._needs[name], self._tool_forms[name], hidden_systems=hidden_systems, command=command
        )
        variables = {
            **({name: literal(text) for name, text in self.named_tokens.items()} if traced else self.named_tokens),
            "documents": None,
            **thinking,
            "messages": normalized.messages,
            "tools": normalized.tools,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        return variables, normalized


def _traced(chat: ChatInput) -> ChatInput:
    """The same request with texts that know where in it they stand."""
    effort = chat.reasoning_effort
    return replace(
        chat,
        messages=trace_value(chat.messages, "/messages", constants=False),
        tools=None if chat.tools is None else trace_value(chat.tools, "/tools"),
        template_kwargs=trace_value(chat.template_kwargs, "/chat_template_kwargs", constants=False),
        reasoning_effort=None if effort is None else from_request(effort, "/reasoning_effort"),
    )


def _render_open_end(
    render: Callable[[Mapping[str, Any]], str], variables: dict[str, Any], normalized: Normalized
) -> str:
    """Render with the last message's content left open: a mark behind it shows where the text is to be cut."""
    path = ("messages", normalized.sources[-1], "content")
    messages = normalized.messages
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
    error: RenderError,
    render: Callable[[Mapping[str, Any]], str],
    variables: dict[str, Any],
    normalized: Normalized,
) -> RenderError:
    """The same error with the first message that brings it about, found by rendering shorter chats."""
    messages = normalized.messages

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
    return RenderError(("messages", normalized.sources[low - 1]), "cannot be rendered. ", *error.parts, code=error.code)
