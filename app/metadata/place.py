"""The place of a broker: a node id of a cluster. Whoever takes one asks and tells whoever had it before (ADR 0018).

``Places`` is the way to another broker. It is a seam: the composition root puts Kafka's protocol behind it, the simulation its own
network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from app.metadata.cluster import Endpoint

ASK_S: Final = 5.0
"""How long a broker may take to answer before it counts as one that does not."""
STOOD_STILL_S: Final = 3.0
"""A broker whose loop did not run for so long looks at the cluster log before its next acknowledgement. Shorter than ``ASK_S``:
whoever asked in vain asked one that looks, or that it cannot reach."""
TELL_AGAIN_S: Final = 0.5
"""Between two tries to tell a broker that was told just now by somebody else."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who answers at an address."""

    cluster_id: str
    node_id: int
    directory_id: UUID
    looks: bool = False
    """It reads the cluster log before its next acknowledgement."""
    untiered_bytes: int = 0
    """On its disk alone."""
    untiered_partitions: int = 0


class Places(Protocol):
    """Ways to other brokers."""

    async def ask(
        self, endpoint: Endpoint, *, cluster_id: str, node_id: int, directory_id: UUID, replaced_by: str = ""
    ) -> Holder | None:
        """Who answers at ``endpoint``; None if nobody does, or nobody that can say who it is. It may take for ever: time it out.

        ``replaced_by`` tells the broker of ``directory_id`` that somebody has taken its place, and who: the cluster log says so.
        """
        ...
