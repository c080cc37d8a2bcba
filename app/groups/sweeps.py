"""Records that say of many committed offsets at once that they are deleted. Pure.

Tombstones of many offsets take more than one batch, and a crash may come between two. So the batch that decides on the deletion
has **sweeps** besides: everything that they name, and that is before them in the log, is gone. They stay, also through compaction,
until all tombstones are written; then each gets its own. To Kafka's tools a sweep is a committed offset of the topic without a
name; what it names is the metadata: JSON, or nothing for all offsets of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from app.coordinator.partition import RawRecord
from app.coordinator.records import GROUP_RECORDS
from app.coordinator.schemas.classic_group import OffsetCommitKey, OffsetCommitValue
from app.errors import CorruptionError
from app.limits import KIB
from app.units import NO_OFFSET

TOPIC: Final = ""
"""In the key; its partition is the sweep's number."""

_VALUE: Final = 3
"""Version in which sweeps are written, as offsets are."""

TEXT_BYTES_MAX: Final = 24 * KIB
"""Of what one sweep names: a string of this version has less than 32 KiB, and the last run may go beyond it."""

_AROUND_TOPIC_BYTES: Final = len(":[],")
_NUMBER_BYTES_MAX: Final = len("2147483648,")
"""Of where a run ends."""

Names = dict[str, list[int]]
"""By topic: where runs of neighbouring partitions begin and end."""


def sweep_records(
    group_id: str, first_number: int, parts: Iterable[Sequence[tuple[str, int]]] | None, now_ms: int
) -> list[RawRecord]:
    """Sweeps of a group, numbered from ``first_number`` on, for what ``cut`` made of topics and partitions; without them, one for
    all."""
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
    """What says that all tombstones of the offsets are written."""
    return [GROUP_RECORDS.record(OffsetCommitKey(group_id, TOPIC, number), None) for number in numbers]


def parse_sweep(value: bytes) -> Sequence[tuple[str, range]] | None:
    """Runs of partitions by topic; None for everything. Raises: CorruptionError."""
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
        raise CorruptionError(f"what says that offsets are deleted is not sound: {error}") from error


def cut(named: Iterable[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    """Topics and partitions in order, by as many as one sweep can name."""
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
