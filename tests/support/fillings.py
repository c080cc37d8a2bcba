"""Requests that are generated from the wire schema, as large as one asks for.

``fillings_of`` lists the shapes of an API: for each array of its schema one in which that array has all the elements, and one in
which all arrays have several. Each has names that exist, that repeat, that do not exist, or that are as long as names can be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from app.wire.codec import shape_of, struct_name
from app.wire.compiler import FIXED, Shape
from app.wire.primitives import STRING_BYTES_MAX, uvarint
from app.wire.schema import Field

Part: TypeAlias = bytes | Callable[[int], bytes]
"""Of an encoded struct: alike in each element, or by the number of the element."""


class Names(Enum):
    """Which names the elements of a request have."""

    EXISTING = "existing"
    REPEATED = "repeated"
    UNKNOWN = "unknown"
    LONGEST = "longest"


class Filling(NamedTuple):
    """How a request is filled."""

    widest: tuple[str, ...]
    """Path of the array that has all elements; empty for a request in which all arrays have several."""
    count: int
    names: Names

    def __str__(self) -> str:
        return f"{self.count} × {'.'.join(self.widest) or 'each array'}, {self.names.value}"


@dataclass
class Domains:
    """Which values the fields of requests have."""

    names: Mapping[str, Sequence[str]]
    """Names that exist, by what they name."""
    kinds: Mapping[str, str]
    """What a field names, by ``Struct.field`` or ``field``."""
    ids: Sequence[UUID]
    """Of the topics, in the order of ``names["topic"]``."""
    partitions: int
    """Of the first topic."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Of other fields, by ``Struct.field`` or ``field``."""


def arrays_of(shape: Shape, struct: str, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all arrays in a struct."""
    for item in shape.wire_fields(struct):
        inner = (*path, item.name)
        if item.is_array:
            yield inner
        if item.kind in shape.classes:
            yield from arrays_of(shape, item.kind, inner)


def fillings_of(key: int, version: int, count: int) -> Iterator[Filling]:
    """Every shape of a request."""
    shape = shape_of(key, version)
    assert shape is not None
    paths = list(arrays_of(shape, struct_name(key, True)))
    widest: list[tuple[str, ...]] = [*paths]
    if any(len(path) > 1 for path in paths):
        widest.append(())
    for path, names in itertools.product(widest or [()], Names):
        yield Filling(path, count, names)


class Filler:
    """Writes requests of one API and version."""

    def __init__(self, key: int, version: int, domains: Domains, values: Mapping[str, Any]) -> None:
        shape = shape_of(key, version)
        assert shape is not None
        self._shape = shape
        self._struct = struct_name(key, True)
        self._domains = domains
        self._values = {**domains.values, **values}
        self._depth = max((len(path) for path in arrays_of(shape, self._struct)), default=1)

    def body(self, filling: Filling) -> bytes:
        """The body of a request."""
        return b"".join(
            part if isinstance(part, bytes) else part(0) for part in self._struct_parts(self._struct, (), filling)
        )

    def _struct_parts(self, struct: str, path: tuple[str, ...], filling: Filling) -> list[Part]:
        parts: list[Part] = []
        for item in self._shape.untagged(struct):
            self._put(parts, self._field_parts(struct, item, path, filling))
        if self._shape.is_flexible:
            tagged = [
                (item.tag, self._field_parts(struct, item, path, filling))
                for item in self._shape.tagged(struct)
                if self._key_of(struct, item) in self._values or item.name in self._values
            ]
            self._put(parts, [uvarint(len(tagged))])
            for tag, inside in tagged:
                assert tag is not None
                made = b"".join(part if isinstance(part, bytes) else part(0) for part in inside)
                self._put(parts, [uvarint(tag) + uvarint(len(made)) + made])
        return parts

    @staticmethod
    def _put(parts: list[Part], more: Sequence[Part]) -> None:
        for part in more:
            if isinstance(part, bytes) and parts and isinstance(parts[-1], bytes):
                parts[-1] += part
            else:
                parts.append(part)

    @staticmethod
    def _key_of(struct: str, item: Field) -> str:
        return f"{struct}.{item.name}"

    def _field_parts(self, struct: str, item: Field, path: tuple[str, ...], filling: Filling) -> list[Part]:
        inner = (*path, item.name)
        is_struct = item.kind in self._shape.classes
        if not item.is_array:
            if is_struct:
                made = self._struct_parts(item.kind, inner, filling)
                return [b"\x01", *made] if item.is_nullable else made
            return [self._value(struct, item, path, filling)]
        count = self._count(inner, filling)
        given = self._values.get(self._key_of(struct, item), self._values.get(item.name, 0))
        if count <= 1 and (given is None or given == []):
            return [self._length(None if given is None and item.is_nullable else 0, "i")]
        element = item._replace(is_array=False, is_nullable=False)
        parts = (
            self._struct_parts(item.kind, inner, filling)
            if is_struct
            else [self._value(struct, element, inner, filling)]
        )
        if all(isinstance(part, bytes) for part in parts):
            return [self._length(count, "i"), b"".join(part for part in parts if isinstance(part, bytes)) * count]
        if count == 1:
            return [self._length(1, "i"), *parts]
        made = [part if isinstance(part, bytes) else part(index) for index in range(count) for part in parts]
        return [self._length(count, "i") + b"".join(made)]

    def _count(self, path: tuple[str, ...], filling: Filling) -> int:
        if path == filling.widest:
            return filling.count
        if filling.widest:
            return 1
        return max(1, round(filling.count ** (1 / self._depth)))

    def _length(self, count: int | None, code: str) -> bytes:
        if self._shape.is_flexible:
            return uvarint(0 if count is None else count + 1)
        return Struct(f">{code}").pack(-1 if count is None else count)

    def _text(self, text: str | None) -> bytes:
        if text is None:
            return self._length(None, "h")
        raw = text.encode()
        return self._length(len(raw), "h") + raw

    def _value(self, struct: str, item: Field, path: tuple[str, ...], filling: Filling) -> Part:
        """``path`` is that of the array whose element the value is, or is in."""
        key = self._key_of(struct, item)
        given = self._values.get(key, self._values.get(item.name, ...))
        if given is not ...:
            if callable(given):
                return lambda index: self._encoded(item, given(index))
            return self._encoded(item, given)
        kind = self._domains.kinds.get(key) or self._domains.kinds.get(item.name)
        if kind is None:
            return self._encoded(item, self._default(item))
        make = self._named(kind, filling.names)
        if (
            filling.widest not in ((), path)
            and len(filling.widest) < len(path)
            and kind not in ("topic_id", "partition")
        ):
            make = self._named(kind, Names.EXISTING)  # of the one element within each of the many
        if kind == "partition" and filling.widest not in ((), path) and filling.names is not Names.UNKNOWN:
            return self._encoded(item, 0)  # which every topic has
        if filling.names is Names.REPEATED:
            return self._encoded(item, make(0))
        return lambda index: self._encoded(item, make(index))

    def _named(self, kind: str, names: Names) -> Callable[[int], Any]:
        domains = self._domains
        if kind == "partition":
            partitions = domains.partitions
            if names in (Names.EXISTING, Names.LONGEST):
                return lambda index: index % partitions
            return (lambda index: 0) if names is Names.REPEATED else lambda index: 1_000_000 + index
        if kind == "topic_id":
            if names in (Names.EXISTING, Names.REPEATED):
                ids = domains.ids
                return lambda index: ids[index % len(ids)]
            return lambda index: UUID(int=(1 << 100) + index)
        existing = domains.names[kind]
        if names in (Names.EXISTING, Names.REPEATED):
            return lambda index: existing[index % len(existing)]
        if names is Names.UNKNOWN:
            return lambda index: f"unknown-{index}"
        prefix = "x" * (STRING_BYTES_MAX - 10)
        return lambda index: f"{prefix}{index:010}"

    def _default(self, item: Field) -> Any:
        if item.kind == "string":
            return None if item.is_nullable else ""
        if item.kind in ("bytes", "records"):
            return b""
        if item.kind == "uuid":
            return UUID(int=0)
        if item.kind == "bool":
            return False
        return item.default if isinstance(item.default, (int, float)) else 0

    def _encoded(self, item: Field, value: Any) -> bytes:
        if item.kind == "string":
            return self._text(value)
        if item.kind in ("bytes", "records"):
            return self._length(None if value is None else len(value), "i") + (value or b"")
        if item.kind == "uuid":
            return bytes(value.bytes)
        return Struct(f">{FIXED[item.kind]}").pack(value)
