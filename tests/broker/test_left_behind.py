"""The log line of a replaced broker: offsets whose records by this broker are not in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from app.broker.partitions.left_behind import PARTITIONS_NAMED_MAX, tell_what_stays_behind
from app.core.errors import StorageUnavailable
from app.core.units import TopicIdPartition

TOPIC_ID = UUID(int=1)
Epochs = Sequence[tuple[int, int]]
"""Leader epochs, each with its first offset."""


class Epoch(NamedTuple):
    epoch: int
    start_offset: int


@dataclass(eq=False)
class Log:
    log_end_offset: int
    epochs: Epochs = ((0, 0),)
    log_start_offset: int = 0
    partition: int = 0
    topic: str = "t"
    topic_id: UUID = TOPIC_ID

    def leader_epochs(self) -> list[Epoch]:
        return [Epoch(*each) for each in self.epochs]


@dataclass
class Manifest:
    tiered_end: int
    epochs: Epochs = ((0, 0),)
    stored_later: int = 0
    """The end after the next look at the store."""
    error: Exception | None = None

    @property
    def state(self) -> Any:
        return self

    def leader_epochs(self) -> Epochs:
        return self.epochs

    async def refresh(self) -> None:
        if self.error is not None:
            raise self.error
        self.tiered_end = max(self.tiered_end, self.stored_later)


@dataclass
class Replaced:
    """A replaced broker: its logs, and their manifests as far as it has any."""

    logs_: list[Log]
    manifests: dict[int, Manifest] = field(default_factory=dict)

    def logs(self) -> list[Log]:
        return self.logs_

    def last_manifest_of(self, partition: TopicIdPartition) -> Manifest | None:
        return self.manifests.get(partition.partition)

    async def told(self) -> list[str]:
        lines: list[str] = []
        await tell_what_stays_behind(self, self, data_dir="/data", log_line=lines.append)  # type: ignore[arg-type]
        return lines


async def told(log: Log, manifest: Manifest | None) -> list[str]:
    return await Replaced([log], {} if manifest is None else {0: manifest}).told()


async def test_nothing_is_told_if_all_records_are_in_the_store() -> None:
    assert await told(Log(10), Manifest(10)) == []


async def test_the_offsets_after_the_last_stored_segment_are_named() -> None:
    [line] = await told(Log(10), Manifest(4))
    assert "only in /data" in line
    assert "t-0 [4, 10)" in line
    assert "cannot read the store" not in line


async def test_a_log_without_a_manifest_is_named_from_its_start() -> None:
    [line] = await told(Log(10, log_start_offset=2), None)
    assert "t-0 [2, 10)" in line


async def test_offsets_before_the_start_of_the_log_are_not_named() -> None:
    [line] = await told(Log(10, log_start_offset=6), Manifest(4))
    assert "t-0 [6, 10)" in line


async def test_an_upload_that_the_new_broker_finished_is_no_loss() -> None:
    assert await told(Log(10), Manifest(4, stored_later=10)) == []


async def test_records_of_the_new_broker_with_the_same_offsets_are_not_this_brokers() -> None:
    new_broker = ((0, 0), (3, 6))
    [line] = await told(Log(10, epochs=((0, 0), (2, 5))), Manifest(20, epochs=new_broker))
    assert "t-0 [6, 10)" in line
    # Records of an epoch that this log has, or had before it was trimmed, are its own.
    assert await told(Log(10, epochs=((0, 0), (3, 6))), Manifest(20, epochs=new_broker)) == []
    assert await told(Log(10, epochs=((4, 6),)), Manifest(20, epochs=new_broker)) == []
    assert await told(Log(10, epochs=()), Manifest(20, epochs=new_broker)) == []


async def test_a_store_that_cannot_be_read_makes_the_line_unsure() -> None:
    [line] = await told(Log(10), Manifest(4, error=StorageUnavailable("The store is away.")))
    assert "t-0 [4, 10)" in line
    assert "cannot read the store" in line


async def test_a_line_names_some_partitions_and_counts_the_others() -> None:
    def logs(count: int) -> Replaced:
        return Replaced([Log(10, partition=index) for index in range(count)])

    [line] = await logs(PARTITIONS_NAMED_MAX).told()
    assert line.count("[0, 10)") == PARTITIONS_NAMED_MAX
    assert "more" not in line
    [line] = await logs(PARTITIONS_NAMED_MAX + 2).told()
    assert line.count("[0, 10)") == PARTITIONS_NAMED_MAX
    assert "and 2 more" in line
