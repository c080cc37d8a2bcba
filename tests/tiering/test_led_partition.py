"""The tier state of a partition that is led from now on."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.tiering.upload import led_partition
from app.tiering.upload.led_partition import LedPartition, TierDeadlines, TierProgress, UnfinishedCopies


def new_partition() -> LedPartition:
    nothing: Any = None
    return LedPartition(nothing, nothing, TopicIdPartition(TopicId(UUID(int=1)), PartitionIndex(0)))


def test_all_work_of_a_new_partition_is_due_at_once() -> None:
    due = new_partition().due
    for deadline_s in (due.retry_at_s, due.expire_at_s, due.retention_at_s, due.reconcile_at_s, due.sweep_at_s):
        assert deadline_s == 0
    assert due is not new_partition().due


def test_nothing_of_a_new_partition_is_under_way_or_counted() -> None:
    new = new_partition()
    assert (new.held, new.busy, new.detached, new.settled) == (False, False, False, False)
    assert (new.failures, new.rolled_end, new.cached_version) == (0, 0, -1)
    copies = new.copies
    assert (copies.announced, copies.finishing, copies.abandoned, copies.swapping) == (None, None, [], None)
    told = new.progress
    assert (told.phase, told.phase_since_s, told.copying, told.last_error) == ("idle", 0, None, "")
    assert (told.uploaded_bytes, told.copied_segments, told.copied_bytes) == (0, 0, 0)
    assert (told.expired_segments, told.deleted_objects, told.failures, told.faults) == (0, 0, 0, [])


def test_two_states_are_equal_only_if_they_are_one() -> None:
    for kind in (TierDeadlines, UnfinishedCopies, TierProgress, new_partition):
        assert kind() != kind()


def test_a_phase_has_the_time_of_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    new = new_partition()
    monkeypatch.setattr(led_partition, "loop_time_s", lambda: 7.0)
    new.set_phase("copying")
    assert (new.progress.phase, new.progress.phase_since_s) == ("copying", 7.0)
