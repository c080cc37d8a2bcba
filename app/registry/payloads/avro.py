"""Reads values in Avro's binary encoding (specification 1.12). Tests: ``tests/registry/test_payloads.py``.

A value becomes a value of JSON: a record or map is an object, bytes are a text of characters 0 to 255, and a value of a union
stands without the name of its branch. Logical types are not applied. The payload decides how many steps are needed, so steps are
counted.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import Any, Final

from app.registry.parsing.avro import Array, Enum, Fixed, Map, Primitive, Record, Type, Union, branch_name
from app.registry.parsing.limits import DEPTH_MAX, StepBudget
from app.registry.payloads.faults import PayloadInvalid

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
_RANGE: Final = {"int": 1 << 31, "long": 1 << 63}
VARINT_BYTES_MAX: Final = 10
PART_CHARS: Final = 4
"""Characters that each part of a value has at least in JSON, about, beside its own text."""


def read_payload(
    schema: Type, data: bytes, start: int, steps: StepBudget, *, shown_chars_max: int | None = None
) -> Any:
    """The value that ``data`` holds from ``start`` to its end.

    ``shown_chars_max``: in Avro's JSON encoding, where the value of a union stands behind the name of its branch, and numbers that
    JSON does not have are texts. Its text has at most about so many characters.

    Raises: PayloadInvalid, TooComplex.
    """
    reading = (
        _Reading(data, start, steps) if shown_chars_max is None else _ShownReading(data, start, steps, shown_chars_max)
    )
    try:
        value = reading.value(schema, 0)
    except IndexError:
        raise PayloadInvalid("the payload ends early") from None
    left = len(data) - reading.position
    if left:
        raise PayloadInvalid(f"{left} bytes follow the value")
    return value


class _Reading:
    """One payload."""

    __slots__ = ("_data", "_steps", "position")

    def __init__(self, data: bytes, start: int, steps: StepBudget) -> None:
        self._data = data
        self._steps = steps
        self.position = start

    def value(self, kind: Type, depth: int) -> Any:
        """Raises: PayloadInvalid, TooComplex, IndexError."""
        self._steps.spend()
        if depth > DEPTH_MAX:
            raise PayloadInvalid(f"the value has more than {DEPTH_MAX} levels")
        match kind:
            case Primitive():
                return self._primitive(kind.kind)
            case Record():
                return {one.name: self.value(one.type, depth + 1) for one in kind.fields}
            case Union():
                return self.value(_chosen(kind.branches, self._long(), "union"), depth + 1)
            case Enum():
                return _chosen(kind.symbols, self._long(), f"enum {kind.name}")
            case Fixed():
                return str(self._bytes(kind.size), "latin-1")
            case Array():
                items: list[Any] = []
                while count := self._count():
                    items += [self.value(kind.items, depth + 1) for _ in range(count)]
                return items
            case Map():
                found: dict[str, Any] = {}
                while count := self._count():
                    for _ in range(count):
                        name = self._text()
                        found[name] = self.value(kind.values, depth + 1)
                return found

    def _primitive(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                byte = self._bytes(1)[0]
                if byte > 1:
                    raise PayloadInvalid(f"the byte {byte} is no boolean")
                return byte == 1
            case "int" | "long":
                number = self._long()
                if not -_RANGE[kind] <= number < _RANGE[kind]:
                    raise PayloadInvalid(f"{number} is no {kind}")
                return number
            case "float":
                return _FLOAT.unpack(self._bytes(4))[0]
            case "double":
                return _DOUBLE.unpack(self._bytes(8))[0]
            case "bytes":
                return str(self._bytes(self._long()), "latin-1")
        return self._text()

    def _text(self) -> str:
        data = self._bytes(self._long())
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise PayloadInvalid("a string is not UTF-8") from None

    def _count(self) -> int:
        """The number of items in the next block of an array or map."""
        count = self._long()
        if count < 0:
            self._long()  # the bytes of the block
            count = -count
        return count

    def _bytes(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self._data):
            raise PayloadInvalid(f"{size} bytes are named where {len(self._data) - self.position} are left")
        found = self._data[self.position : end]
        self.position = end
        return found

    def _long(self) -> int:
        data, position = self._data, self.position
        result = shift = 0
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= 7 * VARINT_BYTES_MAX:
                raise PayloadInvalid("a number is too long")
        self.position = position
        return (result >> 1) ^ -(result & 1)


class _ShownReading(_Reading):
    """One payload in Avro's JSON encoding. Characters are counted before the values that bring them are made."""

    __slots__ = ("_chars_left", "_chars_max")

    def __init__(self, data: bytes, start: int, steps: StepBudget, chars_max: int) -> None:
        super().__init__(data, start, steps)
        self._chars_left = self._chars_max = chars_max

    def _show(self, chars: int) -> None:
        """Count characters. Raises: PayloadInvalid."""
        self._chars_left -= chars
        if self._chars_left < 0:
            raise PayloadInvalid(f"its JSON has more than {self._chars_max} characters")

    def value(self, kind: Type, depth: int) -> Any:
        self._show(PART_CHARS)
        match kind:
            case Record():
                self._show(sum([len(one.name) + PART_CHARS for one in kind.fields]))
                return super().value(kind, depth)
            case Union():
                self._steps.spend()
                branch = _chosen(kind.branches, self._long(), "union")
                if branch.kind == "null":
                    return self.value(branch, depth + 1)
                name = branch_name(branch)
                self._show(len(name) + PART_CHARS)
                return {name: self.value(branch, depth + 1)}
            case Enum():
                symbol: str = super().value(kind, depth)
                self._show(len(symbol))
                return symbol
            case _:
                return super().value(kind, depth)

    def _bytes(self, size: int) -> bytes:
        found = super()._bytes(size)
        self._show(size)
        return found

    def _primitive(self, kind: str) -> Any:
        found = super()._primitive(kind)
        if not isinstance(found, float) or math.isfinite(found):
            return found
        return "NaN" if math.isnan(found) else ("Infinity" if found > 0 else "-Infinity")


def _chosen(choices: tuple[Any, ...], index: int, name: str) -> Any:
    if not 0 <= index < len(choices):
        raise PayloadInvalid(f"the {name} has no place {index}")
    return choices[index]
