"""Avro's JSON encoding to its binary encoding (specification 1.12). Pure. Tests: ``tests/registry/test_encoding.py``.

A value of a union is an object with the name of its branch: ``{"string": "x"}``, and ``null`` for the branch null. Bytes are a
text of characters 0 to 255. Logical types are not applied. A field that is left out has its default. Numbers that JSON does not
have are the texts ``NaN``, ``Infinity`` and ``-Infinity``, as Avro's Java library writes them.

Value and schema decide how many steps are needed, so steps are counted.
"""

from __future__ import annotations

import math
from itertools import islice
from struct import Struct
from typing import Any, Final, TypeAlias

from app.registry.parsing.avro import Array, Enum, Fixed, Map, Primitive, Record, Type, Union, branch_name
from app.registry.parsing.limits import DEPTH_MAX, StepBudget
from app.registry.payloads.faults import PayloadInvalid

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
_BITS: Final = {"int": 31, "long": 63}
PAYLOAD_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of one key or value. Fields that are left out add their default values, so a payload may be longer than its JSON."""
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


_Path: TypeAlias = "tuple[_Path, str | int] | None"
"""Fields and indexes that lead to a value. Its text is made where it is shown: names may be long, and values many."""


def write_value(schema: Type, value: Any, steps: StepBudget) -> bytes:
    """The binary form of a value in the JSON form. Raises: PayloadInvalid, TooComplex."""
    made = bytearray()
    _Writing(made, steps).value(schema, value, None, 0)
    return bytes(made)


class _Writing:
    """One value."""

    __slots__ = ("_made", "_steps")

    def __init__(self, made: bytearray, steps: StepBudget) -> None:
        self._made = made
        self._steps = steps

    def value(self, kind: Type, value: Any, path: _Path, depth: int) -> None:
        self._steps.spend()
        if depth > DEPTH_MAX:
            raise PayloadInvalid(f"the value has more than {DEPTH_MAX} levels")
        match kind:
            case Primitive():
                self._primitive(kind.kind, value, path)
            case Record():
                self._record(kind, value, path, depth)
            case Union():
                self._union(kind, value, path, depth)
            case Enum():
                symbol = kind.place_of(value) if isinstance(value, str) else None
                if symbol is None:
                    raise _wrong(path, f"a symbol of {kind.name}", value)
                self._long(symbol)
            case Fixed():
                content = _bytes(value, path)
                if len(content) != kind.size:
                    raise _wrong(path, f"{kind.size} characters", value)
                self._add(content)
            case Array():
                if not isinstance(value, list):
                    raise _wrong(path, "an array", value)
                if value:
                    self._long(len(value))
                for index, one in enumerate(value):
                    self.value(kind.items, one, (path, index), depth + 1)
                self._long(0)
            case Map():
                if not isinstance(value, dict):
                    raise _wrong(path, "an object", value)
                if value:
                    self._long(len(value))
                for name, one in value.items():
                    self._sized(name.encode())
                    self.value(kind.values, one, (path, name[:100]), depth + 1)
                self._long(0)

    def _record(self, kind: Record, value: Any, path: _Path, depth: int) -> None:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        known = 0
        for one in kind.fields:
            inside = (path, one.name)
            if one.name in value:
                known += 1
                self.value(one.type, value[one.name], inside, depth + 1)
            elif one.has_default:
                self._default(one.type, one.default, inside, depth + 1)
            else:
                raise PayloadInvalid(f"the field {_shown(inside)} is missing, and has no default")
        if known < len(value):
            names = {one.name for one in kind.fields}
            other = next(name for name in value if name not in names)
            raise PayloadInvalid(f"{_shown(path)} has a member {other[:100]!r}, which its schema does not have")

    def _default(self, kind: Type, value: Any, path: _Path, depth: int) -> None:
        """A default value of a union is one of its first branch, and has no name before it."""
        if isinstance(kind, Union):
            self._long(0)
            self._default(kind.branches[0], value, path, depth)
        elif isinstance(kind, Record) and isinstance(value, dict):
            self._steps.spend()
            for one in kind.fields:
                self._default(one.type, value.get(one.name, one.default), (path, one.name), depth + 1)
        else:
            self.value(kind, value, path, depth)

    def _union(self, kind: Union, value: Any, path: _Path, depth: int) -> None:
        if value is None:
            name: str = "null"
            inner = None
        elif isinstance(value, dict) and len(value) == 1:
            ((name, inner),) = value.items()
        else:
            raise _wrong(path, f"null, or an object with one member, as {{{_branches(kind)}: …}}", value)
        branch = kind.place_of(name)
        if branch is None:
            raise _wrong(path, f"a branch of the union: {_branches(kind)}", name)
        self._long(branch)
        self.value(kind.branches[branch], inner, path, depth + 1)

    def _primitive(self, kind: str, value: Any, path: _Path) -> None:
        match kind:
            case "null":
                if value is not None:
                    raise _wrong(path, "null", value)
            case "boolean":
                if not isinstance(value, bool):
                    raise _wrong(path, "true or false", value)
                self._made.append(value)
            case "int" | "long":
                if (
                    not isinstance(value, int)
                    or isinstance(value, bool)
                    or not -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]
                ):
                    raise _wrong(path, f"a number of type {kind}", value)
                self._long(value)
            case "float" | "double":
                number = _SPECIAL.get(value, value) if isinstance(value, str) else value
                if not isinstance(number, (int, float)) or isinstance(number, bool):
                    raise _wrong(path, "a number", value)
                try:
                    self._made += (_FLOAT if kind == "float" else _DOUBLE).pack(float(number))
                except OverflowError:
                    raise _wrong(path, f"a number of type {kind}", value) from None
            case "string":
                if not isinstance(value, str):
                    raise _wrong(path, "a string", value)
                self._sized(value.encode())
            case _:
                self._sized(_bytes(value, path))

    def _sized(self, content: bytes) -> None:
        self._long(len(content))
        self._add(content)

    def _add(self, content: bytes) -> None:
        self._made += content
        if len(self._made) > PAYLOAD_BYTES_MAX:
            raise PayloadInvalid(f"the value has more than {PAYLOAD_BYTES_MAX} bytes in Avro")

    def _long(self, number: int) -> None:
        left = (number << 1) ^ (number >> 63)
        while left > 0x7F:
            self._made.append(left & 0x7F | 0x80)
            left >>= 7
        self._made.append(left)


def _bytes(value: Any, path: _Path) -> bytes:
    if not isinstance(value, str):
        raise _wrong(path, "a string of characters 0 to 255", value)
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise _wrong(path, "a string of characters 0 to 255", value) from None


def _branches(kind: Union) -> str:
    names = ", ".join(f'"{branch_name(one)}"' for one in islice(kind.branches, 150))
    return names if len(names) <= 300 else f"{names[:300]}…"


def _shown(path: _Path) -> str:
    """A path in an error, at most 200 characters."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part[:200]}")
    return "".join(reversed(parts))[:201].removeprefix(".")[:200] or "the value"


def _wrong(path: _Path, wanted: str, value: Any) -> PayloadInvalid:
    shown = (
        repr(value)[:80]
        if not isinstance(value, (dict, list))
        else ("an object" if isinstance(value, dict) else "an array")
    )
    return PayloadInvalid(f"{_shown(path)} must be {wanted}, and is {shown}")
