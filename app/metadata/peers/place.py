"""The place of a broker: a node id of a cluster. A broker that takes a place asks and notifies the previous owner (ADR 0018).

``Places`` reaches other brokers. It is a seam: the composition root implements it with Kafka's protocol, the simulation with
its own network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from app.metadata.image.records import Endpoint

ASK_S: Final = 5.0
"""Time for a response. A slower broker counts as not responding."""
STOOD_STILL_S: Final = 3.0
"""A broker whose loop did not run for this time reads the cluster log before its next acknowledgement. Shorter than ``ASK_S``: if a
broker did not respond, it will read the log, or it cannot be reached."""
TELL_AGAIN_S: Final = 0.5
"""Pause between two attempts to notify a broker that was just notified by another one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The broker that responds at an address."""

    cluster_id: str
    node_id: int
    directory_id: UUID
    looks: bool = False
    """Whether it reads the cluster log before its next acknowledgement."""
    untiered_bytes: int = 0
    """Bytes on its disk only."""
    untiered_partitions: int = 0


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process at an address that responds but cannot be identified: one side does not trust the other, or refuses its login."""

    why: str


class Places(Protocol):
    """Connections to other brokers."""

    async def ask(
        self, endpoint: Endpoint, *, cluster_id: str, node_id: int, directory_id: UUID, replaced_by: str = ""
    ) -> Holder | Stranger | None:
        """The broker that responds at ``endpoint``; None if none responds, or if it cannot identify itself. May take for ever:
        use a timeout.

        ``replaced_by`` notifies the broker of ``directory_id`` that another broker has taken its place, as the cluster log says.
        """
        ...
