"""A member of a classic group: its requests, its protocols, and its waits.

Tests: ``tests/groups/test_classic.py``, ``tests/groups/test_classic_model.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.limits import SUBSCRIBED_TOPICS_MAX
from app.groups.memory import PROTOCOL_BYTES

if TYPE_CHECKING:
    from app.coordinator.shell import Reply
    from app.wire.apis.join_group import JoinGroupResponse
    from app.wire.apis.sync_group import SyncGroupResponse

CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of groups that assign topic partitions. Their subscriptions can be decoded."""

NO_MEMBER: Final = ""
"""Stands for no member id."""


class ClassicDue(StrEnum):
    """The purpose of a timer of a classic group."""

    MEMBER = "member"
    """The end of a member's session, or of the wait for a client that got a member id."""
    JOIN = "join"
    """The end of the wait for members to join."""
    SYNC = "sync"
    """The end of the wait for members to request their assignment."""


class ClassicTimer(NamedTuple):
    """Key of a timer."""

    due: ClassicDue
    group_id: str
    member_id: str = NO_MEMBER


Protocols = tuple[tuple[str, bytes], ...]
"""A member's assignment protocols in its order of preference, with its subscription in each."""


class Join(NamedTuple):
    """A JoinGroup request without its group id."""

    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    """In Kafka's form: ``/127.0.0.1``."""
    requires_member_id: bool
    """Whether the member must first get an id and then join with it: from version 4 on (KIP-394)."""
    can_skip_assignment: bool
    """Whether a returning static leader can be told to skip the assignment: from version 9 on (KIP-814)."""


class Sync(NamedTuple):
    """A SyncGroup request without its group id."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Sequence[tuple[str, bytes]]


def metadata_bytes(protocols: Protocols) -> int:
    """Bytes of the metadata in a JoinGroup."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def protocol_bytes(protocols: Protocols) -> int:
    """Memory of the protocols of a member."""
    return PROTOCOL_BYTES * len(protocols) + metadata_bytes(protocols)


class ClassicMember:
    """One member."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
        "timer",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """Whether the member waits in its first JoinGroup."""
        self.join: Reply[JoinGroupResponse] | None = None
        """The pending response of its JoinGroup."""
        self.sync: Reply[SyncGroupResponse] | None = None
        self.timer = ClassicTimer(ClassicDue.MEMBER, group_id, member_id)

    @property
    def protocol_names(self) -> frozenset[str]:
        """The supported protocols. A protocol that the member names twice counts once."""
        return frozenset([name for name, _ in self.protocols])

    @property
    def sent_bytes(self) -> int:
        """Bytes of its client's requests that the member keeps. Its assignment was sent by the leader."""
        texts = len(self.member_id) + len(self.instance_id or "") + len(self.client_id) + len(self.client_host)
        return texts + protocol_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's subscription in a protocol; empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


LISTS_COMPARED: Final = 4
"""Different lists that the next member's list is compared with. Members of one program send the same list."""


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """The topics in a subscription of the consumer protocol, of any version; None if it is malformed or has more than
    ``SUBSCRIBED_TOPICS_MAX``."""
    found = _subscription(metadata, SUBSCRIBED_TOPICS_MAX)
    return None if found is None else found[0]


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics in the subscriptions of all members.

    Returns: None if one is malformed, or if the different lists have more than ``SUBSCRIBED_TOPICS_MAX`` topics together.
    """
    topics: set[str] = set()
    lists: list[bytes] = []
    left = SUBSCRIBED_TOPICS_MAX
    for metadata in subscriptions:
        if any(metadata.startswith(one, _INT16.size) for one in lists):
            continue
        found = _subscription(metadata, left)
        if found is None:
            return None
        named, end = found
        left -= len(named)
        topics.update(named)
        lists = [metadata[_INT16.size : end], *lists[: LISTS_COMPARED - 1]]
    return frozenset(topics)


def _subscription(metadata: bytes, topics_max: int) -> tuple[list[str], int] | None:
    """The topics in a subscription, and where their list ends; None if it is malformed or has more than ``topics_max``."""
    try:
        (count,) = _INT32.unpack_from(metadata, _INT16.size)
        position = _INT16.size + _INT32.size
        if not 0 <= count <= min(len(metadata), topics_max):
            return None
        topics: list[str] = []
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            position += _INT16.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (StructError, UnicodeDecodeError):
        return None
    return topics, position
