"""The interface of groups of all types: offsets are committed to a group, and it is listed, described and deleted.

Tests: ``tests/groups/test_consumer_offsets_model.py``.
"""

from __future__ import annotations

from collections.abc import Sized
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from app.coordinator.shell import Turn


class GroupType(StrEnum):
    """The protocol of the members, or of the last members. Names as in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Group(Protocol):
    """One group of any type. For the protocols see ``classic.py`` and ``consumer.py``."""

    group_id: str

    @property
    def group_type(self) -> GroupType: ...

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        ...

    @property
    def protocol_type(self) -> str:
        """``consumer``, or the clients' own type (Connect: ``connect``); empty for a group that only has offsets."""
        ...

    @property
    def members(self) -> Sized:
        """The members."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members. Then it may be deleted, or replaced by a group of another type."""
        ...

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member reads the topic, so that its offsets are in use."""
        ...

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, *, transactional: bool, api_version: int
    ) -> None:
        """Check that a client may commit offsets of the group now. ``member_epoch`` is the generation of a classic group.

        Raises: RequestRejected with the code for the client.
        """
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check that a client may read the group's offsets now. Raises: RequestRejected."""
        ...

    def loaded(self, turn: Turn) -> None:
        """The group is completely loaded. Set timers."""
        ...
