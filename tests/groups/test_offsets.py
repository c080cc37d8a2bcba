"""Committed offsets: who may commit, transactions, deletion, expiry, and what is left after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.coordinator.records import GROUP_RECORDS
from app.coordinator.schemas.classic_group import OffsetCommitKey, OffsetCommitValue
from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.core.units import Offset, TimestampMs
from app.groups.classic.classic import ClassicState
from app.groups.offsets import offsets
from app.groups.offsets.cleanup import OFFSETS_AT_ONCE
from app.groups.offsets.offsets import (
    CommittedOffset,
    OffsetStore,
    offset_key,
    offset_value,
    parse_offset_value,
)
from tests.groups.bench import image_of
from tests.groups.shards import CONFIG, GROUP, ShardBench

MINUTE_MS = 60_000
RETENTION_MS = CONFIG.offsets_retention_minutes * MINUTE_MS
CHECK_MS = CONFIG.offsets_retention_check_interval_ms

SESSION_STEP_MS = 600_000
"""Between two signs of life of members with a long session."""

texts = st.text(max_size=40)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


def stored(group: str, topic: str, partition: int, offset: int | None) -> tuple[bytes, bytes | None]:
    value = None if offset is None else offset_value(offset, -1, "", 7)
    return offset_key(group, topic, partition), value


# --- bytes ------------------------------------------------------------------------------------------------------------


@given(texts, texts, st.integers(0, (1 << 31) - 1))
def test_keys_are_what_the_schema_says(group: str, topic: str, partition: int) -> None:
    assert offset_key(group, topic, partition) == GROUP_RECORDS.encode_key(OffsetCommitKey(group, topic, partition))


@given(int64s, st.integers(-1, (1 << 31) - 1), texts, int64s, st.integers(-1, (1 << 63) - 1))
def test_values_are_what_the_schema_says(
    offset: int, leader_epoch: int, metadata: str, committed_ms: int, expires_ms: int
) -> None:
    value = OffsetCommitValue(offset, leader_epoch, metadata, committed_ms, expires_ms)
    raw = offset_value(offset, leader_epoch, metadata, committed_ms, expires_ms)
    assert raw == GROUP_RECORDS.encode_value(value, 3 if expires_ms == -1 else 1)
    found = parse_offset_value(raw, Offset(9))
    expected_epoch = leader_epoch if expires_ms == -1 else -1
    assert found == CommittedOffset(offset, expected_epoch, metadata, committed_ms, expires_ms, 9)


@pytest.mark.parametrize("version", range(5))
def test_values_of_every_version_are_read(version: int) -> None:
    raw = GROUP_RECORDS.encode_value(OffsetCommitValue(5, 3, "m", 7), version)
    found = parse_offset_value(raw, Offset(1))
    assert (found.offset, found.metadata, found.committed_ms) == (5, "m", 7)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_offset_are_corrupt_and_nothing_else(raw: bytes) -> None:
    for value in (raw, b"\0\3" + raw):
        try:
            parse_offset_value(value, Offset(0))
        except CorruptionError:
            continue


@given(st.binary(max_size=40), st.integers(0, 40))
def test_keys_that_are_not_sound_are_corrupt_and_nothing_else(raw: bytes, length: int) -> None:
    store = OffsetStore()
    try:
        store.load([(b"\0\1" + length.to_bytes(2, "big") + raw, offset_value(1, 1, "", 1))], -1, Offset(1))
        store.finish_loading()
        for group_id in store.group_ids():
            store.topics(group_id)
    except CorruptionError:
        return


# --- who may commit ---------------------------------------------------------------------------------------------------


def test_anybody_may_commit_for_a_group_without_members() -> None:
    bench = ShardBench()
    assert bench.commit("t", 0, 5) is ErrorCode.NONE
    assert bench.commit("t", 1, 6) is ErrorCode.NONE
    assert bench.committed() == {("t", 0): 5, ("t", 1): 6}
    bench.restart()
    assert bench.committed() == {("t", 0): 5, ("t", 1): 6}
    assert (bench.group.state, bench.group.protocol_type) == (ClassicState.EMPTY, "")


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_a_group_that_there_is_not_is_refused(version: int, code: ErrorCode) -> None:
    bench = ShardBench()
    assert bench.commit("t", 0, 5, member_id="m", generation=1, api_version=version) is code
    assert bench.commit("t", 0, 5, member_id="m", generation=1, producer_id=7) is ErrorCode.ILLEGAL_GENERATION
    assert not bench.shard.groups
    assert not bench.turn.log


def test_only_members_of_this_generation_commit_once_there_are_members() -> None:
    bench = ShardBench()
    leader, _ = bench.stable(2)
    bench.commit("t", 0, 5, member_id=leader.member_id, generation=1)
    appended = len(bench.turn.log)
    for arguments, code in (
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": leader.member_id, "generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": leader.member_id, "generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": leader.member_id, "generation": 1, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert bench.commit("t", 0, 9, **arguments) is code  # type: ignore[arg-type]
    assert bench.committed() == {("t", 0): 5}
    assert len(bench.turn.log) == appended


def test_while_partitions_are_assigned_nobody_commits() -> None:
    bench = ShardBench()
    joined = bench.join_all(2)
    member = joined[0].member_id
    assert bench.commit("t", 0, 5, member_id=member, generation=1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.commit("t", 0, 5, member_id=member, generation=1, producer_id=7) is ErrorCode.NONE


def test_a_commit_that_cannot_be_written_changes_nothing() -> None:
    bench = ShardBench()
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.commit("t", 0, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.committed() == {}
    assert not bench.shard.groups


# --- transactions -----------------------------------------------------------------------------------------------------


def test_what_a_transaction_commits_counts_when_it_is_committed_and_not_before() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.commit("t", 0, 8, producer_id=7)
    bench.commit("t", 1, 9, producer_id=7)
    assert bench.committed() == {("t", 0): 5}
    assert bench.shard.offsets.is_pending(GROUP, "t", 0)
    assert not bench.shard.offsets.is_pending(GROUP, "t", 2)
    bench.restart()
    assert bench.committed() == {("t", 0): 5}
    assert bench.shard.offsets.is_pending(GROUP, "t", 1)
    bench.end_transaction(7, commit=True)
    expected = {("t", 0): 8, ("t", 1): 9}
    assert bench.committed() == expected
    assert not bench.shard.offsets.is_pending(GROUP, "t", 0)
    bench.restart()
    assert bench.committed() == expected


def test_what_an_aborted_transaction_committed_is_gone() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.commit("t", 0, 8, producer_id=7)
    bench.end_transaction(7, commit=False)
    for _ in range(2):
        assert bench.committed() == {("t", 0): 5}
        assert not bench.shard.offsets.has_pending(GROUP)
        bench.restart()


def test_a_commit_after_that_of_a_transaction_is_newer_than_its_end() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 8, producer_id=7)
    bench.commit("t", 0, 6)
    bench.end_transaction(7, commit=True)
    assert bench.committed() == {("t", 0): 6}
    bench.restart()
    assert bench.committed() == {("t", 0): 6}


def test_what_was_deleted_after_a_transaction_stays_deleted_after_a_restart() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.commit("t", 1, 6, producer_id=7)
    bench.end_transaction(7, commit=True)
    bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("t", [0, 1])]))
    for _ in range(2):
        assert bench.committed() == {}
        bench.restart()


def test_a_group_of_which_only_pending_offsets_are_known_is_there() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 8, producer_id=7)
    bench.restart()
    assert bench.group.is_empty
    bench.end_transaction(7, commit=False)
    assert GROUP not in bench.shard.offsets


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_a_group_is_deleted_with_its_offsets_once_it_is_empty() -> None:
    bench = ShardBench()
    leader, follower = bench.stable(2)
    bench.commit("t", 0, 5, member_id=leader.member_id, generation=1)
    bench.commit("t", 1, 6, member_id=leader.member_id, generation=1, producer_id=7)
    delete = lambda shard, turn: shard.delete_group(turn, GROUP)  # noqa: E731
    assert bench.code(delete) is ErrorCode.NON_EMPTY_GROUP
    bench.leave((leader.member_id, None), (follower.member_id, None))
    assert bench.code(delete) is ErrorCode.NONE
    for _ in range(2):
        assert not bench.shard.groups
        assert bench.committed() == {}
        assert bench.code(delete) is ErrorCode.GROUP_ID_NOT_FOUND
        bench.restart()


def test_offsets_of_a_topic_that_members_read_stay() -> None:
    bench = ShardBench()
    (only,) = bench.stable(1)
    for topic in ("t", "u"):
        bench.commit(topic, 0, 5, member_id=only.member_id, generation=1)

    codes = bench.do(lambda shard, turn: shard.delete_offsets(turn, GROUP, [("t", [0]), ("u", [0, 1])]))
    assert codes == [("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("u", ErrorCode.NONE)]
    assert bench.committed() == {("t", 0): 5}
    bench.restart()
    assert bench.committed() == {("t", 0): 5}
    with pytest.raises(RequestRejected) as refused:
        bench.do(lambda shard, turn: shard.delete_offsets(turn, "other", []))
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_deleted_topics_go() -> None:
    bench = ShardBench()
    for topic in ("t", "u"):
        bench.commit(topic, 0, 5)
        bench.commit(topic, 1, 5, producer_id=7)
    bench.do(lambda shard, turn: shard.topics_deleted(turn, {"t"}))
    bench.commit("t", 2, 9)  # of a topic made anew
    bench.advance(1)
    bench.end_transaction(7, commit=True)
    assert bench.committed() == {("u", 0): 5, ("u", 1): 5, ("t", 2): 9}
    bench.restart()
    assert bench.committed() == {("u", 0): 5, ("u", 1): 5, ("t", 2): 9}


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_offsets_that_nobody_assigned_expire_by_the_time_of_their_commit_and_the_group_with_the_last() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.advance(RETENTION_MS // 2)
    bench.commit("t", 1, 6)
    bench.advance(RETENTION_MS // 2 + CHECK_MS)
    assert bench.committed() == {("t", 1): 6}
    bench.advance(RETENTION_MS // 2 + CHECK_MS)
    assert bench.committed() == {}
    assert not bench.shard.groups
    bench.restart()
    assert not bench.shard.groups


def test_offsets_of_an_empty_group_expire_by_the_time_since_its_last_member() -> None:
    bench = ShardBench()
    (only,) = bench.stable(1, session_ms=SESSION_STEP_MS + 1)
    bench.commit("t", 0, 5, member_id=only.member_id, generation=1)
    for _ in range(3 * RETENTION_MS // SESSION_STEP_MS):
        bench.heartbeat(only.member_id, 1)
        bench.advance(SESSION_STEP_MS)
    assert bench.committed() == {("t", 0): 5}
    bench.leave((only.member_id, None))
    bench.advance(RETENTION_MS - CHECK_MS)
    assert bench.committed() == {("t", 0): 5}
    bench.advance(2 * CHECK_MS)
    assert bench.committed() == {}
    assert not bench.shard.groups


def test_offsets_of_topics_that_members_do_not_read_any_more_expire() -> None:
    bench = ShardBench()
    (only,) = bench.stable(1, session_ms=SESSION_STEP_MS + 1)
    for topic in ("t", "left"):
        bench.commit(topic, 0, 5, member_id=only.member_id, generation=1)
    for _ in range(RETENTION_MS // SESSION_STEP_MS + 2):
        bench.heartbeat(only.member_id, 1)
        bench.advance(SESSION_STEP_MS)
    assert bench.committed() == {("t", 0): 5}


def test_what_a_transaction_is_about_to_commit_does_not_expire() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.commit("t", 0, 6, producer_id=7)
    bench.advance(RETENTION_MS + CHECK_MS)
    assert bench.committed() == {("t", 0): 5}


def test_an_offset_goes_when_its_client_said_so() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5, retention_ms=MINUTE_MS, api_version=2)
    bench.commit("t", 1, 5)
    bench.restart()
    bench.advance(CHECK_MS)
    assert bench.committed() == {("t", 1): 5}


@pytest.mark.parametrize("retention_ms", [(1 << 63) - 1, (1 << 63) - 2, -(1 << 63), -2])
def test_any_time_that_a_client_may_name_can_be_written_down(retention_ms: int) -> None:
    bench = ShardBench()
    assert bench.commit("t", 0, 5, retention_ms=retention_ms, api_version=2) == ErrorCode.NONE
    bench.restart()
    assert bench.committed() == {("t", 0): 5}
    bench.advance(CHECK_MS)
    assert bench.committed() == ({("t", 0): 5} if retention_ms > 0 else {})


def test_what_expires_of_a_group_with_a_long_id_fits_in_what_the_topic_takes() -> None:
    bench = ShardBench(replace(CONFIG, offsets_retention_minutes=1))
    group = "g" * 32_767
    for partition in range(40):
        bench.commit("t", partition, 5, group_id=group)
    bench.turn.log.clear()
    bench.advance(2 * CHECK_MS)
    assert bench.committed(group) == {}
    assert max(sum(len(key) for key, _ in batch) for batch in bench.turn.log) < 1_000_000


def test_expiry_goes_through_many_groups_and_is_tried_again_when_it_cannot_be_written() -> None:
    bench = ShardBench(replace(CONFIG, offsets_retention_minutes=1))
    for number in range(450):
        bench.commit("t", 0, 5, group_id=f"g{number}")
    bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.advance(CHECK_MS)
    assert len(bench.shard.groups) == 450
    bench.turn.refuse_with = None
    bench.advance(CHECK_MS)
    assert not bench.shard.groups
    assert not bench.shard.offsets.group_ids()


def test_offsets_that_are_not_sound_hold_up_no_others_and_are_not_taken_for_nothing() -> None:
    bench = ShardBench(replace(CONFIG, offsets_retention_minutes=1))
    for group_id in ("a", "b"):
        bench.commit("t", 0, 5, group_id=group_id)
    bench.turn.append([(offset_key("a", "t", 0), b"\xff")])
    bench.restart()
    for _ in range(2):
        bench.advance(CHECK_MS)
        assert list(bench.shard.groups) == ["a"]
    with pytest.raises(CorruptionError):
        bench.shard.offsets.get("a", "t", 0)
    with pytest.raises(CorruptionError):
        bench.committed("a")
    bench.commit("t", 0, 6, group_id="a")
    assert bench.committed("a") == {("t", 0): 6}


# --- large groups -----------------------------------------------------------------------------------------------------

_places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))
_loads = st.tuples(_places, st.one_of(st.none(), st.integers(0, 99)), st.sampled_from([-1, -1, -1, 5]))
_steps = st.one_of(
    st.tuples(st.just("get"), _places, st.just(0)),
    st.tuples(st.just("put"), _places, st.integers(100, 199)),
    st.tuples(st.just("delete"), _places, st.just(0)),
    st.tuples(st.just("decode"), _places, st.integers(0, 4)),
    st.tuples(st.just("end"), _places, st.booleans()),
)


@given(st.lists(_loads, max_size=20), st.lists(_steps, max_size=12))
def test_offsets_are_the_same_however_few_of_them_are_decoded(loads: list[object], steps: list[object]) -> None:
    """Held against a dictionary; what the producer 5 has loaded is pending until its end."""
    store, known, pending = OffsetStore(), {}, {}
    ends: dict[object, int] = {}
    for end, (place, offset, producer) in enumerate(loads, 1):  # type: ignore[misc]
        store.load([stored(GROUP, *place, offset)], producer, Offset(end))
        if offset is None:
            known.pop(place, None)
            pending.pop(place, None)
        elif producer == 5:
            pending[place] = offset
            ends[place] = end
        else:
            known[place] = offset
            # Where it ends is not kept of what is loaded outside of transactions before the first one.
            store_end = store._groups[GROUP].decoded.get(place[0], {}).get(place[1])
            ends[place, "known"] = 0 if store_end is None else store_end.log_end
    store.finish_loading()
    for number, (step, place, argument) in enumerate(steps):  # type: ignore[misc]
        match step:
            case "get":
                found = store.get(GROUP, *place)
                assert (None if found is None else found.offset) == known.get(place)
            case "put":
                end = Offset(1000 + number)
                store.put(
                    GROUP, *place, CommittedOffset(Offset(argument), -1, "", TimestampMs(7), TimestampMs(-1), end)
                )
                known[place] = argument
                ends[place, "known"] = end
            case "delete":
                store.delete(GROUP, *place)
                known.pop(place, None)
                pending.pop(place, None)
            case "decode":
                store.decode_some(GROUP, argument)
            case "end":
                store.end_transaction(5, commit=argument)
                if argument:
                    for one, offset in pending.items():
                        if one not in known or ends[one, "known"] < ends[one]:
                            known[one] = offset
                            ends[one, "known"] = ends[one]
                pending = {}
    assert {
        (topic, partition): committed.offset
        for topic, partitions in store.topics(GROUP).items()
        for partition, committed in partitions.items()
    } == known
    assert (GROUP in store) == bool(known or pending)


def test_who_asks_for_one_offset_of_a_large_group_has_no_other_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ShardBench()
    for partition in range(50):
        bench.commit("t", partition, partition)
    bench.restart()
    decoded = []

    def parse(value: bytes, log_end: Offset) -> CommittedOffset:
        decoded.append(value)
        return parse_offset_value(value, log_end)

    monkeypatch.setattr(offsets, "parse_offset_value", parse)
    assert bench.shard.offsets.get(GROUP, "t", 7).offset == 7  # type: ignore[union-attr]
    bench.commit("t", 8, 80)
    assert len(decoded) == 1
    assert not bench.shard.offsets.decode_some(GROUP, 10)
    assert len(decoded) == 11
    bench.advance(CHECK_MS)
    assert len(decoded) == 49, "all but those that were asked for and committed"


def test_a_search_for_expired_offsets_ends_with_the_last_group_however_large_it_is() -> None:
    bench = ShardBench()
    for partition in range(OFFSETS_AT_ONCE + 10):
        bench.commit("t", partition, 1)
    bench.restart()
    searches = 0
    for _ in range(5):
        bench.turn.now_ms += CHECK_MS
        turns = 0
        while (key := bench.turn.timers.pop_due(bench.turn.now_ms)) is not None:
            bench.shard.due(bench.turn, key)
            turns += 1
            assert turns < 10, "it begins again at once"
        searches += turns > 0
    assert searches == 5


def _steps_of(bench: ShardBench) -> list[int]:
    """Do what is due, again and again; how many records each time wrote."""
    steps = []
    while (key := bench.turn.timers.pop_due(bench.turn.now_ms)) is not None:
        before = sum(map(len, bench.turn.log))
        bench.shard.due(bench.turn, key)
        steps.append(sum(map(len, bench.turn.log)) - before)
    return steps


@pytest.mark.parametrize("restarted", [False, True], ids=["committed here", "loaded"])
def test_a_large_group_expires_in_steps_and_goes_with_the_last_of_them(restarted: bool) -> None:
    bench = ShardBench(replace(CONFIG, offsets_retention_minutes=1))
    for topic in ("t", "u"):
        for partition in range(3 * OFFSETS_AT_ONCE // 2 + 7):
            bench.commit(topic, partition, 1)
    if restarted:
        bench.restart()
    bench.turn.now_ms += CHECK_MS
    steps = _steps_of(bench)
    assert max(steps) <= OFFSETS_AT_ONCE
    assert sum(steps) == 3 * OFFSETS_AT_ONCE + 14 + 1
    assert not bench.shard.groups
    assert GROUP not in bench.shard.offsets


@pytest.mark.parametrize("restarted", [False, True], ids=["committed here", "loaded"])
def test_offsets_of_a_deleted_topic_go_in_steps_but_not_those_that_are_committed_meanwhile(restarted: bool) -> None:
    bench = ShardBench()
    count = 5 * OFFSETS_AT_ONCE // 2
    for partition in range(count):
        bench.commit("t", partition, 1)
    bench.commit("u", 0, 1)
    bench.commit("t", count, 1, producer_id=7)
    if restarted:
        bench.restart()
    bench.shard.topics_deleted(bench.turn, ["t"])
    key = bench.turn.timers.pop_due(bench.turn.now_ms)
    bench.shard.due(bench.turn, key)
    left = {partition for topic, partition in bench.committed() if topic == "t"}
    assert count - len(left) <= OFFSETS_AT_ONCE
    again = max(left)
    bench.commit("t", again, 5)  # of a topic that has taken the name
    bench.shard.complete_transaction(7, commit=True)
    steps = _steps_of(bench)
    assert max(steps) <= OFFSETS_AT_ONCE
    assert bench.committed() == {("t", again): 5, ("u", 0): 1}


def test_g10_offsets_of_a_topic_that_was_deleted_while_nobody_coordinated_the_group_go() -> None:
    bench = ShardBench()
    bench.commit("t", 0, 5)
    bench.commit("u", 0, 6)
    bench.image = image_of({"u": 1})  # by another broker's image: nobody tells this shard
    bench.restart()
    bench.advance(CHECK_MS)
    assert bench.committed() == {("u", 0): 6}
    bench.restart()
    assert bench.committed() == {("u", 0): 6}
