from __future__ import annotations

from app.client.offset_targets import targets
from app.core.units import PartitionIndex, TopicPartition


def test_targets_lie_within_the_log_and_no_record_as_late_is_the_end() -> None:
    places = [TopicPartition("t", PartitionIndex(index)) for index in range(4)]
    aims = dict(zip(places, (0, 7, 99, -1), strict=True))
    found = targets(aims, dict.fromkeys(places, 5), dict.fromkeys(places, 10))
    assert list(found.values()) == [5, 7, 10, 10]
