"""Log probabilities as chat and text completions show them: ids become text and bytes."""

import math
from collections.abc import Sequence

from tokenline.engine.request import TokenLogprob
from tokenline.parse.delta import TokenBytes
from tokenline.render.line import Line
from tokenline.server.openai.answers import (
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprobEntry,
    TopLogprob,
)

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
    tokens: TokenBytes, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], offsets: Sequence[int], top: int
) -> CompletionLogprobs:
    """`choices[].logprobs` of a text completion, `top` of the most likely tokens and the token itself at each place.

    `logprobs`: None for a token that nothing stands before. `offsets`: where each token begins in the choice's text.
    """
    written: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": list(offsets)}
    for token_id, logprob in zip(ids, logprobs, strict=True):
        token = _text(tokens.token_bytes(token_id), "bytes:")
        written["tokens"].append(token)
        if logprob is None:
            written["token_logprobs"].append(None)
            written["top_logprobs"].append(None)
            continue
        likely: dict[str, float] = {}
        for other, value in logprob.top[:top]:
            # Two ids may have one text; the likelier one, which comes first, stays.
            likely.setdefault(_text(tokens.token_bytes(other), "bytes:"), _finite(value))
        likely.setdefault(token, _finite(logprob.logprob))
        written["token_logprobs"].append(_finite(logprob.logprob))
        written["top_logprobs"].append(likely)
    return written


def echoed_logprobs(tokens: TokenBytes, line: Line, scores: Sequence[TokenLogprob], top: int) -> CompletionLogprobs:
    """The part of `choices[].logprobs` that an echoed prompt makes up."""
    return completion_logprobs(tokens, line.ids.tolist(), [None, *scores], line.offsets[:, 0].tolist(), top)


def joined_logprobs(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Those of a prompt and of the answer behind it."""
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


def prompt_logprobs(tokens: TokenBytes, line: Line, scores: Sequence[TokenLogprob], top: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: the token at each place, then the `top` most likely ones."""

    def entry(token_id: int, logprob: float, rank: int) -> PromptLogprob:
        text = tokens.token_bytes(token_id).decode("utf-8", "replace")
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}

    written: PromptLogprobs = [None]
    for token_id, score in zip(line.ids[1:].tolist(), scores, strict=True):
        place = {str(token_id): entry(token_id, score.logprob, score.rank)}
        for rank, (other, logprob) in enumerate(score.top[:top], 1):
            place.setdefault(str(other), entry(other, logprob, rank))
        written.append(place)
    return written


def _text(data: bytes, mark: str = "") -> str:
    r"""A token's text; where its bytes are only part of a character, OpenAI's \xe4\xbd notation."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else VERY_UNLIKELY
