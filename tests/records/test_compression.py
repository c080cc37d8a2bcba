"""Codecs: round trips, the framings other clients write, damage, and bombs."""

from __future__ import annotations

import gzip
import struct
import time
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError, LimitExceeded
from app.core.limits import MIB
from app.records.compression import Codec, compress, decompress

CODECS = list(Codec)
PACKING = CODECS[1:]
XERIAL_HEADER = bytes.fromhex("82534e415050590000000001 00000001")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=300) | st.integers(0, 200_000).map(lambda size: b"firn and ice " * (size // 13)))
@settings(max_examples=25)
def test_what_was_compressed_unfolds_to_itself(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(data))
    assert decompress(codec, memoryview(packed), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, [-1, 1, 9]), (Codec.LZ4, [1, 9, 12, 17]), (Codec.ZSTD, [-5, 1, 3, 19])],
)
def test_every_level_of_kafkas_range_is_taken(codec: Codec, levels: list[int]) -> None:
    data = b"level" * 1000
    for level in levels:
        assert decompress(codec, compress(codec, data, level), len(data)) == data


@pytest.mark.parametrize("codec", PACKING)
@given(data=st.data())
@settings(max_examples=60)
def test_damage_raises_and_nothing_else_happens(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, b"0123456789abcdef" * 40))
    cut = data.draw(st.integers(0, len(packed)))
    for _ in range(data.draw(st.integers(0, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        unfolded = decompress(codec, bytes(packed[:cut]), 10_000)
    except (CorruptionError, LimitExceeded):
        return
    assert len(unfolded) <= 10_000


@pytest.mark.parametrize("codec", PACKING)
def test_a_stream_cut_anywhere_is_never_taken_for_a_whole_one(codec: Codec) -> None:
    data = bytes(range(256)) * 300
    packed = compress(codec, data)
    for cut in {*range(min(len(packed), 200)), *range(0, len(packed), 97), len(packed) - 1}:
        if codec is Codec.SNAPPY and decompresses_at_a_block_end(packed, cut):
            continue
        with pytest.raises(CorruptionError):
            decompress(codec, packed[:cut], len(data))


def decompresses_at_a_block_end(packed: bytes, cut: int) -> bool:
    """Xerial's framing has no end mark: a cut between blocks leaves a shorter, sound stream."""
    position = len(XERIAL_HEADER)
    while position < cut:
        position += 4 + struct.unpack_from(">i", packed, position)[0]
    return position == cut


@pytest.mark.parametrize("codec", PACKING)
def test_bytes_after_the_stream_are_refused(codec: Codec) -> None:
    with pytest.raises(CorruptionError):
        decompress(codec, compress(codec, b"data" * 100) + b"\x00\x01\x02", 10_000)


@pytest.mark.parametrize("codec", PACKING)
def test_nothing_is_not_a_stream(codec: Codec) -> None:
    with pytest.raises(CorruptionError):
        decompress(codec, b"", 10_000)


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_itself_is_allowed_and_one_byte_more_is_not(codec: Codec) -> None:
    packed = compress(codec, b"x" * 70_000)
    assert len(decompress(codec, packed, 70_000)) == 70_000
    with pytest.raises(LimitExceeded, match="69999"):
        decompress(codec, packed, 69_999)


def zstd_without_a_content_size(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(data) + packer.flush()


ZEROS = bytes(64 * MIB)
BOMBS = {
    "gzip": (Codec.GZIP, lambda: gzip.compress(ZEROS)),
    "gzip in many members": (Codec.GZIP, lambda: gzip.compress(ZEROS[: 4 * MIB]) * 16),
    "bare snappy": (Codec.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(ZEROS))),
    "xerial snappy": (Codec.SNAPPY, lambda: compress(Codec.SNAPPY, ZEROS)),
    "lz4": (Codec.LZ4, lambda: lz4.frame.compress(ZEROS)),
    "lz4 that states its size": (Codec.LZ4, lambda: lz4.frame.compress(ZEROS, store_size=True)),
    "zstd": (Codec.ZSTD, lambda: zstandard.compress(ZEROS)),
    "zstd that does not state its size": (Codec.ZSTD, lambda: zstd_without_a_content_size(ZEROS)),
    "zstd in many frames": (Codec.ZSTD, lambda: zstd_without_a_content_size(ZEROS[: 4 * MIB]) * 16),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_without_its_memory_being_spent(name: str) -> None:
    codec, build = BOMBS[name]
    bomb = build()
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded):
            decompress(codec, bomb, 1 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # zstd's input is fed a slice at a time, and one slice may unfold to 32 MiB; all others stop within a step.
    assert peak_bytes < (40 * MIB if codec is Codec.ZSTD else len(bomb) + 8 * MIB)


GZIP_HEADER = gzip.compress(b"", mtime=0)[:10]
LZ4_HEADER = bytes.fromhex("04224d18604082")
EMPTY_DYNAMIC_BLOCK = bytes.fromhex("ecdd810800000000207feb177911")
"""Deflate: 14 bytes that have the decoder build its tables, and no content."""
LABOURS = {
    "gzip: empty members": (Codec.GZIP, b"", gzip.compress(b"", mtime=0)),
    "gzip: small members": (Codec.GZIP, b"", gzip.compress(b"abcdefghijklmnopqrstuvwxyz", mtime=0)),
    "gzip: empty stored blocks": (Codec.GZIP, GZIP_HEADER, b"\0\0\0\xff\xff"),
    "gzip: empty blocks with tables": (Codec.GZIP, GZIP_HEADER, EMPTY_DYNAMIC_BLOCK),
    "gzip: a name without an end": (Codec.GZIP, b"\x1f\x8b\x08\x08" + bytes(6), b"name"),
    "snappy: empty blocks": (Codec.SNAPPY, XERIAL_HEADER, b"\0\0\0\1\0"),
    "snappy: blocks of a byte": (Codec.SNAPPY, XERIAL_HEADER, b"\0\0\0\3\1\0x"),
    "snappy: streams": (Codec.SNAPPY, b"", XERIAL_HEADER),
    "lz4: empty stored blocks": (Codec.LZ4, LZ4_HEADER, b"\0\0\0\x80"),
    "lz4: empty compressed blocks": (Codec.LZ4, LZ4_HEADER, b"\1\0\0\0\0"),
    "lz4: stored blocks of a byte": (Codec.LZ4, LZ4_HEADER, b"\1\0\0\x80x"),
    "zstd: empty frames": (Codec.ZSTD, b"", bytes.fromhex("28b52ffd0000010000")),
    "zstd: empty frames that state their size": (Codec.ZSTD, b"", bytes.fromhex("28b52ffd2000010000")),
    "zstd: skippable frames": (Codec.ZSTD, b"", bytes.fromhex("502a4d1800000000")),
    "zstd: empty blocks": (Codec.ZSTD, bytes.fromhex("28b52ffd0058"), bytes(3)),
    "zstd: empty blocks of a frame that states its size": (Codec.ZSTD, bytes.fromhex("28b52ffd2001"), bytes(3)),
}
"""Codec, start, and what is repeated: streams that cost the decoder much and unfold to little."""
LABOUR_BYTES = 4 * MIB
LABOUR_CPU_SECONDS_MAX = 0.3
"""Of a pool thread. Unbounded, the worst of them takes 20 s and more."""


@pytest.mark.parametrize("name", LABOURS)
def test_a_stream_of_much_work_and_little_content_is_refused_before_the_work(name: str) -> None:
    codec, start, part = LABOURS[name]
    stream = start + part * (LABOUR_BYTES // len(part))
    before = time.thread_time()
    with pytest.raises(CorruptionError, match=r"more than|unfold to only"):
        decompress(codec, stream, 64 * MIB)
    assert time.thread_time() - before < LABOUR_CPU_SECONDS_MAX


def test_a_batch_of_many_members_frames_and_blocks_is_read() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one", mtime=0) * 1024, 10_000) == b"one" * 1024
    assert decompress(Codec.ZSTD, zstandard.compress(b"one") * 1024, 10_000) == b"one" * 1024
    block = bytes(cramjam.snappy.compress_raw(b"one"))
    framed = len(block).to_bytes(4, "big") + block
    assert decompress(Codec.SNAPPY, XERIAL_HEADER + framed * 16_384, 100_000) == b"one" * 16_384
    stored = b"\3\0\0\x80one" * 16_384 + bytes(4)
    assert decompress(Codec.LZ4, LZ4_HEADER + stored, 100_000) == b"one" * 16_384


def test_a_large_batch_that_does_not_compress_is_read() -> None:
    data = b"".join(zlib.crc32(number.to_bytes(4, "big")).to_bytes(4, "big") for number in range(300_000))
    for codec in PACKING:
        assert decompress(codec, compress(codec, data), len(data)) == data


def test_a_frame_after_an_empty_zstd_frame_is_read() -> None:
    assert decompress(Codec.ZSTD, zstandard.compress(b"") + zstandard.compress(b"two"), 100) == b"two"


def test_a_bare_snappy_block_is_read_as_some_clients_write_it() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"bare" * 9)), 100) == b"bare" * 9


def test_snappy_is_written_as_java_writes_it() -> None:
    data = bytes(range(256)) * 300
    packed = compress(Codec.SNAPPY, data)
    assert packed[:16] == XERIAL_HEADER
    position, blocks = 16, []
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert [len(block) for block in blocks] == [32768, 32768, len(data) - 65536]
    assert b"".join(blocks) == data


def test_xerial_streams_may_follow_each_other() -> None:
    packed = compress(Codec.SNAPPY, b"one") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, packed, 100) == b"onetwo"


def test_a_snappy_block_cannot_claim_what_it_cannot_hold() -> None:
    # A varint length of 200 MiB before three bytes: nothing may be allocated for it.
    claim = bytes.fromhex("8080c864") + b"abc"
    with pytest.raises(CorruptionError, match="claim"):
        decompress(Codec.SNAPPY, claim, 256 * MIB)


def test_lz4_is_one_frame_of_independent_blocks_as_java_demands() -> None:
    packed = compress(Codec.LZ4, b"frame" * 50_000)
    info = lz4.frame.get_frame_info(packed)
    assert info["block_linked"] is False
    assert info["block_size"] == 65536
    assert info["content_checksum"] is False
    assert info["content_size"] == 0
    assert packed[:4] == bytes.fromhex("04224d18")


def test_members_and_frames_in_a_row_unfold_as_one() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 100) == b"onetwo"
    assert decompress(Codec.ZSTD, zstandard.compress(b"one") + zstandard.compress(b"two"), 100) == b"onetwo"
    assert decompress(Codec.ZSTD, zstd_without_a_content_size(b"one") + zstandard.compress(b"two"), 100) == b"onetwo"


def test_a_zstd_frame_of_unknown_size_unfolds_across_slices() -> None:
    data = b"".join(zlib.crc32(number.to_bytes(4, "big")).to_bytes(4, "big") for number in range(5000))
    assert decompress(Codec.ZSTD, zstd_without_a_content_size(data), len(data)) == data


def test_an_unknown_codec_is_damage() -> None:
    with pytest.raises(CorruptionError, match="not a compression codec"):
        decompress(7, b"data", 100)
