"""Drawing one id from one row of logits, without sorting the vocabulary.

A token's weight is `round(2**42 * exp((logit - largest) / temperature))`, an integer. Sums of integers are exact in any
order, so a draw depends on nothing but the row: not on how many rows there are, nor on how a loop was cut.

Tokens stand in the order of their logits, largest first, equal ones in the order of their ids. Whatever top_k, top_p
and min_p leave is a beginning of that order; so all there is to find is the mass of it, and then the token in which the
drawn mass lies. A small top_k is found first, by its logits alone. Else a histogram of the scores says in which narrow
range of them either is, and only there tokens are put in order, by quickselect on their masses.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from tokenline.models.cpu.simd import kernel, noinline

WEIGHT_BITS = 42  # the weights of 2**21 tokens add up to less than 2**63

_LOWEST = -64.0  # score to base 2 at which weights have long been 0
_BUCKETS = 2049  # 32 for each unit of score
_CHUNK = 1024  # scores that are weighed together: what that needs stays in the first-level cache
_FEW = 24  # tokens that are sorted by insertion
_SMALL_TOP_K = 1024  # so many are found first, and only they are weighed
_SKIPPED = 256  # tokens that are passed over together where none is among the best

# Added to a number below 2**51 it leaves that, rounded to nearest, in the lower bits of the sum: a conversion to
# integers that every CPU does several at a time.
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))
_INV_LN2 = 1 / math.log(2)
# A polynomial for 2**f, |f| <= 1/2, interpolated at Chebyshev's points: right to 2e-14
_C0, _C1, _C2, _C3, _C4 = (
    1.0000000000000135,
    0.6931471805599498,
    0.2402265069563948,
    0.055504108664468914,
    0.009618129194050473,
)
_C5, _C6, _C7, _C8, _C9 = (
    0.001333355822572473,
    0.00015403433700552133,
    1.5252660064300674e-05,
    1.3259652175334891e-06,
    1.020815755911803e-07,
)


class Workspace(NamedTuple):
    """Memory to work in. Made outside of the compiled code: to make an array there costs half a second of compiling."""

    weights: np.ndarray  # int64 [vocab]
    buckets: np.ndarray  # int16 [vocab]
    tokens: np.ndarray  # int64 [vocab]
    counts: np.ndarray  # int32 [_BUCKETS]
    masses: np.ndarray  # int64 [_BUCKETS]
    floats: np.ndarray  # float64 [3 * _CHUNK]
    ints: np.ndarray  # the same, as int64
    ids: np.ndarray  # int64 [_SMALL_TOP_K]
    best: np.ndarray  # float32 [_SMALL_TOP_K]


@njit(nogil=True, cache=True, error_model="numpy")
def draw(logits, temperature, top_k, top_p, min_p, uniform, work):  # type: ignore[no-untyped-def]
    """The id that `uniform` in [0, 1) draws from float32 [vocab], for a temperature above 0. A logit must be finite."""
    vocab = len(logits)
    if 0 < top_k < vocab and top_k <= _SMALL_TOP_K:
        _take_best(logits, vocab, top_k, work)
        return work.ids[_draw(work.best, top_k, temperature, 0, top_p, min_p, uniform, work, True)]
    return _draw(logits, vocab, temperature, top_k, top_p, min_p, uniform, work, False)


@kernel
def _draw(logits, vocab, temperature, top_k, top_p, min_p, uniform, work, in_order):  # type: ignore[no-untyped-def]
    """The place in the first `vocab` of `logits`."""
    noinline()
    weights = work.weights
    largest = np.float64(logits[0])
    for i in range(vocab):
        largest = max(largest, np.float64(logits[i]))
    factor = min(_INV_LN2 / temperature, 1e300)  # never infinite: 0 times it is 0
    total = _weigh(logits, vocab, largest, factor, work)
    few = 0 < top_k < vocab
    in_order = in_order or few or top_p < 1
    if in_order:
        for bucket in range(_BUCKETS):
            work.counts[bucket], work.masses[bucket] = 0, 0
        for i in range(vocab):
            work.counts[work.buckets[i]] += 1
            work.masses[work.buckets[i]] += weights[i]
    if few:
        total = _find(logits, vocab, work, True, top_k - 1)[1]
    if top_p < 1:
        # a token stays while the mass before it is below top_p: up to the one that holds the last unit of that mass
        nucleus = min(max(np.int64(math.ceil(top_p * total)), 1), total)
        total = _find(logits, vocab, work, False, nucleus - 1)[1]
    least = np.int64(math.ceil(min_p * 2.0**WEIGHT_BITS))
    if least > 0:
        mass = np.int64(0)
        for i in range(vocab):
            mass += weights[i] if weights[i] >= least else 0
        total = min(total, mass)
    drawn = min(np.int64(uniform * total), total - 1)
    if in_order:
        return _find(logits, vocab, work, False, drawn)[0]
    last = 0
    for i in range(vocab):
        if weights[i] >= least:
            drawn -= weights[i]
            last = i
            if drawn < 0:
                break
    return last


@kernel
def _take_best(logits, vocab, wanted, work):  # type: ignore[no-untyped-def]
    """Put into `work` the `wanted` most likely tokens, in order of their ids, and their logits."""
    noinline()
    keys, ids, best, bits = work.tokens, work.ids, work.best, logits.view(np.int32)
    bound, size = np.int64(0x7FFFFFFFFFFFFFFF), 0  # what was the last of `wanted` keys, and keys that come before it
    for collecting in (True, False):
        taken = 0
        for start in range(0, vocab, _SKIPPED):
            stop = min(start + _SKIPPED, vocab)
            most = np.int32(-0x80000000)
            for i in range(start, stop):
                most = max(most, bits[i] ^ ((bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
            if -(np.int64(most) + 1) << 32 > bound:  # + 1: a negative zero counts as a positive one
                continue
            for i in range(start, stop):
                key = _key(logits, bits, i)
                if collecting and key < bound:
                    keys[size] = key
                    size += 1
                    if size == 2 * wanted:
                        bound, size = _smallest(keys, size, wanted), wanted
                if not collecting and key <= bound:
                    ids[taken], best[taken] = i, logits[i]
                    taken += 1
        if collecting:
            bound = _smallest(keys, size, wanted)


@kernel
def _smallest(keys, size, wanted):  # type: ignore[no-untyped-def]
    """Put the `wanted` smallest of the first `size` keys first; the largest of these."""
    low, high = 0, size
    while high - low > _FEW:
        middle = _partition(keys, low, high)
        if wanted <= middle:
            high = middle
        else:
            low = middle
    _sort(keys, low, high)
    return keys[wanted - 1]


@kernel
def _key(logits, bits, token):  # type: ignore[no-untyped-def]
    """Smaller for what stands first: above, the logit's bits as an integer (both zeros alike), below, the id."""
    rank = (
        np.int64(0)
        if logits[token] == 0
        else np.int64(bits[token] ^ ((bits[token] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    )
    return (-rank << 32) + token


@kernel
def _weigh(logits, vocab, largest, factor, work):  # type: ignore[no-untyped-def]
    """Fill in the tokens' weights and buckets; the sum of the weights. `factor` makes scores to base 2 of differences
    from the largest logit.
    """
    noinline()
    floats, ints, weights, buckets = work.floats, work.ints, work.weights, work.buckets
    total = np.int64(0)
    for start in range(0, vocab, _CHUNK):
        size = min(_CHUNK, vocab - start)
        for i in range(size):
            score = (np.float64(logits[start + i]) - largest) * factor
            score = score if score > _LOWEST else _LOWEST
            floats[2 * _CHUNK + i] = _MAGIC - score * 32
            exponent = score + _MAGIC
            floats[_CHUNK + i] = exponent
            f = score - (exponent - _MAGIC)
            f2 = f * f
            f4 = f2 * f2
            low, middle = (_C0 + _C1 * f) + (_C2 + _C3 * f) * f2, (_C4 + _C5 * f) + (_C6 + _C7 * f) * f2
            floats[i] = low + (middle + (_C8 + _C9 * f) * f4) * f4
        for i in range(size):  # 2**(exponent + WEIGHT_BITS), put together from its bits
            ints[_CHUNK + i] = (ints[_CHUNK + i] - _MAGIC_BITS + (WEIGHT_BITS + 1023)) << 52
        for i in range(size):
            floats[i] = floats[i] * floats[_CHUNK + i] + _MAGIC
        for i in range(size):
            weight = ints[i] - _MAGIC_BITS
            weights[start + i] = weight
            total += weight
        for i in range(size):
            buckets[start + i] = np.int16(ints[2 * _CHUNK + i] - _MAGIC_BITS)
    return total


@kernel
def _find(logits, vocab, work, by_count, target):  # type: ignore[no-untyped-def]
    """The first token, in order, with more than `target` tokens (or mass) before it and in it, and the mass of all
    these. `target` is less than all there are.
    """
    noinline()
    weights, buckets, tokens, counts, masses = work.weights, work.buckets, work.tokens, work.counts, work.masses
    mass, bucket = np.int64(0), 0
    while True:
        inside = np.int64(counts[bucket]) if by_count else masses[bucket]
        if target < inside:
            break
        target -= inside
        mass += masses[bucket]
        bucket += 1
    low, high = 0, 0
    bits = logits.view(np.int32)
    for i in range(vocab):
        if buckets[i] == bucket:
            tokens[high] = _key(logits, bits, i)
            high += 1
    while high - low > _FEW:
        middle = _partition(tokens, low, high)
        amount, passed = np.int64(middle - low), np.int64(0)
        for i in range(low, middle):
            passed += weights[tokens[i] & 0xFFFFFFFF]
        if not by_count:
            amount = passed
        if target < amount:
            high = middle
        else:
            target -= amount
            mass += passed
            low = middle
    _sort(tokens, low, high)
    for i in range(low, high):
        token = tokens[i] & 0xFFFFFFFF
        mass += weights[token]
        target -= 1 if by_count else weights[token]
        if target < 0:
            return token, mass
    return np.int64(-1), mass  # not reached: see `target`


@kernel
def _sort(keys, low, high):  # type: ignore[no-untyped-def]
    """By insertion."""
    for i in range(low + 1, high):
        key, j = keys[i], i
        while j > low and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@kernel
def _partition(keys, low, high):  # type: ignore[no-untyped-def]
    """Hoare's: put smaller keys before larger ones; where the larger begin, which is inside. All keys differ."""
    first, second, third = keys[low], keys[(low + high) // 2], keys[high - 1]
    pivot = max(min(first, second), min(max(first, second), third))
    i, j = low, high - 1
    while i <= j:
        while keys[i] < pivot:
            i += 1
        while keys[j] > pivot:
            j -= 1
        if i <= j:
            keys[i], keys[j] = keys[j], keys[i]
            i += 1
            j -= 1
    return i


def compile_draw() -> None:
    """Compile now what the first drawn token would wait for, or find it on disk."""
    draw(np.zeros(1, np.float32), 1.0, 0, 1.0, 0.0, 0.0, workspace(1))


def workspace(vocab: int) -> Workspace:
    """Memory for `draw` with a vocabulary of this size."""
    floats = np.empty(3 * _CHUNK, np.float64)
    return Workspace(
        weights=np.empty(vocab, np.int64),
        buckets=np.empty(vocab, np.int16),
        tokens=np.empty(vocab, np.int64),
        counts=np.empty(_BUCKETS, np.int32),
        masses=np.empty(_BUCKETS, np.int64),
        floats=floats,
        ints=floats.view(np.int64),
        ids=np.empty(_SMALL_TOP_K, np.int64),
        best=np.empty(_SMALL_TOP_K, np.float32),
    )
