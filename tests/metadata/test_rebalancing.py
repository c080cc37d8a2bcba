"""Which replicas and leaderships move, and what that copies (ADR 0029: O3 to O5)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.metadata.replicas.rebalancing import Move, PlacedPartition, Seat, move, plan_drain, plan_rebalance

SEATS = [Seat(1, "a"), Seat(2, "b"), Seat(3, "c")]


def after(held: list[PlacedPartition], moves: list[Move]) -> list[PlacedPartition]:
    new = {(one.topic, one.partition): one.after for one in moves}
    return [one._replace(replicas=new.get((one.topic, one.partition), one.replicas)) for one in held]


def counts(held: list[PlacedPartition]) -> Counter[int]:
    return Counter(replica for one in held for replica in one.replicas)


def test_a_move_copies_the_tail_once_for_each_new_replica() -> None:
    held = PlacedPartition("t", 0, (1, 2), tail_bytes=50)
    assert move(held, (2, 1)).copied_bytes == 0
    assert move(held, (3, 2)).copied_bytes == 50
    assert move(held, (3, 4)).copied_bytes == 100


def test_a_drained_broker_is_replaced_in_its_place_by_the_emptiest_broker_of_another_rack() -> None:
    held = [
        PlacedPartition("t", 0, (1, 2), 10),
        PlacedPartition("t", 1, (2, 1), 20),
        PlacedPartition("t", 2, (2, 3), 5),
    ]
    moves, stuck = plan_drain(held, [*SEATS, Seat(4, "b")], 1)
    assert stuck == []
    assert [(one.partition, one.after) for one in moves] == [(0, (3, 2)), (1, (2, 3))], "4 is in the rack of 2"
    assert sum(one.copied_bytes for one in moves) == 30


def test_what_cannot_leave_a_broker_is_said_with_the_reason() -> None:
    moves, stuck = plan_drain([PlacedPartition("t", 0, (1, 2, 3)), PlacedPartition("u", 0, (1,))], SEATS, 1)
    assert [one.topic for one in moves] == ["u"]
    assert [(one.topic, one.why) for one in stuck] == [
        ("t", "its factor 3 needs 3 living brokers besides broker 1, and there are 2")
    ]


def test_an_even_cluster_has_nothing_to_move() -> None:
    held = [PlacedPartition("t", index, (1 + index % 3, 1 + (index + 1) % 3), 10, 1.0) for index in range(6)]
    assert plan_rebalance(held, SEATS) == []


def test_a_new_broker_gets_its_share_and_the_cheapest_partitions() -> None:
    held = [PlacedPartition("t", index, (1 + index % 2, 2 - index % 2), tail_bytes=100 * index) for index in range(6)]
    moves = plan_rebalance(held, SEATS)
    assert counts(after(held, moves)) == {1: 4, 2: 4, 3: 4}
    copying = [one for one in moves if one.copies]
    assert len(copying) == 4
    assert max(one.copied_bytes for one in copying) <= 300, "the two longest tails stay"


def test_leaders_alone_are_balanced_without_a_copy() -> None:
    held = [PlacedPartition("t", index, (1, 2, 3), tail_bytes=1000) for index in range(6)]
    moves = plan_rebalance(held, SEATS)
    assert not any(one.copies for one in moves)
    assert Counter(one.replicas[0] for one in after(held, moves)) == {1: 2, 2: 2, 3: 2}


def test_busy_partitions_are_exchanged_for_idle_ones() -> None:
    held = [PlacedPartition("t", index, (1,), 1, 100.0) for index in range(4)] + [
        PlacedPartition("u", index, (2,), 1, 0.0) for index in range(4)
    ]
    moves = plan_rebalance(held, SEATS[:2])
    loads: Counter[int] = Counter()
    for one in after(held, moves):
        loads[one.replicas[0]] += int(one.load)
    assert loads == {1: 200, 2: 200}
    assert counts(after(held, moves)) == {1: 4, 2: 4}


@given(st.data())
def test_a_plan_keeps_factors_and_racks_and_makes_nothing_worse(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    seats = [Seat(one, data.draw(st.sampled_from([None, "a", "b"]))) for one in range(1, count + 1)]
    held = []
    for index in range(data.draw(st.integers(0, 24))):
        replicas = tuple(data.draw(st.permutations(range(1, count + 1)))[: data.draw(st.integers(1, count))])
        held.append(
            PlacedPartition(
                "t", index, replicas, data.draw(st.integers(0, 100)), data.draw(st.sampled_from([0.0, 1.0, 50.0]))
            )
        )
    racks = {seat.broker_id: seat.rack for seat in seats}
    moves = plan_rebalance(held, seats)
    assert moves == plan_rebalance(held[::-1], seats)
    for one in moves:
        assert len(set(one.after)) == len(one.after) == len(one.before)
        assert len({racks[each] for each in one.after}) >= len({racks[each] for each in one.before})
    before, now = counts(held), counts(after(held, moves))
    ids = range(1, count + 1)

    def spread(found: Counter[int]) -> int:
        return max(found[each] for each in ids) - min(found[each] for each in ids)

    assert spread(now) <= max(1, spread(before))
    broker = data.draw(st.sampled_from(list(ids)))
    drained, stuck = plan_drain(held, seats, broker)
    left = [one for one in after(held, drained) if broker in one.replicas]
    assert {(one.topic, one.partition) for one in left} == {(one.topic, one.partition) for one in stuck}
    assert all(len(set(one.after)) == len(one.after) == len(one.before) for one in drained)


def test_a_broker_that_joins_thousands_of_partitions_gets_its_share() -> None:
    count = 6_000
    held = [
        PlacedPartition("t", index, tuple(1 + (index + each) % 3 for each in range(3)), index % 97, float(index % 7))
        for index in range(count)
    ]
    seats = [*SEATS, Seat(4, "d")]
    moves = plan_rebalance(held, seats)
    found = after(held, moves)
    assert set(counts(found).values()) == {3 * count // 4}
    leaders = Counter(one.replicas[0] for one in found)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    drained, stuck = plan_drain(found, seats, 4)
    assert stuck == []
    assert len(drained) == 3 * count // 4


def test_leaderships_of_thousands_of_partitions_are_evened_out() -> None:
    held = [PlacedPartition("t", index, (1, 2, 3), index) for index in range(6_000)]
    moves = plan_rebalance(held, SEATS)
    assert not any(one.copies for one in moves)
    assert set(Counter(one.replicas[0] for one in after(held, moves)).values()) == {2_000}
