"""What has to be done to produced records before they are appended: recompression, and a look at their keys. Pure."""

from __future__ import annotations

from typing import Final

from app.configs import TopicConfig
from app.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError, RequestRejected
from app.limits import DECOMPRESSED_BATCH_BYTES_MAX
from app.records.batch import CODEC_MASK, HEADER_BYTES, BatchHeader, check_batches, parse_header
from app.records.builder import recompress
from app.records.compression import Codec
from app.records.record import iter_decompressed, raw_records

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


class DecompressesTooFar(RequestRejected):
    """A batch decompresses to more bytes than whoever prepares it has room for."""

    def __init__(self, raw_bytes_max: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch decompresses to more than {raw_bytes_max} bytes, which is the most that this broker decompresses "
            f"(firn.decompressed.batch.bytes.max). Send smaller batches.",
        )


def prepare(
    records: memoryview, config: TopicConfig, *, raw_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> bytearray:
    """Produced records in the shape in which a topic keeps them. Takes long: run it in the pool.

    No batch is decompressed further than ``raw_bytes_max``.

    Raises: as ``check_batches``; ProtocolError INVALID_RECORD for damaged compression or, in a compacted topic, a record
    without a key; DecompressesTooFar; RequestRejected MESSAGE_TOO_LARGE if a batch is too large once recompressed.
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
            _check_keys(batch, header, raw_bytes_max)
        if codec is not None and header.codec != codec:
            batch = _recompressed(batch, codec, levels.get(codec), raw_bytes_max)
            if len(batch) > config.max_message_bytes:
                raise RequestRejected(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a record batch of {len(batch)} bytes, recompressed, is over max.message.bytes, which is "
                    f"{config.max_message_bytes}",
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


def _check_keys(batch: bytes | memoryview, header: BatchHeader, raw_bytes_max: int) -> None:
    """Raises: ProtocolError INVALID_RECORD for a record without a key, which compaction could do nothing with."""
    try:
        data = raw_records(batch, header, raw_bytes_max if header.codec else len(batch))
        if all(record.key is not None for record in iter_decompressed(data, header)):
            return
        sentence = "a record without a key in a compacted topic"
    except LimitExceeded:
        raise DecompressesTooFar(raw_bytes_max) from None
    except CorruptionError as error:
        sentence = str(error)
    raise ProtocolError(sentence, ErrorCode.INVALID_RECORD)
