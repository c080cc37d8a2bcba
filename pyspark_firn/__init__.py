"""Firn for Apache Spark: topics' history from the bucket as tables and streams, and the jobs over it.

Spark finds this package by its name: where ``firn-broker[spark]`` is installed, ``spark.read.format("firn")`` works.

- ``source``: ``FirnDataSource``, the face to Spark; ``options``: options of a read
- ``batch``, ``streaming``: plan a batch read, a stream; ``snapshot``, ``planning``, ``splits``: from manifests to splits
- ``registry``, ``registry_values``: values by the schemas of a registry
- ``tasks``, ``reading``: a task reads a split; ``decoding``, ``columns``, ``batch_table``: chunks to Arrow
- ``kernels``, ``compiling``, ``machine_code``, ``relocatable``: compiled loops; ``memory``: memory of a reader
- ``writing``: ``WriteOptions`` and writes through brokers; ``session``: the store from synchronous code
- ``losses``, ``damage``, ``telling``: errors as users see them
- ``counting``: counts from manifests; ``tour``: ``make spark-demo``
- ``shadowing``, ``spark_version``: checks at the import
- ``jobs/``: archive, audit, compact, replay

The driver reads the cluster log and manifests and turns options into offset ranges. ``planning`` cuts the ranges into splits of
whole chunks. A task runs several ranged GETs at a time, checks every chunk, and turns batches into Arrow. The position of a
stream is the next offset of each partition; between two positions a stream always reads the same records. A write leaves one
open transaction per task, and a record that names these transactions commits the micro-batch. A compaction job uploads
segments, and the leader swaps them in one manifest entry.
"""

from __future__ import annotations

from pyspark_firn.shadowing import require_firn
from pyspark_firn.spark_version import require_spark

require_spark()

from pyspark_firn.source import FirnDataSource as DefaultSource  # noqa: E402 - an older Spark lacks a module that this imports

__all__ = ["DefaultSource", "count"]


def count(store: str, topic: str) -> int:
    """Records of a topic in the store, from its manifests alone: no segment is read.

    The count is taken from batch headers, so it includes transaction markers and aborted records. Raises: ConfigError,
    CorruptionError, StorageUnavailable, FirnAppShadowed.
    """
    require_firn()
    from pyspark_firn.counting import count_records

    return count_records(store, topic)
