"""The state of all logs after a clean stop, in one file, so that opening ten thousand partitions is one read.

``.firn_log_state`` is the CRC-32C (uint32) of the rest, and then a msgpack array of ``PartitionState``. It is valid only
together with the clean-shutdown marker. Both are durably removed before anything is appended. Kafka's own files contain the
same state, but reading them takes longer.

Tests: ``tests/hot/test_formats.py``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from crc32c import crc32c

from app.core.errors import CorruptionError, clause

STATE_FILE: Final = ".firn_log_state"


class SegmentState(msgspec.Struct, array_like=True, frozen=True):
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    max_timestamp_offset: int
    rolling_timestamp: int
    first_append_ms: int
    bytes_since_index_entry: int
    has_aborted: bool
    last_append_ms: int = -1
    """Files of earlier versions lack it. The segment file's modification time replaces it then."""


class ProducerState(msgspec.Struct, array_like=True, frozen=True):
    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int
    batches: list[tuple[int, int, int, int, int]]


class LogState(msgspec.Struct, array_like=True, frozen=True):
    """The state that opens a fully synced log again without reading its files."""

    log_start_offset: int
    leader_epochs: list[tuple[int, int]]
    segments: list[SegmentState]
    producers: list[ProducerState]


class PartitionState(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    partition: int
    topic_id: bytes
    log: LogState


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[PartitionState])


def encode_states(states: list[PartitionState]) -> bytes:
    body = _ENCODER.encode(states)
    return crc32c(body).to_bytes(4, "big") + body


def parse_states(data: bytes) -> list[PartitionState]:
    """Raises: CorruptionError."""
    if len(data) < 4 or int.from_bytes(data[:4], "big") != crc32c(data[4:]):
        raise CorruptionError(f"{STATE_FILE} does not match its CRC.")
    try:
        return _DECODER.decode(data[4:])
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{STATE_FILE} is damaged: {clause(error)}.") from error
