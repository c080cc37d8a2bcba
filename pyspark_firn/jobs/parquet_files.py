"""One part of an archive as Parquet files: one for each day of its records.

A file gets its name only when it is whole. In a folder that others read it is *pending* then, until the archive's commit names it
(``archive_plan.pending_path``). Two attempts at one part never share a name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.core.errors import ConfigError
from app.core.limits import MIB
from pyspark_firn.jobs.archive_plan import pending_path
from pyspark_firn.jobs.targets import Target, writing

DAY_US: Final = 86_400_000_000
ROW_GROUP_BYTES: Final = 32 * MIB
"""Bytes of records before compression that a writer holds in memory."""
OPEN_DAYS_MAX: Final = 16
"""Days written at a time; a part whose records jump between more of them gets several files for a day."""
ZSTD_LEVEL: Final = 1
COLUMNS_WITH_STATISTICS: Final = ("topic", "partition", "offset", "timestamp", "timestampType")
"""Those that readers leave out files and row groups by."""
TABLE_DAYS: Final = range(-719_162, 2_932_897)
"""Days of the years 1 to 9999: others cannot be told to an Iceberg table, since Python has no dates for them."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of an archive."""

    path: str
    """Below the archive's folder, once it is not pending any more."""
    day: str
    records: int
    bytes: int


class _DayFile:
    """The file of one day under way."""

    def __init__(self, target: Target, folder: str, path: str, schema: pa.Schema, pending: bool) -> None:
        self.path = path
        self._file = target.create(f"{folder}/{pending_path(path) if pending else path}")
        try:
            with writing(self._file.name):
                self._writer = pq.ParquetWriter(
                    self._file.sink,
                    schema,
                    compression="zstd",
                    compression_level=ZSTD_LEVEL,
                    use_dictionary=["topic", "partition", "timestampType"],
                    write_statistics=list(COLUMNS_WITH_STATISTICS),
                )
        except BaseException:
            self._file.discard()
            raise
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        self.records += batch.num_rows
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            with writing(self._file.name):
                self._writer.write_table(table, row_group_size=table.num_rows)
            self._held, self._held_bytes = [], 0

    def close(self) -> int:
        """Make it visible; answers its bytes."""
        self._flush()
        with writing(self._file.name):
            self._writer.close()
        return self._file.publish()

    def discard(self) -> None:
        """Remove the unfinished file."""
        # Closed before its file is: it would write its end there when it is collected. Its errors do not matter any more.
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._file.discard()


class DayWriter:
    """Writes record batches with a ``timestamp`` column as ``<folder>/date=<day>/<name>[-<n>].parquet``."""

    def __init__(
        self,
        target: Target,
        folder: str,
        name: str,
        schema: pa.Schema,
        days: Container[int] | None = None,
        *,
        pending: bool = False,
    ) -> None:
        """``days``: since 1970, those that records may be of; None: any. ``pending``: files wait for a commit under other names."""
        self._pending = pending
        self._target, self._folder, self._name, self._schema, self._days = target, folder, name, schema, days
        self._opened: dict[int, _DayFile] = {}
        self._count: dict[int, int] = {}
        self._done: list[WrittenFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the records of a batch, which may be of several days, or none. Raises: ConfigError, StorageUnavailable."""
        if not batch.num_rows:
            return
        for day, part in _by_day(batch).items():
            if self._days is not None and day not in self._days:
                raise ConfigError(
                    f"{part['topic'][0]}-{part['partition'][0]} has a record of {_day_name(day)} at offset {part['offset'][0]},"
                    " which no Iceberg table is told of: archive the topic as Parquet files, with --to alone."
                )
            file = self._opened.get(day)
            if file is None:
                if len(self._opened) == OPEN_DAYS_MAX:
                    self._finish(next(iter(self._opened)))
                number = self._count.get(day, 0)
                self._count[day] = number + 1
                suffix = f"-{number}" if number else ""
                path = f"date={_day_name(day)}/{self._name}{suffix}.parquet"
                file = self._opened[day] = _DayFile(self._target, self._folder, path, self._schema, self._pending)
            file.add(part)

    def close(self) -> list[WrittenFile]:
        """Make the open file visible. Return every file."""
        for day in list(self._opened):
            self._finish(day)
        return self._done

    def discard(self) -> None:
        """After a failure: remove the files that are not visible yet."""
        for file in self._opened.values():
            file.discard()
        self._opened.clear()

    def _finish(self, day: int) -> None:
        file = self._opened[day]
        size = file.close()
        del self._opened[day]
        self._done.append(WrittenFile(file.path, _day_name(day), file.records, size))


def _by_day(batch: pa.RecordBatch) -> Mapping[int, pa.RecordBatch]:
    """The records of each day, in their order; nearly always there is one."""
    days = np.floor_divide(pc.cast(batch.column("timestamp"), pa.int64()).to_numpy(zero_copy_only=False), DAY_US)
    first = int(days[0])
    if np.all(days == first):
        return {first: batch}
    return {int(day): batch.filter(pa.array(days == day)) for day in np.unique(days)}


def _day_name(day: int) -> str:
    # A record may bear any time, and Python's own dates end with the year 9999.
    return str(np.datetime64(day, "D"))
