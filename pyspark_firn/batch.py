"""Planning a batch read, on the driver.

The code of its tasks is in ``tasks.py``. Planning does not import it, because loading the kernels takes longer than planning.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_firn.options import ReadOptions
from pyspark_firn.planning import PartitionRange, plan_splits, split_bytes_for, stored_bytes
from pyspark_firn.session import StoreSession
from pyspark_firn.snapshot import Snapshot, resolve_ranges, take_snapshot
from pyspark_firn.splits import Split, TailSplit


def plan(options: ReadOptions) -> list[Split]:
    """The splits of a batch read. The ends are fixed now: records written later are not read.

    Raises: ConfigError (for any mistake in the options), DataLoss, CorruptionError, StorageUnavailable, BrokerUnavailable.
    """
    with StoreSession(options.store) as session:
        snapshot = session.run(take_snapshot(session, options))
        ranges = session.run(resolve_ranges(session, snapshot, options))
    return splits_of(snapshot, ranges, options)


def splits_of(snapshot: Snapshot, ranges: Sequence[PartitionRange], options: ReadOptions) -> list[Split]:
    """Splits of resolved ranges: stored records and, with ``tail``, the brokers' records above the tiered end."""
    split_bytes = options.split_bytes
    if split_bytes is None:
        parts = zip(snapshot.partitions, ranges, strict=True)
        split_bytes = split_bytes_for(sum(stored_bytes(wanted, one.state) for one, wanted in parts))
    splits: list[Split] = []
    for one, wanted in zip(snapshot.partitions, ranges, strict=True):
        splits += plan_splits(wanted, one.state, snapshot.footers, split_bytes)
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
