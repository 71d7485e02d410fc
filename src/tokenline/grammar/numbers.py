"""Numbers of schemas as the grammar library holds them: IEEE doubles, 64-bit integers, multiples of 32 bits."""

import math
from collections.abc import Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tokenline.grammar.limits import MAX_MULTIPLE

LARGEST = 999_999_999_999_999_872  # the largest bound it can write an expression for: the double below 10 ** 18
SMALLEST = 1e-15
_EXACT = 2**53  # up to here every integer is a double


def is_finite(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def representable(value: Any) -> bool:
    """Whether all numbers in a JSON value are themselves as doubles, and have a decimal notation of sensible length."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return True
    if isinstance(value, int | float):
        return is_finite(value) and abs(value) <= _EXACT and (value == 0 or abs(value) >= SMALLEST)
    return all(map(representable, value.values() if isinstance(value, dict) else value))


def inward(value: float, *, is_minimum: bool) -> float | None:
    """A bound that the library can hold: where it cannot, the next one that allows no value more; None if there is
    none.
    """
    sign = 1 if is_minimum else -1
    if value * sign > LARGEST:
        return None
    if value * sign < -LARGEST:
        return -LARGEST * sign
    if 0 < abs(value) < SMALLEST:
        return SMALLEST * sign if value * sign > 0 else 0
    near = float(value)
    if near != value and (near < value) == is_minimum:
        near = math.nextafter(near, math.inf * sign)
    return value if near == value else near


def shorter(bound: float) -> list[float]:
    """The numbers that are beginnings of a bound's decimals: of 1.257 these are 1.2 and 1.25. Of all that is nearer to
    0 than a bound, the library overlooks just these.
    """
    whole, _, decimals = format(Decimal(repr(bound)), "f").partition(".")
    return [float(f"{whole}.{decimals[:length]}") for length in range(1, len(decimals))]


def scaled(step: float) -> tuple[int, int] | None:
    """A multiple as an integer of so many decimal places; None if that has too many digits."""
    if step > MAX_MULTIPLE:
        return None
    value, places = float(step), 0
    while not value.is_integer():
        value, places = value * 10, places + 1
        if places > 9 or value > MAX_MULTIPLE:
            return None
    return int(value), places


def multiples_fit(steps: Collection[float]) -> bool:
    """Whether common multiples of these, worked out with 32 bits where several hold for one number, are right."""
    found = [pair for step in steps if (pair := scaled(step)) is not None]
    most = max((places for _, places in found), default=0)
    units = [value * 10 ** (most - places) for value, places in found]
    return len(units) < 2 or math.lcm(*units) * max(units) < 2**32


def has_multiple(bounds: Mapping[str, float], step: float, *, whole: bool) -> bool:
    """Whether a multiple of `step` fulfils a schema's bounds. `whole`: one that is an integer."""
    unit = Fraction(repr(step))
    if whole:
        unit = Fraction(unit.numerator)  # the least common multiple with 1
    low, high = -math.inf, math.inf  # how many times the step
    for keyword, bound in bounds.items():
        times = Fraction(repr(bound)) / unit
        match keyword:
            case "minimum":
                low = max(low, math.ceil(times))
            case "exclusiveMinimum":
                low = max(low, math.floor(times) + 1)
            case "maximum":
                high = min(high, math.floor(times))
            case "exclusiveMaximum":
                high = min(high, math.ceil(times) - 1)
    return low <= high
