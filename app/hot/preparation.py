"""Work on produced records before they are appended: recompression, and checks of each record. Pure."""

from __future__ import annotations

from typing import Final

from app.configs import ProduceValidation, TimestampType, TopicConfig
from app.core.errors import ErrorCode, LimitExceeded, ProtocolError, RequestRejected
from app.core.limits import DECOMPRESSED_BATCH_BYTES_MAX
from app.core.units import TimestampMs
from app.records.batch import (
    ATTRIBUTES_LOW_BYTE,
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    check_batches,
    lacks_maximum,
    parse_header,
    rewrite_header,
)
from app.records.builder import recompress
from app.records.compression import Codec
from app.records.validation import check_produced

_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def codec_of(config: TopicConfig) -> Codec | None:
    """The codec of a topic's stored records; None for the producer's codec."""
    return None if config.compression_type == "producer" else _CODECS[config.compression_type]


def looks_at_records(config: TopicConfig) -> bool:
    """Whether every produced record of a topic is checked before it is appended."""
    return config.compacted or config.firn_produce_validation is ProduceValidation.RECORDS


def looks_at_batches(config: TopicConfig) -> bool:
    """Whether every produced batch of a topic is looked into before it is appended: by ``prepare``, or for its schemas by the
    caller of ``append_as_leader`` (ADR 0044)."""
    return looks_at_records(config) or config.checks_schemas


def needs_preparation(records: memoryview, config: TopicConfig, codec: Codec | None) -> bool:
    """Whether ``prepare`` or its caller has work that the topic asks for. Cheap. ``codec`` is ``codec_of(config)``."""
    if looks_at_batches(config):
        return True
    if codec is None:
        return False
    if len(records) < HEADER_BYTES:
        return True
    return records[ATTRIBUTES_LOW_BYTE] & CODEC_MASK != codec or parse_header(records).size_bytes != len(records)


class DecompressesTooFar(RequestRejected):
    """A batch decompresses to more bytes than its preparation has memory for."""

    def __init__(self, raw_bytes_max: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch decompresses to more than {raw_bytes_max} bytes, the limit of this broker "
            f"(firn.decompressed.batch.bytes.max). Send smaller batches.",
        )


def prepare(
    records: memoryview, config: TopicConfig, *, now_ms: int, raw_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> bytearray:
    """Convert produced records to the form in which a topic stores them. Takes long: run it in the pool.

    No batch is decompressed beyond ``raw_bytes_max``.

    A header's greatest timestamp becomes that of the records if the header has none, and always with
    ``firn.produce.validation=records``. As in Kafka it is -1 if all records are of before 1970.

    Raises: as ``check_batches``; ProtocolError INVALID_RECORD for damaged compression, or a record that is not sound;
    RecordsRejected for records without a key in a compacted topic, or with timestamps that the topic does not take;
    DecompressesTooFar; RequestRejected MESSAGE_TOO_LARGE if a batch is too large once recompressed.
    """
    parts: list[bytes | memoryview] = []
    codec = codec_of(config)
    levels = {
        Codec.GZIP: None if config.compression_gzip_level == -1 else config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    bounds = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    by_producer = config.message_timestamp_type is TimestampType.CREATE_TIME
    looks = looks_at_records(config)
    always = config.firn_produce_validation is ProduceValidation.RECORDS
    for position, header in check_batches(records, max_batch_bytes=config.max_message_bytes):
        batch: bytes | memoryview = records[position : position + header.size_bytes]
        timestamps = bounds if by_producer and (always or lacks_maximum(header)) else None
        if looks or timestamps is not None:
            greatest = _checked(batch, header, config.compacted, timestamps, raw_bytes_max)
            if timestamps is not None and greatest != header.max_timestamp:
                mended = bytearray(batch)
                rewrite_header(mended, 0, max_timestamp=greatest)
                batch = memoryview(mended)
        if codec is not None and header.codec != codec:
            batch = _recompressed(batch, codec, levels.get(codec), raw_bytes_max)
            if len(batch) > config.max_message_bytes:
                raise RequestRejected(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"A record batch of {len(batch)} bytes, recompressed, is over max.message.bytes, which is "
                    f"{config.max_message_bytes}.",
                )
        parts.append(batch)
    return bytearray().join(parts)


def _recompressed(batch: bytes | memoryview, codec: Codec, level: int | None, raw_bytes_max: int) -> bytes:
    try:
        return recompress(batch, codec, level, max_bytes=raw_bytes_max)
    except ProtocolError as error:
        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            raise
    raise DecompressesTooFar(raw_bytes_max)


def _checked(
    batch: bytes | memoryview,
    header: BatchHeader,
    keys_needed: bool,
    timestamps: tuple[int, int] | None,
    raw_bytes_max: int,
) -> TimestampMs:
    """As ``check_produced``. Raises: DecompressesTooFar, too."""
    try:
        room = raw_bytes_max if header.codec else len(batch)
        return check_produced(batch, keys_needed=keys_needed, timestamps=timestamps, max_bytes=room)
    except LimitExceeded:
        raise DecompressesTooFar(raw_bytes_max) from None
