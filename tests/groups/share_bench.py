"""A share-partition's leader and its share coordinator, without their shells: what one decides, the other stores at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app.coordinator.partition import ReplayedBatch
from app.core.metrics import Registry
from app.core.units import PartitionIndex
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_partitions import SharePartition, SharePartitions, stored_runs
from app.groups.share.core.share_state import ShareKey, ShareSettings, ShareStateShard
from app.groups.share.core.share_window import Acknowledgement, Acquired, Window
from tests.groups.bench import topic_id

KEYS = tuple(ShareKey("g", topic_id("t"), index) for index in range(2))
"""Two share-partitions of one topic."""


class Both:
    """A share-partition as both have it."""

    def __init__(self, bench: ShareBench, led: SharePartition) -> None:
        self._bench, self._led = bench, led

    @property
    def window(self) -> Window:
        return self._led.window

    @property
    def snapshot_epoch(self) -> int:
        return self._bench.state.partitions[self._led.key].snapshot_epoch

    @property
    def state_epoch(self) -> int:
        return self._bench.state.partitions[self._led.key].state_epoch


class ShareBench:
    """Events come with a turn, as the shells give it."""

    def __init__(self, settings: Callable[[str], ShareSettings], counters: ShareCounters | None = None) -> None:
        self.state = ShareStateShard(PartitionIndex(0), settings)
        self.leader = SharePartitions(
            settings, self._store, ShareCounters(Registry()) if counters is None else counters
        )
        self.turn: Any = None
        self._epoch = 0

    def _store(self, shared: SharePartition, window: Window) -> None:
        self.state.write(
            self.turn,
            shared.key,
            shared.state_epoch,
            shared.leader_epoch,
            window.start,
            stored_runs(window),
            whole=True,
        )

    # --- the log ------------------------------------------------------------------------------------------------------

    def load(self, batch: ReplayedBatch) -> None:
        self.state.load(batch)

    def loaded(self, turn: Any) -> None:
        self.state.loaded(turn)

    def unloaded(self, turn: Any) -> None:
        self.state.unloaded(turn)
        for key in list(self.leader.partitions):
            self.leader.drop(turn, key)

    @property
    def partitions(self) -> dict[ShareKey, Both]:
        """All share-partitions. The leader reads the states of those that it does not have yet."""
        for key in self.state.partitions:
            self._led(key)
        return {key: Both(self, led) for key, led in self.leader.partitions.items()}

    def _led(self, key: ShareKey) -> None:
        stored = self.state.shared(key)
        if stored is not None and key not in self.leader.partitions:
            self.leader.open(key, stored.state, stored.leader_epoch)

    # --- operators ----------------------------------------------------------------------------------------------------

    def begin(self, turn: Any, key: ShareKey, start: int) -> None:
        self.state.reset(turn, key, start)
        self.leader.drop(turn, key)

    def forget(self, turn: Any, keys: Iterable[ShareKey]) -> None:
        wanted = list(keys)
        self.state.forget(turn, wanted)
        for key in wanted:
            self.leader.drop(turn, key)

    # --- members ------------------------------------------------------------------------------------------------------

    def acquire(
        self,
        turn: Any,
        key: ShareKey,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        nobody: Iterable[tuple[int, int]],
        log_start: int,
        count_max: int,
    ) -> list[Acquired]:
        self._at(turn, key)
        return self.leader.acquire(turn, key, member_id, batches, nobody, log_start, count_max)

    def acknowledge(self, turn: Any, key: ShareKey, member_id: str, said: Sequence[Acknowledgement]) -> None:
        self._at(turn, key)
        self.leader.acknowledge(turn, key, member_id, said)

    def release(self, turn: Any, key: ShareKey, member_id: str) -> None:
        self._at(turn, key)
        self.leader.release(turn, key, member_id)

    def due(self, turn: Any, key: ShareKey) -> None:
        self._at(turn, key)
        self.leader.due(turn, key)

    def _at(self, turn: Any, key: ShareKey) -> None:
        self.turn = turn
        self._led(key)
