"""Replicas of new partitions: racks, then hosts, then brokers; leaders and their successors are spread evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, TimestampMs
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import Endpoint
from app.metadata.replicas.placement import ROUNDS_MAX, place
from tests.metadata.support import uuid_of

Where = tuple[str | None, str]
"""Rack and host of a broker."""


def brokers(*where: Where) -> dict[int, BrokerImage]:
    """Brokers 1, 2, … there."""
    return {
        number: BrokerImage(
            BrokerId(number),
            uuid_of(number),
            uuid_of(number),
            number,
            (Endpoint("PLAINTEXT", host, 9092, "PLAINTEXT"),),
            rack,
            TimestampMs(0),
        )
        for number, (rack, host) in enumerate(where, 1)
    }


def placed(there: dict[int, BrokerImage], count: int, factor: int, start: int = 0) -> list[tuple[BrokerId, ...]]:
    return place(there, [BrokerId(each) for each in there], count, factor, start)


def most_and_least(counts: Mapping[BrokerId, int], of: Iterable[int]) -> int:
    """The difference between the brokers with the most and with the least."""
    return max(counts.get(BrokerId(each), 0) for each in of) - min(counts.get(BrokerId(each), 0) for each in of)


def test_one_broker_gets_everything() -> None:
    assert placed(brokers((None, "a")), 3, 1, start=77) == [(1,), (1,), (1,)]


def test_leaders_go_round_from_the_start() -> None:
    there = brokers((None, "a"), (None, "b"), (None, "c"))
    assert [each[0] for each in placed(there, 4, 2)] == [1, 2, 3, 1]
    assert [each[0] for each in placed(there, 4, 1, start=2)] == [3, 1, 2, 3]


def test_the_replicas_of_a_partition_are_on_different_racks() -> None:
    there = brokers(("x", "a"), ("x", "b"), ("y", "c"), ("y", "d"), ("z", "e"), ("z", "f"))
    for replicas in placed(there, 60, 3):
        assert len({there[each].rack for each in replicas}) == 3
    # More replicas than racks: each rack has two of four at most.
    for replicas in placed(there, 60, 4):
        assert max(Counter(there[each].rack for each in replicas).values()) == 2


def test_without_racks_the_replicas_of_a_partition_are_on_different_hosts() -> None:
    there = brokers((None, "a"), (None, "a"), (None, "b"), (None, "b"), (None, "c"), (None, "c"))
    for replicas in placed(there, 60, 3):
        assert len({there[each].host for each in replicas}) == 3


def test_a_rack_counts_more_than_a_host() -> None:
    there = brokers(("x", "a"), ("x", "b"), ("y", "a"))
    for replicas in placed(there, 12, 2):
        assert {there[each].rack for each in replicas} == {"x", "y"}


def test_the_leaderships_of_a_dead_broker_spread_over_all_others() -> None:
    there = brokers(*[(None, f"host{each}") for each in range(5)])
    partitions = placed(there, 5 * 4, 3)
    for dead in there:
        heirs = Counter(replicas[1] for replicas in partitions if replicas[0] == dead)
        assert heirs == Counter(dict.fromkeys(set(there) - {dead}, 1))


def test_brokers_get_as_many_replicas_as_others() -> None:
    there = brokers(*[(None, f"host{each}") for each in range(7)])
    for count in (7, 14, 21, 42):
        partitions = placed(there, count, 3)
        assert most_and_least(Counter(each for one in partitions for each in one), list(there)) <= 2


def test_with_racks_the_leaderships_of_a_dead_broker_spread_over_the_other_racks() -> None:
    there = brokers(("x", "a"), ("x", "b"), ("y", "c"), ("y", "d"), ("z", "e"), ("z", "f"))
    partitions = placed(there, 6 * 4, 3)
    for dead in there:
        heirs = Counter(replicas[1] for replicas in partitions if replicas[0] == dead)
        assert heirs == Counter(each for each in there if there[each].rack != there[dead].rack)


def test_brokers_get_about_as_many_replicas_as_others_where_racks_allow_it() -> None:
    there = brokers(("x", "a"), ("x", "b"), ("y", "c"), ("y", "d"), ("y", "e"), ("y", "f"))
    replicas = Counter(each for one in placed(there, 120, 3) for each in one)
    assert most_and_least(replicas, there) <= 8


def test_neighbouring_partitions_are_led_on_different_racks() -> None:
    there = brokers(("x", "a"), ("x", "b"), ("y", "c"), ("y", "d"), ("z", "e"), ("z", "f"))
    assert [there[each].rack for (each,) in placed(there, 6, 1)] == ["x", "y", "z"] * 2
    there = brokers((None, "a"), (None, "a"), (None, "b"), (None, "b"))
    assert [there[each].host for (each,) in placed(there, 4, 1)] == ["a", "b"] * 2


def test_topics_of_one_partition_begin_anywhere() -> None:
    there = brokers(*[(None, f"host{each}") for each in range(4)])
    assert {placed(there, 1, 2, start)[0] for start in range(4 * 4)} >= {
        (leader, second) for leader in there for second in there if leader != second
    }


def test_a_large_cluster_repeats_its_placement() -> None:
    there = brokers(*[(None, f"host{each}") for each in range(ROUNDS_MAX + 8)])
    turn = len(there) * ROUNDS_MAX
    partitions = placed(there, 2 * turn, 3)
    assert partitions[:turn] == partitions[turn:]
    assert most_and_least(Counter(each for one in partitions for each in one), list(there)) <= 4


@pytest.mark.parametrize("factor", [0, -1, 3])
def test_a_factor_that_the_brokers_do_not_allow_is_refused(factor: int) -> None:
    with pytest.raises(RequestRejected) as refused:
        placed(brokers((None, "a"), (None, "b")), 1, factor)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    where=st.lists(st.tuples(st.sampled_from([None, "x", "y", "z"]), st.sampled_from("abcd")), min_size=1, max_size=9),
    count=st.integers(1, 100),
    factor=st.integers(1, 9),
    start=st.integers(0, 1 << 16),
)
def test_whatever_the_brokers_leaders_are_even_and_racks_as_different_as_can_be(
    where: list[Where], count: int, factor: int, start: int
) -> None:
    there = brokers(*where)
    factor = min(factor, len(there))
    partitions = placed(there, count, factor, start)
    assert partitions == placed(there, count, factor, start)
    assert len(partitions) == count
    assert most_and_least(Counter(each[0] for each in partitions), list(there)) <= 1
    racks = len({rack for rack, _ in where})
    for replicas in partitions:
        assert len(set(replicas)) == factor
        assert len({there[each].rack for each in replicas}) == min(racks, factor)


def test_fenced_brokers_get_the_last_replicas_where_live_ones_are_too_few() -> None:
    there = brokers(*[(None, str(each)) for each in range(5)])
    live = [BrokerId(each) for each in (1, 2)]
    fenced = [BrokerId(each) for each in (3, 4, 5)]
    found = place(there, live, 6, 3, 0, fenced=fenced)
    assert all({*replicas[:2]} == {1, 2} and replicas[2] in (3, 4, 5) for replicas in found)
    assert Counter(replicas[2] for replicas in found) == {3: 2, 4: 2, 5: 2}
    assert place(there, live, 6, 2, 0, fenced=fenced) == placed(brokers((None, "0"), (None, "1")), 6, 2)
    with pytest.raises(RequestRejected, match="greater than the number of live brokers, 2; 3 more are fenced"):
        place(there, live, 1, 6, 0, fenced=fenced)
    with pytest.raises(RequestRejected):
        place(there, [], 1, 1, 0, fenced=fenced)
