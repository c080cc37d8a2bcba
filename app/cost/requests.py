"""How many requests Firn sends to its object store, by operation.

The numbers are those of the code (``tiering/store/store_work.py``: parts of 8 MiB, one ranged GET a chunk, one a footer;
``metadata/manifest/manifest.py``: one entry a state change; ``metadata/view/registration.py``: a heartbeat and a look at the
cluster log every 10 s), and ``tests/cost/test_requests.py`` holds them against the counters of a broker that produces,
tiers, replays and expires; ``tests/cost/test_write_ahead.py`` does so for the write-ahead log. Operations are named as in
``firn_store_requests_total``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import Final

from app.core.limits import MIB

PART_BYTES: Final = 8 * MIB
CHUNK_BYTES: Final = 4 * MIB
BEAT_INTERVAL_S: Final = 10.0
CONFIRM_INTERVAL_S: Final = 1.5
"""Of a controller of several brokers (ADR 0023, C6)."""
SWEEPS_PER_MONTH: Final = 30.4 * 4
SNAPSHOT_ENTRIES_MIN: Final = 64
SNAPSHOT_LIVE_SHARE: Final = 16
LIST_PAGE_KEYS: Final = 1000
TRIM_INTERVAL_S: Final = 1.0
SEAL_READS: Final = 9
"""Footers behind the last one that is durable: those that may be on their way."""

WRITES: Final = frozenset(
    {"put", "put_if_absent", "begin_upload", "put_part", "complete", "list_objects", "list_uploads"}
)
"""Billed as PUT, COPY, POST or LIST."""
READS: Final = frozenset({"get", "get_range", "get_tail", "head"})
"""Billed as GET."""
FREE: Final = frozenset({"delete", "delete_many", "abort"})


def copy_segment(stored_bytes: float, *, backlog: bool = False) -> dict[str, float]:
    """One segment object of this size. With a ``backlog`` its end and the next one's start share an entry."""
    entries = 1 if backlog else 2
    if stored_bytes <= PART_BYTES:
        return {"put_if_absent": entries + 1}
    return {"put_if_absent": entries, "begin_upload": 1, "put_part": ceil(stored_bytes / PART_BYTES), "complete": 1}


def expire_segments(count: float, *, together: float = 1) -> dict[str, float]:
    """DELETE_STARTED, the deletion, DELETE_FINISHED; ``together`` segments share them."""
    rounds = count / together
    return {"put_if_absent": 2 * rounds, "delete_many": rounds}


def replay_segment(raw_bytes: float, batch_bytes: int = 1) -> dict[str, float]:
    """A sequential read of a whole segment that is not cached: its footer and each of its chunks, which are of whole batches;
    only small ones fill a chunk."""
    chunk_bytes = max(batch_bytes, CHUNK_BYTES // batch_bytes * batch_bytes)
    return {"get_range": 1 + ceil(raw_bytes / chunk_bytes)}


def take_over() -> dict[str, float]:
    """A partition gets a leader, who looks for its manifest and seals it before the first change."""
    return {"list_objects": 1, "put_if_absent": 1}


def write_ahead(
    seconds: float, bytes_per_s: float, *, linger_ms: float, object_bytes: int, appends_per_s: float = inf
) -> dict[str, float]:
    """The objects that one broker puts into its write-ahead log (ADR 0037): one when it is full, or when its first batch has
    waited for the linger. The number of partitions does not matter, and a broker without appends puts no objects.

    ``appends_per_s``: how often anything is appended. After an object was cut, the next one begins with the next append.
    """
    if not bytes_per_s or not appends_per_s:
        return {}
    between_s = linger_ms / 1000 + 1 / appends_per_s
    assert between_s, "without a linger each append is an object, so their number has to be known"
    return {"put_if_absent": seconds * max(1 / between_s, bytes_per_s / object_bytes)}


def trim_write_ahead(seconds: float, objects: float, segments: float) -> dict[str, float]:
    """Deletions of objects whose records are tiered: with each segment at most, once a second at most, 1,000 keys each."""
    return {"delete_many": max(min(segments, seconds / TRIM_INTERVAL_S), objects / LIST_PAGE_KEYS)}


def seal_write_ahead(objects: float) -> dict[str, float]:
    """End the log of a broker that is gone: look for its end, and put the seal behind it."""
    return {"list_objects": 1 + ceil(max(1.0, objects) / LIST_PAGE_KEYS), "get_range": SEAL_READS, "put_if_absent": 1}


def take_over_write_ahead(objects: float, partitions: float) -> dict[str, float]:
    """Go on from a sealed log that has so many objects: their footers and the seal's, then the objects, once for all partitions,
    and each partition's manifest."""
    footers = {"list_objects": ceil(max(1.0, objects) / LIST_PAGE_KEYS), "get_range": objects + 1, "get": objects}
    return add(seal_write_ahead(objects), footers, times(take_over(), partitions))


def sweep_write_ahead(months: float, objects: float) -> dict[str, float]:
    """The controller's looks for logs that have ended."""
    return {"list_objects": months * SWEEPS_PER_MONTH * max(1, ceil(objects / LIST_PAGE_KEYS))}


def snapshots(entries: float, live_segments: float) -> dict[str, float]:
    """Requests to compact a manifest over so many entries, with so many live segments."""
    due = entries / max(SNAPSHOT_ENTRIES_MIN, live_segments / SNAPSHOT_LIVE_SHARE)
    return {"put_if_absent": due, "list_objects": due, "delete_many": due}


def heartbeats(seconds: float, brokers: int = 1) -> dict[str, float]:
    """A small object from each broker (without Redis, if it is alone), and looks for new entries of the cluster log. Of several
    brokers the controller looks more often, by a GET of the entry to come."""
    beats = seconds / BEAT_INTERVAL_S
    if brokers == 1:
        return {"put": beats, "list_objects": beats}
    return {"put": brokers * beats, "list_objects": (brokers - 1) * beats, "get": seconds / CONFIRM_INTERVAL_S}


def sweeps(months: float, segments: float) -> dict[str, float]:
    """One partition's looks for orphans."""
    looks = months * SWEEPS_PER_MONTH
    return {"list_objects": looks * (1 + max(1, ceil(segments / LIST_PAGE_KEYS))), "list_uploads": looks}


def add(*parts: Mapping[str, float]) -> dict[str, float]:
    """Sums by operation."""
    total: dict[str, float] = {}
    for part in parts:
        for operation, count in part.items():
            total[operation] = total.get(operation, 0) + count
    return total


def times(part: Mapping[str, float], factor: float) -> dict[str, float]:
    """Each count multiplied."""
    return {operation: count * factor for operation, count in part.items()}


def billed(operations: Mapping[str, float]) -> tuple[float, float]:
    """(requests of the class of PUT, requests of the class of GET). Deletions are free."""
    unknown = set(operations) - WRITES - READS - FREE
    assert not unknown, unknown
    puts = sum(count for operation, count in operations.items() if operation in WRITES)
    gets = sum(count for operation, count in operations.items() if operation in READS)
    return puts, gets
