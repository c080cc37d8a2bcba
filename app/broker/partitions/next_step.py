"""The life of a partition on one broker: its stages, and the next step when an image of the cluster has come. Pure.

``Partitions`` carries the steps out. A partition with a log is in one stage at a time. These are the moves between the stages:

| from | to | when | rule |
|---|---|---|---|
| NO_LOG | FOLLOWING | another broker leads, and this one is a replica | |
| NO_LOG | UNREAD | new here, and no other broker can have had records: led at once | |
| NO_LOG | NAMED | this broker leads, and the tier may have the lost records | E2, J24 |
| FOLLOWING | NAMED | an image names this broker, and its log may lack records | T2, T10 |
| FOLLOWING | UNCHECKED | an image names this broker out of the in-sync set: no client waits for the store | T2 |
| FOLLOWING | BELIEVED, LEADING | the start has compared the log with its manifest | |
| NAMED | LEADING | log and manifest agree | |
| NAMED | FOLLOWING | another broker leads again | |
| NAMED, UNCHECKED, FOLLOWING | OFFLINE | damage was found, or records of the store are lacking | T10 |
| FOLLOWING | CONTRADICTED | its leader's history lacks committed records of this log | A3 |
| CONTRADICTED | NAMED | an image names this broker: its history is the partition's now | A3 |
| OFFLINE | LEADING | a later attempt has found no damage | |
| UNCHECKED, UNREAD, BELIEVED | LEADING | the manifest was read and checked | T10 |
| any leading stage | NAMED | its write-ahead log has ended in between | J24 |
| any leading stage, OFFLINE, CONTRADICTED | FOLLOWING | another broker leads | |
| any | NO_LOG | this broker is no replica any more, or the topic was deleted | |

Tests: ``tests/broker/test_next_step.py``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from app.core.units import BrokerId
from app.metadata.image.image import PartitionImage
from app.replication.roles import TRANSITIONS, Role, Transition, wanted_by


class Stage(Enum):
    """The stage of a partition on this broker."""

    NO_LOG = "no log"
    FOLLOWING = "following"
    """It fetches from the leader, or waits until the start opens it."""
    NAMED = "named"
    """The image names this broker as leader. The log must be compared with its manifest before it is led."""
    OFFLINE = "offline"
    """As NAMED, but the comparison has found damage. It is tried again later."""
    CONTRADICTED = "contradicted"
    """It followed, and its leader's history lacks committed records of this log (A3). Nothing is left to do here until an image
    changes. A partition whose log could not be deleted may be here too: the deletion is tried again."""
    UNCHECKED = "unchecked"
    """This broker leads out of the in-sync set, and has not compared the log with its manifest yet (T2, T10)."""
    UNREAD = "unread"
    """This broker leads a new log, and has not read its manifest yet."""
    BELIEVED = "believed"
    """This broker leads. The last stop has left the end of the manifest, and nothing newer was looked for yet."""
    LEADING = "leading"


ROLES: Final = {
    Stage.NO_LOG: None,
    Stage.FOLLOWING: Role.FOLLOWER,
    Stage.NAMED: Role.FOLLOWER,
    Stage.OFFLINE: Role.OFFLINE,
    Stage.CONTRADICTED: Role.OFFLINE,
    Stage.UNCHECKED: Role.LEADER,
    Stage.UNREAD: Role.LEADER,
    Stage.BELIEVED: Role.LEADER,
    Stage.LEADING: Role.LEADER,
}
"""The role that the other parts of the broker see."""

UNSETTLED: Final = (Stage.NAMED, Stage.OFFLINE, Stage.UNCHECKED, Stage.UNREAD, Stage.BELIEVED)
"""Stages in which work is left that may have to wait for the store."""

CHECKED_LATE: Final = frozenset({Stage.NAMED, Stage.UNCHECKED})
"""Unsettled stages whose work may find damage, so that the partition goes offline."""


class Step(Enum):
    """The work of ``Partitions`` when an image has come."""

    STAY = "stay"
    FOLLOW = "follow"
    """Make a log, and fetch from the leader."""
    MAKE = "make"
    """Make a log. The start opens it."""
    MAKE_AND_LEAD = "make and lead"
    """Make a log and lead it, then read its manifest."""
    MAKE_AND_OPEN = "make and open"
    """Make a log, and compare it with the manifest before it is led: the tier may have records that are lost here."""
    OPEN = "open"
    """Compare the log with its manifest, and change it to agree. Then lead."""
    OPEN_IN_SYNC = "open in sync"
    """As OPEN, but the log has all committed records. If it disagrees with the manifest, it goes offline (T10)."""
    LOOK_AGAIN = "look again"
    """It is named once more: others may have led it meanwhile, so facts about the store are read anew."""
    LEAD = "lead"
    """Lead at once, and compare the log with its manifest afterwards (T2)."""
    UNNAME = "unname"
    """It was named, and is not any more."""
    RAISE = "raise"
    """Lead on, from the image's leader epoch on."""
    REOPEN = "reopen"
    """Its write-ahead log has ended in between: resign, read the acknowledged records, then lead (J24)."""
    RESIGN = "resign"
    """Take no more records, give up the tier, and follow."""
    DROP = "drop"
    """Delete the log."""


class LocalState(NamedTuple):
    """The state of a partition here, before the image is noted."""

    stage: Stage
    leader_epoch: int = -1
    """Of the log."""
    in_sync: bool = False
    """Whether the image before had this broker in the in-sync set, or as an eligible leader."""
    start_is_assumed: bool = False
    """Whether the log start is not known for sure, because the broker was killed before a checkpoint had it."""


NO_LOG: Final = LocalState(Stage.NO_LOG)


def next_step(
    local: LocalState, image: PartitionImage | None, broker_id: BrokerId, *, started: bool, several: bool
) -> Step:
    """Derive the next step of a partition from its state here and from the image; None for a partition that is gone.

    ``started``: whether the start has opened all partitions. Before that it opens the partitions itself. ``several``: whether the
    cluster is one of several brokers.
    """
    match TRANSITIONS[ROLES[local.stage], wanted_by(image, broker_id)]:
        case Transition.FOLLOW:
            return Step.FOLLOW
        case Transition.MAKE:
            assert image is not None
            if not _may_be_in_tier(image, several=several):
                return Step.MAKE_AND_LEAD if started else Step.MAKE
            return Step.MAKE_AND_OPEN if started else Step.FOLLOW
        case Transition.OPEN:
            assert image is not None
            if local.stage is Stage.NAMED:
                return Step.LOOK_AGAIN
            if not started:
                return Step.STAY
            if not local.in_sync or image.recovering:
                return Step.OPEN
            return Step.OPEN_IN_SYNC if local.start_is_assumed or image.is_journaled else Step.LEAD
        case Transition.RAISE:
            assert image is not None
            if image.leader_epoch <= local.leader_epoch:
                return Step.STAY
            return Step.REOPEN if image.is_journaled else Step.RAISE
        case Transition.STAY if local.stage is Stage.CONTRADICTED and started:
            assert image is not None
            # Never at once: the leader that contradicted it may have written its own history to the tier.
            return Step.OPEN_IN_SYNC if local.in_sync and not image.recovering else Step.OPEN
        case Transition.STAY:
            return Step.UNNAME if local.stage is Stage.NAMED else Step.STAY
        case Transition.RESIGN:
            return Step.RESIGN
        case Transition.DROP:
            return Step.DROP


def _may_be_in_tier(image: PartitionImage, *, several: bool) -> bool:
    """Whether a partition without a log here may have had records, which only the tier has now."""
    return (
        image.recovering or (several and image.leader_epoch > 0) or (image.is_journaled and len(image.wal_ranges) > 1)
    )
