"""An idempotent producer: records in, batches out, each acknowledged once and in order per partition.

Each partition has an open batch that gathers records. It is sealed when it is full or has waited ``linger_ms``. Sealed batches
go to the leader. One request may carry batches of several partitions. Of one partition up to ``IN_FLIGHT_PER_PARTITION_MAX``
batches are under way at once: the broker remembers that many sequence numbers (KIP-98).

A batch may fail with an error that passes. Then those behind it fail too, with OUT_OF_ORDER_SEQUENCE_NUMBER. The producer
first waits for every answer of that partition. Then it sends the unacknowledged batches again: one at a time, in the same order,
with the same numbers. The broker drops batches that it already has. A batch that fails for good leaves a hole in the numbers, so
later batches get a new producer id.

Without idempotence (``acks`` other than -1, or ``idempotent=False``) one batch of a partition is under way at a time. Order
holds, but a retry may store records twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import UUID

from app.client.cluster import ClusterClient, TopicView, refusal
from app.client.partitioner import StickyChoice, partition_of_key
from app.client.retry import backoff_ms, is_retriable, retrying
from app.client.transactions import Transaction
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, LimitExceeded, RequestRejected, copy_of
from app.core.limits import KIB, MIB, RECORD_HEADERS_MAX
from app.core.seams import Clock
from app.core.units import (
    NO_PRODUCER_ID,
    BrokerId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from app.records.builder import build_batch
from app.records.compression import Codec
from app.wire.apikeys import ApiKey
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.produce import PartitionProduceResponse
from app.wire.produce import TOPIC_IDS, TopicRef, decode_produce_response, encode_produce_body, read_only_success

IN_FLIGHT_PER_PARTITION_MAX: Final = 5
REQUEST_BATCHES_BYTES_MAX: Final = 16 * MIB
"""Record bytes put into one Produce request."""
RECORD_OVERHEAD_BYTES: Final = 24
"""Upper bound for a record's bytes beside its key, value and headers. A batch must not pass max.message.bytes."""

TIMESTAMP_END: Final = 1 << 62
"""Times at which a record may be, in milliseconds since 1970, end below it."""

Headers = tuple[tuple[str, bytes | None], ...]
_Record = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp, key, value and headers."""


class Acknowledged(NamedTuple):
    """Where a record went. ``offset`` is -1 if the broker does not say (acks=0, or a duplicate it no longer remembers)."""

    partition: TopicPartition
    offset: Offset
    timestamp: TimestampMs


class _Identity(NamedTuple):
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


_ANONYMOUS: Final = _Identity(NO_PRODUCER_ID, ProducerEpoch(-1))


@dataclass(slots=True, eq=False)
class _Batch:
    partition: TopicPartition
    number: int
    """Counts the batches of a partition. The halves of a split batch share a number, and are never in flight together."""
    opened_s: float
    records: list[_Record] = field(default_factory=list)
    answers: list[asyncio.Future[Acknowledged]] = field(default_factory=list)
    size_bytes: int = 0
    identity: _Identity | None = None
    """The producer id of its sequence numbers; None while it has no numbers."""
    base_sequence: int = -1
    encoded: bytes = b""
    has_connection: bool = False
    """Whether its request has a place on a connection. Before that, a later batch of the partition could overtake it."""
    attempts: int = 0
    last_error: FirnError | None = None
    """Why the last attempt failed."""


@dataclass(slots=True, eq=False)
class _PartitionQueue:
    """One partition's batches, in order: ``open`` is being filled, ``ready`` waits, ``in_flight`` was sent."""

    partition: TopicPartition
    identity: _Identity | None = None
    """The producer id of the next new batch; None: ask the broker for one."""
    next_sequence: int = 0
    next_number: int = 0
    open: _Batch | None = None
    ready: deque[_Batch] = field(default_factory=deque)
    in_flight: deque[_Batch] = field(default_factory=deque)
    draining: bool = False
    not_before_s: float = 0.0
    """Back-off: nothing is sent before this time, by the clock of the event loop."""


class Producer:
    """Sends records to a cluster. Use it as ``async with``; leaving the block flushes."""

    def __init__(
        self,
        cluster: ClusterClient,
        clock: Clock,
        *,
        acks: int = -1,
        idempotent: bool = True,
        linger_ms: float = 5,
        eager: bool = False,
        batch_bytes: int = 256 * KIB,
        buffer_bytes_max: int = 64 * MIB,
        compression: Codec = Codec.NONE,
        delivery_timeout_ms: int = 120_000,
        create_topics: bool = True,
        transaction: Transaction | None = None,
        on_retry: Callable[[FirnError, int], None] | None = None,
    ) -> None:
        """
        Args:
            acks: -1 every in-sync replica, 1 the leader, 0 no answer at all.
            linger_ms: how long a batch waits for more records.
            eager: a batch does not wait while no other batch of its partition is under way. So a lone record goes at once, and
                many records at a time gather while the one before them is stored.
            batch_bytes: a batch is sealed before it grows past this (uncompressed).
            buffer_bytes_max: records that are not acknowledged; ``send`` waits above it.
            delivery_timeout_ms: from ``send`` to the acknowledgement, retries included.
            create_topics: let the broker create an unknown topic, if its settings allow that.
            transaction: everything that is sent belongs to it; ending it is the caller's. After a failed record it can only
                be aborted.
            on_retry: told why something is tried again, and how many times it has failed. It must not wait.
        """
        assert acks in (-1, 0, 1), acks
        self._cluster = cluster
        self._clock = clock
        self._acks = acks
        self._idempotent = idempotent and acks == -1
        self._linger_s = linger_ms / 1000
        self._eager = eager
        self._batch_bytes = batch_bytes
        self._buffer_bytes_max = buffer_bytes_max
        self._compression = compression
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._create_topics = create_topics
        self._transaction = transaction
        self._on_retry = on_retry
        assert transaction is None or self._idempotent
        self._in_flight_max = IN_FLIGHT_PER_PARTITION_MAX if self._idempotent else 1
        self._sticky = StickyChoice(cluster.rng)
        self._queues: dict[tuple[str, int], _PartitionQueue] = {}
        self._identity: _Identity | None = None
        self._buffered_bytes = 0
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._runner: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self._stop()

    def start(self) -> None:
        """Begin to send. The caller must call ``close`` in the end. ``async with`` does both."""
        self._runner = asyncio.create_task(self._run(), name="producer")
        self._runner.add_done_callback(lambda _: self._announce())

    async def close(self, *, flush_timeout_ms: int) -> None:
        """Send the queued records, then stop. Records that are left after the time given fail with BrokerUnavailable."""
        try:
            async with asyncio.timeout(flush_timeout_ms / 1000):
                await self.flush()
        except (TimeoutError, BrokerUnavailable):
            pass  # Each record's future tells its own fate.
        finally:
            await self._stop()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not acknowledged yet."""
        return self._buffered_bytes

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: TimestampMs | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[Acknowledged]:
        """Queue one record and return the future of its acknowledgement; waits only while the buffer is full.

        Records of one partition are stored in the order of the calls. ``timestamp`` None is now.

        Raises (nothing was queued): RequestRejected (unknown topic or partition), BrokerUnavailable (no metadata in time),
        LimitExceeded (the record alone is larger than the buffer). The future raises RequestRejected (the broker's final
        answer) or BrokerUnavailable (not known to be stored within the delivery time-out).
        """
        view = self._cluster.view.topics.get(topic)
        if view is None or not view.partitions:
            view = await self._topic(topic)
        if timestamp is None:
            timestamp = self._clock.now_ms()
        size = _checked_size(key, value, headers, timestamp)
        if size > self._buffer_bytes_max:
            raise LimitExceeded(
                f"A record of {size} bytes does not fit in the producer's {self._buffer_bytes_max} bytes."
            )
        while self._buffered_bytes and self._buffered_bytes + size > self._buffer_bytes_max:
            self._seal_all()
            await self._wait_for_progress()
        return self._queued(view, partition, size, (timestamp, key, value, headers))

    def send_at_once(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        timestamp: TimestampMs | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[Acknowledged] | None:
        """As ``send``, of a record without headers; None, and nothing was queued, if ``send`` might wait or refuse the record.

        Raises: RequestRejected (unknown partition), BrokerUnavailable (the producer is closed).
        """
        view = self._cluster.view.topics.get(topic)
        if timestamp is None:
            timestamp = self._clock.now_ms()
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        has_room = self._buffered_bytes + size <= self._buffer_bytes_max
        if view is None or not view.partitions or not has_room or not 0 <= timestamp < TIMESTAMP_END:
            return None
        return self._queued(view, partition, size, (timestamp, key, value, ()))

    def _queued(
        self, view: TopicView, partition: int | None, size: int, record: _Record
    ) -> asyncio.Future[Acknowledged]:
        loop = self._check_running()
        batch = self._open_batch(view, record[1], partition, size)
        answer: asyncio.Future[Acknowledged] = loop.create_future()
        batch.records.append(record)
        batch.answers.append(answer)
        batch.size_bytes += size
        self._buffered_bytes += size
        return answer

    def take_back(self, answer: asyncio.Future[Acknowledged]) -> tuple[TopicPartition, bool] | None:
        """Take back a record that no request has had, so that it is not stored later.

        Returns: the partition of the record, and whether the record was taken back; None if the record was acknowledged, or has
        failed. A record that a request has had stays: it may be stored, and is sent again until the delivery time-out.
        """
        for queue in self._queues.values():
            for batch in (*queue.in_flight, *queue.ready, *filter(None, [queue.open])):
                if answer in batch.answers:
                    if batch.identity is not None:
                        return queue.partition, False
                    self._remove(queue, batch, batch.answers.index(answer))
                    return queue.partition, True
        return None

    def _remove(self, queue: _PartitionQueue, batch: _Batch, index: int) -> None:
        """Remove a record from a batch that has no numbers yet."""
        _, key, value, headers = batch.records.pop(index)
        batch.answers.pop(index).cancel()
        size = _size(key, value, headers)
        batch.size_bytes -= size
        self._buffered_bytes -= size
        if not batch.records:
            if queue.open is batch:
                queue.open = None
            else:
                queue.ready.remove(batch)
        self._announce()

    async def flush(self) -> None:
        """Return once every record sent so far is acknowledged or has failed; its future says which."""
        self._seal_all()
        while self._buffered_bytes:
            await self._wait_for_progress()
            self._seal_all()

    # --- queues ---------------------------------------------------------------------------------------------------

    async def _topic(self, name: str) -> TopicView:
        async def ask() -> TopicView:
            return await self._cluster.topic(name, create=self._create_topics)

        # An unknown topic is worth another look only if asking may create it.
        final = frozenset() if self._create_topics else frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        budget_ms = min(self._cluster.retry_budget_ms, int(self._delivery_timeout_s * 1000))
        attempts = 0

        async def tell(error: FirnError) -> None:
            nonlocal attempts
            attempts += 1
            self._tell_retry(error, attempts)

        return await retrying(ask, rng=self._cluster.rng, budget_ms=budget_ms, also_final=final, before_retry=tell)

    def _open_batch(self, view: TopicView, key: bytes | None, partition: int | None, size: int) -> _Batch:
        """The batch that has room for a record of ``size`` bytes; full ones are sealed on the way."""
        while True:
            queue = self._queue_for(view, key, partition)
            batch = queue.open
            if batch is None:
                now = asyncio.get_running_loop().time()
                batch = queue.open = _Batch(queue.partition, queue.next_number, now)
                queue.next_number += 1
                self._wake.set()
                return batch
            if batch.size_bytes + size <= self._batch_bytes:
                return batch
            # Records without a key move on to another partition with this, hence the loop.
            self._seal(queue, view)

    def _queue_for(self, view: TopicView, key: bytes | None, partition: int | None) -> _PartitionQueue:
        count = len(view.partitions)
        if partition is None:
            if key is not None:
                partition = partition_of_key(key, count)
            else:
                partition = self._sticky.partition(view.name, count)
        elif not 0 <= partition < count:
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {view.name} has {count} partitions and no partition {partition}.",
            )
        queue = self._queues.get((view.name, partition))
        if queue is None:
            name = TopicPartition(view.name, PartitionIndex(partition))
            queue = self._queues[name] = _PartitionQueue(name)
        return queue

    def _seal(self, queue: _PartitionQueue, view: TopicView | None) -> None:
        if queue.open is not None:
            queue.ready.append(queue.open)
            queue.open = None
            if view is not None:
                self._sticky.batch_full(view.name, queue.partition.partition, len(view.partitions))
            self._wake.set()

    def _seal_all(self) -> None:
        for queue in self._queues.values():
            self._seal(queue, None)

    async def _wait_for_progress(self) -> None:
        self._check_running()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter
        self._check_running()

    def _check_running(self) -> asyncio.AbstractEventLoop:
        """The loop of the producer. Raises: BrokerUnavailable if it is closed."""
        runner = self._runner
        if self._closing or runner is None or runner.done():
            raise BrokerUnavailable("The producer is closed.")
        return runner.get_loop()

    # --- the loop that sends --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait_for_work(self._next_pause())
                self._wake.clear()
                self._seal_lingered()
                self._expire()
                for node_id, batches in (await self._ready_by_leader()).items():
                    for portion in _portions(batches):
                        group.create_task(self._deliver(node_id, portion))
                self._announce()

    async def _wait_for_work(self, pause_s: float | None) -> None:
        if pause_s is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass  # A linger or a back-off has ended.

    def _may_send(self, queue: _PartitionQueue) -> bool:
        """Whether the first waiting batch may join those in flight, back-off aside.

        A batch under another producer id waits for all before it, since the broker orders only batches of the same id. A batch
        that is sent again goes alone: it may be stored already. If newer batches passed it, the broker would no longer
        recognize it as a duplicate. A batch whose connection is being opened is waited for: the broker takes any first sequence
        from a producer that it does not know, so the partition would never take the batch that was overtaken.
        """
        if not queue.ready or queue.draining or len(queue.in_flight) >= self._in_flight_max:
            return False
        if not queue.in_flight:
            return True
        newest = queue.in_flight[-1]
        return (
            newest.has_connection
            and not newest.attempts
            and newest.identity is (queue.ready[0].identity or queue.identity)
        )

    def _next_pause(self) -> float | None:
        """Seconds until there is something to do without being woken."""
        now = asyncio.get_running_loop().time()
        due: list[float] = []
        for queue in self._queues.values():
            if queue.open is not None:
                due.append(self._seal_at_s(queue, queue.open))
            if self._may_send(queue):
                due.append(queue.not_before_s)
            if queue.ready and not queue.in_flight:
                due.append(queue.ready[0].opened_s + self._delivery_timeout_s)
        return max(0.0, min(due) - now) if due else None

    def _seal_lingered(self) -> None:
        now = asyncio.get_running_loop().time()
        for queue in self._queues.values():
            if queue.open is not None and now >= self._seal_at_s(queue, queue.open):
                # Records without a key stay with a partition whose batch was sent at once, so that the next ones gather there.
                full = now >= queue.open.opened_s + self._linger_s
                self._seal(queue, self._cluster.view.topics.get(queue.partition.topic) if full else None)

    def _seal_at_s(self, queue: _PartitionQueue, batch: _Batch) -> float:
        """The time at which an open batch waits no longer."""
        at_once = self._eager and not queue.in_flight and not queue.ready
        return batch.opened_s if at_once else batch.opened_s + self._linger_s

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for queue in self._queues.values():
            while queue.ready and not queue.in_flight and now >= queue.ready[0].opened_s + self._delivery_timeout_s:
                batch = queue.ready.popleft()
                late = f"{batch.partition} did not acknowledge within {self._delivery_timeout_s:g} s."
                why = f" The last answer: {batch.last_error}" if batch.last_error is not None else ""
                self._fail(queue, batch, BrokerUnavailable(late + why))

    async def _ready_by_leader(self) -> dict[BrokerId, list[tuple[_PartitionQueue, _Batch]]]:
        """Batches that may go now, at most one per partition, by leader; marked as in flight."""
        ready: dict[BrokerId, list[tuple[_PartitionQueue, _Batch]]] = {}
        for queue in list(self._queues.values()):
            if not self._may_send(queue) or asyncio.get_running_loop().time() < queue.not_before_s:
                continue
            try:
                leader = await self._cluster.leader_id(queue.partition)
                identity = await self._identity_for(queue)
            except (RequestRejected, BrokerUnavailable) as error:
                self._postpone(queue, error)
                continue
            if not self._may_send(queue):
                continue  # An answer came in while we waited.
            batch = queue.ready.popleft()
            if batch.identity is None:
                self._number(queue, batch, identity)
            queue.in_flight.append(batch)
            ready.setdefault(leader, []).append((queue, batch))
            if queue.ready:
                self._wake.set()
        return ready

    async def _identity_for(self, queue: _PartitionQueue) -> _Identity:
        if queue.identity is None:
            if not self._idempotent:
                queue.identity = _ANONYMOUS
            else:
                if self._identity is None:
                    self._identity = await self._new_identity()
                queue.identity = self._identity
        return queue.identity

    async def _new_identity(self) -> _Identity:
        if self._transaction is not None:
            return _Identity(self._transaction.producer_id, self._transaction.producer_epoch)
        connection = await self._cluster.any_broker()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        answer = await connection.request(ApiKey.INIT_PRODUCER_ID, request, timeout_ms=self._cluster.request_timeout_ms)
        if answer.error_code:
            raise refusal(answer.error_code, "a producer id")
        return _Identity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))

    def _number(self, queue: _PartitionQueue, batch: _Batch, identity: _Identity) -> None:
        batch.identity = identity
        if identity is not _ANONYMOUS:
            batch.base_sequence = queue.next_sequence
            queue.next_sequence = _after(queue.next_sequence, len(batch.records))
        self._encode(batch)

    def _encode(self, batch: _Batch) -> None:
        assert batch.identity is not None
        batch.encoded = build_batch(
            batch.records,
            codec=self._compression,
            producer_id=batch.identity.producer_id,
            producer_epoch=batch.identity.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=self._transaction is not None,
        )

    # --- one request ----------------------------------------------------------------------------------------------

    async def _deliver(self, node_id: BrokerId, batches: list[tuple[_PartitionQueue, _Batch]]) -> None:
        outcome: dict[TopicPartition, PartitionProduceResponse] = {}
        failure: FirnError | None = None
        try:
            outcome = await self._produce(node_id, [batch for _, batch in batches])
        except (RequestRejected, BrokerUnavailable) as error:
            failure = error
        except FirnError as error:
            # The answer cannot be read. So it is not known whether the batches are stored, as after a lost connection.
            failure = BrokerUnavailable(str(error))
        for queue, batch in batches:
            part = outcome.get(batch.partition)
            if failure is not None:
                self._failed_once(queue, batch, failure)
            elif part is None:
                silence = BrokerUnavailable(f"Broker {node_id} did not answer for {batch.partition}.")
                self._failed_once(queue, batch, silence)
            elif part.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._succeed(queue, batch, part)
            else:
                self._failed_once(queue, batch, refusal(part.error_code, str(batch.partition), part.error_message))
        if any(queue.open is not None or queue.ready for queue, _ in batches):
            self._wake.set()
        self._announce()

    async def _produce(
        self, node_id: BrokerId, batches: list[_Batch]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        connection = await self._cluster.broker(node_id)
        for batch in batches:
            batch.has_connection = True
            if self._queues[batch.partition].ready:
                self._wake.set()
        version = connection.version_of(ApiKey.PRODUCE)
        names: dict[object, str] = {}
        topics: dict[str, tuple[TopicRef, list[tuple[int, bytes]]]] = {}
        for batch in batches:
            name = batch.partition.topic
            topic = topics.get(name)
            if topic is None:
                topic_id = self._cluster.view.topics[name].topic_id
                topic = topics[name] = (topic_id if version >= TOPIC_IDS else name, [])
                names[topic_id] = name
            topic[1].append((batch.partition.partition, batch.encoded))
        timeout_ms = self._cluster.request_timeout_ms
        body = encode_produce_body(
            version,
            list(topics.values()),
            acks=self._acks,
            timeout_ms=timeout_ms,
            transactional_id=None if self._transaction is None else self._transaction.transactional_id,
        )
        if self._acks == 0:
            await connection.send_only(ApiKey.PRODUCE, version, body)
            return {
                batch.partition: PartitionProduceResponse(index=batch.partition.partition, base_offset=-1)
                for batch in batches
            }

        def decode(view: memoryview) -> dict[TopicPartition, PartitionProduceResponse]:
            only = read_only_success(version, view)
            name = None if only is None else names.get(UUID(bytes=only[0]))
            if only is not None and name is not None:
                _, index, base_offset, log_append_time_ms = only
                part = PartitionProduceResponse(
                    index=index, base_offset=base_offset, log_append_time_ms=log_append_time_ms
                )
                return {TopicPartition(name, PartitionIndex(index)): part}
            return {
                TopicPartition(topic.name or names.get(topic.topic_id, ""), PartitionIndex(part.index)): part
                for topic in decode_produce_response(version, view).responses
                for part in topic.partition_responses
            }

        # The broker may use the whole of timeout_ms for its replicas; its answer then still has to arrive.
        return await connection.exchange(ApiKey.PRODUCE, version, body, decode, timeout_ms=timeout_ms + 1_000)

    def _succeed(self, queue: _PartitionQueue, batch: _Batch, part: PartitionProduceResponse) -> None:
        queue.in_flight.remove(batch)
        self._buffered_bytes -= batch.size_bytes
        known = part.error_code == ErrorCode.NONE and part.base_offset >= 0
        append_time = part.log_append_time_ms
        made, partition = Acknowledged._make, batch.partition
        for offset, (record, answer) in enumerate(zip(batch.records, batch.answers, strict=True), part.base_offset):
            if not answer.done():
                stored_ms = append_time if append_time >= 0 else record[0]
                answer.set_result(made((partition, offset if known else -1, stored_ms)))
        queue.draining = queue.draining and bool(queue.in_flight)

    def _failed_once(self, queue: _PartitionQueue, batch: _Batch, error: FirnError) -> None:
        is_first = queue.in_flight[0] is batch
        queue.in_flight.remove(batch)
        batch.attempts += 1
        batch.last_error = error
        now = asyncio.get_running_loop().time()
        code = error.code if isinstance(error, RequestRejected) else None
        outdated = batch.identity is not queue.identity
        behind_a_failure = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and (
            queue.draining or not is_first or outdated
        )
        forgotten = code in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if now >= batch.opened_s + self._delivery_timeout_s:
            self._fail(queue, batch, error)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            for half in reversed(self._halves(batch)):
                self._put_back(queue, half)
        elif is_retriable(error) or behind_a_failure or (forgotten and batch.attempts <= 2):
            if forgotten and not outdated:
                self._drop_identity(queue)
            if forgotten or (behind_a_failure and outdated):
                # The broker did not store it under the numbers it has, and never will.
                batch.identity, batch.base_sequence = None, -1
            self._put_back(queue, batch)
            if not behind_a_failure:
                self._tell_retry(error, batch.attempts)
            queue.not_before_s = now + backoff_ms(batch.attempts, self._cluster.rng) / 1000
            self._cluster.forget(batch.partition.topic)
        else:
            self._fail(queue, batch, error)
        queue.draining = bool(queue.in_flight)

    def _halves(self, batch: _Batch) -> tuple[_Batch, _Batch]:
        """Split a batch in two, each with its part of the numbers. The broker refused the whole batch, so no record is stored."""
        middle = len(batch.records) // 2
        first = _Batch(batch.partition, batch.number, batch.opened_s, batch.records[:middle], batch.answers[:middle])
        second = _Batch(batch.partition, batch.number, batch.opened_s, batch.records[middle:], batch.answers[middle:])
        first.size_bytes = sum(_size(key, value, headers) for _, key, value, headers in first.records)
        second.size_bytes = batch.size_bytes - first.size_bytes
        first.identity = second.identity = batch.identity
        first.attempts = second.attempts = batch.attempts
        if batch.base_sequence >= 0:
            first.base_sequence, second.base_sequence = batch.base_sequence, _after(batch.base_sequence, middle)
        self._encode(first)
        self._encode(second)
        return first, second

    @staticmethod
    def _put_back(queue: _PartitionQueue, batch: _Batch) -> None:
        """Put a batch among those that wait, in the order in which they were opened."""
        index = next((at for at, waiting in enumerate(queue.ready) if waiting.number >= batch.number), len(queue.ready))
        queue.ready.insert(index, batch)

    def _postpone(self, queue: _PartitionQueue, error: FirnError) -> None:
        """No leader or no producer id now."""
        if not queue.ready:
            return
        batch = queue.ready[0]
        if not is_retriable(error):
            self._fail(queue, queue.ready.popleft(), error)
            return
        batch.attempts += 1
        batch.last_error = error
        self._tell_retry(error, batch.attempts)
        self._cluster.forget(queue.partition.topic)
        pause_ms = backoff_ms(batch.attempts, self._cluster.rng)
        queue.not_before_s = asyncio.get_running_loop().time() + pause_ms / 1000

    def _tell_retry(self, error: FirnError, attempts: int) -> None:
        if self._on_retry is not None:
            self._on_retry(error, attempts)

    def _fail(self, queue: _PartitionQueue, batch: _Batch, error: FirnError) -> None:
        self._buffered_bytes -= batch.size_bytes
        for answer in batch.answers:
            if not answer.done():
                answer.set_exception(copy_of(error))  # The same one would gather the frames of all who wait.
                # Callers that only flush may ignore the futures. That is their choice, not a lost error.
                answer.exception()
        if batch.base_sequence >= 0 and batch.identity is queue.identity:
            # Its sequence numbers are missing in the log now, so new batches get another producer id. Those that have numbers keep
            # them until the broker refuses them for the hole, since they may have been stored behind it.
            self._drop_identity(queue)

    def _drop_identity(self, queue: _PartitionQueue) -> None:
        queue.identity = self._identity = None
        queue.next_sequence = 0

    def _announce(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _stop(self) -> None:
        self._closing = True
        runner = self._runner
        if runner is not None:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)
        for queue in self._queues.values():
            for batch in (*queue.in_flight, *queue.ready, *filter(None, [queue.open])):
                for answer in batch.answers:
                    if not answer.done():
                        answer.set_exception(BrokerUnavailable("The producer was closed before an answer came."))
                        answer.exception()
        self._announce()
        if runner is not None and not runner.cancelled() and runner.exception() is not None:
            runner.result()


def _after(sequence: int, count: int) -> int:
    """The sequence number ``count`` records on; they wrap around at 2^31."""
    return (sequence + count) & 0x7FFF_FFFF


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if not headers:
        return size
    for name, content in headers:
        size += 10 + len(name.encode()) + len(content or b"")
    return size


def _checked_size(key: bytes | None, value: bytes | None, headers: Headers, timestamp: int) -> int:
    """Upper bound of a record's bytes. Raises: RequestRejected for a record that no batch can hold."""
    if not 0 <= timestamp < TIMESTAMP_END:
        raise RequestRejected(ErrorCode.INVALID_TIMESTAMP, f"{timestamp} is not a time in milliseconds since 1970.")
    if len(headers) > RECORD_HEADERS_MAX:
        raise RequestRejected(ErrorCode.INVALID_RECORD, f"A record has at most {RECORD_HEADERS_MAX} headers.")
    try:
        return _size(key, value, headers)
    except UnicodeEncodeError:
        raise RequestRejected(ErrorCode.INVALID_RECORD, "A header's name is not valid Unicode.") from None


def _portions(
    batches: Iterable[tuple[_PartitionQueue, _Batch]],
) -> Iterable[list[tuple[_PartitionQueue, _Batch]]]:
    """Batches of one leader, cut into requests of bounded size."""
    portion: list[tuple[_PartitionQueue, _Batch]] = []
    size = 0
    for entry in batches:
        length = len(entry[1].encoded)
        if portion and size + length > REQUEST_BATCHES_BYTES_MAX:
            yield portion
            portion, size = [], 0
        portion.append(entry)
        size += length
    if portion:
        yield portion
