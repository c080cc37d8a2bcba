"""The types that parsers of all schema types share, and the choice of the parser."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import ModuleType
from typing import Any, Final, NamedTuple, assert_never

from app.registry.parsing import avro, json_schema
from app.registry.parsing.limits import SCHEMA_BYTES_MAX, StepBudget
from app.registry.refusals import ParserMissing, SchemaInvalid


class SchemaType(StrEnum):
    """Types of schemas, by their names in requests."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


SUPPORTED: Final = (SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO)
"""Types whose schemas can be read. Those of other types are kept in a log of another registry, and returned."""


class Format(StrEnum):
    """Forms in which the text of a schema is returned, by their names in requests."""

    RESOLVED = "resolved"
    """Avro with the types that it refers to in the text."""
    SERIALIZED = "serialized"
    """Protobuf as the base64 of its serialised descriptor."""
    IGNORE_EXTENSIONS = "ignore_extensions"
    """Protobuf without extensions and custom options."""


_FORMS: Final = {
    SchemaType.AVRO.value: frozenset({Format.RESOLVED}),
    SchemaType.PROTOBUF.value: frozenset({Format.SERIALIZED, Format.IGNORE_EXTENSIONS}),
}


class Named(NamedTuple):
    """The text of a referenced schema, and the name by which another schema refers to it."""

    name: str
    text: str


class ParsedSchema(NamedTuple):
    """A schema that was read."""

    kind: SchemaType
    canonical: str
    """The text that is stored and returned: spaces and short forms are gone, the meaning and the documentation are as sent."""
    normalized: str
    """The text that is equal for all schemas that differ in the order of members or in the form of names only."""
    model: Any
    """For ``app/registry/compatibility``."""


PROTOBUF_CHARS: Final = 20_000
"""The cost of a Protobuf model beside its text, in characters of text (ten bytes each): its own pool of descriptors, with the
built-in imports, has 127 to 181 KB."""


def cost_of(parsed: ParsedSchema | None) -> int:
    """The cost of a model in a cache beside its texts, in characters of text. None stands for a schema that cannot be read."""
    return PROTOBUF_CHARS if parsed is not None and parsed.kind is SchemaType.PROTOBUF else 0


def parse(kind: SchemaType, text: str, references: Sequence[Named] = (), *, is_new: bool = True) -> ParsedSchema:
    """Read a schema. ``references`` are in an order in which each comes after those that it needs.

    ``is_new`` adds the checks that stored schemas of other registries may fail, as that of default values.

    Raises: SchemaInvalid, ParserMissing.
    """
    if len(text) > SCHEMA_BYTES_MAX or sum(len(one.text) for one in references) > SCHEMA_BYTES_MAX * 4:
        raise SchemaInvalid(f"the schema is longer than {SCHEMA_BYTES_MAX} characters")
    steps = StepBudget()
    match kind:
        case SchemaType.AVRO:
            schema, names = avro.parse(text, [one.text for one in references], steps, is_new=is_new)
            return ParsedSchema(kind, avro.canonical(schema, names), avro.normalized(schema, names), schema)
        case SchemaType.JSON:
            document = json_schema.parse(text, references, steps, is_new=is_new)
            return ParsedSchema(kind, json_schema.canonical(document), json_schema.normalized(document), document)
        case SchemaType.PROTOBUF:
            reader = _protobuf()
            made = reader.parse(text, references, steps)
            return ParsedSchema(kind, reader.canonical(made), reader.normalized(made), made)
        case _:
            assert_never(kind)


def forms_of(schema_type: str) -> frozenset[Format]:
    """The forms that schemas of a type have."""
    return _FORMS.get(schema_type, frozenset())


def formatted(parsed: ParsedSchema, form: Format) -> str:
    """The text of a schema in one of the forms of its type."""
    match form:
        case Format.RESOLVED:
            return avro.canonical(parsed.model)
        case Format.SERIALIZED:
            return str(_protobuf().serialized(parsed.model))
        case Format.IGNORE_EXTENSIONS:
            return str(_protobuf().without_extensions(parsed.model))
        case _:
            assert_never(form)


def _protobuf() -> ModuleType:
    """The reader of Protobuf, whose package comes with an extra. Raises: ParserMissing."""
    try:
        from app.registry.parsing.protobuf import building
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("google"):
            raise ParserMissing("PROTOBUF") from None
        raise
    return building
