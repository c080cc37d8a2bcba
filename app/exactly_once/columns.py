"""Results and markers of a load in columns: most of a log of ten million keys is never decoded one by one (ADR 0043, EO15). Pure.

A result is a transactional batch of one record, and a marker is a batch of its own. ``scan`` finds such batches, and reads their
fields for many of them together. It gives every other batch as ``ReplayedBatch``, in the order of the log: ticks, batches of
several records, compressed ones, and damaged ones, whose decoding raises the error.

This module imports numpy, which takes 15 MB of memory and 0.1 s of CPU. So a broker imports it for the first long log of results.

Tests: ``tests/exactly_once/test_columns.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from app.coordinator.partition import ReplayedBatch, decode_batches
from app.core.errors import CorruptionError
from app.core.units import Offset
from app.exactly_once.records import HEAD_BYTES, KEY_BYTES_MAX, TOPIC, TRY_ID_BYTES, VERSION, Kind, principal_of
from app.records.batch import CONTROL, HEADER_BYTES, LENGTH_PREFIX_BYTES, TRANSACTIONAL

ROWS_OF_A_RUN: Final = 1 << 16
"""Rows that are sorted together: about 5 ms, and 1 MiB that is freed together."""
COLUMN_MIN: Final = 64
"""A shorter row of usual batches is decoded one by one, which takes less time."""
DECODED_AT_ONCE: Final = 128
"""Batches that are decoded before other work may run: about 4 ms."""

Numbers: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_LENGTH: Final = Struct(">I")
"""As it lies in a batch. It is never below 0, so a damaged one cannot lead backwards."""
_BATCH: Final = np.dtype(
    {
        "names": ["offset", "attributes", "delta", "producer", "count", "record"],
        "formats": [">i8", ">i2", ">i4", ">i8", ">i4", "17u1"],
        "offsets": [0, 21, 23, 43, 57, 61],
        "itemsize": HEADER_BYTES + 17,
    }
)
"""A batch header, and the beginning of its record. A marker without headers has no more bytes."""
_HEAD: Final = np.dtype(
    {"names": ["version", "appended"], "formats": [">i2", ">i8"], "offsets": [0, 52], "itemsize": HEAD_BYTES}
)
"""The fields of a result's value that a load needs."""


class Decided(NamedTuple):
    """The outcome of each batch of ``Columns``."""

    committed: Flags
    """For each result, whether the next batch of its producer here is a marker that commits."""
    aborted: Flags
    left: list[int]
    """Batches that are to be taken one by one, in their order: the other results, and markers that end a result that is not ended
    above."""


class Columns(NamedTuple):
    """Successive batches, each of them one result or one marker."""

    data: bytes
    end_offset: Offset
    """One past the last of them."""
    producers: Numbers
    """Of each batch."""
    is_marker: Flags
    is_commit: Flags
    """False for results."""
    result_of: Numbers
    """For each batch that is a result, its place among the results below."""
    offsets: Numbers
    """From here on, one row for each result."""
    hashes: Hashes
    appended_ms: Numbers
    sizes: Numbers
    """Bytes of key and value."""
    keys_at: Numbers
    """Of the record's key in ``data``."""
    keys_end: Numbers
    principals: Sequence[str]
    principal_of: Numbers
    """The place among ``principals``."""

    def decided(self, open_producers: Sequence[int]) -> Decided:
        """Which results end here, and which batches are left. ``open_producers``: those with open results from before."""
        order = np.argsort(self.producers, kind="stable")
        producers, is_marker = self.producers[order], self.is_marker[order]
        same = producers[1:] == producers[:-1]
        ends = same & ~is_marker[:-1] & is_marker[1:]  # a result, and the marker after it
        pairs = np.flatnonzero(ends)
        results, commits = self.result_of[order[pairs]], self.is_commit[order[pairs + 1]]
        committed, aborted = np.zeros((2, len(self.offsets)), np.bool_)
        committed[results[commits]] = True
        aborted[results[~commits]] = True
        left = np.zeros(len(order), np.bool_)
        left[~self.is_marker] = ~(committed | aborted)
        # Such a marker ends an earlier result, too: the one before the one before it, or those from before.
        left[order[2:][ends[1:] & same[:-1] & ~is_marker[:-2]]] = True
        if open_producers:
            markers = order[is_marker]
            _, first = np.unique(self.producers[markers], return_index=True)
            markers = markers[first]
            left[markers[np.isin(self.producers[markers], np.array(open_producers, np.int64))]] = True
        return Decided(committed, aborted, np.flatnonzero(left).tolist())

    def key_of(self, result: int) -> bytes:
        """The key of the record of a result."""
        return self.data[self.keys_at[result] : self.keys_end[result]]

    def try_id_of(self, result: int) -> bytes:
        """The try that wrote a result."""
        at = int(self.keys_end[result]) + 4  # behind the length of the value and its version
        return self.data[at : at + TRY_ID_BYTES]

    def elapsed_ms(self, last_ms: int, gap_max_ms: int) -> Numbers:
        """For each result, the sum of the gaps since an append at ``last_ms``. A gap counts as ``gap_max_ms`` at most, and as 0 at
        least (EO10)."""
        return np.diff(self.appended_ms, prepend=last_ms).clip(0, gap_max_ms).cumsum()

    def amounts(self, start: int, end: int, overhead_bytes: int) -> Iterator[tuple[str, int, int]]:
        """For each principal of a range of results: how many keys it has, and their bytes, each with an overhead."""
        whose, sizes = self.principal_of[start:end], self.sizes[start:end]
        if len(self.principals) == 1:
            yield self.principals[0], end - start, int(sizes.sum()) + (end - start) * overhead_bytes
            return
        counts = np.bincount(whose)
        totals = np.bincount(whose, weights=sizes)  # floats, which have each whole number of this size
        for number in np.flatnonzero(counts).tolist():
            keys = int(counts[number])
            yield self.principals[number], keys, int(totals[number]) + keys * overhead_bytes


class SortedRows:
    """Collects the rows of an index, and gives them in sorted runs: hashes in their order, and the offset of each."""

    def __init__(self) -> None:
        self._parts: list[tuple[Hashes, Numbers]] = []
        self._rows = 0

    def add(self, hashes: Hashes, offsets: Numbers) -> None:
        """Add rows. Both arrays are kept."""
        self._parts.append((hashes, offsets))
        self._rows += len(hashes)

    def __len__(self) -> int:
        """Rows that were added since the last ``take``."""
        return self._rows

    @property
    def is_full(self) -> bool:
        """Whether it is time to ``take`` a run."""
        return self._rows >= ROWS_OF_A_RUN

    def take(self) -> tuple[array[int], array[int]]:
        """All rows, of which there is at least one, in memory of their own. There are none any more."""
        hashes, offsets = (np.concatenate(columns) for columns in zip(*self._parts, strict=True))
        self._parts, self._rows = [], 0
        order = np.argsort(hashes)
        return array("Q", hashes[order].tobytes()), array("Q", offsets[order].tobytes())


def scan(data: bytes) -> Iterator[ReplayedBatch | Columns]:
    """The batches in ``data``, trusted bytes of our own log, in order. A step takes some milliseconds. Raises: CorruptionError."""
    places = _places(data)
    numbers = np.array(places, np.int64)
    if (np.diff(numbers) < HEADER_BYTES).any():
        raise CorruptionError(f"A batch of {TOPIC} has a length that no batch has.")
    if len(places) - 1 < COLUMN_MIN or len(data) < _BATCH.itemsize:
        yield from _decoded(data, places, 0, len(places) - 1)
        return
    batches = _Batches(data, numbers)
    edges = [0, *(np.flatnonzero(np.diff(batches.usual)) + 1).tolist(), len(batches.usual)]
    plain_from = 0
    for first, last in pairwise(edges):
        if batches.usual[first] and last - first >= COLUMN_MIN:
            yield from _decoded(data, places, plain_from, first)
            yield batches.columns(first, last)
            plain_from = last
    yield from _decoded(data, places, plain_from, len(batches.usual))


def _places(data: bytes) -> list[int]:
    """The starts of the whole batches, and the end of the last one."""
    found: list[int] = []
    position, length_of = 0, _LENGTH.unpack_from
    try:
        while True:
            found.append(position)
            position += LENGTH_PREFIX_BYTES + length_of(data, position + 8)[0]
    except StructError:
        pass  # the length of the next one would be beyond the end
    if found[-1] > len(data):
        found.pop()
    return found


def _decoded(data: bytes, places: Sequence[int], first: int, last: int) -> Iterator[ReplayedBatch]:
    for start in range(first, last, DECODED_AT_ONCE):
        yield from decode_batches(data[places[start] : places[min(start + DECODED_AT_ONCE, last)]])


class _Batches:
    """The batches of some bytes, and the fields of the usual ones.

    A usual batch has one record without headers (a marker may have some), numbers in as few bytes as they need, and a result with a
    head. All lengths agree.
    """

    def __init__(self, data: bytes, places: Numbers) -> None:
        """``places``: the starts, and the end of the last one."""
        self.data = data
        starts, ends = places[:-1], places[1:]
        rows = _rows(data, _BATCH, np.minimum(starts, len(data) - _BATCH.itemsize))
        self.offsets: Numbers = rows["offset"].astype(np.int64)
        self.producers: Numbers = rows["producer"].astype(np.int64)
        record: Bytes = rows["record"]
        # The length of the record takes one byte or two.
        long = record[:, 0] >= 0x80
        size = np.where(long, (record[:, 0] & 0x7F) | (record[:, 1].astype(np.int64) << 7), record[:, 0])
        body = np.where(long[:, None], record[:, 2:], record[:, 1:-1])
        body_at = starts + HEADER_BYTES + 1 + long
        usual = (
            (ends - starts >= _BATCH.itemsize)
            & (rows["count"] == 1)
            & (rows["delta"] == 0)
            & ~(long & (record[:, 1] >= 0x80))
            & (size & 1 == 0)
            & (body_at + (size >> 1) == ends)
            & (body[:, 1] < 0x80)  # a difference of times in one byte
            & (body[:, 2] == 0)  # the first offset of the batch
            & (self.producers >= 0)
        )
        attributes = rows["attributes"]
        whole = (ends - starts > _BATCH.itemsize) | (record[:, -1] == 0)  # a marker has headers, or their count is 0
        self.is_marker: Flags = usual & (attributes == TRANSACTIONAL | CONTROL) & whole & _is_marker(body)
        self.is_commit: Flags = self.is_marker & (body[:, 7] == 1)
        is_result, self.keys_at, self.keys_end = _results(
            data, usual & (attributes == TRANSACTIONAL), body, body_at, ends
        )
        # Between key and value is the length of the value, in two bytes. The last byte is the count of headers.
        self.sizes: Numbers = ends - 1 - self.keys_at - 2
        self.appended_ms: Numbers = np.zeros(len(starts), np.int64)
        which = np.flatnonzero(is_result)
        heads = _rows(data, _HEAD, self.keys_end[which] + 2)
        is_result[which] = heads["version"] == VERSION
        self.appended_ms[which] = heads["appended"]
        self.usual: Flags = (self.is_marker | is_result) & (self.offsets >= 0)

    def columns(self, first: int, last: int) -> Columns:
        """The usual batches from ``first`` to ``last``. Raises: CorruptionError if the name of a principal is not UTF-8."""
        of_all = slice(first, last)
        is_marker = self.is_marker[of_all]
        results = first + np.flatnonzero(~is_marker)
        keys_at, keys_end = self.keys_at[results], self.keys_end[results]
        data = self.data
        # As ``index_hash``, without a call of it for each key.
        hashed = [hash(data[at:end]) for at, end in zip(keys_at.tolist(), keys_end.tolist(), strict=True)]
        principals, whose = self._principals(keys_at)
        return Columns(
            data,
            Offset(int(self.offsets[last - 1]) + 1),
            self.producers[of_all],
            is_marker,
            self.is_commit[of_all],
            np.cumsum(~is_marker) - 1,
            self.offsets[results],
            np.array(hashed, np.int64).view(np.uint64),
            self.appended_ms[results],
            self.sizes[results],
            keys_at,
            keys_end,
            principals,
            whose,
        )

    def _principals(self, keys_at: Numbers) -> tuple[list[str], Numbers]:
        """The different principals of results, and which of them each has."""
        if not len(keys_at):
            return [], keys_at
        data = self.data
        first = self._beginning(int(keys_at[0]))
        compared = _rows(data, np.dtype((np.uint8, len(first))), np.minimum(keys_at, len(data) - len(first)))
        if (compared == np.frombuffer(first, np.uint8)).all():
            return [principal_of(first)], np.zeros_like(keys_at)
        names: dict[bytes, int] = {}
        number_of = [names.setdefault(self._beginning(at), len(names)) for at in keys_at.tolist()]
        return [principal_of(name) for name in names], np.array(number_of, np.int64)

    def _beginning(self, key_at: int) -> bytes:
        """The beginning of a key, with its principal."""
        return self.data[key_at : key_at + 4 + (self.data[key_at + 2] << 8 | self.data[key_at + 3])]


def _rows(data: bytes, dtype: np.dtype[Any], places: Numbers) -> npt.NDArray[Any]:
    """A copy of the structures at ``places``."""
    everywhere: npt.NDArray[Any] = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, strides=(1,))
    return everywhere[places]


def _is_marker(body: Bytes) -> Flags:
    """Whether a record without its length has the key and the beginning of the value of a marker that commits or aborts."""
    found: Flags = (
        (body[:, 3] == 8)  # the length of the key, 4
        & (body[:, 4] == 0)
        & (body[:, 5] == 0)
        & (body[:, 6] == 0)
        & (body[:, 7] <= 1)
        & (body[:, 8] == 12)  # the length of the value, 6
        & (body[:, 9] < 0x80)  # any version
    )
    return found


def _results(
    data: bytes, may_be: Flags, body: Bytes, body_at: Numbers, ends: Numbers
) -> tuple[Flags, Numbers, Numbers]:
    """Which batches are results, and the starts and ends of their keys."""
    long = body[:, 3] >= 0x80
    size = np.where(long, (body[:, 3] & 0x7F) | (body[:, 4].astype(np.int64) << 7), body[:, 3])
    key = np.where(long[:, None], body[:, 5:9], body[:, 4:8]).astype(np.int64)
    keys_at = body_at + 4 + long
    keys_end = keys_at + (size >> 1)
    name_bytes = (key[:, 2] << 8) | key[:, 3]
    key_bytes = (size >> 1) - 4 - name_bytes
    may_be = (
        may_be
        & ~(long & (body[:, 4] >= 0x80))
        & (size & 1 == 0)
        & ((key[:, 0] << 8) | key[:, 1] == Kind.RESULT)
        & (key[:, 2] < 0x80)
        & (key_bytes >= 1)
        & (key_bytes <= KEY_BYTES_MAX)
        & (keys_end + 2 + HEAD_BYTES + 1 <= ends)
    )
    # The length of the value takes two bytes, as a head alone is longer than 64, and the longest usual one has 8,191.
    at = np.where(may_be, keys_end, 0)
    raw = np.frombuffer(data, np.uint8)
    low, high = raw[at].astype(np.int64), raw[at + 1].astype(np.int64)
    value = ((low & 0x7F) | (high << 7)) >> 1
    may_be &= (low >= 0x80) & (high < 0x80) & (low & 1 == 0) & (keys_end + 2 + value + 1 == ends) & (raw[ends - 1] == 0)
    return may_be, keys_at, keys_end
