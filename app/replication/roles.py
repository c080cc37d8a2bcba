"""The change of this broker's role in a partition by a new image of the cluster. Pure: one table."""

from __future__ import annotations

from enum import Enum
from typing import Final

from app.core.units import BrokerId
from app.metadata.image.image import PartitionImage


class Role(Enum):
    """The role of this broker in a partition that it has a log of."""

    LEADER = "leader"
    """It takes records and answers readers."""
    FOLLOWER = "follower"
    """It has a log and fetches from the leader, or it was named leader and has not opened the partition yet."""
    OFFLINE = "offline"
    """It was named leader and cannot open the partition; ``Partition.why_offline`` says why."""


class Wanted(Enum):
    """The role that an image gives this broker in a partition."""

    NOTHING = "nothing"
    """There is no such partition."""
    LEADER = "leader"
    """This broker leads it."""
    FOLLOWER = "follower"
    """This broker is one of its replicas, and another leads, or none."""
    ANOTHER = "another"
    """This broker is none of its replicas."""


class Transition(Enum):
    """The work of a change of role."""

    STAY = "stay"
    """Nothing, but to note epochs and settings."""
    MAKE = "make"
    """Make a log and lead it. A partition without a log here was never led here, or is new."""
    FOLLOW = "follow"
    """Make a log, and fetch from the leader."""
    OPEN = "open"
    """Hold the log against its manifest, and lead once they agree."""
    RAISE = "raise"
    """Lead on, from the image's leader epoch on."""
    RESIGN = "resign"
    """Take no more records, give up the tier, and end waits, so that clients ask the new leader. Follow it."""
    DROP = "drop"
    """Delete the log."""


TRANSITIONS: Final[dict[tuple[Role | None, Wanted], Transition]] = {
    (None, Wanted.NOTHING): Transition.STAY,
    (None, Wanted.LEADER): Transition.MAKE,
    (None, Wanted.FOLLOWER): Transition.FOLLOW,
    (None, Wanted.ANOTHER): Transition.STAY,
    (Role.LEADER, Wanted.NOTHING): Transition.DROP,
    (Role.LEADER, Wanted.LEADER): Transition.RAISE,
    (Role.LEADER, Wanted.FOLLOWER): Transition.RESIGN,
    (Role.LEADER, Wanted.ANOTHER): Transition.DROP,
    (Role.FOLLOWER, Wanted.NOTHING): Transition.DROP,
    (Role.FOLLOWER, Wanted.LEADER): Transition.OPEN,
    (Role.FOLLOWER, Wanted.FOLLOWER): Transition.STAY,
    (Role.FOLLOWER, Wanted.ANOTHER): Transition.DROP,
    (Role.OFFLINE, Wanted.NOTHING): Transition.DROP,
    (Role.OFFLINE, Wanted.LEADER): Transition.STAY,
    (Role.OFFLINE, Wanted.FOLLOWER): Transition.RESIGN,
    (Role.OFFLINE, Wanted.ANOTHER): Transition.DROP,
}
"""By the role now (None: no log here) and the role that the image wants."""


def wanted_by(partition: PartitionImage | None, broker_id: BrokerId) -> Wanted:
    """The role that an image wants of a broker; ``partition`` is None if the image lacks it."""
    if partition is None:
        return Wanted.NOTHING
    if partition.leader == broker_id:
        return Wanted.LEADER
    return Wanted.FOLLOWER if broker_id in partition.replicas else Wanted.ANOTHER
