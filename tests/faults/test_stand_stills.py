"""The checker of producers that stand still finds what it has to find, and counts only while a majority is there."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.stand_stills import Partition, StandStills, majority

T: Partition = ("t", 0)
KEYED: Partition = ("keyed", 0)


def looked(*looks: tuple[float, int, bool]) -> StandStills:
    """Looks at one partition: when, how many records are acknowledged, and whether a majority is there."""
    stills = StandStills()
    for now_s, count, is_majority in looks:
        stills.look(now_s, {T: count}, is_majority=is_majority, fault=f"fault at {now_s:.0f}")
    return stills


def test_the_longest_time_between_two_acknowledgements_is_kept_with_the_fault_in_which_it_began() -> None:
    stills = looked((0, 1, True), (2, 2, True), (12, 2, True), (13, 3, True), (20, 4, True))
    assert (stills.longest["t"].lasted_s, stills.longest["t"].since_s) == (11, 2)
    assert str(stills.longest["t"]) == "t-0 stood still for 11.0 s, from fault at 2, until fault at 13"


def test_what_still_stands_is_told_while_it_lasts() -> None:
    stills = looked((0, 1, True), (16, 1, True))
    assert [one.lasted_s for one in stills.look(17, {T: 1}, is_majority=True, fault="")] == [17]
    assert [one.lasted_s for one in stills.look(18, {T: 2}, is_majority=True, fault="")] == [18]
    assert [one.lasted_s for one in stills.look(19, {T: 3}, is_majority=True, fault="")] == [1]


def test_counting_starts_anew_when_the_majority_is_back() -> None:
    stills = looked((0, 1, True), (5, 1, True), (6, 1, False), (40, 1, False), (41, 1, True), (45, 2, True))
    assert stills.longest["t"].lasted_s == 5
    assert stills.look(55, {T: 2}, is_majority=True, fault="")[0].since_s == 45


def test_one_partition_that_stands_still_is_found_beside_others_that_get_on() -> None:
    stills = StandStills()
    for now in range(20):
        counts: Mapping[Partition, int] = {T: now, ("t", 1): now, KEYED: 7}
        found = stills.look(now, counts, is_majority=True, fault="")
    assert (found[0].partition, found[0].lasted_s) == (KEYED, 19)
    assert stills.longest["t"].lasted_s == 1


def test_a_majority_is_up_and_hears_each_other() -> None:
    everywhere = lambda one, other: True  # noqa: E731
    nodes = (1, 2, 3)
    assert majority(nodes, lambda one: one != 2, everywhere)
    assert not majority(nodes, lambda one: one == 2, everywhere)
    assert not majority(nodes, lambda one: True, lambda one, other: False)
    assert majority(nodes, lambda one: True, lambda one, other: {one, other} != {1, 2}), "3 hears both"
    assert not majority(nodes, lambda one: one != 3, lambda one, other: {one, other} != {1, 2})
    assert not majority((1, 2), lambda one: one == 1, everywhere), "one of two is no majority"
    assert not majority((1, 2, 3, 4), lambda one: one < 3, everywhere)
