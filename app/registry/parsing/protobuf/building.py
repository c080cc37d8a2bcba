"""A Protobuf schema with its imports: names of types are resolved and the rules of the language are checked by `protobuf`.

Tests: ``tests/registry/test_protobuf.py``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf.builtin import builtin_descriptor, builtin_text
from app.registry.parsing.protobuf.statements import IMPORTS_MAX, NESTED_MAX, read_file
from app.registry.parsing.protobuf.texts import write_file
from app.registry.refusals import SchemaInvalid

MAIN: Final = "default"
"""The name of a file that was sent without one."""
_SERIALIZED: Final = re.compile(r"[A-Za-z0-9+/\s]++=*+\s*+")
"""Possessive: each repeat gives nothing back, so a match looks at each character once."""
STEPS_A_BYTE: Final = 8
"""Bytes of a serialised descriptor that cost one step."""


@dataclass(slots=True, eq=False)
class ProtobufSchema:
    """A file whose types are known."""

    written: Any
    """``FileDescriptorProto`` as it was sent: names of types may be relative, and comments are kept."""
    file: Any
    """``FileDescriptor`` in a pool of its own, together with its imports."""
    fields_max: int
    """Fields of the message that has the most, also among imports."""
    types: dict[tuple[int, ...], Sequence[Any]] = member(default_factory=dict)
    """Descriptors of messages by the indexes that lead to them, as far as payloads had these."""

    def resolved(self) -> Any:
        """``FileDescriptorProto`` with full names of types."""
        made = FileDescriptorProto()
        self.file.CopyToProto(made)
        return made


def parse(text: str, references: Sequence[tuple[str, str]], steps: StepBudget) -> ProtobufSchema:
    """The schema of a text, or of the base64 of a serialised descriptor. ``references``: names and texts of files to import.

    Raises: SchemaInvalid.
    """
    written = _read(text, steps)
    if _SERIALIZED.fullmatch(text) is not None:
        # From here on the text counts, so that a descriptor and its text give the same schema.
        return parse(canonical(_built(written, references, steps)), references, steps)
    return _built(written, references, steps)


def _built(written: Any, references: Sequence[tuple[str, str]], steps: StepBudget) -> ProtobufSchema:
    """Raises: SchemaInvalid."""
    written.name = written.name or MAIN
    if not (written.message_type or written.enum_type or written.extension or written.service):
        raise SchemaInvalid("the text has no message, enum, extension or service")
    texts = dict(references)
    texts.pop(written.name, None)
    building = _Building(texts, steps)
    building.add_imports(written)
    made = building.add(written)
    return ProtobufSchema(written, made, building.fields_max)


# --- texts ------------------------------------------------------------------------------------------------------------


def canonical(schema: ProtobufSchema) -> str:
    """The text with names of types and comments as they were sent, in the order in which other registries write it."""
    return write_file(_shown(schema.written, schema))


def normalized(schema: ProtobufSchema) -> str:
    """The text with full names of types, without comments, with imports, options and fields in order."""
    return write_file(_shown(schema.resolved(), schema), normal=True)


def without_extensions(schema: ProtobufSchema) -> str:
    """The canonical text without extensions and custom options."""
    return write_file(schema.written, extensions=False)


def serialized(schema: ProtobufSchema) -> str:
    """The base64 of the descriptor, with full names of types."""
    return base64.b64encode(schema.resolved().SerializeToString()).decode()


def _shown(descriptor: Any, schema: ProtobufSchema) -> Any:
    """A descriptor whose custom options have names, if its imports define them."""
    try:
        kind = schema.file.pool.FindMessageTypeByName(FileDescriptorProto.DESCRIPTOR.full_name)
    except KeyError:
        return descriptor
    made = GetMessageClass(kind)()
    made.ParseFromString(descriptor.SerializeToString())
    return made


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(text: str, steps: StepBudget) -> Any:
    if _SERIALIZED.fullmatch(text) is None:
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            raise SchemaInvalid("the text has characters that are not UTF-8")
        return read_file(text, steps)
    made = FileDescriptorProto()
    try:
        serialized = base64.b64decode("".join(text.split()), validate=True)
        steps.spend(len(serialized) // STEPS_A_BYTE)
        made.ParseFromString(serialized)
    except (binascii.Error, DecodeError):
        raise SchemaInvalid("the text is neither a Protobuf file nor the base64 of a serialised descriptor") from None
    made.ClearField("source_code_info")
    if len(made.dependency) > IMPORTS_MAX:
        raise SchemaInvalid(f"the schema imports more than {IMPORTS_MAX} files")
    for message in made.message_type:
        _check_depth(message, 1)
    return made


def _check_depth(message: Any, depth: int) -> None:
    if depth > NESTED_MAX:
        raise SchemaInvalid(f"messages are inside of one another in more than {NESTED_MAX} levels")
    for inner in message.nested_type:
        _check_depth(inner, depth + 1)


class _Building:
    """A pool, and the files that may be added to it."""

    def __init__(self, texts: dict[str, str], steps: StepBudget) -> None:
        self._texts = texts
        self._steps = steps
        self._pool = DescriptorPool()
        self._done: set[str] = set()
        self.fields_max = 0

    def add_imports(self, written: Any) -> None:
        """Add the files that a file imports, directly or not, each after its own imports. Raises: SchemaInvalid."""
        open_ones = {written.name}
        waiting: list[tuple[str, Any]] = [(name, None) for name in reversed(written.dependency)]
        while waiting:
            name, made = waiting.pop()
            if made is not None:
                open_ones.discard(name)
                self._done.add(name)
                self.add(made)
            elif name in open_ones:
                raise SchemaInvalid(f"the file {name[:100]!r} imports itself")
            elif name not in self._done:
                made = self._imported(name)
                open_ones.add(name)
                waiting.append((name, made))
                waiting += [(one, None) for one in reversed(made.dependency)]

    def _imported(self, name: str) -> Any:
        text = self._texts.get(name)
        serialized = None if text is not None else builtin_descriptor(name)
        if serialized is not None:
            return FileDescriptorProto.FromString(serialized)
        text = builtin_text(name) if text is None else text
        if text is None:
            raise SchemaInvalid(f"the import {name[:200]!r} names no file; send it in references")
        made = _read(text, self._steps)
        made.name = name
        return made

    def add(self, written: Any) -> Any:
        """Add a file whose imports were added. Raises: SchemaInvalid."""
        self.fields_max = max(self.fields_max, _check_reserved(written, self._steps))
        bare = written
        if written.HasField("source_code_info"):
            bare = FileDescriptorProto()
            bare.CopyFrom(written)
            bare.ClearField("source_code_info")
        try:
            return self._pool.AddSerializedFile(bare.SerializeToString())
        except (TypeError, ValueError) as error:
            reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
            raise SchemaInvalid(f"the file {written.name[:100]!r} is refused: {reason[:300]}") from None


def _check_reserved(written: Any, steps: StepBudget) -> int:
    """Check that no field has a reserved number or name. Returns: the fields of the message that has the most. Raises:
    SchemaInvalid."""
    waiting = list(written.message_type)
    fields_max = 0
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        steps.spend()
        fields_max = max(fields_max, len(message.field))
        names = frozenset(message.reserved_name)
        ranges = [(one.start, one.end) for one in message.reserved_range]
        steps.spend(len(ranges) * len(message.field) // 16)
        for field in message.field:
            if field.name in names or any(start <= field.number < end for start, end in ranges):
                raise SchemaInvalid(
                    f"field {field.name[:100]} of message {message.name[:100]} has a number or a name that is reserved"
                )
    return fields_max
