"""Wire in: from the bodies of OpenAI's protocol to the service's requests. Faults are FieldErrors.

Fields that have another name here than in the service, the request's `places` remember.
"""

from typing import Any

from tokenline.fields import FieldError, Path, Places, shown
from tokenline.render.chat_input import ChatInput
from tokenline.server.openai.constraints import output_format
from tokenline.server.openai.custom_tools import with_functions
from tokenline.server.openai.thinking import read_thinking
from tokenline.server.openai.tool_choice import read_tool_choice
from tokenline.server.openai.wire import NO_LIMIT, ChatBody, CompletionBody, GenerationBody, TemplateBody
from tokenline.service.request import (
    CacheWishes,
    ChatRequest,
    Limits,
    Sampling,
    TextRequest,
)

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for text completions
MAX_PROMPTS = 256
DAY_S = 86_400.0
PROMPT = "a string, an array of strings, an array of token ids, or an array of those"


def chat_request(body: ChatBody, request_id: str, caller: str | None) -> ChatRequest:
    """What a chat completion asks for."""
    if body.top_logprobs and not body.logprobs:
        raise FieldError(("top_logprobs",), "needs ", ("logprobs",), ": true.")
    _check_stream(body)
    max_tokens, moved = body.max_tokens, dict(body.moved)
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
        moved[("max_tokens",)] = ("max_completion_tokens",)
    output, place = output_format(body)
    chat, rewritten = _chat_input(body)
    return ChatRequest(
        id=request_id,
        caller=caller,
        chat=chat,
        tool_choice=read_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=_sampling(body, (body.top_logprobs or 0) if body.logprobs else None, body.prompt_logprobs),
        limits=_limits(body, max_tokens),
        cache=CacheWishes(
            key=body.prompt_cache_key, salt=body.cache_salt, retention_s=_retention_s(body.prompt_cache_retention)
        ),
        output=output,
        streams=bool(body.stream),
        reports_progress=bool(body.return_progress and body.stream),
        size=body.size,
        places=Places({**moved, **rewritten, ("output",): place, ("logprobs",): ("top_logprobs",)}),
    )


def text_request(body: CompletionBody, request_id: str, caller: str | None) -> TextRequest:
    """What a text completion asks for."""
    _check_stream(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise FieldError(
            ("best_of",),
            f"({body.best_of}) is not supported with another value than ",
            ("n",),
            f" ({body.n or 1}).",
            code="unsupported_parameter",
        )
    if body.suffix and body.echo:
        raise FieldError(("suffix",), "cannot be combined with ", ("echo",), ": true.")
    output, place = output_format(body)
    prompts, listed = read_prompts(body.prompt)
    scored: dict[Path, Path] = {} if body.prompt_logprobs is not None else {("prompt_logprobs",): ("logprobs",)}
    return TextRequest(
        id=request_id,
        caller=caller,
        prompts=prompts,
        suffix=body.suffix or None,
        listed=listed,
        sampling=_sampling(body, body.logprobs, _scored(body)),
        limits=_limits(body, body.max_tokens, DEFAULT_MAX_TOKENS),
        cache=CacheWishes(salt=body.cache_salt),
        output=output,
        streams=bool(body.stream),
        reports_progress=bool(body.return_progress and body.stream),
        size=body.size,
        places=Places({**body.moved, ("output",): place, **scored}),
    )


def chat_input(body: TemplateBody) -> ChatInput:
    """What the template gets to see: messages and tools as they came, custom tools as functions."""
    return _chat_input(body)[0]


def _chat_input(body: TemplateBody) -> tuple[ChatInput, dict[Path, Path]]:
    """The same, and where in the body stands what was rewritten."""
    continues = bool(body.continue_final_message)
    thinking = read_thinking(body)
    messages, tools, rewritten = with_functions(body.messages, body.tools)
    chat = ChatInput(
        messages=messages,
        tools=tools or None,
        add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs=dict(body.chat_template_kwargs or {}),
        reasoning_effort=thinking.effort,
        thinking=thinking.on,
    )
    return chat, rewritten


def read_prompts(given: Any) -> tuple[tuple[str | list[Any], ...], bool]:
    """The prompts of a text completion from any of the four forms, and whether they came as a list."""
    if isinstance(given, str):
        return (given,), False
    if not isinstance(given, list) or not given:
        raise FieldError(("prompt",), f"must be {PROMPT}; got {shown(given)}.", code="invalid_type")
    if type(given[0]) is int:
        return (given,), False
    if len(given) > MAX_PROMPTS:
        raise FieldError(("prompt",), f"may have up to {MAX_PROMPTS} prompts; got {len(given)}.")
    for index, one in enumerate(given):
        if not isinstance(one, str) and not (isinstance(one, list) and one):
            reason = f"must be a string or a non-empty array of token ids; got {shown(one)}."
            raise FieldError(("prompt", index), reason, code="invalid_type")
    return tuple(given), True


def _scored(body: CompletionBody) -> int | None:
    """How many log probabilities of each of the prompt's tokens are needed: for `prompt_logprobs`, and for `echo`."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((count for count in asked if count is not None), default=None)


def _sampling(body: GenerationBody, logprobs: int | None, prompt_logprobs: int | None) -> Sampling:
    _check_window(body)
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=None if body.seed == -1 else body.seed,  # -1: a random one, as in llama.cpp and vLLM
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _check_window(body: GenerationBody) -> None:
    """llama.cpp's penalties may look at the last tokens only; those here do not. Without a penalty it is no matter."""
    repetition, others = body.repetition_penalty, (body.presence_penalty, body.frequency_penalty)
    if body.repeat_last_n not in (None, -1) and (repetition not in (None, 1) or any(others)):
        raise FieldError(
            ("repeat_last_n",),
            f"({body.repeat_last_n}) is not supported beside a penalty: penalties count the whole prompt and answer; "
            "send -1.",
            code="unsupported_parameter",
        )


def _limits(body: GenerationBody, max_tokens: int | None, default_max_tokens: int | None = None) -> Limits:
    if max_tokens == NO_LIMIT:
        max_tokens = default_max_tokens = None
    return Limits(
        n=1 if body.n is None else body.n,
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
    )


def _retention_s(asked: str | None) -> float | None:
    """OpenAI's words for how long a prompt is to be kept."""
    if asked is None:
        return None
    return DAY_S if asked == "24h" else 0.0


def _check_stream(body: GenerationBody) -> None:
    if body.prompt_logprobs is not None and body.stream:
        raise FieldError(("prompt_logprobs",), "cannot be combined with ", ("stream",), ": true.")
    if body.stream_options is not None and not body.stream:
        raise FieldError(("stream_options",), "is only for ", ("stream",), ": true.")
