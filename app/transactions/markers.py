"""Markers end a transaction in each partition to which it wrote (KIP-98).

Only the leader of a partition writes them. A repeated marker is harmless: it finds no open transaction.

Tests: ``tests/transactions/test_former_coordinators.py``, ``tests/broker/test_lost_transactions.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.configs import Durability
from app.coordinator.topics import TRANSACTION_STATE
from app.core.errors import ErrorCode, RequestRejected
from app.core.seams import Clock
from app.core.units import NO_TOPIC_ID, PartitionIndex, ProducerId, TopicId, TopicPartition
from app.records.control import ControlType
from app.transactions.counters import TransactionCounters
from app.transactions.decisions import decided_ms
from app.transactions.state import VERSION_2, ProducerIdentity

if TYPE_CHECKING:
    from app.metadata.image.image import ClusterImage
    from app.replication.partition import Partition, PartitionTable


class Marker(NamedTuple):
    """One marker to write."""

    identity: ProducerIdentity
    commit: bool
    coordinator_epoch: int
    """Leader epoch of the coordinator's partition: an older coordinator is refused."""
    transaction_version: int
    """From version 2 on the marker's epoch is above the epoch of the ended transaction (KIP-1228)."""
    decision: bytes = b""
    """Of which decision it is, where its epoch does not say so (``decisions.py``). Empty otherwise."""
    coordinator: int = -1
    """The partition of ``__transaction_state`` whose leader sends it; -1 if it does not say."""
    coordinator_leads_since: int = -1
    """The leader epoch of that partition in which it was sent."""


def check_still_coordinates(image: ClusterImage, marker: Marker) -> None:
    """Whether the sender of a marker leads its partition by an image that is no older than the one it decided by (J46g).

    Raises: RequestRejected TRANSACTION_COORDINATOR_FENCED.
    """
    topic = image.topic(TRANSACTION_STATE.name) if marker.coordinator >= 0 else None
    if topic is None or marker.coordinator >= len(topic.partitions):
        return
    epoch = topic.partitions[marker.coordinator].leader_epoch
    if epoch > marker.coordinator_leads_since:
        raise RequestRejected(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"{TRANSACTION_STATE.name}-{marker.coordinator} has leader epoch {epoch}, and the marker was sent under "
            f"{marker.coordinator_leads_since}.",
        )


class PendingRecords(Protocol):
    """Records written in transactions to an internal topic, in the memory of its coordinator: offsets, or results."""

    def complete_transaction(self, partition: PartitionIndex, producer_id: ProducerId, *, commit: bool) -> None:
        """The marker is in the log: pending records now count, or are dropped. A repeated call does nothing."""
        ...


class MarkerWriter:
    """Writes markers to the partitions that this broker leads."""

    def __init__(
        self,
        partitions: PartitionTable,
        pending: Mapping[str, PendingRecords],
        clock: Clock,
        counters: TransactionCounters,
    ) -> None:
        self._counters = counters
        self._partitions = partitions
        self._pending = pending
        self._clock = clock

    def write(
        self, marker: Marker, partition: TopicPartition, topic_id: TopicId = NO_TOPIC_ID
    ) -> Awaitable[None] | None:
        """Append the marker now. Returns: None if it is stored under the topic's durability, else an awaitable until it is.

        ``topic_id``: of the topic that is meant, if the sender tells (X6).
        Raises, with nothing written: as ``PartitionTable.require``; RequestRejected INVALID_PRODUCER_EPOCH (a newer producer has
        written there), TRANSACTION_COORDINATOR_FENCED, INCONSISTENT_TOPIC_ID, NOT_ENOUGH_REPLICAS; StorageFull; StorageUnavailable.
        The awaitable raises StorageUnavailable, and NotLeader if another broker leads by then.
        """
        found = self._partitions.require(partition.topic, partition.partition)
        log = found.log
        if topic_id not in (NO_TOPIC_ID, log.topic_id):
            raise RequestRejected(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{partition} has topic id {log.topic_id} here, not {topic_id}."
            )
        found.check_in_sync()
        if not self._is_written(found, marker):
            decided = decided_ms(marker.decision)
            log.append_control(
                ControlType.COMMIT if marker.commit else ControlType.ABORT,
                producer_id=marker.identity.producer_id,
                producer_epoch=marker.identity.epoch,
                coordinator_epoch=marker.coordinator_epoch,
                now_ms=self._clock.now_ms(),
                decided_ms=decided,
                decision=marker.decision if decided >= 0 else b"",
            )
            self._counters.markers.value += 1
        pending = self._pending.get(partition.topic)
        if pending is not None:
            pending.complete_transaction(partition.partition, marker.identity.producer_id, commit=marker.commit)
        return found.wait_stored_as_leader(log.log_end_offset)

    def refusal_stored(self, partition: TopicPartition) -> Awaitable[None] | None:
        """A marker was refused because of records in the log: wait until these are stored, as ``write`` does (X8). None if they
        are."""
        found = self._partitions.led(partition.topic, partition.partition)
        return None if found is None else found.wait_stored_as_leader(found.log.log_end_offset)

    def stores_at_once(self, partition: TopicPartition) -> bool:
        """Whether a marker in this partition would be stored as soon as it is written."""
        found = self._partitions.led(partition.topic, partition.partition)
        return (
            found is not None
            and found.commits_alone
            and found.log.config.firn_durability is Durability.MEMORY
            and not found.log.journaled  # by both rules, while the topic changes from object durability (J41)
        )

    @staticmethod
    def _is_written(partition: Partition, marker: Marker) -> bool:
        """Whether the marker is in the log, or would change nothing. Raises: RequestRejected INVALID_PRODUCER_EPOCH."""
        entry = partition.log.producers.entries.get(marker.identity.producer_id)
        if entry is None or entry.epoch != marker.identity.epoch:
            return False
        if marker.transaction_version < VERSION_2:
            # Its epoch does not tell it from the marker before. If nothing is open, both mean the same. Where replicas store it, it
            # may have to be sent several times.
            nothing_open = entry.transaction_first_offset < 0 and entry.coordinator_epoch == marker.coordinator_epoch
            return nothing_open and not partition.commits_alone
        if entry.transaction_first_offset >= 0:
            # It would end the next transaction: this marker is late, and the client has gone on with its epoch.
            raise RequestRejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"A marker of epoch {marker.identity.epoch} for producer {marker.identity.producer_id}, which writes at it"
                " already.",
            )
        return True
