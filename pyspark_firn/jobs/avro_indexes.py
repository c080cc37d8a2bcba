"""Indexes of unions and enums in Avro values, which the decoder takes for Python's.

fastavro looks a branch or a symbol up in a list, so that an index of -1 is the last of them: a damaged value would be archived
as another one. So the indexes are checked before decoding. The decoder itself finds all other faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

Skip: TypeAlias = Callable[[bytes, int], int]
"""(data, position of a value) → position after it. Raises: ValueError (a negative index), IndexError (the bytes end)."""

_FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def indexes_check(schema: Any) -> Skip | None:
    """A function that walks over a value of a schema (from ``fastavro.parse_schema``); None if the schema has no index.

    The schema must not refer to itself.
    """
    named: dict[str, Skip] = {}
    indexed = [False]

    def compiled(one: Any) -> Skip:
        match one:
            case str(name):
                return named.get(name) or _skip_word(name)
            case list(branches):
                indexed[0] = True
                return _skip_union([compiled(branch) for branch in branches])
        match one["type"]:
            case "record":
                skip = _skip_record([compiled(field["type"]) for field in one["fields"]])
            case "enum":
                indexed[0] = True
                skip = _skip_enum
            case "fixed":
                skip = _skip_bytes(one["size"])
            case "array":
                return _skip_blocks(compiled(one["items"]))
            case "map":
                return _skip_blocks(_skip_record([_skip_word("string"), compiled(one["values"])]))
            case inner:
                return compiled(inner)
        named[one["name"]] = skip
        return skip

    whole = compiled(schema)
    return whole if indexed[0] else None


def _long(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _skip_word(name: str) -> Skip:
    if name in ("int", "long"):
        return lambda data, at: _long(data, at)[1]
    if name in ("bytes", "string"):

        def skip(data: bytes, at: int) -> int:
            length, at = _long(data, at)
            return at + max(0, length)

        return skip
    return _skip_bytes(_FIXED_BYTES[name])


def _skip_bytes(count: int) -> Skip:
    return lambda _, at: at + count


def _skip_enum(data: bytes, at: int) -> int:
    index, at = _long(data, at)
    if index < 0:
        raise ValueError(f"an enum's index is {index}")
    return at


def _skip_union(branches: list[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        index, at = _long(data, at)
        if index < 0:
            raise ValueError(f"a union's index is {index}")
        return branches[index](data, at)

    return skip


def _skip_record(fields: list[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return skip


def _skip_blocks(element: Skip) -> Skip:
    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = _long(data, at)
            if not count:
                return at
            if count < 0:
                # With the length in bytes, which is for readers that pass over it.
                _, at = _long(data, at)
            for _ in range(abs(count)):
                at = element(data, at)

    return skip
