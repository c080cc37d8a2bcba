"""Kafka's own coordinator classes on the same input as ours: the range assignor, and a share coordinator that loads our records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import UUID

import pytest

from app.groups.assignors import MemberSpec, TopicSpec, assign_range
from app.groups.share_state import ShareSettings, ShareStateShard
from app.groups.share_window import Acknowledgement
from app.units import PartitionIndex
from tests.groups.shards import _Turn
from tests.groups.test_share_state_model import KEYS
from tests.interop.java_programs import JavaProgram, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]
ROUNDS = 500


@pytest.fixture(scope="module")
def kafka() -> Iterator[JavaProgram]:
    with running("CoordinatorClasses.java") as program:
        yield program


def topic(number: int) -> UUID:
    return UUID(int=1 << 64 | number)


def owned_anything(rng: random.Random, counts: list[int]) -> dict[UUID, frozenset[int]]:
    """What a member happens to have: neither assignor looks at it."""
    return {topic(at): frozenset({rng.randrange(count)}) for at, count in enumerate(counts) if rng.random() < 0.5}


def test_range_assigns_as_kafkas(kafka: JavaProgram) -> None:
    """Kafka's is neither sticky nor aware of racks."""
    rng = random.Random(848)
    for _ in range(ROUNDS):
        counts = [rng.randint(1, 12) for _ in range(rng.randint(1, 4))]
        one = frozenset(at for at in range(len(counts)) if rng.random() < 0.8)
        same = rng.random() < 0.5
        words: list[object] = ["range", *counts, "|"]
        specs: dict[str, MemberSpec] = {}
        for member in rng.sample(range(100), rng.randint(1, 7)):
            subscribed = one if same else frozenset(at for at in range(len(counts)) if rng.random() < 0.6)
            instance = f"i{rng.randint(0, 1000)}-{member}" if rng.random() < 0.4 else None
            words += [f"m{member}", instance or "-", ",".join(map(str, sorted(subscribed))) or "-"]
            specs[f"m{member}"] = MemberSpec(
                frozenset(map(topic, subscribed)),
                owned=owned_anything(rng, counts),
                instance_id=instance,
                rack_id=rng.choice([None, "r1", "r2"]),
            )
        ours = assign_range(specs, {topic(at): TopicSpec(count) for at, count in enumerate(counts)})
        said = " ".join(
            f"{member}="
            + "".join(
                f"{each.int & 0xFFFF}-{partition},"
                for each in sorted(ours[member], key=lambda each: each.int)
                for partition in sorted(ours[member][each])
            )
            for member in sorted(ours)
        )
        assert kafka.ask(*words) == said


def test_a_share_coordinator_of_kafka_loads_what_ours_wrote(kafka: JavaProgram) -> None:
    rng = random.Random(932)
    key = KEYS[0]
    settings = ShareSettings(lock_ms=1000, deliveries_max=4, window_max=40, updates_max=20)
    for _ in range(20):
        turn, shard = _Turn(), ShareStateShard(PartitionIndex(0), lambda _: settings)
        shard.begin(turn, key, rng.randint(0, 50))
        for _ in range(60):
            window = shard.partitions[key].window
            given = shard.acquire(
                turn, key, "m", [(window.next_offset, window.next_offset + 9)], [], 0, rng.randint(1, 9)
            )
            for each in given:
                first = rng.randrange(each.first, each.end)
                said = Acknowledgement(first, rng.randint(first + 1, each.end), [rng.choice([1, 1, 2, 3])])
                shard.acknowledge(turn, key, "m", [said])
            if rng.random() < 0.2:
                shard.release(turn, key, "m")
        shard.release(turn, key, "m")
        records = [record for batch in turn.batches for record in batch.records]
        words = [f"{name.hex()}={'-' if value is None else value.hex()}" for name, value in records]
        assert sum(name[:2] == b"\0\1" for name, _ in records) > 10, "updates"
        shared = shard.partitions[key]
        offsets = [
            f"{at}:{run.state}:{run.delivery_count}" for run in shared.window.runs for at in range(run.first, run.end)
        ]
        topic_id = key.name.split(":")[1]
        answer = kafka.ask("share", key.group_id, topic_id, key.partition, *words)
        assert answer == " ".join([str(shared.window.start), str(shared.snapshot_epoch), *offsets])
