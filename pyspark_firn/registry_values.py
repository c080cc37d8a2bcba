"""The column ``data``: values in Avro behind the id of their schema, as serializers of a registry write them.

The newest version of the subject gives the columns when a frame is loaded. Each value is read by the schema that its id names, and
resolved to these columns by the rules of Avro. So records of earlier and later versions are in one frame.

Tests: ``tests/spark/test_registry.py``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from app.core.errors import ConfigError, CorruptionError, clause
from app.registry.payloads.prefix import read_prefix
from pyspark_firn.columns import DATA, arrow_schema
from pyspark_firn.jobs.avro_indexes import Skip, indexes_check
from pyspark_firn.jobs.values import (
    DECIMAL_DIGITS_MAX,
    REASON_CHARS_MAX,
    UNDECODABLE,
    avro_shape,
    known_logical_types,
)
from pyspark_firn.options import ReadOptions
from pyspark_firn.registry import AVRO, RegistryClient, RegistryOptions

SCHEMAS_MAX: Final = 1_000
"""Schemas that one task keeps."""
_TIMES: Final = frozenset({"time-millis", "time-micros"})
"""Logical types that Spark has no type for. Their values stay numbers."""
_PLAIN: Final[Mapping[pa.DataType, DataType]] = {
    pa.null(): NullType(),
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestampType(),
    pa.timestamp("us"): TimestampNTZType(),
}


def with_reader(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options with the schema that gives the columns. ``schema``: the one that Spark has for the frame.

    Raises: ConfigError, also if a version was registered that has other columns; BrokerUnavailable.
    """
    if options.registry is None or DATA not in schema.names:
        return options
    text = reader_text(options.registry)
    found = schema[DATA].dataType
    if data_type(text) != found:
        raise ConfigError(
            f"The column {DATA!r} is of type {data_type(text).simpleString()}, not {found.simpleString()}: load the frame again, "
            "or name a version with the option schema.registry.version."
        )
    return replace(options, registry=replace(options.registry, reader=text))


def reader_text(options: RegistryOptions) -> str:
    """The text of the schema that gives the columns. Raises: ConfigError, BrokerUnavailable."""
    found = RegistryClient(options).of_subject()
    if found.kind != AVRO:
        raise ConfigError(
            f"Subject {options.subject!r} has a schema of type {found.kind}, and only Avro gives columns: leave "
            "schema.registry.url out, and decode the column value."
        )
    return found.text


def data_type(text: str) -> DataType:
    """Spark's type of a schema's column. Raises: ConfigError."""
    return _spark_type(_arrow_type(text))


def _arrow_type(text: str) -> pa.DataType:
    return _in_microseconds(avro_shape(json.dumps(_without_times(_json(text)))).struct)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"This is no Avro schema: {clause(error)}.") from None


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_times(one)
        for name, one in schema.items()
        if not (name == "logicalType" and isinstance(one, str) and one in _TIMES)
    }


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Spark has no other unit of time."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _in_microseconds(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _in_microseconds(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_microseconds(kind.item_type))
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_struct(kind):
        return StructType([StructField(one.name, _spark_type(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _PLAIN[kind]


class RegistryValues:
    """Decodes the values of one task."""

    def __init__(self, options: RegistryOptions, columns: Sequence[str], topic: str, partition: int) -> None:
        self._options = options
        self._columns = columns
        self._name = f"{topic}-{partition}"
        self._client = RegistryClient(options)
        self._kind = _arrow_type(options.reader)
        self._reader = _parsed(options.reader)
        _read_defaults(self._reader, {})
        self._writers: dict[int, tuple[Any, Skip | None]] = {}
        named = [name for name in columns if name != DATA]
        self.read_columns: tuple[str, ...] = tuple(dict.fromkeys([*named, "value", "offset"]))
        """The columns that a batch for ``decoded`` must have."""
        fields = [pa.field(DATA, self._kind) if name == DATA else arrow_schema([name]).field(0) for name in columns]
        self._schema = pa.schema(fields)

    def decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns that were asked for. Raises: CorruptionError, ConfigError, BrokerUnavailable."""
        values = batch.column(self.read_columns.index("value")).to_pylist()
        offsets = batch.column(self.read_columns.index("offset"))
        rows: list[Any] = []
        for index, value in enumerate(values):
            try:
                rows.append(None if value is None else self._decode(value))
            except UNDECODABLE as error:
                self._check_bad(offsets[index].as_py(), error)
                rows.append(None)
        data = self._column(rows, offsets)
        made = [data if name == DATA else batch.column(self.read_columns.index(name)) for name in self._columns]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def _decode(self, value: bytes) -> Any:
        prefix = read_prefix(value)
        if prefix is None or not isinstance(prefix.ref, int):
            raise ValueError("the value does not begin with the id of a schema")
        writer, check_indexes = self._writer(prefix.ref)
        stream = io.BytesIO(value)
        stream.seek(prefix.size_bytes)
        found = fastavro.schemaless_reader(stream, writer, self._reader)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        if check_indexes is not None:
            check_indexes(value, prefix.size_bytes)
        return found

    def _writer(self, schema_id: int) -> tuple[Any, Skip | None]:
        found = self._writers.get(schema_id)
        if found is None:
            answer = self._client.by_id(schema_id)
            if answer is None or answer.kind != AVRO:
                raise ValueError(f"the registry has no Avro schema with the id {schema_id}")
            try:
                _arrow_type(answer.text)  # refuses what a few bytes could make large
            except ConfigError as error:
                raise ValueError(f"schema {schema_id} is not read here: {clause(error)}") from None
            parsed = _parsed(answer.text)
            found = self._writers[schema_id] = parsed, indexes_check(parsed)
            while len(self._writers) > SCHEMAS_MAX:
                self._writers.pop(next(iter(self._writers)))
        return found

    def _column(self, rows: list[Any], offsets: pa.Array) -> pa.Array:
        try:
            return pa.array(rows, self._kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            for index, one in enumerate(rows):
                try:
                    pa.array([one], self._kind)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                    self._check_bad(offsets[index].as_py(), error)
                    rows[index] = None
            return pa.array(rows, self._kind)

    def _check_bad(self, offset: int, error: Exception) -> None:
        """Told of a value that cannot be decoded. Raises: CorruptionError if such values end the read."""
        if self._options.bad_is_null:
            return
        reason = clause(str(error)[:REASON_CHARS_MAX] or type(error).__name__)
        raise CorruptionError(
            f"The value at offset {offset} of {self._name} is not of its schema: {reason}. Leave it out with the starting and "
            "ending options, or set badValues to null."
        ) from None


def _read_defaults(schema: Any, named: dict[str, Any]) -> None:
    """Put values in the place of the defaults of fields, which the decoder would return in their JSON form."""
    if isinstance(schema, list):
        for one in schema:
            _read_defaults(one, named)
    elif isinstance(schema, dict):
        if "name" in schema:
            named[schema["name"]] = schema
        for one in (schema.get("items"), schema.get("values"), schema["type"]):
            if isinstance(one, (dict, list)):
                _read_defaults(one, named)
        for field in schema.get("fields", ()):
            _read_defaults(field["type"], named)
            if "default" in field:
                field["default"] = _default(field["type"], field["default"], named)


def _default(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """The value of a default in JSON. One of a union is of the first branch."""
    if isinstance(schema, list):
        return _default(schema[0], value, named)
    if isinstance(schema, str):
        if schema in named:
            return _default(named[schema], value, named)
        return value.encode("latin-1") if schema == "bytes" else value
    kind, logical = schema["type"], schema.get("logicalType", "")
    if logical == "decimal":
        unscaled = int.from_bytes(value.encode("latin-1"), signed=True)
        return Decimal(unscaled).scaleb(-schema.get("scale", 0), Context(prec=DECIMAL_DIGITS_MAX))
    if logical == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    if "timestamp" in logical:
        zone = None if logical.startswith("local") else UTC
        unit = timedelta(milliseconds=1) if logical.endswith("millis") else timedelta(microseconds=1)
        return datetime(1970, 1, 1, tzinfo=zone) + value * unit
    match kind:
        case "record":
            fields = schema["fields"]
            return {
                one["name"]: _default(one["type"], value[one["name"]], named)
                if one["name"] in value
                else one["default"]
                for one in fields
            }
        case "array":
            return [_default(schema["items"], one, named) for one in value]
        case "map":
            return {name: _default(schema["values"], one, named) for name, one in value.items()}
        case "fixed":
            return value.encode("latin-1")
        case "enum":
            return value
    return _default(kind, value, named)


def _parsed(text: str) -> Any:
    """Raises: ConfigError."""
    try:
        return fastavro.parse_schema(known_logical_types(_without_times(_json(text))))
    except (
        ValueError,
        KeyError,
        TypeError,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
    ) as error:
        raise ConfigError(f"The registry has a text that is no Avro schema: {error!r}.") from None
