"""Results and markers in columns: a load of them ends in the state of a load of each by itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from app.coordinator.partition import decode_batches
from app.core.errors import CorruptionError
from app.core.turns import whole
from app.core.units import Offset, ProducerEpoch, ProducerId, TimestampMs
from app.exactly_once import columns
from app.exactly_once.bounds import Usage
from app.exactly_once.columns import Columns, scan
from app.exactly_once.records import Part, RequestKey, Result, encode_result, encode_tick
from app.exactly_once.shard import RequestShard
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.control import ControlType, build_marker

RETENTION = 600_000
NOW = 1_700_000_000_000
EPOCH = ProducerEpoch(0)
PRINCIPALS = ("User:a", "User:b", "User:é", "User:" + "long" * 100)
Decode = Callable[[bytes], Iterable[Any]]


class Turn:
    """Of a shard that lets time pass. It writes nothing that is read again."""

    def __init__(self, end: int) -> None:
        self.now_ms, self._end = NOW, end

    def append(self, records: object, *, producer: object = None) -> Offset:
        self._end += 1
        return Offset(self._end)

    def set_timer(self, key: Hashable, delay_ms: int) -> None: ...


class Log(NamedTuple):
    """Batches, and the keys that they have."""

    batches: list[bytes]
    keys: list[RequestKey]


def result_of(rng: random.Random, now_ms: int, parts: int = 1) -> Result:
    return Result(
        rng.randbytes(16),
        rng.randbytes(32),
        200,
        now_ms,
        now_ms,
        tuple(Part("orders", index, 5, 1, -1) for index in range(parts)),
        tuple(range(parts)),
    )


def batch_of(offset: int, producer: int, *records: tuple[bytes, bytes], **options: Any) -> bytes:
    rows = [(TimestampMs(NOW), key, value, options.pop("headers", ())) for key, value in records]
    return build_batch(
        rows,
        base_offset=Offset(offset),
        producer_id=ProducerId(producer),
        producer_epoch=EPOCH,
        transactional=options.pop("transactional", producer >= 0),
        **options,
    )


def marker_of(offset: int, producer: int, *, commit: bool, decision: bytes = b"") -> bytes:
    return build_marker(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=ProducerId(producer),
        producer_epoch=EPOCH,
        coordinator_epoch=3,
        timestamp=TimestampMs(NOW),
        base_offset=Offset(offset),
        decision=decision,
    )


def random_log(rng: random.Random, steps: int, unusual: float) -> Log:
    """Results and markers of a few producers in any order, and a share of batches that no column takes."""
    batches: list[bytes] = []
    keys: list[RequestKey] = []
    offset, now_ms = rng.randrange(1_000), NOW
    for number in range(steps):
        now_ms += rng.choice((0, 1, 50, 20_000, 500_000, -5_000))
        producer, key = rng.randrange(6), RequestKey(rng.choice(PRINCIPALS), b"key %d" % number)
        record = encode_result(key, result_of(rng, now_ms))
        if rng.random() < unusual:
            batch, records = rng.choice(
                (
                    (batch_of(offset, -1, encode_tick(now_ms)), 1),
                    (batch_of(offset, -1, record), 1),
                    (batch_of(offset, -1, record, transactional=True), 1),
                    (batch_of(offset, producer, record, codec=Codec.ZSTD), 1),
                    (batch_of(offset, producer, record, headers=(("h", b""),)), 1),
                    (batch_of(offset, producer, encode_result(key, result_of(rng, now_ms, 400))), 1),
                    (batch_of(offset, producer, record, encode_tick(now_ms)), 2),
                    (batch_of(offset, producer, (b"\0\x09", b"of a later version")), 1),
                )
            )
        elif rng.random() < 0.5:
            batch, records = batch_of(offset, producer, record), 1
        else:
            decision = rng.choice((b"", b"", bytes(70)))
            batch, records = marker_of(offset, producer, commit=rng.random() < 0.7, decision=decision), 1
        keys.append(key)
        batches.append(batch)
        offset += records
    return Log(batches, keys)


def loaded(portions: Iterable[bytes], decode: Decode) -> tuple[RequestShard, Usage]:
    usage = Usage()
    shard = RequestShard(usage, lambda: RETENTION, buckets=1)
    for data in portions:
        for batch in decode(data):
            shard.load(batch)
    shard.loaded(Turn(shard.end))  # type: ignore[arg-type]
    return shard, usage


def state(shard: RequestShard, usage: Usage, log: Log) -> list[object]:
    """All that callers see of a shard, now and while its results expire."""
    seen: list[object] = [shard.end, sorted(shard.open_results()), shard.key_count]
    turn = Turn(shard.end)
    for _ in range(10):
        standings = [shard.look(key, b"", 0) for key in log.keys]
        seen.append([(one.open, sorted(one.offsets)) for one in standings])
        seen.append((shard.start, usage.total.keys, usage.total.bytes))
        seen.append({name: (amount.keys, amount.bytes) for name, amount in usage.by_principal.items()})
        turn.now_ms += 90_000
        shard.due(turn, "tick")  # type: ignore[arg-type]
        whole(shard.drop_expired())
    return seen


def portions(rng: random.Random, log: Log) -> list[bytes]:
    """The log, cut at ends of batches."""
    cuts = sorted({0, len(log.batches), *(rng.randrange(len(log.batches) + 1) for _ in range(rng.randrange(6)))})
    return [b"".join(log.batches[start:end]) for start, end in pairwise(cuts)]


@pytest.fixture
def _short_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "COLUMN_MIN", 1)
    monkeypatch.setattr(columns, "ROWS_OF_A_RUN", 20)


@pytest.mark.usefixtures("_short_columns")
@pytest.mark.parametrize("seed", range(60))
def test_a_load_by_columns_ends_as_a_load_of_each_batch(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, rng.randrange(1, 200), rng.choice((0, 0.02, 0.3)))
    expected = state(*loaded([b"".join(log.batches)], decode_batches), log)
    assert state(*loaded(portions(rng, log), scan), log) == expected


def test_a_log_of_usual_batches_is_one_piece() -> None:
    log = random_log(random.Random(1), 500, 0)
    (piece,) = scan(b"".join(log.batches))
    assert isinstance(piece, Columns)
    assert len(piece.producers) == 500


def test_a_short_row_between_unusual_batches_is_decoded_one_by_one() -> None:
    log = random_log(random.Random(1), 500, 0.5)
    pieces = list(scan(b"".join(log.batches)))
    assert not any(isinstance(piece, Columns) for piece in pieces)
    assert len(pieces) > 1


def test_the_bytes_of_a_cut_batch_at_the_end_are_skipped() -> None:
    log = random_log(random.Random(2), 100, 0)
    data = b"".join(log.batches)
    for cut in (1, 30, 61, len(log.batches[-1]) - 1):
        (piece,) = scan(data[: -len(log.batches[-1])] + log.batches[-1][:cut])
        assert isinstance(piece, Columns)
        assert len(piece.producers) == 99


@pytest.mark.usefixtures("_short_columns")
@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_raise_corruption_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 80, 0.1)
    data = bytearray(b"".join(log.batches))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with suppress(CorruptionError):
        loaded([bytes(data)], scan)


@pytest.mark.usefixtures("_short_columns")
@pytest.mark.parametrize("decode", [scan, decode_batches])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(1, 4))])
def test_a_damaged_base_offset_raises_corruption_and_nothing_else(seed: int, decode: Decode) -> None:
    log = random_log(random.Random(seed), 60, 0)
    failed = 0
    for number, batch in enumerate(log.batches):
        for place in range(8):  # no checksum covers them
            for value in (0x7F, 0xFF):
                damaged = bytearray(batch)
                damaged[place] = value
                try:
                    loaded([b"".join([*log.batches[:number], bytes(damaged), *log.batches[number + 1 :]])], decode)
                except CorruptionError:
                    failed += 1
    assert failed


def outcome(data: bytes, decode: Decode, keys: Iterable[RequestKey]) -> object:
    """The state after a load of ``data``, in short, or None for damage."""
    try:
        shard, usage = loaded([data], decode)
    except CorruptionError:
        return None
    found = [shard.look(key, b"", 0) for key in keys]
    return shard.end, sorted(shard.open_results()), found, usage.by_principal


@pytest.mark.usefixtures("_short_columns")
@pytest.mark.parametrize("place", range(4))
def test_each_byte_counts_as_in_a_load_of_each_batch(place: int) -> None:
    rng = random.Random(7)
    key = RequestKey("User:a", b"key")
    long = RequestKey("User:" + "long" * 100, b"key")
    batches = [
        batch_of(0, 1, encode_result(key, result_of(rng, NOW))),
        marker_of(1, 1, commit=True),
        batch_of(2, 2, encode_result(long, result_of(rng, NOW + 7))),
        marker_of(3, 2, commit=False),
    ]
    before, after = b"".join(batches[:place]), b"".join(batches[place + 1 :])
    for at in range(len(batches[place])):
        if at < 12:
            continue  # offset and length: the log finds batches by them before any decoder does
        for flip in (0x01, 0x02, 0x80, 0xFF):
            changed = bytearray(batches[place])
            changed[at] ^= flip
            data = before + changed + after
            assert outcome(data, scan, (key, long)) == outcome(data, decode_batches, (key, long)), (at, flip)


@pytest.mark.parametrize("length", [0, 1, 48, 0xFFFF_FFF4])
def test_a_length_that_no_batch_has_is_corruption(length: int) -> None:
    log = random_log(random.Random(3), 100, 0)
    data = bytearray(b"".join(log.batches))
    data[8:12] = length.to_bytes(4)
    if length < 0xFFFF_0000:
        with pytest.raises(CorruptionError, match="a length that no batch has"):
            list(scan(bytes(data)))
    else:
        assert list(scan(bytes(data))) == []


def test_a_principal_that_is_not_text_is_corruption() -> None:
    log = random_log(random.Random(4), 100, 0)
    data = b"".join(log.batches).replace("User:é".encode(), b"User:\xff\xff")
    with pytest.raises(CorruptionError, match="cannot be read"):
        list(scan(data))
