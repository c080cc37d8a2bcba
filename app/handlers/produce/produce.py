"""Produce (key 0): from the frame to the log, synchronously.

Every partition's batch is appended before anything is answered; nothing is awaited between the checks and the write. Only
four things make a request wait:

- Durability that is not there yet: the answer takes a slot, and later requests go on.
- A topic that looks into batches or wants another compression than the producer's. The bytes are copied and prepared on a pool
  thread first, in turns with other connections. The connection waits, so that its order is kept.
- Hundreds of partitions: they are served in portions. The connection waits.
- The first records of many partitions, since making their files takes a fraction of a millisecond each. The connection waits, and
  others have their turns in between.

The first batch of a transaction may wait for its coordinator, too. The connection waits then, but not for one of a keyed request
over HTTP (ADR 0043, EO20).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from app.configs import Durability
from app.core.errors import (
    RETRIABLE,
    ErrorCode,
    FirnError,
    ProtocolError,
    RecordsRejected,
    RequestRejected,
    SequenceRefused,
    copy_of,
    kafka_code,
)
from app.core.limits import BATCH_OVERHEAD_BYTES, KIB
from app.core.turns import Portion
from app.exactly_once.transactional_ids import is_of_requests
from app.handlers.base.authorising import denial, may
from app.handlers.base.partitions import check_writable, hint, node_endpoints, topic_name
from app.handlers.base.portions import look_at_error
from app.handlers.clients.admission import (
    PRODUCER,
    Verdicts,
    admit,
    check_admitted,
    continues,
    release,
    writer_of,
)
from app.handlers.clients.client import SIDE_BY_SIDE_MAX, RequestFields
from app.handlers.clients.held_sequences import HeldSequences, sequenced, tell_refused
from app.handlers.clients.produce_shape import NO_TAGS, ProduceShape, learn
from app.handlers.clients.serving import request_of, spawn_told
from app.handlers.produce.schema_checks import check_schemas
from app.handlers.state.zones import record_bytes
from app.hot.appending import PreparationNeeded
from app.hot.preparation import looks_at_batches
from app.hot.producers import TransactionGuard
from app.metadata.image.image import GUARDED_TOPICS
from app.records.batch import (
    ATTRIBUTES_LOW_BYTE,
    BATCH_LENGTH_POSITION,
    CODEC_MASK,
    CONTROL,
    LENGTH_PREFIX_BYTES,
    PRODUCER_POSITION,
    TRANSACTIONAL,
)
from app.records.compression import Codec
from app.security.acls import Operation, ResourceType
from app.security.noting import AUDIT_TOPIC, Resource
from app.wire.header import parse_request_header
from app.wire.produce import (
    VERSION_FIRST,
    VERSION_LAST,
    PartitionResult,
    ProduceRequest,
    TopicRef,
    decode_produce,
    encode_produce_response,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from app.handlers.base.views import ProduceView
    from app.handlers.clients.client import Client
    from app.handlers.policy.callers import Caller
    from app.hot.log import AppendResult, PartitionLog
    from app.replication.partition import Partition
    from app.transport.core import Slot
    from app.transport.sending import Parts

BATCH_LENGTH: Final = Struct(">i")
ZSTD_FIRST_VERSION: Final = 7
"""Clients of older versions do not know the codec (KIP-110)."""
ALL_IN_SYNC: Final = -1
WRITING: Final = "writing"
"""The name of this work in log lines about faults."""

PRODUCE: Final = 0
FIRST_RECORDS_AT_ONCE: Final = 16
"""Logs whose files are made before the event loop serves others."""

LONG_FRAME_BYTES: Final = 4096
"""A shorter request has few enough partitions that it takes 10 ms at most, also if all of them are refused."""
PARTITIONS_AT_ONCE: Final = 128
"""Topics and partitions of a long request whose rights are looked at, and which are appended to, before the clock is looked at."""
MANY_PARTITIONS: Final = 2 * PARTITIONS_AT_ONCE
"""Topics and partitions of a request that is served in portions (INV-15, ADR 0039)."""

BESIDE_BYTES_MAX: Final = 256 * KIB
"""Records of a request that waits for its coordinator beside other requests of its connection: 8 MiB in all."""

TopicResults = list[tuple[TopicRef, list[PartitionResult]]]
Found: TypeAlias = "list[list[Partition | None]]"
"""The partitions of a request, by topic."""


def shaped_records(shape: ProduceShape, buffer: bytearray, start: int, frame_end: int) -> tuple[int, int] | None:
    """Find the records of a frame that begins like ``shape``. ``start``: the position of their length.

    Returns: their start and their end in ``buffer``. None if the frame has another form, or has to wait.
    """
    stop = frame_end - shape.tail_bytes
    if shape.flexible:
        size = buffer[start]
        start += 1
        if size > 127:
            size = (size & 127) | buffer[start] << 7
            start += 1
            if size > 16383:
                size = (size & 16383) | buffer[start] << 14
                start += 1
                if size > 2097151:
                    return None
        if start + size - 1 != stop or not buffer.startswith(NO_TAGS, stop):
            return None
    else:
        start += 4
        if start + BATCH_LENGTH.unpack_from(buffer, start - 4)[0] != stop:
            return None
    size = stop - start
    if size < BATCH_OVERHEAD_BYTES:
        return None
    if BATCH_LENGTH.unpack_from(buffer, start + BATCH_LENGTH_POSITION)[0] + LENGTH_PREFIX_BYTES != size:
        return None
    attributes = buffer[start + ATTRIBUTES_LOW_BYTE]
    if attributes >= TRANSACTIONAL and (
        attributes & CONTROL
        or not shape.transactional
        or not continues(shape.log, PRODUCER.unpack_from(buffer, start + PRODUCER_POSITION))
    ):
        return None
    if shape.version < ZSTD_FIRST_VERSION and attributes & CODEC_MASK == Codec.ZSTD:
        return None
    return start, stop


def serve_produce(connection: Client, version: int, correlation_id: int, frame: memoryview) -> Parts:
    """Append the batches of a frame and answer it.

    Returns: the response, or None if there is none now: acks=0, or it comes through a slot.
    Raises: ProtocolError for a frame that is no Produce request of a served version.
    """
    if not VERSION_FIRST <= version <= VERSION_LAST:
        raise ProtocolError(f"Version {version} of Produce is not served.", ErrorCode.UNSUPPORTED_VERSION)
    context = connection.context
    header = parse_request_header(frame)
    request = decode_produce(version, frame[header.body_start :])
    asked = RequestFields(version, correlation_id, connection.charge(header.client_id, PRODUCE, len(frame)))
    if context.metrics.zones is not None:
        context.metrics.zones.produced(header.client_id, record_bytes(request))
    if len(frame) > LONG_FRAME_BYTES and _names_many(request):
        _spawn_long(connection, asked, request, header.client_id)
        return None
    transacts = may_transact(context, connection.caller, request)
    refused: TopicResults = []
    if context.authorizer is not None:
        refused = take_out_denied(context, connection.caller, request, header.client_id, correlation_id, transacts)
    sampler = context.sampler
    if sampler is not None and not refused and sampler.take(1):
        names = [name for topic, _ in request.topics if (name := topic_name(context, topic)) is not None]
        tell_produced(context, connection.caller, header.client_id, correlation_id, names)
    if request.acks not in (-1, 0, 1):
        wrong = refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or -1.")
        return encode_failures(connection, asked, wrong + refused)
    if refused and not request.topics:
        return _answer(connection, asked, request, refused)
    found = find_partitions(context, request)
    if len(request.topics) == 1 and request.acks != 0 and not request.rest_bytes and not refused:
        topic, partitions = request.topics[0]
        if len(partitions) == 1:
            index, records = partitions[0]
            partition = found[0][0]
            if partition is not None and records is not None and is_plain(partition, request.acks):
                log = partition.log
                partition.refresh()
                shape = learn(
                    connection.caller.rights,
                    version,
                    header.client_id,
                    frame,
                    records,
                    log,
                    topic,
                    index,
                    transacts,
                    partition
                    if log.journaled or (request.acks == ALL_IN_SYNC and not partition.commits_alone)
                    else None,
                    request.timeout_ms,
                )
                if shape is not None:
                    connection.remember(shape)
    return _serve_any(connection, asked, request, found, refused, header.client_id)


def may_transact(context: ProduceView, caller: Caller, request: ProduceRequest) -> bool:
    """Whether a request names a transactional id, and its caller may write in transactions of this id."""
    name = request.transactional_id
    return name is not None and may(context, caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name)


def is_transactional(records: memoryview | None) -> bool:
    """Whether the bytes for a partition look like a batch of a transaction."""
    return (
        records is not None and len(records) > ATTRIBUTES_LOW_BYTE and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL != 0
    )


def tell_produced(
    context: ProduceView, caller: Caller, client_id: str | None, correlation_id: int | None, topics: Iterable[str]
) -> None:
    """Write a sampled request to the audit log. Records that brokers write to the audit topic are left out (U12)."""
    resources = [
        Resource(Operation.WRITE.name, ResourceType.TOPIC.name, name) for name in topics if name != AUDIT_TOPIC
    ]
    if context.audit is not None and resources:
        context.audit.served(caller, PRODUCE, client_id, correlation_id, resources)


def tell_served(connection: Client, shape: ProduceShape, correlation_id: int) -> None:
    """As ``tell_produced``, for a request that the fast path has appended."""
    tell_produced(connection.context, connection.caller, shape.client_id, correlation_id, [shape.log.topic])


def take_out_denied(
    context: ProduceView,
    caller: Caller,
    request: ProduceRequest,
    client_id: str | None,
    correlation_id: int,
    transacts: bool,
) -> TopicResults:
    """Take the partitions that the caller may not write out of a request. ``transacts``: as ``may_transact`` says. Returns: their
    results."""
    audit = context.audit
    transactional_id = request.transactional_id
    if (
        transactional_id is not None
        and not transacts
        and any(is_transactional(records) for _, partitions in request.topics for _, records in partitions)
    ):
        error = denial(caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        refused = refuse_all(request, error.code, str(error))
        request.topics.clear()
        if audit is not None:
            asked = Resource(Operation.WRITE.name, ResourceType.TRANSACTIONAL_ID.name, transactional_id)
            audit.refused(caller, PRODUCE, client_id, correlation_id, [asked])
        return refused
    allowed, refused = [], []
    names: dict[str, None] = {}
    for topic, partitions in request.topics:
        name = topic_name(context, topic)
        if name is None or may(context, caller, Operation.WRITE, ResourceType.TOPIC, name):
            allowed.append((topic, partitions))  # an unknown id is answered as unknown
            continue
        sentence = str(denial(caller, Operation.WRITE, ResourceType.TOPIC, str(topic)))
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refused.append((topic, [PartitionResult(index, code, error_message=sentence) for index, _ in partitions]))
        names[name] = None
    if refused:
        if audit is not None:
            resources = [Resource(Operation.WRITE.name, ResourceType.TOPIC.name, one) for one in names]
            audit.refused(caller, PRODUCE, client_id, correlation_id, resources)
        context.metrics.produce_errors.value += sum(len(partitions) for _, partitions in refused)
        request.topics[:] = allowed
    return refused


def is_plain(partition: Partition, acks: int) -> bool:
    """Whether this partition may use the fast path: batches of every producer are appended at once and unchanged. They are stored
    here then, or by a commit for which the fast path waits."""
    config = partition.log.config
    return (
        partition.topic not in GUARDED_TOPICS
        and config.compression_type == "producer"
        and not looks_at_batches(config)
        and (
            partition.log.journaled
            or (
                config.firn_durability is Durability.MEMORY
                and (acks != ALL_IN_SYNC or not partition.commits_alone or config.min_insync_replicas <= 1)
            )
        )
    )


def _serve_any(
    connection: Client,
    asked: RequestFields,
    request: ProduceRequest,
    found: Found,
    refused: TopicResults,
    client_id: str | None,
) -> Parts:
    """Serve any number of topics, partitions and errors. ``refused``: results of the partitions that were taken out before."""
    admitted = admit(connection.context, asked.version, request)
    takes_long = _takes_long(request, found)
    if takes_long or isinstance(admitted, Awaitable):
        kept_bytes = _keep_records(request)
        beside = not takes_long and kept_bytes <= BESIDE_BYTES_MAX and _has_no_order(connection, request)
        slot = connection.open_slot(connection.server.produce_meter, stops_parsing=not beside)
        connection.server.keep(kept_bytes)
        work = _append_in_turns(connection, slot, asked, request, admitted, kept_bytes, refused)
        spawn_told(connection, request_of(connection, asked, PRODUCE, client_id), work)
        return None
    results, waiting = append_all(connection, asked.version, request, found, admitted)
    results += refused
    if waiting:
        slot = connection.open_slot(connection.server.produce_meter, stops_parsing=False)
        PendingProduce(connection, slot, asked, request.timeout_ms, results, waiting)
        return None
    return _answer(connection, asked, request, results)


def _has_no_order(connection: Client, request: ProduceRequest) -> bool:
    """Whether a request that waits for its coordinator may be served beside those behind it: each transaction of a keyed request
    has one batch for a partition (ADR 0043, EO20)."""
    name = request.transactional_id
    return name is not None and is_of_requests(name) and connection.open_slots < SIDE_BY_SIDE_MAX - 1


def _takes_long(request: ProduceRequest, found: Found) -> bool:
    """Whether a batch is to be prepared, or the files of many logs are to be made."""
    without_files = 0
    for (_, partitions), found_here in zip(request.topics, found, strict=True):
        for (_, records), partition in zip(partitions, found_here, strict=True):
            if partition is not None and records is not None:
                if partition.log.needs_preparation(records):
                    return True
                without_files += not partition.log.has_files
    return without_files > FIRST_RECORDS_AT_ONCE


def _keep_records(request: ProduceRequest) -> int:
    """Give the request records of its own, which outlive the frame. Returns: their bytes."""
    kept_bytes = 0
    for _, partitions in request.topics:
        for place, (index, records) in enumerate(partitions):
            if records is not None:
                kept_bytes += len(records)
                partitions[place] = (index, memoryview(bytearray(records)))
    return kept_bytes


def _answer(connection: Client, asked: RequestFields, request: ProduceRequest, results: TopicResults) -> Parts:
    """The response; without acks there is none, and an error is told by closing the connection, as Kafka tells it."""
    if request.acks == 0:
        for topic, partitions in results:
            for result in partitions:
                if result.error_code:
                    name = ErrorCode(result.error_code).name
                    connection.fail(
                        f"closing the connection of {connection.peer}: {name} for {topic}-{result.partition_index} "
                        f"and the producer asked for no answer"
                    )
                    return None
        return None
    return encode_failures(connection, asked, results)


class Waiting(NamedTuple):
    """A partition whose records were appended, but are not stored as its topic's durability asks."""

    stored: asyncio.Future[None]
    topic_place: int
    place: int
    """Where its result is."""
    partition: Partition
    leadership: int
    """The partition's, when the records were appended."""


def append_all(
    connection: Client, version: int, request: ProduceRequest, found: Found, verdicts: Verdicts
) -> tuple[TopicResults, list[Waiting]]:
    """Append to every partition. Returns: the result of each, and the waits for those that do not count as stored yet.

    ``found``: the partitions, as they are now. ``verdicts``: of the coordinator, by partition (``check_produced``).
    """
    context = connection.context
    results: TopicResults = []
    waiting: list[Waiting] = []
    now_ms = context.clock.now_ms()
    for (topic, partitions), found_here in zip(request.topics, found, strict=True):
        answered: list[PartitionResult] = []
        results.append((topic, answered))
        for (index, records), partition in zip(partitions, found_here, strict=True):
            try:
                if partition is None:
                    partition = require_partition(context, topic, index)
                if connection.held is not None:
                    check_held(connection, connection.held, topic, partition, records, now_ms)
                checked = check_produced(context, version, request, partition, records, verdicts.get((topic, index)))
                stored = append_one(context, request, partition, index, checked, answered, now_ms)
            except FirnError as error:
                note_refused(connection, request, topic, index, records, error)
                answered.append(failure(context, partition, index, error))
                continue
            if connection.held is not None:
                note_appended(connection, connection.held, topic, index, records)
            if stored is not None:
                waiting.append(
                    Waiting(
                        asyncio.ensure_future(stored),
                        len(results) - 1,
                        len(answered) - 1,
                        partition,
                        partition.leadership,
                    )
                )
    return results, waiting


def append_one(
    context: ProduceView,
    request: ProduceRequest,
    partition: Partition,
    index: int,
    records: memoryview,
    answered: list[PartitionResult],
    now_ms: int,
    *,
    prepared: bool = False,
) -> Awaitable[None] | None:
    """Append checked records to one partition and put the result into ``answered``.

    Returns: the wait until they count as stored; None if they do already.
    Raises: as ``append_as_leader``; nothing was appended and nothing answered.
    """
    log = partition.log
    result = log.append_as_leader(records, now_ms=now_ms, prepared=prepared)
    if not result.duplicate:
        context.metrics.bytes_in.value += len(records)
        context.metrics.records_in.value += result.last_offset_end - result.base_offset
    answered.append(success(log, index, result))
    if request.acks == 0:
        partition.request_stored(result.last_offset_end)  # consumers wait for it, if the producer does not
        return None
    return partition.wait_stored(result.last_offset_end, in_sync=request.acks == ALL_IN_SYNC)


def check_held(
    connection: Client,
    held: HeldSequences,
    topic: TopicRef,
    partition: Partition,
    records: memoryview | None,
    now_ms: int,
) -> None:
    """Raises: FirnError, if an earlier batch of the producer was refused on this connection and must come again first."""
    batch = sequenced(records)
    if batch is None:
        return
    entry = partition.log.producers.entries.get(batch.producer_id)
    error = held.held(topic, partition.index, batch, entry, now_ms)
    if held.is_empty:
        connection.held = None
    if error is not None:
        connection.context.metrics.refused_sequences("held").value += 1
        try:
            raise error
        finally:
            del error  # it holds this frame


def note_refused(
    connection: Client,
    request: ProduceRequest,
    topic: TopicRef,
    index: int,
    records: memoryview | None,
    error: FirnError,
) -> None:
    """A batch was not appended: later batches of its producer on this connection get its error until it comes again."""
    if request.acks == 0 or (batch := sequenced(records)) is None:
        return
    held = connection.held
    if held is None:
        if kafka_code(error) not in RETRIABLE:
            return
        held = connection.held = HeldSequences()
    held.refused(topic, index, batch, error, connection.context.clock.now_ms())
    if held.is_empty:
        connection.held = None


def note_appended(
    connection: Client, held: HeldSequences, topic: TopicRef, index: int, records: memoryview | None
) -> None:
    """A batch is in the log: it may be a missing one for which later batches were refused."""
    if (batch := sequenced(records)) is not None:
        held.appended(topic, index, batch)
        if held.is_empty:
            connection.held = None


class PendingProduce:
    """A Produce whose records are appended and whose answer waits until they are stored, or its time is up."""

    __slots__ = ("_asked", "_connection", "_left", "_results", "_slot", "_timer", "_waiting")

    def __init__(
        self,
        connection: Client,
        slot: Slot,
        asked: RequestFields,
        timeout_ms: int,
        results: TopicResults,
        waiting: list[Waiting],
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._asked = asked
        self._results = results
        self._waiting = waiting
        self._left = len(waiting)
        self._timer = connection.server.loop.call_later(max(timeout_ms, 0) / 1000, self._out_of_time)
        connection.on_close.add(self)
        for one in waiting:
            one.stored.add_done_callback(self._stored)

    def _stored(self, stored: asyncio.Future[None]) -> None:
        look_at_error(stored)
        self._left -= 1
        if self._left == 0 and not self._slot.done:
            self._finish()

    def _out_of_time(self) -> None:
        if not self._slot.done:
            self._finish()

    def _finish(self) -> None:
        self._timer.cancel()
        self._connection.on_close.discard(self)
        settle(self._connection.context, self._results, self._waiting)
        self._connection.complete(self._slot, encode_failures(self._connection, self._asked, self._results))

    def cancel(self) -> None:
        """The connection has ended. Appended records stay."""
        self._timer.cancel()


def settle(context: ProduceView, results: TopicResults, waiting: list[Waiting]) -> None:
    """Put the outcome of the waiting partitions into ``results``: stored, failed, or not known in time.

    Nothing is called stored once this broker has stopped to lead, though the disk may have it: the next leader may not.
    """
    for stored, topic_place, place, partition, leadership in waiting:
        answered = results[topic_place][1]
        index = answered[place].partition_index
        if partition.leadership != leadership:
            stored.cancel()
            error: FirnError = partition.lost_leadership()
        elif not stored.done() or stored.cancelled():
            error = RequestRejected(ErrorCode.REQUEST_TIMED_OUT, "The records are not stored yet.")
        else:
            raised = stored.exception()
            if raised is None:
                continue
            if not isinstance(raised, FirnError):
                raise raised
            error = raised
        answered[place] = failure(context, None, index, error)


def _names_many(request: ProduceRequest) -> bool:
    """Whether a request has so many partitions that it is served in portions."""
    topics = request.topics
    return len(topics) + sum([len(partitions) for _, partitions in topics]) > MANY_PARTITIONS


def _spawn_long(connection: Client, asked: RequestFields, request: ProduceRequest, client_id: str | None) -> None:
    """Serve a request of many partitions as a task. The connection waits, so that later requests do not overtake it."""
    slot = connection.open_slot(connection.server.produce_meter, stops_parsing=True)
    kept_bytes = _keep_records(request)
    connection.server.keep(kept_bytes)
    work = _serve_long(connection, slot, asked, request, client_id, kept_bytes)
    spawn_told(connection, request_of(connection, asked, PRODUCE, client_id), work)


def _pieces(request: ProduceRequest) -> Iterator[ProduceRequest]:
    """Requests of ``PARTITIONS_AT_ONCE`` topics and partitions, one more at most. A topic may go on in the next one."""
    topics: list[tuple[TopicRef, list[tuple[int, memoryview | None]]]] = []
    left = PARTITIONS_AT_ONCE
    for topic, partitions in request.topics:
        begin = 0
        while True:
            some = partitions[begin : begin + left]
            topics.append((topic, some))
            begin += len(some)
            left -= len(some) + 1
            if left <= 0:
                yield ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, topics, 0)
                topics, left = [], PARTITIONS_AT_ONCE
            if begin >= len(partitions):
                break
    if topics:
        yield ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, topics, 0)


async def _serve_long(
    connection: Client,
    slot: Slot,
    asked: RequestFields,
    request: ProduceRequest,
    client_id: str | None,
    kept_bytes: int,
) -> None:
    """Serve a request of many partitions as several short ones, one after the other (ADR 0039).

    The records are our own, ``kept_bytes`` in all. Rights, leadership and the coordinator's verdict are checked anew for each
    piece. The request goes on if its client leaves: without acks a client leaves when it has sent.
    """
    context, server = connection.context, connection.server
    results: TopicResults = []
    refused: TopicResults = []
    waiting: list[Waiting] = []
    portion = Portion()
    try:
        await portion.rest()  # decoding had a turn of its own
        if request.acks not in (-1, 0, 1):
            wrong = refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or -1.")
            connection.complete(slot, encode_failures(connection, asked, wrong))
            return
        sampled = context.sampler is not None and context.sampler.take(1)
        for piece in _pieces(request):
            denied: TopicResults = []
            if context.authorizer is not None:
                transacts = may_transact(context, connection.caller, piece)
                denied = take_out_denied(context, connection.caller, piece, client_id, asked.correlation_id, transacts)
                _add_results(refused, denied)
            if sampled and not denied:
                names = [name for topic, _ in piece.topics if (name := topic_name(context, topic)) is not None]
                tell_produced(context, connection.caller, client_id, asked.correlation_id, names)
            await _append_some(connection, asked, piece, admit(context, asked.version, piece), results, waiting)
            if portion.spent():
                await portion.rest()
    finally:
        server.unreserve(kept_bytes)
    await portion.rest()  # the response has a turn of its own
    _finish(connection, slot, asked, request, results + refused, waiting)


def _add_results(results: TopicResults, more: TopicResults) -> None:
    """Add results of a piece, whose first topic may be the last that was answered."""
    for topic, answered in more:
        _results_of(results, topic).extend(answered)


def _results_of(results: TopicResults, topic: TopicRef) -> list[PartitionResult]:
    """The list for the next results of a topic."""
    if not results or results[-1][0] != topic:
        results.append((topic, []))
    return results[-1][1]


async def _append_in_turns(
    connection: Client,
    slot: Slot,
    asked: RequestFields,
    request: ProduceRequest,
    admission: Verdicts | Awaitable[Verdicts],
    kept_bytes: int,
    refused: TopicResults,
) -> None:
    """Wait for the coordinator, prepare batches on the pool, append, answer. Others have their turns in between.

    The records are our own, ``kept_bytes`` in all.
    """
    results: TopicResults = []
    waiting: list[Waiting] = []
    try:
        await _append_some(connection, asked, request, admission, results, waiting)
    finally:
        connection.server.unreserve(kept_bytes)
    _finish(connection, slot, asked, request, results + refused, waiting)


def _finish(
    connection: Client,
    slot: Slot,
    asked: RequestFields,
    request: ProduceRequest,
    results: TopicResults,
    waiting: list[Waiting],
) -> None:
    """Answer when the appended records are stored."""
    if waiting and not connection.closed:
        PendingProduce(connection, slot, asked, request.timeout_ms, results, waiting)
    else:
        connection.complete(slot, _answer(connection, asked, request, results))


async def _append_some(
    connection: Client,
    asked: RequestFields,
    request: ProduceRequest,
    admission: Verdicts | Awaitable[Verdicts],
    results: TopicResults,
    waiting: list[Waiting],
) -> None:
    """Wait for the coordinator, prepare batches on the pool, append. Adds the results to ``results``, and the waits for storage to
    ``waiting``.

    Each partition is appended as soon as it is prepared, so that a request holds one decompressed batch at a time, not all.
    """
    context = connection.context
    without_files = 0
    verdicts: Verdicts = {}
    try:
        verdicts = await admission if isinstance(admission, Awaitable) else admission
        for topic, partitions in request.topics:
            answered = _results_of(results, topic)
            for index, records in partitions:
                partition: Partition | None = None
                verdict = verdicts.get((topic, index))
                if without_files >= FIRST_RECORDS_AT_ONCE:
                    without_files = 0
                    await asyncio.sleep(0)
                try:
                    partition = require_partition(context, topic, index)
                    if connection.held is not None:
                        check_held(connection, connection.held, topic, partition, records, context.clock.now_ms())
                    without_files += not partition.log.has_files
                    partition, stored = await append_prepared(
                        connection, asked.version, request, topic, partition, records, verdict, answered
                    )
                except FirnError as error:
                    note_refused(connection, request, topic, index, records, error)
                    answered.append(failure(context, partition, index, error))
                    continue
                if connection.held is not None:
                    note_appended(connection, connection.held, topic, index, records)
                if stored is not None:
                    future = asyncio.ensure_future(stored)
                    future.add_done_callback(look_at_error)
                    waiting.append(
                        Waiting(future, len(results) - 1, len(answered) - 1, partition, partition.leadership)
                    )
    finally:
        release(context, verdicts)


async def append_prepared(
    connection: Client,
    version: int,
    request: ProduceRequest,
    topic: TopicRef,
    partition: Partition,
    records: memoryview | None,
    verdict: FirnError | TransactionGuard | None,
    answered: list[PartitionResult],
    condition: Callable[[Partition, memoryview], None] | None = None,
) -> tuple[Partition, Awaitable[None] | None]:
    """Prepare a batch on the pool if its log needs that, append it, and put the result into ``answered``.

    ``condition``: raises a FirnError if the batch must not be appended. It is called in the turn of the append.

    Returns: the partition as it is now, and the wait as ``append_one``. Raises: FirnError; nothing was appended.
    """
    context, index, log = connection.context, partition.index, partition.log
    checked = check_produced(context, version, request, partition, records, verdict)
    config = None
    if log.needs_preparation(checked):
        config = log.config
        checked = memoryview(await connection.server.preparations.prepare(connection, log, checked))
        if config.checks_schemas and not log.has_batch(checked):
            await check_schemas(connection, partition.topic, config, checked)
        # The leader, the log or a reason to refuse can have changed meanwhile.
        partition = require_partition(context, topic, index)
        log = partition.log
        check_produced(context, version, request, partition, checked, verdict)
    if condition is not None:
        condition(partition, checked)
    now_ms, prepared = context.clock.now_ms(), config is log.config
    try:
        stored = append_one(context, request, partition, index, checked, answered, now_ms, prepared=prepared)
    except PreparationNeeded:  # SV9
        told = f"The settings of {partition.topic} have changed. Try again."
        raise RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, told) from None
    return partition, stored


# --- checks and lookups -------------------------------------------------------------------------------------------------


def check_produced(
    context: ProduceView,
    version: int,
    request: ProduceRequest,
    partition: Partition,
    records: memoryview | None,
    verdict: FirnError | TransactionGuard | None,
) -> memoryview:
    """Make all checks that need no look into the batch. The right to write was checked before.

    ``verdict``: the error of the transaction's coordinator, or the guard if another broker lets the transaction begin.
    Returns: the records.
    Raises: FirnError; it is a new object, so that no stored error keeps the frames that it passes.
    """
    check_writable(context, partition.topic)
    if isinstance(verdict, FirnError):
        raise copy_of(verdict)
    if records is None:
        raise RequestRejected(ErrorCode.INVALID_RECORD, "A partition without records.")
    check_request(version, records)
    check_admitted(context, version, request.transactional_id, partition.log, records, verdict)
    if request.acks == ALL_IN_SYNC:
        partition.check_in_sync()
    if context.refusal is not None and (context.refuses_transactions or writer_of(records) is None):
        raise copy_of(context.refusal)
    return records


def check_request(version: int, records: memoryview) -> None:
    """Check the limits of a Produce request for a partition, beyond the log's checks of any batch.

    Raises: RequestRejected.
    """
    size = len(records)
    if size < BATCH_OVERHEAD_BYTES:
        raise RequestRejected(
            ErrorCode.INVALID_RECORD if size == 0 else ErrorCode.CORRUPT_MESSAGE, "Not a record batch."
        )
    batch_size = BATCH_LENGTH.unpack_from(records, BATCH_LENGTH_POSITION)[0] + LENGTH_PREFIX_BYTES
    if batch_size < BATCH_OVERHEAD_BYTES:
        raise RequestRejected(ErrorCode.CORRUPT_MESSAGE, f"A batch says that it has {batch_size} bytes.")
    if batch_size < size:
        raise RequestRejected(ErrorCode.INVALID_RECORD, "A request carries one record batch for a partition.")
    attributes = records[ATTRIBUTES_LOW_BYTE]
    if attributes & CONTROL:
        raise RequestRejected(ErrorCode.INVALID_RECORD, "Clients do not write control records.")
    if version < ZSTD_FIRST_VERSION and attributes & CODEC_MASK == Codec.ZSTD:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Zstd needs Produce {ZSTD_FIRST_VERSION} or newer."
        )


def find_partitions(context: ProduceView, request: ProduceRequest) -> Found:
    """The partitions of a request in its order; None for each that this broker does not serve: ``require_partition`` says why."""
    found: Found = []
    for topic, partitions in request.topics:
        name = topic_name(context, topic)
        found.append([None if name is None else context.partitions.served(name, index) for index, _ in partitions])
    return found


def require_partition(context: ProduceView, topic: TopicRef, index: int) -> Partition:
    """Raises: as ``PartitionTable.require``, and RequestRejected UNKNOWN_TOPIC_ID."""
    name = topic_name(context, topic)
    if name is None:
        raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic {topic}.")
    return context.partitions.require_served(name, index)


# --- results ------------------------------------------------------------------------------------------------------------


def success(log: PartitionLog, index: int, result: AppendResult) -> PartitionResult:
    return PartitionResult(index, 0, result.base_offset, result.log_append_time_ms, log.log_start_offset)


def failure(context: ProduceView, partition: Partition | None, index: int, error: FirnError) -> PartitionResult:
    """The result of a partition without an append, or whose append may not be stored."""
    tell_failed(context, partition, error)
    code = kafka_code(error)
    leader = hint(context, None, error)
    start = -1 if partition is None else partition.log.log_start_offset
    named = error.record_errors if isinstance(error, RecordsRejected) else ()
    return PartitionResult(index, code, -1, -1, start, named, str(error), leader)


def tell_failed(context: ProduceView, partition: Partition | None, error: FirnError) -> None:
    """Count a batch that is not appended, or that may not be stored, and tell the operator of a fault."""
    context.metrics.produce_errors.value += 1
    if partition is not None and isinstance(error, SequenceRefused):
        tell_refused(context, partition, error)
    if partition is not None and context.refusal is None:
        context.faults.met_error(WRITING, str(partition.log.topic_partition), error)


def refuse_all(request: ProduceRequest, code: ErrorCode, sentence: str) -> TopicResults:
    return [
        (topic, [PartitionResult(index, code, error_message=sentence) for index, _ in partitions])
        for topic, partitions in request.topics
    ]


def encode_failures(connection: Client, asked: RequestFields, results: TopicResults) -> bytes:
    """A response, with the address of every leader that it points to (KIP-951)."""
    leaders = {
        result.current_leader[0]
        for _, partitions in results
        for result in partitions
        if result.current_leader is not None
    }
    endpoints = node_endpoints(connection.context, connection.caller, leaders)
    return encode_produce_response(*asked[:2], results, asked.throttle_time_ms, endpoints)
