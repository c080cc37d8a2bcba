"""The columns of a topic, as Spark's Kafka source has them, and a few more on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from app.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADERS: Final = "headers"
DATA: Final = "data"
"""The column of decoded values, in the place of ``value``. The schema registry says its type."""
KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of ``format("kafka")``, in its order."""

SPARK_TYPES: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "leader_epoch": IntegerType(),
    "producer_id": LongType(),
}
"""Every column there is. ``timestampType`` is 0 for CreateTime and 1 for LogAppendTime; ``producer_id`` is -1 for a record of a
producer that was not idempotent."""

HEADER_STRUCT: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", HEADER_STRUCT)),
    "leader_epoch": pa.int32(),
    "producer_id": pa.int64(),
}


def struct_type(names: Sequence[str], data: DataType | None = None) -> StructType:
    """Spark's schema of these columns. ``data``: the type of the column of decoded values."""
    types = dict(SPARK_TYPES) if data is None else {**SPARK_TYPES, DATA: data}
    return StructType([StructField(name, types[name]) for name in names])


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The schema that Spark expects from a reader of these columns."""
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in names])


def column_names(schema: StructType, *, has_data: bool = False) -> tuple[str, ...]:
    """Which columns a user's own schema asks for. ``has_data``: the column of decoded values is among those that there are, and its
    type is checked elsewhere. Raises: ConfigError if it is not one of these columns as they are."""
    for field in schema.fields:
        if schema.names.count(field.name) > 1:
            raise ConfigError(f"The column {field.name!r} is in the schema more than once: name it once.")
        known = field.dataType if has_data and field.name == DATA else SPARK_TYPES.get(field.name)
        if known is None:
            raise ConfigError(f"There is no column {field.name!r}: a topic has {', '.join(SPARK_TYPES)}.")
        if field.dataType != known:
            raise ConfigError(
                f"The column {field.name!r} is of type {known.simpleString()}, not {field.dataType.simpleString()}: cast it"
                " after reading."
            )
        if not field.nullable:
            raise ConfigError(f"The column {field.name!r} cannot be declared NOT NULL: leave that out of the schema.")
    return tuple(field.name for field in schema.fields)
