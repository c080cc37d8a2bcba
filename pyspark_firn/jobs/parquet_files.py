"""One part of an archive as Parquet files: one for each day of its records.

A file is written under a name that readers pass over, no other attempt's, and moved to its own when it is whole; S3 shows an
object only when it is whole, so there the name is its own from the start. Writing a part again replaces its files by the same
ones, also while another attempt is at it. Only an attempt that is killed leaves such a file behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from app.limits import MIB
from app.objectstore.url import DirectoryLocation, StoreLocation

DAY_US: Final = 86_400_000_000
ROW_GROUP_BYTES: Final = 32 * MIB
"""Of records before compression; what a writer holds in memory."""
OPEN_DAYS_MAX: Final = 16
"""Days written at a time; a part whose records jump between more of them gets several files for a day."""
ZSTD_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of an archive."""

    path: str
    """Below the archive's root, or whole where files belong to a table."""
    day: str
    records: int
    bytes: int


def file_system(location: StoreLocation) -> tuple[fs.FileSystem, str]:
    """How Arrow reaches an address of a store, and the root in it."""
    if isinstance(location, DirectoryLocation):
        return fs.LocalFileSystem(), str(location.path)
    options: dict[str, Any] = {}
    if location.region is not None:
        options["region"] = location.region
    if location.endpoint is not None:
        parts = urlsplit(location.endpoint)
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    return fs.S3FileSystem(**options), f"{location.bucket}/{location.prefix}".rstrip("/")


class _DayFile:
    """The file of one day under way."""

    def __init__(self, files: fs.FileSystem, path: str, schema: pa.Schema) -> None:
        self._files = files
        self.path = path
        self._is_local = isinstance(files, fs.LocalFileSystem)
        folder, _, name = path.rpartition("/")
        if self._is_local:
            files.create_dir(folder, recursive=True)
        self._written_to = f"{folder}/_{name}.{uuid.uuid4().hex}.tmp" if self._is_local else path
        self._writer = pq.ParquetWriter(
            self._written_to,
            schema,
            filesystem=files,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=["topic", "partition", "timestampType"],
            write_statistics=[name for name in schema.names if name not in ("key", "value", "headers")],
        )
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
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._held, self._held_bytes = [], 0

    def close(self) -> int:
        """Make it visible; answers its bytes."""
        self._flush()
        self._writer.close()
        if self._written_to != self.path:
            self._files.move(self._written_to, self.path)
        return int(self._files.get_file_info(self.path).size)

    def discard(self) -> None:
        """Remove what nobody will finish."""
        if self._written_to != self.path:
            with suppress(FileNotFoundError):
                self._files.delete_file(self._written_to)


class DayWriter:
    """Writes record batches with a ``timestamp`` column as ``<root>/date=<day>/<name>[-<n>].parquet``."""

    def __init__(self, files: fs.FileSystem, root: str, name: str, schema: pa.Schema) -> None:
        self._files, self._root, self._name, self._schema = files, root, name, schema
        self._opened: dict[int, _DayFile] = {}
        self._count: dict[int, int] = {}
        self._done: list[WrittenFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the records of a batch, which may be of several days, or none."""
        if not batch.num_rows:
            return
        for day, part in _by_day(batch).items():
            file = self._opened.get(day)
            if file is None:
                if len(self._opened) == OPEN_DAYS_MAX:
                    self._finish(next(iter(self._opened)))
                number = self._count.get(day, 0)
                self._count[day] = number + 1
                suffix = f"-{number}" if number else ""
                path = f"{self._root}/date={_day_name(day)}/{self._name}{suffix}.parquet"
                file = self._opened[day] = _DayFile(self._files, path, self._schema)
            file.add(part)

    def close(self) -> list[WrittenFile]:
        """Make what is still open visible; answers every file."""
        for day in list(self._opened):
            self._finish(day)
        return self._done

    def discard(self) -> None:
        """After a failure: remove what is not visible yet."""
        for file in self._opened.values():
            file.discard()
        self._opened.clear()

    def _finish(self, day: int) -> None:
        file = self._opened[day]
        size = file.close()
        del self._opened[day]
        self._done.append(WrittenFile(file.path.removeprefix(f"{self._root}/"), _day_name(day), file.records, size))


def _by_day(batch: pa.RecordBatch) -> Mapping[int, pa.RecordBatch]:
    """The records of each day, in their order; nearly always there is one."""
    days = np.floor_divide(pc.cast(batch.column("timestamp"), pa.int64()).to_numpy(zero_copy_only=False), DAY_US)
    first = int(days[0])
    if np.all(days == first):
        return {first: batch}
    return {int(day): batch.filter(pa.array(days == day)) for day in np.unique(days)}


def _day_name(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
