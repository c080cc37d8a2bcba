"""The compiled engine and the plain one, held against each other on the same windows."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import CorruptionError
from app.core.units import Offset, TimestampMs
from app.hot.cleaning.compiled import CompiledEngine
from app.hot.cleaning.engine import EMPTIED_KEPT, RECORDS_DROPPED, TRANSACTION_GONE, Engine
from app.hot.cleaning.plain import PlainEngine
from app.records.batch import HEADER_BYTES, iter_headers, rewrite_header
from app.records.builder import build_batch

COMPILED = CompiledEngine()
HASH_KEY = bytes(range(16))
NOW = 5_000

keys = st.sampled_from([None, b"", b"a", b"b", b"a-key-of-nineteen-b", b"k" * 300])
values = st.sampled_from([None, b"", b"v", b"w" * 500])
rows = st.tuples(
    st.sampled_from([0, 1000, 1001, 70_000, 1 << 41]),
    keys,
    values,
    st.sampled_from([(), (("h", b"x"), ("h", None))]),
)


class Batch(NamedTuple):
    rows: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
    gaps: list[int]
    codec: int
    producer_id: int
    log_append_time: int | None
    action: int
    kept_for_producer: bool


batches = st.builds(
    Batch,
    st.lists(rows, min_size=1, max_size=6),
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
    st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    st.sampled_from([-1, 7]),
    st.sampled_from([None, None, 4000]),
    st.sampled_from([0, 0, 0, RECORDS_DROPPED, EMPTIED_KEPT, TRANSACTION_GONE, RECORDS_DROPPED | EMPTIED_KEPT]),
    st.booleans(),
)


def build(found: list[Batch], first_offset: int) -> tuple[bytearray, bytearray, list[int], int]:
    """The window, the actions, the producers' last offsets, the end."""
    window, offset = bytearray(), first_offset
    ends = []
    for one in found:
        deltas, delta = [], -1
        for gap in one.gaps[: len(one.rows)]:
            delta += 1 + gap
            deltas.append(delta)
        last_delta = delta + one.gaps[-1]
        window += build_batch(
            one.rows,
            base_offset=offset,  # type: ignore[arg-type]
            codec=one.codec,
            offset_deltas=deltas,
            last_offset_delta=last_delta,
            producer_id=one.producer_id,  # type: ignore[arg-type]
            producer_epoch=0,  # type: ignore[arg-type]
            base_sequence=3,
            log_append_time=None if one.log_append_time is None else TimestampMs(one.log_append_time),
        )
        offset += last_delta + 1
        if one.kept_for_producer:
            ends.append(offset - 1)
    return window, bytearray(one.action for one in found), ends, offset


def clean(
    engine: Engine,
    window: bytearray,
    actions: bytearray,
    ends: list[int],
    first: int,
    start: int,
    keys_max: int,
    now: int,
    load_factor: float = 0.9,
) -> tuple[object, ...]:
    engine.new_map(keys_max, start, HASH_KEY, load_factor, 4096)
    scanned = engine.scan(window, len(window), first, 1 << 40)
    whole = engine.index(bytearray(scanned.batches), start)
    engine.begin_segment(first, 200)
    pieces: list[bytes] = []
    engine.filter(actions[: scanned.batches], ends, now, now + 700, lambda piece: pieces.append(bytes(piece)))
    total = engine.end_segment()
    return (
        scanned,
        whole,
        engine.keys,
        engine.latest_offset,
        b"".join(pieces),
        total.entries.encode_offsets(),
        total.entries.encode_times(),
        total[1:],
        engine.records_seen,
        engine.records_kept,
    )


@settings(deadline=None, max_examples=80)
@given(
    st.lists(batches, min_size=1, max_size=12),
    st.sampled_from([0, 3, 1 << 33]),
    st.integers(0, 20),
    st.sampled_from([2, 1000]),
    st.integers(0, 80),
)
def test_both_engines_write_the_same_bytes_round_after_round(
    found: list[Batch], first: int, dirty_from: int, keys_max: int, cut: int
) -> None:
    window, actions, ends, _ = build(found, first)
    window += window[: min(cut, 60)]  # the beginning of another batch
    for now in (NOW, NOW + 500, 10**15):
        plain = clean(PlainEngine(), window, actions + bytes(9), ends, first, first + dirty_from, keys_max, now)
        compiled = clean(COMPILED, window, actions + bytes(9), ends, first, first + dirty_from, keys_max, now)
        assert compiled == plain
        window = bytearray(plain[4])  # type: ignore[arg-type]
        if not window:
            return


@pytest.mark.parametrize("engine", [PlainEngine(), COMPILED], ids=["plain", "compiled"])
@given(st.lists(batches, min_size=1, max_size=3), st.data())
@settings(deadline=None, max_examples=60)
def test_damage_raises_corruption_and_nothing_else(engine: Engine, found: list[Batch], data: st.DataObject) -> None:
    window, actions, ends, _ = build(found, 0)
    # A checksum covers neither where a batch begins nor its leader epoch.
    covered = [at for start, header in iter_headers(window) for at in range(start + 16, start + header.size_bytes)]
    position = data.draw(st.sampled_from([0, *covered]))
    window[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        clean(engine, window, actions, ends, 0, 0, 100, NOW)
    except CorruptionError:
        return
    # A length that changed may make a whole batch look like the beginning of one.
    assert engine.scan(window, len(window), 0, 1 << 40).size_bytes < len(window)


@given(st.binary(min_size=1, max_size=120), st.integers(1, 9))
@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("engine", [PlainEngine(), COMPILED], ids=["plain", "compiled"])
def test_an_interior_that_is_not_sound_behind_a_sound_checksum_is_corruption(
    engine: Engine, interior: bytes, count: int
) -> None:
    window = bytearray(build_batch([(0, b"k", b"v", ())] * count))[:HEADER_BYTES] + interior
    window[8:12] = (len(window) - 12).to_bytes(4, "big")
    rewrite_header(window, 0)
    try:
        clean(engine, window, bytearray(1), [], 0, 0, 100, NOW)
    except CorruptionError:
        return
    # It happens to be sound: then both must say so.
    assert clean(PlainEngine(), window, bytearray(1), [], 0, 0, 100, NOW) == clean(
        COMPILED, window, bytearray(1), [], 0, 0, 100, NOW
    )


def test_a_batch_larger_than_the_output_buffer_is_written_whole() -> None:
    window = bytearray(build_batch([(0, b"%d" % number, b"v" * 1000, ()) for number in range(3000)]))
    assert clean(COMPILED, window, bytearray(1), [], 0, 0, 5000, NOW)[4] == window
    actions = clean(COMPILED, window, bytearray([TRANSACTION_GONE]), [], 0, 0, 5000, NOW)
    assert actions == clean(PlainEngine(), window, bytearray([TRANSACTION_GONE]), [], 0, 0, 5000, NOW)


@pytest.mark.parametrize("keys_max", [500, 800])
@pytest.mark.parametrize("load_factor", [0.01, 0.9, 0.99])
def test_a_map_that_is_nearly_full_finds_what_is_in_it_and_nothing_else(keys_max: int, load_factor: float) -> None:
    rng, window = random.Random(3), bytearray()
    for batch in range(60):  # the newest records have keys that a full map does not know
        rows = [(0, b"%d" % rng.randrange(20 * (batch + 1)), b"v", ()) for _ in range(50)]
        window += build_batch(rows, base_offset=Offset(batch * 50))
    found = [
        clean(engine, window, bytearray(60), [], 0, 300, keys_max, NOW, load_factor)
        for engine in (PlainEngine(), COMPILED)
    ]
    assert found[0] == found[1]
    assert found[0][2] == keys_max


def test_a_map_is_full_for_records_four_billion_offsets_behind_the_first() -> None:
    far = 100 + (1 << 32) - 1
    window = bytearray(build_batch([(0, b"a", b"v", ())], base_offset=Offset(100)))
    window += build_batch([(0, b"b", b"v", ())], base_offset=Offset(far - 1))
    window += build_batch([(0, b"a", b"v", ())], base_offset=Offset(far))
    COMPILED.new_map(10, 100, HASH_KEY, 0.9, 4096)
    scanned = COMPILED.scan(window, len(window), 0, 1 << 40)
    assert not COMPILED.index(bytearray(scanned.batches), 100)
    # The next round begins with the record that did not fit, or there would be no end of rounds.
    assert COMPILED.latest_offset == far - 1
    assert COMPILED.keys == 2


def test_hashes_are_those_of_siphash_1_3_with_128_bits() -> None:
    """Held against a plain transcription of the reference (Aumasson, Bernstein 2012, with the later 128-bit output)."""
    import numpy as np

    from app.hot.cleaning.kernels import siphash

    for length in (0, 1, 7, 8, 9, 15, 16, 63, 200):
        data = bytes(range(256))[:length]
        padded = np.frombuffer(bytearray(data + b"\xff"), np.uint8)
        key = np.frombuffer(HASH_KEY, np.uint64)
        assert tuple(map(int, siphash(padded, 0, length, key[0], key[1]))) == _siphash128(HASH_KEY, data)


def _siphash128(key: bytes, data: bytes) -> tuple[int, int]:
    mask = (1 << 64) - 1

    def rotate(value: int, by: int) -> int:
        return (value << by | value >> (64 - by)) & mask

    def mix(v: list[int]) -> None:
        v[0] = (v[0] + v[1]) & mask
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & mask
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & mask
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & mask
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    k0, k1 = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        mix(v)
        v[0] ^= word
    v[2] ^= 0xEE
    for _ in range(3):
        mix(v)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for _ in range(3):
        mix(v)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]
