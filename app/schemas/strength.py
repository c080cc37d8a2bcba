"""The settings that `_schemas` must have before the registry writes to it (ADR 0041, SR8, SR9). Pure.

Tests: ``tests/schemas/test_strength.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.configs import BrokerConfig, Durability, InternalDurability
from app.core.turns import Steps
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import OBJECT_LEVEL

TOPIC: Final = "_schemas"
LOOKED_AT_ONCE: Final = 500
"""Topics of one step: about 0.2 ms."""
_ORDER: Final = (Durability.MEMORY, Durability.DISK, Durability.OBJECT)


def strongest(config: BrokerConfig, image: ClusterImage) -> Steps[Durability]:
    """The strongest durability that the cluster has in use: of its defaults, or of any topic. At least ``disk``, which every
    cluster has. ``firn.internal.durability`` overrides it. Yields after every few topics."""
    wanted = config.firn_internal_durability
    if wanted is not InternalDurability.AUTO:
        return Durability(wanted.value)
    if image.level < OBJECT_LEVEL:
        return Durability.DISK
    if config.firn_ephemeral or config.topic_defaults.firn_durability is Durability.OBJECT:
        return Durability.OBJECT
    for place, topic in enumerate(image.topics_by_name.values()):
        if topic.configs.get("firn.durability") == Durability.OBJECT:
            return Durability.OBJECT
        if place % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
            yield
    return Durability.DISK


def configs_of(durability: Durability, config: BrokerConfig) -> dict[str, str]:
    """The settings with which the topic is made."""
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "firn.durability": durability.value,
        "remote.storage.enable": "true" if durability is Durability.OBJECT else "false",
    }
    if durability is not Durability.OBJECT:
        configs["min.insync.replicas"] = str(config.transaction_state_log_min_isr)
    return configs


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
