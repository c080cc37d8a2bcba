"""Producers that are idempotent and repeat, and consumers that read everything."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from app.records.builder import build_batch
from app.units import ProducerEpoch, ProducerId, TopicIdPartition

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker
    from tests.wal_simulation.world import World

IN_FLIGHT_MAX: Final = 5
TIMEOUT_MS: Final = 1500.0
RESET_MS: Final = 4000.0


class Batch:
    __slots__ = ("acked", "data", "sent_ms", "value")

    def __init__(self, data: bytes, value: int) -> None:
        self.data, self.value = data, value
        self.sent_ms = -1.0
        self.acked = False


class Producer:
    """Of one partition. It has up to five batches on their way, in order, and repeats all of them after a failure."""

    def __init__(self, world: World, key: TopicIdPartition, rng: Random) -> None:
        self.world, self.key, self.rng = world, key, rng
        self._producer_id = world.new_producer_id()
        self._sequence = 0
        self.unacked: list[Batch] = []
        self.attempt = 0
        self._arrives_ms = self._told_ms = 0.0
        self._lost_in = -1
        self._is_known = False
        """Whether a batch was acknowledged. A partition takes any sequence of a producer that it does not know."""
        self._pausing = False
        self._refused_ms = self._idle_until_ms = -1.0
        self._target = 0
        world.timeline.after(rng.uniform(500, 900), self._tick)

    def _tick(self) -> None:
        rng, world = self.rng, self.world
        world.timeline.after(rng.uniform(15, world.plan.pause_ms), self._tick)
        now_ms = world.timeline.now_ms
        if rng.random() < world.plan.idle_share:
            self._idle_until_ms = now_ms + rng.uniform(500, 3000)
        if (
            world.writing
            and now_ms >= self._idle_until_ms
            and len(self.unacked) < (IN_FLIGHT_MAX if self._is_known else 1)
        ):
            count = rng.randint(1, 3)
            value = world.new_value(count)
            data = build_batch(
                [(1000, None, b"%d" % value, ())] * count,
                producer_id=ProducerId(self._producer_id),
                producer_epoch=ProducerEpoch(0),
                base_sequence=self._sequence,
            )
            self._sequence += count
            self.unacked.append(Batch(data, value))
            if not self._pausing:
                self._send(self.unacked[-1])
        if self.unacked and self.unacked[0].sent_ms >= 0 and now_ms - self.unacked[0].sent_ms > TIMEOUT_MS:
            self._again()

    def _again(self) -> None:
        """A new connection, perhaps to another broker."""
        self.attempt += 1
        self._pausing = False
        world, rng = self.world, self.rng
        self._target = (
            world.log.newest.partitions[self.key].leader if rng.random() < 0.8 else rng.choice(list(world.machines))
        )
        for batch in self.unacked:
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        world, attempt = self.world, self.attempt
        batch.sent_ms = world.timeline.now_ms
        self._arrives_ms = max(self._arrives_ms, world.timeline.now_ms + self.rng.uniform(0.5, 4.0))

        def reply(outcome: str, base: int) -> None:
            # Replies come in the order of requests, and none comes after one that was lost with its connection.
            if attempt == self.attempt and self.rng.random() < world.plan.lost_replies:
                self._lost_in = attempt
            if attempt != self._lost_in:
                now_ms = world.timeline.now_ms
                self._told_ms = max(self._told_ms, now_ms + self.rng.uniform(0.5, 4.0))
                world.timeline.after(self._told_ms - now_ms, self._told, attempt, batch, outcome, base)

        def deliver(broker: Broker) -> None:
            broker.produce(self.key, batch.data, batch.value, reply)

        world.deliver(self._target, self._arrives_ms - world.timeline.now_ms, deliver)

    def _told(self, attempt: int, batch: Batch, outcome: str, base: int) -> None:
        if outcome == "ok":
            self.world.checkers.acknowledged(self.key, base, batch.value)
            if attempt == self.attempt and not batch.acked:
                batch.acked = self._is_known = True
                self._refused_ms = -1.0
                self.unacked.remove(batch)
        elif attempt == self.attempt:
            self.attempt += 1
            self._pausing = True
            self._note_refusal(outcome, batch)
            self.world.timeline.after(self.rng.uniform(20, 150), self._retry, self.attempt)

    def _note_refusal(self, outcome: str, batch: Batch) -> None:
        """A producer that is told for long that its sequence is out of order takes another id, as Kafka's does. That is so only
        if its batches are there, and the partition knows no more than their last one."""
        now_ms = self.world.timeline.now_ms
        if outcome != "OUT_OF_ORDER_SEQUENCE_NUMBER" or batch is not self.unacked[0]:
            return
        if self._refused_ms < 0:
            self._refused_ms = now_ms
        elif now_ms - self._refused_ms > RESET_MS:
            self._refused_ms = -1.0
            self.world.checkers.producer_resets(self.key, [each.value for each in self.unacked])
            self._producer_id = self.world.new_producer_id()
            self._sequence = 0
            self._is_known = False
            self.unacked = []

    def _retry(self, attempt: int) -> None:
        if attempt == self.attempt:
            self._again()


class Consumer:
    """Of one partition: it reads on from where it is, and now and then from an earlier offset."""

    def __init__(self, world: World, key: TopicIdPartition, rng: Random) -> None:
        self.world, self.key, self.rng = world, key, rng
        self.offset = 0
        world.timeline.after(rng.uniform(500, 900), self._tick)

    def _tick(self) -> None:
        rng, world = self.rng, self.world
        world.timeline.after(rng.uniform(20, 80), self._tick)
        offset = self.offset if rng.random() < 0.7 else rng.randint(0, self.offset)
        target = (
            world.log.newest.partitions[self.key].leader if rng.random() < 0.8 else rng.choice(list(world.machines))
        )

        def reply(values: list[int], at: int) -> None:
            world.timeline.after(rng.uniform(0.5, 4.0), self._read, values, at)

        world.deliver(target, rng.uniform(0.5, 4.0), lambda broker: broker.fetch(self.key, offset, reply))

    def _read(self, values: list[int], at: int) -> None:
        self.world.checkers.was_read(self.key, at, values)
        if at <= self.offset:
            self.offset = max(self.offset, at + len(values))
