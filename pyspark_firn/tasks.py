"""A task: it reads a split that planning made."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from pyspark_firn.columns import DATA
from pyspark_firn.damage import naming_the_mend
from pyspark_firn.losses import Losses
from pyspark_firn.memory import keep_freed_memory
from pyspark_firn.options import ReadOptions
from pyspark_firn.reading import SplitReader, read_tail
from pyspark_firn.session import StoreSession
from pyspark_firn.splits import StoredSplit, TailSplit


def read_split(options: ReadOptions, columns: Sequence[str], split: InputPartition) -> Iterator[pa.RecordBatch]:
    """The records of a split. Spark makes an empty split itself where planning found nothing to read."""
    if not isinstance(split, (StoredSplit, TailSplit)):
        return
    if options.registry is None or DATA not in columns:
        yield from _stored(options, columns, split)
        return
    from pyspark_firn.registry_values import RegistryValues  # few reads decode values

    values = RegistryValues(options.registry, columns, split.topic, split.partition)
    for batch in _stored(options, values.read_columns, split):
        yield values.decoded(batch)


def _stored(options: ReadOptions, columns: Sequence[str], split: StoredSplit | TailSplit) -> Iterator[pa.RecordBatch]:
    """The records as they are stored."""
    keep_freed_memory()
    try:
        with StoreSession(options.store) as session:
            if isinstance(split, TailSplit):
                losses = Losses(fail=options.fail_on_data_loss)
                yield from read_tail(session, options.tail, columns, options.isolation, split, losses)
                return
            reader = SplitReader(session, columns, options.isolation, fail_on_data_loss=options.fail_on_data_loss)
            with naming_the_mend():
                yield from reader.read(split)
    finally:
        if TaskContext.get() is not None:
            leave_out_of_collections()


@functools.cache
def leave_out_of_collections() -> None:
    """Exclude all loaded objects from garbage collection: they live as long as the process.

    Spark's worker collects after each task, and walking over the objects of the kernels' compiler takes longer than reading a
    split of the usual size. Called after a first split: the most is loaded when kernels are first used.
    """
    gc.freeze()
