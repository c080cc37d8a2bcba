"""What has to be done to produced records before they are appended: recompression, and a look at their keys. Pure."""

from __future__ import annotations

from typing import Final

from app.configs import TopicConfig
from app.errors import CorruptionError, ErrorCode, ProtocolError, RequestRejected
from app.records.batch import CODEC_MASK, HEADER_BYTES, check_batches, parse_header
from app.records.builder import recompress
from app.records.compression import Codec
from app.records.record import iter_records

_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def codec_of(config: TopicConfig) -> Codec | None:
    """The codec in which a topic keeps its records; None is the producer's."""
    return None if config.compression_type == "producer" else _CODECS[config.compression_type]


def needs_preparation(records: memoryview, config: TopicConfig, codec: Codec | None) -> bool:
    """Whether ``prepare`` has work to do. Cheap. ``codec`` is ``codec_of(config)``."""
    if config.compacted:
        return True
    if codec is None:
        return False
    if len(records) < HEADER_BYTES:
        return True
    return records[22] & CODEC_MASK != codec or parse_header(records).size_bytes != len(records)


def prepare(records: memoryview, config: TopicConfig) -> bytearray:
    """Produced records in the shape in which a topic keeps them. Takes long: run it in the pool.

    Raises: as ``check_batches``; ProtocolError INVALID_RECORD for damaged compression or, in a compacted topic, a record
    without a key; RequestRejected MESSAGE_TOO_LARGE if a batch is too large once recompressed.
    """
    parts: list[bytes | memoryview] = []
    codec = codec_of(config)
    levels = {
        Codec.GZIP: None if config.compression_gzip_level == -1 else config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    for position, header in check_batches(records, max_batch_bytes=config.max_message_bytes):
        batch: bytes | memoryview = records[position : position + header.size_bytes]
        if config.compacted:
            _check_keys(batch)
        if codec is not None and header.codec != codec:
            batch = recompress(batch, codec, levels.get(codec))
            if len(batch) > config.max_message_bytes:
                raise RequestRejected(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a record batch of {len(batch)} bytes, recompressed, is over max.message.bytes, which is "
                    f"{config.max_message_bytes}",
                )
        parts.append(batch)
    return bytearray().join(parts)


def _check_keys(batch: bytes | memoryview) -> None:
    """Raises: ProtocolError INVALID_RECORD for a record without a key, which compaction could do nothing with."""
    try:
        if any(record.key is None for record in iter_records(batch)):
            raise ProtocolError("a record without a key in a compacted topic", ErrorCode.INVALID_RECORD)
    except CorruptionError as error:
        raise ProtocolError(str(error), ErrorCode.INVALID_RECORD) from error
