"""Attacks as data: requests that must harm nobody but their sender. Each module has those of one topic, as `BOMBS`.

`bench.attacks` runs them with a probe beside them and prints figures; `tests/attack/test_bombs.py` asserts outcomes.
"""

from importlib import import_module
from pkgutil import iter_modules

from bench.bombs.bomb import Bomb


def all_bombs() -> list[Bomb]:
    """All of them, by topic."""
    topics = sorted(module.name for module in iter_modules(__path__) if module.name != "bomb")
    return [bomb for topic in topics for bomb in import_module(f"{__name__}.{topic}").BOMBS]
