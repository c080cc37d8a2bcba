"""What a log offers to a leader with followers, and to a follower (ADR 0024)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from crc32c import crc32c

from app.configs import Durability, TopicConfig
from app.core.errors import ConflictError, CorruptionError, RequestRejected, StorageFull, StorageUnavailable
from app.core.units import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicIdPartition,
)
from app.hot.high_watermarks import encode_high_watermarks, parse_high_watermarks
from app.hot.log import PartitionLog
from app.records.control import ControlType, build_marker
from tests.hot.helpers import (
    NOW,
    GatedPool,
    batch,
    headers,
    idempotent,
    manager_over,
    new_log,
    read_all,
    running,
    sim,
)
from tests.support.simfs import SimFileSystem

SIZE = len(batch())


def leader_of_several(**settings: object) -> PartitionLog:
    log = new_log(manager_over(sim()), **settings)
    log.commit_alone(False)
    return log


def follower(fs: SimFileSystem | None = None, **settings: object) -> PartitionLog:
    log = new_log(manager_over(fs if fs is not None else sim()), **settings)
    log.resign()
    log.commit_alone(False)
    log.trust_high_watermark(0)
    return log


async def opened(fs: SimFileSystem, **settings: object) -> PartitionLog:
    """The log after a kill, as the start of a broker finds it."""
    fs.kill()
    manager = manager_over(fs)
    await manager.load_all(lambda _: TopicConfig(**settings))  # type: ignore[arg-type]
    log = manager.get("t", 0)
    assert log is not None
    return log


def append(log: PartitionLog, records: memoryview | None = None) -> int:
    return log.append_as_leader(batch() if records is None else records, now_ms=NOW).last_offset_end


def replicated(*batches: memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(bytes(one) for one in batches)))


def take(log: PartitionLog, *batches: memoryview) -> None:
    log.append_as_follower(replicated(*batches), now_ms=NOW)


def at(offset: int, count: int = 1, *, epoch: int = 0, **fields: object) -> memoryview:
    """A batch as a leader of ``epoch`` has it."""
    return batch(count, base_offset=Offset(offset), leader_epoch=LeaderEpoch(epoch), **fields)


def of_transaction(offset: int, *, producer_id: int = 1, epoch: int = 0) -> memoryview:
    return at(offset, epoch=epoch, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(offset: int, kind: ControlType = ControlType.COMMIT, *, producer_id: int = 1, epoch: int = 0) -> memoryview:
    return memoryview(
        bytearray(
            build_marker(
                kind,
                producer_id=ProducerId(producer_id),
                producer_epoch=ProducerEpoch(0),
                coordinator_epoch=0,
                timestamp=TimestampMs(NOW),
                base_offset=Offset(offset),
                leader_epoch=LeaderEpoch(epoch),
            )
        )
    )


# --- telling what is stored -------------------------------------------------------------------------------------------


def test_a_leader_of_several_replicas_hears_of_each_append_in_memory_and_may_commit() -> None:
    log = leader_of_several()
    heard: list[tuple[int, int]] = []

    def on_stored() -> None:
        heard.append((log.stored_end_offset, log.high_watermark))
        log.commit(log.stored_end_offset - 1)

    log.on_stored = on_stored
    append(log)  # by the general way, then by the straight one
    append(log)
    append(log, batch(2))
    assert heard == [(1, 0), (2, 0), (4, 1)]
    assert log.high_watermark == 3


async def test_a_leader_of_several_replicas_hears_of_syncs_on_disk() -> None:
    heard: list[int] = []
    async with running(manager_over(sim())) as manager:
        log = new_log(manager, firn_durability=Durability.DISK)
        log.commit_alone(False)
        log.on_stored = lambda: heard.append(log.stored_end_offset)
        append(log)
        append(log)
        assert heard == []
        await log.flush()
    assert heard == [2]
    assert log.high_watermark == 0, "the partition says what is committed"


def test_what_waited_for_a_sync_is_stored_once_the_topic_is_in_memory() -> None:
    log = leader_of_several(firn_durability=Durability.DISK)
    heard: list[int] = []
    log.on_stored = lambda: heard.append(log.stored_end_offset)
    append(log, batch(2))
    log.update_config(TopicConfig(firn_durability=Durability.MEMORY))
    assert heard == [2]


def test_a_log_that_commits_alone_tells_nobody() -> None:
    log = new_log(manager_over(sim()))
    heard: list[int] = []
    log.on_stored = lambda: heard.append(log.stored_end_offset)
    log.add_tail_waiter(lambda: heard.append(-1))
    append(log)
    append(log)
    assert (heard, log.high_watermark) == ([], 2)


def test_what_was_learnt_from_appends_ends_when_others_have_a_say() -> None:
    log = new_log(manager_over(sim()))
    before = log.terms
    log.commit_alone(False)
    assert log.terms is not before


# --- waiting for the tail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
def test_whoever_waits_for_the_tail_hears_of_appends_that_are_not_committed(durability: Durability) -> None:
    log = leader_of_several(firn_durability=durability)
    heard: list[tuple[int, int]] = []

    def waiter() -> None:
        heard.append((log.log_end_offset, log.high_watermark))

    log.add_tail_waiter(waiter)
    append(log)
    append(log)
    log.commit(1)
    assert heard == [(1, 0), (2, 0)]
    log.remove_tail_waiter(waiter)
    log.remove_tail_waiter(waiter)
    append(log)
    assert len(heard) == 2


async def close(log: PartitionLog) -> None:
    await log.close()


async def refuse(log: PartitionLog) -> None:
    log.refuse(StorageUnavailable("the disk is gone"))


async def resign(log: PartitionLog) -> None:
    log.resign()


async def truncate(log: PartitionLog) -> None:
    assert log.truncate_to(1)


async def begin_anew(log: PartitionLog) -> None:
    log.truncate_fully_and_start_at(5)


@pytest.mark.parametrize("end", [close, refuse, resign, truncate, begin_anew])
async def test_whoever_waits_for_the_tail_looks_again_when_it_will_not_come(
    end: Callable[[PartitionLog], Awaitable[None]],
) -> None:
    log = leader_of_several()
    append(log)
    append(log)
    heard: list[int] = []
    log.add_tail_waiter(lambda: heard.append(log.log_end_offset))
    await end(log)
    assert heard


# --- the high watermark of a log that was opened (A4) -----------------------------------------------------------------


@pytest.mark.parametrize(("known", "high_watermark"), [(0, 0), (3, 3), (4, 4), (9, 4)])
async def test_a_log_with_other_replicas_believes_the_checkpoint_and_not_its_end(
    known: int, high_watermark: int
) -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    for _ in range(4):
        append(log)
    log = await opened(fs)
    log.commit_alone(False)
    assert log.high_watermark == 4
    log.trust_high_watermark(known)
    assert (log.high_watermark, log.log_end_offset) == (high_watermark, 4)


async def test_a_high_watermark_is_not_below_what_is_left_on_the_disk() -> None:
    fs = sim()
    log = new_log(manager_over(fs), segment_bytes=2 * SIZE)
    for _ in range(6):
        append(log)
    log.advance_log_start(3)  # within the second segment
    log.commit_alone(False)
    log.trust_high_watermark(1)
    assert log.high_watermark == log.local_log_start_offset == 3


def test_after_the_first_time_the_high_watermark_only_rises() -> None:
    log = leader_of_several()
    append(log, batch(4))
    log.trust_high_watermark(1)
    log.commit(3)
    moved: list[int] = []
    log.add_waiter(lambda: moved.append(log.high_watermark))
    log.trust_high_watermark(2)
    assert log.high_watermark == 3
    log.trust_high_watermark(4)
    assert moved == [4]


def test_what_was_committed_alone_stays_committed_when_there_are_others() -> None:
    log = new_log(manager_over(sim()))
    log.commit_alone(True)
    append(log, batch(4))
    log.commit_alone(False)
    log.trust_high_watermark(0)
    assert log.high_watermark == 4


@pytest.mark.parametrize("clean", [True, False])
async def test_a_transaction_whose_marker_is_not_committed_is_undecided_after_a_start(clean: bool) -> None:
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    log = new_log(manager)
    append(log)
    append(log, idempotent(0, transactional=True))
    append(log)
    log.append_control(
        ControlType.COMMIT, producer_id=ProducerId(1), producer_epoch=ProducerEpoch(0), coordinator_epoch=0, now_ms=NOW
    )
    append(log)
    if clean:
        await manager.close()
    log = await opened(fs)
    assert log.last_stable_offset == 5
    log.commit_alone(False)
    log.trust_high_watermark(3)
    assert log.last_stable_offset <= 1 < log.high_watermark
    log.commit(4)
    assert log.last_stable_offset <= 1, "what else is above the checkpoint is not known"
    log.commit(5)
    assert log.last_stable_offset == 5


async def test_without_transactions_a_lower_high_watermark_is_the_last_stable_offset() -> None:
    log = new_log(manager_over(sim()))
    append(log, idempotent(0, 4))
    log.commit_alone(False)
    log.trust_high_watermark(3)
    assert log.last_stable_offset == log.high_watermark == 3


# --- what a follower appends ------------------------------------------------------------------------------------------


async def test_a_follower_has_the_bytes_epochs_and_producers_of_its_leader() -> None:
    leader = new_log(manager_over(sim()))
    leader.become_leader(LeaderEpoch(2))
    append(leader, idempotent(0, 2))
    leader.become_leader(LeaderEpoch(5))
    append(leader, idempotent(2, 3))
    append(leader)
    sent = await read_all(leader)
    log = follower(segment_bytes=2 * SIZE)
    log.append_as_follower(memoryview(bytearray(sent)), now_ms=NOW)
    assert (log.log_end_offset, log.high_watermark) == (6, 0)
    log.commit(6)
    assert await read_all(log) == sent
    assert log.leader_epochs() == leader.leader_epochs() == ((2, 0), (5, 2))
    assert log.producers.rows() == leader.producers.rows()


async def test_a_follower_rolls_where_the_segment_before_ends() -> None:
    log = follower(segment_bytes=2 * SIZE, cleanup_policy=frozenset({"compact"}))
    take(log, at(0), at(1))
    take(log, at(5))  # compaction took 2 to 4
    take(log, at(6))
    assert [segment.base_offset for segment in log.segments()] == [0, 2]
    log.commit(7)
    assert [header.base_offset for header in headers(await read_all(log))] == [0, 1, 5, 6]
    read = log.read(2, 1000, end_offset=7)
    assert (read.start_offset, read.end_offset) == (5, 7)


async def test_markers_from_a_leader_end_transactions_and_say_which_were_aborted() -> None:
    log = follower()
    take(log, at(0), of_transaction(1), of_transaction(2, producer_id=2), marker(3, ControlType.ABORT), at(4))
    log.commit(5)
    assert log.last_stable_offset == 2
    take(log, marker(5, producer_id=2))
    assert log.last_stable_offset == 2, "the marker is not committed"
    log.commit(6)
    assert log.last_stable_offset == 6
    assert log.aborted_transactions(0, 6) == [(1, 1, 3, 2)]


@pytest.mark.parametrize("first", [0, 1])
def test_batches_that_begin_before_the_log_end_are_refused(first: int) -> None:
    log = follower()
    take(log, at(0, 2))
    with pytest.raises(RequestRejected, match="the next offset is 2"):
        take(log, at(first, 5))
    assert log.log_end_offset == 2


def test_leader_epochs_that_fall_are_refused_and_nothing_is_appended() -> None:
    log = follower()
    take(log, at(0, epoch=3))
    with pytest.raises(CorruptionError, match="offset 1 for t-0 has leader epoch 2, but the record before it has 3"):
        take(log, at(1, epoch=2))
    with pytest.raises(CorruptionError, match="has leader epoch 3, but the record before it has 4"):
        take(log, at(1, epoch=4), at(2, epoch=3))
    assert (log.log_end_offset, log.leader_epochs()) == (1, ((3, 0),))


def test_offsets_too_far_apart_for_a_segment_are_refused() -> None:
    log = follower(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(CorruptionError, match="too far"):
        take(log, at(0), at(2**31))
    assert log.log_end_offset == 0


def test_an_epoch_without_records_is_forgotten_when_another_leads() -> None:
    log = new_log(manager_over(sim()))
    log.become_leader(LeaderEpoch(4))
    append(log)
    log.become_leader(LeaderEpoch(5))
    log.resign()
    take(log, at(1, epoch=4), at(2, epoch=6))  # the next leader has a record of epoch 4 that this broker never had
    assert log.leader_epochs() == ((4, 0), (6, 2))
    assert log.epoch_of(Offset(1)) == 4


def test_the_epoch_of_an_append_that_failed_is_not_known() -> None:
    fs = sim()
    log = follower(fs)
    take(log, at(0, epoch=1))
    fs.capacity_bytes = fs.used + 10
    with pytest.raises(StorageFull):
        take(log, at(1, epoch=7))
    assert log.leader_epochs() == ((1, 0),)
    fs.capacity_bytes += 10_000
    take(log, at(1, epoch=6))
    assert log.leader_epochs() == ((1, 0), (6, 1))


# --- gaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_recovery_keeps_what_follows_a_gap_that_the_leader_has(policy: str) -> None:
    fs = sim()
    policies = frozenset({policy})
    async with running(manager_over(fs)) as manager:
        log = new_log(manager, cleanup_policy=policies, firn_durability=Durability.DISK)
        log.resign()
        take(log, at(0))
        stored = log.wait_stored(1)
        assert stored is not None
        await stored
        take(log, at(3), at(7))
        stored = log.wait_stored(8)
        assert stored is not None
        await stored
    fs.crash()
    log = await opened(fs, cleanup_policy=policies, firn_durability=Durability.DISK)
    assert log.log_end_offset == 8


def test_without_room_to_note_gaps_there_are_none() -> None:
    fs = sim()
    log = follower(fs)
    take(log, at(0))
    fs.capacity_bytes = fs.used
    with pytest.raises(StorageFull):
        take(log, at(3))
    assert (log.log_end_offset, log.cleaned_end_offset) == (1, None)
    fs.capacity_bytes += 10_000
    take(log, at(3))
    assert log.cleaned_end_offset == 0


async def test_a_log_with_gaps_is_cut_within_one_and_goes_on() -> None:
    log = follower(segment_bytes=2 * SIZE)
    take(log, at(0), at(1))
    take(log, at(5), at(6))
    assert log.truncate_to(4)
    assert log.log_end_offset == 2
    take(log, at(4), at(5))
    log.commit(6)
    assert [header.base_offset for header in headers(await read_all(log))] == [0, 1, 4, 5]


# --- truncation (A1, A3) ----------------------------------------------------------------------------------------------


def test_each_truncation_counts() -> None:
    log = follower()
    take(log, at(0), at(1), at(2))
    assert log.truncations == 0
    assert not log.truncate_to(3)
    assert log.truncations == 0
    assert log.truncate_to(2)
    assert log.truncations == 1
    take(log, at(2))
    assert (log.log_end_offset, log.truncations) == (3, 1)
    log.truncate_fully_and_start_at(7)
    assert log.truncations == 2


def test_committed_records_are_not_cut_away() -> None:
    log = follower()
    take(log, at(0), at(1), at(2))
    log.commit(2)
    with pytest.raises(CorruptionError, match="t-0 is to be cut back to 1, but all below 2 is committed"):
        log.truncate_to(1)
    assert (log.log_end_offset, log.truncations) == (3, 0)
    assert log.truncate_to(2)
    assert (log.log_end_offset, log.high_watermark) == (2, 2)


async def test_a_read_at_work_finishes_and_a_planned_one_is_planned_again() -> None:
    pool = GatedPool()
    log = new_log(manager_over(sim(), pool=pool))
    log.resign()
    log.commit_alone(False)
    take(log, at(0), at(1), at(2))
    log.trust_high_watermark(1)
    at_work, planned = (log.read(0, 1000, end_offset=log.high_watermark) for _ in range(2))
    reading = asyncio.create_task(at_work.read_bytes())
    while not pool.waiting:
        await asyncio.sleep(0)
    log.truncate_to(1)
    take(log, at(1, epoch=1))
    pool.gate.set()
    assert await reading == bytes(at(0))
    with pytest.raises(StorageUnavailable):
        await planned.read_bytes()
    assert await read_all(log) == bytes(at(0))


def test_a_cut_takes_back_epochs_producers_and_transactions() -> None:
    log = follower()
    take(log, at(0, epoch=1), of_transaction(1, epoch=1))
    before = log.producers.rows()
    take(
        log,
        at(2, epoch=2),
        at(3, epoch=3, producer_id=9, producer_epoch=0, base_sequence=0),
        marker(4, ControlType.ABORT, epoch=3),
    )
    assert log.producers.open_transactions == {}
    assert log.truncate_to(2)
    assert log.leader_epochs() == ((1, 0),)
    assert log.producers.rows() == before
    assert log.producers.open_transactions == {1: 1}
    assert log.aborted_transactions(0, 10) == []


async def test_a_wait_for_a_sync_above_a_cut_ends_and_asks_for_no_more_syncs() -> None:
    manager = manager_over(sim())  # its syncs have not begun
    log = new_log(manager, firn_durability=Durability.DISK)
    log.resign()
    log.commit_alone(False)
    log.trust_high_watermark(0)
    take(log, at(0), at(1), at(2))
    below, above = (log._durability.wait_synced(offset) for offset in (1, 3))
    assert log.truncate_to(1)
    with pytest.raises(RequestRejected, match="cut at 1"):
        await above
    async with running(manager):
        await below
        while log._durability.syncing:
            await asyncio.sleep(0)
        assert not log._durability._wanted


async def test_a_transaction_stays_undecided_through_a_cut_above_its_marker() -> None:
    async with running(manager_over(sim())) as manager:
        log = new_log(manager)
        log.resign()
        log.commit_alone(False)
        take(log, of_transaction(0), at(1), marker(2), at(3))
        log.commit(2)
        log.roll()
        take(log, at(4), at(5))
        await log.flush()  # the state that the cut reads again begins here
        assert log.truncate_to(5)
        assert (log.high_watermark, log.last_stable_offset) == (2, 0)
        log.commit(3)
        assert log.last_stable_offset == 3


async def test_doubt_from_a_start_ends_with_the_log_that_is_left() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    append(log, idempotent(0, transactional=True))
    log.append_control(
        ControlType.COMMIT, producer_id=ProducerId(1), producer_epoch=ProducerEpoch(0), coordinator_epoch=0, now_ms=NOW
    )
    append(log)
    append(log)
    log = await opened(fs)
    log.resign()
    log.commit_alone(False)
    log.trust_high_watermark(1)
    assert log.truncate_to(3)
    log.commit(2)
    assert log.last_stable_offset == 0
    log.commit(3)
    assert log.last_stable_offset == 3


async def test_a_cut_waits_for_a_sync() -> None:
    pool = GatedPool()
    log = new_log(manager_over(sim(), pool=pool))
    log.resign()
    log.commit_alone(False)
    take(log, at(0), at(1))
    log.trust_high_watermark(0)
    flush = asyncio.create_task(log.flush())
    while not pool.waiting:
        await asyncio.sleep(0)
    with pytest.raises(ConflictError):
        log.truncate_to(1)
    pool.gate.set()
    await flush
    assert log.truncate_to(1)
    assert log.recovery_point <= log.log_end_offset == log.synced_end_offset == 1


async def test_what_a_follower_appends_after_a_cut_survives_a_loss_of_power() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager)
        log.resign()
        log.commit_alone(False)
        take(log, at(0, epoch=1), at(1, epoch=1), at(2, epoch=1))
        log.trust_high_watermark(1)
        await log.flush()
        await manager.checkpoint()
        log.truncate_to(1)
        take(log, at(1, epoch=2), at(2, epoch=2))
        await log.flush()
    fs.crash()
    log = await opened(fs)
    assert log.leader_epochs() == ((1, 0), (2, 1))
    assert [header.leader_epoch for header in headers(await read_all(log))] == [1, 2, 2]


# --- the checkpoint of high watermarks (A4) ---------------------------------------------------------------------------


def key(number: int, partition: int) -> TopicIdPartition:
    return TopicIdPartition(TopicId(uuid.UUID(int=number)), PartitionIndex(partition))


def test_the_bytes_of_the_checkpoint() -> None:
    data = encode_high_watermarks({key(7, 1): 300})
    assert data[4:].hex() == "9201" + "91" + "93" + "c410" + "00" * 15 + "07" + "01" + "cd012c"
    assert parse_high_watermarks(data) == {key(7, 1): 300}


def test_a_checkpoint_comes_back_and_a_damaged_one_counts_as_absent() -> None:
    offsets = {key(1, 0): 0, key(1, 1): 1 << 40, key(2, 0): 5}
    data = encode_high_watermarks(offsets)
    assert parse_high_watermarks(data) == offsets
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert parse_high_watermarks(bytes(damaged)) == {}
        assert parse_high_watermarks(data[:position]) == {}


def test_a_checkpoint_of_another_version_counts_as_absent() -> None:
    body = msgspec.msgpack.encode((2, []))
    assert parse_high_watermarks(crc32c(body).to_bytes(4, "big") + body) == {}
    body = msgspec.msgpack.encode((2, [(bytes(16), 0, 5)]))
    assert parse_high_watermarks(crc32c(body).to_bytes(4, "big") + body) == {}
