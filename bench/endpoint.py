"""One server under test, seen as its clients see it: an OpenAI-compatible base URL and a stopwatch."""

import asyncio
import json
import time
from dataclasses import dataclass, field

import httpx


@dataclass(slots=True)
class Answer:
    """What one request got, and when (seconds since it was sent)."""

    text: str = ""
    sent_s: float = 0.0  # time.perf_counter()
    arrivals_s: list[float] = field(default_factory=list)  # of each chunk with text
    total_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prompt_ids: list[int] = field(default_factory=list)  # if they were asked for and the server gives them
    ids: list[int] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        return self.arrivals_s[0] if self.arrivals_s else self.total_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Over the time between the first and the last token."""
        return (self.completion_tokens - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


class Endpoint:
    """Sends streaming requests to one base URL, greedy and ignoring end tokens, so that every answer is full."""

    def __init__(self, name: str, url: str, api_key: str | None = None, pid: int | None = None):
        """`pid`: the server's process, if it is one of this machine."""
        self.name = name
        self.url = url
        self.pid = pid
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=600, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._model: str | None = None

    async def model(self) -> str:
        if self._model is None:
            response = await self._client.get("/v1/models")
            self._model = str(response.raise_for_status().json()["data"][0]["id"])
        return self._model

    async def complete(self, prompt: str, max_tokens: int) -> Answer:
        return await self._stream("/v1/completions", {"prompt": prompt}, max_tokens)

    async def chat(self, messages: list[dict], max_tokens: int, *, with_ids: bool = False) -> Answer:
        body = {"messages": messages, "return_token_ids": True} if with_ids else {"messages": messages}
        return await self._stream("/v1/chat/completions", body, max_tokens)

    async def _stream(self, route: str, body: dict, max_tokens: int) -> Answer:
        body = {
            **body,
            "model": await self.model(),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start = time.perf_counter()
        answer = Answer(sent_s=start)
        async with self._client.stream("POST", route, json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{self.name}: {response.status_code} {(await response.aread()).decode()[:500]}")
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[len("data: ") :])
                answer.prompt_ids += event.get("prompt_token_ids") or ()
                for choice in event.get("choices", ()):
                    answer.ids += choice.get("token_ids") or ()
                    text = choice.get("text") or (choice.get("delta") or {}).get("content")
                    if text:
                        answer.arrivals_s.append(time.perf_counter() - start)
                        answer.text += text
                if usage := event.get("usage"):
                    answer.prompt_tokens = usage["prompt_tokens"]
                    answer.completion_tokens = usage["completion_tokens"]
                    details = usage.get("prompt_tokens_details") or {}
                    answer.cached_tokens = details.get("cached_tokens") or 0
        answer.total_s = time.perf_counter() - start
        return answer

    async def close(self) -> None:
        await self._client.aclose()


async def together(*requests) -> list[Answer]:
    return list(await asyncio.gather(*requests))
