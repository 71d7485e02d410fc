"""The walk of the README: four requests to a running server, and what of each was cached.

make serve                                   # in one terminal
.venv/bin/pip install openai                 # in another; `make test` has done so already
.venv/bin/python examples/walk.py
"""

import os
import secrets
import sys
from typing import Any

from openai import OpenAI

client = OpenAI(
    base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1",
    api_key=os.environ.get("TOKENLINE_API_KEY", "none"),
)
model = client.models.list().data[0].id
own_cache = {"cache_salt": secrets.token_hex(8)}  # nothing that the server was asked before is found


def ask(name: str, messages: list[Any]) -> str:
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=24, temperature=0, extra_body=own_cache
    )
    usage: Any = answer.usage
    cached = usage.prompt_tokens_details.cached_tokens
    print(
        f"{name}  cached {cached:3} of {usage.prompt_tokens:3} prompt tokens, {usage.prompt_tokens - cached:3} computed"
    )
    return answer.choices[0].message.content or ""


system = {"role": "system", "content": "你是助手"}
today = {"role": "user", "content": "今天星期几"}
tomorrow = {"role": "user", "content": "明天呢"}

reply = {"role": "assistant", "content": ask("A", [system, today])}
first = ask("B", [system, today, reply, tomorrow])
again = ask("C", [system, today, reply, tomorrow])
assert again == first, "a hit never changes the answer"
ask("D", [{"role": "system", "content": "2026-11-29 10:41 你是助手"}, today, reply, tomorrow])
