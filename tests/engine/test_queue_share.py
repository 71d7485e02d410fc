"""How many unfinished choices each caller may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenline.engine.queue_share import TOTAL, QueueShare


def test_one_caller_alone_has_all_that_one_may_have():
    share = QueueShare(10)
    assert share.fits("a", 10)
    assert not share.fits("a", 11)
    share.take("a", 10)
    assert not share.fits("a", 1)
    share.give_back("a", 3)
    assert share.fits("a", 3)
    assert not share.fits("a", 4)


@pytest.mark.parametrize("greedy", [1, 3, 10, 100])
def test_callers_that_take_all_they_can_leave_something_for_a_newcomer(greedy: int):
    share = QueueShare(1024)
    for _ in range(2048):
        for caller in range(greedy):
            if share.fits(str(caller), 1):
                share.take(str(caller), 1)
    assert share.total < TOTAL * 1024
    assert share.fits("newcomer", min(1024, (TOTAL * 1024 - share.total) // 2))
    assert share.fits("newcomer", 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=200))
def test_the_total_is_bounded_and_all_of_it_comes_back(wishes: list[tuple[int, int]]):
    share, taken = QueueShare(30), list[tuple[str, int]]()
    for caller, choices in wishes:
        if share.fits(str(caller), choices):
            share.take(str(caller), choices)
            taken.append((str(caller), choices))
        assert share.total <= TOTAL * 30
        assert all(share.taken(str(caller)) <= 30 for caller in range(6))
    for caller, choices in taken:
        share.give_back(caller, choices)
    assert share.total == 0
    assert share.fits("0", 30)
