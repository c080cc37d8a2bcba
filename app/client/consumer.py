"""A consumer without a group. It is given partitions with a position each. Batches of a partition come out in order.

One Fetch per leader is under way at a time. It has a connection of its own, so that its long poll delays nothing else. The next
Fetch of a leader is sent before the last answer is handed out, so memory holds two answers per leader at most. There are no
fetch sessions: every Fetch names all partitions. That suits a reader of many records better than one of many idle partitions.

Every batch is checked: its length, magic and CRC-32C, and its content where records are decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop
from types import TracebackType
from typing import Final, NamedTuple, Self

from app.client.cluster import EARLIEST, LATEST, ClusterClient, check_code, refusal
from app.client.retry import backoff_ms, is_retriable, retrying
from app.core.errors import (
    BrokerUnavailable,
    CorruptionError,
    ErrorCode,
    FirnError,
    ProtocolError,
    RequestRejected,
    clause,
    copy_of,
    without_frames,
)
from app.core.limits import MIB
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicPartition
from app.records.batch import HEADER_BYTES, BatchHeader, check_stored_batch, parse_header
from app.records.control import ControlType, parse_marker
from app.records.record import Record, iter_records
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FETCH_LANE: Final = "fetch"


class FetchedBatch(NamedTuple):
    """One whole, checked batch. It keeps the whole answer that it came in, so do not keep many."""

    partition: TopicPartition
    header: BatchHeader
    view: memoryview
    from_offset: Offset
    """Records below this offset were not asked for: batches are fetched whole, even from the middle."""

    def records(self) -> Iterator[Record]:
        """Its records in order. Raises: CorruptionError."""
        records = iter_records(self.view)
        if self.from_offset <= self.header.base_offset:
            return records
        return (record for record in records if record.offset >= self.from_offset)


@dataclass(slots=True, eq=False)
class _Assigned:
    partition: TopicPartition
    position: Offset
    high_watermark: Offset | None = None
    last_stable_offset: Offset | None = None
    log_start_offset: Offset | None = None
    failures: int = 0
    trouble: str = ""
    """The sentence of the newest failure, while ``failures`` is not 0."""
    failing_since_s: float = 0.0
    not_before_s: float = 0.0
    aborting: set[ProducerId] = field(default_factory=set)
    """Producers whose records are being skipped, up to their ABORT marker."""
    epoch: LeaderEpoch | None = None
    """Of the last batch below ``position``; None before the first."""


class Consumer:
    """Reads assigned partitions of a cluster. Use it as ``async with``."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 32 * MIB,
        partition_max_bytes: int = 4 * MIB,
        read_committed: bool = False,
        reset_to: int | None = None,
        lane: str = FETCH_LANE,
    ) -> None:
        """
        Args:
            max_wait_ms: how long a broker may wait for ``min_bytes``.
            max_bytes, partition_max_bytes: of one answer and of one partition in it; one batch may pass them.
            read_committed: only records of committed transactions and of none.
            lane: whose connections to brokers it uses; see ``ClusterClient``.
            reset_to: where to go on when a position is outside the log (``EARLIEST`` or ``LATEST``); None raises.
        """
        assert reset_to in (None, EARLIEST, LATEST)
        self._cluster = cluster
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._read_committed = read_committed
        self._reset_to = reset_to
        self._lane = lane
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._fetches: dict[BrokerId, asyncio.Task[_Fetched]] = {}
        self._failure: FirnError | None = None
        self._turn = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel all fetches under way. The cluster's connections stay open."""
        fetches = list(self._fetches.values())
        self._fetches.clear()
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these partitions from these offsets on, and no others."""
        self._assigned = {partition: _Assigned(partition, position) for partition, position in positions.items()}

    def seek(self, partition: TopicPartition, position: Offset) -> None:
        """Continue to read an assigned partition from ``position``. The result of its fetch under way is dropped."""
        assert partition in self._assigned, partition
        self._assigned[partition] = _Assigned(partition, position)

    def unassign(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self._assigned.pop(partition, None)

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return tuple(self._assigned)

    @property
    def trouble(self) -> str:
        """Why a partition cannot be read at the moment; empty if all can be."""
        return next((state.trouble for state in self._assigned.values() if state.failures), "")

    def position(self, partition: TopicPartition) -> Offset:
        """Offset of the next record to come: everything below it was handed out or is not for this reader."""
        return self._assigned[partition].position

    def high_watermark(self, partition: TopicPartition) -> Offset | None:
        """The value of the newest answer; None before the first."""
        return self._assigned[partition].high_watermark

    def last_stable_offset(self, partition: TopicPartition) -> Offset | None:
        """The value of the newest answer; None before the first."""
        return self._assigned[partition].last_stable_offset

    def visible_end(self, partition: TopicPartition) -> Offset | None:
        """The end of the records that this consumer may see now, by the newest answer; None before the first."""
        state = self._assigned[partition]
        return state.last_stable_offset if self._read_committed else state.high_watermark

    def epoch_below(self, partition: TopicPartition) -> LeaderEpoch | None:
        """The leader epoch of the last batch below the position, markers and aborted ones included; None before the first batch."""
        return self._assigned[partition].epoch

    async def poll(self, timeout_ms: int) -> list[FetchedBatch]:
        """The next batches, as soon as there are any. None if none came in time, or if only positions moved.

        Batches of a partition come in order of their offsets.
        Raises: RequestRejected (OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION after the retry budget…), BrokerUnavailable
        (after the retry budget), CorruptionError (a batch's CRC does not match). Positions stay where they were.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise copy_of(failure)
        while True:
            await self._launch()
            left_s = deadline - loop.time()
            if not self._fetches:
                pause_s = min([state.not_before_s for state in self._assigned.values()], default=deadline) - loop.time()
                if left_s <= 0:
                    return []
                await asyncio.sleep(max(0.0, min(left_s, pause_s)))
                continue
            done, _ = await asyncio.wait(
                self._fetches.values(), timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return []
            moved = False
            batches: list[FetchedBatch] = []
            for node_id in [node_id for node_id, fetch in self._fetches.items() if fetch in done]:
                fetched = self._fetches.pop(node_id).result()
                try:
                    moved |= await self._apply(fetched, batches)
                except FirnError as error:
                    if not batches:
                        raise
                    self._failure, moved = (
                        without_frames(error),
                        True,
                    )  # Batches that were read before it are handed out first.
            if moved:
                if self._failure is None:
                    await self._launch()
                return batches

    async def fetch_once(self, partition: TopicPartition, *, max_wait_ms: int) -> list[FetchedBatch]:
        """The next batches of an assigned partition, by one request that waits for so long; none if none came, or if only the
        position moved. Nothing is asked for ahead. It excludes ``poll`` at the same time.

        Raises: RequestRejected, BrokerUnavailable (after the retry budget), CorruptionError. The position stays where it was.
        """
        state = self._assigned[partition]

        async def ask() -> list[FetchedBatch]:
            leader = await self._cluster.leader_id(partition)
            fetched = await self._fetch(leader, {partition: state.position}, max_wait_ms)
            if fetched.error is not None:
                raise copy_of(fetched.error)
            part = fetched.parts.get(partition)
            if part is None:
                raise BrokerUnavailable(f"The broker did not answer for {partition}.")
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._out_of_range(state)
                return []
            check_code(part.error_code, None, str(partition))
            batches: list[FetchedBatch] = []
            self._accept(state, part, batches)
            return batches

        async def refresh(error: FirnError) -> None:
            await self._cluster.refresh([partition.topic])

        return await retrying(
            ask,
            rng=self._cluster.rng,
            budget_ms=self._cluster.retry_budget_ms,
            before_retry=refresh,
            also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
        )

    async def fetch_round(self, max_wait_ms: int) -> list[FetchedBatch]:
        """The next batches, by one request to each leader that waits for so long. All responses are awaited, and nothing is asked
        for ahead. None if none came, or if only positions moved. It excludes ``poll`` at the same time.

        Raises: as ``poll``, unless other partitions have batches.
        """
        await self._launch(max_wait_ms)
        fetches, self._fetches = list(self._fetches.values()), {}
        if not fetches:
            await asyncio.sleep(max_wait_ms / 1000)
            return []
        batches: list[FetchedBatch] = []
        failure: FirnError | None = None
        for fetched in await asyncio.gather(*fetches):
            try:
                await self._apply(fetched, batches)
            except FirnError as error:
                failure = failure or without_frames(error)
        if failure is not None and not batches:
            raise copy_of(failure)
        return batches

    async def batches(self) -> AsyncIterator[FetchedBatch]:
        """Batches without end. Raises: as ``poll``."""
        while True:
            for batch in await self.poll(timeout_ms=60_000):
                yield batch

    async def records(self) -> AsyncIterator[tuple[TopicPartition, Record]]:
        """Records without end. Raises: as ``poll``."""
        async for batch in self.batches():
            for record in batch.records():
                yield batch.partition, record

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _launch(self, max_wait_ms: int | None = None) -> None:
        """Send a Fetch to every leader that has none under way and something to ask for."""
        now = asyncio.get_running_loop().time()
        by_leader: dict[BrokerId, list[_Assigned]] = {}
        for state in list(self._assigned.values()):
            if now < state.not_before_s:
                continue
            try:
                leader = await self._cluster.leader_id(state.partition)
            except (RequestRejected, BrokerUnavailable) as error:
                self._failed(state, error)
                continue
            if leader not in self._fetches:
                by_leader.setdefault(leader, []).append(state)
        self._turn += 1
        for node_id, states in by_leader.items():
            # The answer's bytes go to the first partitions first, so they take turns at being first.
            first = self._turn % len(states)
            asked = {state.partition: state.position for state in (*states[first:], *states[:first])}
            self._fetches[node_id] = asyncio.create_task(
                self._fetch(node_id, asked, self._max_wait_ms if max_wait_ms is None else max_wait_ms),
                name=f"fetch-{node_id}",
            )

    async def _fetch(self, node_id: BrokerId, asked: Mapping[TopicPartition, Offset], max_wait_ms: int) -> _Fetched:
        topics: dict[str, FetchTopic] = {}
        parts: dict[TopicPartition, PartitionData] = {}
        for partition, position in asked.items():
            topic = topics.get(partition.topic)
            if topic is None:
                known = self._cluster.view.topics.get(partition.topic)
                if known is None:  # another user of the shared view has asked, and the topic was gone
                    parts[partition] = PartitionData(partition.partition, ErrorCode.LEADER_NOT_AVAILABLE)
                    continue
                topic = topics[partition.topic] = FetchTopic(topic_id=known.topic_id, topic=partition.topic)
            topic.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    fetch_offset=position,
                    partition_max_bytes=self._partition_max_bytes,
                )
            )
        if not topics:
            return _Fetched(asked, parts, None)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=int(self._read_committed),
            topics=list(topics.values()),
        )
        try:
            connection = await self._cluster.broker(node_id, self._lane)
            timeout_ms = max_wait_ms + self._cluster.request_timeout_ms
            answer: FetchResponse = await connection.request(ApiKey.FETCH, request, timeout_ms=timeout_ms)
        except (RequestRejected, BrokerUnavailable) as error:
            return _Fetched(asked, {}, error)
        except ProtocolError as error:
            return _Fetched(asked, {}, BrokerUnavailable(str(error)))
        if answer.error_code:
            return _Fetched(asked, {}, refusal(answer.error_code, "the fetch"))
        names = {topic.topic_id: name for name, topic in topics.items()}
        for topic_answer in answer.responses:
            name = topic_answer.topic or names.get(topic_answer.topic_id, "")
            for part in topic_answer.partitions:
                parts[TopicPartition(name, PartitionIndex(part.partition_index))] = part
        return _Fetched(asked, parts, None)

    # --- answers --------------------------------------------------------------------------------------------------

    async def _apply(self, fetched: _Fetched, batches: list[FetchedBatch]) -> bool:
        """Hand out the fetched batches, and move positions. Returns whether any moved."""
        moved = False
        for partition, asked in fetched.asked.items():
            state = self._assigned.get(partition)
            if state is None or state.position != asked:
                continue  # Unassigned or sought elsewhere meanwhile.
            part = fetched.parts.get(partition)
            if fetched.error is not None:
                self._failed(state, fetched.error)
            elif part is None:
                self._failed(state, BrokerUnavailable(f"The broker did not answer for {partition}."))
            elif part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                moved |= await self._out_of_range(state)
            elif part.error_code:
                self._failed(state, refusal(part.error_code, str(partition)))
            else:
                moved |= self._accept(state, part, batches)
        return moved

    def _accept(self, state: _Assigned, part: PartitionData, batches: list[FetchedBatch]) -> bool:
        """Take an answer without an error. Returns whether the position moved."""
        state.failures = 0
        state.high_watermark = Offset(part.high_watermark)
        state.last_stable_offset = Offset(part.last_stable_offset)
        state.log_start_offset = Offset(part.log_start_offset)
        return self._take(state, part, batches)

    def _take(self, state: _Assigned, part: PartitionData, batches: list[FetchedBatch]) -> bool:
        view = memoryview(part.records or b"")
        aborted = [(entry.first_offset, entry.producer_id) for entry in part.aborted_transactions or ()]
        heapify(aborted)
        position, asked = 0, state.position
        while len(view) - position >= HEADER_BYTES:
            size = parse_header(view, position).size_bytes
            if position and size > len(view) - position:
                break  # Kafka may cut the last batch short; Firn does not.
            try:
                header = check_stored_batch(view, position)
            except CorruptionError as error:
                raise CorruptionError(f"{state.partition} from offset {state.position}: {clause(error)}.") from None
            batch = view[position : position + size]
            position += size
            if header.end_offset <= state.position:
                continue
            if self._wanted(state, header, batch, aborted):
                batches.append(FetchedBatch(state.partition, header, batch, state.position))
            state.position = header.end_offset
            state.epoch = header.leader_epoch
        return state.position != asked

    def _wanted(self, state: _Assigned, header: BatchHeader, batch: memoryview, aborted: list[tuple[int, int]]) -> bool:
        """Whether a batch is for this reader; follows the aborted transactions of a read_committed one (KIP-98)."""
        while aborted and aborted[0][0] < header.end_offset:
            state.aborting.add(ProducerId(heappop(aborted)[1]))
        if header.is_control:
            marker = parse_marker(batch)
            if marker is not None and marker.control_type is ControlType.ABORT:
                state.aborting.discard(header.producer_id)
            return False
        skipped = self._read_committed and header.is_transactional and header.producer_id in state.aborting
        return header.record_count > 0 and not skipped

    async def _out_of_range(self, state: _Assigned) -> bool:
        if self._reset_to is None:
            bounds = await self._cluster.list_offsets({state.partition: EARLIEST})
            raise RequestRejected(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {state.position} is not in {state.partition}, which starts at {bounds[state.partition].offset}.",
            )
        found = await self._cluster.list_offsets({state.partition: self._reset_to})
        offset = Offset(found[state.partition].offset)
        moved = offset != state.position
        self._assigned[state.partition] = _Assigned(state.partition, offset)
        return moved

    def _failed(self, state: _Assigned, error: FirnError) -> None:
        """Try again after a while, or raise once the budget is used up."""
        now = asyncio.get_running_loop().time()
        if not state.failures:
            state.failing_since_s = now
        state.failures += 1
        state.trouble = str(error)
        if not is_retriable(error) or now - state.failing_since_s >= self._cluster.retry_budget_ms / 1000:
            raise error
        self._cluster.forget(state.partition.topic)
        state.not_before_s = now + backoff_ms(state.failures, self._cluster.rng) / 1000


class _Fetched(NamedTuple):
    asked: Mapping[TopicPartition, Offset]
    parts: Mapping[TopicPartition, PartitionData]
    error: FirnError | None
