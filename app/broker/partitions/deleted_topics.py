"""The partitions of deleted topics on this broker, until their logs are deleted.

A deleted topic leaves the table at once. Its tiers are given up, and its logs are deleted, in portions.

Tests: ``tests/broker/test_deleted_topics.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from app.hot.manager import LogManager
from app.replication.partition import Partition, PartitionTable


@dataclass(slots=True)
class DeletedTopic:
    """The partitions of one topic. They are not in the table any more."""

    name: str
    attached: list[Partition]
    """Partitions whose tier may still be written."""
    logs: dict[int, Partition]
    """By index: partitions whose logs are not deleted yet."""


class DeletedTopics:
    """Belongs to the loop of ``Partitions``."""

    def __init__(self, table: PartitionTable, logs: LogManager, detach: Callable[[Partition], None]) -> None:
        """``detach`` removes a partition from all other parts of the broker; a repeated call does nothing."""
        self._table = table
        self._logs = logs
        self._detach = detach
        self._topics: dict[UUID, DeletedTopic] = {}
        """By topic id."""
        self._detached = asyncio.Event()
        """Set, and replaced, when the tier of a deleted topic has been given up."""

    def take_out(self, topic_id: UUID, name: str, count: int) -> None:
        """Take the partitions of a deleted topic, ``count`` at most, out of the table. ``delete_some`` does the rest, which takes
        longer."""
        found: dict[int, Partition] = {}
        for index in range(count):
            partition = self._table.get(name, index)
            if partition is not None and partition.topic_id == topic_id:
                self._table.take_out(partition)
                found[index] = partition
        if found:
            self._topics[topic_id] = DeletedTopic(name, list(found.values()), found)

    def take_out_older(self, partition: Partition) -> None:
        """A partition of an older topic is in the place of a new one, which must never take over its log."""
        self._table.take_out(partition)
        deleted = self._topics.setdefault(partition.topic_id, DeletedTopic(partition.topic, [], {}))
        deleted.attached.append(partition)
        deleted.logs[partition.index] = partition

    def delete_some(self, topic_id: UUID, may_go_on: Callable[[], bool]) -> bool:
        """Give up the tier of partitions of a deleted topic, then delete their logs. ``may_go_on`` is asked before each.

        Returns: whether nothing is left of the topic. Raises: StorageUnavailable; the others are left.
        """
        deleted = self._topics.get(topic_id)
        if deleted is None:
            return True
        while deleted.attached:
            if not may_go_on():
                return False
            self._detach(deleted.attached.pop())
            if not deleted.attached:
                self._detached.set()
                self._detached = asyncio.Event()
        for index in tuple(deleted.logs):
            if not may_go_on():
                return False
            self._delete_log(deleted, index)
        del self._topics[topic_id]
        return True

    def _delete_log(self, deleted: DeletedTopic, index: int) -> None:
        """Delete the log of one partition. Raises: StorageUnavailable; then it is still there."""
        partition = deleted.logs[index]
        self._detach(partition)
        self._logs.delete(deleted.name, index)
        self._table.drop(partition)
        del deleted.logs[index]

    def delete_older(self, name: str, index: int) -> None:
        """Delete the log of an older topic of that name, to make room for the new one. Raises: StorageUnavailable."""
        for deleted in self._topics.values():
            if deleted.name == name and index in deleted.logs:
                self._delete_log(deleted, index)

    async def wait_detached(self, topic_id: UUID) -> None:
        """Wait until this broker begins to write no more objects of a deleted topic."""
        while (deleted := self._topics.get(topic_id)) is not None and deleted.attached:
            await self._detached.wait()
