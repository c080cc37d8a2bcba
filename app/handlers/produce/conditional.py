"""FirnAppend (key 20017): appends one batch if its partition has no data behind the offset up to which the caller has read it.

The caller names an offset and the leader epoch of the last batch below it. Both together stand for all batches below the offset: a
log that has this epoch up to this offset has the same batches. So a partition that lost its end and was written again, or another
leader, does not pass for the one that was read (ADR 0043, EO18). Markers of transactions are no data.

The check is made in the turn of the append, behind the look for a repeat: a batch of an idempotent producer that is in the log
already gets its offset again, though it is itself the data behind the caller's offset. A refusal waits until it counts for later
leaders, too.

Tests: ``tests/broker/test_conditional_appends.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import CorruptionError, ErrorCode, FirnError, ProtocolError, RequestRejected, kafka_code
from app.core.limits import KIB
from app.core.turns import Portion
from app.core.units import NO_LEADER_EPOCH, LeaderEpoch, Offset
from app.handlers.base.authorising import may, refuse
from app.handlers.base.partitions import topic_name
from app.handlers.clients.admission import ADDS_PARTITIONS, admit, release
from app.handlers.clients.private import answer_private, read_private
from app.handlers.clients.serving import spawn_told
from app.handlers.produce.produce import append_prepared, may_transact, require_partition, tell_failed, tell_produced
from app.metadata.image.records import APPEND_LEVEL, upgrade_needed
from app.records.batch import iter_headers, parse_header
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.private import AppendRequest, AppendResponse
from app.wire.produce import PartitionResult, ProduceRequest

if TYPE_CHECKING:
    from app.handlers.base.request import Request
    from app.handlers.clients.client import Client
    from app.hot.log import PartitionLog
    from app.hot.producers import TransactionGuard
    from app.replication.partition import Partition

APPEND: Final = int(ApiKey.FIRN_APPEND)
SCAN_BYTES: Final = 64 * KIB
"""Of one read of the batches behind the caller's offset."""
TRIES_MAX: Final = 10
"""Looks behind the caller's offset. Each further one is due to a marker or a leadership that came since the look before."""
WAIT_MS_MAX: Final = 60_000
ALL_IN_SYNC: Final = -1
COPIES: Final = 2
"""Of the records, while their append waits: those of the message, and those that get offsets."""


class EndMoved(FirnError):
    """The partition has data behind the caller's offset, or another history below it. Nothing was appended."""


class _LookAgain(FirnError):
    """A marker or a leadership may have come since the look behind the caller's offset. Nothing was appended."""


def serve_append(connection: Client, version: int, correlation_id: int, frame: memoryview) -> None:
    """Serve a FirnAppend through a slot. The connection waits, so that its order is kept.

    Raises: ProtocolError for a frame that is no FirnAppend of a served version.
    """
    request, asked = read_private(connection, APPEND, version, correlation_id, frame, AppendRequest)
    slot = connection.open_slot(connection.server.metrics.meter(APPEND), stops_parsing=True)
    kept_bytes = COPIES * len(asked.records)
    connection.server.keep(kept_bytes)
    answer = partial(_response, connection, request, asked)
    spawn_told(connection, request, answer_private(connection, slot, request, kept_bytes, answer))


async def _response(connection: Client, request: Request, asked: AppendRequest) -> AppendResponse:
    """Raises: ProtocolError."""
    try:
        return await _answer(connection, request, asked)
    except ProtocolError:
        raise
    except FirnError as error:
        connection.server.metrics.meter(APPEND).errors.value += 1
        return AppendResponse(int(kafka_code(error)), str(error))


async def _answer(connection: Client, request: Request, asked: AppendRequest) -> AppendResponse:
    """Raises: FirnError."""
    context = connection.context
    name = topic_name(context, asked.topic_id)
    operation = Operation.WRITE if asked.records else Operation.DESCRIBE
    if name is not None and not may(context, request.caller, operation, ResourceType.TOPIC, name):
        raise refuse(request, operation, ResourceType.TOPIC, name)
    if context.image.level < APPEND_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION, upgrade_needed("Conditional appends need", APPEND_LEVEL, context.image.level)
        )
    partition = require_partition(context, asked.topic_id, asked.partition)
    if not asked.records:
        end, epoch = _known_end(partition)
        if end < 0:
            raise RequestRejected(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"The end of {partition.topic}-{partition.index} is not known yet. Try again in a moment.",
            )
        return AppendResponse(end=end, epoch=epoch)
    if asked.end < 0:
        raise ProtocolError(f"An append names the end {asked.end}.")
    try:
        return await _append(connection, request, asked, partition.topic)
    except EndMoved as error:
        return await _refused(require_partition(context, asked.topic_id, asked.partition), str(error), asked.timeout_ms)


async def _refused(partition: Partition, why: str, timeout_ms: int) -> AppendResponse:
    """The response that nothing was appended. Called in the turn of the check.

    An earlier try may have left its batch in the log of another replica, which would keep it if it led next. So the response waits
    until this log is stored up to its end: each later leader has this log, and not that batch.
    Raises: RequestRejected REQUEST_TIMED_OUT, StorageUnavailable, NotLeader.
    """
    stored = partition.wait_stored_as_leader(partition.log.log_end_offset)
    if stored is not None:
        await _stored(stored, timeout_ms)
    end, epoch = _known_end(partition)
    return AppendResponse(error=why, moved=True, end=end, epoch=epoch)


async def _append(connection: Client, request: Request, asked: AppendRequest, topic: str) -> AppendResponse:
    """Append, and wait until the batch is stored. Raises: EndMoved, FirnError."""
    records = memoryview(bytearray(asked.records))
    transactional_id = asked.transactional_id or None
    produced = ProduceRequest(
        transactional_id, ALL_IN_SYNC, asked.timeout_ms, [(asked.topic_id, [(asked.partition, records)])]
    )
    context = connection.context
    if transactional_id is not None and not may_transact(context, request.caller, produced):
        raise refuse(request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    sampler = context.sampler
    if sampler is not None and sampler.take(1):
        tell_produced(context, request.caller, request.client_id, request.correlation_id, [topic])
    if context.metrics.zones is not None:
        context.metrics.zones.produced(request.client_id, len(records))
    admitted = admit(context, ADDS_PARTITIONS, produced)
    verdicts = await admitted if isinstance(admitted, Awaitable) else admitted
    answered: list[PartitionResult] = []
    try:
        verdict = verdicts.get((asked.topic_id, asked.partition))
        partition, stored = await _append_when_looked(connection, asked, produced, records, verdict, answered)
    finally:
        release(context, verdicts)
    leadership, base_offset = partition.leadership, answered[0].base_offset
    end = Offset(base_offset + parse_header(records).last_offset_delta + 1)
    epoch = epoch_below(partition.log, end)
    if stored is not None:
        try:
            await _stored(stored, asked.timeout_ms)
        except FirnError as error:
            tell_failed(context, partition, error)
            raise
    if partition.leadership != leadership:
        raise partition.lost_leadership()
    return AppendResponse(end=end, epoch=epoch, base_offset=base_offset, log_append_ms=answered[0].log_append_time_ms)


async def _append_when_looked(
    connection: Client,
    asked: AppendRequest,
    produced: ProduceRequest,
    records: memoryview,
    verdict: FirnError | TransactionGuard | None,
    answered: list[PartitionResult],
) -> tuple[Partition, Awaitable[None] | None]:
    """Look behind the caller's offset, and append in a turn in which nothing came since. Raises: EndMoved, FirnError."""
    topic, index = asked.topic_id, asked.partition
    for _ in range(TRIES_MAX):
        seen = require_partition(connection.context, topic, index)
        leadership = seen.leadership
        condition = _Condition(asked, await end_without_data(seen.log, asked.end), seen, leadership)
        partition = require_partition(connection.context, topic, index)
        try:
            return await append_prepared(
                connection, ADDS_PARTITIONS, produced, topic, partition, records, verdict, answered, condition.check
            )
        except _LookAgain:
            continue
        except EndMoved:
            raise
        except FirnError as error:
            tell_failed(connection.context, partition, error)
            if isinstance(error, ProtocolError):  # of the batch: it gets the code that a Produce request would get
                raise RequestRejected(kafka_code(error), str(error)) from None
            raise
    raise RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, f"Partition {index} changes all the time. Try again.")


class _Condition(NamedTuple):
    """The condition of one append."""

    asked: AppendRequest
    looked_to: Offset | None
    """Between the caller's offset and this one, there is no data; None if there is."""
    seen: Partition
    """The partition at the look."""
    leadership: int
    """Of ``seen`` at the look. A later one may have lost the batches that were looked at, and have others at their offsets."""

    def check(self, partition: Partition, records: memoryview) -> None:
        """Called in the turn of the append. Raises: EndMoved, _LookAgain."""
        log, asked = partition.log, self.asked
        if log.has_batch(records):
            return  # a repeat, whose first try met the condition
        where = f"{partition.topic}-{partition.index}"
        if partition is not self.seen or partition.leadership != self.leadership:
            raise _LookAgain(f"{where} has another leadership.")
        if epoch_below(log, Offset(asked.end)) != asked.epoch:
            raise EndMoved(f"The end of {where} was lost since it was read. Read it again.")
        if self.looked_to is None:
            raise EndMoved(f"{where} has other records behind offset {asked.end}. Read them first.")
        if self.looked_to != log.log_end_offset:
            raise _LookAgain(f"{where} has grown.")


async def _stored(stored: Awaitable[None], timeout_ms: int) -> None:
    """Wait until a batch is stored. Raises: RequestRejected REQUEST_TIMED_OUT, StorageUnavailable, NotLeader."""
    waiting = asyncio.ensure_future(stored)
    try:
        done, _ = await asyncio.wait({waiting}, timeout=max(0, min(timeout_ms, WAIT_MS_MAX)) / 1000)
    finally:
        waiting.cancel()
    if not done:
        raise RequestRejected(ErrorCode.REQUEST_TIMED_OUT, "The records are not stored yet.")
    waiting.result()


# --- the log ------------------------------------------------------------------------------------------------------------


def _known_end(partition: Partition) -> tuple[int, int]:
    """The end of the committed records and the epoch below it; (-1, -1) while a new leader does not know it."""
    if not partition.end_is_known:
        return -1, -1
    end = partition.log.last_stable_offset
    return end, epoch_below(partition.log, end)


def epoch_below(log: PartitionLog, offset: Offset) -> LeaderEpoch:
    """The leader epoch of the last batch below an offset at which a log has a boundary of batches; -1 if there is none.

    If that batch has left this disk, it is the epoch that the log has from the offset on: with it, too, the offset stands for all
    batches below.
    """
    if offset == 0:
        return NO_LEADER_EPOCH
    epoch = log.epoch_of(Offset(offset - 1))
    return epoch if epoch >= 0 else log.epoch_of(offset)


async def end_without_data(log: PartitionLog, start: int) -> Offset | None:
    """The end of a log that has nothing but markers from ``start`` on; None if it has data there, or ends or begins elsewhere.

    Raises: StorageUnavailable, CorruptionError.
    """
    offset, portion = Offset(start), Portion()
    if not log.local_log_start_offset <= offset <= log.log_end_offset:
        return None
    while offset < log.log_end_offset:
        try:
            read = await log.read_when_ready(offset, SCAN_BYTES, end_offset=log.log_end_offset)
        except RequestRejected:
            return None  # the start of the log has moved behind it
        found = read.try_read_now()
        data = memoryview(await read.read_bytes() if found is None else found)
        for _, header in iter_headers(data):
            if not header.is_control:
                return None
        if read.end_offset <= offset:
            raise CorruptionError(f"{log.topic_partition} has nothing to read at offset {offset}, below its end.")
        offset = Offset(read.end_offset)
        await portion.rest_if_spent()
    return offset
