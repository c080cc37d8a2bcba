"""Lists the objects of many partitions' manifests with few requests.

A starting broker must check that no manifest has entries that it does not know. One LIST for each manifest would be a thousand
requests for a thousand partitions, and nearly all would return nothing. The keys of a topic's manifests are adjacent, so one
page of a LIST covers as many partitions as fit into it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from app.core.errors import StorageUnavailable
from app.core.units import TopicId, TopicIdPartition
from app.metadata.log import layout
from app.objectstore.api import ObjectStore
from app.objectstore.keys import LIST_LIMIT_MAX

RUN_PARTITIONS: Final = 64
"""Partitions listed one page after another. A manifest usually has a dozen keys, and at most some 130 between compactions."""
RUNS_AT_ONCE: Final = 32


async def list_manifests(
    store: ObjectStore, partitions: Iterable[TopicIdPartition], *, page_timeout_s: float
) -> dict[TopicIdPartition, list[str]]:
    """All keys below the manifest prefix of each partition, in order, at some moment after the call.

    If the store does not respond for a partition, it is missing in the result. Its manifest then makes its own LIST, with retries.
    Costs one LIST for every 1,000 keys, and at least one for every 64 partitions of a topic.
    """
    topics: dict[TopicId, list[TopicIdPartition]] = {}
    for one in partitions:
        topics.setdefault(one.topic_id, []).append(one)
    found: dict[TopicIdPartition, list[str]] = {}
    limit = asyncio.Semaphore(RUNS_AT_ONCE)

    async def list_run(topic_id: TopicId, run: Sequence[tuple[str, TopicIdPartition]]) -> None:
        async with limit:
            try:
                await _list_run(store, topic_id, run, found, page_timeout_s)
            except (StorageUnavailable, TimeoutError):
                return  # a partition that is missing here lists its own keys later

    async with asyncio.TaskGroup() as group:
        for topic_id, many in topics.items():
            # In the order in which their keys are listed: "10/" before "2/".
            ordered = sorted((f"{layout.manifest_prefix(*one)}/", one) for one in many)
            for start in range(0, len(ordered), RUN_PARTITIONS):
                group.create_task(list_run(topic_id, ordered[start : start + RUN_PARTITIONS]))
    return found


async def _list_run(
    store: ObjectStore,
    topic_id: TopicId,
    run: Sequence[tuple[str, TopicIdPartition]],
    found: dict[TopicIdPartition, list[str]],
    page_timeout_s: float,
) -> None:
    """List partitions of one topic, given in order of their prefixes. Raises: StorageUnavailable, TimeoutError."""
    place = 0
    after = run[0][0]
    keys: list[str] = []
    while place < len(run):
        async with asyncio.timeout(page_timeout_s):
            page = await store.list_objects(layout.topic_prefix(topic_id), start_after=after, limit=LIST_LIMIT_MAX)
        for info in page:
            while place < len(run) and not info.key.startswith(run[place][0]) and info.key > run[place][0]:
                found[run[place][1]] = keys
                keys = []
                place += 1
            if place == len(run):
                return
            if info.key.startswith(run[place][0]):
                keys.append(info.key)
        if len(page) < LIST_LIMIT_MAX:
            for _, one in run[place:]:
                found[one] = keys
                keys = []
            return
        # Where others' partitions lie between, they are passed over.
        after = max(page[-1].key, run[place][0])
