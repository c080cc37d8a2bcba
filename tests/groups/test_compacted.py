"""What a coordinator loads from a log that was compacted is what it would load from the whole log."""

from __future__ import annotations

import random
from typing import Any

import pytest

from app.configs import TopicConfig
from app.coordinator.partition import CoordinatedLog, ProducerIdAndEpoch
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId
from app.groups.classic.classic import ClassicGroup
from app.groups.offsets import deletion
from app.groups.shard import GroupShard
from app.hot.log import PartitionLog
from app.records.control import ControlType
from app.replication.partition import Partition
from tests.groups.shards import CONFIG, ShardBench, answered
from tests.hot.cleaning import COMPACT, cleaner_over
from tests.hot.helpers import TOPIC_ID, ManualClock, manager_over, sim

NAME = "__consumer_offsets"
STEPS = 400
GROUPS = ("a", "b", "g")
PARTITIONS = 12
PRODUCERS = (1, 2, 3)


class LoggedBench(ShardBench):
    """Its records and markers go to a log on a disk too."""

    def __init__(self, log: PartitionLog, clock: ManualClock) -> None:
        super().__init__()
        self.log = log
        self.clock = clock
        coordinated = CoordinatedLog(Partition(log))
        kept = self.turn.append

        def append(records: Any, *, producer: ProducerIdAndEpoch | None = None) -> Any:
            coordinated.append(records, now_ms=self._now(), producer=producer)
            return kept(records, producer=producer)

        self.turn.append = append  # type: ignore[method-assign]

    def _now(self) -> int:
        self.clock.now = max(self.clock.now, self.turn.now_ms)
        return self.clock.now

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self.log.append_control(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=1,
            now_ms=self._now(),
        )
        super().end_transaction(producer_id, commit=commit)


async def loaded(log: PartitionLog, bench: ShardBench) -> GroupShard:
    shard = GroupShard(PartitionIndex(0), lambda: CONFIG, random.Random(1))
    async for batches in CoordinatedLog(Partition(log)).replay():
        for batch in batches:
            shard.load(batch)
    shard.loaded(type(bench.turn)())
    return shard


def what_it_knows(shard: GroupShard) -> dict[str, Any]:
    """All that a client could find out, and what an open transaction would."""
    known: dict[str, Any] = {}
    for group_id, group in shard.groups.items():
        assert isinstance(group, ClassicGroup)
        offsets = {
            (topic, partition): (found.offset, found.metadata)
            for topic, partitions in shard.offsets.topics(group_id).items()
            for partition, found in partitions.items()
        }
        pending = [partition for partition in range(PARTITIONS) if shard.offsets.is_pending(group_id, "t", partition)]
        members = {member.member_id: member.assignment for member in group.members.values()}
        known[group_id] = (group.state, group.generation, group.leader, members, offsets, pending)
    return known


def worth_telling(known: dict[str, Any]) -> dict[str, Any]:
    """Without groups that are nothing but a name, which a restart forgets."""
    return {group_id: row for group_id, row in known.items() if any(row[3:])}


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_loaded_does_not_depend_on_compaction(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "TOMBSTONES_AT_ONCE", 1)  # so that every deletion takes several batches
    rng = random.Random(seed)
    fs, clock = sim(seed), ManualClock()
    manager = manager_over(fs, clock=clock)
    await manager.load_all()
    settings = {**COMPACT, "delete_retention_ms": 0, "segment_bytes": 2000}
    log = manager.create(NAME, TOPIC_ID, PartitionIndex(0), TopicConfig(**settings))  # type: ignore[arg-type]
    bench = LoggedBench(log, clock)
    cleaner = cleaner_over(manager, fs, clock=clock)
    cleaned = 0
    for step in range(STEPS):
        group_id, partition = rng.choice(GROUPS), rng.randrange(PARTITIONS)
        match rng.randrange(13):
            case 0:
                bench.code(lambda shard, turn, name=group_id: shard.delete_group(turn, name))  # type: ignore[misc]
            case 1:
                gone = [("t", rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)))]
                bench.code(lambda shard, turn, name=group_id, gone=gone: shard.delete_offsets(turn, name, gone))  # type: ignore[misc]
            case 2 | 3 | 4:
                bench.commit("t", partition, step, group_id=group_id, producer_id=rng.choice(PRODUCERS))
            case 5 | 6:
                bench.end_transaction(rng.choice(PRODUCERS), commit=rng.random() < 0.7)
            case 7:
                rebalance(bench)
            case 8:
                bench.advance(rng.choice([0, 10_000]))  # deletions go on, and wait for transactions
            case 9:
                clock.now += 1000
                log.roll()
                await log.flush()
                cleaned += await cleaner.clean_next()
                whole = what_it_knows(await reloaded(bench))
                assert what_it_knows(await loaded(log, bench)) == whole, step
                assert worth_telling(what_it_knows(bench.shard)) == worth_telling(whole), step
            case _:
                bench.commit("t", partition, step, group_id=group_id)
    assert cleaned > 5
    await manager.close()


def rebalance(bench: LoggedBench) -> None:
    """Somebody comes to the group g, or all leave it."""
    group = bench.shard.groups.get("g")
    if isinstance(group, ClassicGroup) and group.members:
        bench.leave(*((member_id, None) for member_id in tuple(group.members)))
        return
    reply = bench.join()
    bench.advance(10_000)
    joined = answered(reply)
    bench.sync(joined.member_id, joined.generation_id, [(joined.member_id, b"all")])


async def reloaded(bench: LoggedBench) -> GroupShard:
    """A shard that was told everything, as it was appended."""
    shard = GroupShard(PartitionIndex(0), lambda: CONFIG, random.Random(1))
    for batch in bench.turn.batches:
        shard.load(batch)
    shard.loaded(type(bench.turn)())
    return shard
