"""Server-side assignors: who of a group should read which partitions (KIP-848). Pure.

An assignor gets the whole group and gives the whole assignment. What it must keep:

- every partition of a topic to which somebody subscribes has exactly one owner, who subscribes to that topic;
- ``uniform`` balances first: no partition can move to another subscriber of its topic so that the two come closer; with one
  subscription for all, no two members differ by more than one partition. Within that it is sticky: a member gives up only
  what balance demands. Within that it prefers a member in a rack of one of the partition's replicas;
- ``range`` gives every member a run of neighbouring partitions of each topic, in the same order of members for all topics, so
  that the same partitions of topics of one size meet in one member (joins). It is neither sticky nor rack aware, as in Apache
  Kafka: either would tear what belongs together apart.

The order of members and of topics never depends on a hash: the same group gives the same assignment in every process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. No topic without a partition; never changed, so that members may share it."""

NO_PARTITIONS: Final[Assignment] = {}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as an assignor sees it."""

    partition_count: int
    racks: Sequence[frozenset[str]] = ()
    """By partition: where its replicas are. Empty if no broker says."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it."""

    topic_ids: frozenset[UUID]
    """What it subscribes to, of what exists. Members with one subscription should share the object: that is looked at first."""
    owned: Assignment
    """Its part of the last target assignment."""
    instance_id: str | None = None
    rack_id: str | None = None


Members = Mapping[str, MemberSpec]
Topics = Mapping[UUID, TopicSpec]
Assignor = Callable[[Members, Topics], dict[str, Assignment]]
"""(members by id, every topic that one of them subscribes to) to each member's partitions. A member whose partitions stay the
same gets the very object that it had."""


def assign_uniform(members: Members, topics: Topics) -> dict[str, Assignment]:
    """Balanced, then sticky, then close by."""
    if not members:
        return {}
    first = next(iter(members.values())).topic_ids
    if all(member.topic_ids is first or member.topic_ids == first for member in members.values()):
        return _assign_one_subscription(members, topics, first)
    return _assign_many_subscriptions(members, topics)


def assign_range(members: Members, topics: Topics) -> dict[str, Assignment]:
    """Runs of neighbouring partitions, the same member first for every topic."""
    order = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
    subscribers: dict[UUID, int] = defaultdict(int)
    for member in members.values():
        for topic_id in member.topic_ids:
            subscribers[topic_id] += 1
    shares = {topic_id: divmod(topics[topic_id].partition_count, count) for topic_id, count in subscribers.items()}
    taken: dict[UUID, tuple[int, int]] = dict.fromkeys(subscribers, (0, 0))
    assigned: dict[str, Assignment] = {}
    for member_id in order:
        member = members[member_id]
        partitions: dict[UUID, frozenset[int]] = {}
        for topic_id in member.topic_ids:
            share, longer = shares[topic_id]
            start, served = taken[topic_id]
            end = start + share + (1 if served < longer else 0)
            taken[topic_id] = end, served + 1
            if start < end:
                partitions[topic_id] = frozenset(range(start, end))
        assigned[member_id] = member.owned if partitions == member.owned else partitions
    return assigned


def _place(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Static members first and by instance, so that a restart keeps their place."""
    return (member.instance_id is None, member_id if member.instance_id is None else member.instance_id)


# --- one subscription for all ---------------------------------------------------------------------------------------


def _assign_one_subscription(members: Members, topics: Topics, topic_ids: frozenset[UUID]) -> dict[str, Assignment]:
    total = sum(topics[topic_id].partition_count for topic_id in topic_ids)
    share, longer = divmod(total, len(members))
    assigned: dict[str, Assignment] = {}
    counts: dict[str, int] = {}
    for member_id, member in members.items():
        kept = _still_there(member.owned, topic_ids)
        assigned[member_id] = kept
        counts[member_id] = sum(map(len, kept.values()))
    order = sorted(members)
    # A longer share goes first to those who have it already: anything else would move partitions for nothing.
    order.sort(key=lambda member_id: counts[member_id] <= share)
    room: dict[str, int] = {}
    for place, member_id in enumerate(order):
        quota = share + 1 if place < longer else share
        missing = quota - counts[member_id]
        if missing < 0:
            assigned[member_id] = _keep(assigned[member_id], quota)
        elif missing > 0:
            room[member_id] = missing
    if room:
        free = _unowned(topics, topic_ids, assigned.values())
        _deal(free, room, members, topics, assigned)
    return assigned


def _still_there(owned: Assignment, topic_ids: frozenset[UUID]) -> Assignment:
    """What of it is subscribed to. (A topic never has fewer partitions than it had.)"""
    if topic_ids.issuperset(owned):
        return owned
    return {topic_id: partitions for topic_id, partitions in owned.items() if topic_id in topic_ids}


def _keep(owned: Assignment, quota: int) -> Assignment:
    """A part of ``quota`` partitions, taken evenly from all topics."""
    ranked = sorted(
        (rank, topic_id, partition)
        for topic_id, partitions in owned.items()
        for rank, partition in enumerate(sorted(partitions))
    )
    return _gather((topic_id, partition) for _, topic_id, partition in ranked[:quota])


def _gather(pairs: Iterable[tuple[UUID, int]]) -> Assignment:
    partitions: dict[UUID, set[int]] = {}
    for topic_id, partition in pairs:
        partitions.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(of_topic) for topic_id, of_topic in partitions.items()}


def _unowned(topics: Topics, topic_ids: Iterable[UUID], assigned: Iterable[Assignment]) -> list[tuple[UUID, int]]:
    """Partitions that nobody has, in order."""
    owned: dict[UUID, list[frozenset[int]]] = {}
    for assignment in assigned:
        for topic_id, partitions in assignment.items():
            owned.setdefault(topic_id, []).append(partitions)
    free: list[tuple[UUID, int]] = []
    for topic_id in sorted(topic_ids):
        rest = set(range(topics[topic_id].partition_count)).difference(*owned.get(topic_id, ()))
        free.extend((topic_id, partition) for partition in sorted(rest))
    return free


def _deal(
    free: Sequence[tuple[UUID, int]],
    room: dict[str, int],
    members: Members,
    topics: Topics,
    assigned: dict[str, Assignment],
) -> None:
    """Give every free partition to a member with room for it, one after the other in turn; first those that are close."""
    gained: dict[str, list[tuple[UUID, int]]] = defaultdict(list)
    far = _deal_within_racks(free, room, members, topics, gained)
    turn = sorted(room)
    at = 0
    for pair in far:
        at %= len(turn)
        member_id = turn[at]
        gained[member_id].append(pair)
        room[member_id] -= 1
        if room[member_id]:
            at += 1
        else:
            del turn[at]
    for member_id, pairs in gained.items():
        merged = {topic_id: set(partitions) for topic_id, partitions in assigned[member_id].items()}
        for topic_id, partition in pairs:
            merged.setdefault(topic_id, set()).add(partition)
        assigned[member_id] = {topic_id: frozenset(partitions) for topic_id, partitions in merged.items()}


def _deal_within_racks(
    free: Sequence[tuple[UUID, int]],
    room: dict[str, int],
    members: Members,
    topics: Topics,
    gained: dict[str, list[tuple[UUID, int]]],
) -> list[tuple[UUID, int]]:
    """Give partitions to members in a rack of one of their replicas, and return those that are left."""
    in_rack: dict[str, list[str]] = defaultdict(list)
    for member_id in sorted(room):
        rack_id = members[member_id].rack_id
        if rack_id is not None:
            in_rack[rack_id].append(member_id)
    if not in_rack:
        return list(free)
    far = []
    for topic_id, partition in free:
        racks = topics[topic_id].racks
        near = [in_rack[rack] for rack in racks[partition] if in_rack.get(rack)] if partition < len(racks) else []
        if not near:
            far.append((topic_id, partition))
            continue
        # The rack with most members that have room is the last one to run out.
        candidates = max(near, key=lambda ids: (len(ids), ids))
        member_id = candidates.pop(0)
        gained[member_id].append((topic_id, partition))
        room[member_id] -= 1
        if room[member_id]:
            candidates.append(member_id)
        else:
            del room[member_id]
    return far


# --- many subscriptions ---------------------------------------------------------------------------------------------


def _assign_many_subscriptions(members: Members, topics: Topics) -> dict[str, Assignment]:
    subscribers: dict[UUID, list[str]] = defaultdict(list)
    for member_id in sorted(members):
        for topic_id in members[member_id].topic_ids:
            subscribers[topic_id].append(member_id)
    owned = {
        member_id: {
            topic_id: set(partitions) for topic_id, partitions in _still_there(member.owned, member.topic_ids).items()
        }
        for member_id, member in members.items()
    }
    counts = {member_id: sum(map(len, topics_owned.values())) for member_id, topics_owned in owned.items()}
    taken: dict[UUID, set[int]] = defaultdict(set)
    for topics_owned in owned.values():
        for topic_id, partitions in topics_owned.items():
            taken[topic_id] |= partitions
    # Topics with few subscribers first: who reads only them has no other choice.
    order = sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for topic_id in order:
        spec = topics[topic_id]
        for partition in range(spec.partition_count):
            if partition in taken[topic_id]:
                continue
            racks = spec.racks[partition] if partition < len(spec.racks) else frozenset()
            member_id = min(subscribers[topic_id], key=lambda m: (counts[m], members[m].rack_id not in racks))
            owned[member_id].setdefault(topic_id, set()).add(partition)
            counts[member_id] += 1
    moves = 1
    while moves:
        # Every move makes the sum of the squares of the counts smaller, so this comes to an end.
        moves = sum(_balance_topic(topic_id, subscribers[topic_id], owned, counts) for topic_id in order)
    assigned: dict[str, Assignment] = {}
    for member_id, topics_owned in owned.items():
        after = {topic_id: frozenset(of_topic) for topic_id, of_topic in topics_owned.items() if of_topic}
        before = members[member_id].owned
        assigned[member_id] = before if after == before else after
    return assigned


def _balance_topic(
    topic_id: UUID, subscribers: Sequence[str], owned: dict[str, dict[UUID, set[int]]], counts: dict[str, int]
) -> int:
    """Move partitions of a topic from who has most in all to who has fewest, while that brings them closer; how many moved."""
    moved = 0
    while True:
        givers = [member_id for member_id in subscribers if owned[member_id].get(topic_id)]
        if not givers:
            return moved
        giver = max(givers, key=counts.__getitem__)
        taker = min(subscribers, key=counts.__getitem__)
        if counts[giver] - counts[taker] <= 1:
            return moved
        partition = max(owned[giver][topic_id])
        owned[giver][topic_id].remove(partition)
        owned[taker].setdefault(topic_id, set()).add(partition)
        counts[giver] -= 1
        counts[taker] += 1
        moved += 1


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the name that clients ask for (``group.remote.assignor``)."""
