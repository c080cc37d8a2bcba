"""Bytes that an acknowledgement of a share group adds to ``__share_group_state``: by snapshots alone, and with updates."""

from __future__ import annotations

import random
from uuid import UUID

from app.coordinator.records import CoordinatorRecord
from app.core.metrics import Registry
from app.core.units import Offset, PartitionIndex
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_partitions import SharePartition, SharePartitions, stored_runs
from app.groups.share.core.share_state import ShareKey, ShareSettings, ShareStateShard
from app.groups.share.core.share_window import Acknowledgement, Window

ACKNOWLEDGEMENTS = 2000
WINDOW_MAX = 2000
KEY = ShareKey("workers", UUID(int=1), 0)
PATTERNS = {
    "in order, 100 at a time": (1, 100, 100),
    "20 members, 100 at a time, in any order": (20, 100, 100),
    "one record at a time, in any order": (20, 100, 1),
}
"""How many pieces are out at once, of how many records each, and how many records an acknowledgement speaks of."""


class Counting:
    """A turn that counts what is appended."""

    now_ms = steady_ms = 0

    def __init__(self) -> None:
        self.bytes = 0

    def append(self, records: list[CoordinatorRecord], **_: object) -> Offset:
        self.bytes += sum(len(key) + len(value or b"") for key, value in records)
        return Offset(0)

    def set_timer(self, key: object, delay_ms: int) -> None:
        """Nobody is late."""

    def cancel_timer(self, key: object) -> None:
        """Nobody is late."""


def bytes_per_acknowledgement(out: int, records: int, said: int, updates_max: int) -> float:
    settings = ShareSettings(lock_ms=30_000, deliveries_max=5, window_max=WINDOW_MAX, updates_max=updates_max)
    turn, rng = Counting(), random.Random(1)
    state = ShareStateShard(PartitionIndex(0), lambda _: settings)

    def store(shared: SharePartition, window: Window) -> None:
        epochs = shared.state_epoch, shared.leader_epoch
        state.write(turn, KEY, *epochs, window.start, stored_runs(window), whole=True)  # type: ignore[arg-type]

    leader = SharePartitions(lambda _: settings, store, ShareCounters(Registry()))
    state.initialize(turn, KEY, 0, 0)  # type: ignore[arg-type]
    leader.open(KEY, state.partitions[KEY].state, 0)
    held: list[tuple[int, int]] = []
    for _ in range(ACKNOWLEDGEMENTS):
        while len(held) < out * records // said:
            first = leader.partitions[KEY].window.next_offset
            given = leader.acquire(turn, KEY, "m", [(first, first + records)], [], 0, records)
            if not given:
                break
            held += [(at, min(at + said, each.end)) for each in given for at in range(each.first, each.end, said)]
        first, end = held.pop(rng.randrange(len(held)))
        leader.acknowledge(turn, KEY, "m", [Acknowledgement(first, end, [1])])
    return turn.bytes / ACKNOWLEDGEMENTS


if __name__ == "__main__":
    for name, pattern in PATTERNS.items():
        before, after = (bytes_per_acknowledgement(*pattern, updates_max) for updates_max in (0, 500))
        print(f"{name}: {before:.0f} bytes by snapshots alone, {after:.0f} with updates")
