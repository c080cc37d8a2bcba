"""Deletions of many offsets: nobody sees half of a deleted group, the loop turns, and what comes meanwhile stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.coordinator.shell import Reply
from app.errors import ErrorCode, RequestRejected
from app.groups.deletion import RETRY_MS, TOMBSTONES_AT_ONCE
from app.groups.offsets import EVERYTHING, offset_key
from tests.groups.shards import GROUP, ShardBench

MANY = 3 * TOMBSTONES_AT_ONCE + 7


@pytest.fixture(params=[False, True], ids=["committed", "loaded"])
def bench(request: pytest.FixtureRequest) -> ShardBench:
    """A group with many offsets, which it has from this coordinator or from the log."""
    bench = ShardBench()
    partitions = [(partition, partition, -1, None) for partition in range(MANY)]
    bench.do(lambda shard, turn: shard.commit(turn, GROUP, None, "", [("t", partitions)]))
    if request.param:
        bench.restart()
    bench.turn.log.clear()
    return bench


def delete_group(bench: ShardBench) -> None:
    bench.do(lambda shard, turn: shard.delete_group(turn, GROUP))


def delete_offsets(bench: ShardBench) -> Reply[ErrorCode]:
    reply: Reply[ErrorCode] = Reply()
    bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("t", range(MANY + 5))], reply))
    return reply


def finish(bench: ShardBench, reply: Reply[ErrorCode]) -> ErrorCode:
    while reply.answer is None:
        bench.advance(1)
    return reply.answer


def test_a_group_is_gone_at_once_and_its_tombstones_follow_some_at_a_time(bench: ShardBench) -> None:
    delete_group(bench)
    assert (bench.shard.groups, bench.committed()) == ({}, {})
    bench.advance(MANY)
    assert [len(batch) for batch in bench.turn.log] == [2 + TOMBSTONES_AT_ONCE, *[TOMBSTONES_AT_ONCE] * 2, 7]
    assert deleted(bench) == MANY
    bench.restart()
    assert (bench.shard.groups, bench.committed()) == ({}, {})
    bench.advance(1)
    assert bench.turn.log == [], "nothing is left to be finished"


def deleted(bench: ShardBench) -> int:
    """Of how many offsets tombstones were written."""
    keys = {key for batch in bench.turn.log for key, value in batch if value is None}
    return len(keys & {offset_key(GROUP, "t", partition) for partition in range(MANY)})


def without_the_sweep(bench: ShardBench) -> None:
    """As compaction does in time, forget that everything was deleted at once."""
    bench.turn.batches = [
        batch._replace(records=[record for record in batch.records if not record[0].endswith(EVERYTHING)])
        for batch in bench.turn.batches
    ]


@pytest.mark.parametrize("written", range(1, 5))
def test_a_crash_leaves_nothing_of_a_group_that_was_being_deleted_and_the_next_coordinator_finishes(
    bench: ShardBench, written: int
) -> None:
    before = len(bench.turn.batches)
    delete_group(bench)
    bench.advance(MANY)
    bench.turn.batches = bench.turn.batches[: before + written]
    bench.turn.log = bench.turn.log[:written]
    found = deleted(bench)
    bench.restart()
    assert (bench.shard.groups, bench.committed()) == ({}, {})
    bench.advance(MANY)
    assert deleted(bench) == MANY - found
    without_the_sweep(bench)
    bench.restart()
    assert (bench.shard.groups, bench.committed()) == ({}, {})


def test_what_is_committed_before_a_crash_to_a_group_that_was_deleted_stays(bench: ShardBench) -> None:
    bench.commit("t", 3, 7, producer_id=7)
    delete_group(bench)
    bench.commit("t", MANY - 1, 77)
    bench.commit("t", MANY - 2, 78, producer_id=7)
    bench.restart()
    bench.end_transaction(7, commit=True)
    bench.advance(MANY)
    without_the_sweep(bench)
    for _ in range(2):
        assert bench.committed() == {("t", MANY - 1): 77, ("t", MANY - 2): 78}
        bench.restart()


def test_a_group_of_few_offsets_is_deleted_in_one_batch() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.commit("t", 1, 6, producer_id=7)
    bench.turn.log.clear()
    delete_group(bench)
    (batch,) = bench.turn.log
    assert len(batch) == 3
    assert not any(key.endswith(EVERYTHING) for key, _ in batch)


def test_tombstones_of_a_group_with_a_long_id_fit_in_what_the_topic_takes() -> None:
    bench = ShardBench()
    group = "g" * 32_767
    partitions = [(partition, partition, -1, None) for partition in range(50)]
    bench.do(lambda shard, turn: shard.commit(turn, group, None, "", [("t" * 249, partitions)]))
    bench.turn.log.clear()
    bench.do(lambda shard, turn: shard.delete_group(turn, group))
    bench.advance(MANY)
    assert max(sum(len(key) for key, _ in batch) for batch in bench.turn.log) < 1_000_000
    bench.restart()
    assert bench.committed(group) == {}


def test_offsets_that_are_named_go_some_at_a_time_and_the_others_stay(bench: ShardBench) -> None:
    bench.commit("u", 0, 5)
    assert finish(bench, delete_offsets(bench)) is ErrorCode.NONE
    assert max(map(len, bench.turn.log)) == TOMBSTONES_AT_ONCE
    for _ in range(2):
        assert bench.committed() == {("u", 0): 5}
        bench.restart()


@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
def test_what_is_committed_while_a_deletion_is_under_way_stays(
    bench: ShardBench, delete: Callable[[ShardBench], object]
) -> None:
    delete(bench)
    bench.commit("t", MANY - 1, 77)
    bench.commit("t", MANY - 2, 78, producer_id=7)
    bench.advance(MANY)
    bench.end_transaction(7, commit=True)
    expected = {("t", MANY - 1): 77, ("t", MANY - 2): 78}
    for _ in range(2):
        assert bench.committed() == expected
        bench.restart()


def test_a_transaction_whose_offsets_are_deleted_commits_what_it_writes_afterwards(bench: ShardBench) -> None:
    bench.commit("t", 1, 70, producer_id=7)
    bench.commit("u", 1, 71, producer_id=7)
    delete_group(bench)
    bench.commit("u", 2, 72, producer_id=7)
    bench.advance(MANY)
    bench.end_transaction(7, commit=True)
    for _ in range(2):
        assert bench.committed() == {("u", 2): 72}
        bench.restart()


def test_a_group_that_cannot_be_deleted_now_is_not_touched(bench: ShardBench) -> None:
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestRejected):
        delete_group(bench)
    assert len(bench.committed()) == MANY


def test_a_tombstone_of_a_deleted_group_that_cannot_be_written_is_written_later(bench: ShardBench) -> None:
    delete_group(bench)
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.advance(1)
    assert deleted(bench) == TOMBSTONES_AT_ONCE
    bench.turn.refuse_with = None
    bench.advance(RETRY_MS + MANY)
    assert deleted(bench) == MANY


def test_offsets_that_cannot_be_deleted_now_stay(bench: ShardBench) -> None:
    reply = delete_offsets(bench)
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert finish(bench, reply) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.turn.refuse_with = None
    bench.advance(RETRY_MS + MANY)
    for _ in range(2):
        assert len(bench.committed()) == MANY - TOMBSTONES_AT_ONCE
        bench.restart()


def test_who_waits_when_another_broker_takes_over_is_told_to_ask_there(bench: ShardBench) -> None:
    reply = delete_offsets(bench)
    bench.restart()
    assert reply.answer is ErrorCode.NOT_COORDINATOR
    assert len(bench.committed()) == MANY - TOMBSTONES_AT_ONCE
