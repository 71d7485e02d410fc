"""What clients send: the OpenAI API's request bodies of today plus the extensions usual among local servers.

Types are strict: "5" is no number and `true` no integer. A field's description says what is accepted; the error of a
wrong value quotes it. Unknown fields are accepted (and named in a debug log); fields that are known but cannot be
honoured stand in `unsupported.py`. The inside of messages and tools is checked in `messages.py`, since the chat
template gets them as they came.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

MAX_INTEGER = 2**31 - 1
MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 1024
MAX_TOP_LOGPROBS = 20
MAX_SALT_CHARACTERS = 1024


def _integer(low: int, high: int = MAX_INTEGER) -> Any:
    return Field(default=None, ge=low, le=high, description=f"an integer from {low} to {high}")


def _number(low: float, high: float) -> Any:
    return Field(default=None, ge=low, le=high, description=f"a number from {low:g} to {high:g}")


def _switch() -> Any:
    return Field(default=None, description="true or false")


def _text() -> Any:
    return Field(default=None, description="a string")


def _object() -> Any:
    return Field(default=None, description="an object")


def _salt() -> Any:
    return Field(
        default=None,
        min_length=1,
        max_length=MAX_SALT_CHARACTERS,
        description=f"a string of 1 to {MAX_SALT_CHARACTERS} characters (leave it out for none)",
    )


def _one_to_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class Body(BaseModel):
    """The base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    _size: int = PrivateAttr(default=0)

    @property
    def size(self) -> int:
        """Bytes of JSON that this was read from."""
        return self._size

    model: str | None = Field(default=None, description="the name of a served model (see /v1/models), a string")


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # OpenAI pads chunks; this server never does


class GenerationBody(Body):
    """What chat and text completions have in common."""

    max_tokens: int | None = _integer(1)
    n: int | None = _integer(1, MAX_CHOICES)
    stream: bool | None = _switch()
    stream_options: StreamOptions | None = None
    stop: Annotated[list[StopString] | None, BeforeValidator(_one_to_list)] = Field(
        default=None,
        max_length=MAX_STOP_STRINGS,
        description=f"a string or an array of up to {MAX_STOP_STRINGS} strings",
    )

    temperature: float | None = _number(0, 2)
    top_p: float | None = _number(0, 1)
    seed: int | None = _integer(-(2**63), 2**63 - 1)
    presence_penalty: float | None = _number(-2, 2)
    frequency_penalty: float | None = _number(-2, 2)
    logit_bias: dict[str, float] | None = Field(
        default=None, description="an object of token ids (as strings) and numbers from -100 to 100"
    )

    # Extensions, named as in vLLM.
    top_k: int | None = Field(
        default=None, ge=-1, le=MAX_INTEGER, description=f"an integer: 0 or -1 for off, or from 1 to {MAX_INTEGER}"
    )
    min_p: float | None = _number(0, 1)
    repetition_penalty: float | None = _number(0.01, 100)
    min_tokens: int | None = _integer(0)
    stop_token_ids: list[int] | None = Field(
        default=None, max_length=MAX_STOP_IDS, description=f"an array of up to {MAX_STOP_IDS} token ids"
    )
    ignore_eos: bool | None = _switch()
    return_token_ids: bool | None = _switch()
    cache_salt: str | None = _salt()
    response_format: dict[str, Any] | None = _object()
    # `constraints` says which of these can be enforced, and how they are read.
    structured_outputs: dict[str, Any] | None = _object()
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    user: str | None = _text()


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateBody(Body):
    """What becomes a line by the chat template."""

    messages: list[Any] | None = Field(  # needed, except where there is a `prompt`; `chat_input` says so
        default=None, min_length=1, description="a non-empty array of messages"
    )
    tools: list[Any] | None = Field(default=None, description="an array of tools")
    add_generation_prompt: bool | None = _switch()
    continue_final_message: bool | None = _switch()
    chat_template_kwargs: dict[str, Any] | None = _object()
    reasoning_effort: Effort | None = Field(
        default=None, description='one of "none", "minimal", "low", "medium", "high", "xhigh", "max"'
    )


class ChatBody(TemplateBody, GenerationBody):
    """POST /v1/chat/completions"""

    max_completion_tokens: int | None = _integer(1)
    logprobs: bool | None = _switch()
    top_logprobs: int | None = _integer(0, MAX_TOP_LOGPROBS)
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

    prompt: Any = Field(description="a string, an array of strings, an array of token ids, or an array of those")
    echo: bool | None = _switch()
    logprobs: int | None = _integer(0, MAX_TOP_LOGPROBS)
    best_of: int | None = _integer(1, MAX_CHOICES)


class TokenizeBody(TemplateBody):
    """POST /tokenize: `prompt`, or what a chat completion takes."""

    prompt: str | None = _text()
    add_special_tokens: bool | None = _switch()
    cache_salt: str | None = _salt()
    return_token_strs: bool | None = _switch()


class DetokenizeBody(Body):
    """POST /detokenize"""

    tokens: list[int] = Field(description="an array of token ids")
