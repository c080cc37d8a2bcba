"""The meaning of values: JSON or Avro decoded to columns. Values that cannot be decoded are kept aside with the reason.

A shape is fixed for the life of an archive: given, or inferred from the first records and written down. Fields that are not in it
are dropped, fields that are missing are null; a value that does not fit is a bad record, never a wrong one.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from app.core.errors import ConfigError
from pyspark_firn.columns import DATA
from pyspark_firn.jobs.avro_indexes import Skip, indexes_check

REASON: Final = "reason"
SAMPLE_RECORDS: Final = 10_000
"""Records that a shape is inferred from."""
REASON_CHARS_MAX: Final = 300

_WORDS: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_AVRO_WORDS: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_AVRO_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("int", "date"): pa.date32(),
}
"""Of an Avro type and its logical type. Values of other logical types are read as their Avro type."""
FLOAT_MAX: Final = float(np.finfo(np.float32).max)
DECIMAL_DIGITS_MAX: Final = 38
"""More have no place in Parquet as Spark and Iceberg know it."""
UNDECODABLE: Final = (
    ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, RecursionError, struct.error,
)  # fmt: skip
"""The errors that decoders raise for a bad value."""
DEPTH_MAX: Final = 16
"""The depth of nested objects and arrays to which a shape is inferred; deeper ones have no column."""


@dataclass(frozen=True, slots=True)
class ValueShape:
    """How values are decoded; small and plain, to travel to workers."""

    kind: str
    """``json`` or ``avro``."""
    arrow: bytes
    """The fields, as a serialised Arrow schema."""
    avro: str = ""
    """The Avro schema that values were written with."""

    @property
    def struct(self) -> pa.StructType:
        return pa.struct(list(pa.ipc.read_schema(pa.py_buffer(self.arrow))))

    def encode(self) -> bytes:
        return json.dumps({"version": 1, "kind": self.kind, "arrow": self.arrow.hex(), "avro": self.avro}).encode()


def decode_shape(document: Mapping[str, Any]) -> ValueShape:
    """Inverse of ``ValueShape.encode``, of a document whose version was checked."""
    return ValueShape(document["kind"], bytes.fromhex(document["arrow"]), document["avro"])


def json_shape(text: str) -> ValueShape:
    """From ``name type, name type …``. Raises: ConfigError."""
    fields: list[pa.Field] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*`?([^`\s]+)`?\s+([A-Za-z]+)\s*", part)
        kind = _WORDS.get(found[2].lower()) if found else None
        if found is None or kind is None:
            raise ConfigError(f"{part.strip()!r} is no field of a schema: write 'name type' with {', '.join(_WORDS)}.")
        if any(field.name == found[1] for field in fields):
            raise ConfigError(f"The schema has two fields named {found[1]!r}.")
        fields.append(pa.field(found[1], kind))
    return ValueShape("json", pa.schema(fields).serialize().to_pybytes())


def avro_shape(text: str) -> ValueShape:
    """From an Avro schema, a record. Raises: ConfigError."""
    import fastavro

    try:
        parsed = fastavro.parse_schema(known_logical_types(json.loads(text)))
    except (
        ValueError,
        KeyError,
        TypeError,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
    ) as error:
        raise ConfigError(f"This is no Avro schema: {error!r}.") from None
    kind = _avro_type(parsed, {})
    if not pa.types.is_struct(kind):
        raise ConfigError("The Avro schema must be of a record.")
    return ValueShape("avro", pa.schema(list(kind)).serialize().to_pybytes(), text)


def inferred_json_shape(values: Sequence[bytes | None]) -> ValueShape:
    """From some values; those that are no JSON objects are passed over. Raises: ConfigError if none is one with a field."""
    decoder = msgspec.json.Decoder()
    objects = []
    for value in values:
        try:
            found = decoder.decode(value) if value else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            objects.append(found)
    kind = _inferred_type(objects, DEPTH_MAX)
    if kind is None or not pa.types.is_struct(kind):
        raise ConfigError(
            "None of the first records is a JSON object with a field: give a schema, or archive the values as they are."
        )
    return ValueShape("json", pa.schema(list(kind)).serialize().to_pybytes())


def _inferred_type(values: Sequence[Any], depth: int) -> pa.DataType | None:
    """The common type of the values, by default strings; None if no file could hold it: objects without fields, too deep."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {dict}:
        fields = []
        for name in dict.fromkeys(name for value in values for name in value or ()) if depth else ():
            kind = _inferred_type([value.get(name) for value in values if value], depth - 1)
            if kind is not None:
                fields.append(pa.field(name, kind))
        return pa.struct(fields) if fields else None
    if kinds == {list}:
        element = _inferred_type([one for value in values for one in value or ()], depth - 1) if depth else None
        return pa.list_(element) if element is not None else None
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()  # Numbers beyond it lie aside: as floats they would be others.
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def known_logical_types(schema: Any) -> Any:
    """An Avro schema without the logical types that have no column here, so that the decoder leaves their values unchanged."""
    if isinstance(schema, list):
        return [known_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    named = {name: known_logical_types(one) for name, one in schema.items()}
    kind, logical = named.get("type"), named.pop("logicalType", None)
    if isinstance(kind, str) and isinstance(logical, str):
        is_decimal = logical == "decimal" and kind in ("bytes", "fixed") and "precision" in named
        if is_decimal or (kind, logical) in _AVRO_LOGICAL:
            named["logicalType"] = logical
    return named


def _avro_type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ConfigError("An Avro union may be of null and one other type; this one has more.")
        return _avro_type(others[0], named)
    if isinstance(schema, str):
        found = _AVRO_WORDS.get(schema) or named.get(schema)
        if found is None:
            raise ConfigError(f"The Avro type {schema!r} is not known here, or refers to itself.")
        return found
    logical = schema.get("logicalType")
    if logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        if not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX or not precision:
            raise ConfigError(f"An Avro decimal may have up to {DECIMAL_DIGITS_MAX} digits, this one has {precision}.")
        kind = pa.decimal128(precision, scale)
        if schema["type"] == "fixed":
            named[schema["name"]] = kind
        return kind
    if logical is not None:
        return _AVRO_LOGICAL[schema["type"], logical]
    match schema["type"]:
        case "record" if not schema["fields"]:
            raise ConfigError("An Avro record without fields has no column: leave it out.")
        case "record":
            kind = pa.struct([pa.field(one["name"], _avro_type(one["type"], named)) for one in schema["fields"]])
        case "array":
            items = _avro_type(schema["items"], named)
            if _takes_no_bytes(items):
                # A few bytes could claim any number of them.
                raise ConfigError("The elements of an Avro array must take at least a byte each.")
            return pa.list_(items)
        case "map":
            return pa.map_(pa.string(), _avro_type(schema["values"], named))
        case "enum":
            kind = pa.string()
        case "fixed":
            kind = pa.binary()
        case other:
            return _avro_type(other, named)
    named[schema["name"]] = kind
    return kind


def _takes_no_bytes(kind: pa.DataType) -> bool:
    """Whether Avro writes nothing for a value of a type."""
    if pa.types.is_struct(kind):
        return all(_takes_no_bytes(field.type) for field in kind)
    return bool(pa.types.is_null(kind))


def _python_type(kind: pa.DataType) -> Any:
    """The type that the JSON decoder accepts for an Arrow type."""
    if pa.types.is_struct(kind):
        fields: Any = {field.name: _python_type(field.type) | None for field in kind}
        return TypedDict("_Row", fields, total=False)  # type: ignore[operator]  # names and types are data
    if pa.types.is_list(kind):
        element: Any = _python_type(kind.value_type) | None
        return list[element]
    if pa.types.is_int32(kind):
        return Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_float32(kind):
        return Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]  # Arrow would make it infinite.
    if pa.types.is_floating(kind):
        return float
    return bool if pa.types.is_boolean(kind) else str


class ValueDecoder:
    """Decodes the column ``value`` of record batches."""

    def __init__(self, shape: ValueShape, schema: pa.Schema) -> None:
        self._struct = shape.struct
        index = schema.get_field_index("value")
        self.good_schema = schema.set(index, pa.field(DATA, self._struct))
        self.bad_schema = schema.append(pa.field(REASON, pa.string()))
        self._index = index
        # Arrow would make 2 of 2.5 where an integer is wanted: the JSON decoder itself is told the types.
        self._json = msgspec.json.Decoder(_python_type(self._struct)) if shape.kind == "json" else None
        self._avro: Any = None
        self._check_indexes: Skip | None = None
        if shape.kind == "avro":
            import fastavro

            self._avro = fastavro.parse_schema(known_logical_types(json.loads(shape.avro)))
            self._check_indexes = indexes_check(self._avro)

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """(records with decoded values, records that cannot be decoded with the reason)."""
        values = batch.column(self._index).to_pylist()
        decoded: list[Any] = []
        reasons: list[str | None] = []
        for value in values:
            try:
                decoded.append(None if value is None else self._decode(value))
                reasons.append(None)
            except UNDECODABLE as error:
                decoded.append(None)
                reasons.append(_reason(error))
        data = self._column(decoded, reasons)
        if not any(reasons):
            return batch.set_column(self._index, self.good_schema.field(self._index), data), _none(self.bad_schema)
        good = pa.array([reason is None for reason in reasons])
        kept = batch.set_column(self._index, self.good_schema.field(self._index), data).filter(good)
        aside = batch.append_column(self.bad_schema.field(REASON), pa.array(reasons, pa.string()))
        return kept, aside.filter(pa.array([reason is not None for reason in reasons]))

    def _decode(self, value: bytes) -> Any:
        if self._json is not None:
            return self._json.decode(value)
        import fastavro

        stream = io.BytesIO(value)
        found = fastavro.schemaless_reader(stream, self._avro, None)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        if self._check_indexes is not None:
            # After the decoder, which has found claims to be bounded by the bytes that are there.
            self._check_indexes(value, 0)
        return found

    def _column(self, decoded: list[Any], reasons: list[str | None]) -> pa.Array:
        """The decoded values as one array; a value that does not fit the shape gets its reason and a null."""
        try:
            return pa.array(decoded, self._struct)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            for index, one in enumerate(decoded):
                try:
                    pa.array([one], self._struct)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                    decoded[index], reasons[index] = None, _reason(error)
            return pa.array(decoded, self._struct)


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
