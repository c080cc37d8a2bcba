"""What a broker makes of a store that is empty: a cluster at the level that its settings need, without a command."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from app.broker.process import needs_newest_level
from app.client.admin import AdminClient, ResourceType
from app.client.cluster import ClusterClient
from app.metadata.cluster import LEVEL_MAX
from app.settings import load
from tests.faults.served import Served, firn, serving


def level_of(broker: Served) -> int:
    found = json.loads(firn("cluster", "features", "-b", broker.bootstrap, "--json").stdout)
    (level,) = (one["level"] for one in found if one["feature"] == "firn.version")
    return int(level)


def durability_of(broker: Served, topic: str) -> str:
    async def ask() -> str:
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            configs = await AdminClient(cluster).describe_configs(ResourceType.TOPIC, topic)
            return next(str(one.value) for one in configs if one.name == "firn.durability")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("needs", "assignments"),
    [
        (False, []),
        (False, ["firn.durability=disk"]),
        (True, ["firn.durability=object"]),
        (True, ["firn.internal.durability=object"]),
        (True, ["firn.cluster.enable=true"]),
        (True, ["firn.wal.store.url=s3://fast--euc1-az1--x-s3"]),
    ],
)
def test_a_fresh_store_begins_at_the_level_that_the_settings_need(needs: bool, assignments: list[str]) -> None:
    assert needs_newest_level(load(assignments=assignments).broker) is needs


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
def test_a_store_of_one_broker_keeps_its_level_and_the_refusal_says_how_to_raise_it(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        assert level_of(broker) == 0
    refused = firn(
        "serve", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir", str(broker.data_dir), "--store", broker.store,
        "--set", "firn.durability=object",
    )  # fmt: skip
    assert refused.returncode != 0
    assert "firn cluster features --upgrade firn.version=3" in refused.stderr
