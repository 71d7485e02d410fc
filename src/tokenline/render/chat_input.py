"""What a chat completion request asks of the template: messages, tools and switches, as the client sent them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatInput:
    """The part of a request that decides its line. JSON values, not yet checked: `normalize` does that."""

    messages: Any  # an array of messages, if the client has done it right
    tools: Sequence[Any] | None = None
    add_generation_prompt: bool = True  # end the line with the opening of an assistant turn
    continue_final_message: bool = False  # leave the last message open for the model to go on with
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # `chat_template_kwargs`: what they say wins
    reasoning_effort: str | None = None  # "none": no reasoning
    thinking: bool | None = None  # whether to reason; each template has another variable for it
