"""Deletions of many offsets: nobody sees half of one, the loop turns, and what comes meanwhile stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.groups.offsets import sweeps
from app.groups.offsets.deletion import RETRY_MS, TOMBSTONES_AT_ONCE
from app.groups.offsets.offsets import group_prefix, offset_key, offset_place, offset_value
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


def delete_offsets(bench: ShardBench) -> None:
    bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("t", range(MANY + 5))]))


both = pytest.mark.parametrize("delete", [delete_group, delete_offsets])


def test_a_group_is_gone_at_once_and_its_tombstones_follow_some_at_a_time(bench: ShardBench) -> None:
    delete_group(bench)
    assert (bench.shard.groups, bench.committed()) == ({}, {})
    bench.advance(MANY)
    assert [len(batch) for batch in bench.turn.log] == [2 + TOMBSTONES_AT_ONCE, *[TOMBSTONES_AT_ONCE] * 2, 7 + 1]
    assert deleted(bench) == MANY
    bench.restart()
    assert (bench.shard.groups, bench.committed()) == ({}, {})
    bench.advance(1)
    assert bench.turn.log == [], "nothing is left to be finished"


def deleted(bench: ShardBench) -> int:
    """Of how many offsets tombstones were written."""
    keys = {key for batch in bench.turn.log for key, value in batch if value is None}
    return len(keys & {offset_key(GROUP, "t", partition) for partition in range(MANY)})


def is_sweep(key: bytes) -> bool:
    return key.startswith(group_prefix(GROUP) + offset_place(sweeps.TOPIC, 0)[:2])


def open_sweeps(bench: ShardBench) -> set[bytes]:
    """Of which the log does not say that all is written."""
    newest = {key: value for batch in bench.turn.batches for key, value in batch.records if is_sweep(key)}
    return {key for key, value in newest.items() if value is not None}


def without_the_sweeps(bench: ShardBench) -> None:
    """As compaction does in time, forget that so much was deleted at once."""
    assert not open_sweeps(bench)
    bench.turn.batches = [
        batch._replace(records=[record for record in batch.records if not is_sweep(record[0])])
        for batch in bench.turn.batches
    ]


@both
@pytest.mark.parametrize("written", range(1, 5))
def test_a_crash_leaves_nothing_of_what_was_being_deleted_and_the_next_coordinator_finishes(
    bench: ShardBench, delete: Callable[[ShardBench], None], written: int
) -> None:
    before = len(bench.turn.batches)
    delete(bench)
    bench.advance(MANY)
    bench.turn.batches = bench.turn.batches[: before + written]
    bench.turn.log = bench.turn.log[:written]
    found = deleted(bench)
    bench.restart()
    assert bench.committed() == {}
    assert delete is not delete_group or bench.shard.groups == {}
    bench.advance(MANY)
    assert deleted(bench) == MANY - found
    without_the_sweeps(bench)
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
    without_the_sweeps(bench)
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
    assert not any(is_sweep(key) for key, _ in batch)


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


def test_offsets_that_are_named_are_gone_at_once_and_the_others_stay(bench: ShardBench) -> None:
    bench.commit("u", 0, 5)
    delete_offsets(bench)
    for _ in range(2):
        assert bench.committed() == {("u", 0): 5}
        bench.restart()
    bench.advance(MANY)
    without_the_sweeps(bench)
    bench.restart()
    assert bench.committed() == {("u", 0): 5}


@pytest.mark.ci
def test_offsets_of_which_one_record_cannot_name_all_are_gone_at_once_too() -> None:
    bench = ShardBench()
    for topic in ("t", "u"):
        partitions = [(partition, partition, -1, None) for partition in range(20_000)]
        bench.do(lambda shard, turn, t=topic, p=partitions: shard.commit(turn, GROUP, None, "", [(t, p)]))  # type: ignore[misc]
    even = range(0, 20_000, 2)
    bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("u", even), ("t", even)]))
    found = [value for key, value in bench.turn.log[-1] if is_sweep(key)]
    assert len(found) > 2
    assert max(map(len, found)) < 30_000
    odd = {(topic, partition): partition for topic in ("t", "u") for partition in range(1, 20_000, 2)}
    for _ in range(2):
        assert bench.committed() == odd
        bench.restart()
    bench.advance(20_000)
    without_the_sweeps(bench)
    bench.restart()
    assert bench.committed() == odd


@pytest.mark.parametrize("name_chars", [5, 12, 249])
@pytest.mark.parametrize("group", [GROUP, "g" * 32_767])
def test_a_sweep_of_topics_with_short_names_or_long_ones_fits_in_its_string(group: str, name_chars: int) -> None:
    named = [(f"{topic:0{name_chars}}", 0) for topic in range(9_000)]
    parts = list(sweeps.cut(named))
    assert [each for part in parts for each in part] == named
    values = [value for _, value in sweeps.sweep_records(group, 0, parts, 5) if value is not None]
    assert max(map(len, values)) < 32_767


@pytest.mark.parametrize(("group", "count"), [(GROUP, 12_000), ("g" * 32_767, 500)])
def test_every_batch_that_deletes_offsets_of_very_many_topics_fits_in_what_the_topic_takes(
    group: str, count: int
) -> None:
    bench = ShardBench()
    names = [f"topic-of-some-length-{topic:06}" for topic in range(count)]
    for start in range(0, count, 1_000):
        commits = [(name, [(0, 5, -1, None), (7, 6, -1, None)]) for name in names[start : start + 1_000]]
        bench.do(lambda shard, turn, commits=commits: shard.commit(turn, group, None, "", commits))  # type: ignore[misc]
    bench.commit("other", 0, 7, group_id=group)
    bench.turn.log.clear()
    bench.do(lambda shard, turn: shard.delete_offsets(turn, group, [(name, [0, 7]) for name in names]))
    bench.advance(2 * count)
    assert max(sum(len(key) + len(value or b"") + 8 for key, value in batch) for batch in bench.turn.log) < 1_000_000
    assert bench.committed(group) == {("other", 0): 7}
    bench.restart()
    assert bench.committed(group) == {("other", 0): 7}


@given(
    st.sets(st.tuples(st.sampled_from(["t", "\u00e9-u", "t.2"]), st.integers(0, 50)), min_size=1),
    st.integers(0, 5),
)
def test_sweeps_are_read_as_they_were_written(named: set[tuple[str, int]], number: int) -> None:
    records = sweeps.sweep_records("g", number, sweeps.cut(sorted(named)), 5)
    read = [sweeps.parse_sweep(value) for _, value in records if value is not None]
    assert {(topic, each) for runs in read if runs is not None for topic, run in runs for each in run} == named
    (everything,) = sweeps.sweep_records("g", number, None, 5)
    assert everything[1] is not None
    assert sweeps.parse_sweep(everything[1]) is None
    assert [key for key, _ in records] == [
        key for key, _ in sweeps.sweep_tombstones("g", range(number, number + len(records)))
    ]


@pytest.mark.parametrize("text", ["x", "[]", '{"t":[1]}', '{"t":[1,"2"]}', '{"t":[0,1,2]}'])
def test_a_sweep_that_is_not_sound_is_corrupt_and_nothing_else(text: str) -> None:
    with pytest.raises(CorruptionError):
        sweeps.parse_sweep(offset_value(-1, -1, text, 5))


@both
@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_deleted_stays_so_if_a_transaction_that_commits_it_anew_is_aborted(
    bench: ShardBench, delete: Callable[[ShardBench], None], crashes: bool
) -> None:
    bench.commit("t", MANY - 1, 7)
    delete(bench)
    bench.commit("t", MANY - 1, 77, producer_id=7)
    bench.commit("t", MANY - 2, 78, producer_id=8)
    bench.commit("t", MANY - 3, 79, producer_id=9)
    bench.advance(MANY)
    assert deleted(bench) == MANY - 3
    if crashes:
        bench.restart()
    bench.end_transaction(7, commit=False)
    bench.end_transaction(8, commit=True)
    bench.advance(2 * RETRY_MS)
    assert open_sweeps(bench), "a transaction is open, and might be aborted"
    bench.end_transaction(9, commit=False)
    bench.advance(RETRY_MS)
    without_the_sweeps(bench)
    for _ in range(2):
        assert bench.committed() == {("t", MANY - 2): 78}
        bench.restart()


@both
def test_what_is_committed_while_a_deletion_is_under_way_stays(
    bench: ShardBench, delete: Callable[[ShardBench], None]
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


@both
def test_what_cannot_be_deleted_now_is_not_touched(bench: ShardBench, delete: Callable[[ShardBench], None]) -> None:
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(RequestRejected):
        delete(bench)
    assert len(bench.committed()) == MANY


def test_a_tombstone_of_a_deleted_group_that_cannot_be_written_is_written_later(bench: ShardBench) -> None:
    delete_group(bench)
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.advance(1)
    assert deleted(bench) == TOMBSTONES_AT_ONCE
    bench.turn.refuse_with = None
    bench.advance(RETRY_MS + MANY)
    assert deleted(bench) == MANY


def test_two_deletions_at_a_time_end_each_by_itself(bench: ShardBench) -> None:
    bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("t", range(2000))]))
    bench.commit("t", 1500, 7)
    delete_offsets(bench)
    bench.commit("t", 1500, 8)
    assert len(open_sweeps(bench)) == 2
    for _ in range(2):
        assert bench.committed() == {("t", 1500): 8}
        bench.restart()
    bench.advance(MANY)
    without_the_sweeps(bench)
    bench.restart()
    assert bench.committed() == {("t", 1500): 8}
