"""The settings that `_schemas` must have (ADR 0041, SR8, SR9)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import BrokerConfig, Durability, InternalDurability, TopicConfig
from app.coordinator.topics import strongest
from app.core.turns import whole
from app.metadata.image.records import OBJECT_LEVEL
from app.schemas.strength import configs_of, weakness


def image_of(level: int, *durabilities: str) -> Any:
    topics = {str(number): SimpleNamespace(configs={"firn.durability": one}) for number, one in enumerate(durabilities)}
    return SimpleNamespace(level=level, topics_by_name=topics)


@pytest.mark.parametrize(
    ("settings", "level", "others", "found"),
    [
        ({}, OBJECT_LEVEL, (), Durability.DISK),
        ({}, OBJECT_LEVEL, ("memory",) * 1_200, Durability.DISK),
        ({}, OBJECT_LEVEL, ("memory",) * 1_200 + ("object",), Durability.OBJECT),
        ({}, OBJECT_LEVEL - 1, ("object",), Durability.DISK),
        ({"topic_defaults": TopicConfig(firn_durability=Durability.OBJECT)}, OBJECT_LEVEL, (), Durability.OBJECT),
        ({"firn_ephemeral": True}, OBJECT_LEVEL, (), Durability.OBJECT),
        ({"firn_internal_durability": InternalDurability.MEMORY}, OBJECT_LEVEL, ("object",), Durability.MEMORY),
    ],
)
def test_the_strongest_durability_is_the_strongest_that_is_in_use(
    settings: dict[str, Any], level: int, others: tuple[str, ...], found: Durability
) -> None:
    assert whole(strongest(BrokerConfig(**settings), image_of(level, *others))) is found


def test_a_topic_as_it_is_made_is_strong_enough() -> None:
    for durability in Durability:
        configs = configs_of(durability, BrokerConfig())
        assert weakness(1, {configs["cleanup.policy"]}, Durability(configs["firn.durability"]), durability) is None
    assert configs_of(Durability.DISK, BrokerConfig())["min.insync.replicas"] == "2"


@pytest.mark.parametrize(
    ("partitions", "policy", "durability", "wanted", "why"),
    [
        (2, {"compact"}, Durability.DISK, Durability.DISK, "has 2 partitions and must have one"),
        (1, {"delete"}, Durability.DISK, Durability.DISK, "cleanup.policy=delete"),
        (1, {"compact", "delete"}, Durability.DISK, Durability.DISK, "cleanup.policy=compact,delete"),
        (1, {"compact"}, Durability.MEMORY, Durability.DISK, "firn.durability=memory, and the cluster has disk"),
        (1, {"compact"}, Durability.DISK, Durability.OBJECT, "firn.durability=disk, and the cluster has object"),
    ],
)
def test_a_weaker_topic_is_not_written_and_the_sentence_says_why(
    partitions: int, policy: set[str], durability: Durability, wanted: Durability, why: str
) -> None:
    assert why in (weakness(partitions, policy, durability, wanted) or "")
