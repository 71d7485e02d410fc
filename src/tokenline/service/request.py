"""What is asked of the server, whatever protocol it came in. Immutable; a shell makes it, `prepare` checks it.

A shell checks the JSON types of its own fields. What values are accepted is said here, once, for shells to show and for
`prepare` to check. A fault names a path of this request (`("temperature",)`); `places` spells it as the client did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenline.fields import IDENTITY, FieldError, Places, shown
from tokenline.grammar.spec import Choice, Grammar, JsonSchema, Regex
from tokenline.render.chat_input import ChatInput

MAX_INTEGER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number may have, and the words for them."""

    low: float
    high: float
    integer: bool = False
    words: str = ""  # empty: made from the numbers

    @property
    def accepted(self) -> str:
        if self.words:
            return self.words
        return f"{'an integer' if self.integer else 'a number'} from {self.low} to {self.high}"

    def check(self, name: str, value: float | None) -> None:
        """Raise FieldError for a value outside."""
        if value is not None and not self.low <= value <= self.high:
            value = int(value) if value == int(value) else value  # 9, as it was written, not 9.0
            raise FieldError((name,), f"must be {self.accepted}; got {shown(value)}.")


RANGES: Mapping[str, Range] = {
    "n": Range(1, 128, integer=True),
    "max_tokens": Range(1, MAX_INTEGER, integer=True),
    "min_tokens": Range(0, MAX_INTEGER, integer=True),
    "temperature": Range(0, 2),
    "top_p": Range(0, 1),
    "top_k": Range(-1, MAX_INTEGER, integer=True, words=f"an integer: 0 or -1 for off, or from 1 to {MAX_INTEGER}"),
    "min_p": Range(0, 1),
    "seed": Range(-(2**63), 2**63 - 1, integer=True),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0.01, 100),
    "logprobs": Range(0, 20, integer=True),
    "prompt_logprobs": Range(0, 20, integer=True),
}
TEXT_RANGES: Mapping[str, Range] = {**RANGES, "max_tokens": Range(0, MAX_INTEGER, integer=True)}  # of a TextRequest
MAX_CHOICES = 256  # of all prompts of a request together
MAX_LOGPROBS = 2**18  # in one whole answer, and of its prompts; each takes some 400 bytes while it is written
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_IDS = 1024
MAX_SALT_CHARACTERS = 1024
STOP = f"a string or an array of up to {MAX_STOP_STRINGS} strings"
STOP_IDS = f"an array of up to {MAX_STOP_IDS} token ids"
SALT = f"a string of 1 to {MAX_SALT_CHARACTERS} characters (leave it out for none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. None: the model's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1: off
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)  # token ids, as JSON spells them
    logprobs: int | None = None  # None: none; k: of each token and of the k most likely ones
    prompt_logprobs: int | None = None  # the same of the prompt's tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an answer may be, and what ends it."""

    n: int = 1  # choices
    max_tokens: int | None = None  # 0: the prompt is computed, and nothing is generated
    default_max_tokens: int | None = None  # without max_tokens; None: as long as there is room
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False  # the model's end tokens do not end it


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWishes:
    """What the client asks of the prefix cache."""

    key: str | None = None  # requests that belong together; no part of what is compared
    salt: str | None = None  # divides the caller's cache: only requests with the same one share prefixes
    retention_s: float | None = None  # see engine.Request


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The answer is to call this function."""

    name: str


@dataclass(frozen=True, slots=True)
class AllowedTools:
    """Only these functions may be called. The prompt shows all tools, so that its cached prefix stays the same."""

    names: tuple[str, ...]
    required: bool = False  # the answer is to call one of them


ToolChoice = Literal["auto", "none", "required"] | NamedTool | AllowedTools
OutputFormat = JsonSchema | Regex | Choice | Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What chats and texts have in common."""

    id: str
    caller: str | None = None  # a digest of the API key; None without authentication
    sender: str | None = None  # among whom time is divided; None: by `caller`
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    cache: CacheWishes = CacheWishes()
    output: OutputFormat | None = None  # what the answer must be; None: any text
    streams: bool = False  # the answer is sent while it is made, so it never lies in memory as a whole
    reports_progress: bool = False  # the answer's events also say how far its prompts are computed
    size: int = 0  # bytes that it came in: a large one is worked on beside the event loop
    places: Places = IDENTITY


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(GenerationRequest):
    """A conversation to continue."""

    chat: ChatInput
    tool_choice: ToolChoice | None = None  # None: "auto" with tools
    parallel_tool_calls: bool = True

    @property
    def callable_places(self) -> tuple[int, ...]:
        """Where in `chat.tools` the tools stand that this answer may call. For a chat that `render` has checked."""
        chosen = self.tool_choice
        if chosen == "none":
            return ()
        if isinstance(chosen, NamedTool):
            names = {chosen.name}
        else:
            names = set(chosen.names) if isinstance(chosen, AllowedTools) else None
        tools = enumerate(self.chat.tools or ())
        return tuple(index for index, tool in tools if names is None or tool["function"]["name"] in names)

    @property
    def callable_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that this answer may call; a call of another one is a call of none."""
        tools = self.chat.tools or ()
        return tuple(tools[index] for index in self.callable_places)

    @property
    def may_call_tools(self) -> bool:
        return bool(self.chat.tools) and self.tool_choice != "none"

    @property
    def must_call_tools(self) -> bool:
        """The answer is a call, of one of several functions or of one."""
        chosen = self.tool_choice
        return (
            chosen == "required"
            or isinstance(chosen, NamedTool)
            or (isinstance(chosen, AllowedTools) and chosen.required)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest(GenerationRequest):
    """Texts to continue, each given as text or as ids. A prompt's path is ("prompt",), or ("prompt", i) in a list."""

    prompts: tuple[str | list[Any], ...]
    suffix: str | None = None  # what stands behind the answer, for models that fill in
    listed: bool = False  # the client sent a list of prompts, perhaps with one entry
