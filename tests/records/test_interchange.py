"""The same batches through other implementations: kafka-python, aiokafka and kio, both ways, and bytes written by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import aiokafka.record.default_records
import kio.records.readers
import pytest
from hypothesis import given, settings

from app.core.units import LeaderEpoch, Offset, TimestampMs
from app.records.batch import check_batches, check_stored_batch, parse_header
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.record import NewRecord, Record, iter_records
from tests.records.strategies import NOW_MS, new_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in an old way
    import kafka.codec
    import kafka.record.default_records

# Written from the format's description: one record "hello" of key "k" with a header "h": "w" at offset 258.
GOLDEN_FIELDS = (
    "0000000000000102"  # base offset 258
    "00000042"  # 66 bytes follow: 49 of the header, 17 of the record
    "00000005"  # leader epoch 5
    "02"  # magic
    "{crc}"
    "0000"  # attributes: no codec, CreateTime
    "00000000"  # last offset delta
    "0000018bcfe56800"  # base timestamp 1700000000000
    "0000018bcfe56800"  # max timestamp
    "ffffffffffffffff"  # no producer id
    "ffff"
    "ffffffff"
    "00000001"  # one record
    "20"  # of 16 bytes
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "02" "6b"  # key
    "0a" "68656c6c6f"  # value
    "02"  # one header
    "02" "68" "02" "77"
)  # fmt: skip


def test_bytes_written_by_hand_are_ours() -> None:
    batch = build_batch(
        [NewRecord(TimestampMs(NOW_MS), b"k", b"hello", (("h", b"w"),))],
        base_offset=Offset(258),
        leader_epoch=LeaderEpoch(5),
    )
    header = parse_header(batch)
    assert batch.hex() == GOLDEN_FIELDS.format(crc=f"{header.crc:08x}")
    assert slow_crc32c(batch[21:]) == header.crc


def slow_crc32c(data: bytes) -> int:
    """The Castagnoli CRC bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def can(client: str, codec: Codec) -> bool:
    """kafka-python finds its snappy only in a package that builds from source."""
    return not (client == "kafka-python" and codec is Codec.SNAPPY and not kafka.codec.has_snappy())


def encode_with(module: Any, records: list[NewRecord], codec: Codec) -> bytes:
    builder = module.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for offset, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp=timestamp, key=key, value=value, headers=list(headers))
    return bytes(builder.build())


CLIENTS = {"kafka-python": kafka.record.default_records, "aiokafka": aiokafka.record.default_records}
CASES = [(client, codec) for client in CLIENTS for codec in Codec if can(client, codec)]


@pytest.mark.parametrize(("client", "codec"), CASES)
@given(records=new_records)
@settings(max_examples=10)
def test_what_clients_encode_is_checked_and_read(client: str, codec: Codec, records: list[NewRecord]) -> None:
    batch = encode_with(CLIENTS[client], records, codec)
    [(_, header)] = check_batches(memoryview(batch), max_batch_bytes=len(batch))
    assert header.record_count == len(records)
    assert list(iter_records(batch)) == [Record(Offset(index), *record) for index, record in enumerate(records)]


@pytest.mark.parametrize("client", CLIENTS)
@given(records=new_records)
@settings(max_examples=20)
def test_uncompressed_batches_are_byte_for_byte_what_clients_encode(client: str, records: list[NewRecord]) -> None:
    theirs = bytearray(encode_with(CLIENTS[client], records, Codec.NONE))
    epoch = LeaderEpoch(parse_header(theirs).leader_epoch)
    assert build_batch(records, leader_epoch=epoch) == bytes(theirs)


@pytest.mark.parametrize(("client", "codec"), CASES)
@given(records=new_records)
@settings(max_examples=10)
def test_clients_read_what_we_build(client: str, codec: Codec, records: list[NewRecord]) -> None:
    batch = build_batch(records, base_offset=Offset(1000), leader_epoch=LeaderEpoch(2), codec=codec)
    reader = CLIENTS[client].DefaultRecordBatch(batch)
    assert reader.validate_crc()
    seen = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in reader]
    assert seen == [(1000 + index, *record) for index, record in enumerate(records)]


@given(records=new_records)
@settings(max_examples=20)
def test_kio_reads_the_same_batch(records: list[NewRecord]) -> None:
    batch = build_batch(records, base_offset=Offset(5), leader_epoch=LeaderEpoch(1))
    theirs, size = kio.records.readers.read_batch(batch, 0)
    header = check_stored_batch(memoryview(batch))
    assert size == len(batch) == header.size_bytes
    for name in ("base_offset", "batch_length", "crc", "attributes", "last_offset_delta", "base_timestamp",
                 "max_timestamp", "producer_id", "producer_epoch", "base_sequence"):  # fmt: skip
        assert getattr(theirs, name) == getattr(header, name)
    for ours, other in zip(iter_records(batch), theirs.records, strict=True):
        assert (ours.offset, ours.key, ours.value) == (other.offset, other.key, other.value)
        assert [(key.encode(), value) for key, value in ours.headers] == [(h.key, h.value) for h in other.headers]


GOLDEN = dict(
    line.split()
    for line in (Path(__file__).parent / "golden" / "librdkafka.txt").read_text().splitlines()
    if not line.startswith("#")
)


@pytest.mark.parametrize("codec", list(Codec))
def test_what_librdkafka_sent_is_checked_and_read(codec: Codec) -> None:
    batch = bytes.fromhex(GOLDEN[codec.name.lower()])
    [(_, header)] = check_batches(memoryview(batch), max_batch_bytes=len(batch))
    assert (header.codec, header.record_count, header.max_timestamp) == (codec, 4, NOW_MS + 3)
    expected = [
        Record(
            Offset(index), TimestampMs(NOW_MS + index), b"key-%d" % index, b"value " * 20, (("h", b"x"), ("n", None))
        )
        for index in range(3)
    ]
    expected.append(Record(Offset(3), TimestampMs(NOW_MS + 3), None, None))
    assert list(iter_records(batch)) == expected
