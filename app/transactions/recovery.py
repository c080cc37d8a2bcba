"""Recovery of a partition of ``__transaction_state`` that may have lost its end (ADR 0037, J46).

Its coordinator serves no client before it has decided every open transaction that no coordinator knows, and has forgotten every
transactional id of the partition. All brokers report their facts about transactions (``looking.py``), and ``deciding.py`` decides.

Tests: ``tests/broker/test_lost_transactions.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import TRANSACTION_STATE
from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of, without_frames
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.metadata.peers.control import LookRequest, LookResponse
from app.transactions.deciding import OpenTransaction, Outcome, decide, doubts
from app.transactions.ending import MarkerAnswer
from app.transactions.link import MarkerAsked
from app.transactions.markers import Marker, MarkerWriter
from app.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from app.metadata.image.image import ClusterImage
    from app.replication.partition import Partition, PartitionTable
    from app.transactions.elsewhere import OtherBrokers
    from app.transactions.looking import Looker

RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 5.0
TOLD_FROM_S: Final = 1.0
"""The log names the cause of a pause that is at least so long. After a start, some partitions have no leader for a moment."""
NAMED_MAX: Final = 10
"""Transactions that log lines name one by one."""
OPEN_MAX: Final = 10_000
"""Open transactions of one question, unless a single producer has more."""

Held = Sequence[tuple[PartitionIndex, TransactionShard]]


def in_doubt(partition: Partition, shard: TransactionShard, *, alone: bool) -> bool:
    """Whether the log may lack its end, and the recovery from this is not complete (J46a, J46b).

    ``alone``: the cluster is at level 0, where no image notes a loss. There, an empty log of a partition that was led before may
    have lost all its records.
    """
    log = partition.log
    return _is_noted(partition, shard) or (alone and log.log_end_offset == 0 and log.leader_epoch > 0)


def _is_noted(partition: Partition, shard: TransactionShard) -> bool:
    """Whether the image says that the log may lack its end."""
    return partition.unclean_epoch > shard.decided_epoch


class Recovery:
    """Decides for the shards that a coordinator holds. Keep ``run`` running."""

    def __init__(
        self,
        coordinator: Coordinator[TransactionShard],
        partitions: PartitionTable,
        markers: MarkerWriter,
        looker: Looker,
        image: Callable[[], ClusterImage],
        log_line: Callable[[str], None],
        faults: Faults,
        others: OtherBrokers | None,
    ) -> None:
        """``others`` is None on a broker that is alone."""
        self._coordinator = coordinator
        self._partitions = partitions
        self._markers = markers
        self._looker = looker
        self._image = image
        self._log_line = log_line
        self._faults = faults
        self._others = others
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A shard is held."""
        self._wake.set()

    async def run(self) -> None:
        """Decide until cancelled."""
        pause_s = RETRY_S_MIN
        while True:
            if not self._coordinator.held():
                pause_s = RETRY_S_MIN
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._round()
            except FirnError as error:
                self._admit_unnoted(error)
                if pause_s >= TOLD_FROM_S:
                    name = TRANSACTION_STATE.name
                    waits = "Transactional ids wait until open transactions are decided"
                    self._faults.met(
                        "deciding transactions of", name, f"{name} may have lost its last records. {waits}: {error}"
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _round(self) -> None:
        """Decide for all shards that are held now. Raises: FirnError if something cannot be looked at or written now."""
        held = self._coordinator.held()
        image = self._image()
        # First find the open transactions, then the coordinators that know them (J46c). The coordinator of a transaction that
        # begins meanwhile knows it.
        opened = [
            OpenTransaction(
                TopicPartition(topic, PartitionIndex(index)), ProducerId(producer_id), ProducerEpoch(epoch), led_epoch
            )
            for answer in await self._ask(image, LookRequest(image.cluster_id, image.sequence))
            for topic, index, producer_id, epoch, led_epoch in answer.opened
        ]
        opened.sort(key=lambda one: one.producer_id)
        for some in _parts(opened):
            await self._decide(held, image, some)
        for partition, shard in held:
            await self._forget(partition, shard)

    def _admit_unnoted(self, error: FirnError) -> None:
        """Most logs of which no image says that they lost something never had anything: their ids wait for nothing. Everything that
        can be looked at is there when a broker of level 0 begins to coordinate, so nothing else would come."""
        admitted = 0
        for index, shard in self._coordinator.held():
            partition = self._partitions.led(TRANSACTION_STATE.name, index)
            if partition is not None and not _is_noted(partition, shard):
                self._coordinator.admit(index, shard)
                admitted += 1
        if admitted:
            self._log_line(
                Event.TRANSACTION_FAILED.line(
                    f"open transactions that no coordinator knows are left as they are, if there are any: {error}"
                )
            )

    async def _ask(self, image: ClusterImage, asked: LookRequest) -> list[LookResponse]:
        """Ask all brokers. The answers are about every partition of ``image``, each from its leader (J46d).

        Raises: FirnError if one cannot be looked at now.
        """
        answers = [await self._looker.answer(asked)]
        if self._others is not None:
            answers += await self._others.look(asked)
        led = {(topic, index): epoch for answer in answers for topic, index, epoch in answer.led}
        for topic in image.topics_by_name.values():
            for one in topic.partitions:
                if led.get((topic.name, one.partition_index), -1) < one.leader_epoch:
                    raise RequestRejected(
                        ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{one.partition_index} cannot be looked at now."
                    )
        return answers

    async def _decide(self, held: Held, image: ClusterImage, opened: Sequence[OpenTransaction]) -> None:
        """Write the markers that transactions without a coordinator lack, and wait until they are stored. Raises: FirnError."""
        asked = tuple({(one.producer_id, one.epoch): None for one in opened})
        answers = await self._ask(image, LookRequest(image.cluster_id, image.sequence, asked))
        known = {producer_id for answer in answers for producer_id in answer.known}
        orphans = [one for one in opened if one.producer_id not in known]
        if not orphans:
            return
        outcomes = [
            Outcome(
                ProducerId(producer_id),
                ProducerEpoch(epoch),
                commit,
                decided_ms,
                frozenset(TopicPartition(topic, PartitionIndex(index)) for topic, index in partitions),
            )
            for answer in answers
            for producer_id, epoch, commit, decided_ms, partitions in answer.outcomes
        ]
        found = doubts(orphans, outcomes)
        if found:
            wanted = {(*one.open.target, one.open.producer_id, one.decided_ms): one for one in found}
            led = LookRequest(image.cluster_id, image.sequence, (), tuple(wanted))
            for answer in await self._ask(image, led):
                for one in answer.marked:
                    wanted.pop((one[0], PartitionIndex(one[1]), ProducerId(one[2]), one[3]), None)
            found = list(wanted.values())
        # A broker that leads no held partition any more decides nothing.
        if not self._coordinator.held():
            return
        leads = {index: self._partitions.require(TRANSACTION_STATE.name, index).log.leader_epoch for index, _ in held}
        first, leads_since = next(iter(leads.items()))
        decided = decide(orphans, outcomes, found, max(leads.values()))
        waiting: list[Awaitable[None]] = []
        refused: FirnError | None = None
        for target, marker in decided:
            # Write each marker, even after another was refused: readers of a partition wait for its own marker only.
            try:
                stored = self._write(
                    image, target, marker._replace(coordinator=first, coordinator_leads_since=leads_since)
                )
                if stored is not None:
                    waiting.append(stored)
            except FirnError as error:
                refused = without_frames(error)
        for each in waiting:
            try:
                await each
            except FirnError as error:
                refused = without_frames(error)
        if refused is not None:
            raise copy_of(refused)
        self._tell(decided)

    def _write(self, image: ClusterImage, target: TopicPartition, marker: Marker) -> Awaitable[None] | None:
        """Write a marker where ``target`` is led. Returns: None if it is stored, else an awaitable until it is.

        Raises: FirnError.
        """
        topic = image.topics_by_name[target.topic]
        if self._others is None or topic.partitions[target.partition].leader == self._others.leaders.broker_id:
            return self._markers.write(marker, target)
        leader = topic.partitions[target.partition].leader
        sent = self._others.leaders.markers.put(leader, MarkerAsked(marker, topic.topic_id, target))
        return MarkerAnswer(target, sent, self._log_line)

    def _tell(self, decided: Sequence[tuple[TopicPartition, Marker]]) -> None:
        for target, marker in decided[:NAMED_MAX]:
            what = "committed, as a marker elsewhere says" if marker.commit else "aborted, as no marker commits it"
            producer_id = marker.identity.producer_id
            self._log_line(
                Event.TRANSACTION_DECIDED.line(
                    f"a transaction of producer {producer_id} in {target} had no coordinator any more: it is {what}",
                    producer_id=int(producer_id),
                )
            )
        if len(decided) > NAMED_MAX:
            self._log_line(
                Event.TRANSACTION_DECIDED.line(
                    f"{len(decided) - NAMED_MAX} more transactions had no coordinator any more, and are decided"
                )
            )

    async def _forget(self, partition: PartitionIndex, shard: TransactionShard) -> None:
        """Forget all ids of a shard, and let it serve. Raises: RequestRejected."""
        found = self._partitions.require(TRANSACTION_STATE.name, partition)
        if not _is_noted(found, shard):
            self._coordinator.admit(partition, shard)  # it is empty, and needs no note
            return
        epoch = found.log.leader_epoch
        count = shard.id_count

        def event(shard: TransactionShard, turn: Turn) -> None:
            shard.forget_all(turn, epoch)

        stored = self._coordinator.perform_held(partition, shard, event)
        if stored is not None:
            await stored
        if count:
            self._log_line(
                Event.COORDINATOR_RECORDS_LOST.line(
                    f"{TRANSACTION_STATE.name}-{partition} may have lost its last records: its {count} transactional ids get new"
                    " producer ids"
                )
            )
        self._coordinator.admit(partition, shard)


def _parts(opened: Sequence[OpenTransaction]) -> Iterator[Sequence[OpenTransaction]]:
    """Open transactions in parts. All of a producer are in one."""
    first = 0
    while first < len(opened):
        end = min(first + OPEN_MAX, len(opened))
        while end < len(opened) and opened[end].producer_id == opened[end - 1].producer_id:
            end += 1
        yield opened[first:end]
        first = end
