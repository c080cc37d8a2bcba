"""A consistent view of the source of a read: topics, manifests and offsets as of one moment of planning.

Everything that can be wrong with a request is found here, before any task runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from app.client.cluster import EARLIEST as BROKER_EARLIEST
from app.client.cluster import LATEST as BROKER_LATEST
from app.client.cluster import ClusterClient
from app.core.errors import ConfigError, CorruptionError
from app.core.units import PartitionIndex, TopicIdPartition, TopicPartition
from app.metadata.image.image import ClusterImage, TopicImage
from app.metadata.manifest.manifest_state import ManifestState, SegmentEntry
from app.records.batch import iter_headers
from app.records.record import iter_records
from app.tiering.store.segment_format import SegmentFooter, check_stored_chunk, decode_footer
from app.tiering.store.store_work import unfold_chunk
from pyspark_firn.damage import planned_read
from pyspark_firn.losses import Losses
from pyspark_firn.options import EARLIEST, LATEST, AtOffset, AtTime, Isolation, ReadOptions, WhenTimeIsPastTheEnd
from pyspark_firn.planning import PartitionRange, boundary_segments
from pyspark_firn.session import StoreSession

MANIFESTS_AT_ONCE = 32


@dataclass(slots=True)
class TopicPartitionState:
    """One partition as planning found it."""

    topic: str
    partition: TopicIdPartition
    state: ManifestState
    tail_end: int | None = None
    """Where the brokers' part ends for this reader (high watermark or last stable offset); None without ``tail``."""
    log_start: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition.partition}"

    @property
    def start(self) -> int:
        """The first offset that a reader may ask for."""
        return max(self.state.log_start_offset, self.log_start)

    @property
    def end(self) -> int:
        return max(self.state.tiered_end, self.start) if self.tail_end is None else max(self.tail_end, self.start)


@dataclass(slots=True)
class Snapshot:
    """Everything that planning has read."""

    image: ClusterImage
    partitions: list[TopicPartitionState]
    footers: dict[bytes, SegmentFooter] = field(default_factory=dict)
    """Of the segments that planning had to look into, by segment id."""


async def take_snapshot(
    session: StoreSession, options: ReadOptions, *, allow_none: bool = False, may_be_gone: Collection[str] = ()
) -> Snapshot:
    """Read the cluster log and the manifests of the partitions that ``options`` name; ask the brokers where they end.

    ``allow_none``: a pattern may match no topic (yet); ``may_be_gone``: named topics that need not be there. Raises: ConfigError,
    CorruptionError, StorageUnavailable, BrokerUnavailable.
    """
    await session.check_store()
    image = await session.metadata.cluster()
    if not image.cluster_id:
        raise ConfigError(f"There is no Firn cluster in {session.url}: name the bucket with the option 'store'.")
    chosen = _chosen(image, options, session.url, allow_none=allow_none, may_be_gone=may_be_gone)
    turns = asyncio.Semaphore(MANIFESTS_AT_ONCE)

    async def read(topic: TopicImage, index: int) -> TopicPartitionState:
        partition = TopicIdPartition(topic.topic_id, PartitionIndex(index))
        async with turns:
            return TopicPartitionState(topic.name, partition, await session.metadata.manifest(partition))

    partitions = list(await asyncio.gather(*(read(topic, index) for topic, indexes in chosen for index in indexes)))
    if options.tail:
        await _ask_tail(options, partitions)
    return Snapshot(image, partitions)


def _chosen(
    image: ClusterImage, options: ReadOptions, url: str, *, allow_none: bool, may_be_gone: Collection[str]
) -> list[tuple[TopicImage, Sequence[int]]]:
    subscription = options.subscription
    topics = sorted(
        (topic for topic in image.topics_by_name.values() if subscription.wants(topic.name)),
        key=lambda topic: topic.name,
    )
    for name in subscription.names:
        if image.topic(name) is None and name not in may_be_gone:
            raise ConfigError(f"There is no topic {name!r} in {url}.")
    if not topics and not allow_none:
        raise ConfigError(f"No topic in {url} matches {subscription.pattern!r}.")
    chosen: list[tuple[TopicImage, Sequence[int]]] = []
    for topic in topics:
        indexes: Sequence[int] = range(len(topic.partitions))
        if subscription.assigned is not None:
            indexes = subscription.assigned[topic.name]
            for index in indexes:
                if index >= len(topic.partitions):
                    raise ConfigError(
                        f"Topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1} and no partition {index}."
                    )
        chosen.append((topic, indexes))
    return chosen


async def _ask_tail(options: ReadOptions, partitions: Sequence[TopicPartitionState]) -> None:
    wanted = [TopicPartition(one.topic, one.partition.partition) for one in partitions]
    committed = options.isolation is Isolation.READ_COMMITTED
    async with ClusterClient(options.tail, rng=random.Random(), client_id="firn-spark") as cluster:
        ends = await cluster.list_offsets(dict.fromkeys(wanted, BROKER_LATEST), read_committed=committed)
        starts = await cluster.list_offsets(dict.fromkeys(wanted, BROKER_EARLIEST))
        topic_ids = {name.topic: cluster.view.topics[name.topic].topic_id for name in wanted}
    for one, name in zip(partitions, wanted, strict=True):
        if topic_ids[name.topic] != one.partition.topic_id:
            raise ConfigError(
                f"The brokers of the option 'tail' have another topic {name.topic!r} (id {topic_ids[name.topic]}) than the store"
                f" (id {one.partition.topic_id}): name the brokers that write to this store."
            )
        # The manifest was read before, and nothing is tiered that is not stable.
        if ends[name].offset < one.state.tiered_end:
            raise ConfigError(
                f"{one.name} ends at offset {ends[name].offset} on the brokers of the option 'tail' and at"
                f" {one.state.tiered_end} in the store: name the brokers that write to this store, and look whether they have"
                " lost records."
            )
        one.tail_end = ends[name].offset
        one.log_start = starts[name].offset


async def read_footer(
    session: StoreSession, snapshot: Snapshot, partition: TopicIdPartition, entry: SegmentEntry
) -> SegmentFooter:
    """The footer of a segment, read once. Raises: CorruptionError, ConfigError (it is gone), StorageUnavailable."""
    found = snapshot.footers.get(entry.segment_id.bytes)
    if found is None:
        key = entry.object_key(*partition)
        with planned_read(key):
            tail, object_bytes = await session.store.get_tail(key, entry.size_bytes - entry.footer_position)
            if object_bytes != entry.size_bytes:
                raise CorruptionError(f"{key} has {object_bytes} bytes, the manifest says {entry.size_bytes}.")
            found = snapshot.footers[entry.segment_id.bytes] = decode_footer(tail, object_bytes, key)
    return found


async def resolve_ranges(session: StoreSession, snapshot: Snapshot, options: ReadOptions) -> list[PartitionRange]:
    """The offsets to read of each partition. Deleted offsets are left out if the options allow it.

    The chunk tables that splits will need are read, too. Raises: ConfigError, DataLoss, CorruptionError, StorageUnavailable,
    BrokerUnavailable.
    """
    _check_named(snapshot, options.start, "starting")
    _check_named(snapshot, options.end, "ending")
    losses = Losses(fail=options.fail_on_data_loss)

    async def resolve(one: TopicPartitionState) -> PartitionRange:
        start = await _resolve(session, snapshot, one, options.start, "starting", options)
        end = await _resolve(session, snapshot, one, options.end, "ending", options)
        _check_order(one, start, end, losses)
        start = pass_over_expired(one, start, end, losses)
        end = max(end, start)
        found = PartitionRange(
            topic=one.topic, partition=one.partition, start=start, end=end, tiered_end=one.state.tiered_end
        )
        for entry in boundary_segments(one.state, found.start, found.stored_end):
            await read_footer(session, snapshot, one.partition, entry)
        return found

    return list(await asyncio.gather(*(resolve(one) for one in snapshot.partitions)))


def _check_order(one: TopicPartitionState, start: int, end: int, losses: Losses) -> None:
    """A range that ends before it starts is a mistake, or has expired as a whole. Raises: ConfigError, DataLoss."""
    if start <= end:
        return
    if start > one.start:
        raise ConfigError(
            f"The read of {one.name} starts at offset {start} and ends before, at offset {end}: correct its starting or ending"
            " option."
        )
    losses.report(f"All of {one.name} up to its ending offset {end} is gone: it starts at offset {one.start}", None)


def pass_over_expired(one: TopicPartitionState, start: int, end: int, losses: Losses) -> int:
    """Where to start reading [start, end) of a partition: its first offset, if ``start`` has gone. Raises: DataLoss."""
    going_on = max(start, min(one.start, end))
    if going_on > start:
        losses.report(
            f"Offsets [{start}, {going_on}) of {one.name} are gone: it starts at offset {one.start}", going_on - start
        )
    return going_on


def _check_named(snapshot: Snapshot, place: AtOffset | AtTime, which: str) -> None:
    """JSON by partition must name every partition that is read, and no other, as with Spark's Kafka source."""
    if place.by_partition is None:
        return
    said = {(topic, index) for topic, values in place.by_partition.items() for index in values}
    read = {(one.topic, int(one.partition.partition)) for one in snapshot.partitions}
    for topic, index in sorted(read - said):
        raise ConfigError(f"The {which} offsets or times leave out {topic}-{index}: name every partition that is read.")
    for topic, index in sorted(said - read):
        raise ConfigError(f"The {which} offsets or times name {topic}-{index}, which is not read.")


async def _resolve(
    session: StoreSession,
    snapshot: Snapshot,
    one: TopicPartitionState,
    place: AtOffset | AtTime,
    which: str,
    options: ReadOptions,
) -> int:
    index = int(one.partition.partition)
    value = place.everywhere if place.by_partition is None else place.by_partition[one.topic][index]
    assert value is not None
    if isinstance(place, AtTime):
        found = await find_time(session, snapshot, one, value, options)
        if found is not None:
            return found
        if which == "starting" and options.past_end is WhenTimeIsPastTheEnd.ERROR:
            raise ConfigError(
                f"{one.name} has no record of time {value} or later; write startingOffsetsByTimestampStrategy=latest to start"
                " at its end."
            )
        return one.end
    if value == EARLIEST:
        return one.start
    if value == LATEST:
        return one.end
    if value > one.end:
        beyond = "" if options.tail else " in the store; what brokers hold above it is read with the option 'tail'"
        raise ConfigError(f"Offset {value} is past the end of {one.name}, which has [{one.start}, {one.end}){beyond}.")
    return value


async def find_time(
    session: StoreSession, snapshot: Snapshot, one: TopicPartitionState, timestamp_ms: int, options: ReadOptions
) -> int | None:
    """Offset of the first record whose timestamp is not below ``timestamp_ms``; None if there is none.

    One footer and one chunk are read for it. Raises: CorruptionError, StorageUnavailable, BrokerUnavailable.
    """
    entry = one.state.find_timestamp(timestamp_ms)
    while entry is not None:
        footer = await read_footer(session, snapshot, one.partition, entry)
        key = entry.object_key(*one.partition)
        for chunk in footer.chunks:
            if chunk.max_timestamp < timestamp_ms:
                continue
            with planned_read(key):
                stored = await session.store.get_range(key, chunk.position, chunk.position + chunk.stored_bytes)
                check_stored_chunk(stored, chunk, key)
                raw = memoryview(unfold_chunk(stored, chunk, key))
                for position, header in iter_headers(raw):
                    if header.max_timestamp < timestamp_ms or header.end_offset <= one.start:
                        continue
                    for record in iter_records(raw[position : position + header.size_bytes]):
                        if record.timestamp >= timestamp_ms and record.offset >= one.start:
                            return record.offset
        following = one.state.index_at(entry.end_offset)
        finished = one.state.finished
        entry = next((later for later in finished[following:] if later.max_timestamp >= timestamp_ms), None)
    if not options.tail:
        return None
    async with ClusterClient(options.tail, rng=random.Random(), client_id="firn-spark") as cluster:
        name = TopicPartition(one.topic, one.partition.partition)
        offset = (await cluster.list_offsets({name: timestamp_ms}))[name].offset
    return offset if 0 <= offset < one.end else None
