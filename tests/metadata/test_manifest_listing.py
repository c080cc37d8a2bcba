"""Many manifests found with few LISTs: the same keys as one LIST for each finds, and a start that uses them reads the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.metadata.log import layout
from app.metadata.manifest.manifest_listing import RUN_PARTITIONS, list_manifests
from app.objectstore.api import ObjectStore
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.support import FixedClock, requests_of, uuid_of

TIMEOUT_S = 5.0


def store_of_memory() -> MemoryStore:
    return MemoryStore(FixedClock(), random.Random(1))


def partition_of(topic: int, index: int) -> TopicIdPartition:
    return TopicIdPartition(TopicId(uuid_of(topic)), PartitionIndex(index))


async def fill(store: ObjectStore, rng: random.Random, partitions: list[TopicIdPartition], keys_max: int) -> None:
    for one in partitions:
        prefix = layout.manifest_prefix(*one)
        for sequence in range(rng.randrange(keys_max + 1)):
            await store.put(layout.entry_key(prefix, sequence), b"")
            if sequence % 5 == 4:
                await store.put(layout.snapshot_key(prefix, sequence), b"")


async def one_by_one(store: ObjectStore, partitions: list[TopicIdPartition]) -> dict[TopicIdPartition, list[str]]:
    return {
        one: [info.key for info in await store.list_objects(f"{layout.manifest_prefix(*one)}/")] for one in partitions
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["memory", "directory"])
async def test_what_is_found_together_is_what_is_found_one_by_one(kind: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    store: ObjectStore = DirectoryStore(tmp_path / "store") if kind == "directory" else store_of_memory()
    there = [partition_of(topic, index) for topic in range(3) for index in range(40 if kind == "directory" else 100)]
    await fill(store, rng, there, rng.choice([0, 1, 3] if kind == "directory" else [0, 3, 20]))
    # Some are led by others, and some have nothing yet.
    asked = [*rng.sample(there, len(there) // rng.choice([1, 2, 10])), partition_of(9, 0), partition_of(1, 100_000)]
    rng.shuffle(asked)
    assert await list_manifests(store, asked, page_timeout_s=TIMEOUT_S) == await one_by_one(store, asked)


async def test_a_thousand_partitions_cost_a_request_for_each_page_and_not_for_each_partition() -> None:
    store = store_of_memory()
    partitions = [partition_of(topic, index) for topic in range(10) for index in range(100)]
    await fill(store, random.Random(3), partitions, 20)
    store.history.clear()
    await list_manifests(store, partitions, page_timeout_s=TIMEOUT_S)
    assert requests_of(store)["list_objects"] <= 10 * (2 * -(-100 // RUN_PARTITIONS) + 1)


async def test_partitions_that_the_store_does_not_answer_for_are_left_to_ask_for_themselves() -> None:
    store = store_of_memory()
    partitions = [partition_of(topic, index) for topic in range(3) for index in range(5)]
    await fill(store, random.Random(3), partitions, 5)
    refused = layout.topic_prefix(partition_of(1, 0).topic_id)
    store.faults.append(Fault(FaultKind.UNAVAILABLE, "list_objects", refused))
    found = await list_manifests(store, partitions, page_timeout_s=TIMEOUT_S)
    assert set(found) == {one for one in partitions if one.topic_id != partition_of(1, 0).topic_id}
