"""What a broker makes of a store that is empty: a cluster at the level that its settings need, without a command."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.core.errors import ConfigError
from app.metadata.changes.features import new_store_level
from app.metadata.image.records import LEVEL_MAX
from app.wire.config_resources import ConfigResourceType
from tests.faults.served import Served, firn, serving


def level_of(broker: Served) -> int:
    found = json.loads(firn("cluster", "features", "-b", broker.bootstrap, "--json").stdout)
    (level,) = (one["level"] for one in found if one["feature"] == "firn.version")
    return int(level)


def durability_of(broker: Served, topic: str) -> str:
    async def ask() -> str:
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            configs = await AdminClient(cluster).describe_configs(ConfigResourceType.TOPIC, topic)
            return next(str(one.value) for one in configs if one.name == "firn.durability")

    return asyncio.run(ask())


@pytest.mark.parametrize(("asked", "level"), [(-1, LEVEL_MAX), (0, 0), (1, 1), (LEVEL_MAX, LEVEL_MAX)])
def test_an_empty_store_begins_at_the_newest_level_unless_another_one_is_asked_for(asked: int, level: int) -> None:
    assert new_store_level(asked) == level


def test_a_level_that_this_program_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"knows levels up to {LEVEL_MAX}"):
        new_store_level(LEVEL_MAX + 1)


def test_a_node_id_of_the_cluster_needs_a_store_of_several_brokers(tmp_path: Path) -> None:
    started = firn(
        "serve", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir", str(tmp_path / "data"),
        "--store", (tmp_path / "store").as_uri(), "--node-id", "auto", "--set", "firn.new.store.level=0",
    )  # fmt: skip
    assert started.returncode != 0
    assert "without --node-id auto, or with a higher level" in started.stderr


@pytest.mark.ci
def test_new_topics_of_a_fresh_store_are_in_the_bucket_if_that_is_the_default(tmp_path: Path) -> None:
    with serving(tmp_path, settings={"firn.durability": "object"}) as broker:
        made = firn("topic", "create", "t", "-b", broker.bootstrap)
        assert made.returncode == 0, made.stderr
        assert durability_of(broker, "t") == "object"
        assert level_of(broker) == LEVEL_MAX
    with serving(tmp_path) as broker:  # the level stays, and so does the topic
        assert durability_of(broker, "t") == "object"


@pytest.mark.ci
def test_one_flag_is_enough_for_a_broker_that_others_may_join(tmp_path: Path) -> None:
    with serving(tmp_path / "a") as broker:
        assert level_of(broker) == LEVEL_MAX
        with serving(tmp_path / "b", "--node-id", "auto", store=broker.store):
            found = json.loads(firn("cluster", "brokers", "-b", broker.bootstrap, "--json").stdout)
            assert len(found) == 2


@pytest.mark.ci
def test_a_store_of_an_older_level_keeps_it_and_the_refusal_says_how_to_raise_it(tmp_path: Path) -> None:
    with serving(tmp_path, settings={"firn.new.store.level": "0"}) as broker:
        assert level_of(broker) == 0
    with serving(tmp_path) as broker:  # without the setting, as after an update
        assert level_of(broker) == 0
    refused = firn(
        "serve", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir", str(broker.data_dir), "--store", broker.store,
        "--set", "firn.durability=object",
    )  # fmt: skip
    assert refused.returncode != 0
    assert "firn cluster features --upgrade firn.version=3" in refused.stderr
