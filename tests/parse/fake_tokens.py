"""A vocabulary made on the spot: the k-th id stands for the k-th bytes given. Real bytes, real ids, no model."""

import itertools
from collections.abc import Sequence, Set

from tokenline.parse.delta import ContentDelta, Delta


class Vocabulary:
    def __init__(
        self, pieces: Sequence[bytes | str], *, special: Set[int] = frozenset(), strips_leading_space: bool = False
    ) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.special = special
        self.strips_leading_space = strips_leading_space

    @property
    def ids(self) -> list[int]:
        return list(range(len(self.pieces)))

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def content(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def cut_at(data: bytes, borders: Set[int]) -> list[bytes]:
    """`data` cut into pieces at these positions."""
    edges = [0, *sorted(border for border in borders if 0 < border < len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]
