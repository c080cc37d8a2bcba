"""Whether data of a writer's Protobuf file can be read with a reader's, by the rules of Confluent's documents for Protobuf.

Messages are compared by their names in the package, and fields by their numbers. Names of fields, names and numbers of enum values,
and the package may change. New and removed fields are compatible unless one is required.

The files are descriptors of the package `protobuf`, with names resolved. Tests: ``tests/registry/test_protobuf_compatibility.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from app.registry.compatibility.findings import FINDINGS_MAX, Finding, inside, shortened
from app.registry.parsing.limits import StepBudget
from app.registry.refusals import TooComplex

# Types of fields, by their numbers in descriptor.proto.
_GROUP: Final = 10
_MESSAGE: Final = 11
_NAMES: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_ALIKE: Final = (
    frozenset({"int32", "uint32", "int64", "uint64", "bool", "enum"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"string", "bytes"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
)
"""Types whose values have the same form on the wire."""
COMPARED_DEPTH_MAX: Final = 100
"""Messages on the shortest path to a message. Each finding has this path."""


def findings(reader: Any, writer: Any, steps: StepBudget) -> list[Finding]:
    """Why ``reader`` cannot read all data of ``writer``; empty if it can. Raises: TooComplex."""
    comparing = _Comparing(steps)
    comparing.files(reader, writer)
    return comparing.found


class _Comparing:
    """One comparison. Each pair of messages is compared once, so that a circle ends."""

    def __init__(self, steps: StepBudget) -> None:
        self.found: list[Finding] = []
        self._steps = steps
        self._pairs: set[tuple[str, str]] = set()
        self._waiting: deque[tuple[Any, Any, str, int]] = deque()
        self._depth = 0

    def _say(self, kind: str, path: str, reason: str) -> None:
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(kind, path, reason))

    def files(self, reader: Any, writer: Any) -> None:
        """Raises: TooComplex."""
        self._named(reader.message_types_by_name, writer.message_types_by_name.values(), "")
        while self._waiting:
            own, other, path, self._depth = self._waiting.popleft()
            if self._depth > COMPARED_DEPTH_MAX:
                raise TooComplex
            self._message(own, other, path)

    def _named(self, readers: Any, writers: Iterable[Any], path: str) -> None:
        """Compare the messages that a file or a message defines."""
        for writer in writers:
            self._steps.spend()
            if writer.GetOptions().map_entry:
                continue
            reader = readers.get(writer.name)
            where = inside(f"message {shortened(writer.name)}", path)
            if reader is None:
                self._say("MESSAGE_REMOVED", where, "the reader has no such message")
            else:
                self._pair(reader, writer, where)

    def _pair(self, reader: Any, writer: Any, path: str) -> None:
        pair = reader.full_name, writer.full_name
        if pair not in self._pairs:
            self._pairs.add(pair)
            self._waiting.append((reader, writer, path, self._depth + 1))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _message(self, reader: Any, writer: Any, path: str) -> None:
        self._steps.spend(1 + len(reader.fields) + len(writer.fields))
        for one in writer.fields:
            own = reader.fields_by_number.get(one.number)
            where = _of_field(one, path)
            if own is not None:
                self._field(own, one, where)
            elif one.is_required:
                self._say("REQUIRED_FIELD_REMOVED", where, "the writer's field is required, and the reader has none")
            elif _oneof(one) is not None and _named_oneof(reader, _oneof(one)) is not None:
                self._say(
                    "ONEOF_FIELD_REMOVED", where, f"the reader's oneof {shortened(_oneof(one).name)} has no such field"
                )
        for one in reader.fields:
            own = writer.fields_by_number.get(one.number)
            if one.is_required and (own is None or not own.is_required):
                self._say("REQUIRED_FIELD_ADDED", _of_field(one, path), "the reader needs it, and the writer does not")
        self._oneofs(reader, writer, path)
        self._named(reader.nested_types_by_name, writer.nested_types, path)

    def _oneofs(self, reader: Any, writer: Any, path: str) -> None:
        for oneof in reader.oneofs:
            if _is_synthetic(oneof):
                continue
            self._steps.spend(1 + len(oneof.fields))
            old = _named_oneof(writer, oneof)
            moved = [
                one
                for one in oneof.fields
                if one.number in writer.fields_by_number and _oneof(writer.fields_by_number[one.number]) is None
            ]
            if old is not None:
                for one in moved:
                    reason = (
                        f"the field is in the reader's oneof {shortened(oneof.name)}, which the writer has without it"
                    )
                    self._say("FIELD_MOVED_TO_EXISTING_ONEOF", _of_field(one, path), reason)
            elif len(moved) > 1:
                shown = ", ".join(shortened(one.name) for one in moved[:10])
                reason = f"several fields of the writer are in it, and data may have more than one of them: {shown}"
                self._say("MULTIPLE_FIELDS_MOVED_TO_ONEOF", inside(f"oneof {shortened(oneof.name)}", path), reason)

    # --- fields -------------------------------------------------------------------------------------------------------

    def _field(self, reader: Any, writer: Any, path: str) -> None:
        is_map, was_map = _is_map(reader), _is_map(writer)
        if is_map != was_map:
            self._say(
                "FIELD_KIND_CHANGED", path, f"the reader's field is {_kind(reader)}, the writer's {_kind(writer)}"
            )
            return
        if is_map:
            entry, old = reader.message_type.fields_by_number, writer.message_type.fields_by_number
            self._type(entry[1], old[1], inside("the keys of the map", path))
            self._type(entry[2], old[2], inside("the values of the map", path))
            return
        if reader.is_repeated != writer.is_repeated and not _has_length(writer):
            reason = f"the reader's field is {_label(reader)}, the writer's {_label(writer)}, and its type is a number"
            self._say("FIELD_NUMERIC_LABEL_CHANGED", path, reason)
        self._type(reader, writer, path)

    def _type(self, reader: Any, writer: Any, path: str) -> None:
        own, other = _NAMES[reader.type], _NAMES[writer.type]
        if reader.type in (_MESSAGE, _GROUP) and reader.type == writer.type:
            name, old = _relative(reader.message_type), _relative(writer.message_type)
            if name == old:
                self._pair(reader.message_type, writer.message_type, path)
            else:
                self._say("FIELD_NAMED_TYPE_CHANGED", path, f"the reader's type is {name}, the writer's is {old}")
        elif reader.message_type is not None or writer.message_type is not None:
            self._say(
                "FIELD_KIND_CHANGED", path, f"the reader's field is {_kind(reader)}, the writer's {_kind(writer)}"
            )
        elif own != other and not any(own in kinds and other in kinds for kinds in _ALIKE):
            self._say("FIELD_SCALAR_KIND_CHANGED", path, f"the reader's type is {own}, the writer's is {other}")


def _of_field(field: Any, path: str) -> str:
    return inside(f"field {shortened(field.name)} with number {field.number}", path)


def _relative(message: Any) -> str:
    """The name of a message in its package."""
    package = message.file.package
    name = str(message.full_name)
    return shortened(name.removeprefix(f"{package}.") if package else name)


def _oneof(field: Any) -> Any:
    """The oneof of a field, None for one that stands for the presence of an optional field."""
    found = field.containing_oneof
    return None if found is None or _is_synthetic(found) else found


def _is_synthetic(oneof: Any) -> bool:
    fields = oneof.fields
    return len(fields) == 1 and oneof.name.lstrip("X") == f"_{fields[0].name}"


def _named_oneof(message: Any, oneof: Any) -> Any:
    found = message.oneofs_by_name.get(oneof.name)
    return None if found is None or _is_synthetic(found) else found


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _has_length(field: Any) -> bool:
    """Whether values are strings, bytes or messages, of which the last one counts where one is expected."""
    return _NAMES[field.type] in ("string", "bytes", "message", "group")


def _label(field: Any) -> str:
    return "repeated" if field.is_repeated else "single"


def _kind(field: Any) -> str:
    if _is_map(field):
        return "a map"
    return "a message" if field.message_type is not None else f"of type {_NAMES[field.type]}"
