"""Decides which transactional batches may be appended, so that a marker will end every one that is written (KIP-890).

A batch may continue a transaction in its partition. It may begin one there only if the coordinator knows that the transaction
writes to the partition. Clients of the first protocol have told the coordinator before. For clients of the second (Produce 12 or
newer) this broker tells it now, which may have to wait.

Another broker may be the coordinator. Then it is asked before the request is served, and a guard of the partition's log sees to it
that its answer still holds when the batch is appended (ADR 0026, XV).

Tests: ``tests/transactions/test_model.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from app.core.errors import ErrorCode, FirnError, RequestRejected, SequenceRefused
from app.core.limits import BATCH_OVERHEAD_BYTES
from app.core.units import PartitionIndex, TopicPartition
from app.handlers.base.partitions import topic_name
from app.hot.producers import TransactionGuard
from app.records.batch import ATTRIBUTES_LOW_BYTE, PRODUCER_POSITION, SEQUENCE_POSITION, TRANSACTIONAL
from app.transactions.coordinator import check_coordinator_epoch
from app.transactions.link import AddAsked
from app.transactions.state import VERSION_2, ProducerIdentity, Transaction
from app.wire.produce import ProduceRequest, TopicRef

if TYPE_CHECKING:
    from app.handlers.base.views import AdmissionView, ProduceView
    from app.hot.log import PartitionLog
    from app.transactions.elsewhere import OtherBrokers

ADDS_PARTITIONS: Final = 12
"""First version of Produce whose clients leave it to the broker to add partitions."""
KNOWS_ABORTABLE: Final = 11
"""First version of Produce whose clients know TRANSACTION_ABORTABLE."""
SETTLE_WAIT_S: Final = 0.1
"""How long the first batch of a transaction waits for the markers of the one before, as long as Kafka's brokers try again."""

ASK_AGAIN_S: Final = 0.02
ASKED_MAX: Final = 5
"""How often a coordinator on another broker is asked for one request, and the pause while it writes markers, as in Kafka."""

PRODUCER: Final = Struct(">qh")
SEQUENCE: Final = Struct(">i")

ASK_AGAIN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Verdicts: TypeAlias = Mapping[tuple[TopicRef, int], FirnError | TransactionGuard]
"""By partition of a request: the error if its batch is refused, or the guard if another broker lets a transaction begin there."""


def continues(log: PartitionLog, identity: tuple[int, int]) -> bool:
    """Whether the producer has a transaction open in the partition, so that a further batch belongs to it.

    ``identity`` is a ``ProducerIdentity``, or a plain tuple of the same where a batch is served every few microseconds.
    """
    producer_id, epoch = identity
    entry = log.producers.entries.get(producer_id)
    return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch


def writer_of(records: memoryview) -> ProducerIdentity | None:
    """The producer of a transactional batch; None if the batch is of another kind, or too short to be one."""
    if len(records) < BATCH_OVERHEAD_BYTES or not records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL:
        return None
    return ProducerIdentity._make(PRODUCER.unpack_from(records, PRODUCER_POSITION))


def admit(context: ProduceView, version: int, request: ProduceRequest) -> Verdicts | Awaitable[Verdicts]:
    """Add the partitions in which a transaction begins by this request. Returns the partitions that the coordinator refuses.

    If another broker is the coordinator: ask it, also about partitions that the client has added. Give the verdicts to ``release``
    when the batches are appended.
    """
    transactional_id = request.transactional_id
    if transactional_id is None:
        return {}
    others = context.transactions.others
    elsewhere = others is not None and others.coordinator_of(transactional_id) is not None
    if version < ADDS_PARTITIONS and not (elsewhere and _verifies(context)):
        return {}
    beginning: dict[TopicPartition, tuple[TopicRef, int]] = {}
    identities: set[ProducerIdentity] = set()
    for topic, partitions in request.topics:
        name = topic_name(context, topic)
        for index, records in partitions:
            log = None if name is None else context.partitions.led_log(name, index)
            writer = None if records is None else writer_of(records)
            if name is not None and log is not None and writer is not None and not continues(log, writer):
                beginning[TopicPartition(name, PartitionIndex(index))] = (topic, index)
                identities.add(writer)
    if not beginning:
        return {}
    if len(identities) != 1:
        error = RequestRejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "The batches of a request are of one producer.")
        return dict.fromkeys(beginning.values(), error)
    (identity,) = identities
    if others is not None and elsewhere:
        return _ask(context, others, version, transactional_id, identity, beginning)
    try:
        added = context.transactions.add_partitions(transactional_id, identity, tuple(beginning), VERSION_2)
    except RequestRejected as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return dict.fromkeys(beginning.values(), told(version, error))
        return _add_when_settled(context, version, transactional_id, identity, beginning)
    return {} if isinstance(added, Transaction) else _when_stored(version, added, beginning)


def _verifies(context: ProduceView) -> bool:
    return context.effective.transaction_partition_verification_enable or context.refusal is not None


async def _ask(
    context: ProduceView,
    others: OtherBrokers,
    version: int,
    transactional_id: str,
    identity: ProducerIdentity,
    beginning: Mapping[TopicPartition, tuple[TopicRef, int]],
) -> Verdicts:
    """Ask a coordinator on another broker."""
    logs = {target: log for target in beginning if (log := context.partitions.led_log(*target)) is not None}
    try:
        guards = await ask_elsewhere(
            others, transactional_id, identity, logs.values(), verify_only=version < ADDS_PARTITIONS
        )
    except RequestRejected as error:
        return dict.fromkeys(beginning.values(), told(version, error))
    return {beginning[target]: guard for target, guard in guards.items()}


async def ask_elsewhere(
    others: OtherBrokers,
    transactional_id: str,
    identity: ProducerIdentity,
    logs: Collection[PartitionLog],
    *,
    verify_only: bool,
) -> dict[TopicPartition, TransactionGuard]:
    """Ask the coordinator of an id on another broker whether its transaction may begin in partitions (XV1).

    It is asked again while it writes the markers of the transaction before, and if one of them came after the question: the answer
    may be older than that (XV2). Returns: guards, of which ``check_guard`` says later whether the answer still holds, and which are
    to be released. Raises: RequestRejected with the refusal.
    """
    topic_ids = {log.topic_partition: log.topic_id for log in logs}
    asked = AddAsked(transactional_id, identity, topic_ids, verify_only)
    tries_left = ASKED_MAX
    while True:
        tries_left -= 1
        guards = {log.topic_partition: log.producers.guard(*identity) for log in logs}  # before the question
        agreed = False
        try:
            answer = await others.add(asked)
            for log in logs:
                entry = log.producers.entries.get(identity.producer_id)
                if entry is not None and answer.coordinator_epoch >= 0:
                    check_coordinator_epoch(answer.coordinator_epoch, entry.coordinator_epoch)
            agreed = not any(guard.spent for guard in guards.values())
            if agreed or not tries_left:
                agreed = True  # to be checked again anyway
                return guards
        except RequestRejected as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not tries_left:
                raise
            await asyncio.sleep(ASK_AGAIN_S)
        finally:
            if not agreed:
                for log in logs:
                    log.producers.release(guards[log.topic_partition])


def check_guard(log: PartitionLog, identity: ProducerIdentity, guard: TransactionGuard) -> None:
    """Whether a transaction may still begin as its coordinator said. Raises: RequestRejected; it must be asked again."""
    if (guard.producer_id, guard.epoch) != identity or not log.producers.holds(guard):
        raise RequestRejected(
            ErrorCode.NOT_COORDINATOR, f"The coordinator must be asked about {log.topic_partition} again."
        )


async def admit_record(
    context: AdmissionView, transactional_id: str, identity: ProducerIdentity, target: TopicPartition, *, adds: bool
) -> None:
    """Add a partition of an internal topic that this broker leads to a transaction; without ``adds`` only verify that its client
    has added it. When this returns, records may be written there at once, without an await in between (XV5).

    Raises: RequestRejected if they may not, with INVALID_PRODUCER_EPOCH for a fenced producer.
    """
    transactions = context.transactions
    log = context.partitions.led_log(*target)
    entry = None if log is None else log.producers.entries.get(identity.producer_id)
    others = transactions.others
    verifies = context.effective.transaction_partition_verification_enable
    try:
        if others is not None and log is not None and others.coordinator_of(transactional_id) is not None:
            if not continues(log, identity) and (adds or verifies):
                await _ask_about(others, transactional_id, identity, log, adds=adds)
            return
        if adds:
            await transactions.wait_settled(transactional_id, SETTLE_WAIT_S)
            added = transactions.add_partitions(transactional_id, identity, [target], VERSION_2)
            if not isinstance(added, Transaction):
                await added
        if adds or verifies:
            seen_epoch = -1 if entry is None else entry.coordinator_epoch
            transactions.check_partition(transactional_id, identity, target, seen_epoch)
    except RequestRejected as error:
        if error.code is ErrorCode.PRODUCER_FENCED:
            raise RequestRejected(ErrorCode.INVALID_PRODUCER_EPOCH, str(error)) from error
        raise


async def _ask_about(
    others: OtherBrokers, transactional_id: str, identity: ProducerIdentity, log: PartitionLog, *, adds: bool
) -> None:
    """Ask a coordinator on another broker. When this returns, records may be written at once (ADR 0026, XV5).

    Raises: RequestRejected.
    """
    try:
        guards = await ask_elsewhere(others, transactional_id, identity, [log], verify_only=not adds)
    except RequestRejected as error:
        if error.code not in ASK_AGAIN:
            raise
        # The client would take the other codes for errors of the record's coordinator, and look for another coordinator.
        raise RequestRejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
    guard = guards[log.topic_partition]
    try:
        check_guard(log, identity, guard)
    finally:
        log.producers.release(guard)


def release(context: ProduceView, verdicts: Verdicts) -> None:
    """The batches are appended, or will not be."""
    for (topic, index), verdict in verdicts.items():
        if isinstance(verdict, TransactionGuard):
            name = topic_name(context, topic)
            partition = None if name is None else context.partitions.get(name, index)
            if partition is not None:
                partition.log.producers.release(verdict)


async def _when_stored(
    version: int, added: Awaitable[Transaction], beginning: Mapping[TopicPartition, tuple[TopicRef, int]]
) -> Verdicts:
    try:
        await added
    except RequestRejected as error:
        return dict.fromkeys(beginning.values(), told(version, error))
    return {}


async def _add_when_settled(
    context: ProduceView,
    version: int,
    transactional_id: str,
    identity: ProducerIdentity,
    beginning: Mapping[TopicPartition, tuple[TopicRef, int]],
) -> Verdicts:
    """The transaction before is still being ended: wait a little for that rather than have the client come again."""
    await context.transactions.wait_settled(transactional_id, SETTLE_WAIT_S)
    try:
        added = context.transactions.add_partitions(transactional_id, identity, tuple(beginning), VERSION_2)
        if not isinstance(added, Transaction):
            await added
    except RequestRejected as error:
        return dict.fromkeys(beginning.values(), told(version, error))
    return {}


def check_admitted(
    context: ProduceView,
    version: int,
    transactional_id: str | None,
    log: PartitionLog,
    records: memoryview,
    guard: TransactionGuard | None = None,
) -> None:
    """Whether a batch may be appended now; ``guard`` if another broker has said so.

    Raises: RequestRejected with the code that Kafka answers to a producer.
    """
    writer = writer_of(records)
    if writer is None:
        return
    if transactional_id is None:
        raise RequestRejected(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "A transactional batch in a request without a transactional id.",
        )
    if continues(log, writer):
        return
    if version < ADDS_PARTITIONS and not _verifies(context):
        return
    entry = log.producers.entries.get(writer.producer_id)
    try:
        if guard is not None:
            check_guard(log, writer, guard)
        else:
            seen_epoch = -1 if entry is None else entry.coordinator_epoch
            context.transactions.check_partition(transactional_id, writer, log.topic_partition, seen_epoch)
    except RequestRejected as error:
        raise told(version, error) from error
    if version >= ADDS_PARTITIONS and entry is None and SEQUENCE.unpack_from(records, SEQUENCE_POSITION)[0] != 0:
        # Every transaction of the second protocol counts from 0. This is not its first batch here: that one was refused while the
        # transaction before was being ended, and comes again.
        raise SequenceRefused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"The first batch of a transaction in {log.topic_partition} has sequence 0.",
            reason="transaction_begins",
            producer_id=writer.producer_id,
            epoch=writer.epoch,
            known_epoch=-1,
            sequence=SEQUENCE.unpack_from(records, SEQUENCE_POSITION)[0],
            expected=0,
        )


def told(version: int, error: RequestRejected) -> RequestRejected:
    """A coordinator's refusal as a producer of this version is to hear it."""
    code = error.code
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    elif code in ASK_AGAIN or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_PARTITIONS):
        # Older clients do not try again after these; this one they take for a passing trouble of the partition.
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    return RequestRejected(code, str(error))
