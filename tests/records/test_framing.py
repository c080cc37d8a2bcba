"""The framing of compressed records: each form that all clients read passes, and each other is named."""

from __future__ import annotations

import gzip
from struct import pack

import lz4.frame
import pytest

from app.records.compression import XERIAL_HEADER, Codec
from app.records.framing import framing_fault, is_readable

TEXT = b"records " * 100
ZSTD = b"\x28\xb5\x2f\xfd"


def lz4_frame(text: bytes = TEXT, **settings: bool) -> bytes:
    return lz4.frame.compress(text, block_linked=settings.pop("block_linked", False), **settings)


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(pack(">i", len(block)) + block for block in blocks)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.NONE, b""),
        (Codec.GZIP, gzip.compress(TEXT, mtime=0)),  # a time would give each worker of a run other names
        (Codec.GZIP, b"\x1f\x8b\x08\x08" + bytes(6)),
        (Codec.SNAPPY, b"a bare block"),
        (Codec.SNAPPY, xerial(b"one block of some bytes")),
        (Codec.SNAPPY, xerial(b"one", b"two")),
        (Codec.LZ4, lz4_frame()),
        (Codec.LZ4, lz4_frame(store_size=False)),
        (Codec.LZ4, lz4_frame(block_checksum=True, content_checksum=True)),
        (Codec.LZ4, lz4_frame(TEXT * 2000)),
        (Codec.ZSTD, ZSTD + b"\x00\x88" + bytes(20)),
        (Codec.ZSTD, ZSTD + b"\x20\xff" + bytes(20)),
        (Codec.ZSTD, ZSTD + b"\x00\x00"),
        (Codec.ZSTD, ZSTD + b"\x01\x58\x00" + bytes(20)),
        (Codec.ZSTD, b"\x5f\x2a\x4d\x18"),
    ],
)
def test_forms_that_all_clients_read_pass_at_any_position(codec: Codec, data: bytes) -> None:
    for before in (b"", b"header"):
        assert framing_fault(codec, before + data, len(before)) is None
        assert is_readable(codec, before + data, len(before))


@pytest.mark.parametrize(
    ("codec", "data", "fault"),
    [
        (Codec.GZIP, b"\x78\x9c" + bytes(30), "does not begin with a gzip header"),
        (Codec.GZIP, b"\x1f\x8b\x08" + bytes(6), "does not begin with a gzip header"),
        (Codec.GZIP, b"\x1f\x8b\x08\x20" + bytes(30), "reserved flags"),
        (Codec.SNAPPY, b"", "empty"),
        (Codec.SNAPPY, xerial(b"one") + xerial(b"two"), "not one stream"),
        (Codec.SNAPPY, xerial(b"one")[:-4], "not one stream"),
        (Codec.SNAPPY, xerial(b"one", b""), "not one stream"),
        (Codec.SNAPPY, xerial(b"one") + b"\x00", "not one stream"),
        (Codec.SNAPPY, b"\xff\x06\x00\x00sNaPpY" + bytes(20), "framing format"),
        (Codec.LZ4, b"\x02\x21\x4c\x18" + bytes(30), "does not begin with an LZ4 frame"),
        (Codec.LZ4, lz4_frame()[:6], "does not begin with an LZ4 frame"),
        (Codec.LZ4, b"\x04\x22\x4d\x18\xa0\x40\x00" + bytes(30), "version 2"),
        (Codec.LZ4, lz4_frame(TEXT * 2000, block_linked=True), "linked blocks"),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x61\x40\x00" + bytes(30), "dictionary or reserved"),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x60\x30\x00" + bytes(30), "block descriptor 0x30"),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x60\x40\x83" + bytes(30), "does not match its checksum"),
        (Codec.LZ4, lz4_frame() + lz4_frame(), "not one whole frame"),
        (Codec.LZ4, lz4_frame(store_size=False)[:-1], "not one whole frame"),
        (Codec.LZ4, lz4_frame(content_checksum=True)[:-4], "not one whole frame"),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfc" + bytes(30), "does not begin with a zstd frame"),
        (Codec.ZSTD, ZSTD + b"\x00", "does not begin with a zstd frame"),
        (Codec.ZSTD, ZSTD + b"\x08" + bytes(30), "reserved flag"),
        (Codec.ZSTD, ZSTD + b"\x00\x89" + bytes(30), "more than 128 MiB"),
        (Codec.ZSTD, ZSTD + b"\x01\x58\x07" + bytes(30), "needs a dictionary"),
        (Codec.ZSTD, ZSTD + b"\x23\x00\x00\x00\x07" + bytes(30), "needs a dictionary"),
    ],
)
def test_other_forms_are_refused_by_name(codec: Codec, data: bytes, fault: str) -> None:
    told = framing_fault(codec, data)
    assert told is not None
    assert fault in told
    assert not is_readable(codec, data)
