"""Making an internal topic: a client that waits for it is answered in time, in a code on which it asks again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import BrokerConfig, Durability, InternalDurability, TopicConfig
from app.configs.validation import validate_topic_configs
from app.coordinator.topics import (
    CONSUMER_OFFSETS,
    MADE_WITHIN_S,
    TRANSACTION_STATE,
    ensure_topic,
    make_topic,
    topic_configs,
)
from app.core.errors import ErrorCode, RequestRejected, StorageUnavailable
from app.handlers.apis.transactions import handle_add_offsets
from app.metadata.changes.internal_topics import GROWING, strength_configs
from app.metadata.controller.controller import not_controller
from app.metadata.image.image import INTERNAL_TOPICS
from app.metadata.image.records import OBJECT_LEVEL
from app.wire.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from tests.support.virtual_loop import VirtualLoop, run_virtual


def image(level: int = 0, **topics: str) -> Any:
    """With topics and their ``firn.durability``."""
    made = {name: SimpleNamespace(configs={"firn.durability": durability}) for name, durability in topics.items()}
    return SimpleNamespace(topic=lambda _: None, level=level, topics_by_name=made)


CLUSTER: Any = SimpleNamespace(image=image(), effective_broker_config=lambda: BrokerConfig())


class Controller:
    """Does not make a topic."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def create_topic(self, *_: Any, **__: Any) -> Any:
        if self._error is None:
            await asyncio.sleep(3600)
        else:
            raise self._error


@pytest.mark.parametrize("error", [None, not_controller(), StorageUnavailable("the bucket is gone")])
def test_a_topic_that_is_not_made_is_told_as_a_coordinator_that_is_not_available(error: Exception | None) -> None:
    async def main(loop: VirtualLoop) -> None:
        controller: Any = Controller(error)
        context: Any = SimpleNamespace(cluster=CLUSTER, controller=controller)
        asked = AddOffsetsToTxnRequest("t", 1, 0, "g")
        with pytest.raises(RequestRejected) as refused:
            await handle_add_offsets(context, None, asked)  # type: ignore[arg-type]
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert loop.time() <= MADE_WITHIN_S + 1

    run_virtual(main)


def test_nobody_waits_for_a_topic_without_a_limit() -> None:
    async def main(loop: VirtualLoop) -> None:
        controller: Any = Controller(None)
        with pytest.raises(RequestRejected) as refused:
            await ensure_topic(CLUSTER, controller, CONSUMER_OFFSETS)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert loop.time() <= MADE_WITHIN_S + 1

    run_virtual(main)


def test_a_topic_that_exists_already_is_no_error_of_making_it() -> None:
    async def main(_: VirtualLoop) -> None:
        exists: Any = Controller(RequestRejected(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' exists."))
        assert await make_topic(exists, "t", 1, {}, 3) is None

    run_virtual(main)


def test_a_topic_that_another_broker_has_just_made_is_found_in_the_image_or_asked_for_again() -> None:
    async def main(_: VirtualLoop) -> None:
        exists: Any = Controller(RequestRejected(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' exists."))
        made, images = object(), iter([None, "made"])
        cluster: Any = SimpleNamespace(effective_broker_config=lambda: BrokerConfig())
        cluster.image = image()
        cluster.image.topic = lambda _: made if next(images) else None
        assert await ensure_topic(cluster, exists, CONSUMER_OFFSETS) is made
        with pytest.raises(RequestRejected) as refused:
            await ensure_topic(CLUSTER, exists, CONSUMER_OFFSETS)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run_virtual(main)


@pytest.mark.parametrize(
    ("durability", "min_in_sync", "wanted"),
    [
        (None, None, {"remote.storage.enable": "false"}),
        (None, 2, {"remote.storage.enable": "false", "min.insync.replicas": "2"}),
        (
            Durability.DISK,
            2,
            {"remote.storage.enable": "false", "min.insync.replicas": "2", "firn.durability": "disk"},
        ),
        (Durability.OBJECT, 2, {"remote.storage.enable": "true", "firn.durability": "object"}),
    ],
)
def test_a_topic_gets_a_minimum_of_replicas_unless_the_store_has_its_records(
    durability: Durability | None, min_in_sync: int | None, wanted: dict[str, str]
) -> None:
    assert strength_configs(durability, min_in_sync) == {"compression.type": "producer"} | wanted


def test_every_internal_topic_that_gets_replicas_is_closed_to_clients() -> None:
    assert {topic.name for topic in GROWING} == INTERNAL_TOPICS


OBJECT = TopicConfig(firn_durability=Durability.OBJECT)


@pytest.mark.parametrize(
    ("settings", "of", "wanted"),
    [
        ({}, image(), None),
        ({}, image(OBJECT_LEVEL), None),
        ({}, image(OBJECT_LEVEL, t="disk"), None),
        ({}, image(OBJECT_LEVEL, t="disk", u="object"), "object"),
        ({"topic_defaults": OBJECT}, image(OBJECT_LEVEL), "object"),
        ({"firn_ephemeral": True}, image(OBJECT_LEVEL), "object"),
        ({"firn_internal_durability": InternalDurability.DISK}, image(OBJECT_LEVEL, t="object"), "disk"),
        ({"firn_internal_durability": InternalDurability.MEMORY}, image(), "memory"),
        ({"firn_internal_durability": InternalDurability.OBJECT}, image(OBJECT_LEVEL), "object"),
    ],
)
def test_internal_topics_get_object_durability_as_soon_as_it_matters(
    settings: dict[str, Any], of: Any, wanted: str | None
) -> None:
    configs = topic_configs(CONSUMER_OFFSETS, BrokerConfig(**settings), of)
    assert configs.get("firn.durability") == wanted
    assert configs["remote.storage.enable"] == ("true" if wanted == "object" else "false")
    if wanted == "object":
        assert validate_topic_configs(dict(configs)).tiered
    of_transactions = topic_configs(TRANSACTION_STATE, BrokerConfig(**settings), of)
    assert ("min.insync.replicas" in of_transactions) is (wanted != "object"), "one replica is shown, and is enough"
