"""The five codecs of a record batch, with a limit that holds while data unfolds.

A compressed batch comes from a peer, so its own claims about its size are never believed further than the limit: no bytes can
make it allocate more than ``max_bytes`` (plus one step of a few MiB), and work stops there.

Work is bounded, too, for bytes that unfold to nothing. The number of a stream's parts is limited (``MEMBERS_MAX``, ``BLOCKS_MAX``),
and the stream may not be far longer than its content (``WASTED_BYTES_MAX``). Otherwise 10 MB of empty gzip members take minutes.

    none    –
    gzip    RFC 1952, one or more members                        zlib
    snappy  raw blocks behind xerial's header, as Java writes;   cramjam
            a bare raw block, as some clients write, is read too
    lz4     the standard frame format, independent 64 KiB blocks lz4
    zstd    RFC 8878, one or more frames                         zstandard

The libraries were chosen by measurement on 1 KB, 16 KB and 1 MB of JSON: zlib beats cramjam's gzip both ways, lz4's own
binding its lz4; zstandard is three times as fast as cramjam on small data if contexts are used again, which is why they
are kept in free lists below. (``list.pop`` and ``append`` are atomic, so pool threads may share them; a context in use is
in no list.)
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct
from typing import Final, assert_never

import cramjam
import lz4.frame
import zstandard

from app.core.errors import CorruptionError, LimitExceeded, clause
from app.core.limits import KIB, MIB

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES: Final = {codec.name.lower(): codec for codec in Codec}
"""As in the setting ``compression.type``, whose ``uncompressed`` is NONE and whose ``producer`` is not a codec."""

GZIP_LEVEL_DEFAULT: Final = -1
LZ4_LEVEL_DEFAULT: Final = 9
ZSTD_LEVEL_DEFAULT: Final = 3

MEMBERS_MAX: Final = 1024
"""Gzip members, zstd frames or xerial streams of one batch. Clients write one; each costs a new decoder."""
BLOCKS_MAX: Final = 16_384
"""Snappy and LZ4 blocks of one batch. Clients write blocks of 32 KiB or more, so this many are 512 MiB."""
WASTED_BYTES_MAX: Final = 256 * KIB
"""Bytes by which a gzip or zstd stream may be longer than twice its content. Inside a member or frame, blocks are not counted."""

_GZIP_WBITS: Final = 31
_GZIP_SLICE_BYTES: Final = 256 * KIB
"""Input given to zlib at a time: the end of each member copies the rest of it."""
_STEP_BYTES: Final = 64 * KIB
"""First output buffer of a decoder that cannot know how much will come."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
"""Magic, version 1, lowest compatible version 1 (snappy-java's SnappyCodec)."""
_XERIAL_BLOCK_BYTES: Final = 32 * KIB
_SNAPPY_EXPANSION_MAX: Final = 22
"""Snappy's densest element is a copy: three bytes that stand for 64. A block that claims more lies about its length."""
_INT32: Final = Struct(">i")

LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
LZ4_CONTENT_SIZE: Final = 0x08
LZ4_BLOCK_CHECKSUM: Final = 0x10
LZ4_DICTIONARY: Final = 0x01
_LZ4_HEADER_BYTES_MIN: Final = 7
"""Magic, flags, block descriptor and header checksum. An optional content size and dictionary id come before the checksum."""
_LZ4_BLOCK_SIZE: Final = Struct("<I")

_ZSTD_SLICE_BYTES: Final = 1 * KIB
"""Input given to a zstd frame of unknown size at a time: it can unfold to 32 MiB at most (a 128 KiB block takes 4 bytes)."""
_ZSTD_CONTEXTS_MAX: Final = 16
_zstd_decompressors: Final[list[zstandard.ZstdDecompressor]] = []
_zstd_compressors: Final[dict[int, list[zstandard.ZstdCompressor]]] = {}


def compress(codec: Codec | int, data: Buffer, level: int | None = None) -> bytes:
    """``data`` in the framing that Java's client writes; ``level`` is the codec's own, None its default.

    Levels: gzip 1–9 or -1, lz4 1–17 (9, Kafka's default, is lz4's fast mode), zstd as zstd has them; others ignore it.
    """
    codec = Codec(codec)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(GZIP_LEVEL_DEFAULT if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return bytes(
                lz4.frame.compress(
                    data,
                    compression_level=0 if level is None or level == LZ4_LEVEL_DEFAULT else max(level, 3),
                    block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                    block_linked=False,
                    store_size=False,
                )
            )
        case Codec.ZSTD:
            return _compress_zstd(data, ZSTD_LEVEL_DEFAULT if level is None else level)
        case _:
            assert_never(codec)


def decompress(codec: Codec | int, data: Buffer, max_bytes: int) -> bytes:
    """Decompress ``data``.

    Raises: CorruptionError if ``data`` is not a whole, sound stream of ``codec`` and nothing else; LimitExceeded as soon as
    it is known to unfold to more than ``max_bytes``.
    """
    match codec:
        case Codec.NONE:
            if len(data) > max_bytes:
                raise _too_large(codec, max_bytes)
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(data, max_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(data, max_bytes)
        case Codec.LZ4:
            return _decompress_lz4(data, max_bytes)
        case Codec.ZSTD:
            return _decompress_zstd(data, max_bytes)
        case _:
            raise CorruptionError(f"{codec} is not a compression codec.")


def _too_large(codec: int, max_bytes: int) -> LimitExceeded:
    return LimitExceeded(f"{Codec(codec).name.lower()} data unfolds to more than {max_bytes} bytes.")


def _too_many(codec: int, parts: str, parts_max: int) -> CorruptionError:
    return CorruptionError(f"{Codec(codec).name.lower()} data has more than {parts_max} {parts}.")


def _check_waste(codec: int, consumed_bytes: int, content_bytes: int) -> None:
    """Raises: CorruptionError if a stream is far longer than its decompressed content."""
    if consumed_bytes > 2 * content_bytes + WASTED_BYTES_MAX:
        raise CorruptionError(
            f"{consumed_bytes} bytes of {Codec(codec).name.lower()} data unfold to only {content_bytes} bytes."
        )


# --- gzip -----------------------------------------------------------------------------------------------------------


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    pieces: list[bytes] = []
    total = position = 0
    members = 1
    unpacker = zlib.decompressobj(_GZIP_WBITS)
    while position < len(view):
        if unpacker.eof:
            members += 1
            if members > MEMBERS_MAX:
                raise _too_many(Codec.GZIP, "members", MEMBERS_MAX)
            unpacker = zlib.decompressobj(_GZIP_WBITS)
        try:
            # One byte more than allowed tells a stream that fits exactly from one that does not.
            piece = unpacker.decompress(view[position : position + _GZIP_SLICE_BYTES], max_bytes - total + 1)
        except zlib.error as error:
            raise CorruptionError(f"Gzip data is damaged: {clause(error)}.") from None
        total += len(piece)
        if total > max_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        pieces.append(piece)
        position = min(position + _GZIP_SLICE_BYTES, len(view)) - len(unpacker.unused_data)
        _check_waste(Codec.GZIP, position, total)
    if not unpacker.eof:
        raise CorruptionError("Gzip data ends early.")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# --- snappy ---------------------------------------------------------------------------------------------------------


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces = [XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _starts_xerial(view: memoryview, position: int) -> bool:
    return bytes(view[position : position + len(XERIAL_MAGIC)]) == XERIAL_MAGIC


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if not _starts_xerial(view, 0):
        return _decompress_snappy_block(view, max_bytes, max_bytes)
    end = len(view)
    position = 0
    pieces: list[bytes] = []
    total = streams = 0
    while position < end:
        if _starts_xerial(view, position):
            # Streams may follow each other; the versions after the magic are informative, as in snappy-java.
            streams += 1
            if streams > MEMBERS_MAX:
                raise _too_many(Codec.SNAPPY, "streams", MEMBERS_MAX)
            position += len(XERIAL_HEADER)
            if position > end:
                raise CorruptionError("Snappy data ends in its header.")
            continue
        if position + 4 > end:
            raise CorruptionError("Snappy data ends in a block's length.")
        (length,) = _INT32.unpack_from(view, position)
        position += 4
        if not 0 < length <= end - position:
            raise CorruptionError(f"A snappy block claims {length} bytes where {end - position} are left.")
        if len(pieces) == BLOCKS_MAX:
            raise _too_many(Codec.SNAPPY, "blocks", BLOCKS_MAX)
        piece = _decompress_snappy_block(view[position : position + length], max_bytes - total, max_bytes)
        position += length
        total += len(piece)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _decompress_snappy_block(block: memoryview, room_bytes: int, max_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > room_bytes:
            raise _too_large(Codec.SNAPPY, max_bytes)
        if size > _SNAPPY_EXPANSION_MAX * len(block):
            raise CorruptionError(f"{len(block)} bytes of snappy claim to unfold to {size}.")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptionError(f"Snappy data is damaged: {clause(error)}.") from None


# --- lz4 ------------------------------------------------------------------------------------------------------------


def _check_lz4_blocks(view: memoryview) -> None:
    """Raises: CorruptionError if a frame has too many blocks. A damaged frame is left to the decoder."""
    if len(view) < _LZ4_HEADER_BYTES_MIN or bytes(view[:4]) != LZ4_MAGIC:
        return
    flags = view[4]
    position = _LZ4_HEADER_BYTES_MIN + (8 if flags & LZ4_CONTENT_SIZE else 0) + (4 if flags & LZ4_DICTIONARY else 0)
    after = 8 if flags & LZ4_BLOCK_CHECKSUM else 4
    end = len(view) - 4
    for _ in range(BLOCKS_MAX + 1):
        if position > end:
            return
        size = _LZ4_BLOCK_SIZE.unpack_from(view, position)[0]
        if size == 0:
            return
        position += after + (size & 0x7FFFFFFF)
    raise _too_many(Codec.LZ4, "blocks", BLOCKS_MAX)


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    _check_lz4_blocks(memoryview(data))
    unpacker = lz4.frame.LZ4FrameDecompressor()
    pieces: list[bytes] = []
    total = 0
    step = max(_STEP_BYTES, 4 * len(data))
    rest: Buffer = data
    while True:
        try:
            piece = unpacker.decompress(rest, min(step, max_bytes - total + 1))
        except (RuntimeError, EOFError) as error:
            raise CorruptionError(f"Lz4 data is damaged: {clause(error)}.") from None
        total += len(piece)
        if total > max_bytes:
            raise _too_large(Codec.LZ4, max_bytes)
        pieces.append(piece)
        if unpacker.eof:
            if unpacker.unused_data:
                raise CorruptionError("Bytes follow the lz4 frame.")
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if unpacker.needs_input:
            raise CorruptionError("Lz4 data ends early.")
        rest = b""
        step *= 2


# --- zstd -----------------------------------------------------------------------------------------------------------


def _compress_zstd(data: Buffer, level: int) -> bytes:
    free = _zstd_compressors.setdefault(level, [])
    try:
        context = free.pop()
    except IndexError:
        context = zstandard.ZstdCompressor(level=level)
    packed = context.compress(data)
    if len(free) < _ZSTD_CONTEXTS_MAX:
        free.append(context)
    return packed


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    try:
        context = _zstd_decompressors.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=128 * MIB)
    try:
        size = zstandard.frame_content_size(data)
        if size > max_bytes:
            raise _too_large(Codec.ZSTD, max_bytes)
        if (
            size > 0 and len(data) <= 2 * size + WASTED_BYTES_MAX
        ):  # with size 0, zstd would ignore bytes after the frame
            try:
                return context.decompress(data, max_output_size=size, allow_extra_data=False)
            except zstandard.ZstdError:
                pass  # Several frames in a row come here too; the streaming decoder tells them from damaged bytes.
        return _decompress_zstd_stream(context, memoryview(data), max_bytes)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"Zstd data is damaged: {clause(error)}.") from None
    finally:
        if len(_zstd_decompressors) < _ZSTD_CONTEXTS_MAX:
            _zstd_decompressors.append(context)


def _decompress_zstd_stream(context: zstandard.ZstdDecompressor, view: memoryview, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    total = 0
    frames = 1
    unpacker = context.decompressobj()
    for start in range(0, len(view), _ZSTD_SLICE_BYTES):
        rest: Buffer = view[start : start + _ZSTD_SLICE_BYTES]
        while rest:
            if unpacker.eof:
                frames += 1
                if frames > MEMBERS_MAX:
                    raise _too_many(Codec.ZSTD, "frames", MEMBERS_MAX)
                unpacker = context.decompressobj()
            piece = unpacker.decompress(rest)
            total += len(piece)
            if total > max_bytes:
                raise _too_large(Codec.ZSTD, max_bytes)
            pieces.append(piece)
            rest = unpacker.unused_data if unpacker.eof else b""
        _check_waste(Codec.ZSTD, start, total)
    if not unpacker.eof:
        raise CorruptionError("Zstd data ends early.")
    return b"".join(pieces)
