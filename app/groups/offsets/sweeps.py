"""Sweeps: records that delete many committed offsets at once. Pure.

Tombstones of many offsets take more than one batch, and the broker may crash between two batches. So the first batch of the
deletion also has **sweeps**: all offsets that they name, and that are before them in the log, are deleted. Sweeps stay, also
through compaction, until all tombstones are written. Then each sweep gets its own tombstone. For Kafka's tools a sweep is a
committed offset of a topic without a name. Its metadata lists the offsets as JSON, or is empty for all offsets of the group.

Tests: ``tests/groups/test_deletion.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from app.coordinator.partition import RawRecord
from app.coordinator.records import GROUP_RECORDS
from app.coordinator.schemas.classic_group import OffsetCommitKey, OffsetCommitValue
from app.core.errors import CorruptionError, clause
from app.core.limits import KIB
from app.core.units import NO_OFFSET

TOPIC: Final = ""
"""Topic name in the key. The partition in the key is the sweep's number."""

_VALUE: Final = 3
"""Version of written sweeps, as of offsets."""

TEXT_BYTES_MAX: Final = 24 * KIB
"""Maximum bytes of a sweep's list. A string of this version has less than 32 KiB, and the last run may exceed the limit."""

_AROUND_TOPIC_BYTES: Final = len(":[],")
_NUMBER_BYTES_MAX: Final = len("2147483648,")
"""Bytes for the end of a run."""

Names = dict[str, list[int]]
"""By topic: starts and ends of runs of neighbouring partitions."""


def sweep_records(
    group_id: str, first_number: int, parts: Iterable[Sequence[tuple[str, int]]] | None, now_ms: int
) -> list[RawRecord]:
    """Sweeps of a group, numbered from ``first_number`` on, for the pieces of ``cut``. Without pieces, one sweep for all
    offsets."""
    texts = [""] if parts is None else [msgspec.json.encode(_runs(part)).decode() for part in parts]
    return [
        GROUP_RECORDS.record(
            OffsetCommitKey(group_id, TOPIC, number),
            OffsetCommitValue(offset=NO_OFFSET, metadata=text, commit_timestamp=now_ms),
            _VALUE,
        )
        for number, text in enumerate(texts, first_number)
    ]


def sweep_tombstones(group_id: str, numbers: Iterable[int]) -> list[RawRecord]:
    """The tombstones of sweeps, written after all tombstones of their offsets."""
    return [GROUP_RECORDS.record(OffsetCommitKey(group_id, TOPIC, number), None) for number in numbers]


def parse_sweep(value: bytes) -> Sequence[tuple[str, range]] | None:
    """Decode runs of partitions by topic; None for all offsets. Raises: CorruptionError."""
    text = GROUP_RECORDS.decode_value(OffsetCommitKey(), value).metadata
    if not text:
        return None
    try:
        names = msgspec.json.decode(text, type=Names)
        return [
            (topic, range(start, end))
            for topic, bounds in names.items()
            for start, end in zip(bounds[::2], bounds[1::2], strict=True)
        ]
    except ValueError as error:
        raise CorruptionError(f"The record of deleted offsets is corrupt: {clause(error)}.") from error


def cut(named: Iterable[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    """Topics and partitions in order, in pieces that fit into one sweep."""
    part: list[tuple[str, int]] = []
    size = 0
    last = "", -1
    for each in named:
        topic, partition = each
        if each != (last[0], last[1] + 1):
            if size > TEXT_BYTES_MAX:
                yield part
                part, size, last = [], 0, ("", -1)
            if topic != last[0]:
                size += len(msgspec.json.encode(topic)) + _AROUND_TOPIC_BYTES
            size += len(f"{partition},") + _NUMBER_BYTES_MAX
        part.append(each)
        last = each
    if part:
        yield part


def _runs(named: Iterable[tuple[str, int]]) -> Names:
    """Neighbouring partitions as runs."""
    names: Names = {}
    for topic, partition in named:
        bounds = names.setdefault(topic, [])
        if bounds and bounds[-1] == partition:
            bounds[-1] += 1
        else:
            bounds += partition, partition + 1
    return names
