"""Changes of thousands of partitions are planned, written and applied in portions, and a part of one is never seen (ADR 0039)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from app.configs import BrokerConfig
from app.core.errors import CorruptionError, ErrorCode, RequestRejected, StorageUnavailable
from app.core.turns import Steps, run, whole
from app.core.units import BrokerId, LogSequence, PartitionIndex, TimestampMs, TopicId, TopicIdPartition
from app.metadata.changes import broker_changes, leader_changes, reassignments
from app.metadata.changes import topic_changes as changes
from app.metadata.changes.broker_changes import ProposedSet
from app.metadata.changes.reassignments import ReassignmentAsked
from app.metadata.changes.topic_changes import ConfigChange, PlanInputs, Planned
from app.metadata.controller.decisions import Decisions
from app.metadata.image.draft import ClusterState, ImageDraft
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import (
    LEVEL_FEATURE,
    MemberRecord,
    broker_change,
    feature_change,
    group_configs_change,
    partition_change,
    topic_change,
)
from app.metadata.log.log_format import Entry, KeyValue, decode_entry, encode_entry
from app.metadata.log.log_proofs import Proofs, parse_keys
from app.metadata.log.numbered_log import LongState, NumberedLog
from app.metadata.replicas.replica_changes import ProposedReplica
from app.objectstore.memory import MemoryStore
from app.records.builder import build_batch, build_batch_in_steps
from app.wire.config_resources import ConfigOperation
from tests.metadata.support import FixedClock, uuid_of
from tests.support.counted_loop import LookedAtLoop, count_turns

WIDE = TopicId(UUID(int=77))
PARTITIONS = 3_000
TURNS_MIN = 4
"""A turn of ``LookedAtLoop`` is ten looks at the clock, and there is a look for every 100 records at least."""
AROUND = PlanInputs(BrokerConfig(node_id=1), [BrokerId(each) for each in (1, 2, 3)], TimestampMs(0), 0)


def on_looked_at_loop(main: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=LookedAtLoop) as runner:
        runner.run(main())


def brokers(*, fenced: int = 0) -> Iterator[KeyValue]:
    for each in (1, 2, 3):
        yield broker_change(
            each, MemberRecord(1, uuid_of(each), uuid_of(each), each, (), None, TimestampMs(0), fenced=each == fenced)
        )


def image(*, fenced: int = 0) -> ClusterImage:
    """Three brokers, and a topic of many partitions on all of them."""
    draft = ImageDraft(ClusterImage())
    draft.apply([feature_change(LEVEL_FEATURE, 1), *brokers()])
    draft.apply(wide(draft).records)
    if fenced:
        draft.apply(broker_changes.fence_brokers(draft, AROUND, [(fenced, fenced)]).records)
    return draft.freeze(LogSequence(1))


def wide(draft: ImageDraft) -> Planned[Any]:
    return changes.create_topic(
        draft,
        AROUND,
        topic_id=WIDE,
        name="wide",
        partitions=PARTITIONS,
        replication_factor=3,
        configs={},
        assignments=None,
    )


def changed(found: ClusterImage, **fields: Any) -> ClusterImage:
    """All partitions with some fields changed."""
    draft = ImageDraft(found)
    partitions = found.topics_by_name["wide"].partitions
    draft.apply([partition_change(WIDE, one.partition_index, one._replace(**fields).record()) for one in partitions])
    return draft.freeze(LogSequence(2))


NEW = TopicId(UUID(int=78))
KEYS = [TopicIdPartition(WIDE, PartitionIndex(index)) for index in range(PARTITIONS)]
LOST_TWO = [
    ProposedSet(WIDE, index, 0, 0, [ProposedReplica(1 + index % 3, 1 + index % 3)]) for index in range(PARTITIONS)
]
PLANS: dict[str, tuple[ClusterImage, Callable[[ImageDraft], Steps[Planned[Any]]]]] = {}


def plan(name: str, found: ClusterImage) -> Callable[[Callable[[ImageDraft], Steps[Planned[Any]]]], None]:
    def note(steps: Callable[[ImageDraft], Steps[Planned[Any]]]) -> None:
        PLANS[name] = found, steps

    return note


FULL = image()
RECORDS = [
    partition_change(WIDE, one.partition_index, one.record()) for one in FULL.topics_by_name["wide"].partitions
] + [topic_change(WIDE, FULL.topics_by_name["wide"].record())]
LED_BY_TWO = changed(FULL, leader=BrokerId(2))
plan("creates", FULL)(
    lambda draft: changes.create_topic.steps(
        draft, AROUND, topic_id=NEW, name="n", partitions=PARTITIONS, replication_factor=2, configs={}, assignments=None
    )
)
plan("creates by hand", FULL)(
    lambda draft: changes.create_topic.steps(
        draft, AROUND, topic_id=NEW, name="n", partitions=-1, replication_factor=-1, configs={},
        assignments={index: [1, 2] for index in range(PARTITIONS)},
    )
)  # fmt: skip
plan("grows", FULL)(
    lambda draft: changes.create_partitions.steps(draft, AROUND, name="wide", count=2 * PARTITIONS, assignments=None)
)
plan("deletes", FULL)(lambda draft: changes.delete_topic.steps(draft, name="wide", topic_id=None))
plan("clears eligible replicas", changed(FULL, isr=(BrokerId(1),), eligible=(BrokerId(2),)))(
    lambda draft: changes.alter_configs.steps(
        draft, AROUND, resource_type=2, resource_name="wide",
        changes=[ConfigChange("min.insync.replicas", ConfigOperation.SET, "2")],
    )
)  # fmt: skip
plan("raises epochs", FULL)(lambda draft: changes.bump_leader_epochs.steps(draft, KEYS, {}))
plan("fences", FULL)(lambda draft: broker_changes.fence_brokers.steps(draft, AROUND, [(1, 1)]))
plan("unfences", changed(image(fenced=1), leader=BrokerId(-1), isr=(BrokerId(1),)))(
    lambda draft: broker_changes.unfence_brokers.steps(draft, AROUND, [(1, 1, 9)])
)
plan("stops", FULL)(lambda draft: broker_changes.begin_stop.steps(draft, AROUND, 1, 1))
plan("unregisters", FULL)(lambda draft: broker_changes.unregister_broker.steps(draft, AROUND, 1))
plan("alters in-sync sets", FULL)(lambda draft: broker_changes.alter_in_sync.steps(draft, AROUND, 1, 1, LOST_TWO))
plan("elects", LED_BY_TWO)(lambda draft: leader_changes.elect_leaders.steps(draft, AROUND, None, unclean=False))
plan("prefers leaders again", LED_BY_TWO)(
    lambda draft: leader_changes.preferred_leaders_back.steps(draft, AROUND, [BrokerId(1), BrokerId(3)], PARTITIONS)
)
plan("reassigns", FULL)(
    lambda draft: reassignments.alter_reassignments.steps(
        draft, AROUND, [ReassignmentAsked("wide", index, (3, 2)) for index in range(PARTITIONS)]
    )
)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_over_many_partitions_gives_way_and_plans_the_same(name: str) -> None:
    found, steps = PLANS[name]
    at_once = whole(steps(ImageDraft(found)))
    assert len(at_once.records) > PARTITIONS // 4, "it is long"

    async def main() -> None:
        planned: list[Planned[Any]] = []

        async def work() -> None:
            planned.append(await run(steps(ImageDraft(found))))

        assert await count_turns(work()) >= TURNS_MIN
        assert planned == [at_once]

    on_looked_at_loop(main)


def entry_of(records: list[KeyValue], sequence: int = 2) -> Entry:
    return Entry(LogSequence(sequence), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), tuple(records))


def test_an_image_takes_a_long_entry_in_many_turns_and_shows_all_of_it_or_nothing() -> None:
    records = list(RECORDS)

    async def main() -> None:
        state = ClusterState()
        assert isinstance(state, LongState)
        seen: set[int] = set()

        async def work() -> None:
            await run(state.applying(entry_of(records)))

        task = asyncio.ensure_future(work())
        turns = 0
        while not task.done():
            turns += 1
            topic = state.image.topic("wide")
            seen.add(0 if topic is None else len(topic.partitions))
            await asyncio.sleep(0)
        assert turns >= TURNS_MIN
        assert seen <= {0, PARTITIONS}
        assert len(state.image.topics_by_name["wide"].partitions) == PARTITIONS

    on_looked_at_loop(main)


def test_a_long_entry_that_is_refused_halfway_leaves_the_image_as_it_was() -> None:
    records = list(RECORDS)
    state = ClusterState()
    before = state.image
    with pytest.raises(CorruptionError):
        state.apply(entry_of([*records[:2_000], *records[2_001:]]))
    assert state.image is before


def log_on(store: MemoryStore, writer: str) -> NumberedLog[ClusterState]:
    return NumberedLog(
        store,
        "cluster",
        writer_id=writer,
        rng=random.Random(writer),
        clock=FixedClock(),
        new_state=ClusterState,
        proofs=Proofs(parse_keys("a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=")),
    )


def test_a_log_writes_and_follows_a_long_entry_in_many_turns_and_a_cancelled_follower_has_nothing_of_it() -> None:
    async def main() -> None:
        store = MemoryStore(FixedClock())
        log, follower, reader = (log_on(store, name) for name in ("writer", "follower", "reader"))
        bodies: dict[int, bytes] = {}
        log.on_written = lambda sequence, body: bodies.__setitem__(sequence, body)
        await log.load()
        await log.seal(0)
        records = list(RECORDS)
        # It is encoded, proven, decoded and applied.
        assert await count_turns(log.append(1, records)) >= 3 * TURNS_MIN
        await follower.take(0, bodies[0])
        taking = asyncio.ensure_future(follower.take(1, bodies[1]))
        for _ in range(TURNS_MIN):
            await asyncio.sleep(0)
        assert not taking.done()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert (follower.next_sequence, len(follower.live), follower.state.image.topics_by_name) == (1, 0, {})
        # Whoever takes and polls at once waits for one another.
        taken, _ = await asyncio.gather(follower.take(1, bodies[1]), follower.poll())
        assert taken
        await reader.load()
        assert log.state.image == follower.state.image == reader.state.image
        assert log.live == follower.live == reader.live
        assert len(log.live) == PARTITIONS + 1

    on_looked_at_loop(main)


def test_a_batch_that_is_built_in_steps_has_the_same_bytes() -> None:
    for count in (1, 2, 99, 100, 101, 1_000):
        records = [(index % 7, b"k%d" % index, None if index % 3 else b"v" * index, ()) for index in range(count)]
        assert whole(build_batch_in_steps(records)) == build_batch(records)


def test_an_entry_is_the_same_whether_it_is_encoded_at_once_or_in_steps() -> None:
    fields: dict[str, Any] = {
        "writer_id": "w", "nonce": bytes(16), "is_seal": False, "epoch": 0, "previous": bytes(16),
        "timestamp_ms": TimestampMs(5),
    }  # fmt: skip
    records = list(RECORDS[:1_000])
    body = encode_entry(7, records, **fields)
    assert whole(encode_entry.steps(7, records, **fields)) == body
    assert list(decode_entry("k", 7, body).records) == records
    assert whole(decode_entry.steps("k", 7, body)) == decode_entry("k", 7, body)


# --- while a change is being planned --------------------------------------------------------------------------------


def long_plan(draft: ImageDraft, around: PlanInputs) -> Steps[Planned[str]]:
    yield
    yield
    return Planned([group_configs_change("long", {"a": "b"})], "long")


def short_plan(draft: ImageDraft, around: PlanInputs) -> Planned[str]:
    return Planned([group_configs_change("short", {"a": "b"})], "short")


def refused_plan(draft: ImageDraft, around: PlanInputs) -> Steps[Planned[str]]:
    yield
    raise RequestRejected(ErrorCode.INVALID_REQUEST, "No.")


def test_changes_that_wait_can_be_refused_while_one_is_planned() -> None:
    core = Decisions()
    numbers = [core.submit(long_plan), core.submit(short_plan)]
    core.begin(ClusterImage(), AROUND)
    planning = core.planning(10)
    next(planning)
    assert [each.number for each in core.refuse_waiting(StorageUnavailable("x"))] == numbers[1:]
    later = core.submit(refused_plan)
    assert whole(planning) is False
    answers = core.durable()
    assert [(each.number, each.value, str(each.error or "")) for each in answers] == [
        (numbers[0], "long", ""),
        (later, None, "No."),
    ]
    assert len(core.entry) == 0


def test_a_change_whose_planning_is_given_up_waits_again_or_is_answered() -> None:
    for given_up in ("overtaken", "undecided"):
        core = Decisions()
        number = core.submit(long_plan)
        core.begin(ClusterImage(), AROUND)
        planning = core.planning(10)
        next(planning)
        planning.close()
        if given_up == "undecided":
            assert [each.number for each in core.undecided(StorageUnavailable("x"))] == [number]
            continue
        core.overtaken()
        assert core.waiting == 1
        core.begin(ClusterImage(), AROUND)
        core.plan(10)
        assert [each.value for each in core.durable()] == ["long"]
