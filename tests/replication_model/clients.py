"""Producers that ask for acks=all, and consumers that ask for the latest offset. Both know the cluster by stale metadata."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from tests.replication_model.world import World

PRODUCE_EVERY_MS: Final = (120.0, 420.0)
LATEST_EVERY_MS: Final = (400.0, 1200.0)
IN_FLIGHT_MAX: Final = 5
GIVE_UP_MS: Final = 3000.0


class ProduceAsked(NamedTuple):
    """Append one record, and answer when it is committed."""

    index: int
    leader_epoch: int
    """-1 if the client does not know it."""
    value: int


class Produced(NamedTuple):
    """The response: where it is, or an error."""

    error: str
    offset: int = -1
    epoch: int = -1


class LatestAsked(NamedTuple):
    """ListOffsets(latest)."""

    index: int


class Client:
    """One producer and one consumer of one partition. Each record has a value of its own, and is sent once."""

    def __init__(self, world: World, index: int, rng: Random) -> None:
        self._world = world
        self._index = index
        self._rng = rng
        self._leader = -1
        self._in_flight = 0
        self.acked = 0
        self.last_acked_ms = -1.0
        self._world.timeline.after(self._rng.uniform(*PRODUCE_EVERY_MS), self._produce)
        self._world.timeline.after(self._rng.uniform(*LATEST_EVERY_MS), self._ask_latest)

    def _produce(self) -> None:
        world, rng = self._world, self._rng
        world.timeline.after(rng.uniform(*PRODUCE_EVERY_MS), self._produce)
        if self._leader < 0 or self._in_flight >= IN_FLIGHT_MAX:
            self._refresh()
            return
        asked = ProduceAsked(self._index, -1, world.new_value())
        self._in_flight += 1
        state = {"done": False}

        def on_reply(response: Any) -> None:
            late = state["done"]
            state["done"] = True
            if not late:
                self._in_flight -= 1
            if isinstance(response, Produced) and not response.error:
                self.acked += 1
                self.last_acked_ms = world.now_ms
                world.checkers.acknowledged(self._index, response.epoch, response.offset, (response.epoch, asked.value))
            elif not late:
                self._refresh()

        def give_up() -> None:
            if not state["done"]:
                on_reply(None)

        world.network.client_call(self._leader, "produce", asked, on_reply)
        world.timeline.after(GIVE_UP_MS, give_up)

    def _ask_latest(self) -> None:
        world = self._world
        world.timeline.after(self._rng.uniform(*LATEST_EVERY_MS), self._ask_latest)
        if self._leader >= 0:
            # Checked where it is answered: the answers of one moment may arrive in any order.
            world.network.client_call(self._leader, "latest", LatestAsked(self._index), lambda response: None)

    def _refresh(self) -> None:
        """Metadata of any broker, which may be behind."""
        process = self._rng.choice(self._world.machines_in_order).process
        if process is None or process.paused:
            return
        topic = process.image.topics_by_id.get(self._world.topic_id)
        if topic is not None:
            self._leader = int(topic.partitions[self._index].leader)
