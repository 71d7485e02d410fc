"""The values that a request may have, and the words for them, are said in one place and checked in one place."""

from dataclasses import replace

import pytest

from tokenline.fields import FieldError
from tokenline.grammar.spec import Regex
from tokenline.render.chat_input import ChatInput
from tokenline.service.prepare import check_values
from tokenline.service.request import RANGES, CacheWishes, ChatRequest, Limits, Sampling

PLAIN = ChatRequest(id="r", chat=ChatInput([{"role": "user", "content": "hi"}]))


def fault_of(request: ChatRequest) -> FieldError:
    with pytest.raises(FieldError) as fault:
        check_values(request)
    return fault.value


def test_a_plain_request_is_fine():
    check_values(PLAIN)


@pytest.mark.parametrize("name", RANGES)
def test_each_number_is_accepted_at_its_bounds_and_refused_beyond(name: str):
    accepted = RANGES[name]
    part = "limits" if name in ("n", "max_tokens", "min_tokens") else "sampling"
    for value in (accepted.low, accepted.high):
        check_values(replace(PLAIN, **{part: replace(getattr(PLAIN, part), **{name: value})}))
    for value in (accepted.low - 1, accepted.high + 1):
        fault = fault_of(replace(PLAIN, **{part: replace(getattr(PLAIN, part), **{name: value})}))
        assert fault.path == (name,)
        assert str(fault) == f"'{name}' must be {accepted.accepted}; got {value}."


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (replace(PLAIN, limits=Limits(stop=("",))), ("stop",)),
        (replace(PLAIN, limits=Limits(stop=("a", "x" * 1025))), ("stop", 1)),
        (replace(PLAIN, limits=Limits(stop=("a",) * 17)), ("stop",)),
        (replace(PLAIN, limits=Limits(stop_token_ids=(1,) * 1025)), ("stop_token_ids",)),
        (replace(PLAIN, cache=CacheWishes(salt="")), ("cache_salt",)),
        (replace(PLAIN, cache=CacheWishes(salt="盐" * 1025)), ("cache_salt",)),
        (replace(PLAIN, output=Regex("a"), limits=Limits(ignore_eos=True)), ("ignore_eos",)),
    ],
)
def test_what_no_model_could_honour_is_named(request_: ChatRequest, path: tuple[str | int, ...]):
    assert fault_of(request_).path == path


def test_of_several_faults_the_same_one_is_named_every_time():
    request = replace(PLAIN, sampling=Sampling(temperature=9, top_p=9, seed=2**70), limits=Limits(n=0))
    assert {fault_of(request).path for _ in range(5)} == {("n",)}
