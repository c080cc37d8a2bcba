"""Protobuf's JSON form to a message and back. Pure. Tests: ``tests/registry/test_encoding.py``.

A value that is written is one of the first message of its file, as REST proxies write it. Names of fields are those of JSON
(``flightNumber``) or those of the file; a message that is read has the names of JSON, and the default values of fields that it does
not hold. `protobuf` converts in one call, so all that decides how long the call takes is counted before it.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass

from app.registry.encoding.avro import PAYLOAD_BYTES_MAX
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf.building import ProtobufSchema
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.protobuf import MessageTypes, check_payload, types_of

DEPTH_MAX: Final = 100
"""Levels of a value."""
FIELDS_A_STEP: Final = 16
"""Fields of a message type that are listed at the cost of one step: `protobuf` lists them for each message that it converts."""
CHARS_A_STEP: Final = 256
MESSAGE_STEPS: Final = 3
"""Steps of a message that is read."""
NUMBERS_A_STEP: Final = 4
_NUMBER_CHARS: Final = 12
_FIRST: Final = b"\0"
"""Indexes of the first message, in their short form."""
_ANY: Final = "google.protobuf.Any"


def write_value(schema: ProtobufSchema, value: Any, steps: StepBudget) -> bytes:
    """The indexes and the message of a value. Raises: PayloadInvalid, TooComplex."""
    if not isinstance(value, dict):
        raise PayloadInvalid("the value must be an object")
    _check_cost(value, schema.fields_max // FIELDS_A_STEP, steps)
    message = GetMessageClass(types_of(schema, (0,))[0])()
    try:
        ParseDict(value, message, descriptor_pool=schema.file.pool, max_recursion_depth=DEPTH_MAX)
        made: bytes = message.SerializeToString(deterministic=True)
    except EncodeError:
        raise PayloadInvalid(f"a required field of {message.DESCRIPTOR.full_name[:100]} is missing") from None
    except (JsonError, DecodeError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error)[:300].split())
        raise PayloadInvalid(f"the value is no {message.DESCRIPTOR.full_name[:100]}: {reason}") from None
    if len(made) > PAYLOAD_BYTES_MAX:
        raise PayloadInvalid(f"the value has more than {PAYLOAD_BYTES_MAX} bytes in Protobuf")
    return _FIRST + made


def _check_cost(value: Any, object_steps: int, steps: StepBudget) -> None:
    """Count the parts of a value that is to be converted. Raises: TooComplex."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        steps.spend()
        if isinstance(one, dict):
            steps.spend(object_steps + len(one))
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str):
            steps.spend(len(one) // CHARS_A_STEP)


def read_value(schema: ProtobufSchema, content: bytes, start: int, steps: StepBudget, chars_max: int) -> Any:
    """The value of the indexes and the message that ``content`` holds from ``start`` on.

    Raises: PayloadInvalid, also if its JSON has more than about ``chars_max`` characters; TooComplex.
    """
    message = check_payload(schema, content, start, None, MessageTypes(), steps)
    _Size(schema.file.pool, steps, chars_max).add(message)
    try:
        return MessageToDict(message, always_print_fields_with_no_presence=True, descriptor_pool=schema.file.pool)
    except (JsonError, TypeError, ValueError, OverflowError) as error:
        raise PayloadInvalid(f"the message has no form in JSON: {str(error)[:200]}") from None


class _Size:
    """Counts the parts of a message and the characters of its JSON before it is converted."""

    def __init__(self, pool: Any, steps: StepBudget, chars_max: int) -> None:
        self._pool = pool
        self._steps = steps
        self._chars_max = chars_max
        self._left = chars_max
        self._defaults: dict[Any, int] = {}
        """Characters of the fields that each message of a type has in its JSON, by types."""
        self._symbols: dict[Any, int] = {}
        """Characters of the longest symbol of an enum."""

    def add(self, message: Any) -> None:
        """Raises: PayloadInvalid, TooComplex."""
        waiting = [message]
        while waiting:
            one = waiting.pop()
            self._steps.spend(MESSAGE_STEPS)
            self._take(self._of_type(one.DESCRIPTOR))
            if one.DESCRIPTOR.full_name == _ANY:
                waiting += self._inside(one)
                continue
            for field, value in one.ListFields():
                self._steps.spend()
                self._take(len(field.full_name if field.is_extension else field.json_name) + 4)
                if not field.is_repeated:
                    waiting += self._of_value(field, (value,))
                elif field.message_type is not None and field.message_type.GetOptions().map_entry:
                    entry = field.message_type.fields_by_name
                    waiting += self._of_value(entry["key"], value)
                    waiting += self._of_value(entry["value"], value.values())
                else:
                    waiting += self._of_value(field, value)

    def _take(self, chars: int) -> None:
        self._left -= chars
        if self._left < 0:
            raise PayloadInvalid(f"its JSON has more than {self._chars_max} characters")

    def _of_type(self, descriptor: Any) -> int:
        found = self._defaults.get(descriptor)
        if found is None:
            fields = descriptor.fields
            self._steps.spend(len(fields) // 4)
            found = sum(len(one.json_name) + _NUMBER_CHARS for one in fields if not one.has_presence)
            self._defaults[descriptor] = found
        self._steps.spend(len(descriptor.fields) // FIELDS_A_STEP)
        return 4 + found

    def _of_value(self, field: Any, values: Any) -> Any:
        """The messages among the values of a field, which are still to be counted."""
        kind = field.cpp_type
        count = len(values)
        if kind == FieldDescriptor.CPPTYPE_MESSAGE:
            self._steps.spend(count)
            return list(values)
        self._steps.spend(count // NUMBERS_A_STEP)
        if kind == FieldDescriptor.CPPTYPE_STRING:
            self._take(sum(2 * len(one) for one in values) + 4 * count)
        elif kind == FieldDescriptor.CPPTYPE_ENUM:
            self._take((4 + self._longest(field.enum_type)) * count)
        else:
            self._take(_NUMBER_CHARS * count)
        return ()

    def _longest(self, enum: Any) -> int:
        found = self._symbols.get(enum)
        if found is None:
            self._steps.spend(len(enum.values) // 4)
            found = self._symbols[enum] = max((len(one.name) for one in enum.values), default=0)
        return found

    def _inside(self, message: Any) -> list[Any]:
        """The message inside of one of type Any. If its type is not known, the conversion refuses it."""
        name = message.type_url.rpartition("/")[2]
        self._take(len(message.type_url))
        try:
            inner = GetMessageClass(self._pool.FindMessageTypeByName(name))()
            inner.ParseFromString(message.value)
        except (KeyError, DecodeError):
            return []
        return [inner]
