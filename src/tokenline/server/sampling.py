"""From the fields of a request to the engine's sampling parameters: limits, defaults and checks that need the model.

Knows the context length, the vocabulary and the model's own defaults (generation_config.json). What can be checked
without a model is checked by the wire types.
"""

from collections.abc import Mapping
from typing import Any

from tokenline.engine.request import SamplingParams
from tokenline.server.errors import ApiError, invalid, shown
from tokenline.server.state import ServerState
from tokenline.server.wire import GenerationBody


def sampling_params(
    state: ServerState,
    body: GenerationBody,
    *,
    prompt_tokens: int,
    prompt_param: str,
    max_tokens: int | None,
    default_max_tokens: int | None = None,
    logprobs: int | None,
) -> SamplingParams:
    """How to continue a line of `prompt_tokens` ids. Raises a 400 for what cannot be.

    `max_tokens` is what the client asked for; without it the answer may be `default_max_tokens` long, or as long as
    there is room.
    """
    max_tokens = _max_tokens(state, prompt_tokens, prompt_param, max_tokens, default_max_tokens)
    if body.min_tokens is not None and body.min_tokens > max_tokens:
        raise invalid(
            f"'min_tokens' ({body.min_tokens}) is larger than the {max_tokens} tokens that may be generated.",
            "min_tokens",
        )
    vocab_size = state.vocab_size
    stop_ids = frozenset(_checked_ids(body.stop_token_ids or [], vocab_size, "stop_token_ids"))
    if not body.ignore_eos:
        stop_ids |= state.renderer.end_ids
    default = state.renderer.default_sampling
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_first(body.temperature, default.get("temperature"), 1.0),
        top_p=_first(body.top_p, default.get("top_p"), 1.0),
        top_k=max(0, _first(body.top_k, default.get("top_k"), 0)),
        min_p=_first(body.min_p, default.get("min_p"), 0.0),
        seed=body.seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_first(body.repetition_penalty, default.get("repetition_penalty"), 1.0),
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
        logprobs=logprobs,
        stop_ids=stop_ids,
        min_tokens=body.min_tokens or 0,
    )


def check_ids(ids: list[Any], vocab_size: int, param: str) -> list[int]:
    """Ids given by a client, each an integer within the vocabulary."""
    for index, value in enumerate(ids):
        if type(value) is not int:
            raise invalid(
                f"'{param}[{index}]' must be a token id; got {shown(value)}.", f"{param}[{index}]", code="invalid_type"
            )
    return _checked_ids(ids, vocab_size, param)


def check_text_fits(state: ServerState, text: str, param: str) -> None:
    """Raise a 400 for a text that has too many tokens for the context however it is cut. Much cheaper than counting."""
    tokens = -(-len(text.encode(errors="replace")) // state.longest_token)
    if tokens >= state.engine.limits.max_model_len:
        raise too_long(state.engine.limits.max_model_len, f"at least {tokens}", param)


def check_ids_fit(max_model_len: int, ids: list[Any], param: str) -> None:
    """The same for ids, before each of them is looked at."""
    if len(ids) >= max_model_len:
        raise too_long(max_model_len, str(len(ids)), param)


def too_long(max_model_len: int, tokens: str, param: str) -> ApiError:
    return ApiError(
        400,
        f"The prompt has {tokens} tokens; with at least one to generate that is more than this server's context length "
        f"of {max_model_len} tokens. A prompt is never cut; send a shorter one.",
        param=param,
        code="context_length_exceeded",
    )


def _checked_ids(ids: list[int], vocab_size: int, param: str) -> list[int]:
    for index, value in enumerate(ids):
        if not 0 <= value < vocab_size:
            raise invalid(
                f"'{param}[{index}]' must be a token id from 0 to {vocab_size - 1}; got {shown(value)}.",
                f"{param}[{index}]",
            )
    return ids


def _max_tokens(state: ServerState, prompt: int, prompt_param: str, asked: int | None, default: int | None) -> int:
    limits = state.engine.limits
    context = limits.max_model_len
    room = context - prompt
    if room < 1:
        raise too_long(state.engine.limits.max_model_len, str(prompt), prompt_param)
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise ApiError(
            400,
            f"The prompt has {prompt} tokens and up to {asked} were asked for, together {prompt + asked}: more than "
            f"this server's context length of {context} tokens.",
            param=prompt_param,
            code="context_length_exceeded",
        )
    return asked


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    if len(biases) > vocab_size:
        raise invalid(f"'logit_bias' has {len(biases)} entries, more than there are tokens.", "logit_bias")
    checked: dict[int, float] = {}
    for key, bias in biases.items():
        param = f"logit_bias.{key[:40]}"
        if not (key.isascii() and key.isdigit()) or len(key) > 12 or int(key) >= vocab_size:
            raise invalid(
                f"'logit_bias' has the key {shown(key)}; keys must be token ids from 0 to {vocab_size - 1}.", param
            )
        if not -100 <= bias <= 100:
            raise invalid(f"'{param}' must be a number from -100 to 100; got {shown(bias)}.", param)
        checked[int(key)] = bias
    return checked


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
