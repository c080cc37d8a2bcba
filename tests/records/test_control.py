"""End-transaction markers."""

from __future__ import annotations

import pytest

from app.core.errors import CorruptionError, ErrorCode, ProtocolError
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs
from app.records.batch import check_batches, check_stored_batch, parse_header
from app.records.builder import build_batch
from app.records.control import (
    ControlType,
    EndTransactionMarker,
    build_marker,
    control_key,
    control_value,
    parse_control_key,
    parse_marker,
)
from tests.records.strategies import NOW_MS


@pytest.mark.parametrize("control_type", list(ControlType))
def test_a_marker_says_again_what_it_was_built_with(control_type: ControlType) -> None:
    batch = build_marker(
        control_type,
        producer_id=ProducerId(12),
        producer_epoch=ProducerEpoch(3),
        coordinator_epoch=44,
        timestamp=TimestampMs(NOW_MS),
        base_offset=Offset(500),
        leader_epoch=LeaderEpoch(6),
    )
    header = check_stored_batch(memoryview(batch))
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert parse_marker(batch) == EndTransactionMarker(
        control_type, 44, ProducerId(12), ProducerEpoch(3), Offset(500), TimestampMs(NOW_MS)
    )


def test_the_bytes_of_keys_and_values_are_kafkas() -> None:
    assert control_key(ControlType.ABORT).hex() == "00000000"
    assert control_key(ControlType.COMMIT).hex() == "00000001"
    assert control_value(7).hex() == "000000000007"


def test_a_client_may_not_write_a_marker() -> None:
    batch = build_marker(
        ControlType.COMMIT,
        producer_id=ProducerId(1),
        producer_epoch=ProducerEpoch(0),
        coordinator_epoch=0,
        timestamp=TimestampMs(NOW_MS),
    )
    with pytest.raises(ProtocolError, match="control batch") as caught:
        check_batches(memoryview(batch), max_batch_bytes=1000)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def control_batch(*records: tuple[bytes | None, bytes | None]) -> bytes:
    return build_batch([(NOW_MS, key, value, ()) for key, value in records], control=True, transactional=True)


def test_other_control_batches_are_not_markers() -> None:
    assert parse_marker(control_batch((bytes.fromhex("00000002"), b"leader change"))) is None
    assert parse_marker(build_batch([], last_offset_delta=0, control=True)) is None


@pytest.mark.parametrize(
    "records",
    [
        [(None, control_value(1))],
        [(b"\x00", control_value(1))],
        [(b"\xff\xff\x00\x00", control_value(1))],
        [(control_key(ControlType.ABORT), None)],
        [(control_key(ControlType.ABORT), b"\x00\x00")],
        [(control_key(ControlType.ABORT), b"\xff\xff" + bytes(4))],
        [(control_key(ControlType.ABORT), control_value(1))] * 2,
    ],
)
def test_an_unsound_marker_is_corruption(records: list[tuple[bytes | None, bytes | None]]) -> None:
    with pytest.raises(CorruptionError):
        parse_marker(control_batch(*records))


def test_later_versions_of_the_key_are_understood() -> None:
    assert parse_control_key(bytes.fromhex("0001 0001 ffff")) is ControlType.COMMIT
    assert parse_header(control_batch((control_key(ControlType.COMMIT), control_value(0)))).is_control
