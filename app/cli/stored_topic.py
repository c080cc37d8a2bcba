"""A topic as its manifests in the object store describe it, for ``firn topic describe --store``. No broker is asked."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from app.cli.output import bytes_text, count_text, print_json, print_table, time_text
from app.cli.session import missing_folder, run_async
from app.core.errors import ConfigError

if TYPE_CHECKING:
    from app.metadata.image.image import TopicImage
    from app.metadata.manifest.manifest_state import ManifestState


def describe_stored(url: str, name: str, *, as_json: bool) -> None:
    """Print a topic's partitions from its manifests: no segment is read.

    The number of records is the sum over the batches. It includes markers and aborted records, not records that compaction removed.
    Raises: ConfigError (no such store, cluster or topic), CorruptionError, StorageUnavailable.
    """
    topic, states = run_async(lambda: _read(url, name))
    partitions = [_partition(index, state) for index, state in enumerate(states)]
    total = {key: sum(one[key] for one in partitions) for key in ("records", "segments", "bytes", "raw_bytes")}
    if as_json:
        print_json(
            {"topic": name, "topic_id": str(topic.topic_id), "store": url, **total, "partitions": partitions},
        )
        return
    print_table(
        (">PARTITION", ">START", ">END", ">RECORDS", ">SEGMENTS", ">OBJECT STORE", "NEWEST RECORD"),
        [
            (
                str(one["partition"]),
                count_text(one["start_offset"]),
                count_text(one["end_offset"]),
                count_text(one["records"]),
                count_text(one["segments"]),
                bytes_text(one["bytes"]),
                time_text(one["max_timestamp"]),
            )
            for one in partitions
        ],
        title=f"Topic {name} ({topic.topic_id}) in {url}",
    )
    sys.stdout.write(
        f"\n{count_text(total['records'], 'record')} in {count_text(total['segments'], 'segment')} of "
        f"{bytes_text(total['bytes'])}. Records that are not tiered yet are not in the store.\n"
    )


def _partition(index: int, state: ManifestState) -> dict[str, Any]:
    return {
        "partition": index,
        "start_offset": state.log_start_offset,
        "end_offset": state.tiered_end,
        "records": state.record_count,
        "segments": len(state.finished),
        "bytes": state.size_bytes,
        "raw_bytes": state.raw_bytes,
        "min_timestamp": min((entry.min_timestamp for entry in state.finished), default=-1),
        "max_timestamp": max((entry.max_timestamp for entry in state.finished), default=-1),
    }


async def _read(url: str, name: str) -> tuple[TopicImage, list[ManifestState]]:
    from app.core.units import PartitionIndex, TopicIdPartition
    from app.machine.runtime import SystemClock, ThreadPool
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.location import DirectoryLocation, parse_store_url
    from app.objectstore.opening import open_store

    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation) and not location.path.is_dir():
        raise missing_folder(location.path, "--store")
    pool = ThreadPool()
    store = await open_store(location, pool=pool, rng=random.Random())
    try:
        reader = MetadataFollower(store, SystemClock())
        image = await reader.cluster()
        if not image.cluster_id:
            raise ConfigError(f"There is no Firn cluster in {url}: name the store that the cluster's brokers have.")
        topic = image.topic(name)
        if topic is None:
            raise ConfigError(f"There is no topic {name} in {url}.")
        states = [
            await reader.manifest(TopicIdPartition(topic.topic_id, PartitionIndex(index)))
            for index in range(len(topic.partitions))
        ]
        return topic, states
    finally:
        await store.close()
        pool.close()
