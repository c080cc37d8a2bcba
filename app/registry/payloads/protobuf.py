"""Reads Protobuf payloads. Tests: ``tests/registry/test_protobuf_payloads.py``.

Before the message stand the indexes that lead to its type in the file: their number and each of them as a signed varint. A single 0
stands for the first type. Serializers that put the id into a header put the indexes there too. A value becomes what Protobuf's
JSON form says, with the names of fields as they are in the file.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf.building import ProtobufSchema
from app.registry.payloads.faults import PayloadInvalid

INDEXES_MAX: Final = 100
"""Levels of messages inside of one another."""
_VARINT_BYTES_MAX: Final = 5
TYPES_A_STEP: Final = 8
"""Types of messages that are listed at the cost of one step."""


class MessageTypes:
    """The types of messages that indexes lead to, each of which is looked for once. For the payloads of one batch."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[ProtobufSchema, tuple[int, ...]], Any] = {}

    def at(self, schema: ProtobufSchema, path: list[int], steps: StepBudget) -> Any:
        """The class of the messages. Raises: PayloadInvalid, TooComplex."""
        key = schema, tuple(path)
        found = self._found.get(key)
        if found is None:
            descriptor = _type_of(schema, path)
            steps.spend(_types_beside(schema, descriptor) // TYPES_A_STEP)
            found = self._found[key] = GetMessageClass(descriptor)
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
    message = types.at(schema, path, steps)()
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


def _type_of(schema: ProtobufSchema, path: list[int]) -> Any:
    """The descriptor that indexes lead to. Raises: PayloadInvalid."""
    types = list(schema.file.message_types_by_name.values())
    found: Any = None
    for index in path:
        if not 0 <= index < len(types):
            raise PayloadInvalid(f"the file has no message with the indexes {path}")
        found = types[index]
        types = list(found.nested_types)
    return found
