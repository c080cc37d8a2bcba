"""The target assignment of a consumer group: an estimate of its cost, and its computation in steps. Pure.

Tests: ``tests/groups/test_large_groups.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.turns import STRIDE, Steps
from app.groups.consumer.assignors import NO_PARTITIONS, RANGE, Assignment, Assignor, MemberSpec
from app.groups.consumer.subscriptions import ResolvedRegex, topic_ids, topic_specs, topics_of_regex

if TYPE_CHECKING:
    from uuid import UUID

    from app.groups.consumer.consumer_records import Subscription
    from app.metadata.image.image import ClusterImage

ASSIGNED_AT_ONCE_MAX: Final = 5_000
"""Members and subscribed topics of a group whose target a request computes: 10 ms or so. A larger one is computed in portions."""
RANGE_PER_TOPIC: Final = 4
"""The range assignor looks at each topic of each member. So many of these cost as much as one topic of another assignor."""


class Computed(NamedTuple):
    """A target that was computed in portions, while other requests changed the group."""

    group: object
    """The group of the target. A group may be loaded or made anew during the computation."""
    epoch: int
    """The group epoch for which it was computed."""
    subscriptions: Mapping[str, Subscription]
    """The subscriptions of the members in that epoch."""
    assigned: Mapping[str, Assignment]


def work_of(members: int, list_topics: int, member_topics: int, assignor: str) -> int:
    """The cost of a target, in topics and members.

    Args:
        list_topics: topics of the different subscriptions, each counted once.
        member_topics: topics of the subscriptions of all members.
    """
    return members + list_topics + (member_topics // RANGE_PER_TOPIC if assignor == RANGE else 0)


def target_steps(
    assign: Assignor,
    subscriptions: Mapping[str, Subscription],
    targets: Mapping[str, Assignment],
    names: Iterable[str],
    regexes: Mapping[str, ResolvedRegex],
    image: ClusterImage,
) -> Steps[dict[str, Assignment]]:
    """The assignment of a whole group, in steps.

    Args:
        targets: the present targets, by member id.
        names: all topics to which the members subscribe.
    """
    ids: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
    specs: dict[str, MemberSpec] = {}
    for number, (member_id, subscription) in enumerate(subscriptions.items()):
        key = (subscription.topic_names, subscription.topic_regex)
        found = ids.get(key)
        if found is None:
            subscribed = subscription.topic_names | topics_of_regex(regexes, subscription.topic_regex)
            found = ids[key] = topic_ids(subscribed, image)
            yield
        specs[member_id] = MemberSpec(
            found, targets.get(member_id, NO_PARTITIONS), subscription.instance_id, subscription.rack_id
        )
        if number % STRIDE == 0:
            yield
    topics = yield from topic_specs.steps(names, image)
    return (yield from assign.steps(specs, topics))
