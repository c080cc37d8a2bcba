"""What a group of any type is to the rest of the broker: offsets are committed to it, it is listed, described and deleted."""

from __future__ import annotations

from collections.abc import Sized
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from app.coordinator.shell import Turn


class GroupType(StrEnum):
    """By the protocol that its members speak, or spoke last; the names are those of ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Group(Protocol):
    """One group of any type. Its own protocol is its own affair; see ``classic.py`` and ``consumer.py``."""

    group_id: str

    @property
    def group_type(self) -> GroupType: ...

    @property
    def state(self) -> str:
        """Kafka's name of the state it is in."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer``, or what clients call it (Connect: ``connect``); empty for a group that only has offsets."""
        ...

    @property
    def members(self) -> Sized:
        """Who is in it."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, so that it may be deleted, or replaced by a group of another type."""
        ...

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member reads the topic, so that its offsets are in use."""
        ...

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, *, transactional: bool, api_version: int
    ) -> None:
        """Whether somebody may commit offsets of the group now; ``member_epoch`` is the generation of a classic group.

        Raises: RequestRejected with the code for the client.
        """
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whether somebody may read the group's offsets now. Raises: RequestRejected."""
        ...

    def loaded(self, turn: Turn) -> None:
        """The log was read to its end, and this is what the group is: set timers."""
        ...
