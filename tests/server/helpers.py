"""Reading answers: streams put together as a client would do it, and waiting for the engine to come to rest."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.limits import HANG_S
from tokenline.models.base import Batch, KVPool, Model


class Slow:
    """The real model with steps that take `pause_s` longer, so that what is to happen in the middle of an answer does,
    however busy the machine is.
    """

    def __init__(self, model: Model, pause_s: float = 0.01):
        self._model = model
        self.pause_s = pause_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: Batch, kv: KVPool) -> Any:
        time.sleep(self.pause_s)
        return self._model.forward(batch, kv)


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def events(text: str) -> list[Any]:
    """The data of each event of a stream, parsed; "[DONE]" as it is. Nothing else may be in it but comments."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        if not block or block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def stream(http: httpx.AsyncClient, url: str, body: dict[str, Any], **options: Any) -> list[Any]:
    """The chunks of a streamed answer, without the last `[DONE]`, which must be there."""
    response = await http.post(url, json={**body, "stream": True}, **options)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    return chunks


def joined(chunks: list[Any], choice: int = 0) -> str:
    """The text of one choice of a stream, chat or text."""
    text = ""
    for chunk in chunks:
        for part in chunk["choices"]:
            if part["index"] == choice:
                text += part["text"] if "text" in part else part["delta"].get("content") or ""
    return text


def finish_reasons(chunks: list[Any]) -> dict[int, str]:
    """Choice to finish reason; each may be given once only."""
    reasons: dict[int, str] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            if part["finish_reason"] is not None:
                assert part["index"] not in reasons
                reasons[part["index"]] = part["finish_reason"]
    return reasons


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail if it never does."""
    deadline = asyncio.get_running_loop().time() + HANG_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came to pass"
        await asyncio.sleep(0.005)
