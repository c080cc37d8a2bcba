"""Deletions of many offsets: nobody sees half of a deleted group, the loop turns, and what comes meanwhile stays."""

from __future__ import annotations

import pytest

from app.coordinator.shell import Reply
from app.errors import ErrorCode, RequestRejected
from app.groups.deletion import RETRY_MS, TOMBSTONES_AT_ONCE
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


def delete_group(bench: ShardBench) -> Reply[ErrorCode]:
    reply: Reply[ErrorCode] = Reply()
    bench.do(lambda shard, turn: shard.delete_group(turn, GROUP, reply))
    return reply


def delete_offsets(bench: ShardBench) -> Reply[ErrorCode]:
    reply: Reply[ErrorCode] = Reply()
    bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("t", range(MANY + 5))], reply))
    return reply


def finish(bench: ShardBench, reply: Reply[ErrorCode]) -> ErrorCode:
    while reply.answer is None:
        bench.advance(1)
    return reply.answer


def test_a_group_is_gone_at_once_and_its_tombstones_follow_some_at_a_time(bench: ShardBench) -> None:
    reply = delete_group(bench)
    assert (reply.answer, bench.shard.groups, bench.committed()) == (None, {}, {})
    assert finish(bench, reply) is ErrorCode.NONE
    assert [len(batch) for batch in bench.turn.log] == [1, *[TOMBSTONES_AT_ONCE] * 3, 7]
    assert len({key for batch in bench.turn.log for key, value in batch if value is None}) == 1 + MANY
    bench.restart()
    assert (bench.shard.groups, bench.committed()) == ({}, {})


def test_offsets_that_are_named_go_some_at_a_time_and_the_others_stay(bench: ShardBench) -> None:
    bench.commit("u", 0, 5)
    assert finish(bench, delete_offsets(bench)) is ErrorCode.NONE
    assert max(map(len, bench.turn.log)) == TOMBSTONES_AT_ONCE
    for _ in range(2):
        assert bench.committed() == {("u", 0): 5}
        bench.restart()


@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
def test_what_is_committed_while_a_deletion_is_under_way_stays(bench: ShardBench, delete: object) -> None:
    assert callable(delete)
    reply = delete(bench)
    bench.commit("t", MANY - 1, 77)
    bench.commit("t", MANY - 2, 78, producer_id=7)
    assert finish(bench, reply) is ErrorCode.NONE
    bench.end_transaction(7, commit=True)
    expected = {("t", MANY - 1): 77, ("t", MANY - 2): 78}
    for _ in range(2):
        assert bench.committed() == expected
        bench.restart()


def test_a_transaction_whose_offsets_are_deleted_commits_what_it_writes_afterwards(bench: ShardBench) -> None:
    bench.commit("t", 1, 70, producer_id=7)
    bench.commit("u", 1, 71, producer_id=7)
    reply = delete_group(bench)
    bench.commit("u", 2, 72, producer_id=7)
    assert finish(bench, reply) is ErrorCode.NONE
    bench.end_transaction(7, commit=True)
    for _ in range(2):
        assert bench.committed() == {("u", 2): 72}
        bench.restart()


def test_a_group_that_cannot_be_deleted_now_is_not_touched(bench: ShardBench) -> None:
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestRejected):
        delete_group(bench)
    assert len(bench.committed()) == MANY


def test_who_deletes_a_group_is_told_of_a_tombstone_that_cannot_be_written_and_it_is_written_later(
    bench: ShardBench,
) -> None:
    reply = delete_group(bench)
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert finish(bench, reply) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.turn.refuse_with = None
    bench.advance(RETRY_MS + MANY)
    bench.restart()
    assert (bench.shard.groups, bench.committed()) == ({}, {})


def test_offsets_that_cannot_be_deleted_now_stay(bench: ShardBench) -> None:
    reply = delete_offsets(bench)
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert finish(bench, reply) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.turn.refuse_with = None
    bench.advance(RETRY_MS + MANY)
    for _ in range(2):
        assert len(bench.committed()) == MANY - TOMBSTONES_AT_ONCE
        bench.restart()


@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
def test_who_waits_when_another_broker_takes_over_is_told_to_ask_there(bench: ShardBench, delete: object) -> None:
    assert callable(delete)
    reply = delete(bench)
    bench.restart()
    assert reply.answer is ErrorCode.NOT_COORDINATOR
    assert len(bench.committed()) == MANY - TOMBSTONES_AT_ONCE
    assert finish(bench, delete_group(bench)) is ErrorCode.NONE
