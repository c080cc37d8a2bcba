"""A batch read from end to end: plan on the driver, read in the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.options import ReadOptions
from pyspark_firn.planning import PartitionRange, plan_splits
from pyspark_firn.pushdown import NO_NARROWING, Narrowing
from pyspark_firn.reading import SplitReader, read_tail
from pyspark_firn.session import StoreSession
from pyspark_firn.snapshot import Snapshot, resolve_ranges, take_snapshot
from pyspark_firn.splits import Split, StoredSplit, TailSplit

_logger = logging.getLogger("pyspark_firn")


def plan(options: ReadOptions, narrowing: Narrowing = NO_NARROWING) -> list[Split]:
    """The splits of a batch read. The ends are fixed now; what is written later is not read.

    Raises: ConfigError (whatever is wrong with the options), CorruptionError, StorageUnavailable, BrokerUnavailable.
    """
    with StoreSession(options.store) as session:
        snapshot = session.run(take_snapshot(session, options))
        ranges, warnings = session.run(resolve_ranges(session, snapshot, options, narrowing))
    for warning in warnings:
        _logger.warning(warning)
    return splits_of(snapshot, ranges, options, timestamp_min=narrowing.timestamp_min)


def splits_of(
    snapshot: Snapshot, ranges: Sequence[PartitionRange], options: ReadOptions, *, timestamp_min: int | None = None
) -> list[Split]:
    """Splits of resolved ranges: what is stored, and with ``tail`` what lies above it, joined at the tiered end."""
    splits: list[Split] = []
    for one, wanted in zip(snapshot.partitions, ranges, strict=True):
        splits += plan_splits(wanted, one.state, snapshot.footers, options.split_bytes, timestamp_min=timestamp_min)
        if wanted.end > wanted.stored_end:
            splits.append(
                TailSplit(
                    topic=wanted.topic,
                    topic_id=wanted.partition.topic_id.bytes,
                    partition=wanted.partition.partition,
                    offset_start=wanted.stored_end,
                    offset_end=wanted.end,
                )
            )
    return splits


def read_split(options: ReadOptions, columns: Sequence[str], split: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a split. Spark makes an empty split itself where planning found nothing to read."""
    if not isinstance(split, (StoredSplit, TailSplit)):
        return
    keep_freed_memory()
    with StoreSession(options.store) as session:
        if isinstance(split, TailSplit):
            yield from read_tail(session, options.tail, columns, options.isolation, split)
            return
        reader = SplitReader(session, columns, options.isolation, fail_on_data_loss=options.fail_on_data_loss)
        yield from reader.read(split)
