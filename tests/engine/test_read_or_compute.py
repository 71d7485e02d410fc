"""The rule: read where reading is faster, by what was measured."""

import os

import pytest

from tokenline.engine.prefill_budget import PrefillSpeed
from tokenline.engine.read_or_compute import ReadOrCompute, measure_read_speed


def rule_and_speed() -> tuple[ReadOrCompute, PrefillSpeed]:
    speed = PrefillSpeed()
    return ReadOrCompute(speed), speed


def test_reads_as_long_as_it_knows_too_little():
    rule, speed = rule_and_speed()
    assert rule.read_is_faster(10**12, 1)
    speed.saw_step(1000, 1000, 1.0)
    assert rule.read_is_faster(10**12, 1)


@pytest.mark.parametrize(("bytes_per_token", "reads"), [(10_000, True), (1_000_000, False)])
def test_compares_two_times(bytes_per_token, reads):
    rule, speed = rule_and_speed()
    rule.saw_read(100 * 10**6, 1.0)
    speed.saw_step(1000, 1000, 1.0)  # 1 ms a token; in which 100 kB are read
    assert rule.read_is_faster(64 * bytes_per_token, 64) is reads


def test_learns_from_what_it_sees_later():
    rule, speed = rule_and_speed()
    rule.saw_read(10**9, 1.0)
    speed.saw_step(1000, 1000, 10.0)  # the first step is slow: it warms up
    assert rule.read_is_faster(10**6 * 64, 64)
    for _ in range(40):
        speed.saw_step(100_000, 100_000, 1.0)
    assert not rule.read_is_faster(10**6 * 64, 64)


def test_small_steps_say_nothing_of_prefill():
    rule, speed = rule_and_speed()
    speed.saw_step(3, 3, 1.0)
    speed.saw_step(1000, 1000, 0.0)
    assert speed.tokens_per_s is None
    assert rule.read_is_faster(10**12, 1)


def test_patience_grows_with_what_computing_would_take():
    rule, speed = rule_and_speed()
    unknown = rule.patience_s(100)
    speed.saw_step(1000, 1000, 1.0)
    assert 1.0 < rule.patience_s(100) < rule.patience_s(10_000) < 30
    assert unknown >= 1.0


def test_the_probe_measures_and_leaves_nothing(tmp_path):
    speed = measure_read_speed(tmp_path, 1 << 20)
    assert speed is not None
    assert speed > 0
    assert os.listdir(tmp_path) == []
    assert measure_read_speed(tmp_path / "none") is None


def test_the_probe_takes_a_full_disk(small_disk):
    assert measure_read_speed(small_disk) is None
    assert os.listdir(small_disk) == []
