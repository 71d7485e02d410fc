"""What clients get: the OpenAI API's answers and chunks of today, as plain dictionaries with declared shapes.

Plain, because a stream makes one a token. Keys that are not required are left out rather than sent as null, except
where OpenAI sends null.
"""

import time
from collections.abc import Collection
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from tokenline.engine.request import PromptProgress
from tokenline.parse.delta import ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from tokenline.parse.message import Message
from tokenline.parse.stream import EndReason
from tokenline.server.openai.custom_tools import InputReader, input_of
from tokenline.service.events import Usage

DONE = "[DONE]"  # ends every stream


class PromptTokensDetails(TypedDict):
    cached_tokens: int  # found in the prefix cache: the engine's own count, 0 on a miss


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class CacheAccount(TypedDict):
    """This server's own: what the prefix cache knows of the gap between the prompt and `cached_tokens`."""

    computed_tokens: int  # prompt_tokens - cached_tokens
    restored_tokens: int  # of the cached ones, those that came from the disk
    evicted_tokens: int  # of the computed ones, those that were held once and evicted
    evicted_ago_s: float | None
    longest_match_tokens: (
        int  # from the start, equal to an earlier line that is held or was evicted, as far as is known
    )


class UsageObject(TypedDict):
    prompt_tokens: int
    completion_tokens: int  # generated ids of all choices, the one that ended the answer included
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]  # once it is known of all prompts
    completion_tokens_details: CompletionTokensDetails
    cache: NotRequired[CacheAccount]


class TopLogprob(TypedDict):
    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprobEntry(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[TokenLogprobEntry]
    refusal: None


class FunctionObject(TypedDict):
    name: NotRequired[str]
    arguments: str


class PromptLogprob(TypedDict):
    """vLLM's: one token at one place of a prompt."""

    logprob: float
    rank: int  # 1: the most likely one
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""An entry for each token of a prompt: the token itself and the most likely ones, by their ids. The first is null:
nothing stands before it.
"""


class CustomObject(TypedDict):
    """What a custom tool is called with."""

    name: NotRequired[str]
    input: str


class ToolCallObject(TypedDict):
    """In a stream, `id`, `type` and the tool's name come once, with the first piece of a call."""

    index: NotRequired[int]  # in a stream only
    id: NotRequired[str]
    type: NotRequired[Literal["function", "custom"]]
    function: NotRequired[FunctionObject]
    custom: NotRequired[CustomObject]  # of a custom tool, instead of `function`


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: NotRequired[None]
    reasoning_content: NotRequired[str]  # DeepSeek's name, and vLLM's newer one; clients look for either
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallObject]]


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
    usage: UsageObject
    prompt_token_ids: NotRequired[list[int]]  # with return_token_ids
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    reasoning_content: str
    reasoning: str
    tool_calls: list[ToolCallObject]


class PromptProgressObject(TypedDict):
    """llama.cpp's: in a stream with `return_progress`, how far the prompt is computed."""

    total: int
    cache: int  # of the total, found in the prefix cache
    processed: int  # of the total, the cached ones included
    time_ms: int  # since the prompt was begun


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
    usage: NotRequired[UsageObject | None]  # with stream_options.include_usage: null on all chunks but the last
    prompt_token_ids: NotRequired[list[int]]
    prompt_progress: NotRequired[PromptProgressObject]  # with return_progress


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]  # null: the first token of a prompt
    top_logprobs: list[dict[str, float] | None]  # the token itself too, so perhaps one more than asked for
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Completion(TypedDict):
    """Also the shape of a chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]
    prompt_progress: NotRequired[PromptProgressObject]  # with return_progress, in a stream


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class Props(TypedDict):
    """llama.cpp's, as far as there is something to say."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str


class InputTokens(TypedDict):
    """llama.cpp's count of a chat's tokens, in OpenAI's words."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class TokensObject(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class PromptObject(TypedDict):
    prompt: str


class ErrorObject(TypedDict):
    error: dict[str, Any]


def usage_of(counts: Usage) -> UsageObject:
    use = counts.cache
    usage: UsageObject = {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }
    if use is not None and use.prompt == counts.prompt_tokens:  # all prompts are counted
        usage["prompt_tokens_details"] = {"cached_tokens": use.cached}
        usage["cache"] = {
            "computed_tokens": use.computed,
            "restored_tokens": use.restored,
            "evicted_tokens": use.evicted,
            "evicted_ago_s": None if use.evicted_ago_s is None else round(use.evicted_ago_s, 3),
            "longest_match_tokens": use.longest_match,
        }
    return usage


def progress_of(progress: PromptProgress) -> PromptProgressObject:
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": round(progress.elapsed_s * 1000),
    }


def message_object(message: Message, custom: Collection[str] = ()) -> ChatMessage:
    """The `message` of a choice. `custom`: names of the request's custom tools."""
    made: ChatMessage = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        made["reasoning_content"] = made["reasoning"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
            if call.name in custom
            else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return made


class DeltaWriter:
    """The `delta`s of one choice's chunks. `custom`: names of the request's custom tools."""

    def __init__(self, custom: Collection[str] = ()):
        self._custom = custom
        self._inputs: dict[int, InputReader] = {}  # of custom calls, by index; the last one may have more to come

    def write(self, delta: Delta) -> list[ChatDelta]:
        match delta:
            case ContentDelta(text):
                return [{"content": text}]
            case ReasoningDelta(text):
                return [{"reasoning_content": text, "reasoning": text}]
            case ToolCallDelta():
                return self._call_piece(delta)

    def finish(self) -> list[ChatDelta]:
        """What is left at the end of a call."""
        if not self._inputs:
            return []
        index, reader = self._inputs.popitem()
        rest = reader.finish()
        return [{"tool_calls": [{"index": index, "custom": {"input": rest}}]}] if rest else []

    def _call_piece(self, piece: ToolCallDelta) -> list[ChatDelta]:
        """A piece of a tool call. Clients add up what is there, so what is not said again is left out, not null."""
        written: list[ChatDelta] = []
        if piece.id is not None:
            written += self.finish()
        call: ToolCallObject = {"index": piece.index}
        if piece.id is not None:
            call["id"] = piece.id
        if piece.name is not None and piece.name in self._custom:
            self._inputs[piece.index] = InputReader()
        if (reader := self._inputs.get(piece.index)) is None:
            call["function"] = {"arguments": piece.arguments}
            if piece.name is not None:
                call["function"]["name"] = piece.name
            if piece.id is not None:
                call["type"] = "function"
            return [*written, {"tool_calls": [call]}]
        call["custom"] = {"input": reader.feed(piece.arguments)}
        if piece.name is not None:
            call["custom"]["name"] = piece.name
        if piece.id is not None:
            call["type"] = "custom"
        elif not call["custom"]["input"]:
            return written  # half an escape, or what stands around the input
        return [*written, {"tool_calls": [call]}]


_FINISH_REASONS = {
    EndReason.END_OF_TURN: "stop",
    EndReason.STOP_STRING: "stop",
    EndReason.TOOL_CALLS: "tool_calls",
    EndReason.LENGTH: "length",
}


def finish_reason_of(end: EndReason) -> str:
    """OpenAI's word for why an answer is over."""
    return _FINISH_REASONS[end]


def now_s() -> int:
    """`created`: Unix time."""
    return int(time.time())
