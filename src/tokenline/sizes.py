"""Sizes in bytes as people read and write them: "4GiB"."""

import re

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_FACTORS = {"": 1, "b": 1} | {
    unit + suffix: base**power
    for power, unit in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def parse_size(text: str) -> int:
    """Bytes: "4GiB" and "4G" are 4 * 1024**3, "4GB" is 4 * 1000**3, "4096" is 4096. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text, re.ASCII)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None or len(match[1]) > 30:
        raise ValueError(f"{text!r} is not a valid size; write it like 4GiB, 512M or 1073741824")
    size = int(float(match[1]) * factor)
    if size < 1:
        raise ValueError(f"{text!r} is too small: a size must be at least 1 byte")
    return size


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1024: "93.8 MiB"."""
    for unit in UNITS[:-1]:
        if round(count, 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} {UNITS[-1]}"
