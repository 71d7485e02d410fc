"""From a request to what the engine is given: limits checked, sampling parameters made, the constraint described.

All of it is arithmetic on a request and on what is known of the model; nothing here waits. Faults are FieldErrors with
paths of the request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenline.engine.request import SamplingParams
from tokenline.engine.settings import EngineLimits
from tokenline.fields import FieldError, Path, shown
from tokenline.grammar.spec import (
    CallsOrAnswer,
    ConstraintSpec,
    Function,
    JsonSchema,
    NamedCall,
    RequiredCalls,
    StrictTools,
)
from tokenline.render.chat_input import ChatInput
from tokenline.render.check import check_ids
from tokenline.render.line import Line
from tokenline.render.renderer import Renderer
from tokenline.service.default_sampling import SMALL_MODELS, DefaultSampling
from tokenline.service.parsers import ParserChoice
from tokenline.service.request import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_SALT_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_IDS,
    MAX_STOP_STRINGS,
    RANGES,
    SALT,
    STOP,
    STOP_IDS,
    TEXT_RANGES,
    AllowedTools,
    ChatRequest,
    GenerationRequest,
    NamedTool,
    OutputFormat,
    TextRequest,
)

MAX_TEXT_BYTES = 1 << 20
MAX_TEXT_BYTES_PER_TOKEN = 16


def check_values(request: GenerationRequest) -> None:
    """Raise FieldError for the first value that no model could honour."""
    sampling, limits = request.sampling, request.limits
    ranges = TEXT_RANGES if isinstance(request, TextRequest) else RANGES
    for name, accepted in ranges.items():
        accepted.check(name, getattr(limits if hasattr(limits, name) else sampling, name))
    if isinstance(request, TextRequest) and len(request.prompts) * limits.n > MAX_CHOICES:
        raise FieldError(
            ("n",),
            f"must be at most {MAX_CHOICES // len(request.prompts)} with {len(request.prompts)} prompts, since one "
            f"request may have up to {MAX_CHOICES} choices in all; got {limits.n}.",
        )
    if len(limits.stop) > MAX_STOP_STRINGS:
        raise FieldError(("stop",), f"must be {STOP}; got {len(limits.stop)}.")
    for index, text in enumerate(limits.stop):
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            place = ("stop", index) if len(limits.stop) > 1 else ("stop",)
            raise FieldError(place, f"must have 1 to {MAX_STOP_CHARACTERS} characters; got {len(text)}.")
    if len(limits.stop_token_ids) > MAX_STOP_IDS:
        raise FieldError(("stop_token_ids",), f"must be {STOP_IDS}; got {len(limits.stop_token_ids)}.")
    check_salt(request.cache.salt)
    if request.output is not None and limits.ignore_eos:
        raise FieldError(
            ("ignore_eos",), "cannot be combined with ", ("output",), ", which says where the answer ends."
        )


def check_scored(request: GenerationRequest, prompt_tokens: int) -> None:
    """Raise FieldError where the log probabilities of prompts of so many tokens in all would fill the memory."""
    top = request.sampling.prompt_logprobs
    if top is None:
        return
    times = request.limits.n if isinstance(request, TextRequest) else 1  # each choice of a text repeats them
    wanted = prompt_tokens * (top + 1) * times
    if wanted > MAX_LOGPROBS:
        raise FieldError(
            ("prompt_logprobs",),
            f"asks for {wanted} log probabilities of {prompt_tokens} prompt tokens; at most {MAX_LOGPROBS} fit "
            "one answer. Send fewer prompts at once, or ask for fewer of the most likely tokens.",
        )


def check_salt(salt: str | None) -> None:
    """Raise FieldError for a salt that is empty or too long."""
    if salt is not None and not 0 < len(salt) <= MAX_SALT_CHARACTERS:
        raise FieldError(("cache_salt",), f"must be {SALT}; got {shown(salt)}.")


@dataclass(frozen=True)
class Room:
    """What fits the served model: its context, its vocabulary, and the sampling values of a request that gives none."""

    renderer: Renderer
    limits: EngineLimits
    default_sampling: DefaultSampling = SMALL_MODELS

    @cached_property
    def vocab_size(self) -> int:
        """Ids below this number are known to both the tokenizer and the model, whose tables may be padded."""
        return min(self.renderer.tokenizer.vocab_size, self.limits.vocab_size)

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest text that one id stands for, so that a text has at least so many tokens."""
        tokenizer = self.renderer.tokenizer
        return max(1, max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size)))

    def may_be_too_long(self, size: int) -> bool:
        """Whether a text of so many bytes cannot be known to fit the context: then it is worth a look."""
        return size > self.limits.max_model_len * self._longest_token

    @property
    def max_text(self) -> int:
        """Bytes of text beyond which nothing is read. A token of such a text would stand for 16 bytes on the whole."""
        return MAX_TEXT_BYTES + MAX_TEXT_BYTES_PER_TOKEN * self.limits.max_model_len

    def check_text(self, text: str, place: Path, *, to_count: bool = False) -> None:
        """Raise for a text that has too many tokens however it is cut, or is too long to be read at all. Much cheaper
        than counting them. `to_count`: it need not fit the context.
        """
        size = len(text.encode(errors="replace"))
        if not to_count:
            self.check_prompt(-(-size // self._longest_token), place, at_least=True)
        self._check_size(size, place)

    def check_chat(self, chat: ChatInput, size: int) -> None:
        """Raise for a conversation that is too long to be rendered. `size`: of the JSON that it came in, bytes."""
        if size > self.max_text:
            self._check_size(text_bytes([chat.messages, chat.tools, dict(chat.template_kwargs)]), ("messages",))

    def _check_size(self, size: int, place: Path) -> None:
        if size > self.max_text:
            reason = (
                f"has {size} bytes of text; at most {self.max_text} are read, since the context has "
                f"{self.limits.max_model_len} tokens."
            )
            raise FieldError(place, reason, code="context_length_exceeded")

    def check_prompt(self, tokens: int, place: Path, *, at_least: bool = False) -> None:
        """Raise for a prompt that leaves no room for a single new token."""
        self._check_fits(tokens, 1, place, at_least)

    def _check_fits(self, prompt: int, new: int, place: Path, at_least: bool = False) -> None:
        overflow = self.limits.overflow(prompt, new, at_least=at_least)
        if overflow is not None:
            raise FieldError(place, overflow, code="context_length_exceeded")

    def sampling_params(self, request: GenerationRequest, prompt_tokens: int, place: Path) -> SamplingParams:
        """How to continue a prompt of so many ids, which stands at `place`."""
        sampling, limits = request.sampling, request.limits
        self._check_fits(prompt_tokens, 0 if limits.max_tokens == 0 else 1, place)
        # A maximum is what may come, not what must: one that is larger than the room asks for all of it.
        room = self.limits.max_model_len - prompt_tokens
        asked = limits.default_max_tokens if limits.max_tokens is None else limits.max_tokens
        max_tokens = room if asked is None else min(asked, room)
        max_tokens = self._check_logprobs(request, max_tokens)
        if limits.min_tokens > max_tokens:
            raise FieldError(
                ("min_tokens",),
                f"({limits.min_tokens}) is larger than the {max_tokens} tokens that may be generated.",
            )
        check_ids(limits.stop_token_ids, self.vocab_size, ("stop_token_ids",))
        stop_ids = frozenset(limits.stop_token_ids)
        if not limits.ignore_eos:
            stop_ids |= self.renderer.end_ids
            if isinstance(request, TextRequest) and request.suffix is not None and self.renderer.infiller is not None:
                stop_ids |= self.renderer.infiller.tokens.end_ids
        default = self.default_sampling
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_first(sampling.temperature, default.temperature),
            top_p=_first(sampling.top_p, default.top_p),
            top_k=max(0, _first(sampling.top_k, default.top_k)),
            min_p=_first(sampling.min_p, default.min_p),
            seed=sampling.seed,
            presence_penalty=sampling.presence_penalty or 0.0,
            frequency_penalty=sampling.frequency_penalty or 0.0,
            repetition_penalty=_first(sampling.repetition_penalty, default.repetition_penalty),
            logit_bias=_logit_bias(sampling.logit_bias, self.vocab_size),
            logprobs=sampling.logprobs,
            stop_ids=stop_ids,
            min_tokens=limits.min_tokens,
        )

    def _check_logprobs(self, request: GenerationRequest, max_tokens: int) -> int:
        """How many tokens may be generated so that the log probabilities of a whole answer do not fill the memory.

        Raises FieldError where the request itself says that there may be more.
        """
        top = request.sampling.logprobs
        if top is None or request.streams:
            return max_tokens
        choices = request.limits.n * (len(request.prompts) if isinstance(request, TextRequest) else 1)
        most = MAX_LOGPROBS // (choices * (top + 1))
        if max_tokens > most and request.limits.max_tokens is not None:
            raise FieldError(
                ("max_tokens",),
                f"must be at most {most} with {choices} choices and {top + 1} log probabilities a token, since one "
                f"answer has up to {MAX_LOGPROBS} of them; got {request.limits.max_tokens}. A stream may have more.",
            )
        return min(max_tokens, most)


def text_bytes(value: Any) -> int:
    """Bytes of all texts in a JSON value, names of members included."""
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            total += len(one.encode(errors="replace"))
        elif isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return total


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    if len(biases) > vocab_size:
        raise FieldError(("logit_bias",), f"has {len(biases)} entries, more than there are tokens.")
    checked: dict[int, float] = {}
    for key, bias in biases.items():
        place = ("logit_bias", key[:40])
        if not (key.isascii() and key.isdigit()) or len(key) > 12 or int(key) >= vocab_size:
            raise FieldError(place, f"must be named by a token id from 0 to {vocab_size - 1}; the key is {shown(key)}.")
        if not -100 <= bias <= 100:
            raise FieldError(place, f"must be a number from -100 to 100; got {shown(bias)}.")
        checked[int(key)] = bias
    return checked


def chat_constraint(parsers: ParserChoice, request: ChatRequest, line: Line) -> ConstraintSpec | None:
    """What a chat answer must hold to; None if it is free."""
    form = _tool_constraint(parsers, request) if request.may_call_tools else request.output
    if form is None:
        return None
    if request.limits.ignore_eos:
        field = ("tools",) if isinstance(form, StrictTools) else ("tool_choice",)
        raise FieldError(("ignore_eos",), "cannot be combined with ", field, ", which says where the answer ends.")
    return ConstraintSpec(form, parsers.before_answer(line))


def check_tool_choice(request: ChatRequest) -> None:
    """Raise FieldError for a choice of functions that the tools lack. For a chat that `render` has checked."""
    chosen = request.tool_choice
    names = (chosen.name,) if isinstance(chosen, NamedTool) else ()
    if isinstance(chosen, AllowedTools):
        names = chosen.names
    known = {tool["function"]["name"] for tool in request.chat.tools or ()}
    for name in names:
        if name not in known:
            raise FieldError(("tool_choice",), f"names the function {shown(name)}, which ", ("tools",), " lacks.")


def _tool_constraint(
    parsers: ParserChoice, request: ChatRequest
) -> NamedCall | RequiredCalls | StrictTools | CallsOrAnswer | OutputFormat | None:
    """What an answer that may have calls must hold to. A forced call leaves the output format no part."""
    functions = tuple(_function(tool) for tool in request.callable_tools)
    output, parser = request.output, parsers.tool_parser
    if request.must_call_tools and not isinstance(output, JsonSchema | None):
        raise FieldError(("output",), "cannot be combined with ", ("tool_choice",), ", which forces a call.")
    if isinstance(request.tool_choice, NamedTool):
        return NamedCall(functions[0])
    if request.must_call_tools:
        return RequiredCalls(functions, request.parallel_tool_calls)
    if parser is not None and output is not None:
        return CallsOrAnswer(functions, parser, output, parsers.tool_markers, request.parallel_tool_calls)
    if parser is not None and any(function.strict for function in functions):
        return StrictTools(functions, parser)
    return output


def _function(tool: Mapping[str, Any]) -> Function:
    described = tool["function"]
    return Function(described["name"], described.get("parameters"), bool(described.get("strict")))


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
