"""A mapping that is copied at its first change. Pure."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class CopyOnWriteMap(Mapping[K, V]):
    """The entries of ``base``, and the changes that were made since. The mapping ``base`` never changes.

    The first change after the construction, or after ``freeze``, copies all entries. Views (``items()``, ``keys()``, ``values()``)
    need not show changes that were made after them.
    """

    __slots__ = ("_entries", "_own")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._entries = base
        self._own: dict[K, V] | None = None
        """The copy, if there was a change. It is ``_entries`` then."""

    @property
    def changed(self) -> bool:
        """Whether an entry was put or removed since the construction or the last ``freeze``."""
        return self._own is not None

    def put(self, key: K, value: V | None) -> None:
        """Set an entry. The value None removes the entry, if there is one."""
        own = self._own
        if own is None:
            if value is None and key not in self._entries:
                return
            own = self._entries = self._own = dict(self._entries)
        if value is None:
            own.pop(key, None)
        else:
            own[key] = value

    def freeze(self) -> Mapping[K, V]:
        """The entries as a mapping that never changes: ``base`` itself if there was no change. Later changes make a new copy."""
        self._own = None
        return self._entries

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...

    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        return self._entries.get(key, default)

    def items(self) -> ItemsView[K, V]:
        return self._entries.items()

    def keys(self) -> KeysView[K]:
        return self._entries.keys()

    def values(self) -> ValuesView[V]:
        return self._entries.values()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._entries!r})"
