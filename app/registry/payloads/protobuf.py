"""Reads Protobuf payloads. Tests: ``tests/registry/test_protobuf_payloads.py``.

Before the message stand the indexes that lead to its type in the file: their number and each of them as a signed varint. A single 0
stands for the first type. Serializers that put the id into a header put the indexes there too. Some serializers count the types of
maps' entries, and some do not. Where the indexes may lead to several types, the first type counts that knows all fields of the
payload. A value is in Protobuf's JSON form, with the names of fields as they are in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf.building import ProtobufSchema
from app.registry.payloads.faults import PayloadInvalid

INDEXES_MAX: Final = 100
"""Levels of messages inside of one another."""
TYPES_MAX: Final = 8
"""Types that are tried for one payload whose indexes are not clear."""
PATHS_MAX: Final = 64
"""Of one schema, whose types are kept."""
_VARINT_BYTES_MAX: Final = 5
TYPES_A_STEP: Final = 8
"""Types of messages that are listed at the cost of one step."""


class MessageTypes:
    """The types of messages that indexes may lead to, each of which is looked for once. For the payloads of one batch."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[ProtobufSchema, tuple[int, ...]], Sequence[Any]] = {}

    def at(self, schema: ProtobufSchema, path: list[int], steps: StepBudget) -> Sequence[Any]:
        """The classes of the messages, the likeliest first. Raises: PayloadInvalid, TooComplex."""
        key = schema, tuple(path)
        found = self._found.get(key)
        if found is None:
            descriptors = types_of(schema, tuple(path))
            steps.spend(sum([_types_beside(schema, one) for one in descriptors]) // TYPES_A_STEP)
            found = self._found[key] = [GetMessageClass(one) for one in descriptors]
        return found


def check_payload(
    schema: ProtobufSchema, data: bytes, start: int, indexes: bytes | None, types: MessageTypes, steps: StepBudget
) -> Any:
    """The message that ``data`` holds. ``indexes``: the bytes after the id in a header; None if they stand in ``data`` at
    ``start``. Raises: PayloadInvalid, TooComplex."""
    if indexes is None:
        path, start = _read_indexes(data, start)
    else:
        path, _ = _read_indexes(indexes, 0) if indexes else ([0], 0)
    kinds = types.at(schema, path, steps)
    if len(kinds) == 1:
        return _message(kinds[0], data, start)
    reasons: list[str] = []
    fitting: list[Any] = []
    for one in kinds:
        try:
            message = _message(one, data, start)
        except PayloadInvalid as fault:
            reasons.append(str(fault))
            continue
        if not len(UnknownFieldSet(message)):
            return message
        fitting.append(message)
    if fitting:
        return fitting[0]
    raise PayloadInvalid(reasons[0])


def _message(kind: Any, data: bytes, start: int) -> Any:
    """Raises: PayloadInvalid."""
    message = kind()
    try:
        message.ParseFromString(data[start:])
    except (DecodeError, RecursionError):
        raise PayloadInvalid(f"the payload is no message of type {message.DESCRIPTOR.full_name}") from None
    if not message.IsInitialized():
        raise PayloadInvalid(f"a required field of {message.DESCRIPTOR.full_name} is missing")
    return message


def read_payload(schema: ProtobufSchema, data: bytes, start: int, indexes: bytes | None, steps: StepBudget) -> Any:
    """The value of the message. Raises: as ``check_payload``."""
    message = check_payload(schema, data, start, indexes, MessageTypes(), steps)
    try:
        return MessageToDict(message, preserving_proto_field_name=True)
    except (JsonError, TypeError, ValueError, RecursionError) as error:
        raise PayloadInvalid(f"the message has no form in JSON: {str(error)[:200]}") from None


def _read_indexes(data: bytes, position: int) -> tuple[list[int], int]:
    """Raises: PayloadInvalid."""
    try:
        count, position = _number(data, position)
        if not 0 <= count <= INDEXES_MAX:
            raise PayloadInvalid(f"{count} indexes lead to the type of the message")
        found = []
        for _ in range(count):
            index, position = _number(data, position)
            found.append(index)
    except IndexError:
        raise PayloadInvalid("the indexes of the message's type end early") from None
    return found or [0], position


def _number(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise PayloadInvalid("an index of the message's type is too long")


def _types_beside(schema: ProtobufSchema, descriptor: Any) -> int:
    """The types that are listed on the way to one: those of the file, and those beside it and beside the types around it."""
    count = len(schema.file.message_types_by_name)
    while (descriptor := descriptor.containing_type) is not None:
        count += len(descriptor.nested_types)
    return count


def types_of(schema: ProtobufSchema, path: tuple[int, ...]) -> Sequence[Any]:
    """The descriptors that indexes may lead to, the likeliest first. Raises: PayloadInvalid."""
    known = schema.types.get(path)
    if known is not None:
        return known
    top = list(schema.file.message_types_by_name.values())
    types = top[path[0] : path[0] + 1] if path[0] >= 0 else []
    for index in path[1:]:
        types = [inner for one in types for inner in _inner_types(one, index)][:TYPES_MAX]
    if not types:
        raise PayloadInvalid(f"the file has no message with the indexes {list(path)}")
    if len(schema.types) >= PATHS_MAX:
        schema.types.clear()
    schema.types[path] = types
    return types


def _inner_types(outer: Any, index: int) -> list[Any]:
    """The types inside of a message that an index may stand for.

    Java's serializer does not count the entries of maps, so that type comes first. Serializers with types made by `protoc` count
    them in the order of the text that `protoc` read. A registry's text has the fields before the types, so it tells that order only
    if `protoc` read this text: that type comes next. After it come the types before which fewer maps stand.
    """
    if index < 0:
        return []
    nested = list(outer.nested_types)
    is_entry = [bool(one.has_options and one.GetOptions().map_entry) for one in nested]
    plain = [one for one, skipped in zip(nested, is_entry, strict=True) if not skipped]
    maps = len(nested) - len(plain)
    found = plain[index : index + 1]
    if index < len(nested) and not is_entry[index] and nested[index] not in found:
        found.append(nested[index])
    end = min(index, len(plain))
    least = max(0, index - maps, end - TYPES_MAX)
    found += [one for one in reversed(plain[least:end]) if one not in found]
    return found[:TYPES_MAX]
