"""The v2 record batch header (KIP-98, KIP-32): parse, check and patch, per batch, never per record.

All numbers are big endian. The CRC-32C covers everything from ``attributes`` to the end of the batch, so the base
offset, the length, the leader epoch and the magic can be patched without touching it.

    0  base offset        int64      43  producer id            int64
    8  batch length       int32      51  producer epoch         int16
   12  leader epoch       int32      53  base sequence          int32
   16  magic              int8       57  record count           int32
   17  CRC-32C            uint32     61  records …
   21  attributes         int16
   23  last offset delta  int32
   27  base timestamp     int64
   35  max timestamp      int64
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from app.core.errors import CorruptionError, ErrorCode, ProtocolError, RequestRejected, clause
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.framing import framing_fault, is_readable

HEADER: Final = Struct(">qiibIhiqqqhii")
_unpack_header: Final = HEADER.unpack_from
HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and batch length: ``batch_length`` does not count these bytes."""
CRC_START: Final = 21
"""First byte that the CRC covers."""
MAGIC_V2: Final = 2

assert HEADER.size == HEADER_BYTES

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
HAS_DELETE_HORIZON: Final = 0x40

_CODEC_MAX: Final = 4
_PRODUCED_ATTRIBUTES: Final = frozenset(codec | bit for codec in range(_CODEC_MAX + 1) for bit in (0, TRANSACTIONAL))
"""The attributes that a client may set."""
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
"""Smallest value of the length field."""
BATCH_LENGTH_POSITION: Final = 8
_MAGIC_POSITION: Final = 16
_CRC_POSITION: Final = 17
ATTRIBUTES_LOW_BYTE: Final = 22
"""The byte of the attributes that has all bits in use."""
TIMESTAMPS_POSITION: Final = 27
PRODUCER_POSITION: Final = 43
SEQUENCE_POSITION: Final = 53
PLACE: Final = Struct(">qii")
"""The first fields of a batch: base offset, batch length, leader epoch. The CRC covers none of them."""
TIMESTAMPS: Final = Struct(">qq")
"""The base timestamp and the greatest timestamp, at ``TIMESTAMPS_POSITION``."""
_RECORD_BYTES_MIN: Final = 7
"""A record's length, attributes, two deltas, two null lengths and header count, of a byte each."""
_RECORDS_MAX: Final = DECOMPRESSED_BATCH_BYTES_MAX // _RECORD_BYTES_MIN
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")


HeaderFields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A ``BatchHeader`` before it has names, which cost more than all checks of it."""


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order."""

    base_offset: Offset
    batch_length: int
    """Bytes after the length field itself."""
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def end_offset(self) -> Offset:
        """One past the offset of the last record."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp says when compaction may drop the batch's tombstones, or its marker (KIP-534)."""
        return bool(self.attributes & HAS_DELETE_HORIZON)


_new_header: Final[Callable[[type[BatchHeader], HeaderFields], BatchHeader]] = tuple.__new__
"""Creates a ``BatchHeader`` at a third of the cost of its ``_make``."""


def parse_header(view: memoryview | bytes | bytearray, position: int = 0) -> BatchHeader:
    """Read the header at ``position``; at least ``HEADER_BYTES`` must be there. Nothing is checked."""
    return BatchHeader._make(HEADER.unpack_from(view, position))


def iter_headers(view: memoryview | bytes | bytearray) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch of bytes that were verified once; a partial last one is left out.

    Raises: CorruptionError where a disk has made a length of it that no batch has.
    """
    position, end = 0, len(view)
    while position + HEADER_BYTES <= end:
        header = parse_header(view, position)
        if header.size_bytes < HEADER_BYTES:
            raise CorruptionError(f"The record batch at {position} says that it has {header.size_bytes} bytes.")
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


# --- checks: bytes of a peer ----------------------------------------------------------------------------------------


def check_single(view: memoryview, max_batch_bytes: int) -> HeaderFields | None:
    """The header of ``view``, as it is unpacked, if ``view`` is exactly one batch that ``check_batches`` accepts, with a greatest
    timestamp in its header. Nearly all produced batches are. None otherwise; ``check_batches`` says why."""
    size = len(view)
    if size < HEADER_BYTES:
        return None
    fields: HeaderFields = _unpack_header(view)
    (
        base_offset,
        batch_length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = fields
    # Without a producer id the epoch and the sequence mean nothing, and clients that fill them with zeros are in use.
    # A compressed batch may hold more records than it has bytes.
    if (
        magic == MAGIC_V2
        and batch_length + LENGTH_PREFIX_BYTES == size <= max_batch_bytes
        and crc32c(view[CRC_START:]) == crc
        and attributes in _PRODUCED_ATTRIBUTES
        and (not attributes & CODEC_MASK or is_readable(attributes & CODEC_MASK, view, HEADER_BYTES))
        and base_offset == 0
        and 0 < record_count == last_offset_delta + 1
        and (
            record_count * _RECORD_BYTES_MIN <= batch_length - _LENGTH_MIN
            or (attributes & CODEC_MASK and record_count <= _RECORDS_MAX)
        )
        and base_timestamp <= max_timestamp >= 0
        and (
            (producer_id == -1 and attributes < TRANSACTIONAL)
            or (producer_id >= 0 and producer_epoch >= 0 and base_sequence >= 0)
        )
    ):
        return fields
    return None


def check_batches(
    view: memoryview, *, max_batch_bytes: int, batches_max: int | None = None
) -> list[tuple[int, BatchHeader]]:
    """(position, header) of each batch of produced bytes, every one checked as INV-6 asks; records are not looked at.

    Checked: the lengths, magic 2, size, CRC, codec, framing of the compressed records, attributes, base offset 0, offsets 0 to
    count-1, room for the count, producer fields. Timestamps are not checked. ``max_batch_bytes`` is the topic's
    ``max.message.bytes``. ``batches_max``, if given, limits the batches (Kafka allows one for a partition in a request).

    Raises, with nothing changed: ProtocolError UNSUPPORTED_FOR_MESSAGE_FORMAT (magic 0 or 1), CORRUPT_MESSAGE (lengths,
    CRC, no batch at all), UNSUPPORTED_COMPRESSION_TYPE, INVALID_TIMESTAMP (a broker's), INVALID_RECORD (all else); RequestRejected
    MESSAGE_TOO_LARGE.
    """
    position, view_end = 0, len(view)
    found: list[tuple[int, BatchHeader]] = []
    while position < view_end:
        if position + HEADER_BYTES > view_end:
            raise _bad_start(view, position)
        header = parse_header(view, position)
        batch_end = position + header.batch_length + LENGTH_PREFIX_BYTES
        if header.magic != MAGIC_V2 or batch_end > view_end or header.batch_length < _LENGTH_MIN:
            raise _bad_start(view, position)
        batch = view[position:batch_end]
        if check_single(batch, max_batch_bytes) is None:
            _refuse_bad(batch, header, max_batch_bytes)
        found.append((position, header))
        position = batch_end
    if not found:
        raise ProtocolError("There is no record batch.", ErrorCode.CORRUPT_MESSAGE)
    if batches_max is not None and len(found) > batches_max:
        raise ProtocolError(
            f"{len(found)} record batches for a partition where {batches_max} may be.", ErrorCode.INVALID_RECORD
        )
    return found


def lacks_maximum(header: BatchHeader) -> bool:
    """Whether the header of a produced batch has no greatest timestamp, or one that its first timestamp contradicts.

    Kafka then uses the greatest timestamp of the records. Sarama before 1.45.1 writes -1.
    """
    return header.max_timestamp < 0 or header.max_timestamp < header.base_timestamp


def _refuse_bad(batch: memoryview, header: BatchHeader, max_batch_bytes: int) -> None:
    """Raises: the error that ``_bad_batch`` returns. The error is kept by no frame that it holds."""
    error = _bad_batch(batch, header, max_batch_bytes)
    if error is not None:
        try:
            raise error
        finally:
            del error


def _bad_batch(batch: memoryview, header: BatchHeader, max_batch_bytes: int) -> ProtocolError | RequestRejected | None:
    """The fault of one whole batch that ``check_single`` does not accept; None if the batch only lacks a greatest timestamp."""
    if len(batch) > max_batch_bytes:
        return RequestRejected(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"A record batch of {len(batch)} bytes is over max.message.bytes, which is {max_batch_bytes}.",
        )
    if crc32c(batch[CRC_START:]) != header.crc:
        return ProtocolError("A record batch does not match its CRC.", ErrorCode.CORRUPT_MESSAGE)
    error = _bad_fields(header)
    if error is None and header.codec:
        fault = framing_fault(header.codec, batch, HEADER_BYTES)
        if fault is not None:
            sentence = (
                f"Not all clients can read a record batch: {fault}. Configure the producer's compression library."
            )
            return ProtocolError(sentence, ErrorCode.INVALID_RECORD)
    return error


def _bad_start(view: memoryview, position: int) -> ProtocolError:
    # Older formats have their magic at the same place but need fewer bytes, so it is looked at first.
    left = len(view) - position
    if left > _MAGIC_POSITION and view[position + _MAGIC_POSITION] in (0, 1):
        return ProtocolError(
            f"Messages of magic {view[position + _MAGIC_POSITION]} are not accepted, only record batches of magic 2.",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    if left < HEADER_BYTES:
        return ProtocolError(f"{left} bytes are less than a record batch's header.", ErrorCode.CORRUPT_MESSAGE)
    header = parse_header(view, position)
    if header.magic != MAGIC_V2:
        return ProtocolError(f"A record batch of unknown magic {header.magic}.", ErrorCode.CORRUPT_MESSAGE)
    return ProtocolError(
        f"A record batch claims {header.size_bytes} bytes where {left} are left.", ErrorCode.CORRUPT_MESSAGE
    )


def _bad_fields(header: BatchHeader) -> ProtocolError | None:
    count = header.record_count
    code = ErrorCode.INVALID_RECORD
    if header.codec > _CODEC_MAX:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        what = f"names compression codec {header.codec}, which there is not"
    elif header.is_control:
        what = "is a control batch, which clients may not write"
    elif header.attributes & LOG_APPEND_TIME:
        code = ErrorCode.INVALID_TIMESTAMP
        what = "has timestamp type LogAppendTime, which only a broker sets"
    elif header.attributes not in _PRODUCED_ATTRIBUTES:
        what = f"has attributes 0x{header.attributes & 0xFFFF:04x}, of which clients may not set all"
    elif header.base_offset != 0:
        what = f"has base offset {header.base_offset} where a producer sends 0"
    elif count <= 0 or count > _RECORDS_MAX:
        what = f"claims {count} records"
    elif header.last_offset_delta != count - 1:
        what = f"has last offset delta {header.last_offset_delta} but {count} records"
    elif not header.codec and count * _RECORD_BYTES_MIN > header.batch_length - _LENGTH_MIN:
        what = f"claims {count} records in {header.batch_length - _LENGTH_MIN} bytes"
    elif (header.producer_id == -1 and not header.is_transactional) or (
        header.producer_id >= 0 and header.producer_epoch >= 0 and header.base_sequence >= 0
    ):
        return None
    else:
        what = (
            f"has producer id {header.producer_id}, epoch {header.producer_epoch} and sequence {header.base_sequence}"
            f"{' in a transaction' if header.is_transactional else ''}, which do not fit together"
        )
    return ProtocolError(f"A record batch {clause(what)}.", code)


# --- checks: bytes of our own disk or bucket ------------------------------------------------------------------------


def check_stored_batch(view: memoryview, position: int = 0) -> BatchHeader:
    """The header of the stored batch at ``position``, its length, magic, CRC and counts checked.

    A compacted batch may have gaps in its offsets, or no record left; control batches and a broker's own timestamps are
    at home here. The batch may be followed by others.

    Raises: CorruptionError, which names the position but not the file; a batch that goes on past ``view`` is one too.
    """
    left = len(view) - position
    if left < HEADER_BYTES:
        raise CorruptionError(f"{max(left, 0)} bytes at position {position} are less than a record batch's header.")
    header = parse_header(view, position)
    if header.magic != MAGIC_V2:
        raise CorruptionError(f"Magic {header.magic} at position {position}.")
    if header.batch_length < _LENGTH_MIN or header.size_bytes > left:
        raise CorruptionError(
            f"A record batch at position {position} claims {header.size_bytes} bytes where {left} are left."
        )
    if crc32c(view[position + CRC_START : position + header.size_bytes]) != header.crc:
        raise CorruptionError(f"The record batch at position {position} does not match its CRC.")
    if (
        header.base_offset < 0
        or not 0 <= header.record_count <= header.last_offset_delta + 1
        or header.codec > _CODEC_MAX
    ):
        raise CorruptionError(
            f"The record batch at position {position} has base offset {header.base_offset}, {header.record_count} records, "
            f"last offset delta {header.last_offset_delta} and codec {header.codec}."
        )
    return header


def stored_batches(view: memoryview, after: int, epoch: int) -> list[tuple[int, BatchHeader]] | None:
    """(position, header) of each batch of ``view``, all checked as ``check_stored_batch`` checks one, if they begin at offset
    ``after``, follow one another without a gap, and their leader epochs, from ``epoch`` on, do not fall. Nearly all batches
    from a leader do so. None for all others."""
    found: list[tuple[int, BatchHeader]] = []
    position, end = 0, len(view)
    while position < end:
        if end - position < HEADER_BYTES:
            return None
        fields: HeaderFields = _unpack_header(view, position)
        base_offset, batch_length, leader_epoch, magic, crc, attributes, delta, _, _, _, _, _, record_count = fields
        batch_end = position + batch_length + LENGTH_PREFIX_BYTES
        if (
            magic != MAGIC_V2
            or batch_length < _LENGTH_MIN
            or batch_end > end
            or base_offset != after
            or leader_epoch < epoch
            or not 0 <= record_count <= delta + 1
            or attributes & CODEC_MASK > _CODEC_MAX
            or crc32c(view[position + CRC_START : batch_end]) != crc
        ):
            return None
        found.append((position, _new_header(BatchHeader, fields)))
        position, after, epoch = batch_end, base_offset + delta + 1, leader_epoch
    return found


# --- changes in place -----------------------------------------------------------------------------------------------


def patch_batch(buffer: memoryview | bytearray, position: int, base_offset: Offset, leader_epoch: LeaderEpoch) -> None:
    """Give the batch at ``position`` its offset and epoch. The CRC covers neither."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LENGTH_PREFIX_BYTES, leader_epoch)


def rewrite_header(
    buffer: memoryview | bytearray,
    position: int,
    *,
    attributes: int | None = None,
    max_timestamp: TimestampMs | None = None,
    producer_id: ProducerId | None = None,
    producer_epoch: ProducerEpoch | None = None,
    base_sequence: int | None = None,
) -> BatchHeader:
    """Set the given fields of the whole batch at ``position`` and its new CRC; answers the header as it now is.

    LogAppendTime is ``attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms``.
    """
    header = parse_header(buffer, position)
    header = header._replace(
        attributes=header.attributes if attributes is None else attributes,
        max_timestamp=header.max_timestamp if max_timestamp is None else max_timestamp,
        producer_id=header.producer_id if producer_id is None else producer_id,
        producer_epoch=header.producer_epoch if producer_epoch is None else producer_epoch,
        base_sequence=header.base_sequence if base_sequence is None else base_sequence,
    )
    HEADER.pack_into(buffer, position, *header)
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + header.size_bytes])
    _CRC.pack_into(buffer, position + _CRC_POSITION, crc)
    return header._replace(crc=crc)
