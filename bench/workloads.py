"""What is measured: each workload asks one endpoint and returns named figures.

Every repeat uses fresh text, so that nothing is found in a cache that the workload did not put there itself.
"""

from dataclasses import dataclass

import numpy as np

from bench.endpoint import Answer, Endpoint, together
from bench.text import Prose
from bench.theory import Line, fewest_prefilled
from tokenline.render.chat_input import ChatInput
from tokenline.render.renderer import Renderer

DECODE_CONTEXTS = (20, 900, 2048)
BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str
    higher_is_better: bool


async def cold(endpoint: Endpoint, prose: Prose) -> list[Figure]:
    """A fresh 800-token prompt, one output token."""
    answer = await endpoint.complete(prose.text(800), 1)
    return [Figure("cold prefill", answer.prompt_tokens / answer.total_s, "tokens/s", True)]


async def hit(endpoint: Endpoint, prose: Prose) -> list[Figure]:
    """An 1,800-token prefix that is held, and about 60 new tokens."""
    prefix = prose.text(1800)
    await endpoint.complete(prefix, 1)
    answer = await endpoint.complete(prefix + " " + prose.text(60), 1)
    return [Figure("hit, time to first token", answer.first_token_s * 1000, "ms", False)]


async def decode(endpoint: Endpoint, prose: Prose) -> list[Figure]:
    """One stream at several context lengths."""
    figures = []
    for context in DECODE_CONTEXTS:
        answer = await endpoint.complete(prose.text(context), 64)
        figures.append(Figure(f"decode at {context:,}", answer.decode_tokens_per_s, "tokens/s", True))
    return figures


async def agents(endpoint: Endpoint, prose: Prose) -> list[Figure]:
    """Four conversations of three turns side by side on one 1,000-token system prompt, 48 output tokens each."""
    system = {"role": "system", "content": prose.text(1000)}
    chats = [[system] for _ in range(4)]
    answers: list[Answer] = []
    lines: list[Line] = []
    wall_s = 0.0
    for _ in range(3):
        for chat in chats:
            chat.append({"role": "user", "content": prose.text(40)})
        turn = await together(*(endpoint.chat(chat, 48, with_ids=True) for chat in chats))
        wall_s += max(answer.total_s for answer in turn)
        for chat, answer in zip(chats, turn, strict=True):
            lines += _line(prose.renderer, chat, answer)
            chat.append({"role": "assistant", "content": answer.text})
        answers += turn
    prompt = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    figures = [
        Figure("agents, wall time", wall_s, "s", False),
        Figure("agents, tokens prefilled", prompt - cached, "tokens", False),
        Figure("agents, hit rate", cached / prompt, "", True),
    ]
    if len(lines) == len(answers):
        fewest = fewest_prefilled(lines)
        beyond = (prompt - cached - fewest) / len(answers)
        figures.append(Figure("agents, fewest tokens that must be prefilled", fewest, "tokens", False))
        figures.append(Figure("agents, prefilled beyond that per request", beyond, "tokens", False))
    return figures


def _line(renderer: Renderer, chat: list[dict], answer: Answer) -> list[Line]:
    """The ids that the server counted; none if it does not report them and our own renderer gets another number."""
    prompt, ids = answer.prompt_ids, answer.ids
    if not prompt:
        prompt, ids = renderer.chat(ChatInput(chat)).ids, renderer.tokenizer.encode(answer.text)
    if len(prompt) != answer.prompt_tokens:
        return []
    return [(np.asarray(prompt, np.int32), np.asarray(ids, np.int32))]


async def many(endpoint: Endpoint, prose: Prose) -> list[Figure]:
    """Conversations on one prefix, arriving together; output tokens per second for each number of them."""
    figures = []
    for batch in BATCHES:
        prefix = prose.text(500)
        answers = await together(*(endpoint.complete(f"{prefix} {prose.text(20)}", 32) for _ in range(batch)))
        tokens = sum(answer.completion_tokens for answer in answers)
        wall_s = max(answer.total_s for answer in answers)
        figures.append(Figure(f"many, {batch} at once", tokens / wall_s, "tokens/s", True))
    return figures


WORKLOADS = {"cold": cold, "hit": hit, "decode": decode, "agents": agents, "many": many}
REPEATS = {"cold": 7, "hit": 7, "decode": 5, "agents": 3, "many": 2}
