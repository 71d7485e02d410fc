"""How long work (downloading, hashing, loading) reports how far it is, without knowing who draws it."""

from typing import Protocol


class Progress(Protocol):
    """`done` and `total` are bytes; `total` is None while it is not known. May be called very often."""

    def __call__(self, what: str, done: int, total: int | None, /) -> None: ...


def no_progress(what: str, done: int, total: int | None, /) -> None:
    """Nobody is watching."""
