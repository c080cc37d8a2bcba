"""The framings of each codec, decoded by real clients: the broker's door refuses those that one of them cannot read.

The table of ``docs/compatibility.md`` is this one. The columns of franz-go and Sarama were tried by hand.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard

from app.core.errors import ErrorCode, ProtocolError
from app.core.units import LeaderEpoch, Offset, TimestampMs
from app.records.batch import HEADER_BYTES, check_batches, patch_batch, rewrite_header
from app.records.builder import build_batch, encode_records
from app.records.compression import Codec, compress
from app.records.framing import framing_fault, is_readable
from app.records.record import Record
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from tests.handlers.conversation import talk
from tests.interop.java_programs import JavaProgram, running
from tests.support.broker import running_broker

pytestmark = pytest.mark.interop

NOW_MS: Final = 1_700_000_000_000
VALUE: Final = b"".join(zlib.crc32(number.to_bytes(4, "big")).to_bytes(4, "big") * 3 for number in range(10_000))
"""120 KB: several blocks of 64 KiB."""
RAW: Final = encode_records([Record(Offset(0), TimestampMs(NOW_MS), None, VALUE)], 0, NOW_MS)
LONG: Final = encode_records([Record(Offset(0), TimestampMs(NOW_MS), None, VALUE * 9)], 0, NOW_MS)
CREATE_TOPICS: Final = 19
HALF: Final = len(RAW) // 2
CLIENTS: Final = ("java", "librdkafka", "kafka-python", "aiokafka")
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"


WITHOUT_SNAPPY: Final = ("kafka-python",)
"""Clients whose library of a codec is not installed here: their cells are left out."""


class Variant(NamedTuple):
    """One framing of a codec."""

    codec: Codec
    body: bytes
    unread_by: frozenset[str]
    """Clients that cannot read it, of those tried here."""
    refused: bool
    """Whether the broker's door refuses it: its first bytes say that a client cannot read it."""


def _lz4(data: bytes = RAW, *, linked: bool = False, **options: Any) -> bytes:
    settings = {"block_size": lz4.frame.BLOCKSIZE_MAX64KB, "store_size": False, **options}
    return lz4.frame.compress(data, block_linked=linked, **settings)


def _lz4_with_dictionary() -> bytes:
    """A frame whose header names a dictionary; its checksum is that of the header, as lz4 computes it."""
    frame = _lz4()
    for checksum in range(256):
        made = frame[:4] + bytes([frame[4] | 1]) + frame[5:6] + b"\x07\0\0\0" + bytes([checksum])
        try:
            lz4.frame.get_frame_info(made)
        except RuntimeError:
            continue
        return made + frame[7:]
    raise AssertionError("no checksum is right")


def _xerial(data: bytes, version: int = 1) -> bytes:
    packed = compress(Codec.SNAPPY, data)
    return packed[:8] + struct.pack(">ii", version, version) + packed[16:]


def _zstd(**options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(RAW)


def _zstd_window(window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(RAW) + packer.flush()


def _zstd_dictionary() -> bytes:
    samples = [zlib.crc32(bytes([number % 256, number // 256])).to_bytes(4, "big") * 20 for number in range(2000)]
    return zstandard.ZstdCompressor(dict_data=zstandard.train_dictionary(4096, samples)).compress(RAW)


def _variants() -> Iterator[tuple[str, Variant]]:
    everyone = frozenset(CLIENTS)

    def read(codec: Codec, body: bytes, *unread_by: str) -> Variant:
        return Variant(codec, body, frozenset(unread_by), False)

    def refused(codec: Codec, body: bytes, *read_by: str) -> Variant:
        return Variant(codec, body, everyone - set(read_by), True)

    name = gzip.compress(RAW)
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0skip"
    yield "gzip: one member", read(Codec.GZIP, name)
    yield "gzip: with a file name", read(Codec.GZIP, name[:3] + b"\x08" + name[4:10] + b"name\0" + name[10:])
    yield "gzip: two members", read(Codec.GZIP, gzip.compress(RAW[:HALF]) + gzip.compress(RAW[HALF:]), "librdkafka")
    yield "gzip: reserved flags", refused(Codec.GZIP, name[:3] + b"\x20" + name[4:], "java", "kafka-python", "aiokafka")
    yield "gzip: zlib data", refused(Codec.GZIP, zlib.compress(RAW), "librdkafka")
    yield "snappy: xerial, version 1", read(Codec.SNAPPY, _xerial(RAW))
    yield "snappy: a bare block", read(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(RAW)))
    yield "snappy: two xerial streams", refused(Codec.SNAPPY, _xerial(RAW[:HALF]) + _xerial(RAW[HALF:]), "java")
    yield "snappy: xerial, version 2", read(Codec.SNAPPY, _xerial(RAW, 2), "aiokafka")
    yield "snappy: framing format", refused(Codec.SNAPPY, bytes(cramjam.snappy.compress(RAW)))
    yield "lz4: independent blocks", read(Codec.LZ4, _lz4())
    yield "lz4: blocks of 4 MiB", read(Codec.LZ4, _lz4(LONG, block_size=lz4.frame.BLOCKSIZE_MAX4MB))
    yield "lz4: content size", read(Codec.LZ4, _lz4(store_size=True))
    yield "lz4: content checksum", read(Codec.LZ4, _lz4(content_checksum=True))
    yield "lz4: block checksums", read(Codec.LZ4, _lz4(block_checksum=True))
    yield "lz4: two frames", refused(Codec.LZ4, _lz4(RAW[:HALF]) + _lz4(RAW[HALF:]), "aiokafka")
    yield "lz4: linked blocks", refused(Codec.LZ4, _lz4(linked=True), *CLIENTS[1:])
    yield "lz4: a dictionary", refused(Codec.LZ4, _lz4_with_dictionary(), *CLIENTS[1:])
    yield "lz4: wrong header checksum", refused(Codec.LZ4, _lz4()[:6] + b"\0" + _lz4()[7:])
    yield "lz4: a skippable frame first", refused(Codec.LZ4, skippable + _lz4(), "aiokafka")
    block = lz4.block.compress(RAW, store_size=False)
    yield "lz4: legacy frame", refused(Codec.LZ4, b"\x02\x21\x4c\x18" + struct.pack("<I", len(block)) + block)
    yield "zstd: content size", read(Codec.ZSTD, _zstd())
    yield "zstd: no content size", read(Codec.ZSTD, _zstd(write_content_size=False))
    yield "zstd: checksum", read(Codec.ZSTD, _zstd(write_checksum=True))
    yield "zstd: two frames", read(Codec.ZSTD, zstandard.compress(RAW[:HALF]) + zstandard.compress(RAW[HALF:]))
    yield "zstd: a window of 128 MiB", read(Codec.ZSTD, _zstd_window(27))
    yield "zstd: a skippable frame first", read(Codec.ZSTD, skippable + _zstd())
    yield "zstd: a window of 256 MiB", refused(Codec.ZSTD, _zstd_window(28), "librdkafka")
    yield "zstd: a dictionary", refused(Codec.ZSTD, _zstd_dictionary())


VARIANTS: Final = dict(_variants())


def batch_of(variant: Variant) -> bytes:
    made = bytearray(build_batch([(TimestampMs(NOW_MS), None, b"", ())])[:HEADER_BYTES]) + variant.body
    struct.pack_into(">i", made, 8, len(made) - 12)
    rewrite_header(made, 0, attributes=int(variant.codec))
    return bytes(made)


# --- the clients -------------------------------------------------------------------------------------------------------------


def reads_with_kafka_python(made: bytes) -> bool:
    records = pytest.importorskip("kafka.record")
    return _values(lambda: records.MemoryRecords(made).next_batch())


def reads_with_aiokafka(made: bytes) -> bool:
    records = pytest.importorskip("aiokafka.record.memory_records")
    return _values(lambda: records.MemoryRecords(made).next_batch())


def _values(decode: Callable[[], Any]) -> bool:
    try:
        return sum(len(record.value) for record in decode()) > 0
    except Exception:  # noqa: BLE001 - each codec library has errors of its own, and any of them stops a consumer
        return False


def reads_with_librdkafka(port: int, partition: int) -> bool:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", partition, 0)])
    try:
        found = consumer.poll(3 if "librdkafka" in list(VARIANTS.values())[partition].unread_by else 30)
        return found is not None and found.error() is None and len(found.value()) > 0
    finally:
        consumer.close()


def expected(client: str) -> dict[str, bool]:
    return {
        name: client not in variant.unread_by
        for name, variant in VARIANTS.items()
        if not (variant.codec is Codec.SNAPPY and client in WITHOUT_SNAPPY)
    }


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProgram]:
    with running("Batches.java") as program:
        yield program


def test_the_java_client_reads_what_the_table_says(java: JavaProgram) -> None:
    found = {}
    for name, variant in VARIANTS.items():
        answer = java.ask(base64.b64encode(batch_of(variant)).decode())
        found[name] = answer.startswith("read ") and answer != "read 0"
    assert found == expected("java")


@pytest.mark.parametrize(
    ("client", "reads"), [("kafka-python", reads_with_kafka_python), ("aiokafka", reads_with_aiokafka)]
)
def test_a_python_client_reads_what_the_table_says(client: str, reads: Callable[[bytes], bool]) -> None:
    wanted = expected(client)
    assert {name: reads(batch_of(VARIANTS[name])) for name in wanted} == wanted


async def test_librdkafka_reads_what_the_table_says(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        made = await client.ask(CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", len(VARIANTS), 1)]))
        assert made.topics[0].error_code == 0
        for partition, variant in enumerate(VARIANTS.values()):
            log, records = broker.log("t", partition), bytearray(batch_of(variant))
            patch_batch(records, 0, Offset(0), LeaderEpoch(log.leader_epoch))
            log.append_as_follower(memoryview(records), now_ms=NOW_MS)  # past the door
        found = {}
        for partition, name in enumerate(VARIANTS):
            found[name] = await asyncio.to_thread(reads_with_librdkafka, broker.port, partition)
        assert found == expected("librdkafka")


# --- the door ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_the_door_refuses_a_framing_that_a_client_cannot_read(name: str) -> None:
    variant = VARIANTS[name]
    made = memoryview(bytearray(batch_of(variant)))
    assert is_readable(variant.codec, variant.body) is (framing_fault(variant.codec, variant.body) is None)
    if variant.refused:
        with pytest.raises(ProtocolError, match="Not all clients can read a record batch") as told:
            check_batches(made, max_batch_bytes=1 << 21)
        assert told.value.code is ErrorCode.INVALID_RECORD
    else:
        assert len(check_batches(made, max_batch_bytes=1 << 21)) == 1


def test_the_table_of_the_documents_is_the_one_that_was_tried() -> None:
    rows = dict(re.findall(r"^\| ((?:gzip|snappy|lz4|zstd): [^|]+?) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert rows.keys() == VARIANTS.keys()
    for name, variant in VARIANTS.items():
        door, java, librdkafka, _, _, kafka_python = (cell.strip() for cell in rows[name].split("|"))
        assert door == ("refused" if variant.refused else "stored"), name
        assert java == ("no" if "java" in variant.unread_by else "yes"), name
        assert librdkafka == ("no" if "librdkafka" in variant.unread_by else "yes"), name
        if variant.codec is not Codec.SNAPPY:
            assert kafka_python == ("no" if "kafka-python" in variant.unread_by else "yes"), name
