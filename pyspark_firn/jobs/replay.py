"""``replay``: a range of history produced to a topic again, as fast as asked, or at its original pace.

Each record goes to the partition of the same number, with its key, value and headers, and four headers more:

    firn.replay.id          of this replay
    firn.replay.partition   where the record was
    firn.replay.offset
    firn.replay.timestamp   its original time, in milliseconds

**Resuming.** The state file says how far the source was acknowledged and where the target's partitions ended then. A restarted
replay reads the records that the target got since, and skips those that it wrote itself: no record is left out and none comes
twice. (A Produce that a broker is still working on when the replay is started again is not seen; wait for the old process to
end.)

**A record that is refused** (it is larger than the target allows, say) ends the replay, and the state stays before it. Started
again, the replay begins with that record, behind those that were on their way with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from app.client.cluster import LATEST, ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Acknowledged, Producer
from app.core.errors import BrokerUnavailable, ConfigError, CorruptionError, RequestRejected
from app.core.limits import MIB
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.machine.runtime import SystemClock
from pyspark_firn.batch import splits_of
from pyspark_firn.columns import HEADERS
from pyspark_firn.jobs.sources import check_has_history
from pyspark_firn.jobs.targets import writing
from pyspark_firn.losses import JOB_MEND
from pyspark_firn.options import Isolation, ReadOptions, parse_read_options
from pyspark_firn.reading import SplitReader
from pyspark_firn.session import StoreSession
from pyspark_firn.snapshot import resolve_ranges, take_snapshot
from pyspark_firn.splits import StoredSplit

STATE_VERSION: Final = 1
STATE_EVERY_RECORDS: Final = 10_000
STATE_EVERY_S: Final = 1.0
COLUMNS: Final = ("key", "value", "offset", "timestamp", HEADERS)
ROWS_AT_ONCE: Final = 256
"""Records of a partition as Python's objects."""
HELD_BYTES: Final = 256 * MIB
"""The approximate bytes under way in the splits of all partitions, if all of them are open: by pace."""
HEADER_ID: Final = "firn.replay.id"
HEADER_PARTITION: Final = "firn.replay.partition"
HEADER_OFFSET: Final = "firn.replay.offset"
HEADER_TIMESTAMP: Final = "firn.replay.timestamp"

Progress = Callable[[int, int], None]
"""Called with the number of records that are done, and about how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """The source, the target and the pace of a replay."""

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
    """The progress of a replay, for the next start."""

    id: str
    request: dict[str, str]
    source_next: dict[int, int] = field(default_factory=dict)
    """Next source offset by partition: everything below it is acknowledged."""
    target_from: dict[int, int] = field(default_factory=dict)
    """Where to look for records of this replay at ``source_next`` or above, by target partition."""
    topic_id: str = ""
    """Of the source. Empty: of a state that an older Firn has begun."""
    finished: bool = False
    """It has come to its end: nothing that could still expire is missing."""

    def write(self, path: Path) -> None:
        """Replace the contents of the file. Raises: StorageUnavailable; then the file is as it was."""
        temporary = path.with_name(f".{path.name}.tmp")
        with writing(str(path)):
            try:
                with temporary.open("w") as file:
                    json.dump({"version": STATE_VERSION, **asdict(self)}, file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(path)
            except OSError:
                with suppress(OSError):  # The first failure counts.
                    temporary.unlink()
                raise


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
    return ReplayState(
        found["id"],
        found["request"],
        _by_index(found["source_next"]),
        _by_index(found["target_from"]),
        found.get("topic_id", ""),
        found.get("finished", False),
    )


def _by_index(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(index): int(offset) for index, offset in stored.items()}


@dataclass(slots=True)
class ReplaySummary:
    topic: str
    target: str
    records: int = 0
    resumed_at: int = 0
    """Records that an earlier start had written."""


class Pace:
    """When each record is due. Pure."""

    def __init__(self, records_per_s: float | None, factor: float | None) -> None:
        """``factor``: times the original pace; with both, whichever is later counts."""
        self._records_per_s = records_per_s
        self._factor = factor
        self._count = 0
        self._first_ms: int | None = None

    def due_s(self, timestamp_ms: int) -> float:
        """Seconds from the start of this replay to the turn of its next record; never below 0."""
        due_s = 0.0
        if self._records_per_s is not None:
            due_s = self._count / self._records_per_s
        if self._factor is not None and timestamp_ms >= 0:  # A record without a time is sent at once.
            if self._first_ms is None:
                self._first_ms = timestamp_ms
            due_s = max(due_s, (timestamp_ms - self._first_ms) / 1000 / self._factor)
        self._count += 1
        return due_s


def replay(request: ReplayRequest, *, progress: Progress | None = None) -> ReplaySummary:
    """Do it. Raises: ConfigError, CorruptionError, StorageUnavailable, BrokerUnavailable, RequestRejected."""
    options: dict[str, str] = {"store": request.store, "subscribe": request.topic, "columns": ",".join(COLUMNS)}
    if request.start:
        options |= {"startingTimestamp": request.start, "startingOffsetsByTimestampStrategy": "latest"}
    if request.end:
        options["endingTimestamp"] = request.end
    parsed = parse_read_options(options, streaming=False)
    with StoreSession(request.store) as session:
        snapshot = session.run(take_snapshot(session, parsed))
        check_has_history(snapshot.image.topics_by_name[request.topic], (one.state for one in snapshot.partitions))
        ranges = session.run(resolve_ranges(session, snapshot, parsed))
        if request.pace is not None:
            parsed = dataclass_replace(parsed, split_bytes=max(MIB, HELD_BYTES // len(ranges)))
        splits = [split for split in splits_of(snapshot, ranges, parsed) if isinstance(split, StoredSplit)]
        source = _Source(
            topic_id=str(snapshot.partitions[0].partition.topic_id),
            splits=splits,
            starts={int(one.partition.partition): one.start for one in ranges},
            log_starts={int(one.partition.partition): one.start for one in snapshot.partitions},
        )
        return asyncio.run(Replay(request, parsed, source, session, progress).run())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The records that can be replayed now."""

    topic_id: str
    splits: Sequence[StoredSplit]
    starts: Mapping[int, int]
    """Where each partition is to be replayed from, also one that has nothing yet."""
    log_starts: Mapping[int, int]


class Replay:
    def __init__(
        self,
        request: ReplayRequest,
        options: ReadOptions,
        source: _Source,
        session: StoreSession,
        progress: Progress | None,
    ) -> None:
        self._request = request
        self._options = options
        self._source = source
        self._session = session
        self._progress = progress
        self._by_partition: dict[int, list[StoredSplit]] = {}
        for split in source.splits:
            self._by_partition.setdefault(split.partition, []).append(split)
        self._total = sum(part[-1].offset_end - part[0].offset_start for part in self._by_partition.values())
        self._summary = ReplaySummary(request.topic, request.target)
        self._answers: list[tuple[int, int, asyncio.Future[Acknowledged]]] = []
        """Records sent since the last note: partition, source offset, response."""
        self._found: dict[int, set[int]] = {}
        """Source offsets that an earlier start produced and did not note, by partition; as many as fit between two notes."""
        self._pace = Pace(request.records_per_s, request.pace)
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
        resumed = state is not None
        if state is None:
            state = ReplayState(str(uuid.uuid4()), named, topic_id=self._source.topic_id)
        else:
            if state.topic_id not in ("", self._source.topic_id):
                raise ConfigError(
                    f"{path} is of a replay of another topic {self._request.topic!r}, which was deleted since: name another file"
                    " with --state."
                )
            self._check_still_there(state)
            for target in targets:
                self._check_target(state, target, ends[target].offset)
                await self._find_own(cluster, state, target, ends[target].offset)
        for index, start in self._source.starts.items():
            # On a first start all of them; later those that were made since.
            state.source_next.setdefault(index, start)
        for target in targets:
            index = int(target.partition)
            state.target_from.setdefault(index, ends[target].offset)
            if resumed:
                done = state.source_next[index] - self._by_partition[index][0].offset_start
                self._summary.resumed_at += max(0, done) + len(self._found.get(index, ()))
        if path is not None:
            state.write(path)
        return state

    def _check_still_there(self, state: ReplayState) -> None:
        """Raises: CorruptionError if retention has overtaken the replay, which would go on behind a gap."""
        if state.finished:
            return
        for index, following in sorted(state.source_next.items()):
            start = self._source.log_starts.get(index, 0)
            if following < start:
                raise CorruptionError(
                    f"{self._request.topic}-{index} starts at offset {start} now: [{following}, {start}) are gone, and the"
                    " replay had not come to them; name another file with --state to replay what is left."
                )

    def _check_target(self, state: ReplayState, target: TopicPartition, end: int) -> None:
        """Raises: ConfigError if the target no longer holds the replayed records."""
        noted = state.target_from.get(int(target.partition), 0)
        if end < noted:
            raise ConfigError(
                f"{target} ends at offset {end} and has been at {noted} in this replay: it was made again since, or has lost"
                " records; name another file with --state to begin anew."
            )

    async def _find_own(self, cluster: ClusterClient, state: ReplayState, target: TopicPartition, end: int) -> None:
        """Which records of this replay the target has got since the last note."""
        index = int(target.partition)
        start = state.target_from.get(index, end)
        if start >= end:
            return
        found = self._found[index] = set()
        async with Consumer(cluster) as consumer:
            consumer.assign({target: Offset(start)})
            while consumer.position(target) < end:
                for batch in await consumer.poll(10_000):
                    for record in batch.records():
                        headers = dict(record.headers)
                        if headers.get(HEADER_ID) == state.id.encode():
                            offset = int(headers.get(HEADER_OFFSET) or b"-1")
                            if offset >= state.source_next[index]:
                                found.add(offset)

    async def _produce(self, producer: Producer, state: ReplayState) -> None:
        since_state = 0
        loop = asyncio.get_running_loop()
        written_s = loop.time()
        sent: dict[int, int] = dict(state.source_next)
        async for partition, row in self._records(state):
            original_ms = row["timestamp"]
            due_s = self._started_s + self._pace.due_s(original_ms)
            if since_state and (
                since_state >= STATE_EVERY_RECORDS or max(due_s, loop.time()) - written_s > STATE_EVERY_S
            ):
                # Before a long pause, not after it: a user who looks, or a restart, sees this progress.
                await self.note(producer, state, sent)
                since_state, written_s = 0, loop.time()
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            headers = [(header["key"], header["value"]) for header in row[HEADERS] or ()]
            headers += [
                (HEADER_ID, state.id.encode()),
                (HEADER_PARTITION, b"%d" % partition),
                (HEADER_OFFSET, b"%d" % row["offset"]),
                (HEADER_TIMESTAMP, b"%d" % original_ms),
            ]
            answer = await producer.send(
                self._request.target,
                row["value"],
                key=row["key"],
                headers=tuple(headers),
                partition=partition,
            )
            self._answers.append((partition, row["offset"], answer))
            sent[partition] = row["offset"] + 1
            self._summary.records += 1
            since_state += 1
        # Without an end time, the next start goes on with records that came since. It misses records that came and were deleted
        # meanwhile.
        state.finished = bool(self._request.end)
        await self.note(producer, state, sent)

    async def note(self, producer: Producer, state: ReplayState, sent: Mapping[int, int]) -> None:
        """Wait for every acknowledgement and write down how far that is.

        Raises: RequestRejected, BrokerUnavailable if a record was not taken; then nothing is written down.
        """
        await producer.flush()
        target_ends: dict[int, int] = {}
        for partition, offset, answer in self._answers:
            try:
                target_ends[partition] = (await answer).offset + 1
            except (RequestRejected, BrokerUnavailable) as error:
                sentence = (
                    f"{self._request.target} did not take offset {offset} of {self._request.topic}-{partition}: {error}"
                )
                if isinstance(error, RequestRejected):
                    raise RequestRejected(error.code, sentence) from error
                raise BrokerUnavailable(sentence) from error
        self._answers.clear()
        state.source_next = dict(sent)
        for partition, end in target_ends.items():
            # Records found above must be found again until the replay has passed them.
            if sent[partition] > max(self._found.get(partition, ()), default=-1):
                state.target_from[partition] = max(state.target_from[partition], end)
        if self._request.state_path is not None:
            state.write(self._request.state_path)
        if self._progress is not None:
            self._progress(self._summary.resumed_at + self._summary.records, self._total)

    async def _records(self, state: ReplayState) -> AsyncIterator[tuple[int, Mapping[str, Any]]]:
        """(partition, record) in order within each partition; by time between them if the pace is the original one."""
        sources = {partition: self._rows(partition, state) for partition in self._by_partition}
        if self._request.pace is None:
            for partition, rows in sources.items():
                for row in rows:
                    yield partition, row
            return
        heads: dict[int, Mapping[str, Any]] = {}
        for partition, rows in sources.items():
            head = await asyncio.to_thread(next, rows, None)
            if head is not None:
                heads[partition] = head
        while heads:
            partition = min(heads, key=lambda one: heads[one]["timestamp"])
            yield partition, heads[partition]
            head = next(sources[partition], None)
            if head is None:
                del heads[partition]
            else:
                heads[partition] = head

    def _rows(self, partition: int, state: ReplayState) -> Iterator[Mapping[str, Any]]:
        reader = SplitReader(
            self._session, self._options.columns, Isolation.READ_COMMITTED, fail_on_data_loss=True, mend=JOB_MEND
        )
        start, found = state.source_next[partition], self._found.get(partition, set())
        for split in self._by_partition[partition]:
            if all(piece.end_offset <= start for piece in split.pieces):
                continue
            for batch in reader.read(split):
                index = batch.schema.get_field_index("timestamp")
                # As it is stored: Python's own times end with the year 9999.
                times = pc.divide(pc.cast(batch.column(index), pa.int64()), 1000)
                numbered = batch.set_column(index, "timestamp", times)
                for at in range(0, numbered.num_rows, ROWS_AT_ONCE):
                    for row in numbered.slice(at, ROWS_AT_ONCE).to_pylist():
                        if row["offset"] >= start and row["offset"] not in found:
                            yield row
