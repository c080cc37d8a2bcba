"""The statements of a Protobuf text become a ``FileDescriptorProto``, with names of types as they were written.

Comments that belong to a statement are kept in ``source_code_info``, as `protoc` keeps them. Options that are not in
`descriptor.proto` are kept as they were written. Tests: ``tests/registry/test_protobuf.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import text_encoding
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    Edition,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf.options import Value, set_option
from app.registry.parsing.protobuf.tokens import END, Token, tokens, unescaped
from app.registry.refusals import SchemaInvalid

NESTED_MAX: Final = 32
"""Levels of messages, and of braces in an option's value. `protoc` has the same limit."""
IMPORTS_MAX: Final = 1_000
FIELD_NUMBER_END: Final = 2**29
ENUM_NUMBER_END: Final = 2**31
SCALARS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
_LABELS: Final = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
_INT: Final = re.compile(r"0[xX][0-9A-Fa-f]+|[0-9]+")
_TIGHT: Final = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')| (?=[:,])')
_INT_END: Final = 2**64
_CLOSING: Final = {"{": "}", "[": "]", "<": ">"}

Path = tuple[int, ...]


def read_file(text: str, steps: StepBudget) -> Any:
    """The descriptor of a text. Raises: SchemaInvalid."""
    return _Reading(tokens(text, steps)).file()


class _Reading:
    """One text."""

    def __init__(self, found: Iterator[Token]) -> None:
        self._rest = found
        self._at = next(found)
        self._last = self._at
        self._made = FileDescriptorProto()

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _next(self) -> Token:
        self._last = self._at
        if self._at.kind != END:
            self._at = next(self._rest)
        return self._last

    def _take(self, text: str) -> bool:
        if self._at.text == text and self._at.kind in ("symbol", "name"):
            self._next()
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(f"{text!r}")

    def _wrong(self, wanted: str) -> SchemaInvalid:
        return SchemaInvalid(f"line {self._at.line} has {self._at.text[:50]!r} where {wanted} must be")

    def _name(self) -> str:
        if self._at.kind != "name":
            raise self._wrong("a name")
        return self._next().text

    def _dotted(self) -> str:
        """The name of a package or of a type."""
        made = "." if self._take(".") else ""
        made += self._name()
        while self._take("."):
            made += f".{self._name()}"
        return made

    def _integer(self) -> int:
        sign = -1 if self._take("-") else 1
        if self._at.kind != "number" or _INT.fullmatch(self._at.text) is None or len(self._at.text) > 24:
            raise self._wrong("an integer")
        text = self._next().text
        is_hex = text[:2] in ("0x", "0X")
        is_octal = not is_hex and len(text) > 1 and text[0] == "0"
        try:
            return sign * int(text, 16 if is_hex else 8 if is_octal else 10)
        except ValueError:
            raise SchemaInvalid(f"line {self._last.line} has {text!r} where an integer must be") from None

    def _number(self, end: int, *, least: int = 1) -> int:
        number = self._integer()
        if not least <= number < end:
            raise SchemaInvalid(f"line {self._last.line} has the number {number}, which is not in [{least}, {end - 1}]")
        return number

    def _string(self) -> bytes:
        """Strings that follow one another are one."""
        if self._at.kind != "string":
            raise self._wrong("a string")
        made = bytearray()
        while self._at.kind == "string":
            token = self._next()
            try:
                made += unescaped(token.text[1:-1])
            except ValueError:
                raise SchemaInvalid(f"line {token.line} has a string with an escape that is not known") from None
        return bytes(made)

    def _text(self) -> str:
        try:
            return self._string().decode()
        except UnicodeDecodeError:
            raise SchemaInvalid(f"line {self._last.line} has a string that is not UTF-8") from None

    def _documented(self, path: Path, first: Token, opening: Token | None = None) -> None:
        """Keep the comments of the statement that began with ``first`` and ends here, or has its brace at ``opening``."""
        trailing = (opening or self._last).trailing
        if first.leading or trailing:
            self._made.source_code_info.location.add(
                path=path, leading_comments=first.leading or None, trailing_comments=trailing or None
            )

    # --- the file -----------------------------------------------------------------------------------------------------

    def file(self) -> Any:
        made = self._made
        if self._at.text in ("syntax", "edition"):
            first = self._next()
            self._need("=")
            level = self._text()
            if first.text == "edition":
                self._edition(level)
            elif level in ("proto2", "proto3"):
                made.syntax = level
            else:
                raise SchemaInvalid(f"the syntax {level[:50]!r} is not known")
            self._need(";")
            self._documented((12,), first)
        while self._at.kind != END:
            self._statement(made)
        return made

    def _edition(self, level: str) -> None:
        name = f"EDITION_{level}"
        if not level.isdigit() or name not in Edition.keys():  # noqa: SIM118 (an enum wrapper)
            raise SchemaInvalid(f"the edition {level[:50]!r} is not known")
        self._made.syntax = "editions"
        self._made.edition = Edition.Value(name)

    def _statement(self, made: Any) -> None:
        first = self._at
        match self._at.text if self._at.kind in ("name", "symbol") else "":
            case ";":
                self._next()
            case "package":
                self._next()
                if made.package:
                    raise SchemaInvalid("the package is named twice")
                made.package = self._dotted()
                self._need(";")
                self._documented((2,), first)
            case "import":
                self._next()
                self._import(made)
            case "option":
                self._option(made.options)
            case "message":
                self._message(made.message_type.add(), (4, len(made.message_type) - 1), 1)
            case "enum":
                self._enum(made.enum_type.add(), (5, len(made.enum_type) - 1))
            case "extend":
                self._extend(made.extension, made.message_type, (7,), (4,), 1)
            case "service":
                self._service(made.service.add(), (6, len(made.service) - 1))
            case _:
                raise self._wrong("a statement")

    def _import(self, made: Any) -> None:
        place = len(made.dependency)
        if self._take("public"):
            made.public_dependency.append(place)
        elif self._take("weak"):
            made.weak_dependency.append(place)
        name = self._text()
        if place == IMPORTS_MAX:
            raise SchemaInvalid(f"the schema imports more than {IMPORTS_MAX} files")
        if name in made.dependency:
            raise SchemaInvalid(f"the file {name[:100]!r} is imported twice")
        made.dependency.append(name)
        self._need(";")

    # --- messages -----------------------------------------------------------------------------------------------------

    def _message(self, made: Any, path: Path, depth: int) -> None:
        first = self._next()
        made.name = self._name()
        self._body(made, path, depth, first)

    def _body(self, made: Any, path: Path, depth: int, first: Token) -> None:
        if depth > NESTED_MAX:
            raise SchemaInvalid(f"messages are inside of one another in more than {NESTED_MAX} levels")
        self._need("{")
        self._documented(path, first, self._last)
        while not self._take("}"):
            self._element(made, path, depth)
        _name_optional_fields(made)

    def _element(self, made: Any, path: Path, depth: int) -> None:
        match self._at.text if self._at.kind in ("name", "symbol") else "":
            case ";":
                self._next()
            case "message":
                self._message(made.nested_type.add(), (*path, 3, len(made.nested_type) - 1), depth + 1)
            case "enum":
                self._enum(made.enum_type.add(), (*path, 4, len(made.enum_type) - 1))
            case "extend":
                self._extend(made.extension, made.nested_type, (*path, 6), (*path, 3), depth + 1)
            case "option":
                self._option(made.options)
            case "oneof":
                self._oneof(made, path, depth)
            case "extensions":
                self._extensions(made)
            case "reserved":
                self._reserved(made, FIELD_NUMBER_END, least=1, inclusive=0)
            case _:
                self._field(made.field, made.nested_type, (*path, 2), (*path, 3), depth)

    def _oneof(self, made: Any, path: Path, depth: int) -> None:
        first = self._next()
        index = len(made.oneof_decl)
        oneof = made.oneof_decl.add(name=self._name())
        self._need("{")
        self._documented((*path, 8, index), first, self._last)
        while not self._take("}"):
            if self._at.text == "option":
                self._option(oneof.options)
            elif not self._take(";"):
                if self._at.text in _LABELS or self._at.text == "map":
                    raise self._wrong("a field without a label")
                self._field(made.field, made.nested_type, (*path, 2), (*path, 3), depth).oneof_index = index

    def _field(self, fields: Any, nested: Any, path: Path, nested_path: Path, depth: int) -> Any:
        """A field, with the message of its group or of its map's entries in ``nested``."""
        first = self._at
        made = fields.add(label=FieldDescriptorProto.LABEL_OPTIONAL)
        own = (*path, len(fields) - 1)
        label = _LABELS.get(self._at.text)
        if label is not None:
            self._next()
            made.label = label
            if self._made.syntax == "proto3" and label == FieldDescriptorProto.LABEL_OPTIONAL:
                made.proto3_optional = True
        entry = None
        name = self._dotted()
        if name == "map" and label is None and self._take("<"):
            entry = self._map(made, nested)
        elif name == "group":
            made.type = FieldDescriptorProto.TYPE_GROUP
        elif name in SCALARS:
            made.type = SCALARS[name]
        else:
            made.type_name = name
        made.name = self._name()
        if entry is not None:
            entry.name = entry_name(made.name)
            made.type_name = entry.name
        self._need("=")
        made.number = self._number(FIELD_NUMBER_END)
        self._compact_options(made.options, made)
        if made.type == FieldDescriptorProto.TYPE_GROUP:
            group = nested.add(name=made.name)
            made.type_name = made.name
            made.name = made.name.lower()
            self._body(group, (*nested_path, len(nested) - 1), depth + 1, first)
        else:
            self._need(";")
            self._documented(own, first)
        return made

    def _map(self, made: Any, nested: Any) -> Any:
        made.label = FieldDescriptorProto.LABEL_REPEATED
        made.type = FieldDescriptorProto.TYPE_MESSAGE
        entry = nested.add()
        entry.options.map_entry = True
        key = self._name()
        if key not in SCALARS or key in ("double", "float", "bytes"):
            raise SchemaInvalid(f"line {self._last.line} has {key[:50]!r} where the type of a map's keys must be")
        entry.field.add(name="key", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL, type=SCALARS[key])
        self._need(",")
        value = entry.field.add(name="value", number=2, label=FieldDescriptorProto.LABEL_OPTIONAL)
        name = self._dotted()
        if name in SCALARS:
            value.type = SCALARS[name]
        else:
            value.type_name = name
        self._need(">")
        return entry

    def _extend(self, fields: Any, nested: Any, path: Path, nested_path: Path, depth: int) -> None:
        self._next()
        extended = self._dotted()
        self._need("{")
        while not self._take("}"):
            if not self._take(";"):
                self._field(fields, nested, path, nested_path, depth).extendee = extended

    def _extensions(self, made: Any) -> None:
        self._next()
        ranges = [made.extension_range.add(start=start, end=end) for start, end in self._ranges(FIELD_NUMBER_END, 1, 0)]
        options = DescriptorProto.ExtensionRange().options
        self._compact_options(options, None)
        if options.ListFields():
            for one in ranges:
                one.options.CopyFrom(options)
        self._need(";")

    def _reserved(self, made: Any, end: int, *, least: int, inclusive: int) -> None:
        """``inclusive``: 1 if the end of a range in the descriptor is its last number."""
        self._next()
        if self._at.kind == "string" or (self._at.kind == "name" and self._at.text != "max"):
            while True:
                made.reserved_name.append(self._text() if self._at.kind == "string" else self._name())
                if not self._take(","):
                    break
        else:
            for start, stop in self._ranges(end, least, inclusive):
                made.reserved_range.add(start=start, end=stop)
        self._need(";")

    def _ranges(self, end: int, least: int, inclusive: int) -> list[tuple[int, int]]:
        found = []
        while True:
            start = last = self._number(end, least=least)
            if self._take("to"):
                last = end - 1 if self._take("max") else self._number(end, least=least)
            if last < start:
                raise SchemaInvalid(
                    f"line {self._last.line} has the range {start} to {last}, whose end is before its start"
                )
            found.append((start, last + 1 - inclusive))
            if not self._take(","):
                return found

    # --- enums and services -------------------------------------------------------------------------------------------

    def _enum(self, made: Any, path: Path) -> None:
        first = self._next()
        made.name = self._name()
        self._need("{")
        self._documented(path, first, self._last)
        while not self._take("}"):
            match self._at.text if self._at.kind in ("name", "symbol") else "":
                case ";":
                    self._next()
                case "option":
                    self._option(made.options)
                case "reserved":
                    self._reserved(made, ENUM_NUMBER_END, least=-ENUM_NUMBER_END, inclusive=1)
                case _:
                    start = self._at
                    value = made.value.add(name=self._name())
                    self._need("=")
                    value.number = self._number(ENUM_NUMBER_END, least=-ENUM_NUMBER_END)
                    self._compact_options(value.options, None)
                    self._need(";")
                    self._documented((*path, 2, len(made.value) - 1), start)

    def _service(self, made: Any, path: Path) -> None:
        first = self._next()
        made.name = self._name()
        self._need("{")
        self._documented(path, first, self._last)
        while not self._take("}"):
            if self._at.text == "option":
                self._option(made.options)
            elif not self._take(";"):
                self._method(made.method, path)

    def _method(self, methods: Any, path: Path) -> None:
        first = self._at
        self._need("rpc")
        method = methods.add(name=self._name())
        method.input_type, is_stream = self._of_method()
        if is_stream:
            method.client_streaming = True
        self._need("returns")
        method.output_type, is_stream = self._of_method()
        if is_stream:
            method.server_streaming = True
        if self._take("{"):
            self._documented((*path, 2, len(methods) - 1), first, self._last)
            while not self._take("}"):
                if not self._take(";"):
                    self._option(method.options)
            return
        self._need(";")
        self._documented((*path, 2, len(methods) - 1), first)

    def _of_method(self) -> tuple[str, bool]:
        self._need("(")
        is_stream = self._take("stream")
        name = self._dotted()
        self._need(")")
        return name, is_stream

    # --- options ------------------------------------------------------------------------------------------------------

    def _option(self, options: Any) -> None:
        self._need("option")
        name = self._option_name()
        self._need("=")
        set_option(options, name, self._value())
        self._need(";")

    def _compact_options(self, options: Any, field: Any) -> None:
        """Options in brackets. ``field``: the field that may have a default and a name in JSON, or None."""
        if not self._take("["):
            return
        while True:
            name = self._option_name()
            self._need("=")
            if field is not None and name == [("default", False)]:
                field.default_value = self._default(field)
            elif field is not None and name == [("json_name", False)]:
                field.json_name = self._text()
            else:
                set_option(options, name, self._value())
            if self._take("]"):
                return
            self._need(",")

    def _option_name(self) -> list[tuple[str, bool]]:
        parts = []
        while True:
            if self._take("("):
                parts.append((self._dotted(), True))
                self._need(")")
            else:
                parts.append((self._name(), False))
            if not self._take("."):
                return parts

    def _default(self, field: Any) -> str:
        if self._at.kind == "string":
            if field.type == FieldDescriptorProto.TYPE_BYTES:
                return str(text_encoding.CEscape(self._string(), False))
            return self._text()
        sign = "-" if self._take("-") else ""
        if self._at.kind == "number" and _INT.fullmatch(self._at.text):
            return sign + str(self._integer())
        if self._at.kind in ("number", "name"):
            return sign + self._next().text
        raise self._wrong("a default value")

    def _value(self) -> Any:
        made: Any = Value()
        if self._at.kind == "string":
            made.string_value = self._string()
            return made
        if self._at.text == "{":
            made.aggregate_value = self._aggregate()
            return made
        if self._at.text == "[":
            raise self._wrong("the value of an option")
        sign = -1 if self._take("-") else 1
        if self._at.kind == "name":
            word = self._next().text
            if sign < 0:
                self._set_float(made, sign, word)
            else:
                made.identifier_value = word
        elif self._at.kind == "number" and _INT.fullmatch(self._at.text):
            number = self._number(_INT_END, least=0)
            if sign < 0:
                made.negative_int_value = max(-number, -(2**63))
            else:
                made.positive_int_value = number
        elif self._at.kind == "number":
            self._set_float(made, sign, self._next().text)
        else:
            raise self._wrong("the value of an option")
        return made

    def _set_float(self, made: Any, sign: int, text: str) -> None:
        try:
            made.double_value = sign * float(text.rstrip("fF") if text not in ("inf", "nan") else text)
        except ValueError:
            raise SchemaInvalid(f"line {self._last.line} has {text[:50]!r} where a number must be") from None

    def _aggregate(self) -> str:
        """A message in an option, with single spaces between its tokens and none before a colon or a comma."""
        parts: list[str] = []
        open_ones: list[str] = []
        while True:
            token = self._next()
            if token.kind == END:
                raise self._wrong("the end of an option's value")
            if token.text in _CLOSING and token.kind == "symbol":
                open_ones.append(_CLOSING[token.text])
                if len(open_ones) > NESTED_MAX:
                    raise SchemaInvalid(f"the value of an option has more than {NESTED_MAX} levels")
            elif open_ones and token.text == open_ones[-1] and token.kind == "symbol":
                open_ones.pop()
                if not open_ones:
                    return _TIGHT.sub(r"\1", " ".join(parts[1:]))
            elif token.text in _CLOSING.values() and token.kind == "symbol":
                raise SchemaInvalid(f"line {token.line} closes a brace of an option's value that is not open")
            parts.append(token.text)


def entry_name(name: str) -> str:
    """The name of the message of a map's entries, from the name of its field, as `protoc` makes it."""
    return f"{''.join(part[:1].upper() + part[1:] for part in name.split('_'))}Entry"


def _name_optional_fields(made: Any) -> None:
    """Give each optional field of proto3 the oneof that stands for its presence, as `protoc` does.

    Two fields of one name would ask for more and more letters, so they are refused first. Raises: SchemaInvalid.
    """
    taken: set[str] = set()
    for field in made.field:
        if field.name in taken:
            raise SchemaInvalid(f"message {made.name[:100]!r} has two fields with the name {field.name[:100]!r}")
        taken.add(field.name)
    taken.update(one.name for one in made.oneof_decl)
    for field in made.field:
        if field.proto3_optional:
            name = f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            taken.add(name)
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=name)
