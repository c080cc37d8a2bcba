"""What a broker shows of its groups, their offsets and share groups to whoever watches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.metrics import Registry
from app.core.units import NO_PRODUCER_ID, Offset
from app.groups.counters import GroupCounters
from app.groups.metrics import ELSEWHERE, show_groups, show_lag
from app.groups.offsets.offsets import OffsetStore, offset_key, offset_value
from app.groups.share.core.share_counters import ShareCounters
from app.groups.share.core.share_state import ShareKey, ShareSettings
from app.groups.share.core.share_window import Acknowledgement
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from tests.groups.bench import topic_id
from tests.groups.requests import FEW, ask, commit, find
from tests.groups.shards import GROUP, SESSION_MS, ShardBench, ShardTurn
from tests.groups.share_bench import ShareBench
from tests.support.broker import running_broker


def raw_offset(group: str, topic: str, partition: int, offset: int) -> tuple[bytes, bytes]:
    return offset_key(group, topic, partition), offset_value(offset, 0, "", 1)


def shown(registry: Registry, family: str) -> dict[str, float]:
    """Values by what labels say, in their order; those that are 0 left out."""
    found = (sample for sample in registry.samples() if sample.family == family)
    return {",".join(value for _, value in sample.labels): sample.value for sample in found if sample.value}


def test_groups_members_and_offsets_are_counted_as_they_are() -> None:
    registry, bench = Registry(), ShardBench()
    show_groups(registry, lambda: [bench.shard])
    bench.shard._counters = GroupCounters(registry)
    assert shown(registry, "firn_groups") == {}
    bench.stable(2)
    bench.commit("t", 0, 5, group_id="other")
    bench.commit("t", 1, 5, group_id="other")
    assert shown(registry, "firn_groups") == {"Stable,classic": 1, "Empty,classic": 1}
    assert shown(registry, "firn_group_members") == {"classic": 2}
    assert shown(registry, "firn_group_offsets") == {"": 2}
    assert shown(registry, "firn_group_offsets_committed_total") == {"false": 2}
    bench.commit("t", 2, 6, group_id="other", producer_id=7)
    assert shown(registry, "firn_group_offsets_committed_total") == {"false": 2, "true": 1}
    bench.advance(SESSION_MS)
    assert shown(registry, "firn_group_members_expired_total") == {"classic": 2}
    assert shown(registry, "firn_groups") == {"Empty,classic": 2}
    bench.do(lambda shard, turn: shard.delete_group(turn, GROUP))
    bench.do(lambda shard, turn: shard.delete_group(turn, "other"))
    assert shown(registry, "firn_group_offsets_deleted_total") == {"": 3}
    assert shown(registry, "firn_groups") == {}


def test_lag_is_shown_by_group_topic_and_partition_and_what_is_left_out_is_counted() -> None:
    registry, few, bench = Registry(), Registry(), ShardBench()
    ends = {("t", 0): 12, ("t", 1): 5}
    for each, series_max in ((registry, 100), (few, 2)):
        show_lag(each, lambda: [bench.shard], lambda topic, partition: ends.get((topic, partition)), series_max)
    bench.commit("t", 0, 5, group_id="other")
    bench.commit("t", 1, 5, group_id="other")
    bench.commit("gone", 0, 5, group_id="other")
    assert shown(registry, "firn_group_offset") == {"other,0,t": 5, "other,1,t": 5}
    assert shown(registry, "firn_group_lag_records") == {"other,0,t": 7}
    assert shown(registry, "firn_group_lag_left_out") == {}
    assert len(shown(few, "firn_group_offset")) <= 2
    assert shown(few, "firn_group_lag_left_out") == {"": 1}
    ends["t", 0] = 3
    assert shown(registry, "firn_group_lag_records") == {}, "never below nothing"
    ends["t", 0] = ELSEWHERE
    assert shown(registry, "firn_group_offset") == {"other,0,t": 5, "other,1,t": 5}
    lags = [sample for sample in registry.samples() if sample.family == "firn_group_lag_records"]
    assert [dict(sample.labels)["partition"] for sample in lags] == ["1"], "no lag is told that is not known"


@pytest.mark.parametrize("count_max", [0, 1, 2, 3, 100])
def test_offsets_are_walked_through_once_each_whether_decoded_or_not(count_max: int) -> None:
    store = OffsetStore()
    store.load([raw_offset("g", "t", partition, 10 + partition) for partition in range(3)], NO_PRODUCER_ID, Offset(3))
    assert store.get("g", "t", 1) is not None
    store.load([raw_offset("g", "t", 1, 11)], NO_PRODUCER_ID, Offset(4))  # loaded anew, beside what was decoded
    store.finish_loading()
    found = [one for one in store.walk("g", count_max) if one is not None]
    assert len(found) == min(count_max, 3)
    assert len({(topic, partition) for topic, partition, _ in found}) == len(found)
    assert all(offset.offset == 10 + partition for _, partition, offset in found)
    assert list(store.walk("stranger", count_max)) == []


async def test_the_lag_of_a_group_in_a_broker_follows_commits_and_produces(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        await find(broker)
        log, registry = broker.log("t"), broker.node.registry
        log.append_as_leader(memoryview(bytearray(build_batch([(1, b"k", b"v", ())] * 5))), now_ms=1)
        await ask(broker.node.context, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 2))
        assert shown(registry, "firn_group_lag_records") == {"g,0,t": 3}
        log.append_as_leader(memoryview(bytearray(build_batch([(1, b"k", b"v", ())] * 5))), now_ms=1)
        assert shown(registry, "firn_group_lag_records") == {"g,0,t": 8}


def test_records_of_share_groups_are_counted() -> None:
    registry, turn, key = Registry(), ShardTurn(), ShareKey("g", topic_id("t"), 0)
    settings = ShareSettings(lock_ms=1000, deliveries_max=2, window_max=100)
    shard = ShareBench(lambda _: settings, ShareCounters(registry))
    shard.begin(turn, key, 0)
    shard.acquire(turn, key, "m", [(0, 10)], [], 0, 100)
    shard.acknowledge(turn, key, "m", [Acknowledgement(0, 4, [1]), Acknowledgement(4, 6, [1, 2])])
    turn.now_ms += 1000
    shard.due(turn, key)
    assert shown(registry, "firn_share_records_acquired_total") == {"": 10}
    assert shown(registry, "firn_share_records_acknowledged_total") == {"accept": 5, "release": 1}
    assert shown(registry, "firn_share_locks_expired_total") == {"": 4}


async def test_a_running_broker_shows_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **FEW) as broker:
        await broker.create_topic("t")
        await find(broker)
        await ask(broker.node.context, ApiKey.OFFSET_COMMIT, 8, commit("g", "t", 0, 7))
        registry = broker.node.registry
        assert shown(registry, "firn_groups") == {"Empty,classic": 1}
        assert shown(registry, "firn_group_offsets_committed_total") == {"false": 1}
        assert shown(registry, "firn_coordinator_partitions") == {"active,__consumer_offsets": 2}
        loads = shown(registry, "firn_coordinator_load_seconds")
        assert loads["__consumer_offsets,+Inf"] == 2
        families = {sample.family for sample in registry.samples()}
        assert {"firn_transactions_open", "firn_transactional_ids", "firn_share_sessions"} <= families
