"""Producers that are idempotent or transactional and repeat as Java's do, and consumers that read everything."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from app.core.units import ProducerEpoch, ProducerId, TimestampMs, TopicIdPartition
from app.records.builder import build_batch
from app.records.control import ControlType, build_marker
from tests.wal_simulation.leading import Fetched

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker
    from tests.wal_simulation.world import World

IN_FLIGHT_MAX: Final = 5
TIMEOUT_MS: Final = 1500.0


class Batch:
    __slots__ = ("acked", "count", "data", "sent_ms", "sequence", "value")

    def __init__(self, value: int, count: int, sequence: int) -> None:
        self.value, self.count, self.sequence = value, count, sequence
        self.data = b""
        self.sent_ms = -1.0
        self.acked = False


class Producer:
    """Of one partition. It has up to five batches on their way, in order, and repeats all of them after a failure."""

    def __init__(self, world: World, key: TopicIdPartition, rng: Random) -> None:
        self.world, self.key, self.rng = world, key, rng
        self._producer_id = world.new_producer_id()
        self._epoch = 0
        self._sequence = 0
        self.unacked: list[Batch] = []
        self.attempt = 0
        self._arrives_ms = self._told_ms = 0.0
        self._lost_in = -1
        self._is_known = False
        """Whether a batch was acknowledged. A partition takes any sequence of a producer that it does not know."""
        self._pausing = False
        self._idle_until_ms = -1.0
        self._target = 0
        self._is_to_twin = False
        self._peers: dict[int, Broker] = {}
        """The process at the other end of the connection of the newest attempt."""
        self._leader_epoch = -1
        """The newest one that it has heard of. A client never goes back to the leader of an older one (KIP-320): that may have
        fewer of its batches, and would say that a sequence is out of order."""
        self._after(rng.uniform(500, 900), self._tick)

    def _after(self, delay_ms: float, do: Callable[[], None]) -> None:
        self.world.timeline.after(delay_ms, self._run, do)

    def _run(self, do: Callable[[], None]) -> None:
        if self.key in self.world.keys:  # otherwise the topic is deleted
            do()

    @property
    def is_done(self) -> bool:
        """Whether everything was acknowledged."""
        return not self.unacked

    def _tick(self) -> None:
        rng, world = self.rng, self.world
        self._after(rng.uniform(15, world.plan.pause_ms), self._tick)
        now_ms = world.timeline.now_ms
        if rng.random() < world.plan.idle_share:
            self._idle_until_ms = now_ms + rng.uniform(500, 3000)
        if (
            world.writing
            and now_ms >= self._idle_until_ms
            and len(self.unacked) < (IN_FLIGHT_MAX if self._is_known else 1)
        ):
            self._new_batch()
        if self.unacked and self.unacked[0].sent_ms >= 0 and now_ms - self.unacked[0].sent_ms > TIMEOUT_MS:
            self._again()

    def _new_batch(self, *, transactional: bool = False) -> Batch:
        count = self.rng.randint(1, 3)
        batch = Batch(self.world.new_value(count, self._producer_id), count, self._sequence)
        self._build(batch, transactional=transactional)
        self._add(batch)
        return batch

    def _build(self, batch: Batch, *, transactional: bool = False) -> None:
        batch.sequence = self._sequence
        batch.data = build_batch(
            [(1000, None, b"%d" % batch.value, ())] * batch.count,
            producer_id=ProducerId(self._producer_id),
            producer_epoch=ProducerEpoch(self._epoch),
            base_sequence=batch.sequence,
            transactional=transactional,
        )
        self._sequence += batch.count

    def _add(self, batch: Batch) -> None:
        self.unacked.append(batch)
        if not self._pausing:
            self._send(batch)

    def _again(self) -> None:
        """A new connection, perhaps to another broker."""
        self.attempt += 1
        self._pausing = False
        self._target = self.world.some_leader(self.key, self.rng)
        self._is_to_twin = self.rng.random() < 0.3
        for batch in self.unacked:
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        world, attempt = self.world, self.attempt
        batch.sent_ms = world.timeline.now_ms
        self._arrives_ms = max(self._arrives_ms, world.timeline.now_ms + self.rng.uniform(0.5, 4.0))
        data = batch.data

        def reply(outcome: str, base: int) -> None:
            # Replies come in the order of requests, and none comes after one that was lost with its connection.
            if attempt == self.attempt and self.rng.random() < world.plan.lost_replies:
                self._lost_in = attempt
            if attempt != self._lost_in:
                now_ms = world.timeline.now_ms
                self._told_ms = max(self._told_ms, now_ms + self.rng.uniform(0.5, 4.0))
                self._after(self._told_ms - now_ms, lambda: self._told(attempt, batch, outcome, base))

        def deliver(broker: Broker) -> None:
            if attempt > max(self._peers, default=-1):
                self._peers = {attempt: broker}
            if self._peers.get(attempt) is not broker:
                return  # the connection has ended with its process
            leading = broker.led.get(self.key)
            if leading is not None and leading.leader_epoch < self._leader_epoch:
                reply("not leader", -1)
            else:
                self._leader_epoch = leading.leader_epoch if leading is not None else self._leader_epoch
                broker.produce(self.key, data, batch.value, reply)

        world.deliver(self._target, self._arrives_ms - world.timeline.now_ms, deliver, twin=self._is_to_twin)

    def _told(self, attempt: int, batch: Batch, outcome: str, base: int) -> None:
        if outcome == "ok":
            self.world.checkers.acknowledged(self.key, base, batch.value)
            if attempt == self.attempt and not batch.acked:
                batch.acked = self._is_known = True
                self.unacked.remove(batch)
        elif attempt == self.attempt:
            self.attempt += 1
            self._pausing = True
            if outcome == "OUT_OF_ORDER_SEQUENCE_NUMBER" and batch is self.unacked[0]:
                self._on_out_of_order()
            self._after(self.rng.uniform(20, 150), self._retry_of(self.attempt))

    def _on_out_of_order(self) -> None:
        """The batch is the next one, as far as this producer knows: it sends all again under its next epoch, as Java's does."""
        self.world.checkers.producer_resets()
        self._epoch += 1
        self._sequence = 0
        for batch in self.unacked:
            self._build(batch)

    def _retry_of(self, attempt: int) -> Callable[[], None]:
        return lambda: self._again() if attempt == self.attempt else None


class TransactionalProducer(Producer):
    """It writes a few batches in each transaction. Its coordinator, which never fails here, then ends the transaction with a
    marker, which is repeated until it is acknowledged, and gives it the next epoch (KIP-890)."""

    def __init__(self, world: World, key: TopicIdPartition, rng: Random) -> None:
        super().__init__(world, key, rng)
        self._left = 0
        self._values: list[int] = []
        self._ending: ControlType | None = None

    @property
    def is_done(self) -> bool:
        return not self.unacked and not self._values

    def _tick(self) -> None:
        rng, world = self.rng, self.world
        self._after(rng.uniform(15, world.plan.pause_ms), self._tick)
        now_ms = world.timeline.now_ms
        if self._ending is None and not self._values and world.writing and now_ms >= self._idle_until_ms:
            self._left = rng.randint(1, 6)
        if self._left and len(self.unacked) < (IN_FLIGHT_MAX if self._is_known else 1):
            self._left -= 1
            batch = self._new_batch(transactional=True)
            self._values.append(batch.value)
            world.transactions[batch.value] = None
        elif self._values and not self._left and self._ending is None:
            if not self.unacked and rng.random() < 0.5:
                self._end(ControlType.COMMIT if rng.random() < 0.5 else ControlType.ABORT)
            elif rng.random() < 0.01:
                self._end(ControlType.ABORT)  # by its coordinator, because it takes too long
        if self.unacked and self.unacked[0].sent_ms >= 0 and now_ms - self.unacked[0].sent_ms > TIMEOUT_MS:
            self._again()

    def _end(self, how: ControlType) -> None:
        world = self.world
        self._ending = how
        for value in self._values:
            world.transactions[value] = how is ControlType.COMMIT
        self._epoch += 1
        self._sequence = 0
        self.attempt += 1
        self._is_known = False
        self.unacked = []
        self._send_marker()

    def _send_marker(self) -> None:
        value = self.world.new_value(1, self._producer_id)
        self.world.markers.add(value)
        batch = Batch(value, 1, -1)
        assert self._ending is not None
        batch.data = build_marker(
            self._ending,
            producer_id=ProducerId(self._producer_id),
            producer_epoch=ProducerEpoch(self._epoch),
            coordinator_epoch=value,
            timestamp=TimestampMs(1000),
        )
        self._pausing = True
        self.unacked = [batch]
        self._again()

    def _again(self) -> None:
        # Every attempt of a marker is another batch: a partition may have several, and only the first ends something.
        if self._ending is not None and self.unacked[0].sent_ms >= 0:
            self._send_marker()
        else:
            super()._again()

    def _told(self, attempt: int, batch: Batch, outcome: str, base: int) -> None:
        super()._told(attempt, batch, outcome, base)
        if self._ending is not None and batch.acked and not self.unacked:
            self._ending = None
            self._values = []
            if self.rng.random() < 0.3:
                self._idle_until_ms = self.world.timeline.now_ms + self.rng.uniform(200, 2000)

    def _on_out_of_order(self) -> None:
        """The transaction fails."""
        self.world.checkers.producer_resets()
        if self._ending is None:
            self._left = 0
            self._end(ControlType.ABORT)


class Consumer:
    """Of one partition: it reads on from where it is, and now and then from an earlier offset."""

    def __init__(self, world: World, key: TopicIdPartition, rng: Random, *, committed: bool) -> None:
        self.world, self.key, self.rng = world, key, rng
        self._committed = committed
        """Whether it reads what was committed, and nothing of transactions that are open or aborted."""
        self.offset = 0
        world.timeline.after(rng.uniform(500, 900), self._tick)

    def _tick(self) -> None:
        rng, world = self.rng, self.world
        if self.key not in world.keys:
            return
        world.timeline.after(rng.uniform(20, 80), self._tick)
        offset = self.offset if rng.random() < 0.7 else rng.randint(0, self.offset)

        def reply(found: Fetched) -> None:
            world.timeline.after(rng.uniform(0.5, 4.0), self._read, offset, found)

        world.deliver(
            world.some_leader(self.key, rng),
            rng.uniform(0.5, 4.0),
            lambda broker: broker.fetch(self.key, offset, reply, committed=self._committed),
            twin=rng.random() < 0.3,
        )

    def _read(self, offset: int, found: Fetched) -> None:
        self.world.checkers.was_read(self.key, offset, found, committed=self._committed)
        if offset <= self.offset:
            self.offset = max(self.offset, found.at + len(found.values))
