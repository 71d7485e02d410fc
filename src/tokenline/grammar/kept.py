"""What was compiled, kept for the next request of the same namespace: another's must not be faster for it."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Values by namespace and source, at most so many in all. May be used by several threads.

    Where there are too many, the namespace whose sources are longest in all gives up its least recently used one.
    """

    def __init__(self, max_count: int, max_length: int) -> None:
        """`max_length`: characters of all sources."""
        self._max_count = max_count
        self._max_length = max_length
        self._lock = threading.Lock()  # held for look-ups only
        self._values: dict[Hashable, OrderedDict[str, T]] = {}
        self._lengths: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def get(self, namespace: Hashable, source: str) -> T | None:
        with self._lock:
            values = self._values.get(namespace)
            if values is None or source not in values:
                return None
            values.move_to_end(source)
            return values[source]

    def put(self, namespace: Hashable, source: str, value: T) -> None:
        with self._lock:
            values = self._values.setdefault(namespace, OrderedDict())
            if source in values:
                return
            values[source] = value
            self._lengths[namespace] = self._lengths.get(namespace, 0) + len(source)
            while len(self) > self._max_count or (sum(self._lengths.values()) > self._max_length and len(self) > 1):
                self._drop(max(self._lengths, key=self._lengths.__getitem__))

    def _drop(self, namespace: Hashable) -> None:
        values = self._values[namespace]
        self._lengths[namespace] -= len(values.popitem(last=False)[0])
        if not values:
            del self._values[namespace], self._lengths[namespace]
