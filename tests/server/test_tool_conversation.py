"""Five turns with tools and thinking on Qwen3's own template: each finds all that the last one left to find."""

import dataclasses
from typing import Any, cast

from tests.server.conftest import CHAT, Tiny, serving
from tests.server.helpers import user
from tests.server.scripted import Scripted
from tests.sources import llama_cpp_source
from tokenline.models.base import Model
from tokenline.render.renderer import Renderer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "今天的天气",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
CITIES = ["Oslo", "上海", "Zürich 🏔", "Ghent"]


def generated(city: str) -> str:
    """A thought and a call as the model writes them, which is as the template writes them."""
    call = f'{{"name": "weather", "arguments": {{"city": "{city}", "days": 2}}}}'
    return f"<think>\nFirst {city}, 然后再看。\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


async def test_each_of_five_turns_hits_to_the_last_possible_token(tiny: Tiny):
    model = Scripted(tiny.model)
    template = (llama_cpp_source() / "templates" / "Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    renderer = Renderer.from_model(tiny.path, chat_template=template)
    end = renderer.tokenizer.special_tokens["<|im_end|>"]
    messages: list[dict[str, Any]] = user("How is the weather in four cities?")
    said = [*map(generated, CITIES), "<think>\nThat is all.\n</think>\n\nMild everywhere. 都很好。"]
    held, choice = 0, {}
    async with serving(dataclasses.replace(tiny, renderer=renderer), live=False, model=cast(Model, model)) as served:
        for turn, text in enumerate(said):
            body = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 400}
            counted = (await served.http.post("/tokenize", json={"messages": messages, "tools": TOOLS})).json()
            # Every other answer is spelled letter by letter, as no encoder would, so that only its own ids can hit.
            pieces = list(text) if turn % 2 else [text]
            ids = [token for piece in pieces for token in renderer.tokenizer.encode(piece)]
            model.say([*ids, end], after=counted["count"])
            answer = (await served.http.post(CHAT, json={**body, "return_token_ids": True})).json()
            usage, choice = answer["usage"], answer["choices"][0]
            assert choice["token_ids"] == [*ids, end]
            assert usage["prompt_tokens"] == counted["count"]
            if turn:
                assert usage["prompt_tokens_details"]["cached_tokens"] == held, f"turn {turn}"
            held = usage["prompt_tokens"] + usage["completion_tokens"] - 1  # the last id was never computed
            message = choice["message"]
            assert message["reasoning_content"]
            messages = [*messages, message]
            for call in message.get("tool_calls", ()):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{15 + turn} degrees"})
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Mild everywhere. 都很好。"
