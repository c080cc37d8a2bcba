"""The settings that `_schemas` must have before the registry writes to it (ADR 0041, SR8, SR9). Pure.

Tests: ``tests/schemas/test_strength.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.configs import BrokerConfig, Durability
from app.metadata.changes.internal_topics import strength_configs

TOPIC: Final = "_schemas"
_ORDER: Final = (Durability.MEMORY, Durability.DISK, Durability.OBJECT)


def configs_of(durability: Durability, config: BrokerConfig) -> dict[str, str]:
    """The settings with which the topic is made."""
    return {"cleanup.policy": "compact"} | strength_configs(durability, config.transaction_state_log_min_isr)


def weakness(partitions: int, cleanup_policy: Iterable[str], durability: Durability, wanted: Durability) -> str | None:
    """Why the registry does not write to the topic, in a sentence with the mend; None if it does. ``wanted``: ``strongest``."""
    if partitions != 1:
        return f"The topic {TOPIC} has {partitions} partitions and must have one. Delete it, and restore its records."
    policy = ",".join(sorted(cleanup_policy))
    if policy != "compact":
        return (
            f"The topic {TOPIC} has cleanup.policy={policy}, by which schemas can be deleted. Set it to compact with"
            f" `firn topic alter {TOPIC} --set cleanup.policy=compact`."
        )
    if _ORDER.index(durability) < _ORDER.index(wanted):
        return (
            f"The topic {TOPIC} has firn.durability={durability.value}, and the cluster has {wanted.value}. Set it with"
            f" `firn topic alter {TOPIC} --set firn.durability={wanted.value}`."
        )
    return None
