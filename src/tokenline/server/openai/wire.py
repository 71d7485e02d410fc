"""What clients send: the OpenAI API's request bodies of today plus the extensions usual among local servers.

Only JSON types are checked here, and the values of fields that this protocol alone has; `service.request` says which
values are accepted, and each field's description repeats it. Unknown fields are accepted (and named in a debug log);
fields that are known but cannot be honoured stand in `unsupported.py`. Messages and tools are checked by `render`: the
chat template gets them as they came.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tokenline.server.body import Body
from tokenline.server.openai import aliases
from tokenline.server.openai.unsupported import CHAT, COMPLETION, Refusal, refuse_unsupported
from tokenline.service.request import RANGES, SALT, STOP, STOP_IDS, TEXT_RANGES, Range

NO_LIMIT = -1  # llama.cpp's, of `max_tokens`


def _ranged(name: str) -> Any:
    accepted = RANGES[name]
    bounds: dict[str, Any] = {"minimum": accepted.low, "maximum": accepted.high}
    return Field(default=None, description=accepted.accepted, json_schema_extra=bounds)


def _max_tokens(ranges: Mapping[str, Range] = RANGES) -> Any:
    accepted = f"{ranges['max_tokens'].accepted}, or {NO_LIMIT} for as many as there is room for"
    bounds: dict[str, Any] = {"minimum": NO_LIMIT, "maximum": ranges["max_tokens"].high}
    return Field(default=None, description=accepted, json_schema_extra=bounds)


def _switch() -> Any:
    return Field(default=None, description="true or false")


def _integer() -> Any:
    return Field(default=None, description="an integer")


def _text() -> Any:
    return Field(default=None, description="a string")


def _object() -> Any:
    return Field(default=None, description="an object")


def _one_to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pairs_to_object(value: Any) -> Any:
    """llama.cpp's forms of `logit_bias`: an array of pairs, and `false` for a token that must not come."""
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int]
        if len(pairs) != len(value):
            return value
        value = {str(token_id): bias for token_id, bias in pairs}
    if isinstance(value, dict):
        biases = {key: -100 if bias is False else bias for key, bias in value.items()}
        # Of a million wrong ones the first is enough; `fail_fast` is for lists only.
        wrong = next((key for key, bias in biases.items() if type(bias) not in (int, float)), None)
        return biases if wrong is None else {wrong: biases[wrong]}
    return value


class NamedBody(Body):
    """The base of all bodies of this protocol."""

    unsupported: ClassVar[Mapping[str, Refusal]] = {}

    model: str | None = Field(default=None, description="the name of a served model (see /v1/models), a string")

    @classmethod
    def refuse_unsupported(cls, fields: dict[str, Any]) -> None:
        refuse_unsupported(fields, cls.unsupported)

    @classmethod
    def known_fields(cls) -> set[str]:
        return {*super().known_fields(), *cls.unsupported}


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: with include_usage, on every chunk
    include_obfuscation: bool | None = None  # OpenAI pads chunks; this server never does


class GenerationBody(NamedBody):
    """What chat and text completions have in common."""

    max_tokens: int | None = _max_tokens()
    n: int | None = _ranged("n")
    stream: bool | None = _switch()
    stream_options: StreamOptions | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_one_to_list)] = Field(
        default=None, description=STOP, fail_fast=True
    )

    temperature: float | None = _ranged("temperature")
    top_p: float | None = _ranged("top_p")
    seed: int | None = _ranged("seed")
    presence_penalty: float | None = _ranged("presence_penalty")
    frequency_penalty: float | None = _ranged("frequency_penalty")
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_pairs_to_object)] = Field(
        default=None,
        description="an object of token ids (as strings) and numbers from -100 to 100, or an array of such pairs",
    )

    # Extensions, named as in vLLM.
    top_k: int | None = _ranged("top_k")
    min_p: float | None = _ranged("min_p")
    repetition_penalty: float | None = _ranged("repetition_penalty")
    repeat_last_n: int | None = _integer()  # llama.cpp's
    min_tokens: int | None = _ranged("min_tokens")
    prompt_logprobs: int | None = _ranged("prompt_logprobs")
    stop_token_ids: list[int] | None = Field(default=None, description=STOP_IDS, fail_fast=True)
    ignore_eos: bool | None = _switch()
    return_token_ids: bool | None = _switch()
    return_progress: bool | None = _switch()  # llama.cpp's
    cache_salt: str | None = Field(default=None, description=SALT)
    response_format: dict[str, Any] | None = _object()
    # `constraints` says how these are read; the grammar room, which of them can be enforced.
    structured_outputs: dict[str, Any] | None = _object()
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    json_schema: Any = None
    regex: Any = None
    grammar: Any = None
    ebnf: Any = None
    json_mode: Any = None
    format: Any = None

    user: str | None = _text()


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateBody(NamedBody):
    """What becomes a line by the chat template."""

    aliases = aliases.TEMPLATE

    messages: list[Any] | None = Field(  # needed, except where there is a `prompt`; `read.chat_input` says so
        default=None, description="a non-empty array of messages"
    )
    tools: list[Any] | None = Field(default=None, description="an array of tools")
    add_generation_prompt: bool | None = _switch()
    continue_final_message: bool | None = _switch()
    chat_template_kwargs: dict[str, Any] | None = _object()
    reasoning_effort: Effort | None = Field(
        default=None, description='one of "none", "minimal", "low", "medium", "high", "xhigh", "max"'
    )
    # `thinking` says how these are read.
    enable_thinking: bool | None = _switch()
    thinking: Any = None
    think: Any = None
    reasoning: dict[str, Any] | None = _object()
    thinking_budget: Any = None


class ChatBody(TemplateBody, GenerationBody):
    """POST /v1/chat/completions"""

    unsupported = CHAT
    aliases = aliases.CHAT

    max_completion_tokens: int | None = _max_tokens()
    logprobs: bool | None = _switch()
    top_logprobs: int | None = _ranged("logprobs")
    tool_choice: Any = None  # "none" | "auto" | "required" | {"type": "function", "function": {"name": ...}}
    parallel_tool_calls: bool | None = _switch()

    # Accepted, since ignoring them changes no answer.
    metadata: dict[str, Any] | None = _object()
    service_tier: str | None = _text()
    safety_identifier: str | None = _text()
    prompt_cache_key: str | None = _text()
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = Field(
        default=None, description='"in_memory" or "24h"'
    )
    prompt_cache_options: dict[str, Any] | None = _object()


class CompletionBody(GenerationBody):
    """POST /v1/completions"""

    unsupported = COMPLETION
    aliases = aliases.GENERATION

    prompt: Any = Field(description="a string, an array of strings, an array of token ids, or an array of those")
    max_tokens: int | None = _max_tokens(TEXT_RANGES)
    suffix: str | None = _text()
    echo: bool | None = _switch()
    logprobs: int | None = _ranged("logprobs")
    best_of: int | None = _ranged("n")


class TokenizeBody(TemplateBody):
    """POST /tokenize: `prompt`, or what a chat completion takes."""

    prompt: str | None = _text()
    add_special_tokens: bool | None = _switch()
    cache_salt: str | None = Field(default=None, description=SALT)
    return_token_strs: bool | None = _switch()


class DetokenizeBody(NamedBody):
    """POST /detokenize"""

    tokens: list[int] = Field(description="an array of token ids", fail_fast=True)


BODIES = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, TemplateBody)
