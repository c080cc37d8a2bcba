"""What a new image of the cluster makes of this broker's role in a partition. Pure: one table, and nothing is done here."""

from __future__ import annotations

from enum import Enum
from typing import Final

from app.metadata.cluster import PartitionImage
from app.units import BrokerId


class Role(Enum):
    """What this broker is to a partition that it has a log of."""

    LEADER = "leader"
    """It takes records and answers readers."""
    FOLLOWER = "follower"
    """It has a log and fetches from the leader, or it was named leader and has not opened the partition yet."""
    OFFLINE = "offline"
    """It was named leader and cannot open the partition; ``Partition.why_offline`` says why."""


class Wanted(Enum):
    """What an image says of a partition, as seen by this broker."""

    NOTHING = "nothing"
    """There is no such partition."""
    LEADER = "leader"
    """This broker leads it."""
    FOLLOWER = "follower"
    """This broker is one of its replicas, and another leads, or nobody does."""
    ANOTHER = "another"
    """This broker is none of its replicas."""


class Transition(Enum):
    """What there is to do."""

    STAY = "stay"
    """Nothing, but to note epochs and settings."""
    MAKE = "make"
    """Make a log and lead it. A partition without a log here was never led here, or is new."""
    FOLLOW = "follow"
    """Make a log, and fetch from whoever leads."""
    OPEN = "open"
    """Hold the log against its manifest, and lead once they agree."""
    RAISE = "raise"
    """Lead on, from the image's leader epoch on."""
    RESIGN = "resign"
    """Take no more records, give up the tier, and have whoever waits ask the new leader. Follow it."""
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
"""By the role now (None: no log here) and what the image wants."""


def wanted_by(partition: PartitionImage | None, broker_id: BrokerId) -> Wanted:
    """What an image that has ``partition``, or does not, wants of a broker."""
    if partition is None:
        return Wanted.NOTHING
    if partition.leader == broker_id:
        return Wanted.LEADER
    return Wanted.FOLLOWER if broker_id in partition.replicas else Wanted.ANOTHER
