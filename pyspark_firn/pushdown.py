"""Which of Spark's filters prune, and what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from app.units import PartitionIndex
from pyspark_firn.planning import PartitionRange

T = TypeVar("T")

OFFSETS_END: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """What filters leave of a read. Whatever else they say, Spark applies them once more."""

    offset_start: int = 0
    offset_end: int = OFFSETS_END
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    timestamp_min: int | None = None
    """Milliseconds; records that are all older may be left out."""

    def wants(self, topic: str, partition: PartitionIndex) -> bool:
        """Whether anything of a partition is left."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def applied_to(self, wanted: PartitionRange) -> PartitionRange:
        """The part of a range that is left; perhaps an empty one."""
        if not self.wants(wanted.topic, wanted.partition.partition):
            return replace(wanted, end=wanted.start)
        start = min(max(wanted.start, self.offset_start), wanted.end)
        return replace(wanted, start=start, end=max(start, min(wanted.end, self.offset_end)))


NO_NARROWING: Final = Narrowing()


def narrowing_of(filters: Sequence[Filter]) -> Narrowing:
    """What is understood of filters that all have to hold.

    Understood: ``topic`` and ``partition`` (=, in), ``offset`` (=, <, <=, >, >=) and lower bounds of ``timestamp``. An upper
    bound of the time prunes nothing: a segment says how young its youngest record is, and not reliably how old its oldest.
    """
    start, end = 0, OFFSETS_END
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    since: int | None = None
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else None
        match column, one:
            case "offset", EqualTo(value=int(value)):
                start, end = max(start, value), min(end, value + 1)
            case "offset", GreaterThan(value=int(value)):
                start = max(start, value + 1)
            case "offset", GreaterThanOrEqual(value=int(value)):
                start = max(start, value)
            case "offset", LessThan(value=int(value)):
                end = min(end, value)
            case "offset", LessThanOrEqual(value=int(value)):
                end = min(end, value + 1)
            case "partition", EqualTo(value=int(value)):
                partitions = _both(partitions, (value,))
            case "partition", In(value=values):
                partitions = _both(partitions, values)
            case "topic", EqualTo(value=str(name)):
                topics = _both(topics, (name,))
            case "topic", In(value=values):
                topics = _both(topics, values)
            case "timestamp", EqualTo() | GreaterThan() | GreaterThanOrEqual():
                moment = one.value
                if isinstance(moment, datetime) and moment.tzinfo is not None:
                    milliseconds = (moment - _EPOCH) // timedelta(milliseconds=1)
                    since = milliseconds if since is None else max(since, milliseconds)
            case _:
                continue
    return Narrowing(offset_start=start, offset_end=end, partitions=partitions, topics=topics, timestamp_min=since)


def _both(known: frozenset[T] | None, more: Iterable[T]) -> frozenset[T]:
    return frozenset(more) if known is None else known & frozenset(more)
