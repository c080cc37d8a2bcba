"""The coordinator with logs under it: what is refused, what is stored before what, time-outs, restarts, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import Durability
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.records.builder import build_batch
from app.transactions.coordinator import STORED_WITHIN_S
from app.transactions.state import VERSION_1, VERSION_2, ProducerIdentity, Transaction, TransactionState
from tests.support.virtual_loop import VirtualLoop, run_virtual
from tests.transactions import world as world_module
from tests.transactions.world import DATA_TOPICS, World

A, B = (TopicPartition(topic, PartitionIndex(0)) for topic in DATA_TOPICS)
TIMEOUT_MS = 5_000


def in_world(
    test: Callable[[World], Coroutine[Any, Any, None]], durability: Durability = Durability.MEMORY, **settings: Any
) -> None:
    """Play ``test`` with a started world."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, durability=durability, **settings)
        await world.start()
        await asyncio.sleep(0.1)
        try:
            await test(world)
        finally:
            await world.stop()

    run_virtual(main)


async def add(world: World, identity: ProducerIdentity, *targets: TopicPartition, version: int = VERSION_1) -> None:
    added = world.transactions.add_partitions("t", identity, targets, version)
    if isinstance(added, Awaitable):
        await added


async def produce(
    world: World, identity: ProducerIdentity, topic: str, sequence: int = 0, *, version: int = 12, value: bytes = b"v"
) -> ErrorCode:
    records = build_batch(
        [(world.clock.now_ms(), None, value, ())],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return ErrorCode((await world.produce(version, "t", topic, records)).error_code)


async def end(
    world: World, identity: ProducerIdentity, *, commit: bool = True, version: int = VERSION_2
) -> ProducerIdentity:
    return await world.transactions.end("t", identity, commit=commit, client_version=version)


async def state(world: World) -> Transaction:
    return await world.transactions.describe("t")


async def refusal_of(request: Awaitable[object]) -> ErrorCode | None:
    try:
        await request
    except RequestRejected as error:
        return error.code
    return None


async def settle(world: World) -> None:
    async with asyncio.timeout(60):
        while not await world.settled():
            await asyncio.sleep(0.01)


def test_a_second_protocol_transaction_from_its_first_record_to_its_commit() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        for topic in DATA_TOPICS:
            assert await produce(world, first, topic) is ErrorCode.NONE
        assert (await state(world)).partitions == {A, B}
        assert world.log("a").last_stable_offset == 0
        second = await end(world, first)
        assert second == ProducerIdentity(first.producer_id, ProducerEpoch(first.epoch + 1))
        assert await end(world, first) == second, "the answer got lost, and the client asked again"
        assert [await world.read_committed(topic) for topic in DATA_TOPICS] == [[b"v"], [b"v"]]
        assert (await state(world)).state is TransactionState.COMPLETE_COMMIT
        assert await produce(world, second, "a", value=b"w") is ErrorCode.NONE
        await end(world, second, commit=False)
        assert await world.read_committed("a") == [b"v"]

    in_world(test)


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE), (12, ErrorCode.INVALID_PRODUCER_EPOCH)],
)
@pytest.mark.parametrize("commit", [True, False])
def test_a_produce_that_arrives_after_the_end_of_its_transaction_is_refused(
    version: int, code: ErrorCode, commit: bool
) -> None:
    """Otherwise it would begin a transaction that nobody ends, and hold every reader at read_committed back for ever."""

    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        client_version = VERSION_2 if version >= 12 else VERSION_1
        await add(world, first, A, version=client_version)
        assert await produce(world, first, "a", version=version) is ErrorCode.NONE
        await end(world, first, commit=commit, version=client_version)
        assert await produce(world, first, "a", 1, version=version) is code
        assert world.log("a").last_stable_offset == world.log("a").log_end_offset == 2

    in_world(test)


def test_a_first_protocol_client_names_its_partitions_first() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        await add(world, first, A)
        assert await produce(world, first, "b", version=9) is ErrorCode.INVALID_TXN_STATE
        assert await produce(world, first, "b", version=11) is ErrorCode.TRANSACTION_ABORTABLE
        stranger = ProducerIdentity(ProducerId(5), ProducerEpoch(0))
        assert await produce(world, stranger, "a", version=9) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        fenced = ProducerIdentity(first.producer_id, ProducerEpoch(first.epoch + 7))
        assert await produce(world, fenced, "a", version=9) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert world.log("a").log_end_offset == world.log("b").log_end_offset == 0

    in_world(test)


def test_a_batch_cannot_overtake_the_first_of_its_transaction() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        assert await produce(world, first, "a", 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await produce(world, first, "a", 0) is ErrorCode.NONE
        assert await produce(world, first, "a", 1) is ErrorCode.NONE

    in_world(test)


def test_with_disk_durability_each_step_is_stored_before_the_next_begins() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        log, states = world.log("a"), world.log("__transaction_state")
        assert states.synced_end_offset == states.log_end_offset == 1
        writing = asyncio.ensure_future(produce(world, first, "a"))
        await asyncio.sleep(0)
        assert (states.log_end_offset, log.log_end_offset) == (2, 0), (
            "the partition is added, and that is not stored yet"
        )
        assert await writing is ErrorCode.NONE
        assert states.synced_end_offset == 2
        ending = asyncio.ensure_future(end(world, first))
        seen: list[tuple[bool, bool, bool]] = []
        while len(seen) < 1000 and (not seen or not seen[-1][2]):
            prepared, marked, completed = (
                states.log_end_offset >= 3,
                log.log_end_offset >= 2,
                states.log_end_offset >= 4,
            )
            assert not marked or states.synced_end_offset >= 3, "a marker before the decision is stored"
            assert not completed or log.synced_end_offset >= 2, "complete before the marker is stored"
            seen.append((prepared, marked, completed))
            await asyncio.sleep(0.0001)
        await ending
        assert list(dict.fromkeys(seen)) == [
            (False, False, False),
            (True, False, False),
            (True, True, False),
            (True, True, True),
        ]

    in_world(test, Durability.DISK)


def test_a_produce_waits_for_the_markers_of_the_transaction_before() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        assert await produce(world, first, "a") is ErrorCode.NONE
        second = await end(world, first)
        assert (await state(world)).state is TransactionState.PREPARE_COMMIT
        assert await produce(world, second, "b") is ErrorCode.NONE
        assert (await state(world)).partitions == {B}

    in_world(test, Durability.DISK)


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
def test_what_is_open_past_its_time_is_aborted_and_its_client_cannot_commit_it(durability: Durability) -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        assert await produce(world, first, "a") is ErrorCode.NONE
        await asyncio.sleep(TIMEOUT_MS / 1000 - 0.1)
        assert (await state(world)).state is TransactionState.ONGOING
        await asyncio.sleep(0.2)
        assert (await state(world)).state is TransactionState.COMPLETE_ABORT
        assert world.log("a").last_stable_offset == 2
        assert await world.read_committed("a") == []
        assert await refusal_of(end(world, first)) is ErrorCode.PRODUCER_FENCED
        assert await refusal_of(end(world, first, version=VERSION_1)) is ErrorCode.PRODUCER_FENCED
        assert await produce(world, first, "a", 1) is ErrorCode.INVALID_PRODUCER_EPOCH
        second = await end(world, first, commit=False)
        assert second.epoch == first.epoch + 1
        assert await produce(world, second, "a") is ErrorCode.NONE

    in_world(test, durability)


@pytest.mark.parametrize("power", [False, True])
def test_time_runs_on_while_the_broker_is_down(power: bool) -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        assert await produce(world, first, "a") is ErrorCode.NONE
        await asyncio.sleep(TIMEOUT_MS / 2000)
        await world.restart(power=power)
        await asyncio.sleep(TIMEOUT_MS / 2000 - 0.2)
        assert (await state(world)).state is TransactionState.ONGOING
        await asyncio.sleep(0.4)
        await settle(world)
        assert world.log("a").last_stable_offset == 2

    in_world(test, Durability.DISK)


@pytest.mark.parametrize("steps", range(8))
def test_a_decision_outlives_the_broker(steps: int) -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        for topic in DATA_TOPICS:
            assert await produce(world, first, topic) is ErrorCode.NONE
        ending = asyncio.ensure_future(end(world, first))
        await asyncio.wait([ending], timeout=0.0005 * steps)
        answered = ending.done()
        await world.restart(power=True)
        ending.cancel()
        await asyncio.wait([ending])
        await asyncio.sleep(0.1)
        await settle(world)
        found = [await world.read_committed(topic) for topic in DATA_TOPICS]
        if answered:
            assert found == [[b"v"], [b"v"]]
        if (await state(world)).state is TransactionState.ONGOING:
            await asyncio.sleep(TIMEOUT_MS / 1000)
            await settle(world)
        found = [await world.read_committed(topic) for topic in DATA_TOPICS]
        assert found in ([[b"v"], [b"v"]], [[], []])
        for topic in DATA_TOPICS:
            assert world.log(topic).last_stable_offset == world.log(topic).log_end_offset

    in_world(test, Durability.DISK, seed=steps)


def test_a_deleted_topic_needs_no_marker() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        gone = TopicPartition("gone", PartitionIndex(0))
        await add(world, first, A, gone, version=VERSION_2)
        await end(world, first)
        await settle(world)
        assert (await state(world)).state is TransactionState.COMPLETE_COMMIT
        assert any("gone" in line for line in world.lines)

    in_world(test)


def test_a_full_disk_leaves_everything_as_it_was_and_markers_are_tried_again() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        assert await produce(world, first, "a") is ErrorCode.NONE
        before = await state(world)
        for free_bytes in range(0, 1000, 20):
            world.fs.capacity_bytes = world.fs.used + free_bytes
            if await refusal_of(end(world, first)) is None:
                break
            assert await state(world) == before
        assert free_bytes >= 20
        assert (await state(world)).state is TransactionState.PREPARE_COMMIT, "no room for the marker"
        await asyncio.sleep(60)
        assert (await state(world)).state is TransactionState.PREPARE_COMMIT
        told = [
            line for line in world.lines if line.startswith("transaction t cannot be ended in a-0, will try again: ")
        ]
        assert 1 <= len(told) <= 2, "when it begins, and once a minute"
        world.fs.capacity_bytes = 1 << 40
        await settle(world)
        assert await world.read_committed("a") == [b"v"]

    in_world(test)


def test_silent_ids_are_forgotten_for_good() -> None:
    async def test(world: World) -> None:
        first = await world.transactions.initialize("t", TIMEOUT_MS, None)
        await asyncio.sleep(59)
        assert (await state(world)).client_identity == first
        await asyncio.sleep(12)
        for _ in range(2):
            with pytest.raises(RequestRejected) as raised:
                await state(world)
            assert raised.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            await world.restart(power=False)
            await asyncio.sleep(0.1)
        anew = await world.transactions.initialize("t", TIMEOUT_MS, first)
        assert anew.producer_id != first.producer_id

    in_world(
        test, transactional_id_expiration_ms=60_000, transaction_remove_expired_transaction_cleanup_interval_ms=10_000
    )


def test_silent_ids_are_forgotten_however_long_they_are() -> None:
    async def test(world: World) -> None:
        for number in range(40):
            await world.transactions.initialize("t" * 32_000 + str(number), TIMEOUT_MS, None)
        await asyncio.sleep(71)
        assert not [found for some in world.transactions.all() for found in some]

    in_world(
        test,
        transaction_state_log_num_partitions=1,
        transactional_id_expiration_ms=60_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=10_000,
    )


def test_every_new_producer_id_can_be_waited_for() -> None:
    async def test(world: World) -> None:
        found = set()
        for number in range(4):
            identity = await world.transactions.initialize(f"t{number}", TIMEOUT_MS, None)
            found.add(identity.producer_id)
        assert len(found) == 4

    in_world(test)


def test_time_outs_are_bounded() -> None:
    async def test(world: World) -> None:
        for timeout_ms in (0, -1, 10_001):
            with pytest.raises(RequestRejected) as raised:
                await world.transactions.initialize("t", timeout_ms, None)
            assert raised.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT

    in_world(test)


def test_two_hundred_ids_are_listed_after_a_restart() -> None:
    async def test(world: World) -> None:
        make = partial(world.transactions.initialize, timeout_ms=TIMEOUT_MS, expected=None)
        for number in range(200):
            await make(f"t{number}")
        await world.restart(power=False)
        await asyncio.sleep(0.1)
        assert {found.transactional_id for some in world.transactions.all() for found in some} == {
            f"t{number}" for number in range(200)
        }

    in_world(test)


def test_transactions_are_counted_by_what_became_of_them() -> None:
    async def play(world: World) -> None:
        def shown(family: str) -> dict[str, float]:
            found = (sample for sample in world.registry.samples() if sample.family == family)
            return {",".join(value for _, value in sample.labels): sample.value for sample in found if sample.value}

        identity = await world.transactions.initialize("t", TIMEOUT_MS, None)
        for commit in (True, True, False):
            await add(world, identity, A, B)
            assert shown("firn_transactions_open") == {"Ongoing": 1}
            identity = await end(world, identity, commit=commit)
        assert shown("firn_transactions_open") == {}
        await add(world, identity, A)
        await asyncio.sleep(1)
        assert shown("firn_transaction_oldest_seconds") == {"": 1}
        await asyncio.sleep(TIMEOUT_MS / 1000)
        assert shown("firn_transactions_ended_total") == {"committed": 2, "aborted": 1, "timed_out": 1}
        assert shown("firn_transaction_markers_total") == {"": 7}
        assert shown("firn_transactional_ids") == {"": 1}
        assert shown("firn_transaction_seconds")["+Inf"] == 4

    in_world(play)


@pytest.mark.parametrize("alone", [True, False])
def test_a_decision_that_other_brokers_do_not_store_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """A lone broker waits for its own disk."""

    async def test(world: World) -> None:
        if not alone:
            world.transactions.others = SimpleNamespace(coordinator_of=lambda _: None)  # type: ignore[assignment]
        with monkeypatch.context() as patched:
            patched.setattr(world_module, "SYNC_S", 4 * STORED_WITHIN_S)
            begun_s = asyncio.get_running_loop().time()
            refused = await refusal_of(world.transactions.initialize("t", TIMEOUT_MS, None))
            took_s = asyncio.get_running_loop().time() - begun_s
        assert refused is (None if alone else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert alone or took_s <= STORED_WITHIN_S + 1
        await asyncio.sleep(8 * STORED_WITHIN_S)
        identity = await world.transactions.initialize("t", TIMEOUT_MS, None)
        assert identity.epoch == 1, "the first one counted all the same"

    in_world(test, Durability.DISK)
