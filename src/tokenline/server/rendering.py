"""Layer 1's side of layer 2: which fields reach the chat template, how its complaints come back, and where it runs.

Small prompts are rendered on the event loop; large ones in a thread, so that one client's book does not hold up
everybody's streams. What is certainly too long for the context is not tokenized at all.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tokenline.engine.request import Namespace
from tokenline.render.chat_input import ChatInput
from tokenline.render.errors import RenderError
from tokenline.render.line import Line
from tokenline.server.errors import from_render, invalid
from tokenline.server.messages import check_messages, check_tools
from tokenline.server.sampling import check_text_fits
from tokenline.server.state import ServerState
from tokenline.server.wire import Body, TemplateBody

LARGE_BODY_BYTES = 64 * 1024

T = TypeVar("T")


async def chat_line(state: ServerState, body: TemplateBody, namespace: Namespace, *, to_count: bool = False) -> Line:
    """The line of a conversation. Raises a 400 that names the place at fault.

    `namespace`: within which answers that come back as history keep their ids. `to_count`: it need not fit.
    """
    chat = chat_input(body)

    def make() -> Line:
        if not to_count and state.may_be_too_long(body.size):
            check_text_fits(state, state.renderer.apply_template(chat), "messages")
        return state.renderer.chat(chat, namespace=namespace)

    line = await _render(body, make)
    if len(line) == 0 and not to_count:
        raise invalid("The chat template makes no text of these messages; there is nothing to continue.", "messages")
    return line


async def text_line(
    state: ServerState, body: Body, prompt: str, param: str, namespace: Namespace, *, to_count: bool = False
) -> Line:
    """The line of a raw prompt. Raises a 400.

    `namespace`: whose earlier prompts may make it cheaper. `to_count`: it need not fit.
    """

    def make() -> Line:
        if not to_count:
            check_text_fits(state, prompt, param)
        return state.renderer.text(prompt, namespace=namespace)

    return await _render(body, make)


async def template_text(state: ServerState, body: TemplateBody) -> str:
    """The text of a conversation. Raises a 400 that names the place at fault."""
    chat = chat_input(body)
    return await _render(body, lambda: state.renderer.apply_template(chat))


async def _render(body: Body, make: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(make) if body.size > LARGE_BODY_BYTES else make()
    except RenderError as error:
        raise from_render(error) from None


def chat_input(body: TemplateBody) -> ChatInput:
    """What the template gets to see: messages and tools exactly as they came."""
    if body.messages is None:
        raise invalid("'messages' is missing.", "messages", code="missing_required_parameter")
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
