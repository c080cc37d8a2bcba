"""FirnKeyed (key 20019): takes all steps of one try of a keyed request, where this broker has all that they need (ADR 0043, EO19).

The steps are those of an HTTP process, in the same order: look the key up, let all partitions join the transaction, append the
records and the result, commit. It answers how far it came, and does not end what it could not commit: that is for its caller.

This broker must lead the result's partition and those of all records, and coordinate the transaction. Elsewhere it looks the key up
and begins nothing.

Tests: ``tests/broker/test_keyed_tries.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from app.coordinator.partition import ProducerIdAndEpoch
from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, kafka_code
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.exactly_once.records import TOPIC, Part, RequestKey, Result
from app.exactly_once.shard import KeyTaken
from app.exactly_once.transactional_ids import may_use
from app.handlers.clients.admission import ADDS_PARTITIONS, SETTLE_WAIT_S, writer_of
from app.handlers.clients.keyed import addressed, check_new, key_of, look_up, require_writes, result_of
from app.handlers.clients.private import answer_private, read_private
from app.handlers.clients.serving import spawn_told
from app.handlers.produce.produce import append_one, check_produced, require_partition, tell_failed, tell_produced
from app.hot.log import PreparationNeeded
from app.metadata.image.records import APPEND_LEVEL, upgrade_needed
from app.records.batch import parse_header
from app.transactions.state import VERSION_2, ProducerIdentity, Transaction
from app.wire.apikeys import ApiKey
from app.wire.private import (
    KEYED_BYTES_MAX,
    KEYED_RECORDS_MAX,
    KeyedRequest,
    KeyedResponse,
    RequestsResponse,
)
from app.wire.produce import PartitionResult, ProduceRequest

if TYPE_CHECKING:
    from app.handlers.base.request import Request
    from app.handlers.base.views import KeyedView
    from app.handlers.clients.client import Client
    from app.replication.partition import Partition

KEYED: Final = int(ApiKey.FIRN_KEYED)
ALL_IN_SYNC: Final = -1
STORED_WITHIN_S: Final = 10.0
FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
"""The identity is not that of the id's next transaction."""
COPIES: Final = 3
"""Of the records, while they are appended: those of the frame, of the message, and those that get offsets."""


class StepRefused(FirnError):
    """The transaction has begun, and the try cannot commit it."""

    def __init__(self, found: str, error: FirnError, parts: Sequence[Part] = ()) -> None:
        super().__init__(str(error))
        self.found = found
        self.error = error
        self.parts = parts


class Place(NamedTuple):
    """A partition of the records."""

    partition: Partition
    leadership: int
    records: memoryview


def serve_keyed(connection: Client, version: int, correlation_id: int, frame: memoryview) -> None:
    """Serve a FirnKeyed through a slot, beside other requests of the connection.

    Raises: ProtocolError for a frame that is no FirnKeyed of a served version.
    """
    if len(frame) > KEYED_BYTES_MAX:
        raise ProtocolError(f"A FirnKeyed has {len(frame)} bytes, of {KEYED_BYTES_MAX} at most.")
    request, asked = read_private(connection, KEYED, version, correlation_id, frame, KeyedRequest)
    slot = connection.open_slot(connection.server.metrics.meter(KEYED), stops_parsing=False)
    kept_bytes = COPIES * len(frame)
    connection.server.keep(kept_bytes)
    answer = partial(_response, connection, request, asked)
    spawn_told(connection, request, answer_private(connection, slot, request, kept_bytes, answer))


async def _response(connection: Client, request: Request, asked: KeyedRequest) -> RequestsResponse:
    """Raises: ProtocolError."""
    context = connection.context
    response: RequestsResponse
    try:
        response = await _answer(context, request, asked)
    except ProtocolError:
        raise
    except StepRefused as error:
        connection.server.metrics.meter(KEYED).errors.value += 1
        response = KeyedResponse(
            int(kafka_code(error.error)), str(error.error), found=error.found, offsets=_offsets(error.parts)
        )
    except FirnError as error:
        connection.server.metrics.meter(KEYED).errors.value += 1
        response = KeyedResponse(int(kafka_code(error)), str(error))
    return addressed(context, request, response)


async def _answer(context: KeyedView, request: Request, asked: KeyedRequest) -> RequestsResponse:
    """Raises: StepRefused once the transaction has begun; before that, FirnError."""
    key = key_of(request, asked.key, asked.try_id)
    result = result_of(key, asked.try_id, asked.result, KEYED_RECORDS_MAX)
    targets = [TopicPartition(part.topic, PartitionIndex(part.partition)) for part in result.parts]
    if context.image.level < APPEND_LEVEL:
        await require_writes(context, request, {topic for topic, _ in targets})
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION, upgrade_needed("FirnKeyed needs", APPEND_LEVEL, context.image.level)
        )
    if len(targets) != len(asked.batches) or len({*targets}) != len(targets):
        raise ProtocolError("A FirnKeyed has one batch for each partition of its result.")
    if context.authorizer is not None and not may_use(key.principal, asked.transactional_id):
        raise RequestRejected(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"{key.principal} is not allowed to use the transactional id '{asked.transactional_id[:64]}' for keyed requests.",
        )
    identity = ProducerIdentity(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch))
    batches = [memoryview(bytearray(records)) for records in asked.batches]
    for part, records in zip(result.parts, batches, strict=True):
        if writer_of(records) != identity or parse_header(records).last_offset_delta + 1 != part.records:
            raise ProtocolError("A batch of a FirnKeyed is of its producer, and has the records that the result names.")
    found = await _looked_up(context, request, key, asked, targets)
    if (
        found.found != "unknown"
        or found.timeout_ms != asked.timeout_ms
        or not is_here(context, asked, [*targets, _results_of(key)], batches)
        or not context.requests.is_new(key, asked.try_id)  # else another key has its hash, and records must be read
    ):
        return found
    refused = await _joined(context, asked, key, identity, [*targets, _results_of(key)])
    if refused is not None:
        if refused.code in FENCED:  # the try may have come late: nothing uses the key then
            await context.requests.release(key, asked.try_id)
        return found  # nothing is written, and the caller goes on with the same transaction
    return await _written(context, request, asked, key, identity, result, batches)


async def _looked_up(
    context: KeyedView, request: Request, key: RequestKey, asked: KeyedRequest, targets: list[TopicPartition]
) -> RequestsResponse:
    """As ``look_up``, but an "unknown" is answered before the log is stored up to its end: the append of the result waits for that.

    Raises: FirnError.
    """
    requests, size_bytes = context.requests, len(asked.result) + len(asked.key)
    try:
        is_new = context.image.topic(TOPIC) is not None and requests.is_new(key, asked.try_id)
    except FirnError:
        is_new = False  # the look-up waits a little, or says why
    if is_new:
        await requests.ensure_topic()
        timeout_ms = await check_new(context, request, key, targets)
        if requests.reserve_new(key, asked.try_id, size_bytes):
            return RequestsResponse(found="unknown", timeout_ms=timeout_ms)
    return await look_up(context, request, key, asked.try_id, targets, size_bytes)


def _results_of(key: RequestKey) -> TopicPartition:
    return TopicPartition(TOPIC, PartitionIndex(key.partition))


def is_here(context: KeyedView, asked: KeyedRequest, targets: list[TopicPartition], batches: list[memoryview]) -> bool:
    """Whether this broker can take all steps: it leads the partitions with enough replicas in sync, coordinates the id, and need
    not look into the batches.

    ``targets``: the partition of each batch, and that of the result.
    """
    others = context.transactions.others
    if others is not None and others.coordinator_of(asked.transactional_id) is not None:
        return False
    for target, records in zip(targets, [*batches, None], strict=True):
        partition = context.partitions.served(*target)
        if partition is None or not partition.enough_in_sync:
            return False
        if records is not None and partition.log.needs_preparation(records):
            return False
    return True


async def _joined(
    context: KeyedView,
    asked: KeyedRequest,
    key: RequestKey,
    identity: ProducerIdentity,
    targets: list[TopicPartition],
) -> RequestRejected | None:
    """Let all partitions join the transaction in one step. Returns: why it is not known that they have."""
    transactions = context.transactions
    await transactions.wait_settled(asked.transactional_id, SETTLE_WAIT_S)
    try:
        context.requests.check_producer(key, asked.try_id, identity.producer_id)
        added = transactions.add_partitions(asked.transactional_id, identity, targets, VERSION_2)
        if not isinstance(added, Transaction):
            await added
    except RequestRejected as error:
        return error
    return None


async def _written(
    context: KeyedView,
    request: Request,
    asked: KeyedRequest,
    key: RequestKey,
    identity: ProducerIdentity,
    result: Result,
    batches: list[memoryview],
) -> KeyedResponse:
    """Append the records and the result, and commit. Raises: StepRefused."""
    transactions = context.transactions
    # No await from here to the append of the result: the coordinator's yes holds for all of these batches. The key was new, so a
    # result that has its hash by now is taken for one of the key.
    placed, waiting, parts = append_records(context, request, asked, result, batches)
    target = _results_of(key)
    try:
        log = context.partitions.led_log(*target)
        entry = None if log is None else log.producers.entries.get(identity.producer_id)
        seen_epoch = -1 if entry is None else entry.coordinator_epoch
        transactions.check_partition(asked.transactional_id, identity, target, seen_epoch)
        accepted = context.requests.accept(key, result._replace(parts=parts), ProducerIdAndEpoch(*identity), set())
    except KeyTaken as error:
        raise StepRefused("taken", error) from None
    except FirnError as error:
        raise StepRefused("failed", error) from None
    try:
        await accepted
        await _stored(context, placed, waiting)
    except FirnError as error:
        raise StepRefused("failed", error) from None
    try:
        after = await transactions.end(asked.transactional_id, identity, commit=True, client_version=VERSION_2)
    except FirnError as error:
        raise StepRefused("accepted", error, parts) from None
    return KeyedResponse(
        found="committed", offsets=_offsets(parts), producer_id=after.producer_id, producer_epoch=after.epoch
    )


def _offsets(parts: Sequence[Part]) -> list[tuple[int, int]]:
    return [(part.base_offset, part.log_append_ms) for part in parts]


def append_records(
    context: KeyedView, request: Request, asked: KeyedRequest, result: Result, batches: list[memoryview]
) -> tuple[list[Place], list[Awaitable[None]], tuple[Part, ...]]:
    """Append a batch to each partition. Returns: where they are, the waits until they are stored, and the parts with offsets.

    Raises: StepRefused; then some batches may be appended.
    """
    placed: list[Place] = []
    waiting: list[Awaitable[None]] = []
    parts: list[Part] = []
    sampler = context.sampler
    if sampler is not None and sampler.take(1):
        topics = dict.fromkeys(part.topic for part in result.parts)
        tell_produced(context, request.caller, request.client_id, request.correlation_id, topics)
    now_ms = context.clock.now_ms()
    for part, records in zip(result.parts, batches, strict=True):
        produced = ProduceRequest(
            asked.transactional_id, ALL_IN_SYNC, asked.timeout_ms, [(part.topic, [(part.partition, records)])]
        )
        answered: list[PartitionResult] = []
        partition: Partition | None = None
        try:
            partition = require_partition(context, part.topic, part.partition)
            checked = check_produced(context, ADDS_PARTITIONS, produced, partition, records, None)
            if partition.log.has_batch(checked):
                raise RequestRejected(
                    ErrorCode.INVALID_TXN_STATE, "The transaction has written to the partition before."
                )
            stored = append_one(context, produced, partition, part.partition, checked, answered, now_ms)
        except PreparationNeeded:  # SV9
            told = f"The settings of {part.topic} have changed. Try again."
            raise StepRefused("failed", RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, told)) from None
        except FirnError as error:
            if partition is not None:
                tell_failed(context, partition, error)
            raise StepRefused("failed", error) from None
        if context.metrics.zones is not None:
            context.metrics.zones.produced(request.client_id, len(records))
        placed.append(Place(partition, partition.leadership, records))
        if stored is not None:
            waiting.append(stored)
        parts.append(part._replace(base_offset=answered[0].base_offset, log_append_ms=answered[0].log_append_time_ms))
    return placed, waiting, tuple(parts)


async def _stored(context: KeyedView, placed: list[Place], waiting: list[Awaitable[None]]) -> None:
    """Wait until the records are stored, and check that this broker has led their partitions all the while. Raises: FirnError."""
    if waiting:
        try:
            async with asyncio.timeout(STORED_WITHIN_S):
                for stored in waiting:
                    await stored
        except TimeoutError:
            raise RequestRejected(ErrorCode.REQUEST_TIMED_OUT, "The records are not stored yet.") from None
        except FirnError as error:
            for one in placed:
                tell_failed(context, one.partition, error)
            raise
    for one in placed:
        if one.partition.leadership != one.leadership:
            raise one.partition.lost_leadership()
