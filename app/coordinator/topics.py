"""The internal topics in which coordinators keep their state, and which partition a name belongs to.

The coordinators of groups, share groups and transactions have compacted topics with Kafka's names. The coordinators of schemas and
of keyed requests are Firn's own. A topic is created when a client first asks for its coordinator. The leader of a partition
coordinates all names that hash to it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from functools import lru_cache
from operator import mul
from sys import byteorder
from typing import TYPE_CHECKING, Final

from app.configs import BrokerConfig, Durability, InternalDurability
from app.core.errors import ErrorCode, RequestRejected, clause
from app.core.limits import SEGMENT_BYTES_MIN
from app.core.turns import Steps
from app.core.units import PartitionIndex
from app.metadata.changes.internal_topics import (
    CONSUMER_OFFSETS,
    HTTP_REQUESTS,
    INTERNAL,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    InternalTopic,
    strength_configs,
)
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import OBJECT_LEVEL

if TYPE_CHECKING:
    from app.metadata.controller.controller import Controller
    from app.metadata.image.image import TopicImage
    from app.metadata.view.view import ClusterView

__all__ = [
    "CONSUMER_OFFSETS",
    "HTTP_REQUESTS",
    "INTERNAL",
    "SHARE_GROUP_STATE",
    "TRANSACTION_STATE",
    "InternalTopic",
    "ensure_topic",
    "make_topic",
    "name_hash",
    "partition_for",
    "strongest",
    "topic_configs",
]

LOOKED_AT_ONCE: Final = 500
"""Topics of one step of ``strongest``: about 0.2 ms."""
HASHED_CHARS_MAX: Final = 256
"""Code units that are hashed together. Hashes of longer names are not kept, because the names would be kept with them."""
_POWERS: Final = tuple([pow(31, exponent, 1 << 32) for exponent in reversed(range(HASHED_CHARS_MAX))])
HASHES_KEPT_MAX: Final = 16_384
"""Number of cached hashes: the group of a commit is needed again a second later."""


def name_hash(name: str) -> int:
    """Java's ``String.hashCode``, over UTF-16 code units, made non-negative as Kafka makes it."""
    return _kept_hash(name) if len(name) <= HASHED_CHARS_MAX else _hash(name)


@lru_cache(HASHES_KEPT_MAX)
def _kept_hash(name: str) -> int:
    return _hash(name)


def _hash(name: str) -> int:
    units = array("H", name.encode("utf-16-le"))
    if byteorder == "big":
        units.byteswap()
    value = 0
    for begin in range(0, len(units), HASHED_CHARS_MAX):
        some = units[begin : begin + HASHED_CHARS_MAX]
        powers = _POWERS[HASHED_CHARS_MAX - len(some) :]
        value = (value * 31 ** len(some) + sum(map(mul, some, powers))) & 0xFFFF_FFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return 0 if value == -(1 << 31) else abs(value)


def partition_for(name: str, count: int) -> PartitionIndex:
    """The partition, of ``count``, of a group id, transactional id or share-partition key."""
    return PartitionIndex(name_hash(name) % count)


def topic_configs(topic: InternalTopic, config: BrokerConfig, image: ClusterImage) -> dict[str, str]:
    """The overrides with which the topic is created."""
    segment_bytes = max(getattr(config, topic.segment_bytes_field), SEGMENT_BYTES_MIN)
    min_in_sync = getattr(config, topic.min_in_sync_field) if topic.min_in_sync_field else None
    own = {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
    return own | strength_configs(_durability(config, image), min_in_sync)


def _durability(config: BrokerConfig, image: ClusterImage) -> Durability | None:
    """By ``firn.internal.durability``; None if new internal topics are as other topics are by default."""
    wanted = config.firn_internal_durability
    if wanted is not InternalDurability.AUTO:
        return Durability(wanted.value)
    if image.level < OBJECT_LEVEL:
        return None
    of_others = any(
        topic.configs.get("firn.durability") == Durability.OBJECT for topic in image.topics_by_name.values()
    )
    by_default = config.firn_ephemeral or config.topic_defaults.firn_durability is Durability.OBJECT
    return Durability.OBJECT if of_others or by_default else None


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


MADE_WITHIN_S: Final = 15.0
"""How long a client waits until an internal topic is made: less than its own patience, 30 s in Kafka."""


async def ensure_topic(cluster: ClusterView, controller: Controller, topic: InternalTopic) -> TopicImage:
    """The topic. Creates it if it does not exist.

    Raises: RequestRejected COORDINATOR_NOT_AVAILABLE if it cannot be created, or not in time; StorageUnavailable; FencedError.
    """
    found = cluster.image.topic(topic.name)
    if found is not None:
        return found
    config = cluster.effective_broker_config()
    made = await make_topic(
        controller,
        topic.name,
        getattr(config, topic.partitions_field),
        topic_configs(topic, config, cluster.image),
        getattr(config, topic.replication_factor_field),
    )
    found = cluster.image.topic(topic.name) if made is None else made
    if found is None:
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"The topic {topic.name} has just been made, and this broker does not know it yet. Try again in a moment.",
        )
    return found


async def make_topic(
    controller: Controller, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int
) -> TopicImage | None:
    """Create an internal topic, with fewer replicas if there are fewer brokers. Returns: None if it exists already.

    Raises: RequestRejected COORDINATOR_NOT_AVAILABLE if it cannot be created, or not in time; StorageUnavailable; FencedError.
    """
    try:
        async with asyncio.timeout(MADE_WITHIN_S):
            return await controller.create_topic(name, partitions, configs, replication_factor, fewer_replicas=True)
    except TimeoutError:
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The topic {name} was not made within {MADE_WITHIN_S:g} s."
        ) from None
    except RequestRejected as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return None
        raise RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The topic {name} cannot be made: {clause(error)}."
        ) from error
