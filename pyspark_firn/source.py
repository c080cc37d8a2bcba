"""``format("firn")``: the class that Spark calls, thin. Spark makes one of these in a Python process of its own for every
query.

Nothing of Firn but this module, ``shadowing.py`` and ``telling.py`` is imported until a reader or a writer is made: Spark imports
every package named ``pyspark_*`` only to list data sources, and a mistake there would cost its user every other data source,
too.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_firn.shadowing import Shipped, require_firn
from pyspark_firn.telling import plainly

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_firn.options import ReadOptions


class FirnDataSource(Shipped, DataSource):
    """A topic's history as a table, straight from the bucket."""

    @classmethod
    def name(cls) -> str:
        return "firn"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        require_firn()
        super().__init__(options)

    @plainly()
    def schema(self) -> StructType:
        from pyspark_firn.columns import DATA, struct_type
        from pyspark_firn.options import parse_columns, parse_registry

        names = parse_columns(self.options)
        if DATA not in names:
            return struct_type(names)
        from pyspark_firn.registry_values import data_type, reader_text

        return struct_type(names, data_type(reader_text(parse_registry(self.options))))

    @plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_firn.options import parse_read_options

        return FirnReader(parse_read_options(self.options, streaming=False), schema)

    @plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_firn.writing import FirnWriter, parse_write_options

        self._only_append(overwrite)
        return FirnWriter(parse_write_options(self.options, schema, streaming=False))

    @plainly()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        from pyspark_firn.writing import FirnStreamWriter, parse_write_options

        self._only_append(overwrite)
        return FirnStreamWriter(parse_write_options(self.options, schema))

    @staticmethod
    def _only_append(overwrite: bool) -> None:
        if overwrite:
            from app.core.errors import ConfigError

            raise ConfigError("A topic is only ever appended to: write with mode append.")

    @plainly()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark_firn.streaming import FirnStreamReader

        return FirnStreamReader(self.options, schema)


class FirnReader(Shipped, DataSourceReader):
    """Reads a snapshot of some partitions' history.

    It takes no filters from Spark (``pushFilters``). Spark 4.2 keeps one plan with a loaded DataFrame: records pruned by the
    filters of one query would be missing, without an error, in another query of the same DataFrame.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        from pyspark_firn.columns import column_names

        self._options = options
        self._columns = column_names(schema, has_data=options.registry is not None)
        if options.registry is not None:
            from pyspark_firn.registry_values import with_reader

            self._options = with_reader(options, schema)

    @plainly()
    def partitions(self) -> list[InputPartition]:
        from pyspark_firn.batch import plan

        return list(plan(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_firn.tasks import read_split

        with plainly():
            yield from read_split(self._options, self._columns, partition)
