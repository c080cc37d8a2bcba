from __future__ import annotations

from collections.abc import Callable

import pytest

from app.core.turns import whole
from app.groups import topic_lags
from app.groups.topic_lags import topic_lags_steps
from app.wire.private import (
    LAG_OFFSETS_SHOWN,
    UNKNOWN_END,
    GroupOnTopic,
    TopicLag,
    TopicLagsRequest,
    TopicLagsResponse,
)
from tests.groups.shards import GROUP, ShardBench


def everything(_: str) -> bool:
    return True


def asked(
    bench: ShardBench, request: TopicLagsRequest, sees: Callable[[str], bool] = everything, shards: int = 1
) -> TopicLagsResponse:
    return whole(topic_lags_steps(request, [bench.shard] * shards, sees))


def filled() -> ShardBench:
    bench = ShardBench()
    bench.commit("t", 0, 3, group_id="near")
    bench.commit("t", 0, 1, group_id="far")
    bench.commit("t", 1, 2, group_id="far")
    bench.commit("u", 0, 1, group_id="far")
    bench.commit("other", 0, 1, group_id="elsewhere")
    return bench


def test_lags_are_summed_by_topic_and_the_greatest_group_is_named() -> None:
    answer = asked(filled(), TopicLagsRequest([("t", [10, 20]), ("u", [0]), ("empty", [5])]))
    assert answer.lags == [
        TopicLag("t", 2, 34, 27, "far"),
        TopicLag("u", 1, 0),
        TopicLag("empty", 0, 0),
    ]
    assert (answer.groups, answer.whole) == ([], True)


def test_a_lag_without_an_end_makes_the_sum_of_its_topic_not_whole() -> None:
    answer = asked(filled(), TopicLagsRequest([("t", [10, UNKNOWN_END]), ("u", [4])]))
    assert [(one.topic, one.lag, one.whole) for one in answer.lags] == [("t", 16, False), ("u", 3, True)]
    fewer = asked(filled(), TopicLagsRequest([("t", [10])]))
    assert not fewer.lags[0].whole, "the topic has more partitions than the caller knows"


def test_groups_that_the_caller_may_not_see_count_for_nothing() -> None:
    answer = asked(filled(), TopicLagsRequest([("t", [10, 20])], 10), lambda group: group != "far")
    assert answer.lags == [TopicLag("t", 1, 7, 7, "near")]
    assert [one.group_id for one in answer.groups] == ["near"]
    assert answer.fitting == 1
    nothing = asked(filled(), TopicLagsRequest([("t", [10, 20])], 10), lambda group: False)
    assert nothing == TopicLagsResponse([TopicLag("t", 0, 0)])


def test_the_groups_of_a_topic_come_in_pages_in_their_order() -> None:
    bench = ShardBench()
    names = [f"g{number:03}" for number in range(450)]
    for name in reversed(names):
        bench.commit("t", 0, 1, group_id=name)
    found: list[str] = []
    after, pages = "", 0
    while len(found) < len(names):
        answer = asked(bench, TopicLagsRequest([("t", [2])], 1_000, after))
        assert (answer.before, answer.fitting) == (len(found), len(names))
        found += [one.group_id for one in answer.groups]
        after, pages = found[-1], pages + 1
    assert (found, pages) == (names, 5)


def test_a_group_with_members_is_on_its_topics_before_it_commits() -> None:
    bench = ShardBench()
    bench.stable(2)
    bench.commit("u", 0, 1, group_id="other")
    row = GroupOnTopic(GROUP, "classic", "Stable", 2, True, 0, 0, [])
    assert asked(bench, TopicLagsRequest([("t", [5])], 10)).groups == [row]
    assert [one.group_id for one in asked(bench, TopicLagsRequest([("u", [5])], 10)).groups] == ["other"]
    assert asked(bench, TopicLagsRequest([("t", [5])], 10), lambda _: False).groups == []


def test_the_offsets_that_are_furthest_behind_are_shown() -> None:
    bench = ShardBench()
    count = LAG_OFFSETS_SHOWN + 3
    for partition in range(count):
        bench.commit("t", partition, partition, group_id="team")
    (row,) = asked(bench, TopicLagsRequest([("t", [count] * count)], 10)).groups
    assert row.offsets == [(partition, partition) for partition in range(LAG_OFFSETS_SHOWN)]
    assert (row.partitions, row.lag, row.reads) == (count, sum(range(1, count + 1)), False)


def test_the_offset_in_one_partition_is_told() -> None:
    bench = ShardBench()
    for partition in range(LAG_OFFSETS_SHOWN + 3):
        bench.commit("t", partition, 7, group_id="team")
    bench.commit("t", 1, 7, group_id="without")
    ends = [("t", [9] * (LAG_OFFSETS_SHOWN + 3))]
    team, without = asked(bench, TopicLagsRequest(ends, 10, partition=LAG_OFFSETS_SHOWN + 2)).groups
    assert (team.offsets, team.partitions) == ([(LAG_OFFSETS_SHOWN + 2, 7)], LAG_OFFSETS_SHOWN + 3)
    assert without.offsets == []


def test_loaded_offsets_count_and_are_not_decoded_for_good() -> None:
    bench = ShardBench()
    for topic in "tu":
        for partition in (0, 1):
            bench.commit(topic, partition, 4, group_id="team")
    bench.restart()
    assert asked(bench, TopicLagsRequest([("t", [5, 7])])).lags == [TopicLag("t", 1, 4, 4, "team")]
    assert not bench.shard.offsets.decode_some("team", 3), "four are still to be decoded"
    bench.restart()
    bench.commit("t", 0, 5, group_id="team")
    assert asked(bench, TopicLagsRequest([("t", [5, 7])])).lags == [TopicLag("t", 1, 3, 3, "team")]


def test_no_more_is_looked_at_than_a_response_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_lags, "LOOKED_AT_MAX", 3)
    answer = asked(filled(), TopicLagsRequest([("t", [10, 20])], 10))
    assert not answer.whole


def test_work_goes_on_in_steps() -> None:
    bench = ShardBench()
    for number in range(200):
        bench.commit("t", 0, 1, group_id=f"g{number}")
    steps = topic_lags_steps(TopicLagsRequest([("t", [2])]), [bench.shard], everything)
    assert sum(1 for _ in steps) >= 2 * 200 // topic_lags.LOOKED_A_STEP


def test_a_group_with_many_offsets_is_told_of_in_steps() -> None:
    bench = ShardBench()
    for partition in range(640):
        bench.commit("t", partition, 1, group_id="team")
    bench.restart()
    steps = topic_lags_steps(TopicLagsRequest([("t", [2] * 640)], 10), [bench.shard], everything)
    walks = 3  # for the sum, for the row, and for what is furthest behind
    assert sum(1 for _ in steps) >= walks * (640 // topic_lags.LOOKED_A_STEP)
