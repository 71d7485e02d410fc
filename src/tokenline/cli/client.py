"""A small client of the OpenAI API over httpx: what `tokenline chat` needs of any server.

Knows the wire format of streamed chat completions. Does not print. Every failure is a `ChatError` of one line.
"""

import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

CONNECT_S = 5.0
MODELS_S = 60.0  # a busy server may answer late
SILENCE_S = 600.0  # a long prompt on a slow machine may take minutes before the first token


class ChatError(Exception):
    """What went wrong with a request, as one line for a person."""


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What one event of the stream adds to the answer."""

    content: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class PromptRead:
    """How far the server is with the prompt, where it says so (llama.cpp's `return_progress`)."""

    processed: int
    total: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Ending:
    """How the answer ended. Counts are None where the server does not say."""

    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    first_token_s: float | None  # from sending the request to the first piece
    tokens_per_s: float | None = None  # from the first piece to the last


class ChatClient:
    """Talks to one server. `url` is its address, with or without /v1."""

    def __init__(self, url: str, api_key: str | None):
        if "://" not in url:
            url = f"http://{url}"
        base = url.rstrip("/").removesuffix("/v1")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ChatError("an API key must have only printable ASCII characters")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            # Proxies of the environment lead out of the local network; a model server is nearly always inside.
            self._http = httpx.Client(base_url=f"{base}/v1/", headers=headers, timeout=timeout, trust_env=False)
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise ChatError(f"{url!r} is not a valid server address ({error})") from error
        self._base = base
        self._asks_progress = True  # until a server refuses the field

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names under which the server serves models."""
        try:
            response = self._http.get("models", timeout=httpx.Timeout(MODELS_S, connect=CONNECT_S))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise ChatError(_message_of(response.status_code, response.content))
        try:
            return [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ChatError(f"{self._base}/v1/models does not answer as an OpenAI server does") from error

    def stream(self, body: dict[str, Any]) -> Generator[AnswerPiece | PromptRead | Ending]:
        """Post a chat completion; its pieces as they come, then its Ending. Closing the iterator stops the answer."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        sent = time.perf_counter()
        first_s: float | None = None  # of the pieces: when they came
        last_s = 0.0
        finish_reason: str | None = None
        usage: dict[str, Any] = {}
        try:
            with self._begin(body) as response:
                for event in _events(response):
                    if event.get("error"):
                        raise ChatError(_message_in(event) or "the server ended the answer with an error")
                    usage = event.get("usage") or usage
                    if (read := _prompt_read(event.get("prompt_progress"))) is not None:
                        yield read
                    for choice in event.get("choices") or []:
                        finish_reason = choice.get("finish_reason") or finish_reason
                        piece = _piece(choice.get("delta") or {})
                        if piece is not None:
                            last_s = time.perf_counter() - sent
                            first_s = last_s if first_s is None else first_s
                            yield piece
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if finish_reason is None:
            raise ChatError("the connection ended before the answer did")
        details = usage.get("prompt_tokens_details") or {}
        made = usage.get("completion_tokens")
        speed = (made - 1) / (last_s - first_s) if made and first_s is not None and last_s > first_s else None
        yield Ending(finish_reason, usage.get("prompt_tokens"), details.get("cached_tokens"), first_s, speed)

    @contextmanager
    def _begin(self, body: dict[str, Any]) -> Iterator[httpx.Response]:
        """The response to a request that has been accepted."""
        asked = body | {"return_progress": True} if self._asks_progress else body
        with self._http.stream("POST", "chat/completions", json=asked) as response:
            if response.status_code == 200:
                yield response
                return
            refusal = response.read()
        if self._asks_progress and b"return_progress" in refusal:  # a server that refuses what it does not know
            self._asks_progress = False
            with self._begin(body) as response:
                yield response
            return
        raise ChatError(_message_of(response.status_code, refusal))

    def _unreachable(self, error: Exception) -> ChatError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ChatError(f"no server answers at {self._base}: {error}")
        return ChatError(f"the connection to {self._base} broke: {error or type(error).__name__}")


def _piece(delta: dict[str, Any]) -> AnswerPiece | None:
    content = delta.get("content") or ""
    reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return AnswerPiece(content, reasoning) if content or reasoning else None


def _prompt_read(progress: Any) -> PromptRead | None:
    try:
        return PromptRead(int(progress["processed"]), int(progress["total"]), float(progress["time_ms"]))
    except (TypeError, KeyError, ValueError):
        return None


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text/event-stream up to [DONE]. Only `data:` lines matter here (WHATWG HTML, 9.2)."""
    data: list[str] = []
    for line in response.iter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            text = "\n".join(data)
            data.clear()
            if text == "[DONE]":
                return
            try:
                event = json.loads(text)
            except ValueError as error:
                raise ChatError("the server's stream is not JSON") from error
            if isinstance(event, dict):
                yield event


def _message_of(status: int, body: bytes) -> str:
    try:
        message = _message_in(json.loads(body))
    except ValueError:
        message = None
    return f"{message} (HTTP {status})" if message else f"the server answered with HTTP {status}"


def _message_in(answer: Any) -> str | None:
    """The message of OpenAI's error object, or of the shapes that other servers use."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    if error is None and isinstance(answer, dict):
        error = answer.get("detail") or answer.get("message")
    return str(error) if error else None
