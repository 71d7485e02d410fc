"""Keys are equal exactly as far as lines are: same start, same namespace, same root."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenline.engine.prefix_hashes import PrefixHashes
from tokenline.engine.request import Namespace

ids = st.lists(st.integers(0, 2), max_size=24)


def keys(line, namespace=None, root=b"", block_size=4) -> list[bytes]:
    return PrefixHashes(block_size, root).of(namespace or Namespace(), np.asarray(line, np.int32))


@given(ids, ids)
def test_lines_share_keys_as_far_as_they_share_whole_blocks(a, b):
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    shared = common // 4 + 1
    one, two = keys(a), keys(b)
    assert len(one) == len(a) // 4 + 1
    assert one[:shared] == two[:shared]
    assert not set(one[shared:]) & set(two[shared:])


@given(ids, st.integers(0, 24))
def test_a_longer_line_has_the_keys_of_its_beginning(line, cut):
    assert keys(line)[: cut // 4 + 1] == keys(line[:cut])[: len(line) // 4 + 1]


def test_namespaces_and_roots_have_no_key_in_common():
    line = list(range(32))
    namespaces = [
        Namespace(),
        Namespace(adapter="X"),
        Namespace(salt="X"),
        Namespace(caller="ab", salt="c"),
        Namespace(caller="a", salt="bc"),
        Namespace(caller="None"),
        Namespace(caller="a', adapter='b"),
        Namespace(caller="a", adapter="b"),
        Namespace(salt="\ud800"),
    ]
    all_keys = [key for ns in namespaces for root in (b"", b"one", b"two") for key in keys(line, ns, root)]
    assert len(set(all_keys)) == len(namespaces) * 3 * 9


def test_a_slice_of_an_array_is_hashed_by_its_values():
    assert keys(np.arange(64, dtype=np.int32)[::2]) == keys(list(range(0, 64, 2)))


@given(st.lists(st.tuples(st.sampled_from([Namespace(), Namespace(salt="X")]), ids), max_size=8))
def test_keys_do_not_depend_on_the_lines_named_before(lines):
    named = PrefixHashes(4)
    for namespace, line in lines:
        assert named.of(namespace, np.asarray(line, np.int32)) == keys(line, namespace)


def test_a_line_that_is_changed_in_place_has_other_keys():
    line, named = np.arange(12, dtype=np.int32), PrefixHashes(4)
    first = named.of(Namespace(), line)
    line[5] = 99
    assert named.of(Namespace(), line) == keys(line) != first
