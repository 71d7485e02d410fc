"""Wire in: from the bodies of OpenAI's protocol to the service's requests. Faults are FieldErrors.

A constraint on the answer may come as `response_format` or by vLLM's names; one request has at most one. Where it came
from, and other fields that have another name here than in the service, the request's `places` remember.
"""

from collections.abc import Mapping
from typing import Any

from tokenline.fields import FieldError, Path, Places, shown
from tokenline.grammar.spec import Choice, Grammar, JsonSchema, Regex
from tokenline.render.chat_input import ChatInput
from tokenline.server.openai.wire import ChatBody, CompletionBody, GenerationBody, TemplateBody
from tokenline.service.request import (
    CacheWishes,
    ChatRequest,
    Limits,
    NamedTool,
    OutputFormat,
    Sampling,
    TextRequest,
    ToolChoice,
)

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for text completions
MAX_PROMPTS = 256
DAY_S = 86_400.0
PROMPT = "a string, an array of strings, an array of token ids, or an array of those"


def chat_request(body: ChatBody, request_id: str, caller: str | None) -> ChatRequest:
    """What a chat completion asks for."""
    if body.top_logprobs and not body.logprobs:
        raise FieldError(("top_logprobs",), "needs ", ("logprobs",), ": true.")
    _check_stream_options(body)
    max_tokens, moved = body.max_tokens, {}
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
        moved[("max_tokens",)] = ("max_completion_tokens",)
    output, place = _output(body)
    return ChatRequest(
        id=request_id,
        caller=caller,
        chat=chat_input(body),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=_sampling(body, (body.top_logprobs or 0) if body.logprobs else None),
        limits=_limits(body, max_tokens),
        cache=CacheWishes(
            key=body.prompt_cache_key, salt=body.cache_salt, retention_s=_retention_s(body.prompt_cache_retention)
        ),
        output=output,
        size=body.size,
        places=Places({**moved, ("output",): place, ("logprobs",): ("top_logprobs",)}),
    )


def text_request(body: CompletionBody, request_id: str, caller: str | None) -> TextRequest:
    """What a text completion asks for."""
    _check_stream_options(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise FieldError(
            ("best_of",),
            f"({body.best_of}) is not supported with another value than ",
            ("n",),
            f" ({body.n or 1}).",
            code="unsupported_parameter",
        )
    if body.echo and body.logprobs is not None:
        raise FieldError(
            ("logprobs",),
            "is not supported with ",
            ("echo",),
            ": there are no log probabilities of the prompt.",
            code="unsupported_parameter",
        )
    output, place = _output(body)
    prompts, listed = read_prompts(body.prompt)
    return TextRequest(
        id=request_id,
        caller=caller,
        prompts=prompts,
        listed=listed,
        sampling=_sampling(body, body.logprobs),
        limits=_limits(body, body.max_tokens, DEFAULT_MAX_TOKENS),
        cache=CacheWishes(salt=body.cache_salt),
        output=output,
        size=body.size,
        places=Places({("output",): place}),
    )


def chat_input(body: TemplateBody) -> ChatInput:
    """What the template gets to see: messages and tools exactly as they came."""
    continues = bool(body.continue_final_message)
    return ChatInput(
        messages=body.messages,
        tools=body.tools or None,
        add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continues,
        template_kwargs=dict(body.chat_template_kwargs or {}),
        reasoning_effort=body.reasoning_effort,
    )


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


def _sampling(body: GenerationBody, logprobs: int | None) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
    )


def _limits(body: GenerationBody, max_tokens: int | None, default_max_tokens: int | None = None) -> Limits:
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


def _check_stream_options(body: GenerationBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise FieldError(("stream_options",), "is only for ", ("stream",), ": true.")


def _tool_choice(wanted: Any) -> ToolChoice | None:
    if wanted in (None, "none", "auto", "required"):
        return wanted
    if isinstance(wanted, dict) and wanted.get("type") == "function":
        function = wanted.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return NamedTool(name)
    raise FieldError(
        ("tool_choice",),
        'must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}; '
        f"got {shown(wanted)}.",
    )


def _output(body: GenerationBody) -> tuple[OutputFormat | None, Path]:
    """What `response_format` and the guided fields ask for, and where it stands."""
    found: list[tuple[OutputFormat, Path]] = []
    if (from_format := _response_format(body.response_format)) is not None:
        found.append(from_format)
    guided: dict[Path, Any] = {
        (f"guided_{kind}",): getattr(body, f"guided_{kind}") for kind in ("json", "regex", "choice", "grammar")
    }
    if body.structured_outputs is not None:
        known = ("json", "regex", "choice", "grammar", "json_object")
        for kind, value in body.structured_outputs.items():
            place = ("structured_outputs", kind)
            if kind not in known:
                raise FieldError(
                    place, f"is not supported; one of {', '.join(known)} is.", code="unsupported_parameter"
                )
            guided[place] = value
    found += [
        (_guided(place, value), place) for place, value in guided.items() if value is not None and value is not False
    ]
    if len(found) > 1:
        raise FieldError(found[1][1], "cannot be combined with ", found[0][1], ".")
    return found[0] if found else (None, ("response_format",))


def _response_format(chosen: Mapping[str, Any] | None) -> tuple[OutputFormat, Path] | None:
    if chosen is None or chosen == {"type": "text"}:
        return None
    kind = chosen.get("type")
    if kind == "json_object":
        return JsonSchema({"type": "object"}), ("response_format",)
    if kind != "json_schema":
        raise FieldError(
            ("response_format", "type"), f'must be "text", "json_object" or "json_schema"; got {shown(kind)}.'
        )
    named = chosen.get("json_schema")
    place = ("response_format", "json_schema", "schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise FieldError(place, "must be an object (a JSON schema).", code="invalid_type")
    return JsonSchema(named["schema"]), place


def _guided(place: Path, value: Any) -> OutputFormat:
    kind = str(place[-1]).removeprefix("guided_")
    if kind == "json_object":
        _must(value is True, place, "true or false", value)
        return JsonSchema({"type": "object"})
    if kind == "json":
        _must(isinstance(value, dict), place, "an object (a JSON schema)", value)
        return JsonSchema(value)
    if kind == "choice":
        texts = isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
        _must(texts, place, "a non-empty array of strings", value)
        return Choice(tuple(value))
    _must(isinstance(value, str), place, "a string", value)
    return Regex(value) if kind == "regex" else Grammar(value)


def _must(holds: bool, place: Path, accepted: str, given: Any) -> None:
    if not holds:
        raise FieldError(place, f"must be {accepted}; got {shown(given)}.", code="invalid_type")
