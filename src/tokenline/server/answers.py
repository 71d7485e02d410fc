"""What clients get: the OpenAI API's answers and chunks of today, as plain dictionaries with declared shapes.

Plain, because a stream makes one a token. Keys that are not required are left out rather than sent as null, except
where OpenAI sends null.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12


class PromptTokensDetails(TypedDict):
    cached_tokens: int  # found in the prefix cache: the engine's own count, 0 on a miss


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int  # generated ids of all choices, the one that ended the answer included
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(TypedDict):
    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprobEntry(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprobEntry]
    refusal: None


class FunctionCall(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCall(TypedDict):
    """In a stream, `id`, `type` and the function's name come once, with the first piece of a call."""

    index: NotRequired[int]  # in a stream only
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionCall


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]  # DeepSeek's name, and vLLM's newer one; clients look for either
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: NotRequired[list[int]]  # with return_token_ids


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[list[int]]  # with return_token_ids


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    reasoning_content: str
    reasoning: str
    tool_calls: list[ToolCall]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]  # with stream_options.include_usage: null on all chunks but the last
    prompt_token_ids: NotRequired[list[int]]


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(TypedDict):
    """Also the shape of a chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class Prompt(TypedDict):
    prompt: str


class ErrorBody(TypedDict):
    error: dict[str, Any]
