"""Log probabilities as chat and text completions show them: ids become text and bytes."""

import math
from collections.abc import Sequence

from tokenline.engine.request import TokenLogprob
from tokenline.parse.delta import TokenBytes
from tokenline.server.openai.answers import CompletionLogprobs, TokenLogprobEntry, TopLogprob

VERY_UNLIKELY = -9999.0  # OpenAI's number where the logarithm is minus infinity, which JSON cannot say


def chat_entry(tokens: TokenBytes, token_id: int, logprob: TokenLogprob) -> TokenLogprobEntry:
    """One token of `choices[].logprobs.content`."""
    return {
        **_top(tokens, token_id, logprob.logprob),
        "top_logprobs": [_top(tokens, other, value) for other, value in logprob.top],
    }


def _top(tokens: TokenBytes, token_id: int, logprob: float) -> TopLogprob:
    data = tokens.token_bytes(token_id)
    return {"token": _text(data), "logprob": _finite(logprob), "bytes": list(data)}


def completion_logprobs(
    tokens: TokenBytes, ids: Sequence[int], logprobs: Sequence[TokenLogprob], offsets: Sequence[int]
) -> CompletionLogprobs:
    """`choices[].logprobs` of a text completion. `offsets`: where each token begins in the choice's text."""
    top: list[dict[str, float]] = []
    for logprob in logprobs:
        likely: dict[str, float] = {}
        for other, value in logprob.top:
            # Two ids may have one text; the likelier one, which comes first, stays.
            likely.setdefault(_text(tokens.token_bytes(other), "bytes:"), _finite(value))
        top.append(likely)
    return {
        "tokens": [_text(tokens.token_bytes(token_id), "bytes:") for token_id in ids],
        "token_logprobs": [_finite(logprob.logprob) for logprob in logprobs],
        "top_logprobs": top if any(top) else None,
        "text_offset": list(offsets),
    }


def _text(data: bytes, mark: str = "") -> str:
    r"""A token's text; where its bytes are only part of a character, OpenAI's \xe4\xbd notation."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else VERY_UNLIKELY
