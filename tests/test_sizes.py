"""Sizes as people read and write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenline.sizes import format_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1073741824", 1 << 30),
        ("512M", 512 << 20),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("4G", 4 << 30),
        ("4GB", 4_000_000_000),
        ("1.5k", 1536),
        (" 2 TiB ", 2 << 40),
        ("100B", 100),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "0", "-1", "1.5.2G", "4Q", "4 G iB", "nan", "inf", "1e9", "٤G", "9" * 400])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid size; write it like 4GiB|at least 1 byte"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (98_362_432, "93.8 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (10 << 30, "10.0 GiB"),
        (5 << 50, "5,120.0 TiB"),
    ],
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(min_value=1, max_value=1 << 49))
def test_a_written_size_is_read_back_to_its_precision(count: int) -> None:
    again = parse_size(format_bytes(count).replace("bytes", "B"))
    assert abs(again - count) <= max(0.05 * 1024 ** ((count.bit_length() - 1) // 10), 0.001 * count)
