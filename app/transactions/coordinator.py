"""The transaction coordinator of a broker: requests about transactional ids, and their waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from app.configs import BrokerConfig
from app.coordinator.partition import ProducerIdAndEpoch
from app.coordinator.shell import Coordinator, Turn
from app.coordinator.topics import CONSUMER_OFFSETS, HTTP_REQUESTS, TRANSACTION_STATE
from app.core.errors import ErrorCode, FirnError, RequestRejected, clause, copy_of
from app.core.faults import Faults
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.units import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.metadata.peers.control import LookRequest, LookResponse
from app.transactions.counters import TransactionCounters
from app.transactions.elsewhere import OtherBrokers
from app.transactions.ending import Endings
from app.transactions.looking import Looker
from app.transactions.markers import Marker, MarkerWriter, PendingRecords
from app.transactions.metrics import show_transactions
from app.transactions.recovery import Recovery, in_doubt
from app.transactions.shard import TransactionShard
from app.transactions.state import (
    AT_REST,
    PREPARED,
    VERSION_2,
    ProducerIdentity,
    ProducerIdNeeded,
    Transaction,
    check_owner,
    check_partition,
)

if TYPE_CHECKING:
    from app.metadata.image.image import ClusterImage
    from app.replication.partition import Partition, PartitionTable
    from app.replication.reading import PartitionReads

T = TypeVar("T")

STORED_WITHIN_S: Final = 15.0
"""How long a client waits for other brokers to store a decision: less than its own patience, 30 s in Kafka."""


class ProducerIdSource(Protocol):
    """Unused producer ids."""

    def take_now(self) -> ProducerId | None:
        """The next producer id, if one is ready."""
        ...

    async def take(self) -> ProducerId:
        """The next producer id. Raises: FirnError if none is available now."""
        ...


class TransactionCoordinator:
    """Coordinates the transactional ids of the partitions of ``__transaction_state`` that this broker leads.

    Requests raise RequestRejected with Kafka's code, or return an awaitable that raises it. Every result is stored under the
    topic's durability before it is returned.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        partitions: PartitionTable,
        producer_ids: ProducerIdSource,
        offsets: PendingRecords,
        clock: Clock,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
        others: OtherBrokers | None = None,
        reads: PartitionReads | None = None,
        image: Callable[[], ClusterImage] | None = None,
        results: PendingRecords | None = None,
    ) -> None:
        """``offsets`` and ``results`` hear of markers in the topics of offsets, and of results of keyed requests. ``others`` is
        None on a broker that is alone. Without ``reads`` and ``image`` no log is taken for one that lacks its end (J46)."""
        self.others = others
        self._partitions = partitions
        self._counters = TransactionCounters(registry)
        self._config = config
        self._producer_ids = producer_ids
        self._coordinator: Coordinator[TransactionShard] = Coordinator(
            TRANSACTION_STATE,
            self._new_shard,
            broker_id=BrokerId(config.node_id),
            partitions=partitions,
            clock=clock,
            registry=registry,
            log_line=log_line,
            faults=faults,
            hold=None if reads is None else self._held,
        )
        show_transactions(registry, lambda: (shard for _, shard in self._coordinator.shards()), clock)
        pending = {CONSUMER_OFFSETS.name: offsets, **({} if results is None else {HTTP_REQUESTS.name: results})}
        self.markers = MarkerWriter(partitions, pending, clock, self._counters)
        self._endings = Endings(
            self._coordinator, partitions, self.markers, log_line, faults, None if others is None else others.leaders
        )
        self._looker = None if reads is None else Looker(self._coordinator, partitions, reads)
        self._recovery = (
            None
            if self._looker is None or image is None
            else Recovery(
                self._coordinator,
                partitions,
                self.markers,
                self._looker,
                image,
                log_line,
                faults if faults is not None else Faults(log_line),
                others,
            )
        )
        self.refusal: RequestRejected | None = None
        """Why no transaction may begin now; None if they may. Open transactions may continue and end."""

    def end_by_hand(
        self, partition: TopicPartition, producer: ProducerIdAndEpoch, commit: bool
    ) -> Awaitable[None] | None:
        """Write the marker that a transaction lacks in a partition led here, while no coordinator will. ``producer``: of its
        batches. Returns, and raises: as ``MarkerWriter.write``."""
        log = self._partitions.require(*partition).log
        entry = log.producers.entries.get(producer.producer_id)
        epoch = -1 if entry is None else entry.coordinator_epoch
        identity = ProducerIdentity(producer.producer_id, ProducerEpoch(producer.producer_epoch + 1))
        return self.markers.write(Marker(identity, commit, max(epoch, 0), VERSION_2), partition)

    def _held(self, partition: Partition, shard: TransactionShard) -> bool:
        assert self._recovery is not None
        if not in_doubt(partition, shard, alone=self.others is None):
            return False
        self._recovery.wake()
        return True

    def _new_shard(self, partition: PartitionIndex) -> TransactionShard:
        config = self._config
        return TransactionShard(
            partition,
            self._endings.note,
            expiration_ms=config.transactional_id_expiration_ms,
            expiry_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
            counters=self._counters,
        )

    def follow(self, image: ClusterImage) -> None:
        """Update the coordinated partitions to a new image of the cluster."""
        self._coordinator.follow(image)
        self._endings.follow()
        if self.others is not None:
            self.others.follow(image)

    async def run(self) -> None:
        """Load led partitions, serve deadlines and write markers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._coordinator.run())
            tasks.create_task(self._endings.run())
            if self._recovery is not None:
                tasks.create_task(self._recovery.run())
            if self.others is not None:
                tasks.create_task(self.others.run())

    # --- requests -----------------------------------------------------------------------------------------------------

    async def initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Give the client an identity. It fences earlier clients with the same transactional id (InitProducerId)."""
        longest_ms = self._config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest_ms:
            raise RequestRejected(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"A transaction may be open for 1 to {longest_ms} ms (transaction.max.timeout.ms), not for {timeout_ms}.",
            )

        def decide(spare_id: ProducerId | None, shard: TransactionShard, turn: Turn) -> Transaction:
            return shard.initialize(turn, transactional_id, timeout_ms=timeout_ms, expected=expected, spare_id=spare_id)

        decided = await self._decide_with_id(transactional_id, decide)
        if decided.state in PREPARED:
            raise RequestRejected(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"The open transaction of {transactional_id} is being aborted."
            )
        return decided.client_identity

    def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Collection[TopicPartition],
        client_version: int,
    ) -> Awaitable[Transaction] | Transaction:
        """Let the open transaction, or the next one, write to ``partitions``."""

        def decide(shard: TransactionShard, turn: Turn) -> Transaction:
            if self.refusal is not None:
                found = shard.get(transactional_id)
                if found is not None and found.state in AT_REST:
                    check_owner(found, identity)
                    raise copy_of(self.refusal)
            return shard.add_partitions(turn, transactional_id, identity, partitions, client_version)

        return self._decide(transactional_id, decide)

    def abort_open(self, wanted: Callable[[Transaction], bool]) -> int:
        """Abort the open transactions that are ``wanted``, as if they had timed out. Returns: how many.

        The markers are written later. Raises: RequestRejected if a decision cannot be written; some transactions may be aborted.
        """
        aborted = 0

        def event(shard: TransactionShard, turn: Turn) -> None:
            nonlocal aborted
            aborted += shard.abort_open(turn, wanted)

        for partition, _ in self._coordinator.shards():
            self._coordinator.tell(partition, event)
        return aborted

    def check_partition(
        self, transactional_id: str, identity: ProducerIdentity, target: TopicPartition, seen_epoch: int = -1
    ) -> None:
        """Raise if the open transaction may not write to ``target`` now (KIP-890).

        ``seen_epoch``: of a coordinator that has ended a transaction of this producer in ``target``. Another broker may coordinate
        the id by now although this one has not heard of it (XV3). Raises: RequestRejected.
        """
        partition = self._coordinator.partition_of(transactional_id)
        transaction = self._coordinator.look(partition, lambda shard: shard.get(transactional_id))
        if self.others is not None:
            check_coordinator_epoch(self.epoch_of(transactional_id), seen_epoch)
        check_partition(transaction, identity, target)

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch in which this broker coordinates an id; -1 if it does not. Raises: RequestRejected as ``partition_of``."""
        led = self._partitions.led(TRANSACTION_STATE.name, self._coordinator.partition_of(transactional_id))
        return -1 if led is None else led.log.leader_epoch

    async def end(
        self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, client_version: int
    ) -> ProducerIdentity:
        """Commit or abort the open transaction. Returns: the client's identity for the next transaction."""

        def decide(spare_id: ProducerId | None, shard: TransactionShard, turn: Turn) -> Transaction:
            return shard.end(
                turn, transactional_id, identity, commit=commit, client_version=client_version, spare_id=spare_id
            )

        decided = await self._decide_with_id(transactional_id, decide)
        return decided.client_identity

    async def describe(self, transactional_id: str) -> Transaction:
        """The state of an id. Raises: RequestRejected TRANSACTIONAL_ID_NOT_FOUND."""
        partition = self._coordinator.partition_of(transactional_id)
        found = self._coordinator.perform(partition, lambda shard, _: shard.get(transactional_id))
        if found is not None and not isinstance(found, Transaction):
            found = await self._in_time(found)
        if found is None:
            raise RequestRejected(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"{transactional_id} is not known.")
        return found

    def all(self) -> Iterator[Sequence[Transaction]]:
        """All transactions that this broker coordinates, stored or not, some at a time. Other requests are served in between.

        Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS while some partitions are not loaded yet.
        """
        if self._coordinator.loading:
            raise RequestRejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Transactions are still being read.")
        return chain.from_iterable([shard.all() for _, shard in self._coordinator.shards()])

    async def look(self, asked: LookRequest) -> LookResponse:
        """This broker's facts about transactions, for a coordinator whose log may lack its end. Raises: FirnError."""
        assert self._looker is not None
        return await self._looker.answer(asked)

    async def wait_settled(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until the decided transaction of an id is complete, up to a time limit."""
        await self._endings.wait_settled(transactional_id, timeout_s)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(
        self, transactional_id: str, decide: Callable[[TransactionShard, Turn], Transaction]
    ) -> Transaction | Awaitable[Transaction]:
        """Run a request. A refusal may depend on records that are not stored yet, so it waits for them like any result.

        Raises: RequestRejected; ProducerIdNeeded.
        """

        def event(shard: TransactionShard, turn: Turn) -> Transaction | RequestRejected:
            try:
                return decide(shard, turn)
            except RequestRejected as refusal:
                return refusal

        decided = self._coordinator.perform(self._coordinator.partition_of(transactional_id), event)
        if isinstance(decided, RequestRejected):
            raise decided
        if not isinstance(decided, Transaction):
            return self._unwrap(decided)
        if decided.state in PREPARED:
            self._endings.try_now(decided)
        return decided

    async def _unwrap(self, decided: Awaitable[Transaction | RequestRejected]) -> Transaction:
        outcome = await self._in_time(decided)
        if isinstance(outcome, RequestRejected):
            raise outcome
        return outcome

    async def _in_time(self, stored: Awaitable[T]) -> T:
        """Wait until a decision is stored. Raises: RequestRejected COORDINATOR_NOT_AVAILABLE if other brokers do not store it in
        time. The decision may still be stored later: the client retries, and then gets the outcome."""
        try:
            async with asyncio.timeout(None if self.others is None else STORED_WITHIN_S):
                return await stored
        except TimeoutError:
            raise RequestRejected(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"The replicas did not store within {STORED_WITHIN_S:g} s what was decided. They may still do so.",
            ) from None

    async def _decide_with_id(
        self,
        transactional_id: str,
        decide: Callable[[ProducerId | None, TransactionShard, Turn], Transaction],
    ) -> Transaction:
        """Like ``_decide``, for requests that may need a new producer id. Waits for it. Raises: RequestRejected."""
        try:
            decided = self._decide(transactional_id, partial(decide, None))
        except ProducerIdNeeded:
            decided = self._decide(transactional_id, partial(decide, await self._take_id()))
        return decided if isinstance(decided, Transaction) else await decided

    async def _take_id(self) -> ProducerId:
        taken = self._producer_ids.take_now()
        if taken is not None:
            return taken
        try:
            return await self._producer_ids.take()
        except FirnError as error:
            raise RequestRejected(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"No producer id to give: {clause(error)}."
            ) from error


def check_coordinator_epoch(epoch: int, seen_epoch: int) -> None:
    """Whether a coordinator of ``epoch`` has a say where one of ``seen_epoch`` was heard (XV3). Raises: RequestRejected."""
    if epoch < seen_epoch:
        raise RequestRejected(
            ErrorCode.NOT_COORDINATOR, f"The coordinator of epoch {epoch} was replaced; epoch {seen_epoch} is known."
        )
