"""Kafka's own coordinator classes on the same input as ours: the range assignor, and a share coordinator that loads our records."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from uuid import UUID

import pytest

from app.groups.consumer.assignors import MemberSpec, TopicSpec, assign_range
from app.groups.share.core.share_state import ShareSettings
from app.groups.share.core.share_window import Acknowledgement
from tests.groups.shards import ShardTurn
from tests.groups.share_bench import KEYS, ShareBench
from tests.interop.java_programs import JavaProgram, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]
ROUNDS = 500
RACKS = ("r1", "r2", "r3")


@pytest.fixture(scope="module")
def kafka() -> Iterator[JavaProgram]:
    with running("CoordinatorClasses.java") as program:
        yield program


def topic(number: int) -> UUID:
    return UUID(int=1 << 64 | number)


def or_none(words: Iterable[object], between: str = ",") -> str:
    return between.join(map(str, words)) or "-"


def test_range_assigns_as_kafkas(kafka: JavaProgram) -> None:
    """Both are given racks, and what members own: Kafka's is neither sticky nor aware of racks."""
    for first, other in (("0:0,0:3", "0:1,0:2"), ("0:1,0:2", "0:0,0:3")):
        asked = ("-;-;-;-", "|", "m1", "-", "-", "0", first, "m2", "-", "-", "0", other)
        kept = f"m1={first}, m2={other},".replace(":", "-")
        assert kafka.ask("uniform", *asked) == kept, "Kafka's classes know what members own"
        assert kafka.ask("range", *asked) == "m1=0-0,0-1, m2=0-2,0-3,"
    rng = random.Random(848)
    for _ in range(ROUNDS):
        counts = [rng.randint(1, 12) for _ in range(rng.randint(1, 4))]
        racks = [[frozenset(rng.sample(RACKS, rng.randint(0, 2))) for _ in range(count)] for count in counts]
        one = frozenset(at for at in range(len(counts)) if rng.random() < 0.8)
        same = rng.random() < 0.5
        numbers = rng.sample(range(100), rng.randint(1, 7))
        owner = {
            (at, partition): rng.choice([None, *numbers])
            for at, count in enumerate(counts)
            for partition in range(count)
        }
        words: list[object] = ["range", *(";".join(or_none(sorted(each)) for each in parts) for parts in racks), "|"]
        specs: dict[str, MemberSpec] = {}
        for member in numbers:
            subscribed = one if same else frozenset(at for at in range(len(counts)) if rng.random() < 0.6)
            instance = f"i{rng.randint(0, 1000)}-{member}" if rng.random() < 0.4 else None
            rack = rng.choice([None, *RACKS])
            owned = [pair for pair, whose in owner.items() if whose == member]
            words += [f"m{member}", instance or "-", rack or "-", or_none(sorted(subscribed))]
            words.append(or_none(f"{at}:{partition}" for at, partition in owned))
            specs[f"m{member}"] = MemberSpec(
                frozenset(map(topic, subscribed)),
                owned={topic(at): frozenset(partition for whose, partition in owned if whose == at) for at, _ in owned},
                instance_id=instance,
                rack_id=rack,
            )
        topics = {topic(at): TopicSpec(count, racks[at]) for at, count in enumerate(counts)}
        ours = assign_range(specs, topics)
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
        turn, shard = ShardTurn(), ShareBench(lambda _: settings)
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
