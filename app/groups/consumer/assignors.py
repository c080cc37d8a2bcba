"""Server-side assignors decide which members of a group read which partitions (KIP-848). Pure.

An assignor gets the whole group and returns the whole assignment. Rules:

- Every partition of a subscribed topic has exactly one owner, which subscribes to the topic.
- ``uniform`` balances first: no move of a partition to another subscriber of its topic would bring the two members closer. If
  all members have the same subscription, their numbers of partitions differ by at most one. Second, it is sticky: a member
  gives up only partitions that balance requires. Third, it prefers a member in a rack of one of the partition's replicas.
- ``range`` gives every member a run of neighbouring partitions of each topic, in the same order of members for all topics. So
  equal partition numbers of topics of one size meet in one member, as joins need. It is neither sticky nor rack aware, as in
  Apache Kafka, because either would separate such partitions.

The order of members and of topics never depends on a hash: the same group gives the same assignment in every process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final
from uuid import UUID

from app.core.turns import STRIDE, Steps, Stepwise

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. Every topic has a partition. The mapping never changes, so members may share it."""

NO_PARTITIONS: Final[Assignment] = {}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """An assignor's view of a topic."""

    partition_count: int
    racks: Sequence[frozenset[str]] = ()
    """Racks of the replicas by partition. Empty if no broker has a rack."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """An assignor's view of a member."""

    topic_ids: frozenset[UUID]
    """Existing topics of the subscription. Members with equal subscriptions should share the object, because identity is
    compared first."""
    owned: Assignment
    """The member's part of the last target assignment."""
    instance_id: str | None = None
    rack_id: str | None = None


Members = Mapping[str, MemberSpec]
Topics = Mapping[UUID, TopicSpec]
Assigned = dict[str, Assignment]
Assignor = Stepwise[[Members, Topics], Assigned]
"""Function from (members by id, all subscribed topics) to each member's partitions. A member with unchanged partitions gets the
same object. ``steps`` does the same in steps, for groups that take long."""


@Stepwise
def assign_uniform(members: Members, topics: Topics) -> Steps[Assigned]:
    """Balanced first, then sticky, then rack aware."""
    if not members:
        return {}
    first = next(iter(members.values())).topic_ids
    if all(member.topic_ids is first or member.topic_ids == first for member in members.values()):
        return (yield from _assign_one_subscription(members, topics, first))
    return (yield from _assign_many_subscriptions(members, topics))


@Stepwise
def assign_range(members: Members, topics: Topics) -> Steps[Assigned]:
    """Runs of neighbouring partitions, in the same order of members for every topic."""
    order = sorted(members, key=lambda member_id: _place(member_id, members[member_id]))
    subscribers: dict[UUID, int] = defaultdict(int)
    for member in members.values():
        for topic_id in member.topic_ids:
            subscribers[topic_id] += 1
        yield
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
        yield
    return assigned


def _place(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Static members first, by instance, so that a restart keeps their place."""
    return (member.instance_id is None, member_id if member.instance_id is None else member.instance_id)


# --- one subscription for all ---------------------------------------------------------------------------------------


def _assign_one_subscription(members: Members, topics: Topics, topic_ids: frozenset[UUID]) -> Steps[Assigned]:
    total = sum(topics[topic_id].partition_count for topic_id in topic_ids)
    share, longer = divmod(total, len(members))
    assigned: dict[str, Assignment] = {}
    counts: dict[str, int] = {}
    for member_id, member in members.items():
        kept = _still_there(member.owned, topic_ids)
        assigned[member_id] = kept
        counts[member_id] = sum(map(len, kept.values()))
        yield
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
        yield
    if room:
        free = yield from _unowned(topics, topic_ids, assigned.values())
        yield from _deal(free, room, members, topics, assigned)
    return assigned


def _still_there(owned: Assignment, topic_ids: frozenset[UUID]) -> Assignment:
    """The subscribed part of an assignment. (A topic never loses partitions.)"""
    if topic_ids.issuperset(owned):
        return owned
    return {topic_id: partitions for topic_id, partitions in owned.items() if topic_id in topic_ids}


def _keep(owned: Assignment, quota: int) -> Assignment:
    """``quota`` partitions, taken evenly from all topics."""
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


def _unowned(
    topics: Topics, topic_ids: Iterable[UUID], assigned: Iterable[Assignment]
) -> Steps[list[tuple[UUID, int]]]:
    """Partitions without an owner, in order."""
    owned: dict[UUID, list[frozenset[int]]] = {}
    for assignment in assigned:
        for topic_id, partitions in assignment.items():
            owned.setdefault(topic_id, []).append(partitions)
        yield
    free: list[tuple[UUID, int]] = []
    for number, topic_id in enumerate(sorted(topic_ids)):
        if number % STRIDE == 0:
            yield
        rest = set(range(topics[topic_id].partition_count)).difference(*owned.get(topic_id, ()))
        free.extend((topic_id, partition) for partition in sorted(rest))
    return free


def _deal(
    free: Sequence[tuple[UUID, int]],
    room: dict[str, int],
    members: Members,
    topics: Topics,
    assigned: Assigned,
) -> Steps[None]:
    """Give every free partition to a member that needs one, in turn; first to members in a rack of a replica."""
    gained: dict[str, list[tuple[UUID, int]]] = defaultdict(list)
    far = yield from _deal_within_racks(free, room, members, topics, gained)
    turn = sorted(room)
    at = 0
    for number, pair in enumerate(far):
        if number % STRIDE == 0:
            yield
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
        yield


def _deal_within_racks(
    free: Sequence[tuple[UUID, int]],
    room: dict[str, int],
    members: Members,
    topics: Topics,
    gained: dict[str, list[tuple[UUID, int]]],
) -> Steps[list[tuple[UUID, int]]]:
    """Give partitions to members in a rack of one of their replicas. Returns: the remaining partitions."""
    in_rack: dict[str, list[str]] = defaultdict(list)
    for member_id in sorted(room):
        rack_id = members[member_id].rack_id
        if rack_id is not None:
            in_rack[rack_id].append(member_id)
    if not in_rack:
        return list(free)
    far = []
    for number, (topic_id, partition) in enumerate(free):
        if number % STRIDE == 0:
            yield
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


class _Peers:
    """Members with equal subscription in one rack, ordered by number of partitions. A member is represented by its place in the
    order of all members.

    Outdated heap entries stay until they reach the top, so a change takes logarithmic time in the number of members.
    """

    __slots__ = ("_counts", "_heap", "places", "rack_id")

    def __init__(self, rack_id: str | None, places: Sequence[int], counts: Sequence[int]) -> None:
        """``counts``: number of partitions of every member, by place. Call ``changed`` after each change."""
        self.rack_id = rack_id
        self.places = places
        self._counts = counts
        self._heap = [(counts[place], place) for place in places]
        heapify(self._heap)

    @property
    def fewest(self) -> tuple[int, int]:
        """The smallest number of partitions, and the place of the first member with it."""
        heap, counts = self._heap, self._counts
        while heap[0][0] != counts[heap[0][1]]:
            heappop(heap)
        return heap[0]

    def changed(self, place: int) -> tuple[int, int]:
        """The count of a member has changed. Returns: ``fewest``."""
        heappush(self._heap, (self._counts[place], place))
        return self.fewest


class _Dealing:
    """The owners of partitions during the assignment.

    Members with equal subscriptions are handled together. The cost grows with members, with partitions, and with the topics of
    *different* subscriptions, but not with members times partitions.
    """

    def __init__(self, members: Members, topics: Topics) -> None:
        self._topics = topics
        self.order = sorted(members)
        self._counts: list[int] = []
        self.holders: dict[UUID, dict[int, set[int]]] = {topic_id: {} for topic_id in topics}
        """Partitions by topic and member."""
        self._peers: list[_Peers] = []
        """Number of partitions of each member."""
        self._readers: dict[UUID, list[_Peers]] = {topic_id: [] for topic_id in topics}

    def begin(self, members: Members) -> Steps[None]:
        """Look at what the members have and at what they read."""
        for place, member_id in enumerate(self.order):
            kept = _still_there(members[member_id].owned, members[member_id].topic_ids)
            self._counts.append(sum(map(len, kept.values())))
            for topic_id, partitions in kept.items():
                self.holders[topic_id][place] = set(partitions)
            yield
        racks = {rack for spec in self._topics.values() for replicas in spec.racks for rack in replicas}
        places: dict[tuple[frozenset[UUID], str | None], list[int]] = defaultdict(list)
        keys = []
        for place, member_id in enumerate(self.order):
            member = members[member_id]
            keys.append((member.topic_ids, member.rack_id if member.rack_id in racks else None))
            places[keys[-1]].append(place)
            if place % STRIDE == 0:
                yield
        peers = {key: _Peers(key[1], together, self._counts) for key, together in places.items()}
        self._peers = [peers[key] for key in keys]
        for (topic_ids, _), together in peers.items():
            for topic_id in topic_ids:
                self._readers[topic_id].append(together)
            yield

    def topics_in_order(self) -> Steps[list[UUID]]:
        """Topics with few subscribers first, because members that read only these topics have no other choice."""
        subscribers: dict[UUID, int] = {}
        for topic_id, readers in self._readers.items():
            subscribers[topic_id] = sum(len(peers.places) for peers in readers)
            yield
        return sorted(self._topics, key=lambda topic_id: (subscribers[topic_id], topic_id))

    def deal(self, topic_id: UUID) -> None:
        """Give a topic's free partitions to members with the fewest partitions; among several, to one in a rack of a replica."""
        held, spec, counts = self.holders[topic_id], self._topics[topic_id], self._counts
        in_rack: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
        for peers in self._readers[topic_id]:
            in_rack[peers.rack_id].append(peers.fewest)
        for heap in in_rack.values():
            heapify(heap)
        for partition in sorted(set(range(spec.partition_count)).difference(*held.values())):
            racks = spec.racks[partition] if partition < len(spec.racks) else ()
            rack = min(in_rack, key=lambda rack: (in_rack[rack][0][0], rack not in racks, in_rack[rack][0][1]))
            place = in_rack[rack][0][1]
            counts[place] += 1
            held.setdefault(place, set()).add(partition)
            heapreplace(in_rack[rack], self._peers[place].changed(place))

    def balance(self, topic_id: UUID) -> bool:
        """Move partitions of a topic from the member with most partitions to the one with fewest, while that brings them closer.

        Returns: whether any partition moved.
        """
        held, counts = self.holders[topic_id], self._counts
        givers = [(-counts[place], place) for place, partitions in held.items() if partitions]
        takers = [peers.fewest for peers in self._readers[topic_id]]
        if not givers or -min(givers)[0] - min(takers)[0] <= 1:
            return False
        heapify(givers)
        heapify(takers)
        while True:
            while counts[givers[0][1]] != -givers[0][0] or not held[givers[0][1]]:
                heappop(givers)
            while counts[takers[0][1]] != takers[0][0]:
                heappop(takers)
            giver, taker = givers[0][1], takers[0][1]
            if counts[giver] - counts[taker] <= 1:
                return True
            partition = max(held[giver])
            held[giver].remove(partition)
            held.setdefault(taker, set()).add(partition)
            counts[giver] -= 1
            counts[taker] += 1
            for place in (giver, taker):
                heappush(givers, (-counts[place], place))
                heappush(takers, self._peers[place].changed(place))


def _assign_many_subscriptions(members: Members, topics: Topics) -> Steps[Assigned]:
    dealing = _Dealing(members, topics)
    yield from dealing.begin(members)
    order = yield from dealing.topics_in_order()
    for topic_id in order:
        dealing.deal(topic_id)
        yield
    # Every move makes the sum of the squares of the counts smaller, so this comes to an end.
    moved = True
    while moved:
        moved = False
        for topic_id in order:
            moved = dealing.balance(topic_id) or moved
            yield
    after: list[dict[UUID, frozenset[int]]] = [{} for _ in dealing.order]
    for topic_id in order:
        for place, partitions in dealing.holders[topic_id].items():
            if partitions:
                after[place][topic_id] = frozenset(partitions)
        yield
    assigned: Assigned = {}
    for member_id, partitions_now in zip(dealing.order, after, strict=True):
        before = members[member_id].owned
        assigned[member_id] = before if partitions_now == before else partitions_now
        yield
    return assigned


RANGE: Final = "range"
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, RANGE: assign_range}
"""Assignors by the name that clients request (``group.remote.assignor``)."""
