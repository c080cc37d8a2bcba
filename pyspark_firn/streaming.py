"""``readStream``: history first, as fast as the triggers allow, then new records as they become readable.

A position is the next offset of every partition, as JSON in Spark's checkpoint:

    {"version": 1, "topics": {"<name>": {"id": "<topic id>", "offsets": {"0": 1234}}}}

Between two positions the same records are read, however often and from wherever: records from a broker the first time may come
from the bucket the second time. Together with Spark's log of positions, this makes a checkpointed sink exactly-once.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from app.core.errors import ConfigError
from app.metadata.manifest.manifest_state import ManifestState
from pyspark_firn.batch import splits_of
from pyspark_firn.columns import column_names
from pyspark_firn.losses import Losses
from pyspark_firn.options import ReadOptions, has_registry, parse_read_options
from pyspark_firn.planning import PartitionRange, boundary_segments, segments_between
from pyspark_firn.session import StoreSession
from pyspark_firn.shadowing import Shipped
from pyspark_firn.snapshot import (
    Snapshot,
    TopicPartitionState,
    pass_over_expired,
    read_footer,
    resolve_ranges,
    take_snapshot,
)
from pyspark_firn.telling import plainly

POSITION_VERSION: Final = 1
UNKNOWN_BYTES_PER_OFFSET: Final = 1024
"""The assumed size of a record that only brokers hold: no manifest has its size."""


@dataclass(frozen=True, slots=True)
class TopicPosition:
    topic_id: uuid.UUID
    offsets: Mapping[int, int]


Position = Mapping[str, TopicPosition]


def encode_position(position: Position) -> dict[str, Any]:
    """As Spark keeps it."""
    return {
        "version": POSITION_VERSION,
        "topics": {
            name: {
                "id": str(topic.topic_id),
                "offsets": {str(index): offset for index, offset in sorted(topic.offsets.items())},
            }
            for name, topic in sorted(position.items())
        },
    }


def decode_position(stored: Mapping[str, Any]) -> Position:
    """Inverse of ``encode_position``. Raises: ConfigError for one of a later version, or of another source."""
    if "version" not in stored:
        raise ConfigError(
            "The checkpoint is of another source than Firn's: give the stream a checkpointLocation of its own, and say with"
            " startingOffsets where to go on."
        )
    if stored.get("version") != POSITION_VERSION:
        raise ConfigError(
            f"The checkpoint holds positions of version {stored.get('version')}; this reader knows {POSITION_VERSION}. Use the"
            " Firn that wrote it, or another checkpoint."
        )
    return {
        name: TopicPosition(
            uuid.UUID(topic["id"]), {int(index): int(offset) for index, offset in topic["offsets"].items()}
        )
        for name, topic in stored["topics"].items()
    }


def advance(state: ManifestState, start: int, end: int, *, bytes_max: float | None, records_max: float | None) -> int:
    """How far from ``start`` towards ``end`` a trigger may go; at least one offset. Pure.

    A segment that does not fit is cut where it is expected to fit if its records are of about the same size.
    """
    if bytes_max is None and records_max is None:
        return end
    at, bytes_left = start, bytes_max
    limit = end if records_max is None else min(end, start + max(1, int(records_max)))
    for entry in segments_between(state, start, limit):
        first, last = max(at, entry.base_offset), min(limit, entry.end_offset)
        if bytes_left is not None:
            bytes_per_offset = max(1.0, entry.raw_bytes / (entry.end_offset - entry.base_offset))
            fitting = int(bytes_left / bytes_per_offset)
            if fitting < last - first:
                return max(start + 1, first + fitting)
            bytes_left -= (last - first) * bytes_per_offset
        at = last
    if bytes_left is not None and at < limit:
        return max(start + 1, min(limit, at + int(bytes_left / UNKNOWN_BYTES_PER_OFFSET)))
    return limit


class FirnStreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one long-lived process beside the driver, reads in the tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._columns = column_names(schema, has_data=has_registry(given))
        self._session: StoreSession | None = None
        self._target: Position | None = None
        """The position where Trigger.AvailableNow stops."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}

    @functools.cached_property
    def _options(self) -> ReadOptions:
        """Parsed when Spark first asks for something: behind an error while a reader is made it shows one of its own
        (``reader`` unbound). Raises: ConfigError."""
        options = parse_read_options(self._given, streaming=True)
        if options.registry is None:
            return options
        from pyspark_firn.registry_values import with_reader

        return with_reader(options, self._schema)

    # --- positions --------------------------------------------------------------------------------------------------

    @plainly()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        session = self._open()
        snapshot = self._look(starts=True)
        ranges = session.run(resolve_ranges(session, snapshot, self._options))
        return encode_position(_position(snapshot, {one.partition: one.start for one in ranges}))

    @plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the next trigger ends.

        Raises: DataLoss (a topic is gone or another now, brokers end before the position; unless ``failOnDataLoss`` is false),
        CorruptionError, StorageUnavailable, BrokerUnavailable.
        """
        before = decode_position(start)
        snapshot = self._look(before)
        losses = Losses(fail=self._options.fail_on_data_loss)
        before = _without_deleted(before, snapshot, losses)
        available: list[tuple[TopicPartitionState, int, int]] = []
        for one in snapshot.partitions:
            at = _offset_of(before, one, default=one.start)
            if one.tail_end is not None and one.end < at:
                losses.report(_ends_before(one, at), at - one.end)
                at = one.end
            end = one.end
            if self._target is not None:
                end = min(end, _offset_of(self._target, one, default=at))
            available.append((one, at, max(at, end)))
        bytes_max, records_max = self._limits(limit)
        waiting = sum(end - at for _, at, end in available)
        ends = {}
        for one, at, end in available:
            # Each partition gets a share of the trigger in proportion to its waiting records, as with Spark's Kafka source.
            share = (end - at) / waiting if waiting else 0.0
            ends[one.partition] = (
                at
                if at == end
                else advance(
                    one.state,
                    at,
                    end,
                    bytes_max=None if bytes_max is None else bytes_max * share,
                    records_max=None if records_max is None else records_max * share,
                )
            )
        found = _position(snapshot, ends)
        # A topic that no longer matches keeps its place, so that positions never go back.
        return encode_position({**before, **found})

    @plainly()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        snapshot = self._look()
        return encode_position(_position(snapshot, {one.partition: one.end for one in snapshot.partitions}))

    @plainly()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        return ReadAllAvailable()

    @plainly()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        snapshot = self._look()
        self._target = _position(snapshot, {one.partition: one.end for one in snapshot.partitions})

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        match limit:
            case ReadAllAvailable():
                return None, None
            case ReadMaxBytes(max_bytes=max_bytes):
                return max_bytes, self._options.max_records_per_trigger
            case ReadMaxRows(max_rows=max_rows):
                return self._options.max_bytes_per_trigger, max_rows
            case _:
                return self._options.max_bytes_per_trigger, self._options.max_records_per_trigger

    # --- reading ----------------------------------------------------------------------------------------------------

    @plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits between two positions, the same records every time.

        Raises: DataLoss (unless ``failOnDataLoss`` is false), ConfigError, CorruptionError, StorageUnavailable, BrokerUnavailable.
        """
        session = self._open()
        before, after = decode_position(start), decode_position(end)
        snapshot = self._look(after)
        losses = Losses(fail=self._options.fail_on_data_loss)
        after = _without_deleted(after, snapshot, losses, since=before)
        ranges: list[PartitionRange] = []
        for one in snapshot.partitions:
            to = _offset_of(after, one, default=0)
            # A partition that the first position does not know is new since: all of it is to be read.
            at = pass_over_expired(one, min(_offset_of(before, one, default=0), to), to, losses)
            if to > one.end:
                if one.tail_end is None:
                    raise ConfigError(
                        f"{one.name} ends at offset {one.end}, yet the checkpoint has come to {to}: give the stream the brokers"
                        " it had with the option 'tail', or another checkpoint."
                    )
                losses.report(_ends_before(one, to), to - max(at, one.end))
                to = max(at, one.end)
            ranges.append(
                PartitionRange(
                    topic=one.topic, partition=one.partition, start=at, end=to, tiered_end=one.state.tiered_end
                )
            )
        for one, wanted in zip(snapshot.partitions, ranges, strict=True):
            for entry in boundary_segments(one.state, wanted.start, wanted.stored_end):
                session.run(read_footer(session, snapshot, one.partition, entry))
        return list(splits_of(snapshot, ranges, self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_firn.tasks import read_split

        with plainly():
            yield from read_split(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release: retention in the bucket does not depend on readers."""

    def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    # --- the bucket -------------------------------------------------------------------------------------------------

    def _open(self) -> StoreSession:
        if self._session is None:
            self._session = StoreSession(self._options.store, keeps_manifests=True).__enter__()
        return self._session

    def _look(self, position: Position = MappingProxyType({}), *, starts: bool = False) -> Snapshot:
        """The bucket as it is now. A named topic that is not there is a mistake when the stream starts; later it may have been
        deleted, which is told apart for those in ``position``."""
        session, options = self._open(), self._options
        may_be_gone: Collection[str] = position.keys()
        if not starts and not options.fail_on_data_loss:
            may_be_gone = options.subscription.names
        return session.run(take_snapshot(session, options, allow_none=True, may_be_gone=may_be_gone))


def _without_deleted(
    position: Position, snapshot: Snapshot, losses: Losses, *, since: Position | None = None
) -> Position:
    """The topics of a position that are still those they were. Raises: DataLoss if one is not.

    Records of a deleted topic from ``since`` up to the position are counted. The number beyond it is unknown.
    """
    kept: dict[str, TopicPosition] = {}
    for name, topic in position.items():
        now = snapshot.image.topic(name)
        if now is not None and now.topic_id == topic.topic_id:
            kept[name] = topic
            continue
        unread = None
        if since is not None:
            known = since[name].offsets if name in since else {}
            unread = sum(to - min(known.get(index, 0), to) for index, to in topic.offsets.items())
        why = (
            "the topic was deleted" if now is None else "the topic was deleted and made again, or the store is another"
        )
        losses.report(f"Records of topic {name!r} that the stream was still to read are gone: {why}", unread)
    return kept


def _ends_before(one: TopicPartitionState, at: int) -> str:
    return f"{one.name} ends at offset {one.end} on its brokers, yet the checkpoint has come to {at}: records were lost there"


def _position(snapshot: Snapshot, offsets: Mapping[Any, int]) -> dict[str, TopicPosition]:
    found: dict[str, TopicPosition] = {}
    for one in snapshot.partitions:
        before = found.get(one.topic, TopicPosition(one.partition.topic_id, {}))
        index = int(one.partition.partition)
        found[one.topic] = replace(before, offsets={**before.offsets, index: offsets[one.partition]})
    return found


def _offset_of(position: Position, one: TopicPartitionState, *, default: int) -> int:
    topic = position.get(one.topic)
    if topic is None or topic.topic_id != one.partition.topic_id:
        return default
    return topic.offsets.get(int(one.partition.partition), default)
