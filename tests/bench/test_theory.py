"""The theory that the benchmark holds a prefix cache against."""

import numpy as np
from bench.theory import fewest_prefilled
from hypothesis import given
from hypothesis import strategies as st

ids = st.lists(st.integers(0, 2), max_size=8)


def line(prompt: list[int], answer: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(prompt, np.int32), np.array(answer, np.int32)


def test_a_conversation_pays_for_each_new_message_once():
    system, hello, answer, more = [1] * 10, [2] * 4, [3] * 5, [4] * 6
    first = line(system + hello, answer)
    second = line(system + hello + answer + more, [5])
    stranger = line(system + [6] * 3, [7])
    again = line(system + hello, [8])
    assert fewest_prefilled([first]) == 14
    assert fewest_prefilled([first, second]) == 14 + 6
    assert fewest_prefilled([first, second, stranger]) == 14 + 6 + 3
    assert fewest_prefilled([first, second, stranger, again]) == 14 + 6 + 3 + 1, "its last token has to be computed"


@given(st.lists(st.tuples(ids.filter(bool), ids), max_size=6))
def test_it_is_the_number_of_positions_that_nothing_earlier_has(lines: list[tuple[list[int], list[int]]]):
    held: set[tuple[int, ...]] = set()
    fewest = 0
    for prompt, answer in lines:
        beginnings = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
        fewest += max(1, sum(beginning not in held for beginning in beginnings))
        whole = prompt + answer
        held |= {tuple(whole[: n + 1]) for n in range(len(whole))}
    assert fewest_prefilled([line(*each) for each in lines]) == fewest
