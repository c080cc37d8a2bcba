"""``firn.produce.validation``, and lookups by time in logs whose batches were not looked into."""

from __future__ import annotations

import gzip
from struct import pack_into

import pytest

from app.configs import ProduceValidation, TimestampType, TopicConfig
from app.configs.numbers import LONG_MAX
from app.core.errors import CorruptionError, ErrorCode, ProtocolError, RecordsRejected
from app.core.units import LeaderEpoch, Offset, TimestampMs
from app.hot.log import PartitionLog, PreparationNeeded
from app.hot.unreadable import UnreadableBatches
from app.records.batch import HEADER_BYTES, parse_header, patch_batch, rewrite_header
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.record import iter_records
from tests.hot.helpers import NOW, batch, manager_over, new_log, read_all, sim

RECORDS = ProduceValidation.RECORDS


def poison(count: int = 2, **fields: object) -> memoryview:
    """A batch with a right header and checksum whose records cannot be decoded."""
    made = bytearray(batch(count, **fields))  # type: ignore[arg-type]
    made[HEADER_BYTES] = 0xFE
    rewrite_header(made, 0)
    return memoryview(made)


def append(log: PartitionLog, records: memoryview) -> tuple[int, int]:
    result = log.append_as_leader(records, now_ms=NOW)
    return result.base_offset, result.last_offset_end


def logs(**config: object) -> PartitionLog:
    return new_log(manager_over(sim()), **config)


async def test_an_unsound_record_is_stored_by_default_and_refused_where_records_are_checked() -> None:
    assert TopicConfig().firn_produce_validation is ProduceValidation.BATCH
    assert append(logs(), poison()) == (0, 2)
    log = logs(firn_produce_validation=RECORDS)
    with pytest.raises(ProtocolError, match="Record 0 of the batch cannot be read") as told:
        append(log, poison())
    assert told.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0
    assert append(log, batch()) == (0, 1)


def compressed(body: bytes, codec: Codec, *, count: int = 1) -> memoryview:
    """A batch with a right header and checksum whose compressed records are ``body``."""
    made = bytearray(batch(count)[:HEADER_BYTES]) + body
    pack_into(">i", made, 8, len(made) - 12)
    rewrite_header(made, 0, attributes=int(codec))
    return memoryview(made)


@pytest.mark.parametrize(
    "config",
    [{"firn_produce_validation": RECORDS}, {"cleanup_policy": ("compact",)}, {"compression_type": "zstd"}],
    ids=["checked", "compacted", "recompressed"],
)
def test_a_batch_of_endless_empty_members_is_refused_wherever_batches_are_decompressed(
    config: dict[str, object],
) -> None:
    log = logs(**config)
    with pytest.raises(ProtocolError, match="gzip data has more than 1024 members") as told:
        append(log, compressed(gzip.compress(b"") * 10_000, Codec.GZIP))
    assert told.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("claimed", [-1, NOW - 1, -(1 << 63)])
async def test_a_greatest_timestamp_that_a_header_lacks_is_computed_from_the_records(
    codec: Codec, claimed: int
) -> None:
    log = logs()
    made = batch(4, step_ms=60_000, timestamp=NOW - 240_000, codec=codec)
    rewrite_header(made, 0, max_timestamp=TimestampMs(min(claimed, NOW - 240_001)))
    assert log.needs_preparation(made)
    sent = bytes(made)
    with pytest.raises(PreparationNeeded):
        log.append_as_leader(made, now_ms=NOW, may_prepare=False)
    assert (bytes(made), log.log_end_offset) == (sent, 0), "nothing was appended or changed"
    assert append(log, made) == (0, 4)
    assert parse_header(await read_all(log)).max_timestamp == NOW - 60_000
    for place in range(4):
        at = NOW - 240_000 + place * 60_000
        assert await log.offset_for_timestamp(at) == (at, place)
    assert await log.max_timestamp_offset() == (NOW - 60_000, 3)


def test_a_header_without_a_maximum_needs_no_look_into_the_batch_where_the_broker_sets_timestamps() -> None:
    log = logs(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    made = poison()
    rewrite_header(made, 0, max_timestamp=TimestampMs(-1))
    assert not log.needs_preparation(made)
    assert append(log, made) == (0, 2)


async def test_a_batch_without_a_maximum_is_refused_if_its_records_are_unsound_or_out_of_bounds() -> None:
    log = logs(message_timestamp_after_max_ms=1000)
    made = poison()
    rewrite_header(made, 0, max_timestamp=TimestampMs(-1))
    with pytest.raises(ProtocolError, match="Record 0 of the batch cannot be read"):
        append(log, made)
    late = batch(2, step_ms=1001)
    rewrite_header(late, 0, max_timestamp=TimestampMs(-1))
    with pytest.raises(RecordsRejected) as told:
        append(log, late)
    assert (told.value.code, told.value.record_errors[0][0]) == (ErrorCode.INVALID_TIMESTAMP, 1)
    assert log.log_end_offset == 0


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    log = logs(message_timestamp_after_max_ms=LONG_MAX)
    made = batch(1, timestamp=(1 << 63) - 1)
    made[HEADER_BYTES + 2 : HEADER_BYTES + 3] = b"\x02"  # the delta of the record's timestamp: 1
    rewrite_header(made, 0, max_timestamp=TimestampMs(-1))
    with pytest.raises(ProtocolError, match="does not fit in 64 bits"):
        append(log, made)


@pytest.mark.parametrize(
    ("timestamps", "stored_maximum"), [([-5000, -1000], -1), ([-5000, 3000], 3000), ([-1, -1], -1), ([-1, 7], 7)]
)
async def test_records_of_before_1970_are_stored_as_kafka_stores_them(
    timestamps: list[int], stored_maximum: int
) -> None:
    log = logs()
    made = memoryview(bytearray(build_batch([(TimestampMs(at), None, b"", ()) for at in timestamps])))
    append(log, made)
    append(log, batch(2, timestamp=NOW))
    stored = await read_all(log)
    assert [record.timestamp for record in iter_records(stored)] == timestamps
    assert parse_header(stored).max_timestamp == stored_maximum
    assert await log.offset_for_timestamp(NOW) == (NOW, 2)
    assert await log.offset_for_timestamp(0) == ((stored_maximum, 1) if stored_maximum >= 0 else (NOW, 2))
    assert await log.max_timestamp_offset() == (NOW, 2)


def doubtful(first: int, count: int, *, timestamp: int, step_ms: int) -> memoryview:
    """A batch as earlier versions stored it if its header had no greatest timestamp."""
    made = batch(count, timestamp=timestamp, step_ms=step_ms, value=b"v" * 100)
    rewrite_header(made, 0, max_timestamp=TimestampMs(timestamp))
    patch_batch(made, 0, Offset(first), LeaderEpoch(0))
    return made


@pytest.mark.parametrize("index_interval_bytes", [0, 4096])
@pytest.mark.parametrize("rolls", [False, True])
async def test_a_lookup_by_time_finds_records_that_are_newer_than_their_stored_header_says(
    index_interval_bytes: int, rolls: bool
) -> None:
    log = logs(index_interval_bytes=index_interval_bytes)
    times = [NOW + number * 100 for number in range(200)]
    for first in range(0, 200, 10):
        made = doubtful(first, 10, timestamp=times[first], step_ms=100)
        log.append_as_follower(made, now_ms=NOW)
        if rolls and first % 50 == 40:
            log.roll()
    for place, at in enumerate(times):
        assert await log.offset_for_timestamp(at) == (at, place)
        assert await log.offset_for_timestamp(at - 50) == (at, place)
    assert await log.offset_for_timestamp(times[-1] + 1) is None
    assert await log.max_timestamp_offset() == (times[-1], 199)


async def test_a_lookup_by_time_finds_such_a_record_though_another_producer_wrote_between() -> None:
    log = logs()
    log.append_as_follower(doubtful(0, 10, timestamp=NOW, step_ms=100), now_ms=NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 150), now_ms=NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 250), now_ms=NOW)
    log.append_as_leader(batch(1, timestamp=NOW + 2000), now_ms=NOW)
    assert await log.offset_for_timestamp(NOW + 300) == (NOW + 300, 3)
    assert await log.offset_for_timestamp(NOW + 901) == (NOW + 2000, 12)


async def test_a_false_greatest_timestamp_is_mended_where_records_are_checked() -> None:
    log = logs(firn_produce_validation=RECORDS)
    made = bytearray(batch(3, step_ms=5))
    rewrite_header(made, 0, max_timestamp=TimestampMs(NOW + 60_000))
    append(log, memoryview(made))
    stored = await read_all(log)
    assert parse_header(stored).max_timestamp == NOW + 10
    assert await log.max_timestamp_offset() == (NOW + 10, 2)


async def test_timestamps_of_single_records_are_checked_where_records_are() -> None:
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 1000}
    # The header shows the first and the greatest timestamp only.
    made = memoryview(bytearray(build_batch([(TimestampMs(at), None, b"", ()) for at in (NOW, NOW - 2000, NOW)])))
    assert append(logs(**limits), memoryview(bytearray(made))) == (0, 3)
    with pytest.raises(RecordsRejected) as told:
        append(logs(firn_produce_validation=RECORDS, **limits), memoryview(bytearray(made)))
    assert told.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [number for number, _ in told.value.record_errors] == [1]
    by_broker = logs(firn_produce_validation=RECORDS, message_timestamp_type=TimestampType.LOG_APPEND_TIME, **limits)
    assert append(by_broker, made) == (0, 3), "the broker sets them"


async def test_a_lookup_by_time_passes_over_a_batch_that_cannot_be_read_and_says_so_once() -> None:
    manager = manager_over(sim())
    lines: list[str] = []
    manager.log_directory.unreadable = UnreadableBatches(lines.append)
    log = new_log(manager)
    append(log, batch(2, timestamp=NOW))
    append(log, poison(3, timestamp=NOW + 100))
    append(log, batch(2, timestamp=NOW + 200))
    for _ in range(2):
        assert await log.offset_for_timestamp(NOW + 50) == (NOW + 200, 5)
        assert await log.offset_for_timestamp(NOW) == (NOW, 0)
        assert await log.offset_for_timestamp(NOW + 201) is None
    [line] = lines
    assert "t-0 cannot be read" in line
    assert "Record 0 of the batch at offset 2" in line
    assert "move consumers to offset 5" in line


async def test_a_lookup_by_time_does_not_pass_over_what_the_disk_has_changed() -> None:
    fs = sim()
    log = new_log(manager_over(fs))
    append(log, batch(2, timestamp=NOW))
    append(log, batch(2, timestamp=NOW + 100))
    [segment] = log.segments()
    fs.flip_bit(segment.path, HEADER_BYTES, 7)
    with pytest.raises(CorruptionError, match="does not match its CRC"):
        await log.offset_for_timestamp(NOW)


@pytest.mark.parametrize("claimed", [NOW + 3_000_000, NOW + 200])
async def test_the_greatest_timestamp_is_found_though_a_header_claims_a_greater_one(claimed: int) -> None:
    log = logs()
    append(log, batch(2, timestamp=NOW + 100))
    made = bytearray(batch(1, timestamp=NOW))
    rewrite_header(made, 0, max_timestamp=TimestampMs(claimed))
    append(log, memoryview(made))
    assert await log.max_timestamp_offset() == (NOW + 100, 0)
    append(log, batch(1, timestamp=NOW + 150))
    assert await log.max_timestamp_offset() == (NOW + 150, 3)
