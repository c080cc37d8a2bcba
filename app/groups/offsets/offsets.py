"""Committed offsets of the groups of one partition, and offsets of undecided transactions. Pure.

An offset that a transaction commits is **pending** until the transaction's marker. A commit marker makes it the committed
offset, unless a later commit outside a transaction exists. An abort marker drops it. A start must read a million offsets
quickly, so loaded values stay undecoded until they are requested. Before a request for all offsets of a large group, they are
decoded some at a time (``OffsetStore.decode_some``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final, NamedTuple

from app.coordinator.partition import RawRecord
from app.coordinator.records import GROUP_RECORDS, NUMBER, NUMBER_BYTES
from app.coordinator.schemas.classic_group import OffsetCommitKey
from app.core.errors import CorruptionError, clause
from app.core.units import NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, Offset, TimestampMs
from app.groups.offsets import sweeps

_OFFSET_PREFIXES: Final = (b"\0\1", b"\0\0")
"""First bytes of keys of committed offsets. Keys of Kafka before 0.9 have the second form."""

_KEY_NUMBER: Final = 1
_LENGTH: Final = Struct(">h")
_GROUP_START: Final = NUMBER_BYTES + _LENGTH.size
"""Position of the group id in a key."""
_PARTITION: Final = Struct(">i")
_PARTITION_BYTES: Final = _PARTITION.size
ALIKE_MAX: Final = 4096
"""Cached pairs of group and topic during a load: a megabyte."""
_VALUE: Final = 3
"""Version of written offsets, as in Kafka."""
_VALUE_HEAD: Final = Struct(">hqih")
"""Version, offset, leader epoch, length of the metadata."""
_EXPIRING: Final = 1
"""Version for an offset with a retention time from the client. Newer versions have no such field."""
_EXPIRING_HEAD: Final = Struct(">hqh")
_TIME: Final = Struct(">q")
_TIMES: Final = Struct(">qq")

_NAMELESS: Final = OffsetCommitKey()
_SWEEP_START: Final = _LENGTH.pack(len(sweeps.TOPIC))
"""First bytes after the group id in the key of a sweep. No other key has them."""


class CommittedOffset(NamedTuple):
    """A group's committed offset in a partition."""

    offset: Offset
    leader_epoch: int
    """Leader epoch of the previous record, if the client knew it; -1 if not."""
    metadata: str
    committed_ms: TimestampMs
    expires_ms: TimestampMs
    """Expiry time from the client (OffsetCommit up to version 4); -1 if the broker decides."""
    log_end: Offset
    """End of its record in the log. It decides between a transaction's commit and another commit."""


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of an offset's record."""
    return group_prefix(group_id) + offset_place(topic, partition)


def offset_keys(group_id: str, topic: str) -> Callable[[int], bytes]:
    """As ``offset_key``, of the partitions of one topic."""
    name = topic.encode()
    before = b"".join((group_prefix(group_id), _LENGTH.pack(len(name)), name))
    pack = _PARTITION.pack
    return lambda partition: before + pack(partition)


def group_prefix(group_id: str) -> bytes:
    """First bytes of the keys of a group's offsets."""
    group = group_id.encode()
    return b"".join((NUMBER.pack(_KEY_NUMBER), _LENGTH.pack(len(group)), group))


def offset_place(topic: str, partition: int) -> bytes:
    """The part of a key after the group id."""
    name = topic.encode()
    return b"".join((_LENGTH.pack(len(name)), name, _PARTITION.pack(partition)))


def offset_value(
    offset: int, leader_epoch: int, metadata: str, committed_ms: int, expires_ms: int = NO_TIMESTAMP
) -> bytes:
    """The value of an offset's record."""
    text = metadata.encode()
    if expires_ms == NO_TIMESTAMP:
        return _VALUE_HEAD.pack(_VALUE, offset, leader_epoch, len(text)) + text + _TIME.pack(committed_ms)
    return _EXPIRING_HEAD.pack(_EXPIRING, offset, len(text)) + text + _TIMES.pack(committed_ms, expires_ms)


def parse_offset_value(value: bytes, log_end: Offset) -> CommittedOffset:
    """Decode ``offset_value`` of any version. Raises: CorruptionError."""
    try:
        if value[:NUMBER_BYTES] == b"\0\3":
            _, offset, leader_epoch, length = _VALUE_HEAD.unpack_from(value)
            end = _VALUE_HEAD.size + length
            if length >= 0 and len(value) == end + _TIME.size:
                (committed_ms,) = _TIME.unpack_from(value, end)
                text = value[_VALUE_HEAD.size : end].decode()
                return CommittedOffset(offset, leader_epoch, text, committed_ms, NO_TIMESTAMP, log_end)
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptionError(f"A committed offset is not sound: {clause(error)}.") from error
    found = GROUP_RECORDS.decode_value(_NAMELESS, value)
    return CommittedOffset(
        Offset(found.offset),
        found.leader_epoch,
        found.metadata,
        TimestampMs(found.commit_timestamp),
        TimestampMs(found.expire_timestamp),
        log_end,
    )


Topics = dict[str, dict[int, CommittedOffset]]
"""Offsets by topic and partition."""

_NONE: Final[Mapping[str, Mapping[int, CommittedOffset]]] = {}
_NO_OFFSETS: Final[Mapping[int, CommittedOffset]] = {}


class _GroupOffsets:
    """The offsets of one group."""

    __slots__ = ("decoded", "pending", "raw")

    def __init__(self) -> None:
        self.decoded: Topics = {}
        """Decoded committed offsets."""
        self.raw: dict[bytes, bytes] = {}
        """Loaded, undecoded values, by the part of their keys after the group id. Newer than values in ``decoded``."""
        self.pending: dict[int, Topics] = {}
        """Pending offsets by producer id."""

    def decode(self, count_max: int) -> None:
        """Move some values from ``raw`` to ``decoded``. Raises: CorruptionError; a damaged value stays, so that it is not
        ignored."""
        raw = self.raw
        for _ in range(min(count_max, len(raw))):
            place, value = raw.popitem()
            try:
                topic, partition = _parse_place(place)
                offset = parse_offset_value(value, Offset(0))
            except CorruptionError:
                raw[place] = value
                raise
            self.decoded.setdefault(topic, {})[partition] = offset

    @property
    def topics(self) -> Topics:
        """All committed offsets. Raises: CorruptionError."""
        self.decode(len(self.raw))
        return self.decoded

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """One committed offset. No other value is decoded. Raises: CorruptionError."""
        value = self.raw.get(offset_place(topic, partition)) if self.raw else None
        if value is not None:
            self.decoded.setdefault(topic, {})[partition] = parse_offset_value(value, Offset(0))
            del self.raw[offset_place(topic, partition)]
        found = self.decoded.get(topic)
        return None if found is None else found.get(partition)

    def committed(self, topic: str, partition: int, offset: CommittedOffset) -> None:
        """Set a committed offset."""
        if self.raw:
            self.raw.pop(offset_place(topic, partition), None)
        found = self.decoded.get(topic)
        if found is None:
            self.decoded[topic] = {partition: offset}
        else:
            found[partition] = offset

    def places(self) -> Iterator[bytes]:
        """The key parts after the group id of all committed and pending offsets. Do not use it for a group that still changes."""
        yield from self.raw
        for topic, partitions in self.decoded.items():
            for partition in partitions:
                place = offset_place(topic, partition)
                if place not in self.raw:
                    yield place
        for topics in self.pending.values():
            for topic, partitions in topics.items():
                for partition in partitions:
                    place = offset_place(topic, partition)
                    if place not in self.raw and partition not in self.decoded.get(topic, ()):
                        yield place

    def written_by(self, producer_id: int) -> Topics:
        """The offsets of a producer's open transaction; without a producer the committed offsets."""
        return self.decoded if producer_id == NO_PRODUCER_ID else self.pending.get(producer_id, {})

    @property
    def is_blank(self) -> bool:
        """Whether the group has no state."""
        return not (self.raw or self.decoded or self.pending)

    @property
    def has_offsets(self) -> bool:
        """Whether an offset is committed or pending. A transaction whose offsets were deleted is remembered until it ends."""
        return bool(self.raw or self.decoded or any(self.pending.values()))


def _parse_place(place: bytes) -> tuple[str, int]:
    try:
        (length,) = _LENGTH.unpack_from(place)
        end = _LENGTH.size + length
        if length < 0 or len(place) != end + _PARTITION.size:
            raise CorruptionError("The key of a committed offset is not as long as it says.")
        return place[_LENGTH.size : end].decode(), _PARTITION.unpack_from(place, end)[0]
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptionError(f"The key of a committed offset is not sound: {clause(error)}.") from error


class OffsetStore:
    """The offsets of all groups of one partition."""

    __slots__ = ("_alike", "_groups", "_loading", "_new", "_open", "_unfinished", "newest_log_end", "next_sweep")

    def __init__(self) -> None:
        self._groups: dict[str, _GroupOffsets] = {}
        self._open: dict[int, set[str]] = {}
        """Groups with pending offsets, by producer id."""
        self._loading: dict[bytes, _GroupOffsets] = {}
        self._new: list[str] = []
        self._alike: dict[bytes, tuple[dict[bytes, bytes], int]] = {}
        """During a load, by the first bytes of a key up to the partition: the target of such values, and the end of the group
        id in the key. Only for groups without open transactions."""
        self._unfinished: dict[str, dict[int, dict[bytes, None]]] = {}
        """Unfinished deletions by group and number of the sweep: offsets without tombstones."""
        self.next_sweep = 0
        """An unused number for a sweep."""
        self.newest_log_end = Offset(0)
        """End of the newest offset's record in the log."""

    # --- loading ----------------------------------------------------------------------------------------------------

    def load(self, records: Iterable[RawRecord], producer_id: int, log_end: Offset) -> list[RawRecord]:
        """Load the offsets among records of the log. Returns: the other records. Raises: CorruptionError."""
        others: list[RawRecord] = []
        self.newest_log_end = log_end
        loading = self._loading
        outside = producer_id == NO_PRODUCER_ID
        alike = self._alike
        if not outside:
            alike.clear()
        for record in records:
            key, value = record
            known = alike.get(key[:-_PARTITION_BYTES])
            if known is not None and value is not None:
                raw, end = known
                raw[key[end:]] = value
                continue
            if key[:NUMBER_BYTES] not in _OFFSET_PREFIXES:
                others.append(record)
                continue
            try:
                end = _GROUP_START + (key[2] << 8 | key[3])
            except IndexError:
                raise CorruptionError("The key of a committed offset ends early.") from None
            group = loading.get(key[_GROUP_START:end])
            if group is None:
                group = self._begin_loading(key[_GROUP_START:end])
            if key.startswith(_SWEEP_START, end):
                self._load_sweep(key[_GROUP_START:end], key[end:], value)
                continue
            if outside and not group.pending and (value is not None or not group.decoded):
                if value is not None:
                    group.raw[key[end:]] = value
                    if end <= len(key) - _PARTITION_BYTES and len(alike) < ALIKE_MAX:
                        alike[key[:-_PARTITION_BYTES]] = group.raw, end
                else:
                    group.raw.pop(key[end:], None)
            else:
                self._load_decoded(key[_GROUP_START:end].decode(), key[end:], value, producer_id, log_end)
            if value is None and self._unfinished:
                for unwritten in self._unfinished.get(key[_GROUP_START:end].decode(), {}).values():
                    unwritten.pop(key[end:], None)
        return others

    def take_new(self) -> list[str]:
        """Groups whose first offset was loaded since the last call."""
        new, self._new = self._new, []
        return new

    def _begin_loading(self, raw_id: bytes) -> _GroupOffsets:
        try:
            group_id = raw_id.decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"A group's id is not UTF-8: {clause(error)}.") from error
        group = self._loading[raw_id] = self._groups.setdefault(group_id, _GroupOffsets())
        self._new.append(group_id)
        return group

    def _load_decoded(
        self, group_id: str, place: bytes, value: bytes | None, producer_id: int, log_end: Offset
    ) -> None:
        topic, partition = _parse_place(place)
        if value is None:
            self.delete(group_id, topic, partition)
        else:
            self.put(group_id, topic, partition, parse_offset_value(value, log_end), producer_id)

    def _load_sweep(self, raw_id: bytes, place: bytes, value: bytes | None) -> None:
        """Load a sweep: offsets were deleted, or all their tombstones were written. Raises: CorruptionError."""
        group_id = raw_id.decode()
        _, number = _parse_place(place)
        self.next_sweep = max(self.next_sweep, number + 1)
        if value is None:
            self._unfinished.get(group_id, {}).pop(number, None)
            return
        named = sweeps.parse_sweep(value)
        if named is None:
            self._alike.clear()
            places = dict.fromkeys(self.detach(group_id))
            self._loading[raw_id] = self._groups.setdefault(group_id, _GroupOffsets())
        else:
            places = {}
            for topic, partitions in named:
                for partition in partitions:
                    places[offset_place(topic, partition)] = None
                    self.delete(group_id, topic, partition)
        self._unfinished.setdefault(group_id, {})[number] = places

    def take_unfinished(self) -> list[tuple[str, Iterable[bytes], Sequence[int]]]:
        """By group: the key parts of deleted offsets without tombstones, and the numbers of their sweeps."""
        unfinished, self._unfinished = self._unfinished, {}
        return [
            (group_id, dict.fromkeys(chain.from_iterable(by_number.values())), tuple(by_number))
            for group_id, by_number in unfinished.items()
            if by_number
        ]

    def finish_loading(self) -> None:
        """Forget groups without state. Raises: nothing."""
        self._loading, self._alike = {}, {}
        for group_id in [group_id for group_id, group in self._groups.items() if group.is_blank]:
            del self._groups[group_id]

    # --- changing ---------------------------------------------------------------------------------------------------

    def put(
        self, group_id: str, topic: str, partition: int, committed: CommittedOffset, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Note a committed offset, or a pending one of the open transaction of ``producer_id``."""
        self.newest_log_end = max(self.newest_log_end, committed.log_end)
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = _GroupOffsets()
        if producer_id == NO_PRODUCER_ID:
            group.committed(topic, partition, committed)
        else:
            group.pending.setdefault(producer_id, {}).setdefault(topic, {})[partition] = committed
            self._open.setdefault(producer_id, set()).add(group_id)

    def put_all(
        self, group_id: str, topic: str, offsets: Iterable[tuple[int, CommittedOffset]], producer_id: int
    ) -> None:
        """As ``put``, for several partitions of one topic whose offsets are in one batch."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = _GroupOffsets()
        committed: CommittedOffset | None = None
        if producer_id == NO_PRODUCER_ID:
            if group.raw:
                for partition, committed in offsets:
                    group.committed(topic, partition, committed)
            else:
                decoded = group.decoded.setdefault(topic, {})
                for partition, committed in offsets:
                    decoded[partition] = committed
        else:
            pending = group.pending.setdefault(producer_id, {}).setdefault(topic, {})
            for partition, committed in offsets:
                pending[partition] = committed
            self._open.setdefault(producer_id, set()).add(group_id)
        assert committed is not None
        self.newest_log_end = max(self.newest_log_end, committed.log_end)

    def delete(self, group_id: str, topic: str, partition: int) -> None:
        """Note a tombstone: it removes the committed and the pending offset."""
        group = self._groups.get(group_id)
        if group is None:
            return
        if group.raw:
            group.raw.pop(offset_place(topic, partition), None)
        for topics in (group.decoded, *group.pending.values()):
            partitions = topics.get(topic)
            if partitions is not None:
                partitions.pop(partition, None)
                if not partitions:
                    del topics[topic]
        if group.is_blank and not self._loading:
            del self._groups[group_id]

    def places(self, group_id: str) -> Iterator[bytes]:
        """The key parts after the group id of all committed and pending offsets. Do not continue the iteration after a change.
        Raises: nothing."""
        group = self._groups.get(group_id)
        return iter(()) if group is None else group.places()

    def detach(self, group_id: str) -> Iterator[bytes]:
        """Forget all committed and pending offsets of a group. Returns: its ``places``, for tombstones. Open transactions of
        the group continue, and commit the offsets that they write from now on. Raises: nothing.
        """
        group = self._groups.pop(group_id, None)
        if group is None:
            return iter(())
        if group.pending:
            self._groups[group_id] = rest = _GroupOffsets()
            rest.pending = {producer_id: {} for producer_id in group.pending}
        return group.places()

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker of a producer's transaction. Does nothing if the transaction has no offsets here."""
        for group_id in self._open.pop(producer_id, ()):
            group = self._groups[group_id]
            pending = group.pending.pop(producer_id)
            if commit:
                for topic, partitions in pending.items():
                    for partition, offset in partitions.items():
                        known = group.get(topic, partition)
                        if known is None or known.log_end < offset.log_end:
                            group.committed(topic, partition, offset)
            if group.is_blank and not self._loading:
                del self._groups[group_id]

    # --- asking -----------------------------------------------------------------------------------------------------

    def topics(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """The committed offsets of a group, by topic and partition. Do not keep or change the mapping. Raises: CorruptionError."""
        group = self._groups.get(group_id)
        return _NONE if group is None else group.topics

    def decode_some(self, group_id: str, count_max: int) -> bool:
        """Decode some loaded values of a group. Returns: whether all are decoded. Raises: CorruptionError."""
        group = self._groups.get(group_id)
        if group is None:
            return True
        group.decode(count_max)
        return not group.raw

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """One committed offset of a group. Raises: CorruptionError."""
        group = self._groups.get(group_id)
        return None if group is None else group.get(topic, partition)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction commits an offset of the partition."""
        group = self._groups.get(group_id)
        return (
            group is not None
            and bool(group.pending)
            and any(partition in topics.get(topic, ()) for topics in group.pending.values())
        )

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction commits any offset of the group."""
        group = self._groups.get(group_id)
        return group is not None and any(group.pending.values())

    def __contains__(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.has_offsets

    def group_ids(self) -> list[str]:
        """Groups with offsets, committed or pending."""
        return [group_id for group_id, group in self._groups.items() if group.has_offsets]

    def those_there(self, group_id: str, topic: str, partitions: Iterable[int]) -> set[int]:
        """Partitions with a committed or pending offset."""
        group = self._groups.get(group_id)
        if group is None:
            return set()
        asked = set(partitions)
        there = {partition for partition in asked if group.raw and offset_place(topic, partition) in group.raw}
        for topics in (group.decoded, *group.pending.values()):
            there.update(asked & topics.get(topic, {}).keys())
        return there

    def look_at(self, group_id: str, place: bytes) -> tuple[bool, bool]:
        """Whether an offset is committed, and whether one is pending, for the key part after the group id."""
        group = self._groups.get(group_id)
        if group is None:
            return False, False
        try:
            topic, partition = _parse_place(place)
        except CorruptionError:
            return place in group.raw, False  # no commit names such a place
        return (
            place in group.raw or partition in group.decoded.get(topic, ()),
            any(partition in topics.get(topic, ()) for topics in group.pending.values()),
        )

    def committed_places(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Topic and partition of all decoded committed offsets. The iteration may be interrupted and continued: offsets that
        change meanwhile may be included or not. Raises: nothing."""
        group = self._groups.get(group_id)
        if group is not None:
            for topic in tuple(group.decoded):
                for partition in tuple(group.decoded.get(topic, ())):
                    yield topic, partition

    def places_of(self, group_id: str, names: Collection[str]) -> Iterator[tuple[str, int, Offset]]:
        """Topic, partition and log end of committed and pending offsets of some topics, maybe more than once. Undecoded values
        are not decoded, and are included for all topics. The iteration may be interrupted and continued: each item is correct
        when it is yielded. Raises: CorruptionError."""
        group = self._groups.get(group_id)
        if group is None:
            return
        for place in tuple(group.raw):
            if place in group.raw:
                yield (*_parse_place(place), Offset(0))
        # Pending offsets may be committed meanwhile, and are then met there.
        for producer_id in (*group.pending, NO_PRODUCER_ID):
            for name in names:
                for partition in tuple(group.written_by(producer_id).get(name, ())):
                    committed = group.written_by(producer_id).get(name, {}).get(partition)
                    if committed is not None:
                        yield name, partition, committed.log_end

    def in_topics(self, group_id: str, topics: Collection[str]) -> Iterator[tuple[str, int, Offset] | None]:
        """Topic, partition and offset of the committed offsets of a group in some topics; None for each loaded value that was
        looked at besides, and for a damaged one.

        Loaded values are not kept decoded. The iteration may be interrupted and continued: offsets that change meanwhile may be
        missing. Raises: nothing.
        """
        group = self._groups.get(group_id)
        if group is None:
            return
        if group.raw:
            places = {offset_place(topic, 0)[:-_PARTITION_BYTES] for topic in topics}
            for place in tuple(group.raw):
                value = group.raw.get(place)
                if value is None or place[:-_PARTITION_BYTES] not in places:
                    yield None
                    continue
                try:
                    yield (*_parse_place(place), parse_offset_value(value, Offset(0)).offset)
                except CorruptionError:
                    yield None
        for topic in topics if len(topics) < len(group.decoded) else tuple(group.decoded):
            if topic not in topics:
                continue
            for partition, committed in tuple(group.decoded.get(topic, _NO_OFFSETS).items()):
                if not group.raw or offset_place(topic, partition) not in group.raw:
                    yield topic, partition, committed.offset

    def walk(self, group_id: str, count_max: int) -> Iterator[tuple[str, int, CommittedOffset] | None]:
        """Topic, partition and offset of at most ``count_max`` committed offsets of a group; None for a damaged one.

        Decoded values are not kept, and offsets that change meanwhile may be missing.
        """
        group = self._groups.get(group_id)
        if group is None:
            return
        raw = dict(islice(group.raw.items(), count_max))
        rest = count_max - len(raw)
        places = ((topic, partition) for topic, found in group.decoded.items() for partition in found)
        decoded = list(islice(places, rest))
        for place, value in raw.items():
            try:
                yield (*_parse_place(place), parse_offset_value(value, Offset(0)))
            except CorruptionError:
                yield None
        for topic, partition in decoded:
            offset = group.decoded.get(topic, {}).get(partition)
            if offset is not None and (not raw or offset_place(topic, partition) not in raw):
                yield topic, partition, offset

    @property
    def total(self) -> int:
        """Number of committed and pending offsets of all groups."""
        return sum(map(self.count, self._groups))

    def count(self, group_id: str) -> int:
        """Number of committed and pending offsets of a group."""
        group = self._groups.get(group_id)
        if group is None:
            return 0
        decoded = (partitions for topics in (group.decoded, *group.pending.values()) for partitions in topics.values())
        return len(group.raw) + sum(map(len, decoded))


NO_COMMITTED_OFFSET: Final = CommittedOffset(NO_OFFSET, -1, "", NO_TIMESTAMP, NO_TIMESTAMP, NO_OFFSET)
"""The result if nothing is committed."""
