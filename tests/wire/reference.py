"""The plain reading of the rows in ``app/wire/apis``: slow, obvious, and with a note of every place worth attacking.

``encode`` writes a message as ``app.wire.codec`` should, one field after the other, and remembers where counts, lengths,
texts and sections of tagged fields are. ``make`` fills a message of one version with values drawn from a ``Random``.
"""

from __future__ import annotations

import importlib
import itertools
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from app.core.errors import ErrorCode
from app.wire.apis import APIS
from app.wire.compiler import FIXED
from app.wire.schema import ZERO_UUID, Field, Rows, fields_of

TEXTS = ("", "a", "topic-1", "größe", "x" * 130, "日本語")
UNKNOWN_TAGS = ((20_000, b""), (20_001, b"\xff" * 5), (70_000, b"z" * 200))
"""Fields that no version has."""


@dataclass(frozen=True)
class Subject:
    """One message in one version."""

    key: int
    version: int
    is_request: bool

    @property
    def module(self) -> Any:
        return importlib.import_module(f"app.wire.apis.{APIS[self.key].module}")

    @property
    def rows(self) -> Rows:
        rows: Rows = self.module.FIELDS
        return rows

    @property
    def struct(self) -> str:
        return APIS[self.key].name + ("Request" if self.is_request else "Response")

    @property
    def is_flexible(self) -> bool:
        return self.version >= APIS[self.key].flexible_first

    def __str__(self) -> str:
        return f"{self.struct}-v{self.version}"


def subjects(key: int, is_request: bool) -> list[Subject]:
    """All versions of a message."""
    api = APIS[key]
    return [Subject(key, version, is_request) for version in range(api.version_first, api.version_last + 1)]


def all_subjects() -> Iterator[Subject]:
    for key in APIS:
        yield from subjects(key, True)
        yield from subjects(key, False)


# --- writing ----------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = b""
    while True:
        low, value = value & 0x7F, value >> 7
        if not value:
            return out + bytes([low])
        out += bytes([low | 0x80])


@dataclass(frozen=True)
class Spot:
    """A count or length: ``size`` bytes at ``position``."""

    position: int
    size: int
    name: str
    is_nullable: bool
    is_text: bool = False


@dataclass
class Notes:
    """A message's bytes and what lies where."""

    data: bytes
    spots: list[Spot] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)
    """Positions of the first byte of texts that are not empty."""
    tag_sections: list[Spot] = field(default_factory=list)


class Writer:
    def __init__(self, subject: Subject, unknown_tags: tuple[tuple[int, bytes], ...], sections: Iterator[bool]) -> None:
        self.subject = subject
        self.flexible = subject.is_flexible
        self.unknown_tags = unknown_tags
        self.sections = sections
        self.notes = Notes(b"")

    def put(self, data: bytes) -> None:
        self.notes.data += data

    def length(self, item: Field, value: int, code: str) -> None:
        encoded = varint(value + 1) if self.flexible else struct.pack(f">{code}", value)
        self.notes.spots.append(
            Spot(len(self.notes.data), len(encoded), item.name, item.is_nullable, is_text=item.kind == "string")
        )
        self.put(encoded)

    def struct(self, name: str, message: Any) -> None:
        fields = fields_of(self.subject.rows, name, self.subject.version)
        for item in fields:
            if item.tag is None:
                self.field(item, getattr(message, item.name))
        if not self.flexible:
            assert all(item.tag is None for item in fields)
            return
        unknown = self.unknown_tags if next(self.sections) else ()
        tagged: list[tuple[int, Field | bytes, Any]] = [(tag, body, None) for tag, body in unknown]
        default = getattr(self.subject.module, name)()
        for item in fields:
            if item.tag is not None and getattr(message, item.name) != getattr(default, item.name):
                tagged.append((item.tag, item, getattr(message, item.name)))
        count = varint(len(tagged))
        self.notes.tag_sections.append(Spot(len(self.notes.data), len(count), name, False))
        self.put(count)
        known = sorted(tagged[len(unknown) :], key=lambda entry: entry[0])
        for tag, item_or_body, value in known + tagged[: len(unknown)]:
            if isinstance(item_or_body, bytes):
                self.put(varint(tag) + varint(len(item_or_body)) + item_or_body)
                continue
            inner = Writer(self.subject, self.unknown_tags, self.sections)
            inner.field(item_or_body, value)
            self.put(varint(tag) + varint(len(inner.notes.data)))
            start = len(self.notes.data)
            self.notes.spots += [
                Spot(start + spot.position, spot.size, spot.name, spot.is_nullable, spot.is_text)
                for spot in inner.notes.spots
            ]
            self.notes.texts += [start + position for position in inner.notes.texts]
            self.put(inner.notes.data)

    def field(self, item: Field, value: Any) -> None:
        if item.is_array:
            self.length(item, -1 if value is None else len(value), "i")
            for element in value or ():
                self.value(item._replace(is_array=False, is_nullable=False), element)
        else:
            self.value(item, value)

    def value(self, item: Field, value: Any) -> None:
        if item.kind == "uuid":
            self.put(value.bytes)
        elif item.kind in FIXED:
            self.put(struct.pack(f">{FIXED[item.kind]}", value))
        elif item.kind == "string":
            text = b"" if value is None else value.encode()
            self.length(item, -1 if value is None else len(text), "h")
            if text:
                self.notes.texts.append(len(self.notes.data))
            self.put(text)
        elif item.kind in ("bytes", "records"):
            self.length(item, -1 if value is None else len(value), "i")
            self.put(bytes(value or b""))
        elif item.is_nullable:
            self.put(b"\xff" if value is None else b"\x01")
            if value is not None:
                self.struct(item.kind, value)
        else:
            self.struct(item.kind, value)


def encode(
    subject: Subject, message: Any, unknown_tags: tuple[tuple[int, bytes], ...] = (), section: int | None = None
) -> Notes:
    """The bytes of a message.

    ``unknown_tags`` are put, in the order given and behind the known ones, into every section of tagged fields, or only into
    that of number ``section``, counted in the order in which they open.
    """
    sections = (section is None or section == number for number in itertools.count())
    writer = Writer(subject, unknown_tags, sections)
    writer.struct(subject.struct, message)
    return writer.notes


# --- filling ----------------------------------------------------------------------------------------------------------


OWN_TAGS: Final = 10_000
"""From this tag on a field is Firn's own."""


def make(subject: Subject, chance: random.Random, *, full: bool = False, struct_name: str | None = None) -> Any:
    """A message whose fields of this version have values drawn from ``chance``; the others have their defaults.

    ``full`` draws no nulls and no empty arrays, so that every spot of the message is there. Values that kio would not
    take (unknown error codes, times beyond the year 9999) are not drawn.
    """
    name = struct_name or subject.struct
    cls = getattr(subject.module, name)
    message = cls()
    for item in fields_of(subject.rows, name, subject.version):
        setattr(message, item.name, _draw(subject, item, chance, full))
    return message


def _draw(subject: Subject, item: Field, chance: random.Random, full: bool) -> Any:
    if item.is_nullable and not full and chance.random() < 0.3:
        return None
    # Firn's own fields, of which the oracle knows nothing, are there in full messages only.
    if item.tag is not None and not full and (item.tag >= OWN_TAGS or chance.random() < 0.3):
        cls = next(
            getattr(subject.module, name) for name, rows in subject.rows.items() for row in rows if row[0] == item.name
        )
        return getattr(cls(), item.name)
    if item.is_array:
        count = 1 if full else chance.choice((0, 1, 1, 2, 3))
        if not full and item.kind in FIXED and chance.random() < 0.05:
            count = 200
        element = item._replace(is_array=False, is_nullable=False, tag=None)
        return [_draw(subject, element, chance, full) for _ in range(count)]
    return _draw_value(subject, item, chance, full)


def _draw_value(subject: Subject, item: Field, chance: random.Random, full: bool) -> Any:
    match item.kind:
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.choice((0.0, -1.5, 1e300, 0.1))
        case "uuid":
            return ZERO_UUID if not full and chance.random() < 0.2 else UUID(int=chance.getrandbits(128))
        case "string":
            return "text" if full else chance.choice(TEXTS)
        case "bytes" | "records":
            return chance.randbytes(3 if full else chance.choice((0, 1, 40, 200)))
        case "int16" if "error_code" in item.name:
            return int(chance.choice(list(ErrorCode)))
        case "int32" | "int64" if item.name.endswith("_ms"):
            return chance.randrange(1 << 31)
        case "int8" | "int16" | "int32" | "int64" | "uint16":
            bits = 8 * struct.calcsize(FIXED[item.kind])
            low = 0 if item.kind == "uint16" else -(1 << bits - 1)
            return chance.choice((low, low + (1 << bits) - 1, 0, chance.randrange(low, low + (1 << bits))))
    return make(subject, chance, full=full, struct_name=item.kind)
