"""What an answer says of itself while it is made: the other half of the seam to protocols."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenline.engine.request import CacheUse, PromptProgress, TokenLogprob
from tokenline.parse.delta import Delta
from tokenline.parse.stream import EndReason


@dataclass(frozen=True, slots=True)
class PromptAdvanced:
    """A prompt is computed so far. Several times a prompt, before its `PromptDone`, if the request asks for it."""

    prompt: int  # number of the prompt in the request
    first_choice: int  # the first of its choices
    progress: PromptProgress


@dataclass(frozen=True, slots=True)
class PromptDone:
    """The prompt is computed: the cache's account of it. Once a prompt, before any piece of its first choice."""

    prompt: int  # number of the prompt in the request
    cache: CacheUse
    logprobs: Sequence[TokenLogprob] | None = None  # of all its ids but the first, if asked for


@dataclass(frozen=True, slots=True)
class Piece:
    """What one engine step added to one choice. Choices are numbered through all prompts of the request."""

    choice: int
    deltas: Sequence[Delta]  # perhaps none: text is held back until it is certain
    ids: Sequence[int] = ()  # those that count, the end id included
    logprobs: Sequence[TokenLogprob] = ()  # one an id, if asked for
    offsets: Sequence[int] = ()  # of each id in the choice's text
    ended: bool = False  # the last of `ids` is an end id, which is no text
    end: EndReason | None = None  # on the choice's last piece
    stop_string: str | None = None  # with EndReason.STOP_STRING


Event = PromptAdvanced | PromptDone | Piece


@dataclass(frozen=True, slots=True)
class Usage:
    """Counted in ids by the engine and the parsers. Choices do not multiply their prompt."""

    prompt_tokens: int
    completion_tokens: int = 0  # of all choices, the ones that ended them included
    reasoning_tokens: int = 0
    cache: CacheUse | None = None  # of all prompts together; None: no prompt is computed yet


def total(uses: Sequence[CacheUse]) -> CacheUse | None:
    """The account of several prompts together; None without any."""
    if len(uses) < 2:
        return uses[0] if uses else None
    return CacheUse(
        prompt=sum(use.prompt for use in uses),
        cached=sum(use.cached for use in uses),
        computed=sum(use.computed for use in uses),
        queue_s=max(use.queue_s for use in uses),
        prefill_s=max(use.prefill_s for use in uses),
        restored=sum(use.restored for use in uses),
        evicted=sum(use.evicted for use in uses),
        evicted_ago_s=min((use.evicted_ago_s for use in uses if use.evicted_ago_s is not None), default=None),
        longest_match=sum(use.longest_match for use in uses),
    )
