"""Whose turn it is: who waits and who runs, by caller, so that nobody waits for another caller's hundredth answer.

Time is divided among callers, not among sequences. Each has a count of the tokens that were computed for it; whoever
has fewest running, and of those the one with the smallest count, is next. A newcomer begins HEAD_START tokens below the
others, so that a short question is answered at once. Every second step asks who has waited longest instead, so that a
crowd of newcomers does not keep anybody waiting for ever. (The counts are those of "Fairness in Serving Large Language
Models", Sheng et al. 2024, without weights.)

    waits ──start──> runs ──put_back──> waits, ahead of its caller's others
      │ ride  ↑ advanced
    rides on a running sequence that is computing the same prompt

Sequences of one request that have the same line wait as one group, of which the first is offered. Every operation takes
time by the number of callers at most, never by the number of those that wait.

Knows sequences by what they need and by whose they are; no blocks, no tree, no budget. The scheduler asks.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenline.engine.sequence import Sequence

HEAD_START = 256  # tokens


@dataclass(slots=True, eq=False)
class _Group:
    """Sequences of one request that wait and have the same line."""

    caller: "_Caller"
    sequences: dict[Sequence, None]  # in order
    leader: Sequence | None = None  # the running one on which they ride

    @property
    def head(self) -> Sequence:
        return next(iter(self.sequences))


@dataclass(slots=True, eq=False)
class _Caller:
    name: str | None
    arrival: int
    served: int  # tokens computed for it, from where it began
    ready: OrderedDict[_Group, None] = field(default_factory=OrderedDict[_Group, None])
    riding: int = 0  # groups
    running: dict[Sequence, None] = field(default_factory=dict[Sequence, None])  # whose row comes first, first
    admitted: int = 0  # the number of the last admission that it had
    row: int = 0  # the number of the last step in which it had a row

    @property
    def is_gone(self) -> bool:
        return not (self.ready or self.riding or self.running)


class Turns:
    """Owns the waiting sequences, and knows the running ones."""

    def __init__(self) -> None:
        self._callers: dict[str | None, _Caller] = {}
        self._waiting: dict[Sequence, _Group] = {}
        self._fresh: dict[int, _Group] = {}  # by the id of a request: its choices that have never run
        self._riders: dict[Sequence, list[tuple[int, int, _Group]]] = {}  # by leader: heaps of (until, order, group)
        self._riders_served: dict[Sequence, int] = {}  # by leader: the smallest count of those that have begun to ride
        self._floor = 0  # the smallest count of all callers so far; never falls
        self._number = 0  # of whatever has to be ordered
        self._steps = 0

    # ---- who is there

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in no order."""
        return iter(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    @property
    def is_alone(self) -> bool:
        """Whether there is one caller at most, who has the whole machine."""
        return len(self._callers) < 2

    @property
    def has_ready(self) -> bool:
        """Whether some wait that could be admitted now."""
        return any(caller.ready for caller in self._callers.values())

    @property
    def has_newcomer(self) -> bool:
        """Whether some of a caller wait of which nothing runs."""
        return any(caller.ready and not caller.running for caller in self._callers.values())

    def num_running(self, sequence: Sequence) -> int:
        """Running sequences of its caller."""
        return len(self._callers[sequence.request.caller].running)

    def served(self, sequence: Sequence) -> int:
        """The count of its caller, or a smaller one of those whose sequences ride on it: they wait for its turn too."""
        own = self._callers[sequence.request.caller].served
        return min(own, self._riders_served.get(sequence, own))

    # ---- how it changes

    def add(self, sequence: Sequence) -> None:
        """It arrives, and waits behind its caller's others."""
        group = self._fresh.get(id(sequence.request))
        if group is None:
            caller = self._caller(sequence)
            group = self._fresh[id(sequence.request)] = _Group(caller, {})
            caller.ready[group] = None
        group.sequences[sequence] = None
        self._waiting[sequence] = group

    def start(self, sequence: Sequence) -> None:
        """It waits no more, and runs."""
        caller = self._waiting[sequence].caller
        self._take(sequence)
        caller.running[sequence] = None
        caller.admitted = self._next()

    def put_back(self, sequence: Sequence) -> None:
        """It runs no more, and waits ahead of its caller's others."""
        caller = self._callers[sequence.request.caller]
        del caller.running[sequence]
        self._wake(sequence)
        group = self._waiting[sequence] = _Group(caller, {sequence: None})
        caller.ready[group] = None
        caller.ready.move_to_end(group, last=False)

    def leave(self, sequence: Sequence) -> None:
        """It neither waits nor runs any more."""
        caller = self._callers[sequence.request.caller]
        if sequence in self._waiting:
            self._take(sequence)
        else:
            del caller.running[sequence]
            self._wake(sequence)
        if caller.is_gone:
            del self._callers[caller.name]

    def charge(self, sequence: Sequence, tokens: int) -> None:
        """So many tokens are computed for it."""
        self._callers[sequence.request.caller].served += tokens

    def ride(self, sequence: Sequence, leader: Sequence, until: int) -> None:
        """A waiting sequence, and its group, are not offered before the running `leader` has computed `until` tokens,
        or runs no more.
        """
        group = self._waiting[sequence]
        group.leader = leader
        del group.caller.ready[group]
        group.caller.riding += 1
        self._riders_served[leader] = min(self._riders_served.get(leader, group.caller.served), group.caller.served)
        heapq.heappush(self._riders.setdefault(leader, []), (until, self._next(), group))

    def advanced(self, leader: Sequence) -> None:
        """More of a running sequence is computed."""
        if leader in self._riders:
            self._wake(leader, leader.computed)

    # ---- who is next

    def begin_step(self) -> None:
        """Those who are asked for next belong to a new step."""
        self._steps += 1

    def heads(self, *, shortest_first: bool = False) -> Iterator[Sequence]:
        """Waiting sequences in the order in which they may be admitted, as that changes while some are admitted.

        The first of each group, if none of it rides. One that is passed over comes no more, and its caller's next comes
        behind those of the others. `shortest_first`: the callers' first ones by length instead of by turn.
        """
        by_count = self._steps % 2 == 1
        passed: set[_Group] = set()

        def key(caller: _Caller, passes: int = 0) -> tuple[int, int, int, int, _Caller]:
            order = caller.served if by_count else caller.admitted
            if shortest_first:
                order = next(iter(caller.ready)).head.length if caller.ready else 0
            return len(caller.running) + passes, order, caller.arrival, passes, caller

        heap = [key(caller) for caller in self._callers.values() if caller.ready]
        heapq.heapify(heap)
        while heap:
            *_, passes, caller = heapq.heappop(heap)
            group = next((group for group in caller.ready if group not in passed), None)
            if group is None:
                continue
            head = group.head
            yield head
            if group in caller.ready and group.head is head:
                passed.add(group)
                passes += 1
            heapq.heappush(heap, key(caller, passes))

    def rows(self, decoding: list[Sequence], most: int, rest: int) -> list[Sequence]:
        """Which of these running sequences get their next token in this step, at most `most`.

        Each caller gets one first, then one more each in turn, up to `rest` in all; a caller's own take turns. If there
        are more callers than `most`, they take turns too, and half of the rows are for newcomers.
        """
        if len(decoding) <= min(most, rest):
            return decoding
        wanted = set(decoding)
        callers = dict.fromkeys(self._callers[sequence.request.caller] for sequence in decoding)
        order = sorted(callers, key=lambda caller: (caller.row, caller.arrival))
        if len(order) > most:  # newcomers first, but no more of them than half of the rows
            new = sorted((caller for caller in order if caller.served < self._floor), key=lambda caller: caller.served)
            order = list(dict.fromkeys([*new[: most // 2], *order]))
        chosen: list[Sequence] = []
        queues = [[sequence for sequence in caller.running if sequence in wanted] for caller in order[:most]]
        number = self._next()
        for caller in order[:most]:
            caller.row = number
        most = max(min(rest, most), len(queues))
        for turn in range(max(map(len, queues))):
            queues = [queue for queue in queues if len(queue) > turn]
            chosen += [queue[turn] for queue in queues[: most - len(chosen)]]
            if len(chosen) == most:
                break
        for sequence in chosen:
            running = self._callers[sequence.request.caller].running
            del running[sequence]
            running[sequence] = None
        return chosen

    def is_new(self, sequence: Sequence) -> bool:
        """Whether its caller has not used up its head start."""
        return self._callers[sequence.request.caller].served < self._floor

    def is_greediest(self, sequence: Sequence) -> bool:
        """Whether nobody has more running sequences than its caller, which has several."""
        own = len(self._callers[sequence.request.caller].running)
        return own > 1 and own == max(len(caller.running) for caller in self._callers.values())

    # ---- within

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _caller(self, sequence: Sequence) -> _Caller:
        name = sequence.request.caller
        caller = self._callers.get(name)
        if caller is None:
            if self._callers:
                self._floor = max(self._floor, min(caller.served for caller in self._callers.values()))
            caller = self._callers[name] = _Caller(name, self._next(), self._floor - HEAD_START)
            caller.admitted = caller.row = caller.arrival
        return caller

    def _take(self, sequence: Sequence) -> None:
        """Out of its group, which goes if it was the last."""
        group = self._waiting.pop(sequence)
        del group.sequences[sequence]
        if group.sequences:
            return
        if self._fresh.get(id(sequence.request)) is group:
            del self._fresh[id(sequence.request)]
        if group.leader is None:
            del group.caller.ready[group]
        else:
            group.caller.riding -= 1  # its leader finds it empty

    def _wake(self, leader: Sequence, computed: int | None = None) -> None:
        """Offer again those that ride on a sequence and have what they waited for; None: all of them."""
        riders = self._riders.get(leader, [])
        woken: list[tuple[int, _Group]] = []
        while riders and (computed is None or riders[0][0] <= computed):
            _, order, group = heapq.heappop(riders)
            if group.sequences:
                woken.append((order, group))
        if not riders:
            self._riders.pop(leader, None)
            self._riders_served.pop(leader, None)
        for _, group in sorted(woken, key=lambda entry: entry[0], reverse=True):
            group.leader = None
            group.caller.riding -= 1
            group.caller.ready[group] = None
            group.caller.ready.move_to_end(group, last=False)

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise AssertionError unless everybody is in one place. `running`: those that the scheduler runs."""
        callers = self._callers.values()
        assert {id(s) for caller in callers for s in caller.running} == {id(s) for s in running}
        assert not any(caller.is_gone for caller in callers), "a caller who is gone is kept"
        riding = [group for riders in self._riders.values() for *_, group in riders if group.sequences]
        groups = [group for caller in callers for group in caller.ready] + riding
        found = [sequence for group in groups for sequence in group.sequences]
        assert len(found) == len(self._waiting) == len(set(found)), "a waiting sequence is lost or twice there"
        for group in groups:
            assert group.sequences, "an empty group is kept"
            assert (group.leader is None) == (group in group.caller.ready)
            assert all(self._waiting[sequence] is group for sequence in group.sequences)
            assert len({id(sequence.request) for sequence in group.sequences}) == 1
        for caller in callers:
            assert caller.riding == sum(group.caller is caller for group in riding)
        assert set(self._riders) <= set(running), "somebody rides on one that does not run"
        assert set(self._riders_served) == set(self._riders)
        assert all(group.sequences for group in self._fresh.values()), "a request that has begun is kept"
