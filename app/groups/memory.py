"""The memory that members of classic groups keep, and its bounds. Pure.

A JoinGroup brings metadata for each protocol of a member, and the coordinator keeps all of them until the member has left. A
group's record has one protocol of each member. So a member may bring as much as a record may have. A group may keep ``PER_RECORD``
times that: members that support several protocols have room, and a group that keeps more could not be written anyway.

All groups of a broker together keep ``bytes_max``. Their sum is an upper estimate: what joins is added, and what leaves is not
taken away. Groups are added up anew when the estimate reaches the bound. So none of the many ways on which a group ends can be
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from app.limits import MIB

GROUPS_BYTES_MAX: Final = 256 * MIB
"""Of all groups of a broker: 250 groups that are as large as they may be by default, or a million members of 250 bytes."""
PER_RECORD: Final = 4
MEMBER_BYTES: Final = 1_000
"""Memory of a member beside its texts and metadata."""
PENDING_BYTES: Final = 500
"""Memory of a member id that was given out, beside its text: with its timer."""


class Keeps(Protocol):
    """A group."""

    @property
    def kept_bytes(self) -> int:
        """What its members keep."""
        ...


class GroupMemory:
    """Of all groups of a broker. Belongs to one loop."""

    __slots__ = ("_bytes_max", "_estimate", "_groups")

    def __init__(self, groups: Callable[[], Iterable[Keeps]] = tuple, bytes_max: int = GROUPS_BYTES_MAX) -> None:
        """``groups``: those of now."""
        self._groups = groups
        self._bytes_max = bytes_max
        self._estimate = 0

    @property
    def bytes(self) -> int:
        """What all groups keep. It takes a look at every group."""
        return sum(group.kept_bytes for group in self._groups())

    def admits(self, size_bytes: int) -> bool:
        """Whether a member that keeps so much may join. It counts from now on."""
        if self._estimate + size_bytes > self._bytes_max:
            self._estimate = self.bytes
            if self._estimate + size_bytes > self._bytes_max:
                return False
        self._estimate += size_bytes
        return True
