"""Layer 1's side of the chat template: which fields of a request reach it, and how its complaints come back."""

from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.line import Line
from tokenline.server.errors import from_render, invalid
from tokenline.server.messages import check_messages, check_tools
from tokenline.server.state import ServerState
from tokenline.server.wire import TemplateBody


def render_chat(state: ServerState, body: TemplateBody) -> Line:
    """The line of a conversation. Raises a 400 that names the place at fault."""
    chat = chat_input(body)
    try:
        return state.renderer.chat(chat)
    except RenderError as error:
        raise from_render(error) from None


def apply_template(state: ServerState, body: TemplateBody) -> str:
    """The text of a conversation. Raises a 400 that names the place at fault."""
    chat = chat_input(body)
    try:
        return state.renderer.apply_template(chat)
    except RenderError as error:
        raise from_render(error) from None


def chat_input(body: TemplateBody) -> ChatInput:
    """What the template gets to see: messages and tools exactly as they came."""
    check_messages(body.messages)
    check_tools(body.tools or [])
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise invalid(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true: the answer either continues the "
            "last message or begins a new one.",
            "continue_final_message",
        )
    opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return ChatInput(
        messages=body.messages,
        tools=body.tools or None,
        add_generation_prompt=opens,
        continue_final_message=continues,
        template_kwargs=kwargs,
    )
