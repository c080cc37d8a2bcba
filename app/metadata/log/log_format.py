"""The bytes of a numbered log: entries and snapshots (docs/formats.md, "Numbered logs"). Pure.

An **entry** is one uncompressed Kafka v2 record batch. Its first record is the entry's header; the others are the change.
A **snapshot** is a run of zstd-compressed v2 record batches. Its first record is the snapshot's header, then come the newest
record of every live key. Every batch carries its own CRC-32C and is checked whenever it is read.

A record's key is a msgpack array whose first element is its *kind*. Kinds below ``APPLICATION_KIND_MIN`` belong to the log
itself. A value is a msgpack array whose first element is its *format version*. A null value deletes the key. Elements may be
appended to a value without a new version if older readers may ignore them; readers ignore unknown elements. A reader refuses a
greater version than its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from app.core.errors import CorruptionError, LimitExceeded, clause
from app.core.limits import LOG_ENTRY_BYTES_MAX
from app.core.turns import Steps, Stepwise
from app.core.units import NO_LEADER_EPOCH, LogSequence, TimestampMs
from app.records.batch import BatchHeader, check_stored_batch
from app.records.builder import RECORDS_AT_ONCE, build_batch, build_batch_in_steps
from app.records.compression import Codec
from app.records.record import iter_records

KIND_ENTRY_HEADER: Final = 0
KIND_SNAPSHOT_HEADER: Final = 1
KIND_WRITER: Final = 2
APPLICATION_KIND_MIN: Final = 16

SNAPSHOT_BATCH_BYTES: Final = 128 * 1024
"""Raw bytes of records in one batch of a snapshot: small enough that building it does not delay the event loop."""

RECORD_OVERHEAD_BYTES_MAX: Final = 32
"""Upper bound of the bytes that the batch format adds to a record's key and value."""

KeyValue = tuple[bytes, bytes | None]
"""An encoded record: key and value. The value None deletes the key."""


class Versioned(msgspec.Struct, array_like=True, frozen=True):
    """A record's value: an array of its fields, the format version first."""

    version: int


V = TypeVar("V", bound=Versioned)


class EntryHeader(Versioned, array_like=True, frozen=True):
    """Value of an entry's first record: its writer."""

    sequence: int
    writer_id: str
    nonce: bytes
    """16 bytes, unique to this entry. They distinguish our own earlier attempt from another writer's entry."""
    is_seal: bool
    epoch: int
    """The writer's epoch. A writer with a lower epoch than the newest seal's must not seal."""
    previous: bytes
    """Nonce of the previous entry; ``NO_NONCE`` for the first. It reveals a seal that was put on a deleted number."""


class Proof(Versioned, array_like=True, frozen=True):
    """Shows that a broker with a key has written an object of the cluster log (``log_proofs.py``)."""

    key_id: bytes
    mac: bytes
    introducing: bool
    """Whether the writer also took objects without a proof."""


class ProvenEntryHeader(EntryHeader, array_like=True, frozen=True):
    """The header of an entry that may have a proof. Readers without a key ignore it."""

    proof: Proof | None = None


class SnapshotHeader(Versioned, array_like=True, frozen=True):
    """Value of a snapshot's first record."""

    sequence: int
    """The snapshot covers entries [0, sequence]."""
    record_count: int
    """Number of records after this one."""
    deleted_end: int
    """Entries below it were already deleted, except seals."""
    seals: list[int]
    """Every seal in [deleted_end, sequence]."""
    snapshot_sequence: int
    """For a cached copy: the newest snapshot object known when the copy was made; -1 if none."""
    nonce: bytes
    """Nonce of entry ``sequence``."""


class ProvenSnapshotHeader(SnapshotHeader, array_like=True, frozen=True):
    """The header of a snapshot that may have a proof."""

    proof: Proof | None = None


class WriterRecord(Versioned, array_like=True, frozen=True):
    """Value of the current writer's record in snapshots. In entries, seals name the writer."""

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
    """The writer of the last seal."""

    writer_id: str
    epoch: int
    seal_sequence: LogSequence


NOTHING_APPLIED: Final = LogSequence(-1)
"""In place of the number of the last entry, for a log without entries."""

NONCE_BYTES: Final = 16

NO_NONCE: Final = bytes(NONCE_BYTES)
"""The previous nonce of the first entry."""

NO_WRITER: Final = Writer("", -1, NOTHING_APPLIED)
"""The writer of an empty log: no writer has sealed it yet."""


class SnapshotStart(NamedTuple):
    """The part of a snapshot before its records."""

    header: SnapshotHeader
    writer: Writer
    proof: Proof | None
    writer_value: bytes
    """The value of the writer's record."""


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for bytes that are not msgpack, or not of the requested type."""

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_peek = msgspec.msgpack.Decoder(list[Any])

HEADER_KEY: Final = _encoder.encode([KIND_ENTRY_HEADER])
SNAPSHOT_KEY: Final = _encoder.encode([KIND_SNAPSHOT_HEADER])
WRITER_KEY: Final = _encoder.encode([KIND_WRITER])


def encode_key(kind: int, *parts: object) -> bytes:
    """Encode a record key: its kind, then the parts of the name."""
    return _encoder.encode([kind, *parts])


def decode_key(key: bytes) -> list[Any]:
    """``[kind, *parts]`` of a record key. Raises: CorruptionError."""
    try:
        parts = _peek.decode(key)
    except _UNREADABLE as error:
        raise CorruptionError(f"The record key {key[:64]!r} cannot be read: {clause(error)}.") from None
    if not parts or type(parts[0]) is not int:
        raise CorruptionError(f"The record key {key[:64]!r} has no kind.")
    return parts


def encode_value(value: Versioned) -> bytes:
    """Encode a record value: the fields of a struct. The first field is ``version``."""
    return _encoder.encode(value)


class ValueDecoder(Generic[V]):
    """Decodes the values of one kind, up to the highest version that this code knows."""

    __slots__ = ("_decode", "_version_max", "_what")

    def __init__(self, struct: type[V], version_max: int, what: str) -> None:
        self._decode = msgspec.msgpack.Decoder(struct).decode
        self._version_max = version_max
        self._what = what

    def decode(self, data: bytes) -> V:
        """Decode a value. Raises: CorruptionError (a wrong value, or a newer format version)."""
        try:
            value = self._decode(data)
        except _UNREADABLE as error:
            self._refuse_future(data)
            raise CorruptionError(f"A {self._what} record cannot be read: {clause(error)}.") from None
        if not 1 <= value.version <= self._version_max:
            self._refuse_future(data)
            raise CorruptionError(f"A {self._what} record has the impossible format version {value.version}.")
        return value

    def _refuse_future(self, data: bytes) -> None:
        try:
            fields = _peek.decode(data)
        except _UNREADABLE:
            return
        if fields and type(fields[0]) is int and fields[0] > self._version_max:
            raise CorruptionError(
                f"A {self._what} record has format version {fields[0]}, a format version from the future: this software"
                f" knows up to {self._version_max}; upgrade it."
            )


_entry_headers = ValueDecoder(ProvenEntryHeader, 1, "entry header")
_snapshot_headers = ValueDecoder(ProvenSnapshotHeader, 1, "snapshot header")
_writers = ValueDecoder(WriterRecord, 1, "writer")


def _check_batch(view: memoryview, position: int) -> BatchHeader:
    """Check a batch, and the fields that its CRC does not cover. Here these fields have fixed values."""
    header = check_stored_batch(view, position)
    if header.base_offset != 0 or header.leader_epoch != NO_LEADER_EPOCH:
        raise CorruptionError(f"The record batch at position {position} has a base offset or a leader epoch.")
    return header


# --- entries --------------------------------------------------------------------------------------------------------


def encoded_bytes_max(records: Iterable[KeyValue]) -> int:
    """Upper bound of the bytes that ``records`` add to an entry."""
    return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES_MAX for key, value in records)


@Stepwise
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
    prove: Callable[[bytes], Proof | Steps[Proof | None] | None] | None = None,
) -> Steps[bytes]:
    """Encode one entry. A seal has no records. ``prove`` makes the proof of the entry, from the value of its header without one.

    Raises: LimitExceeded if it would be larger than ``LOG_ENTRY_BYTES_MAX``.
    """
    assert len(nonce) == len(previous) == NONCE_BYTES, (nonce, previous)
    assert not (is_seal and records), records
    header = EntryHeader(1, sequence, writer_id, nonce, is_seal, epoch, previous)
    made = None if prove is None else prove(encode_value(header))
    proof = (yield from made) if isinstance(made, Generator) else made
    if proof is not None:
        header = ProvenEntryHeader(1, sequence, writer_id, nonce, is_seal, epoch, previous, proof)
    batch = yield from build_batch_in_steps(
        [
            (timestamp_ms, HEADER_KEY, encode_value(header), ()),
            *[(timestamp_ms, key, value, ()) for key, value in records],
        ]
    )
    if len(batch) > LOG_ENTRY_BYTES_MAX:
        raise LimitExceeded(f"A log entry of {len(batch)} bytes would pass the limit of {LOG_ENTRY_BYTES_MAX}.")
    return batch


@Stepwise
def decode_entry(key: str, sequence: int, data: bytes) -> Steps[Entry]:
    """Check and decode an entry that was read from ``key``, but for its proof. Raises: as ``decode_proven``."""
    proven_entry = yield from decode_proven.steps(key, sequence, data)
    return proven_entry.entry


class ProvenEntry(NamedTuple):
    """An entry, with its proof and the header that the proof covers."""

    entry: Entry
    header: bytes
    """The value of its header, without the proof."""
    proof: Proof | None


@Stepwise
def decode_proven(key: str, sequence: int, data: bytes) -> Steps[ProvenEntry]:
    """Decode an entry that was read from ``key``. Its proof is not checked.

    Raises: CorruptionError naming the key: CRC, lengths, no header record, another number inside, a future version.
    """
    try:
        header = _check_batch(memoryview(data), 0)
        if header.size_bytes != len(data):
            raise CorruptionError(f"{len(data) - header.size_bytes} bytes follow its batch.")
        records = iter_records(data, max_bytes=LOG_ENTRY_BYTES_MAX)
        first = next(records, None)
        if first is None or first.key != HEADER_KEY or first.value is None:
            raise CorruptionError("Its first record is not an entry header.")
        entry = _entry_headers.decode(first.value)
        if entry.sequence != sequence:
            raise CorruptionError(f"It says inside that it is entry {entry.sequence}.")
        changes: list[KeyValue] = []
        for record in records:
            if record.key is None:
                raise CorruptionError("A record has no key.")
            changes.append((record.key, record.value))
            if not len(changes) % RECORDS_AT_ONCE:
                yield
        if entry.is_seal and changes:
            raise CorruptionError("It is a seal and has records.")
    except CorruptionError as error:
        raise CorruptionError(f"{key} is corrupt: {clause(error)}.") from None
    decoded = Entry(
        LogSequence(sequence),
        entry.writer_id,
        entry.nonce,
        entry.is_seal,
        entry.epoch,
        entry.previous,
        header.max_timestamp,
        tuple(changes),
    )
    if entry.proof is None:
        return ProvenEntry(decoded, first.value, None)
    bare = EntryHeader(1, sequence, entry.writer_id, entry.nonce, entry.is_seal, entry.epoch, entry.previous)
    return ProvenEntry(decoded, encode_value(bare), entry.proof)


# --- snapshots ------------------------------------------------------------------------------------------------------


def counted(header: SnapshotHeader, live: Mapping[bytes, bytes]) -> SnapshotHeader:
    """The header of a snapshot of ``live``."""
    return msgspec.structs.replace(header, record_count=len(live) + 1)


def proven(header: SnapshotHeader, proof: Proof) -> ProvenSnapshotHeader:
    """The header of a snapshot with its proof."""
    return ProvenSnapshotHeader(
        1,
        header.sequence,
        header.record_count,
        header.deleted_end,
        header.seals,
        header.snapshot_sequence,
        header.nonce,
        proof,
    )


def writer_value(writer: Writer) -> bytes:
    """The value of the writer's record in a snapshot."""
    return encode_value(WriterRecord(1, writer.writer_id, writer.epoch, writer.seal_sequence))


def iter_snapshot(
    header: SnapshotHeader, writer: Writer, live: Mapping[bytes, bytes], timestamp_ms: TimestampMs
) -> Iterator[bytes]:
    """Encode a snapshot, one batch at a time, so that the event loop can serve other work in between.

    ``live`` must not change while this runs; ``header.record_count`` is set here.
    """
    header = counted(header, live)
    pending = [
        (timestamp_ms, SNAPSHOT_KEY, encode_value(header), ()),
        (timestamp_ms, WRITER_KEY, writer_value(writer), ()),
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

    Iteration raises CorruptionError that names the key, also if the snapshot ends early. Then no part of it may be used.
    """

    def __init__(self, key: str, data: bytes | memoryview) -> None:
        self._key = key
        self._data = memoryview(data)
        self.start: SnapshotStart | None = None

    def __iter__(self) -> Iterator[list[tuple[bytes, bytes]]]:
        try:
            yield from self._batches()
        except CorruptionError as error:
            raise CorruptionError(f"{self._key} is corrupt: {clause(error)}.") from None

    def _batches(self) -> Iterator[list[tuple[bytes, bytes]]]:
        position, left = 0, -1
        while position < len(self._data):
            header = _check_batch(self._data, position)
            batch = self._data[position : position + header.size_bytes]
            records: list[tuple[bytes, bytes]] = []
            for record in iter_records(batch, max_bytes=2 * LOG_ENTRY_BYTES_MAX):
                if record.key is None or record.value is None:
                    raise CorruptionError("A record has no key or no value.")
                records.append((record.key, record.value))
            if position == 0:
                self.start = self._start(records)
                left = self.start.header.record_count - 1
                del records[:2]
            position += header.size_bytes
            left -= len(records)
            yield records
        if left != 0:
            raise CorruptionError(f"{left} of its records are missing." if self.start else "It is empty.")

    @staticmethod
    def _start(records: list[tuple[bytes, bytes]]) -> SnapshotStart:
        if len(records) < 2 or records[0][0] != SNAPSHOT_KEY or records[1][0] != WRITER_KEY:
            raise CorruptionError("It does not start with a snapshot header and its writer.")
        header = _snapshot_headers.decode(records[0][1])
        writer = _writers.decode(records[1][1])
        bare = SnapshotHeader(
            1,
            header.sequence,
            header.record_count,
            header.deleted_end,
            header.seals,
            header.snapshot_sequence,
            header.nonce,
        )
        named = Writer(writer.writer_id, writer.epoch, LogSequence(writer.seal_sequence))
        return SnapshotStart(bare, named, header.proof, records[1][1])
