"""The groups of a shard: the memory of the classic ones that are in the table is counted, and of no other group."""

from __future__ import annotations

from app.groups.classic.classic import ClassicGroup
from app.groups.table import GroupTable
from tests.groups.shards import ShardBench


def joined_group() -> ClassicGroup:
    made = ShardBench()
    made.join()
    group = made.group
    del made.shard.groups[group.group_id]
    assert group.kept_bytes > 0
    return group


def test_groups_count_while_they_are_in_the_table() -> None:
    table = GroupTable()
    first, second = joined_group(), joined_group()
    assert table.account.bytes == 0
    table["first"], table["second"] = first, second
    assert table == {"first": first, "second": second}
    assert table.account.bytes == first.kept_bytes + second.kept_bytes
    del table["first"]
    assert table == {"second": second}
    assert table.account.bytes == second.kept_bytes


def test_a_group_that_takes_the_place_of_another_counts_in_place_of_it() -> None:
    table = GroupTable()
    former, group = joined_group(), joined_group()
    table["g"] = former
    table["g"] = former
    assert table.account.bytes == former.kept_bytes
    table["g"] = group
    assert table.account.bytes == group.kept_bytes
    del table["g"]
    assert table.account.bytes == 0
