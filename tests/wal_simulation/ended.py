"""Whether a log has ended (J36)."""

from __future__ import annotations

from app.metadata.wal_ranges import WalId
from tests.wal_simulation.cluster import Image


def has_ended(wal: WalId, image: Image) -> bool:
    """Whether an image shows that nobody writes a log any more. An image that is older than the log's broker epoch does not."""
    broker = image.brokers.get(wal.broker_id)
    return wal.broker_epoch <= image.sequence and (
        broker is None or broker.broker_epoch > wal.broker_epoch or broker.sealed_at is not None
    )
