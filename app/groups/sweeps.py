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

_TEXT_BYTES_MAX: Final = 24 * KIB
"""Of what one sweep names: a string of this version has less than 32 KiB, and the last run may go beyond it."""

Names = dict[str, list[int]]
"""By topic: where runs of neighbouring partitions begin and end."""


def sweep_records(
    group_id: str, first_number: int, named: Iterable[tuple[str, int]] | None, now_ms: int
) -> list[RawRecord]:
    """Sweeps of a group, numbered from ``first_number`` on, for topics and partitions in order; without them, one for all."""
    texts = [""] if named is None else [msgspec.json.encode(names).decode() for names in _cut(named)]
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


def _cut(named: Iterable[tuple[str, int]]) -> Iterator[Names]:
    """As many runs in each part as a sweep can name."""
    part: Names = {}
    size = 0
    for topic, start, end in _runs(named):
        if size > _TEXT_BYTES_MAX:
            yield part
            part, size = {}, 0
        if topic not in part:
            part[topic] = []
            size += len(topic)
        part[topic] += (start, end)
        size += len(f"{start},{end},")
    if part:
        yield part


def _runs(named: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Topic, first partition and end of neighbours in a row."""
    run: tuple[str, int, int] | None = None
    for topic, partition in named:
        if run is not None and (topic, partition) == (run[0], run[2]):
            run = topic, run[1], partition + 1
            continue
        if run is not None:
            yield run
        run = topic, partition, partition + 1
    if run is not None:
        yield run
