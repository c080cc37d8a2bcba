"""The members of a consumer group, and an index by topic, assignor and partition. Pure.

Tests: ``tests/groups/test_consumer_model.py``, which compares the index with one that is built anew;
``tests/groups/test_large_groups.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.groups.consumer.consumer_records import NOBODY, NOTHING_YET, CurrentAssignment, Subscription

if TYPE_CHECKING:
    from uuid import UUID

    from app.groups.consumer.assignors import Assignment


@dataclass(frozen=True, slots=True)
class Member:
    """A member, as in the log."""

    member_id: str
    subscription: Subscription = NOBODY
    current: CurrentAssignment = NOTHING_YET

    @property
    def epoch(self) -> int:
        return self.current.member_epoch

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.subscription.classic is not None


class MemberIndex:
    """Counts of subscriptions, and the holders of partitions. Each member is added once, and removed before it changes."""

    __slots__ = ("_holders", "_lists", "_static", "assignors", "list_topics", "member_topics", "names", "regexes")

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        """Number of members by the topic names to which they subscribe by name."""
        self.regexes: Counter[str] = Counter()
        """Number of members by their expressions."""
        self.assignors: Counter[str] = Counter()
        """Number of members by the assignors that they request."""
        self._static: dict[str, str] = {}
        """Member id by instance id."""
        self._lists: dict[frozenset[str], tuple[frozenset[str], int]] = {}
        """The different lists of topic names, and the number of members that subscribe to each."""
        self.list_topics = 0
        """Names in all different lists, each list counted once."""
        self.member_topics = 0
        """Names in the lists of all members."""
        self._holders: dict[UUID, dict[int, str]] = {}
        """Member id of a partition's holder (which has it or has not given it up yet), by topic id and partition."""

    def add(self, member: Member) -> Member:
        """Count a member. Returns: the member to keep, which shares its list of names with members of an equal one."""
        subscription = member.subscription
        names, users = self._lists.get(subscription.topic_names, (subscription.topic_names, 0))
        self._lists[names] = (names, users + 1)
        self.member_topics += len(names)
        self.list_topics += 0 if users else len(names)
        if names is not subscription.topic_names:
            subscription = replace(subscription, topic_names=names)
            member = replace(member, subscription=subscription)
        self.names.update(names)
        if subscription.topic_regex:
            self.regexes[subscription.topic_regex] += 1
        if subscription.server_assignor is not None:
            self.assignors[subscription.server_assignor] += 1
        if subscription.instance_id is not None:
            self._static[subscription.instance_id] = member.member_id
        for assignment in (member.current.assigned, member.current.pending_revocation):
            for topic_id, partitions in assignment.items():
                holders = self._holders.setdefault(topic_id, {})
                for partition in partitions:
                    holders[partition] = member.member_id
        return member

    def remove(self, member: Member) -> None:
        """Remove a member from the counts."""
        subscription = member.subscription
        names, users = self._lists.pop(subscription.topic_names)
        self.member_topics -= len(names)
        if users > 1:
            self._lists[names] = (names, users - 1)
        else:
            self.list_topics -= len(names)
        for name in names:
            _decrease(self.names, name)
        if subscription.topic_regex:
            _decrease(self.regexes, subscription.topic_regex)
        if subscription.server_assignor is not None:
            _decrease(self.assignors, subscription.server_assignor)
        instance_id = subscription.instance_id
        if instance_id is not None and self._static.get(instance_id) == member.member_id:
            del self._static[instance_id]
        for assignment in (member.current.assigned, member.current.pending_revocation):
            for topic_id, partitions in assignment.items():
                holders = self._holders.get(topic_id)
                if holders is None:
                    continue
                for partition in partitions:
                    if holders.get(partition) == member.member_id:
                        del holders[partition]
                if not holders:
                    del self._holders[topic_id]

    def of_instance(self, instance_id: str) -> str | None:
        """The id of the present member of a static instance."""
        return self._static.get(instance_id)

    def holders(self) -> dict[UUID, dict[int, str]]:
        """The member id of each held partition's holder."""
        return self._holders

    def is_held(self, topic_id: UUID, partition: int) -> bool:
        """Whether a member holds a partition."""
        holders = self._holders.get(topic_id)
        return holders is not None and partition in holders

    def assert_free(self, member_id: str, assigned: Assignment) -> None:
        """Assert that no other member holds the partitions that a member is about to get."""
        for topic_id, partitions in assigned.items():
            holders = self._holders.get(topic_id)
            if holders is not None:
                for partition in partitions:
                    assert holders.get(partition, member_id) == member_id, f"{topic_id}-{partition} has two owners"


def _decrease(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
