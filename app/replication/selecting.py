"""Which replica a consumer reads from: the choice of Kafka's RackAwareReplicaSelector (KIP-392). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A replica that could serve a consumer at its offset (ADR 0024, V2)."""

    end_offset: int
    """It has stored everything below. The greatest is preferred."""
    caught_up_ms: int
    """When it last had all that the leader had. The latest is preferred among equal ends."""
    broker_id: int
    rack: str | None


def select_by_rack(rack: str, leader_rack: str | None, followers: Iterable[ReplicaView]) -> int | None:
    """The follower in the consumer's rack that has most. None for the leader: it is in that rack, or no follower is."""
    if not rack or rack == leader_rack:
        return None
    near = [replica for replica in followers if replica.rack == rack]
    return max(near).broker_id if near else None
