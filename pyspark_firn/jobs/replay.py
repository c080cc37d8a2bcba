"""``replay``: a range of history produced to a topic again, as fast as asked, or at its original pace.

Each record goes to the partition of the same number, with its key, value and headers, and four headers more:

    firn.replay.id          of this replay
    firn.replay.partition   where the record was
    firn.replay.offset
    firn.replay.timestamp   its original time, in milliseconds

**Resuming.** The state file says how far the source was acknowledged and where the target's partitions ended before the first
record. A replay that is started again reads what it has written since then, finds the last record of its own, and goes on with
the next: no record is left out and none comes twice. (A Produce that a broker is still working on when the replay is started
again is not seen; wait for the old process to end.)
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from app.client.cluster import LATEST, ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Producer
from app.errors import ConfigError
from app.units import Offset, PartitionIndex, TopicPartition
from pyspark_firn.batch import plan
from pyspark_firn.columns import HEADERS
from pyspark_firn.options import Isolation, ReadOptions, parse_read_options
from pyspark_firn.reading import SplitReader
from pyspark_firn.session import StoreSession, SystemClock
from pyspark_firn.splits import StoredSplit

STATE_VERSION: Final = 1
STATE_EVERY_RECORDS: Final = 10_000
STATE_EVERY_S: Final = 1.0
COLUMNS: Final = ("key", "value", "offset", "timestamp", HEADERS)
HEADER_ID: Final = "firn.replay.id"
HEADER_PARTITION: Final = "firn.replay.partition"
HEADER_OFFSET: Final = "firn.replay.offset"
HEADER_TIMESTAMP: Final = "firn.replay.timestamp"

Progress = Callable[[int, int], None]
"""Told (records done, records in all, about)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What to replay, where to, and how fast."""

    store: str
    topic: str
    bootstrap: tuple[tuple[str, int], ...]
    target: str
    start: str = ""
    """Time as option ``startingTimestamp`` has it; empty: from the beginning."""
    end: str = ""
    records_per_s: float | None = None
    pace: float | None = None
    """Times the original pace; None: not by the original times."""
    state_path: Path | None = None


@dataclass(slots=True)
class ReplayState:
    """What a replay has done, for the next start."""

    id: str
    request: dict[str, str]
    source_next: dict[int, int] = field(default_factory=dict)
    """Next source offset by partition: everything below it is acknowledged."""
    target_from: dict[int, int] = field(default_factory=dict)
    """Where to look for records of this replay, by target partition."""

    def write(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("w") as file:
            json.dump({"version": STATE_VERSION, **asdict(self)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)


def read_state(path: Path, request: Mapping[str, str]) -> ReplayState | None:
    """The state of an earlier start; None if there is none. Raises: ConfigError if it is another replay's."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigError(f"{path} is no state of a replay: name another file with --state.") from None
    if not isinstance(found, dict) or found.get("version") != STATE_VERSION:
        raise ConfigError(f"{path} is no state of a replay that this Firn knows: name another file with --state.")
    if found["request"] != dict(request):
        raise ConfigError(f"{path} belongs to another replay ({found['request']}): name another file with --state.")
    return ReplayState(found["id"], found["request"], _by_index(found["source_next"]), _by_index(found["target_from"]))


def _by_index(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(index): int(offset) for index, offset in stored.items()}


@dataclass(slots=True)
class ReplaySummary:
    topic: str
    target: str
    records: int = 0
    resumed_at: int = 0
    """Records that an earlier start had written."""


def replay(request: ReplayRequest, *, progress: Progress | None = None) -> ReplaySummary:
    """Do it. Raises: ConfigError, CorruptionError, StorageUnavailable, BrokerUnavailable, RequestRejected."""
    options: dict[str, str] = {"store": request.store, "subscribe": request.topic, "columns": ",".join(COLUMNS)}
    if request.start:
        options |= {"startingTimestamp": request.start, "startingOffsetsByTimestampStrategy": "latest"}
    if request.end:
        options["endingTimestamp"] = request.end
    parsed = parse_read_options(options, streaming=False)
    splits = [split for split in plan(parsed) if isinstance(split, StoredSplit)]
    with StoreSession(request.store) as session:
        return asyncio.run(_Replay(request, parsed, splits, session, progress).run())


class _Replay:
    def __init__(
        self,
        request: ReplayRequest,
        options: ReadOptions,
        splits: list[StoredSplit],
        session: StoreSession,
        progress: Progress | None,
    ) -> None:
        self._request = request
        self._options = options
        self._splits = splits
        self._session = session
        self._progress = progress
        self._by_partition: dict[int, list[StoredSplit]] = {}
        for split in splits:
            self._by_partition.setdefault(split.partition, []).append(split)
        self._total = sum(part[-1].offset_end - part[0].offset_start for part in self._by_partition.values())
        self._summary = ReplaySummary(request.topic, request.target)
        self._first_timestamp: int | None = None
        self._started_s = 0.0

    async def run(self) -> ReplaySummary:
        async with ClusterClient(self._request.bootstrap, rng=random.Random(), client_id="firn-replay") as cluster:
            view = await cluster.topic(self._request.target)
            needed = max(self._by_partition, default=0) + 1
            if len(view.partitions) < needed:
                raise ConfigError(
                    f"Topic {self._request.target!r} has {len(view.partitions)} partitions, {self._request.topic!r} has records"
                    f" in {needed}: make the target with as many."
                )
            state = await self._state(cluster)
            async with Producer(cluster, SystemClock()) as producer:
                self._started_s = asyncio.get_running_loop().time()
                await self._produce(producer, state)
        return self._summary

    async def _state(self, cluster: ClusterClient) -> ReplayState:
        named = {
            "store": self._request.store,
            "topic": self._request.topic,
            "target": self._request.target,
            "start": self._request.start,
            "end": self._request.end,
        }
        path = self._request.state_path
        state = read_state(path, named) if path is not None else None
        targets = [TopicPartition(self._request.target, PartitionIndex(index)) for index in sorted(self._by_partition)]
        ends = await cluster.list_offsets(dict.fromkeys(targets, LATEST)) if targets else {}
        if state is None:
            state = ReplayState(str(uuid.uuid4()), named)
            for split in self._splits:
                state.source_next.setdefault(split.partition, split.offset_start)
            state.target_from = {int(target.partition): end.offset for target, end in ends.items()}
            if path is not None:
                state.write(path)
            return state
        for target in targets:
            index = int(target.partition)
            await self._find_own(cluster, state, target, ends[target].offset)
            first = self._by_partition[index][0].offset_start
            self._summary.resumed_at += max(0, state.source_next[index] - first)
        return state

    async def _find_own(self, cluster: ClusterClient, state: ReplayState, target: TopicPartition, end: int) -> None:
        """Go on after the last record of this replay that the target holds."""
        index = int(target.partition)
        start = state.target_from[index]
        if start >= end:
            return
        async with Consumer(cluster) as consumer:
            consumer.assign({target: Offset(start)})
            while consumer.position(target) < end:
                for batch in await consumer.poll(10_000):
                    for record in batch.records():
                        headers = dict(record.headers)
                        if headers.get(HEADER_ID) == state.id.encode():
                            done = int(headers.get(HEADER_OFFSET) or b"-1") + 1
                            state.source_next[index] = max(state.source_next[index], done)
        state.target_from[index] = end

    async def _produce(self, producer: Producer, state: ReplayState) -> None:
        since_state = 0
        loop = asyncio.get_running_loop()
        written_s = loop.time()
        sent: dict[int, int] = dict(state.source_next)
        async for partition, row in self._records(state):
            await self._wait_for_turn(row)
            headers = [(header["key"], header["value"]) for header in row[HEADERS] or ()]
            original_ms = int(row["timestamp"].timestamp() * 1000) if row["timestamp"] is not None else -1
            headers += [
                (HEADER_ID, state.id.encode()),
                (HEADER_PARTITION, b"%d" % partition),
                (HEADER_OFFSET, b"%d" % row["offset"]),
                (HEADER_TIMESTAMP, b"%d" % original_ms),
            ]
            await producer.send(
                self._request.target,
                row["value"],
                key=row["key"],
                headers=tuple(headers),
                partition=partition,
            )
            sent[partition] = row["offset"] + 1
            self._summary.records += 1
            since_state += 1
            if since_state >= STATE_EVERY_RECORDS or loop.time() - written_s > STATE_EVERY_S:
                await self._note(producer, state, sent)
                since_state, written_s = 0, loop.time()
        await self._note(producer, state, sent)

    async def _note(self, producer: Producer, state: ReplayState, sent: Mapping[int, int]) -> None:
        """Wait for every acknowledgement and write down how far that is."""
        await producer.flush()
        state.source_next = dict(sent)
        if self._request.state_path is not None:
            state.write(self._request.state_path)
        if self._progress is not None:
            self._progress(self._summary.resumed_at + self._summary.records, self._total)

    async def _wait_for_turn(self, row: Mapping[str, Any]) -> None:
        """Hold a record back until its time."""
        due_s = 0.0
        if self._request.records_per_s is not None:
            due_s = self._summary.records / self._request.records_per_s
        if self._request.pace is not None and row["timestamp"] is not None:
            timestamp = int(row["timestamp"].timestamp() * 1000)
            if self._first_timestamp is None:
                self._first_timestamp = timestamp
            due_s = max(due_s, (timestamp - self._first_timestamp) / 1000 / self._request.pace)
        pause_s = self._started_s + due_s - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    async def _records(self, state: ReplayState) -> AsyncIterator[tuple[int, Mapping[str, Any]]]:
        """(partition, record) in order within each partition; by time between them if the pace is the original one."""
        sources = {partition: self._rows(partition, state) for partition in self._by_partition}
        heads: dict[int, Mapping[str, Any]] = {}
        for partition, rows in list(sources.items()):
            head = await asyncio.to_thread(next, rows, None)
            if head is not None:
                heads[partition] = head
        by_time = self._request.pace is not None
        while heads:
            partition = min(heads, key=lambda one: heads[one]["timestamp"]) if by_time else next(iter(heads))
            yield partition, heads[partition]
            rows = sources[partition]
            head = next(rows, None)
            if head is None:
                del heads[partition]
            else:
                heads[partition] = head

    def _rows(self, partition: int, state: ReplayState) -> Iterator[Mapping[str, Any]]:
        reader = SplitReader(self._session, self._options.columns, Isolation.READ_COMMITTED, fail_on_data_loss=True)
        start = state.source_next[partition]
        for split in self._by_partition[partition]:
            if all(piece.end_offset <= start for piece in split.pieces):
                continue
            for batch in reader.read(split):
                for row in batch.to_pylist():
                    if row["offset"] >= start:
                        yield row
