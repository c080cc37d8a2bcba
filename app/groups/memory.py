"""The memory that members of classic groups keep, and its bounds. Pure.

A JoinGroup brings metadata for each protocol of a member, and the coordinator keeps all of them until the member has left. A
group's record has one protocol of each member. So a member may bring as much as a record may have. A group may keep ``PER_RECORD``
times that: members that support several protocols have room, and a group that keeps more could not be written anyway.

All groups of a broker together keep ``bytes_max``. Each group tells the account of its shard of every change, and the table of
groups (``table.py``) tells it which groups there are. So the sum is exact, also after a load, and costs no look at every group. A
member that returns with no more than it had is admitted even if the memory is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from app.core.limits import MIB

GROUPS_BYTES_MAX: Final = 256 * MIB
"""Limit for all groups of a broker: 250 groups of the largest default size, or a million members of 250 bytes."""
PER_RECORD: Final = 4
MEMBER_BYTES: Final = 1_000
"""Memory of a member beside its texts and metadata."""
PROTOCOL_BYTES: Final = 100
"""Memory of a protocol of a member beside its name and metadata. So a group has some 40,000 at most: each is looked at in one turn
when a rebalance ends (INV-15)."""
PENDING_BYTES: Final = 500
"""Memory of a member id that was given out, beside its text: with its timer."""


class Account:
    """The memory of one shard's groups, in bytes. It ends with its shard, so that no way of ending a shard can be forgotten."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class GroupMemory:
    """The memory of all groups of a broker. Belongs to one loop."""

    __slots__ = ("_accounts", "_bytes_max")

    def __init__(self, accounts: Callable[[], Iterable[Account]] = tuple, bytes_max: int = GROUPS_BYTES_MAX) -> None:
        """``accounts``: those of the shards of now."""
        self._accounts = accounts
        self._bytes_max = bytes_max

    @property
    def bytes(self) -> int:
        """The memory of all groups. It takes a look at every shard, and at no group."""
        return sum(account.bytes for account in self._accounts())

    def admits(self, more_bytes: int) -> bool:
        """Whether a member may join that keeps so many more bytes than now. A member that adds none is always admitted."""
        return more_bytes <= 0 or self.bytes + more_bytes <= self._bytes_max
