"""The bytes of a numbered log: entries and snapshots (docs/formats.md, "Numbered logs"). Pure.

An **entry** is one uncompressed Kafka v2 record batch. Its first record is the entry's header; the others are the change.
A **snapshot** is a run of zstd-compressed v2 record batches. Its first record is the snapshot's header, then come the newest
record of every live key. Every batch carries its own CRC-32C and is checked whenever it is read.

A record's key is a msgpack array whose first element is its *kind*; kinds below ``APPLICATION_KIND_MIN`` belong to the log
itself. A value is a msgpack array whose first element is its *format version*; null says that the key is gone. Elements may
be appended to a value without a new version, if older readers may ignore them; readers ignore what they do not know. A
version that is greater than the reader's is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from app.errors import CorruptionError, LimitExceeded
from app.limits import LOG_ENTRY_BYTES_MAX
from app.records.batch import BatchHeader, check_stored_batch
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.record import iter_records
from app.units import NO_LEADER_EPOCH, LogSequence, TimestampMs

KIND_ENTRY_HEADER: Final = 0
KIND_SNAPSHOT_HEADER: Final = 1
KIND_WRITER: Final = 2
APPLICATION_KIND_MIN: Final = 16

SNAPSHOT_BATCH_BYTES: Final = 128 * 1024
"""Raw bytes of records in one batch of a snapshot: small enough to be built without holding up the event loop."""

RECORD_OVERHEAD_BYTES_MAX: Final = 32
"""Upper bound of what the batch format adds to a record's key and value."""

KeyValue = tuple[bytes, bytes | None]
"""An encoded record: key, and value or None for "gone"."""


class Versioned(msgspec.Struct, array_like=True, frozen=True):
    """A record's value: an array of its fields, the format version first."""

    version: int


V = TypeVar("V", bound=Versioned)


class EntryHeader(Versioned, array_like=True, frozen=True):
    """Value of an entry's first record: who wrote it."""

    sequence: int
    writer_id: str
    nonce: bytes
    """16 bytes, made once for this entry: tells our own earlier attempt from another writer's."""
    is_seal: bool
    epoch: int
    """Of the writer: a writer with a lower one than the newest seal's must not seal any more."""
    previous: bytes
    """Nonce of the entry before; ``NO_NONCE`` for the first. A seal that was put on a deleted number is told by it."""


class SnapshotHeader(Versioned, array_like=True, frozen=True):
    """Value of a snapshot's first record."""

    sequence: int
    """Entries [0, sequence] are in it."""
    record_count: int
    """Records after this one."""
    deleted_end: int
    """Entries below it were deleted already, seals excepted."""
    seals: list[int]
    """Every seal in [deleted_end, sequence]."""
    snapshot_sequence: int
    """For a cached copy: the newest snapshot object known when it was made; -1 if none."""
    nonce: bytes
    """Of entry ``sequence``."""


class WriterRecord(Versioned, array_like=True, frozen=True):
    """Value of the keyed record of the current writer, in snapshots; entries say it by their seals."""

    writer_id: str
    epoch: int
    seal_sequence: int


class Entry(NamedTuple):
    """A decoded entry."""

    sequence: LogSequence
    writer_id: str
    nonce: bytes
    is_seal: bool
    epoch: int
    previous: bytes
    timestamp_ms: TimestampMs
    records: tuple[KeyValue, ...]


class Writer(NamedTuple):
    """Who sealed last."""

    writer_id: str
    epoch: int
    seal_sequence: LogSequence


NOTHING_APPLIED: Final = LogSequence(-1)
"""Where the number of the last entry stands, for a log without entries."""

NONCE_BYTES: Final = 16

NO_NONCE: Final = bytes(NONCE_BYTES)
"""What the first entry follows."""

NO_WRITER: Final = Writer("", -1, NOTHING_APPLIED)
"""Nobody has sealed yet: the log is empty."""


class SnapshotStart(NamedTuple):
    """What a snapshot says before its records."""

    header: SnapshotHeader
    writer: Writer


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not msgpack, or not of the type asked for."""

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_peek = msgspec.msgpack.Decoder(list[Any])

HEADER_KEY: Final = _encoder.encode([KIND_ENTRY_HEADER])
SNAPSHOT_KEY: Final = _encoder.encode([KIND_SNAPSHOT_HEADER])
WRITER_KEY: Final = _encoder.encode([KIND_WRITER])


def encode_key(kind: int, *parts: object) -> bytes:
    """A record key: its kind, then what names the thing."""
    return _encoder.encode([kind, *parts])


def decode_key(key: bytes) -> list[Any]:
    """``[kind, *parts]`` of a record key. Raises: CorruptionError."""
    try:
        parts = _peek.decode(key)
    except _UNREADABLE as error:
        raise CorruptionError(f"the record key {key[:64]!r} cannot be read: {error}") from None
    if not parts or type(parts[0]) is not int:
        raise CorruptionError(f"the record key {key[:64]!r} has no kind")
    return parts


def encode_value(value: Versioned) -> bytes:
    """A record value: the fields of a struct whose first is ``version``."""
    return _encoder.encode(value)


class ValueDecoder(Generic[V]):
    """Decodes the values of one kind up to the version that this code knows."""

    __slots__ = ("_decode", "_version_max", "_what")

    def __init__(self, struct: type[V], version_max: int, what: str) -> None:
        self._decode = msgspec.msgpack.Decoder(struct).decode
        self._version_max = version_max
        self._what = what

    def decode(self, data: bytes) -> V:
        """The struct. Raises: CorruptionError (not such a value, or a format version from the future)."""
        try:
            value = self._decode(data)
        except _UNREADABLE as error:
            self._refuse_future(data)
            raise CorruptionError(f"a {self._what} record cannot be read: {error}") from None
        if not 1 <= value.version <= self._version_max:
            self._refuse_future(data)
            raise CorruptionError(f"a {self._what} record has the impossible format version {value.version}")
        return value

    def _refuse_future(self, data: bytes) -> None:
        try:
            fields = _peek.decode(data)
        except _UNREADABLE:
            return
        if fields and type(fields[0]) is int and fields[0] > self._version_max:
            raise CorruptionError(
                f"a {self._what} record has format version {fields[0]}, a format version from the future: this software"
                f" knows up to {self._version_max}; upgrade it"
            )


_entry_headers = ValueDecoder(EntryHeader, 1, "entry header")
_snapshot_headers = ValueDecoder(SnapshotHeader, 1, "snapshot header")
_writers = ValueDecoder(WriterRecord, 1, "writer")


def _check_batch(view: memoryview, position: int) -> BatchHeader:
    """Check a batch together with the fields that its CRC leaves out: here they never have another value."""
    header = check_stored_batch(view, position)
    if header.base_offset != 0 or header.leader_epoch != NO_LEADER_EPOCH:
        raise CorruptionError(f"the record batch at position {position} has a base offset or a leader epoch")
    return header


# --- entries --------------------------------------------------------------------------------------------------------


def encoded_bytes_max(records: Iterable[KeyValue]) -> int:
    """Upper bound of what ``records`` add to an entry."""
    return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES_MAX for key, value in records)


def encode_entry(
    sequence: int,
    records: Sequence[KeyValue],
    *,
    writer_id: str,
    nonce: bytes,
    is_seal: bool,
    epoch: int,
    previous: bytes,
    timestamp_ms: TimestampMs,
) -> bytes:
    """The bytes of one entry. A seal has no records.

    Raises: LimitExceeded if it would be larger than ``LOG_ENTRY_BYTES_MAX``.
    """
    assert len(nonce) == len(previous) == NONCE_BYTES, (nonce, previous)
    assert not (is_seal and records), records
    header = EntryHeader(1, sequence, writer_id, nonce, is_seal, epoch, previous)
    batch = build_batch(
        [
            (timestamp_ms, HEADER_KEY, encode_value(header), ()),
            *((timestamp_ms, key, value, ()) for key, value in records),
        ]
    )
    if len(batch) > LOG_ENTRY_BYTES_MAX:
        raise LimitExceeded(f"a log entry of {len(batch)} bytes would pass the limit of {LOG_ENTRY_BYTES_MAX}")
    return batch


def decode_entry(key: str, sequence: int, data: bytes) -> Entry:
    """Check and decode an entry that was read from ``key``.

    Raises: CorruptionError naming the key: CRC, lengths, no header record, another number inside, a future version.
    """
    try:
        header = _check_batch(memoryview(data), 0)
        if header.size_bytes != len(data):
            raise CorruptionError(f"{len(data) - header.size_bytes} bytes follow its batch")
        records = iter_records(data, max_bytes=LOG_ENTRY_BYTES_MAX)
        first = next(records, None)
        if first is None or first.key != HEADER_KEY or first.value is None:
            raise CorruptionError("its first record is not an entry header")
        entry = _entry_headers.decode(first.value)
        if entry.sequence != sequence:
            raise CorruptionError(f"it says inside that it is entry {entry.sequence}")
        changes: list[KeyValue] = []
        for record in records:
            if record.key is None:
                raise CorruptionError("a record has no key")
            changes.append((record.key, record.value))
        if entry.is_seal and changes:
            raise CorruptionError("it is a seal and has records")
    except CorruptionError as error:
        raise CorruptionError(f"{key} is corrupt: {error}") from None
    return Entry(
        LogSequence(sequence),
        entry.writer_id,
        entry.nonce,
        entry.is_seal,
        entry.epoch,
        entry.previous,
        header.max_timestamp,
        tuple(changes),
    )


# --- snapshots ------------------------------------------------------------------------------------------------------


def iter_snapshot(
    header: SnapshotHeader, writer: Writer, live: Mapping[bytes, bytes], timestamp_ms: TimestampMs
) -> Iterator[bytes]:
    """The batches of a snapshot, one at a time, so that a caller may let the event loop turn in between.

    ``live`` must not change while this runs; ``header.record_count`` is set here.
    """
    header = msgspec.structs.replace(header, record_count=len(live) + 1)
    record = WriterRecord(1, writer.writer_id, writer.epoch, writer.seal_sequence)
    pending = [
        (timestamp_ms, SNAPSHOT_KEY, encode_value(header), ()),
        (timestamp_ms, WRITER_KEY, encode_value(record), ()),
    ]
    size_bytes = 0
    for key, value in live.items():
        pending.append((timestamp_ms, key, value, ()))
        size_bytes += len(key) + len(value)
        if size_bytes >= SNAPSHOT_BATCH_BYTES:
            yield build_batch(pending, codec=Codec.ZSTD)
            pending, size_bytes = [], 0
    if pending:
        yield build_batch(pending, codec=Codec.ZSTD)


class SnapshotReader:
    """Decodes a snapshot batch by batch: iterate, then read ``start``. ``key`` names the object in errors.

    Iterating raises CorruptionError naming the key, also where the snapshot ends early: nothing of it may be used then.
    """

    def __init__(self, key: str, data: bytes | memoryview) -> None:
        self._key = key
        self._data = memoryview(data)
        self.start: SnapshotStart | None = None

    def __iter__(self) -> Iterator[list[tuple[bytes, bytes]]]:
        try:
            yield from self._batches()
        except CorruptionError as error:
            raise CorruptionError(f"{self._key} is corrupt: {error}") from None

    def _batches(self) -> Iterator[list[tuple[bytes, bytes]]]:
        position, left = 0, -1
        while position < len(self._data):
            header = _check_batch(self._data, position)
            batch = self._data[position : position + header.size_bytes]
            records: list[tuple[bytes, bytes]] = []
            for record in iter_records(batch, max_bytes=2 * LOG_ENTRY_BYTES_MAX):
                if record.key is None or record.value is None:
                    raise CorruptionError("a record has no key or no value")
                records.append((record.key, record.value))
            if position == 0:
                self.start = self._start(records)
                left = self.start.header.record_count - 1
                del records[:2]
            position += header.size_bytes
            left -= len(records)
            yield records
        if left != 0:
            raise CorruptionError(f"{left} of its records are missing" if self.start else "it is empty")

    @staticmethod
    def _start(records: list[tuple[bytes, bytes]]) -> SnapshotStart:
        if len(records) < 2 or records[0][0] != SNAPSHOT_KEY or records[1][0] != WRITER_KEY:
            raise CorruptionError("it does not start with a snapshot header and its writer")
        header = _snapshot_headers.decode(records[0][1])
        writer = _writers.decode(records[1][1])
        return SnapshotStart(header, Writer(writer.writer_id, writer.epoch, LogSequence(writer.seal_sequence)))
