"""Surroundings in which brokers have told the next numbers of their logs."""

from __future__ import annotations

from app.configs import BrokerConfig
from app.core.units import LogSequence, TimestampMs
from app.metadata.changes.topic_changes import (
    PlanInputs,
)
from app.metadata.image.wal_ranges import WalId
from tests.metadata.several import NOW, ids


def telling(numbers: dict[WalId, int] | None = None, **config: object) -> PlanInputs:
    """Brokers have told these next numbers of their logs."""
    settings = BrokerConfig(**config)  # type: ignore[arg-type]
    told = numbers or {}
    return PlanInputs(settings, ids(1, 2, 3, 4, 5), TimestampMs(5), 0, LogSequence(NOW), lambda wal: told.get(wal, 0))
