"""Counts from metadata alone."""

from __future__ import annotations

from pyspark_firn.options import parse_read_options
from pyspark_firn.session import StoreSession
from pyspark_firn.snapshot import take_snapshot


def count_records(store: str, topic: str) -> int:
    """Records of a topic's readable segments, as their batches count them. Raises: as ``take_snapshot``."""
    options = parse_read_options({"store": store, "subscribe": topic}, streaming=False)
    with StoreSession(store) as session:
        snapshot = session.run(take_snapshot(session, options))
    return sum(one.state.record_count for one in snapshot.partitions)
