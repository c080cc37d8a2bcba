"""Membership and controller on virtual time: who may start, who is fenced, how changes are grouped, what a bad store does to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, FencedError, RequestRejected, StorageUnavailable
from app.core.units import BrokerId, LogSequence, TopicIdPartition
from app.metadata.changes.topic_changes import ConfigChange, PlanInputs, Planned, no_change
from app.metadata.controller import decisions
from app.metadata.controller.controller import Controller
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.log.log_format import KeyValue
from app.metadata.membership.membership import Membership
from app.metadata.peers.liveness import BEAT_INTERVAL_MS, Identity
from app.metadata.view.registration import StartRefused
from app.metadata.view.view import ClusterView
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.wire.config_resources import ConfigOperation
from tests.metadata.controllers import PUT, make
from tests.metadata.support import QUICK, FixedClock, make_log, on_virtual_time, requests_of, running, uuid_of
from tests.support.changing import alter_configs, delete_topic, finish_topic_deletion
from tests.support.virtual_loop import VirtualClock, VirtualLoop


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# --- starting -------------------------------------------------------------------------------------------------------


def test_an_empty_prefix_becomes_a_cluster() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            image = member.view.image
            assert len(image.cluster_id) == 22
            assert image.controller.broker_id == 1
            assert image.brokers[1].directory_id == uuid_of(1)
            assert (image.brokers[1].host, image.brokers[1].port) == ("127.0.0.1", 9092)
            assert dict(requests_of(store)) == {"list_objects": 2, "put": 1, PUT: 2}

    on_virtual_time(main)


def test_the_bound_directory_starts_at_once_and_finds_everything() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        first = make(store)
        await first.start()
        run = asyncio.create_task(first.run())
        topic = await first.controller.create_topic("t", 3, {"retention.ms": "-1"})
        run.cancel()
        again = make(store, seed=1)
        await again.start()
        assert again.view.image.topic("t") == topic
        assert again.view.image.cluster_id == first.view.image.cluster_id
        assert again.view.image.controller.epoch == 1
        assert again.view.image.brokers[1].broker_epoch == 1
        assert again.view.effective_config(topic).retention_ms == -1
        assert not again.registration.took_over

    on_virtual_time(main)


def test_another_directory_is_refused_while_the_bound_one_lives() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            await asyncio.sleep(100)
            before = len(store.history)
            with pytest.raises(
                StartRefused, match=r"Node id 1 is in use.*stop it and wait .* or start with --take-over"
            ):
                await make(store, 2).start()
            assert PUT not in requests_of(store, before)
            await member.controller.create_topic("t")

    on_virtual_time(main)


def test_another_directory_starts_after_thirty_seconds_of_silence() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        old = make(store)
        await old.start()
        await asyncio.sleep(29)
        with pytest.raises(StartRefused, match="a sign of life 29 s ago"):
            await make(store, 2).start()
        await asyncio.sleep(2)
        new = make(store, 2)
        await new.start()
        assert new.view.image.brokers[1].directory_id == uuid_of(2)
        assert (old.registration.took_over, new.registration.took_over) == (False, True)
        with pytest.raises(FencedError, match="taken over by data directory"):
            await old.registration.heartbeat()

    on_virtual_time(main)


def test_after_a_clean_stop_another_directory_starts_at_once() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)):
            await asyncio.sleep(1)
        await make(store, 2).start()

    on_virtual_time(main)


def test_a_take_over_needs_no_silence_and_stops_the_old_one_by_itself() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        fenced: list[FencedError] = []
        old = make(store)
        old.view.on_fenced(fenced.append)
        await old.start()
        run = asyncio.create_task(old.run())
        await asyncio.sleep(1)
        await make(store, 2, take_over=True).start()
        with pytest.raises(FencedError, match="Node id 1 has been taken over"):
            await run
        assert loop.time() <= 2 * BEAT_INTERVAL_MS / 1000
        assert len(fenced) == 1
        assert old.view.fenced
        with pytest.raises(FencedError):
            await old.controller.create_topic("t")

    on_virtual_time(main)


def test_a_taken_over_broker_finds_out_by_its_next_change() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as old:
            new = make(store, 2, take_over=True)
            await new.start()
            changes = [asyncio.create_task(old.controller.create_topic(f"t{number}")) for number in range(3)]
            for change in changes:
                with pytest.raises(FencedError):
                    await change
            await new.view.log.poll()
            assert not new.view.image.topics_by_name

    on_virtual_time(main)


def test_a_second_process_on_the_same_directory_fences_the_first() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as first, running(make(store, seed=1)) as second:
            await second.controller.create_topic("t")
            with pytest.raises(FencedError):
                await first.controller.create_topic("u")

    on_virtual_time(main)


def test_another_node_is_refused_while_a_broker_runs_the_cluster_alone() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)):
            with pytest.raises(StartRefused, match="Broker 1 runs this cluster by itself"):
                await make(store, 2, node_id=2).start()
        await make(store, 2, node_id=2).start()

    on_virtual_time(main)


@pytest.mark.parametrize("seed", range(30))
def test_of_two_that_bootstrap_at_once_one_runs(seed: int) -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        store.faults = [Fault(FaultKind.LATENCY, latency_ms=(1, 50)), Fault(FaultKind.LOST_ANSWER, probability=0.1)]
        rivals = [make(store, 1, seed=seed), make(store, 2, seed=seed)]
        outcomes = await asyncio.gather(*(each.start() for each in rivals), return_exceptions=True)
        started = [each for each, outcome in zip(rivals, outcomes, strict=True) if outcome is None]
        assert all(outcome is None or isinstance(outcome, StartRefused) for outcome in outcomes), outcomes
        assert len(started) == 1
        run = asyncio.create_task(started[0].run())
        topic = await started[0].controller.create_topic("t")
        assert topic.partitions[0].leader == 1
        assert started[0].view.image.brokers[1].directory_id == started[0].view.identity.directory_id
        run.cancel()

    async def seeded(loop: VirtualLoop, _: MemoryStore) -> None:
        await main(loop, MemoryStore(VirtualClock(loop), random.Random(seed)))

    on_virtual_time(seeded)


def test_a_directory_of_another_cluster_is_refused() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        with pytest.raises(StartRefused, match="belongs to cluster X, but the store is empty"):
            await make(store, expected_cluster_id="X").start()
        assert not store.contents()
        first = make(store)
        await first.start()
        with pytest.raises(StartRefused, match=f"but the store is of cluster {first.view.image.cluster_id}"):
            await make(store, expected_cluster_id="X").start()
        await make(store, expected_cluster_id=first.view.image.cluster_id).start()

    on_virtual_time(main)


# --- changing -------------------------------------------------------------------------------------------------------


def test_changes_that_come_together_are_one_entry() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        store.faults = [Fault(FaultKind.LATENCY, latency_ms=(50, 50))]
        async with running(make(store)) as member:
            before = len(store.history)
            first = asyncio.create_task(member.controller.create_topic("first"))
            await asyncio.sleep(0.01)
            rest = [asyncio.create_task(member.controller.create_topic(f"t{number}")) for number in range(20)]
            await asyncio.gather(first, *rest)
            assert requests_of(store, before)[PUT] == 2, "one under way, and one for all that came meanwhile"
            assert len(member.view.image.topics_by_name) == 21

    on_virtual_time(main)


def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "GROUP_CHANGES_MAX", 50)
    monkeypatch.setattr(decisions, "GROUP_BYTES_MAX", 3_000)

    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            before = len(store.history)
            await asyncio.gather(*(member.controller.allocate_producer_ids() for _ in range(100)))
            assert requests_of(store, before)[PUT] == 2
            before = len(store.history)
            await asyncio.gather(*(member.controller.create_topic(f"t{number}", 10) for number in range(10)))
            assert requests_of(store, before)[PUT] > 2
            assert len(member.view.image.topics_by_name) == 10

    on_virtual_time(main)


def test_the_listeners_of_a_long_entry_have_a_turn_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        store.faults = [Fault(FaultKind.LATENCY, latency_ms=(50, 50))]
        this_turn: set[str] = set()
        together: list[set[str]] = []

        def happens(event: str) -> None:
            loop.call_soon(this_turn.clear)
            this_turn.add(event)
            together.append(set(this_turn))

        async with running(make(store)) as member:
            log = member.view.log
            append = log.append

            async def noted(expected_sequence: int, records: Sequence[KeyValue]) -> LogSequence:
                sequence = await append(expected_sequence, records)
                happens("applied")
                return sequence

            def plan_next(draft: ImageDraft, around: PlanInputs) -> Planned[None]:
                happens("planned")
                return Planned((), None)

            monkeypatch.setattr(log, "append", noted)
            member.view.on_change(lambda image, delta: happens("told"))
            making = asyncio.create_task(member.controller.create_topic("wide", 1_000))
            await asyncio.sleep(0.01)  # its entry is under way
            await asyncio.gather(making, member.controller.submit(plan_next))
        assert together == [{"applied"}, {"told"}, {"planned"}]

    on_virtual_time(main)


def test_a_change_is_judged_by_those_before_it_in_the_same_group() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            outcomes = await asyncio.gather(
                member.controller.create_topic("t"),
                member.controller.create_topic("t"),
                delete_topic(member.controller, "t"),
                member.controller.create_topic("t", 2),
                member.controller.create_partitions("t", 3),
                return_exceptions=True,
            )
            refused = outcomes[1]
            assert isinstance(refused, RequestRejected)
            assert refused.code is ErrorCode.TOPIC_ALREADY_EXISTS
            assert [type(outcome).__name__ for outcome in outcomes].count("TopicImage") == 4
            assert len(member.view.image.topics_by_name["t"].partitions) == 3
            assert len(member.view.image.deleting) == 1

    on_virtual_time(main)


def test_a_refusal_waits_for_what_it_was_judged_by() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            store.faults = [Fault(FaultKind.UNAVAILABLE)]
            outcomes = await asyncio.gather(
                member.controller.create_topic("t"), member.controller.create_topic("t"), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [StorageUnavailable, StorageUnavailable]

    on_virtual_time(main)


def test_after_an_outage_the_same_broker_goes_on() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            store.faults = [
                Fault(FaultKind.LOST_ANSWER, operation=PUT, times=1),
                Fault(FaultKind.UNAVAILABLE),
            ]
            with pytest.raises(StorageUnavailable):
                await member.controller.create_topic("t")
            assert member.view.image.topic("t") is None, "not known to be made"
            await asyncio.sleep(50)
            store.faults = []
            with pytest.raises(RequestRejected, match="already exists"):
                await member.controller.create_topic("t")
            await member.controller.create_topic("u")
            assert set(member.view.image.topics_by_name) == {"t", "u"}
            assert member.view.image.controller.epoch == 1, "it sealed again"

    on_virtual_time(main)


def test_validate_only_changes_nothing() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            await member.controller.create_topic("there")
            before, image = len(store.history), member.view.image
            topic = await member.controller.create_topic("t", 4, validate_only=True)
            assert len(topic.partitions) == 4
            grown = await member.controller.create_partitions("there", 5, validate_only=True)
            assert len(grown.partitions) == 5
            change = ConfigChange("retention.ms", ConfigOperation.SET, "7")
            operations = [change, ConfigChange("local.retention.ms", ConfigOperation.SET, "5")]
            overrides = await alter_configs(member.controller, 2, "there", operations, validate_only=True)
            assert overrides == {"retention.ms": "7", "local.retention.ms": "5"}
            with pytest.raises(RequestRejected, match="already exists"):
                await member.controller.create_topic("there", validate_only=True)
            assert member.view.image is image
            assert not requests_of(store, before)

    on_virtual_time(main)


def test_a_caller_that_leaves_does_not_take_its_change_back() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        store.faults = [Fault(FaultKind.LATENCY, latency_ms=(50, 50))]
        async with running(make(store)) as member:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(member.controller.create_topic("t"), 0.01)
            await asyncio.sleep(1)
            assert member.view.image.topic("t") is not None

    on_virtual_time(main)


def test_what_waits_is_refused_when_the_broker_stops() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        member = make(store)
        await member.start()
        run = asyncio.create_task(member.run())
        store.faults = [Fault(FaultKind.HANG)]
        changes = [asyncio.create_task(member.controller.create_topic(f"t{number}")) for number in range(2)]
        await settle()
        run.cancel()
        for change in changes:
            with pytest.raises(StorageUnavailable, match="stopping"):
                await change

    on_virtual_time(main)


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "PENDING_CHANGES_MAX", 2)

    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        member = make(store)
        await member.start()
        waiting = [asyncio.create_task(member.controller.create_topic(f"t{number}")) for number in range(2)]
        await settle()
        with pytest.raises(RequestRejected) as refused:
            await member.controller.create_topic("one too many")
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        run = asyncio.create_task(member.run())
        await asyncio.gather(*waiting)
        run.cancel()

    on_virtual_time(main)


def test_listeners_hear_every_change_once_and_in_order() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        heard: list[tuple[ClusterImage, ImageDelta]] = []
        quiet = (False,) * (len(ImageDelta._fields) - 1)
        async with running(make(store)) as member:
            member.view.on_change(lambda image, delta: heard.append((image, delta)))
            topic = await member.controller.create_topic("t")
            assert heard[-1] == (member.view.image, (frozenset({topic.topic_id}), *quiet))
            await alter_configs(
                member.controller, 4, "", [ConfigChange("log.retention.ms", ConfigOperation.SET, "5000000")]
            )
            assert heard[-1][1] == (frozenset(), False, True, *quiet[2:])
            await delete_topic(member.controller, topic_id=topic.topic_id)
            assert heard[-1][1] == (frozenset({topic.topic_id}), False, False, True, *quiet[3:])
            await finish_topic_deletion(member.controller, topic.topic_id)
            assert heard[-1][1] == (frozenset(), False, False, True, *quiet[3:])
            sequences = [image.sequence for image, _ in heard]
            assert sequences == sorted(set(sequences))

    on_virtual_time(main)


def test_leader_epochs_and_producer_ids_survive_a_restart() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            topic = await member.controller.create_topic("t", 2)
            partitions = [TopicIdPartition(topic.topic_id, each.partition_index) for each in topic.partitions]
            assert await member.controller.bump_leader_epochs(partitions, above={partitions[1]: 6}) == {
                partitions[0]: 1,
                partitions[1]: 7,
            }
            assert await member.controller.allocate_producer_ids() == range(1000)
        async with running(make(store, seed=1)) as member:
            assert [each.leader_epoch for each in member.view.image.topics_by_name["t"].partitions] == [1, 7]
            assert await member.controller.allocate_producer_ids() == range(1000, 2000)

    on_virtual_time(main)


@pytest.mark.parametrize("seed", range(25))
def test_over_a_bad_store_what_was_answered_is_so(seed: int) -> None:
    """Topics that were acknowledged are there after a restart, once; blocks of ids are given once."""

    async def main(loop: VirtualLoop, _: MemoryStore) -> None:
        store = MemoryStore(VirtualClock(loop), random.Random(seed))
        made: set[str] = set()
        blocks: list[range] = []

        async def make_topic(member: Membership, name: str) -> None:
            try:
                await member.controller.create_topic(name)
                made.add(name)
            except StorageUnavailable:
                return
            except RequestRejected as refused:
                if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                made.add(name)

        async def take_block(member: Membership) -> None:
            try:
                blocks.append(await member.controller.allocate_producer_ids())
            except StorageUnavailable:
                return

        for start in range(4):
            store.faults = []
            async with running(make(store, seed=seed * 10 + start)) as member:
                store.faults = [
                    Fault(FaultKind.LATENCY, latency_ms=(1, 100)),
                    Fault(FaultKind.LOST_ANSWER, probability=0.3),
                    Fault(FaultKind.UNAVAILABLE, probability=0.3),
                    Fault(FaultKind.APPLIED_LATE, operation=PUT, probability=0.2, latency_ms=(10, 20_000)),
                    Fault(FaultKind.HANG_APPLIED, probability=0.02),
                ]
                rng = random.Random(seed)
                for step in range(12):
                    name = f"t{start}-{rng.randrange(10)}"
                    await asyncio.gather(make_topic(member, name), take_block(member))
                    await asyncio.sleep(rng.uniform(0, 20) if step % 4 == 0 else 0)
                store.faults = []
        await asyncio.sleep(60)
        last = make(store, seed=99)
        await last.start()
        assert made <= set(last.view.image.topics_by_name)
        assert made
        starts = [block.start for block in blocks]
        assert len(starts) == len(set(starts))
        assert last.view.image.producer_id_next >= max(starts, default=-1000) + 1000

    on_virtual_time(main)


# --- a real directory -----------------------------------------------------------------------------------------------


async def test_a_cluster_lives_in_a_directory(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    async with running(make(store)) as member:
        await asyncio.gather(*(member.controller.create_topic(f"t{number}", 2) for number in range(10)))
        with pytest.raises(StartRefused):
            await make(store, 2).start()
    async with running(make(store, 2)) as member:
        assert len(member.view.image.topics_by_name) == 10


def test_requests_of_the_cluster_are_counted() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store)) as member:
            before = len(store.history)
            await member.controller.create_topic("t", 100)
            assert dict(requests_of(store, before)) == {PUT: 1}
            before = len(store.history)
            await delete_topic(member.controller, "t")
            assert dict(requests_of(store, before)) == {PUT: 1}
            before = len(store.history)
            await member.registration.heartbeat()
            assert dict(requests_of(store, before)) == {"put": 1, "list_objects": 1}
        before = len(store.history)
        await make(store, seed=1).start()
        tail = 4
        assert dict(requests_of(store, before)) == {"list_objects": 2, "get": tail, "put": 1, PUT: 2}

    on_virtual_time(main)


# --- of several brokers ---------------------------------------------------------------------------------------------


async def in_office(store: ObjectStore, node_id: int, *, takes: bool = True) -> tuple[ClusterView, Controller]:
    """A controller of a cluster of several brokers that has just taken office, or with ``takes`` false has not."""
    clock, rng = FixedClock(), random.Random(node_id)
    identity = Identity(BrokerId(node_id), uuid_of(node_id), uuid_of(100 + node_id))
    view = ClusterView(
        store, config=BrokerConfig(node_id=node_id), identity=identity, rng=rng, clock=clock, timings=QUICK
    )
    view.registered = False
    controller = Controller(view, rng=rng, clock=clock)
    controller.active = False
    await view.log.load()
    if not view.log.state.image.cluster_id:
        assert await controller.create_cluster(1)
    if takes:
        assert await controller.take_office()
    return view, controller


def test_a_controller_whose_read_of_a_seal_is_cancelled_steps_down_and_makes_no_more_changes() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        _, old = await in_office(store, 1)
        view, new = await in_office(store, 2)
        told: list[bool] = []
        old.on_office(lambda: told.append(old.active))
        tasks = [asyncio.create_task(one.run()) for one in (old, new)]
        await asyncio.sleep(0)
        hangs = Fault(FaultKind.HANG, operation="list_objects", skip=1, times=1)
        store.faults = [hangs]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(old.confirm(), 0.5)
        assert hangs.struck
        assert told == [False]
        with pytest.raises(RequestRejected) as caught:
            await old.allocate_producer_ids()
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await new.allocate_producer_ids()
        reader = make_log(store, "reader")
        await reader.load()
        assert reader.next_sequence == view.log.next_sequence
        for task in tasks:
            task.cancel()

    on_virtual_time(main)


def test_only_a_request_to_the_store_confirms_the_log_and_as_of_its_beginning() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        _, controller = await in_office(store, 1)
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(5)
        before_s, requests = controller.confirmed_s, len(store.history)
        with pytest.raises(RequestRejected):
            await delete_topic(controller, "missing")
        await controller.submit(no_change)
        assert len(store.history) == requests
        assert controller.confirmed_s == before_s < loop.time(), "nothing was written, so nothing is confirmed"

        asked_s = loop.time()
        store.faults = [Fault(FaultKind.LATENCY, operation=PUT, latency_ms=(3_000, 3_000))]
        await controller.allocate_producer_ids()
        assert loop.time() > asked_s
        assert controller.confirmed_s == asked_s
        assert await controller.take_office()
        assert asked_s < controller.confirmed_s < loop.time()
        task.cancel()

    on_virtual_time(main)


def test_an_office_whose_first_change_is_refused_leaves_the_controller_there_is() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        view, _ = await in_office(store, 1)
        _, rival = await in_office(store, 2, takes=False)
        before = view.log.next_sequence

        def refused(draft: ImageDraft, around: PlanInputs) -> Sequence[KeyValue]:
            assert draft.controller.broker_id == 2
            assert around.sequence == before + 1, "after a seal"
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "No.")

        with pytest.raises(RequestRejected, match="No"):
            await rival.take_office(plan=refused)
        assert not rival.active
        await view.log.poll()
        assert view.log.next_sequence == before
        assert view.log.is_writer
        assert await rival.take_office()

    on_virtual_time(main)
