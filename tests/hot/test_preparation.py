"""Work on produced records before they are appended: which topics need it, recompression, and checks of each record."""

from __future__ import annotations

from typing import Any

import pytest

from app.configs import ProduceValidation, TimestampType, TopicConfig
from app.core.errors import ErrorCode, ProtocolError, RecordsRejected, RequestRejected
from app.hot.preparation import (
    DecompressesTooFar,
    codec_of,
    looks_at_batches,
    looks_at_records,
    needs_preparation,
    prepare,
)
from app.records.batch import BatchHeader, iter_headers, rewrite_header
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.record import iter_records
from tests.hot.helpers import NOW, batch

HOUR_MS = 3_600_000
PLAIN = TopicConfig()
COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}))
VALIDATED = TopicConfig(firn_produce_validation=ProduceValidation.RECORDS)
ZSTD = TopicConfig(compression_type="zstd")


def headers(records: bytes | bytearray) -> list[BatchHeader]:
    return [header for _, header in iter_headers(records)]


def prepared(records: memoryview, config: TopicConfig, **more: Any) -> bytearray:
    return prepare(records, config, now_ms=NOW, **more)


def without_maximum(records: memoryview) -> memoryview:
    """As old clients of Go write it."""
    changed = bytearray(records)
    rewrite_header(changed, 0, max_timestamp=-1)  # type: ignore[arg-type]
    return memoryview(changed)


@pytest.mark.parametrize(
    ("setting", "codec"),
    [("producer", None), ("uncompressed", Codec.NONE), ("gzip", Codec.GZIP), ("zstd", Codec.ZSTD), ("lz4", Codec.LZ4)],
)
def test_a_topic_has_the_codec_of_its_setting_or_that_of_the_producer(setting: str, codec: Codec | None) -> None:
    assert codec_of(TopicConfig(compression_type=setting)) is codec


@pytest.mark.parametrize(("config", "looks"), [(PLAIN, False), (COMPACTED, True), (VALIDATED, True), (ZSTD, False)])
def test_records_are_looked_at_for_compaction_or_if_the_topic_asks_for_it(config: TopicConfig, looks: bool) -> None:
    assert looks_at_records(config) is looks
    assert looks_at_batches(config) is looks
    assert needs_preparation(batch(), config, None) is looks


def test_batches_of_another_codec_or_several_of_them_need_preparation() -> None:
    one, of_zstd = batch(2), batch(2, codec=Codec.ZSTD)
    assert not needs_preparation(of_zstd, ZSTD, Codec.ZSTD)
    assert needs_preparation(one, ZSTD, Codec.ZSTD)
    assert needs_preparation(memoryview(bytes(of_zstd) * 2), ZSTD, Codec.ZSTD)
    assert needs_preparation(of_zstd[:20], ZSTD, Codec.ZSTD), "prepare says what is wrong with it"
    assert not needs_preparation(one, PLAIN, None)


def test_batches_of_another_codec_are_recompressed_and_all_others_are_left_as_they_are() -> None:
    one, of_zstd = batch(3), batch(2, codec=Codec.ZSTD)
    found = prepared(memoryview(bytes(one) + bytes(of_zstd)), ZSTD)
    assert [header.codec for header in headers(found)] == [Codec.ZSTD, Codec.ZSTD]
    assert [record.value for record in iter_records(found)][:3] == [b"value"] * 3
    assert found.endswith(of_zstd)
    assert prepared(of_zstd, PLAIN) == of_zstd


def test_a_batch_that_is_too_large_once_recompressed_is_refused() -> None:
    value = bytes(range(256)) * 40
    compressed = batch(4, value=value * 4, codec=Codec.ZSTD)
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=20_000)
    with pytest.raises(RequestRejected, match=r"recompressed, is over max\.message\.bytes, which is 20000") as refused:
        prepared(compressed, config)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("config", [TopicConfig(compression_type="uncompressed"), VALIDATED])
def test_no_batch_is_decompressed_beyond_its_room(config: TopicConfig) -> None:
    compressed = batch(1, value=bytes(100_000), codec=Codec.ZSTD)
    assert prepared(compressed, config, raw_bytes_max=200_000)
    with pytest.raises(DecompressesTooFar, match="more than 50000 bytes") as refused:
        prepared(compressed, config, raw_bytes_max=50_000)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_damaged_compression_is_an_invalid_record_and_not_too_large() -> None:
    damaged = bytearray(batch(1, value=bytes(1000), codec=Codec.ZSTD))
    damaged[-1] ^= 0xFF
    rewrite_header(damaged, 0)
    with pytest.raises(ProtocolError) as refused:
        prepared(memoryview(damaged), VALIDATED)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_records_without_a_key_are_refused_by_a_compacted_topic_alone() -> None:
    assert prepared(batch(key=b"k"), COMPACTED) == batch(key=b"k")
    assert prepared(batch(), VALIDATED) == batch()
    with pytest.raises(RecordsRejected, match="without a key"):
        prepared(batch(), COMPACTED)


def test_a_header_without_its_greatest_timestamp_gets_that_of_the_records() -> None:
    told = without_maximum(batch(3, step_ms=5))
    (header,) = headers(prepared(told, PLAIN))
    assert header.max_timestamp == NOW + 10
    log_append = TopicConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert headers(prepared(told, log_append))[0].max_timestamp == -1, "the broker's own time follows"


def test_a_greatest_timestamp_that_the_records_contradict_is_mended_only_where_records_are_validated() -> None:
    wrong = bytearray(batch(3, step_ms=5))
    rewrite_header(wrong, 0, max_timestamp=NOW + 99)  # type: ignore[arg-type]
    assert headers(prepared(memoryview(wrong), VALIDATED))[0].max_timestamp == NOW + 10
    assert headers(prepared(memoryview(wrong), PLAIN))[0].max_timestamp == NOW + 99


@pytest.mark.parametrize("away_ms", [-HOUR_MS, HOUR_MS])
def test_timestamps_beyond_the_bounds_of_the_topic_are_refused(away_ms: int) -> None:
    bounds = {"message_timestamp_before_max_ms": HOUR_MS, "message_timestamp_after_max_ms": HOUR_MS}
    config = TopicConfig(firn_produce_validation=ProduceValidation.RECORDS, **bounds)
    near, far = NOW + away_ms, NOW + away_ms + (1 if away_ms > 0 else -1)
    assert prepared(batch(timestamp=near), config) == batch(timestamp=near)
    with pytest.raises(RecordsRejected):
        prepared(batch(timestamp=far), config)
    by_broker = TopicConfig(
        firn_produce_validation=ProduceValidation.RECORDS,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
        **bounds,
    )
    assert prepared(batch(timestamp=far), by_broker) == batch(timestamp=far)


def test_the_level_of_the_topic_is_used() -> None:
    value = b"".join(b"%d," % (number * 7919 % 1009) for number in range(4000))
    sizes = [
        len(
            prepared(
                memoryview(build_batch([(NOW, None, value, ())])),
                TopicConfig(compression_type="gzip", compression_gzip_level=level),
            )
        )
        for level in (1, 9)
    ]
    assert sizes[1] < sizes[0]
