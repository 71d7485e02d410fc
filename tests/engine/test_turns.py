"""Whose turn it is, under random arrivals, admissions, rides, preemptions and cancels; and how long anybody waits."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tokenline.engine.request import Request, SamplingParams
from tokenline.engine.sequence import Sequence
from tokenline.engine.turns import HEAD_START, Turns

numbers = itertools.count()


def sequences_of(caller: str, choices: int = 1, tokens: int = 3) -> list[Sequence]:
    """A request's choices, as they arrive."""
    ids = np.zeros(tokens, np.int32)
    request = Request(f"r{next(numbers)}", ids, SamplingParams(100), n=choices, sender=caller)
    return [Sequence(request, choice, 0.0, tokens + 100) for choice in range(choices)]


def arrive(turns: Turns, caller: str, choices: int = 1, tokens: int = 3) -> list[Sequence]:
    sequences = sequences_of(caller, choices, tokens)
    for sequence in sequences:
        turns.add(sequence)
    return sequences


def run(turns: Turns, caller: str, choices: int = 1) -> list[Sequence]:
    sequences = arrive(turns, caller, choices)
    for sequence in sequences:
        turns.start(sequence)
    return sequences


def callers(sequences: list[Sequence]) -> list[str | None]:
    return [sequence.request.caller for sequence in sequences]


def admit(turns: Turns, most: int) -> list[Sequence]:
    admitted: list[Sequence] = []
    turns.begin_step()
    for sequence in turns.heads():
        if len(admitted) == most:
            break
        turns.start(sequence)
        admitted.append(sequence)
    return admitted


def test_callers_are_admitted_in_turn():
    turns = Turns()
    arrive(turns, "greedy", 100)
    arrive(turns, "other", 2)
    arrive(turns, "third", 1)
    assert callers(admit(turns, 6)) == ["greedy", "other", "third", "greedy", "other", "greedy"]


@pytest.mark.parametrize("by_count", [True, False])
def test_a_newcomer_is_first(by_count: bool):
    turns = Turns()
    for sequence in run(turns, "greedy", 3) + run(turns, "old", 1):
        turns.charge(sequence, 10_000)
    arrive(turns, "greedy", 5)
    arrive(turns, "old", 5)
    newcomer = arrive(turns, "new")
    if not by_count:
        turns.begin_step()
    assert admit(turns, 1) == newcomer
    assert turns.served(newcomer[0]) == 10_000 - 2 * HEAD_START, "below the smallest count, itself below nobody's"


def test_a_callers_first_row_is_never_held_back_for_anothers_second():
    turns = Turns()
    greedy, modest = run(turns, "greedy", 10), run(turns, "modest", 1)
    for _ in range(20):
        turns.begin_step()
        rows = turns.rows(greedy + modest, 8, 4)
        assert modest[0] in rows
        assert len(rows) == 4


def test_held_back_rows_take_turns():
    turns = Turns()
    greedy, modest = run(turns, "greedy", 10), run(turns, "modest", 1)
    got = dict.fromkeys(greedy, 0)
    for _ in range(20):
        turns.begin_step()
        for sequence in turns.rows(greedy + modest, 8, 6):
            if sequence in got:
                got[sequence] += 1
    assert set(got.values()) == {10}


def test_one_caller_alone_gets_every_row():
    turns = Turns()
    sequences = run(turns, "only", 64)
    assert turns.is_alone
    assert turns.rows(sequences, 64, 64) == sequences


def test_more_callers_than_rows_all_get_theirs_within_two_rounds():
    """Also beside newcomers that begin below everybody's count again and again."""
    turns = Turns()
    old = [run(turns, f"caller{number}")[0] for number in range(10)]
    for sequence in old:
        turns.charge(sequence, 1000)
    waited = dict.fromkeys(old, 0)
    for step in range(100):
        new = [run(turns, f"new{step}-{number}")[0] for number in range(4)]
        turns.begin_step()
        rows = turns.rows(old + new, 4, 4)
        for sequence in rows:
            turns.charge(sequence, 1)
        for sequence in old:
            waited[sequence] = 0 if sequence in rows else waited[sequence] + 1
        assert max(waited.values()) <= 2 * 10 / 4 + 4
        for sequence in new:
            turns.leave(sequence)


def test_who_waits_is_admitted_though_newcomers_come_without_end():
    turns = Turns()
    for sequence in run(turns, "old", 1):
        turns.charge(sequence, 100_000)
        turns.leave(sequence)
    waiting = arrive(turns, "old")
    turns.charge(waiting[0], 100_000)
    for step in range(10):
        for number in range(5):
            arrive(turns, f"new{step}-{number}")
        for sequence in admit(turns, 3):
            turns.leave(sequence)
        if waiting[0] not in turns:
            return
    raise AssertionError("it waits for ever")


def test_a_prefill_on_which_a_newcomer_rides_has_the_newcomers_turn():
    turns = Turns()
    leader, other = run(turns, "greedy")[0], run(turns, "other")[0]
    turns.charge(leader, 5000)
    turns.charge(other, 1000)
    newcomer = arrive(turns, "new")[0]
    turns.ride(newcomer, leader, 3)
    assert turns.served(leader) == turns.served(newcomer) < turns.served(other)
    leader.computed = 3
    turns.advanced(leader)
    assert turns.served(leader) > turns.served(other)


def test_the_shortest_come_first_where_they_are_asked_for():
    turns = Turns()
    for number in range(200):
        arrive(turns, f"long{number}", tokens=1000)
    short = arrive(turns, "short")
    turns.begin_step()
    assert next(turns.heads(shortest_first=True)) is short[0]


class TurnsMachine(RuleBasedStateMachine):
    """Against a model that only knows where each sequence is."""

    def __init__(self):
        super().__init__()
        self.turns = Turns()
        self.ready: dict[Sequence, None] = {}
        self.running: dict[Sequence, None] = {}
        self.riding: dict[Sequence, tuple[Sequence, int]] = {}

    def pick(self, which: int, among: Mapping[Sequence, object]) -> Sequence | None:
        return list(among)[which % len(among)] if among else None

    @rule(caller=st.sampled_from("abcde"), choices=st.integers(1, 5), tokens=st.integers(1, 9))
    def arrive(self, caller: str, choices: int, tokens: int):
        self.ready.update(dict.fromkeys(arrive(self.turns, caller, choices, tokens)))

    @rule(most=st.integers(1, 6), skips=st.lists(st.booleans(), max_size=12), shortest=st.booleans())
    def admit(self, most: int, skips: list[bool], shortest: bool):
        self.turns.begin_step()
        seen: set[Sequence] = set()
        for sequence, skip in zip(self.turns.heads(shortest_first=shortest), skips, strict=False):
            assert sequence in self.ready
            assert sequence not in seen
            seen.add(sequence)
            if skip:
                continue
            if most == 0:
                break
            most -= 1
            self.turns.start(sequence)
            del self.ready[sequence]
            self.running[sequence] = None

    @rule()
    def all_that_wait_would_be_offered(self):
        """One of each request's equal lines, and all in the end."""
        self.turns.begin_step()
        order = list(self.turns.heads())
        groups = {(id(s.request), s.num_generated and s.choice + 1) for s in self.ready}
        assert len(order) <= len(self.ready)
        assert {id(sequence.request) for sequence in order} == {request for request, _ in groups}
        firsts = {sequence.request.caller: sequence for sequence in reversed(order)}
        running = {c: sum(s.request.caller == c for s in self.running) for c in firsts}
        first = list(dict.fromkeys(callers(order)))
        assert [running[c] for c in first] == sorted(running[c] for c in first), "fewest running first"

    @rule(which=st.integers(0, 10**6), until=st.integers(1, 9))
    def ride(self, which: int, until: int):
        self.turns.begin_step()
        head = next(iter(self.turns.heads()), None)
        leader = self.pick(which, self.running)
        if head is None or leader is None or until <= leader.computed:
            return
        group = [s for s in self.ready if self.turns._waiting[s] is self.turns._waiting[head]]
        self.turns.ride(head, leader, until)
        for sequence in group:
            del self.ready[sequence]
            self.riding[sequence] = leader, until

    @rule(which=st.integers(0, 10**6), tokens=st.integers(1, 5))
    def advance(self, which: int, tokens: int):
        leader = self.pick(which, self.running)
        if leader is not None:
            leader.computed += tokens
            self.turns.charge(leader, tokens)
            self.turns.advanced(leader)
            self.wake(leader, leader.computed)

    def wake(self, leader: Sequence, computed: float):
        for sequence, (other, until) in list(self.riding.items()):
            if other is leader and until <= computed:
                del self.riding[sequence]
                self.ready[sequence] = None

    @rule(which=st.integers(0, 10**6))
    def put_back(self, which: int):
        sequence = self.pick(which, self.running)
        if sequence is not None:
            del self.running[sequence]
            sequence.computed = 0
            self.turns.put_back(sequence)
            self.ready[sequence] = None
            self.wake(sequence, 10**9)

    @rule(which=st.integers(0, 10**6), kind=st.integers(0, 2))
    def leave(self, which: int, kind: int):
        among = (self.ready, self.running, self.riding)[kind]
        sequence = self.pick(which, {**among})
        if sequence is not None:
            del among[sequence]
            self.turns.leave(sequence)
            self.wake(sequence, 10**9)

    @rule(most=st.integers(1, 8), rest=st.integers(1, 8), parity=st.booleans())
    def rows(self, most: int, rest: int, parity: bool):
        if parity:
            self.turns.begin_step()
        decoding = list(self.running)
        rows = self.turns.rows(decoding, most, rest)
        there = len(set(callers(decoding)))
        assert set(rows) <= set(decoding)
        assert len(rows) == len(set(rows)) == min(len(decoding), max(min(most, rest), min(most, there)))
        got = [callers(rows).count(caller) for caller in set(callers(decoding))]
        have = [callers(decoding).count(caller) for caller in set(callers(decoding))]
        short = [g for g, h in zip(got, have, strict=True) if g < h]
        assert not short or max(got) <= min(short) + 1, "nobody has two more than one who is held back"

    @invariant()
    def adds_up(self):
        self.turns.check_integrity(list(self.running))
        assert set(self.turns) == {*self.ready, *self.riding}
        assert len(self.turns) == len(self.ready) + len(self.riding)
        assert self.turns.has_ready == bool(self.ready)


TurnsMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestTurnsMachine = TurnsMachine.TestCase
