"""Every request in every state of a transactional id, decided by Kafka's own coordinator class and by ours.

The states are those of both protocols, with first, middle and last epochs, and the requests come with each identity that a client
can have: the present one, those before and after it, the one before an overflow, and that of another producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from app.core.errors import RequestRejected
from app.core.units import (
    NO_TIMESTAMP,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from app.transactions.state import (
    BUSY,
    EPOCH_MAX,
    LAST_CLIENT_EPOCH,
    NO_EPOCH,
    PREPARED,
    VERSION_1,
    VERSION_2,
    ProducerIdentity,
    Transaction,
    TransactionState,
    add_partitions,
    check_partition,
    end,
    initialize,
)
from tests.interop.java_programs import JavaProgram, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

A = TopicPartition("a", PartitionIndex(0))
NOW = TimestampMs(1_000)
ID, BEFORE, OTHER, FRESH = 7, 6, 5, 9
"""The producer id, the one before an overflow, that of another producer, and the next unused one (as in the Java program)."""
EPOCHS = (0, 1, 5, LAST_CLIENT_EPOCH - 1, LAST_CLIENT_EPOCH)
KAFKA_VERSION_1 = 0


class Asked(NamedTuple):
    """A request: ``init``, ``add``, ``verify``, ``commit`` or ``abort``; the identity -1 is none."""

    kind: str
    producer_id: int
    epoch: int
    version: int


def transactions() -> Iterator[Transaction]:
    for state, epoch, version, previous in product(TransactionState, EPOCHS, (VERSION_1, VERSION_2), (ID, BEFORE)):
        if previous == BEFORE and epoch != 0:
            continue
        raised = version == VERSION_2 and state not in (TransactionState.EMPTY, TransactionState.ONGOING)
        if raised and epoch == 0 and previous == ID:
            continue  # an end in the second protocol has raised the epoch
        yield Transaction(
            transactional_id="t",
            producer_id=ProducerId(ID),
            epoch=ProducerEpoch(epoch),
            state=state,
            timeout_ms=1000,
            updated_ms=TimestampMs(1),
            started_ms=NO_TIMESTAMP if state is TransactionState.EMPTY else TimestampMs(1),
            partitions=frozenset({A}) if state in BUSY else frozenset(),
            previous_producer_id=ProducerId(previous),
            last_epoch=ProducerEpoch(epoch - 1) if raised and epoch else NO_EPOCH,
            client_version=version,
        )
    for state in sorted(PREPARED):  # the client's epochs are used up
        yield Transaction(
            transactional_id="t",
            producer_id=ProducerId(ID),
            epoch=ProducerEpoch(EPOCH_MAX),
            state=state,
            timeout_ms=1000,
            updated_ms=TimestampMs(1),
            started_ms=TimestampMs(1),
            partitions=frozenset({A}),
            previous_producer_id=ProducerId(ID),
            next_producer_id=ProducerId(FRESH),
            last_epoch=ProducerEpoch(LAST_CLIENT_EPOCH),
            client_version=VERSION_2,
        )


def requests(current: Transaction) -> Iterator[Asked]:
    yield Asked("init", -1, -1, 0)
    identities = [(ID, current.epoch + change) for change in (-2, -1, 0, 1) if 0 <= current.epoch + change <= EPOCH_MAX]
    identities += [(BEFORE, LAST_CLIENT_EPOCH), (BEFORE, 0), (FRESH, 0), (OTHER, current.epoch)]
    for producer_id, epoch in identities:
        yield Asked("init", producer_id, epoch, 0)
        yield Asked("verify", producer_id, epoch, 0)
        for kind, version in product(("add", "commit", "abort"), (KAFKA_VERSION_1, VERSION_2)):
            yield Asked(kind, producer_id, epoch, version)


def said_by_kafka(kafka: JavaProgram, current: Transaction, asked: Asked) -> str:
    return kafka.ask(
        current.state.name,
        current.producer_id,
        current.previous_producer_id,
        current.next_producer_id,
        current.epoch,
        current.last_epoch,
        current.client_version,
        asked.kind,
        asked.producer_id,
        asked.epoch,
        asked.version,
    )


def said_by_firn(current: Transaction, asked: Asked) -> str:
    """As the Java program says it."""
    identity = ProducerIdentity(ProducerId(asked.producer_id), ProducerEpoch(asked.epoch))
    fresh = ProducerId(FRESH)
    try:
        match asked.kind:
            case "init":
                expected = None if asked.producer_id == -1 else identity
                decided = initialize(current, "t", timeout_ms=1000, expected=expected, spare_id=fresh, now_ms=NOW)
            case "add":
                decided = add_partitions(current, identity, [A], client_version=asked.version, now_ms=NOW)
            case "verify":
                check_partition(current, identity, A)
                return "NONE"
            case _:
                commit = asked.kind == "commit"
                decided = end(
                    current, identity, commit=commit, client_version=asked.version, spare_id=fresh, now_ms=NOW
                )
    except RequestRejected as error:
        return error.code.name
    if decided is current:
        return "NONE"
    return f"{decided.state.name} {decided.producer_id} {decided.epoch} {decided.next_producer_id}"


def meant(current: Transaction, asked: Asked, theirs: str) -> set[str]:
    """What Firn may say instead of ``theirs``, on purpose."""
    if asked.kind == "commit" and current.state is TransactionState.COMPLETE_ABORT and theirs == "INVALID_TXN_STATE":
        # KAFKA-20785, after 4.3.1: a client whose transaction timed out must not end its thread by this code.
        return {"PRODUCER_FENCED"} if asked.version == VERSION_2 and asked.epoch != current.epoch else set()
    if asked.kind == "init" and current.epoch == LAST_CLIENT_EPOCH and theirs == "UNKNOWN_SERVER_ERROR":
        # Kafka's coordinator raises an IllegalStateException.
        return {"PRODUCER_FENCED", f"EMPTY {ID} {LAST_CLIENT_EPOCH} -1"}
    if asked.kind == "init" and theirs == f"PREPARE_ABORT {ID} {EPOCH_MAX} {FRESH}":
        return {
            f"PREPARE_ABORT {ID} {EPOCH_MAX} -1"
        }  # ADR 0010, the last epoch: the next InitProducerId takes the next id
    return set()


def test_every_request_is_decided_as_by_kafka_in_every_state() -> None:
    different = []
    prepared = on_purpose = 0
    with running("TransactionDecisions.java") as kafka:
        for current in transactions():
            for asked in requests(current):
                theirs, ours = said_by_kafka(kafka, current, asked), said_by_firn(current, asked)
                prepared += current.state in PREPARED and theirs == "CONCURRENT_TRANSACTIONS"
                if theirs == ours:
                    continue
                on_purpose += 1
                if ours not in meant(current, asked, theirs):
                    where = (
                        f"{current.state.name} {current.previous_producer_id} {current.epoch} {current.client_version}"
                    )
                    different.append(f"{where}: {asked}: Kafka {theirs}, Firn {ours}")
    assert not different, "\n".join(different)
    assert prepared > 500
    assert 20 < on_purpose < 100
