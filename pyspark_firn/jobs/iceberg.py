"""The Iceberg table of an archive: its schema, how far it has come, and opening it in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from app.errors import ConfigError

PROPERTY_PREFIX: Final = "firn.archive."

SCHEMA: Final = Schema(
    NestedField(1, "key", BinaryType()),
    NestedField(2, "value", BinaryType()),
    NestedField(3, "topic", StringType()),
    NestedField(4, "partition", IntegerType()),
    NestedField(5, "offset", LongType()),
    NestedField(6, "timestamp", TimestamptzType()),
    NestedField(7, "timestampType", IntegerType()),
    NestedField(
        8,
        "headers",
        ListType(9, StructType(NestedField(10, "key", StringType()), NestedField(11, "value", BinaryType())), False),
    ),
)
SPEC: Final = PartitionSpec(PartitionField(6, 1000, DayTransform(), "timestamp_day"))


def opened_table(name: str, catalog: Mapping[str, str]) -> Table:
    """The table ``namespace.table``, made if there is none. Raises: ConfigError."""
    namespace, _, table = name.rpartition(".")
    if not namespace or not table:
        raise ConfigError(f"{name!r} is no table of a catalog: write namespace.table.")
    loaded = load_catalog("firn", **catalog)
    if loaded.table_exists(name):
        return loaded.load_table(name)
    loaded.create_namespace_if_not_exists(namespace)
    return loaded.create_table(
        name, SCHEMA, partition_spec=SPEC, properties={"write.parquet.compression-codec": "zstd"}
    )


def forbid_rebasing(table: Table) -> None:
    """Make a commit to ``table`` fail if anybody was quicker.

    Pyiceberg would try again on top of the other's snapshot, with offsets that were right before it. The setting is changed in
    this object only: nothing of it is written.
    """
    table.metadata.properties["commit.retry.num-retries"] = "0"


def local_catalog(folder: Path) -> dict[str, str]:
    """The catalog when none is named: SQLite in ``folder``, tables beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.resolve().as_uri()}


def property_names(topic_id: str, ends: Mapping[int, int]) -> dict[str, Any]:
    """How a table says how far it has come."""
    return {f"{PROPERTY_PREFIX}{topic_id}.{partition}": str(end) for partition, end in ends.items()}


def offsets_of(table: Table, topic_id: str) -> dict[int, int]:
    """Next offset of each partition of a topic that the table holds."""
    prefix = f"{PROPERTY_PREFIX}{topic_id}."
    return {
        int(name.removeprefix(prefix)): int(value)
        for name, value in table.properties.items()
        if name.startswith(prefix)
    }
