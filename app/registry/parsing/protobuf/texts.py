"""A Protobuf descriptor becomes its text, in the order in which other registries write one.

A file has its syntax, package, imports, options, types, extensions and services. A message has reserved numbers, options, fields,
oneofs, extension ranges and types. Tests: ``tests/registry/test_protobuf.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import Edition, FieldDescriptorProto

from app.registry.parsing.protobuf.options import option_texts, quoted
from app.registry.parsing.protobuf.statements import ENUM_NUMBER_END, FIELD_NUMBER_END, SCALARS, entry_name

_SCALAR_NAMES: Final = {number: name for name, number in SCALARS.items()}

Path = tuple[int, ...]
Nested = Mapping[str, tuple[Any, Path]]
"""The messages of a block, each with its path, by their names: the one in the block, and the full one with a dot before it."""


def write_file(file: Any, *, normal: bool = False, extensions: bool = True) -> str:
    """The text of a ``FileDescriptorProto``.

    Args:
        normal: whether imports, options and fields are sorted.
        extensions: whether extensions, their ranges, and options with a name in parentheses are written.
    """
    return _Writing(file, normal=normal, extensions=extensions).file()


class _Writing:
    """One file."""

    def __init__(self, file: Any, *, normal: bool, extensions: bool) -> None:
        self._file = file
        self._normal = normal
        self._extensions = extensions
        self._comments = {tuple(one.path): one for one in file.source_code_info.location}
        self._lines: list[str] = []
        self._indent = ""

    # --- lines --------------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._lines.append(f"{self._indent}{text}" if text else "")

    def _comment(self, path: Path) -> None:
        found = self._comments.get(path)
        if found is not None:
            for text in (found.leading_comments, found.trailing_comments):
                for line in text.split("\n") if text else ():
                    self._line(f"// {line.rstrip()}".rstrip())

    def _open(self, text: str) -> None:
        self._line(f"{text} {{")
        self._indent += "  "

    def _close(self) -> None:
        self._indent = self._indent[:-2]
        self._line("}")

    def _options(self, options: Any) -> None:
        for text in self._option_texts(options):
            self._line(f"option {text};")

    def _option_texts(self, options: Any) -> list[str]:
        return option_texts(options, extensions=self._extensions, in_order=self._normal)

    def _statement(self, text: str, options: list[str]) -> None:
        """A statement with options in brackets."""
        if len(options) < 2:
            self._line(f"{text} [{options[0]}];" if options else f"{text};")
            return
        self._line(f"{text} [")
        for place, one in enumerate(options):
            self._line(f"  {one}{',' if place + 1 < len(options) else ''}")
        self._line("];")

    # --- the file -----------------------------------------------------------------------------------------------------

    def file(self) -> str:
        file = self._file
        self._comment((12,))
        if file.syntax == "editions":
            self._line(f'edition = "{Edition.Name(file.edition).removeprefix("EDITION_")}";')
        elif file.syntax or self._normal:
            self._line(f'syntax = "{file.syntax or "proto2"}";')
        if file.package:
            self._comment((2,))
            self._line(f"package {file.package};")
        self._imports()
        options = self._option_texts(file.options)
        self._gap(options)
        self._options(file.options)
        scope = f".{file.package}" if file.package else ""
        nested = _nested(scope, file.message_type, (4,))
        self._types(file, file.message_type, scope, (4,), (5,))
        self._extends(file, nested, scope, (7,))
        self._gap(file.service)
        for place, service in enumerate(file.service):
            self._service(service, (6, place))
        return "\n".join(self._lines) + "\n"

    def _gap(self, following: Sequence[Any]) -> None:
        """An empty line before a part that is not the first one of its block."""
        if following and self._lines and not self._lines[-1].endswith("{"):
            self._line("")

    def _imports(self) -> None:
        file = self._file
        kinds = dict.fromkeys(file.public_dependency, "public ")
        kinds.update(dict.fromkeys(file.weak_dependency, "weak "))
        names = list(enumerate(file.dependency))
        if self._normal:
            names.sort(key=lambda one: (kinds.get(one[0], ""), one[1]))
        else:
            names.sort(key=lambda one: kinds.get(one[0], ""))
        self._gap(names)
        for place, name in names:
            self._line(f"import {kinds.get(place, '')}{quoted(name)};")

    def _types(self, owner: Any, messages: Any, scope: str, path: Path, enum_path: Path) -> None:
        """Messages and enums, without those that a map or a group of ``owner`` writes. ``scope``: the full name of ``owner``."""
        fields = (*(owner.field if "field" in owner.DESCRIPTOR.fields_by_name else ()), *owner.extension)
        groups = {one.type_name for one in fields if one.type == FieldDescriptorProto.TYPE_GROUP}
        found = [
            (place, one)
            for place, one in enumerate(messages)
            if not one.options.map_entry and groups.isdisjoint(_names(scope, one))
        ]
        self._gap([*found, *owner.enum_type])
        for place, message in found:
            self._comment((*path, place))
            self._open(f"message {message.name}")
            self._body(message, f"{scope}.{message.name}", (*path, place))
            self._close()
        for place, enum in enumerate(owner.enum_type):
            self._enum(enum, (*enum_path, place))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _body(self, message: Any, scope: str, path: Path) -> None:
        """``scope``: the full name of ``message``."""
        self._gap([*message.reserved_range, *message.reserved_name])
        self._reserved(message, FIELD_NUMBER_END - 1, inclusive=0)
        self._gap(self._option_texts(message.options))
        self._options(message.options)
        fields = list(enumerate(message.field))
        if self._normal:
            fields.sort(key=lambda one: int(one[1].number))
        plain: list[tuple[int, Any]] = []
        of_oneofs: dict[int, list[tuple[int, Any]]] = {}
        for one in fields:
            is_inner = one[1].HasField("oneof_index") and not one[1].proto3_optional
            (of_oneofs.setdefault(one[1].oneof_index, []) if is_inner else plain).append(one)
        self._gap(plain)
        nested = _nested(scope, message.nested_type, (*path, 3))
        maps = _maps(message.field, nested)
        for place, field in plain:
            if place in maps:
                self._map(field, maps[place], (*path, 2, place))
            else:
                self._field(field, nested, scope, (*path, 2, place), in_oneof=False)
        for index, oneof in enumerate(message.oneof_decl):
            inner = of_oneofs.get(index, [])
            self._gap(inner)
            if inner:
                self._comment((*path, 8, index))
                self._open(f"oneof {oneof.name}")
                self._options(oneof.options)
                for place, field in inner:
                    self._field(field, nested, scope, (*path, 2, place), in_oneof=True)
                self._close()
        if self._extensions:
            self._gap(message.extension_range)
            for one in message.extension_range:
                shown = _range_text(one.start, one.end - 1, FIELD_NUMBER_END - 1)
                self._statement(f"extensions {shown}", self._option_texts(one.options))
        self._types(message, message.nested_type, scope, (*path, 3), (*path, 4))
        self._extends(message, nested, scope, (*path, 6))

    def _reserved(self, owner: Any, last: int, *, inclusive: int) -> None:
        ranges = [(one.start, one.end - 1 + inclusive) for one in owner.reserved_range]
        names = list(owner.reserved_name)
        if ranges:
            self._line(f"reserved {', '.join(_range_text(*one, last) for one in sorted(ranges))};")
        if names:
            shown = names if self._file.syntax == "editions" else [quoted(one) for one in names]
            self._line(f"reserved {', '.join(sorted(shown) if self._normal else shown)};")

    def _map(self, field: Any, entry: Any, path: Path) -> None:
        self._comment(path)
        key, value = sorted(entry.field, key=lambda one: int(one.number))
        self._statement(
            f"map<{_type_name(key)}, {_type_name(value)}> {field.name} = {field.number}", self._of_field(field)
        )

    def _field(self, field: Any, nested: Nested, scope: str, path: Path, *, in_oneof: bool) -> None:
        """A field that is no map. ``nested``: the messages of the block that holds the field. ``scope``: the block's full name."""
        self._comment(path)
        label = "" if in_oneof else self._label(field)
        inner = nested.get(field.type_name)
        if field.type == FieldDescriptorProto.TYPE_GROUP and inner is not None:
            group, group_path = inner
            self._open(f"{label}group {group.name} = {field.number}")
            self._body(group, f"{scope}.{group.name}", group_path)
            self._close()
            return
        self._statement(f"{label}{_type_name(field)} {field.name} = {field.number}", self._of_field(field))

    def _label(self, field: Any) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            return "required "
        is_named = field.proto3_optional or self._file.syntax not in ("proto3", "editions")
        return "optional " if is_named else ""

    def _of_field(self, field: Any) -> list[str]:
        made = []
        if field.HasField("default_value"):
            made.append(f"default = {_default_text(field)}")
        if field.HasField("json_name") and field.json_name != _json_name(field.name) and not field.extendee:
            made.append(f"json_name = {quoted(field.json_name)}")
        return [*made, *self._option_texts(field.options)]

    def _extends(self, owner: Any, nested: Nested, scope: str, path: Path) -> None:
        if not self._extensions:
            return
        self._gap(owner.extension)
        extendee = None
        for place, field in enumerate(owner.extension):
            if field.extendee != extendee:
                if extendee is not None:
                    self._close()
                extendee = field.extendee
                self._open(f"extend {extendee}")
            self._field(field, nested, scope, (*path, place), in_oneof=False)
        if extendee is not None:
            self._close()

    # --- enums and services -------------------------------------------------------------------------------------------

    def _enum(self, enum: Any, path: Path) -> None:
        self._comment(path)
        self._open(f"enum {enum.name}")
        self._reserved(enum, ENUM_NUMBER_END - 1, inclusive=1)
        self._options(enum.options)
        values = list(enumerate(enum.value))
        if self._normal:
            values[1:] = sorted(values[1:], key=lambda one: int(one[1].number))
        for place, value in values:
            self._comment((*path, 2, place))
            self._statement(f"{value.name} = {value.number}", self._option_texts(value.options))
        self._close()

    def _service(self, service: Any, path: Path) -> None:
        self._comment(path)
        self._open(f"service {service.name}")
        self._options(service.options)
        for place, method in enumerate(service.method):
            self._comment((*path, 2, place))
            asked = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            answered = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            text = f"rpc {method.name} ({asked}) returns ({answered})"
            if method.options.ListFields():
                self._open(text)
                self._options(method.options)
                self._close()
            else:
                self._line(f"{text};")
        self._close()


def _names(scope: str, message: Any) -> tuple[str, str]:
    """The names by which fields of its block refer to a message: the one in the block, and the full one."""
    return message.name, f"{scope}.{message.name}"


def _nested(scope: str, messages: Any, path: Path) -> Nested:
    return {name: (one, (*path, place)) for place, one in enumerate(messages) for name in _names(scope, one)}


def _maps(fields: Any, nested: Nested) -> dict[int, Any]:
    """The fields that are maps, by their places, each with the message of its entries.

    A field is a map if it is repeated, its type is a message of its own block that holds entries, and this message has the name
    that follows from the field's. Other fields may refer to such a message too, or to one of its name in another block.
    """
    made: dict[int, Any] = {}
    written: set[str] = set()
    for place, field in enumerate(fields):
        entry, _ = nested.get(field.type_name, (None, ()))
        if entry is None or not entry.options.map_entry or entry.name in written:
            continue
        if field.label == FieldDescriptorProto.LABEL_REPEATED and entry.name == entry_name(field.name):
            written.add(entry.name)
            made[place] = entry
    return made


def _type_name(field: Any) -> str:
    return str(field.type_name or _SCALAR_NAMES[field.type])


def _range_text(start: int, last: int, greatest: int) -> str:
    if start == last:
        return str(start)
    return f"{start} to {'max' if last == greatest else last}"


def _default_text(field: Any) -> str:
    value = field.default_value
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return quoted(value)
    return f'"{value}"' if field.type == FieldDescriptorProto.TYPE_BYTES else str(value)


def _json_name(name: str) -> str:
    """The name in JSON that a field has if no other is set."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)
