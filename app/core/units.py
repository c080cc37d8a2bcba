"""Types that carry units.

Every number that crosses a module's edge has one of these types, so that an offset cannot be passed for a file position
or a count for a length. They cost nothing at run time. Ranges are half open and their ends are named ``*_end``.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, NewType, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are read, never kept or changed."""

Offset = NewType("Offset", int)
"""A record's place in its partition; 0 is the first ever written. Never reused (INV-1)."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a partition's leadership; rises with every change of leader (KIP-101). -1 is "none known"."""

ProducerId = NewType("ProducerId", int)
"""Identity of an idempotent producer (KIP-98); -1 is "not idempotent"."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""Incarnation of a producer id, int16; a lower one is fenced."""

PartitionIndex = NewType("PartitionIndex", int)
"""Number of a partition within its topic, from 0."""

BrokerId = NewType("BrokerId", int)
"""Node id of a broker, int32 >= 0."""

FilePosition = NewType("FilePosition", int)
"""Byte position in a file or an object."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since the Unix epoch, UTC; -1 is "no timestamp"."""

DurationMs = NewType("DurationMs", int)
"""A length of time in milliseconds; -1 is "no limit" where a Kafka setting says so."""

LogSequence = NewType("LogSequence", int)
"""Number of an entry in a numbered log (docs/formats.md), from 0, without gaps."""

TopicId = NewType("TopicId", uuid.UUID)
"""Identity of a topic for its whole life; a topic re-created under the same name has another (KIP-516)."""

SegmentId = NewType("SegmentId", uuid.UUID)
"""Identity of one uploaded segment object; a retried upload has another."""

NO_TOPIC_ID = TopicId(uuid.UUID(int=0))
NO_OFFSET = Offset(-1)
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_TIMESTAMP = TimestampMs(-1)


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as old protocol versions and log directories name it."""

    topic: str
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id, as metadata, manifests and objects name it."""

    topic_id: TopicId
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"
