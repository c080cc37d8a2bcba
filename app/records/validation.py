"""The interior of a record batch: whether every record decodes, without making records of it.

Checks that ``check_batches`` cannot make: lengths and fields of each record, offset deltas 0 to count-1, keys, timestamps,
compression, and that nothing follows the last record. Costs a step of Python per record (``loadtests/micro_validation.py``), so
only topics that ask for it pay (``firn.produce.validation``), and those that compaction needs keys of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from app.core.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError, RecordsRejected, clause
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from app.core.units import NO_TIMESTAMP, Offset, TimestampMs
from app.records.batch import LOG_APPEND_TIME, BatchHeader, parse_header
from app.records.record import raw_records, walk_records
from app.records.varint import INT64_MAX, INT64_MIN

RECORD_ERRORS_MAX: Final = 10_000
"""Bad records that a refusal names. A client takes the others of the batch for good ones, sends them again and is told then."""
PASSED_BATCHES_MAX: Final = 32
"""Batches before its place that a lookup by time looks into, though their headers say that all their records are older."""
PASSED_RECORDS_MAX: Final = 50_000
"""Records of such batches beyond the nearest one: 0.1 s of CPU."""
NO_KEY: Final = "A record without a key in a compacted topic."


def _scan(data: bytes, header: BatchHeader) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    return walk_records(data, 0, len(data), header.record_count, header.last_offset_delta)


def check_interior(batch: memoryview | bytes, *, max_bytes: int = DECOMPRESSED_BATCH_BYTES_MAX) -> int:
    """Check the interior of the one stored batch that ``batch`` starts with; its header was checked. Compacted batches may have
    gaps in their offsets. Returns how many records it has.

    Raises: CorruptionError, which says which record is not sound.
    """
    header = parse_header(batch)
    number = 0
    try:
        data = raw_records(batch, header, max_bytes)
        for number, _ in enumerate(_scan(data, header), 1):  # noqa: B007
            pass
    except (ValueError, IndexError, LimitExceeded, CorruptionError) as error:
        raise _unsound(header, number, error) from None
    return number


def _unsound(header: BatchHeader, number: int, error: Exception) -> CorruptionError:
    where = f"Record {number} of the batch at offset {header.base_offset}"
    return CorruptionError(f"{where} cannot be read: {clause(_words(error))}.")


def _words(error: Exception) -> str:
    return "it ends early" if isinstance(error, IndexError) else str(error)


def check_produced(
    batch: memoryview | bytes,
    *,
    keys_needed: bool,
    timestamps: tuple[int, int] | None = None,
    max_bytes: int = DECOMPRESSED_BATCH_BYTES_MAX,
) -> TimestampMs:
    """Check the interior of the one produced batch that ``batch`` starts with, as Kafka does; ``check_batches`` saw its header.

    Args:
        keys_needed: a record without a key is refused, as compaction could do nothing with it.
        timestamps: the earliest and the latest that a record may bear, besides "none" (-1); None if the broker sets them.

    Returns: the greatest timestamp of the records; -1 if none has one, or all are of before 1970.
    Raises: ProtocolError INVALID_RECORD (a record, or the compression, is not sound); LimitExceeded (it decompresses to more than
    ``max_bytes``); RecordsRejected INVALID_RECORD (no key), INVALID_TIMESTAMP, naming the records.
    """
    header = parse_header(batch)
    base_timestamp = header.base_timestamp
    earliest, latest = timestamps if timestamps is not None else (0, 0)
    greatest: int = NO_TIMESTAMP  # and no less, as in Kafka, though all be of before 1970
    refused: list[tuple[int, str]] = []
    untimely = False
    number = 0
    try:
        data = raw_records(batch, header, max_bytes)
        # As many records as offsets, each offset above the one before: the deltas are 0 to count-1.
        for _, timestamp_delta, _, key_end, _, _, _ in _scan(data, header):
            timestamp = base_timestamp + timestamp_delta
            if timestamp > greatest:
                greatest = timestamp
            if timestamps is not None and not earliest <= timestamp <= latest and timestamp != NO_TIMESTAMP:
                untimely = True
                if len(refused) < RECORD_ERRORS_MAX:
                    refused.append((number, f"Timestamp {timestamp} is not within [{earliest}, {latest}]."))
            elif keys_needed and key_end < 0 and len(refused) < RECORD_ERRORS_MAX:
                refused.append((number, NO_KEY))
            number += 1
    except (ValueError, IndexError, CorruptionError) as error:
        sentence = f"Record {number} of the batch cannot be read: {clause(_words(error))}."
        raise ProtocolError(sentence, ErrorCode.INVALID_RECORD) from None
    if not INT64_MIN <= greatest <= INT64_MAX:
        raise ProtocolError(f"Timestamp {greatest} does not fit in 64 bits.", ErrorCode.INVALID_TIMESTAMP)
    if refused:
        code = ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD
        first, why = refused[0]
        told = f"{len(refused)} of the batch's {number} records are refused; record {first}: {clause(why)}."
        raise RecordsRejected(code, told, tuple(refused))
    return TimestampMs(greatest)


def may_be_newer(header: BatchHeader) -> bool:
    """Whether records of a stored batch may be newer than its header says.

    Earlier versions wrote the first timestamp over a greatest timestamp of -1, which old producers send. Such a header cannot be
    told from that of records which all have one timestamp.
    """
    return (
        header.record_count > 1
        and header.max_timestamp == header.base_timestamp >= 0
        and not header.attributes & LOG_APPEND_TIME
    )


class PassedBatches:
    """The last batches that a lookup by time has passed because of their headers, and whose records may be newer than those say.

    The lookup looks into them before it looks into the next batch that claims a record, or when there is none.
    """

    __slots__ = ("_passed",)

    def __init__(self) -> None:
        self._passed: deque[tuple[int, BatchHeader]] = deque(maxlen=PASSED_BATCHES_MAX)

    def note(self, position: int, header: BatchHeader) -> None:
        """Note a batch that was passed. ``position``: where its caller finds it again."""
        if may_be_newer(header):
            self._passed.append((position, header))

    def take(self) -> list[tuple[int, BatchHeader]]:
        """(position, header) of the batches to look into, in order; they are no longer noted."""
        taken: list[tuple[int, BatchHeader]] = []
        records = 0
        while self._passed:
            records += self._passed[-1][1].record_count
            if taken and records > PASSED_RECORDS_MAX:
                break
            taken.append(self._passed.pop())
        self._passed.clear()
        taken.reverse()
        return taken


def timestamps_of(batch: memoryview | bytes, start_offset: int) -> Iterator[tuple[TimestampMs, Offset]]:
    """(timestamp, offset) of each record of one stored batch that is not below ``start_offset``.

    Raises: CorruptionError where a record is not sound.
    """
    header = parse_header(batch)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    number = 0
    try:
        data = raw_records(batch, header)
        for offset_delta, timestamp_delta, _, _, _, _, _ in _scan(data, header):
            if base_offset + offset_delta >= start_offset:
                timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
                yield TimestampMs(timestamp), Offset(base_offset + offset_delta)
            number += 1
    except (ValueError, IndexError, LimitExceeded, CorruptionError) as error:
        raise _unsound(header, number, error) from None


def greatest_at_or_after(
    batch: memoryview | bytes, timestamp: int, start_offset: int
) -> tuple[TimestampMs, Offset] | None:
    """(timestamp, offset) of the first record with the greatest timestamp of one stored batch, if that is at least ``timestamp``,
    among those not below ``start_offset``. Raises: CorruptionError if a record is not sound."""
    best: tuple[TimestampMs, Offset] | None = None
    for found in timestamps_of(batch, start_offset):
        if found[0] >= timestamp and (best is None or found[0] > best[0]):
            best = found
    return best


def first_at_or_after(
    batch: memoryview | bytes, timestamp: int, start_offset: int
) -> tuple[TimestampMs, Offset] | None:
    """(timestamp, offset) of the first record of one stored batch that is at least as new as ``timestamp`` and not below
    ``start_offset``. Raises: CorruptionError if a record before it is not sound."""
    for found in timestamps_of(batch, start_offset):
        if found[0] >= timestamp:
            return found
    return None
