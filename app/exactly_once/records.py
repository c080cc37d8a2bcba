"""The records of `__http_requests`: results of keyed requests, and ticks (ADR 0043). Pure.

A key begins with an int16 kind, a value with an int16 version. Numbers are big-endian. ``docs/formats.md`` has the fields. The
bytes come from a log that brokers write, and are checked all the same. Tests: ``tests/exactly_once/test_records.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final, NamedTuple, TypeAlias

from app.core.errors import CorruptionError, clause
from app.metadata.image.records import HTTP_REQUESTS_TOPIC

TOPIC: Final = HTTP_REQUESTS_TOPIC
PARTITIONS: Final = 8
"""The topic never has another number: a key stays in its partition."""
KEY_BYTES_MAX: Final = 255
PRINCIPAL_BYTES_MAX: Final = 1_024
PARTS_MAX: Final = 1_000
"""Partitions that one request writes to."""
RECORDS_MAX: Final = 10_000
"""Records of one request."""
TRY_ID_BYTES: Final = 16
DIGEST_BYTES: Final = 32

_KIND: Final = Struct(">h")
_LENGTH: Final = Struct(">h")
_COUNT: Final = Struct(">i")
_HEAD: Final = Struct(">h16s32shqq")
"""Version, try id, digest, status, time of the append and time of the request."""
HEAD_BYTES: Final = _HEAD.size
_PART: Final = Struct(">iqiq")
"""Partition, base offset, count of records and log append time."""
_RUN: Final = Struct(">ii")
"""A part and a count: so many records of the request went to it, one after the other."""
_TICK: Final = Struct(">hq")
VERSION: Final = 0
VERSION_WITH_ANSWER: Final = 1
"""Of results whose answer cannot be made from the request alone. Written from ``APPEND_LEVEL`` on."""
HASHES_KEPT: Final = 256
"""A request asks for the hash of its key at each step."""
_HASH_MASK: Final = (1 << 64) - 1


class Kind(IntEnum):
    """The kinds of records."""

    RESULT = 0
    TICK = 1


_RESULT_KEY: Final = _KIND.pack(Kind.RESULT)


class RequestKey(NamedTuple):
    """The key of a request. Two principals never share one."""

    principal: str
    key: bytes

    @property
    def hash64(self) -> int:
        """64 bits of SHA-256 over principal and key. Two keys may share them: then their records tell them apart."""
        return _hash64(self.principal, self.key)

    @property
    def index_hash(self) -> int:
        """64 bits of the hash by which the index of this process knows the key."""
        return index_hash(encode_key(self))

    @property
    def partition(self) -> int:
        """The partition of the topic that has the result."""
        return self.hash64 % PARTITIONS


@lru_cache(HASHES_KEPT)
def _hash64(principal: str, key: bytes) -> int:
    name = principal.encode()
    return int.from_bytes(sha256(_LENGTH.pack(len(name)) + name + key).digest()[:8])


class Part(NamedTuple):
    """The records of a request in one partition."""

    topic: str
    partition: int
    base_offset: int
    records: int
    log_append_ms: int
    """-1 if the topic keeps the records' own timestamps."""


class Result(NamedTuple):
    """The result of a keyed request. It counts once its transaction is committed."""

    try_id: bytes
    """16 random bytes of the try that wrote it."""
    digest: bytes
    """SHA-256 of method, path, media type and body."""
    status: int
    appended_ms: int
    """The coordinator's time of the append."""
    filled_ms: int
    """The timestamp of records without one."""
    parts: tuple[Part, ...]
    places: tuple[int, ...]
    """For each record of the request, in its order: the index of its part."""
    answer: bytes = b""
    """Fields of the answer that are not in the request. Brokers do not read them."""

    def offsets(self) -> Iterator[tuple[Part, int]]:
        """For each record of the request, in its order: its part and its offset."""
        taken = [0] * len(self.parts)
        for place in self.places:
            part = self.parts[place]
            yield part, part.base_offset + taken[place]
            taken[place] += 1


class Tick(NamedTuple):
    """A record that lets time pass while no result is written."""

    appended_ms: int


Encoded: TypeAlias = tuple[bytes, bytes]
Decoded: TypeAlias = tuple[RequestKey, Result] | Tick


def encode_result(key: RequestKey, result: Result) -> Encoded:
    """Key and value of a result. Raises: ValueError for a key, parts or places that no record can hold."""
    record_key = encode_key(key)
    runs = [(place, len(list(run))) for place, run in groupby(result.places)]
    _check(result.parts, runs, len(result.places))
    value = bytearray(_HEAD.pack(VERSION_WITH_ANSWER if result.answer else VERSION, *result[:5]))
    value += _COUNT.pack(len(result.parts))
    for topic, *numbers in result.parts:
        name = topic.encode()
        value += _LENGTH.pack(len(name)) + name + _PART.pack(*numbers)
    value += _COUNT.pack(len(runs))
    for run in runs:
        value += _RUN.pack(*run)
    value += result.answer
    return record_key, bytes(value)


def encode_key(key: RequestKey) -> bytes:
    """The key of the record of a result. Raises: ValueError for a key that no record can hold."""
    principal = key.principal.encode()
    if not 1 <= len(key.key) <= KEY_BYTES_MAX or len(principal) > PRINCIPAL_BYTES_MAX:
        raise ValueError(f"A key has 1 to {KEY_BYTES_MAX} bytes, and a principal {PRINCIPAL_BYTES_MAX} at most.")
    return _KIND.pack(Kind.RESULT) + _LENGTH.pack(len(principal)) + principal + key.key


def index_hash(record_key: bytes) -> int:
    """64 bits of a hash that begins at random in each process. It takes a tenth of the time of SHA-256."""
    return hash(record_key) & _HASH_MASK


def encode_tick(now_ms: int) -> Encoded:
    """Key and value of a tick."""
    return _KIND.pack(Kind.TICK), _TICK.pack(VERSION, now_ms)


def decode(key: bytes, value: bytes | None, records_max: int = RECORDS_MAX) -> Decoded | None:
    """The content of a record; None for a record of an unknown kind, which readers skip. ``records_max``: of a result's request.

    Raises: CorruptionError.
    """
    try:
        (kind,) = _KIND.unpack_from(key)
        if kind not in Kind.__members__.values():
            return None
        if value is None:
            raise ValueError("a tombstone")
        if kind == Kind.TICK:
            version, appended_ms = _TICK.unpack(value)
            _check_version(version)
            return Tick(appended_ms)
        return _decode_key(key), _decode_result(value, records_max)
    except (StructError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise CorruptionError(f"A record of {TOPIC} cannot be read: {clause(error)}.") from None


class Head(NamedTuple):
    """The fields of a result that a replay needs."""

    try_id: bytes
    appended_ms: int


def decode_head(key: bytes, value: bytes | None) -> tuple[RequestKey, Head] | Tick | None:
    """As ``decode``, with the head of a result alone: a take-over reads millions. The rest is checked when it is read.

    Raises: CorruptionError.
    """
    if value is None or not key.startswith(_RESULT_KEY) or len(value) < _HEAD.size:
        found = decode(key, value)
        return found if found is None or isinstance(found, Tick) else (found[0], Head(found[1][0], found[1][3]))
    try:
        version, try_id, _, _, appended_ms, _ = _HEAD.unpack_from(value)
        _check_version_of_result(version)
        return _decode_key(key), Head(try_id, appended_ms)
    except (StructError, UnicodeDecodeError, ValueError) as error:
        raise CorruptionError(f"A record of {TOPIC} cannot be read: {clause(error)}.") from None


def principal_of(beginning: bytes) -> str:
    """The principal in the record key of a result, or in the beginning of one. Raises: CorruptionError."""
    try:
        return beginning[_KIND.size + _LENGTH.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"A record of {TOPIC} cannot be read: {clause(error)}.") from None


def decode_result_key(key: bytes) -> RequestKey:
    """The key of a request from the record key of its result. Raises: CorruptionError."""
    try:
        return _decode_key(key)
    except (StructError, UnicodeDecodeError, ValueError) as error:
        raise CorruptionError(f"A record of {TOPIC} cannot be read: {clause(error)}.") from None


def _decode_key(key: bytes) -> RequestKey:
    (length,) = _LENGTH.unpack_from(key, _KIND.size)
    start = _KIND.size + _LENGTH.size
    end = start + length
    if length < 0 or not 1 <= len(key) - end <= KEY_BYTES_MAX:
        raise ValueError("its key has another length")
    return RequestKey(key[start:end].decode(), key[end:])


def _decode_result(value: bytes, records_max: int) -> Result:
    version, try_id, digest, status, appended_ms, filled_ms = _HEAD.unpack_from(value)
    _check_version_of_result(version)
    position = _HEAD.size
    (count,) = _COUNT.unpack_from(value, position)
    position += _COUNT.size
    if not 0 <= count <= PARTS_MAX:
        raise ValueError(f"it has {count} parts")
    parts: list[Part] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(value, position)
        position += _LENGTH.size
        name = value[position : position + length]
        if length < 0 or len(name) != length:
            raise ValueError("the name of a topic is cut off")
        position += length
        parts.append(Part(name.decode(), *_PART.unpack_from(value, position)))
        position += _PART.size
    (count,) = _COUNT.unpack_from(value, position)
    position += _COUNT.size
    end = position + count * _RUN.size
    if not 0 <= count <= records_max or len(value) < end or (len(value) > end) != (version == VERSION_WITH_ANSWER):
        raise ValueError("its runs have another length")
    places: list[int] = []
    runs = [*_RUN.iter_unpack(value[position:end])]
    for place, times in runs:
        if not 0 < times <= records_max - len(places):
            raise ValueError(f"a run has {times} records")
        places += [place] * times
    _check(parts, runs, len(places))
    return Result(try_id, digest, status, appended_ms, filled_ms, tuple(parts), tuple(places), value[end:])


def _check_version_of_result(version: int) -> None:
    if version != VERSION_WITH_ANSWER:
        _check_version(version)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ValueError(f"version {version} is not known")


def _check(parts: Sequence[Part], runs: Sequence[tuple[int, int]], records: int) -> None:
    """Raises: ValueError unless each part has as many records as runs name it."""
    if not 0 < len(parts) <= PARTS_MAX or not 0 < records <= RECORDS_MAX:
        raise ValueError(f"{len(parts)} parts and {records} records")
    counts = [0] * len(parts)
    for place, times in runs:
        if not 0 <= place < len(parts):
            raise ValueError(f"there is no part {place}")
        counts[place] += times
    if counts != [part.records for part in parts]:
        raise ValueError("its parts have other counts than its records")
