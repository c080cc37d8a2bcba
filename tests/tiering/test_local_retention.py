"""Which local segments go because the tier has them (ADR 0024, T3)."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.units import Offset, TimestampMs
from app.hot.missing import LostRange
from app.tiering.upload.local_retention import drop_local

NOW = TimestampMs(1_000_000)


def segment(base: int, end: int, *, active: bool = False) -> Any:
    return SimpleNamespace(
        base_offset=base, end_offset=end, size_bytes=100, max_timestamp=0, last_append_ms=0, active=active
    )


class Log:
    """Three rolled segments of ten records, and an active one."""

    def __init__(self, high_watermark: int, *, tiered: bool = True, keep_bytes: int = -1) -> None:
        self.high_watermark = high_watermark
        self.log_start_offset = 0
        self.size_bytes = 400
        self.config = SimpleNamespace(
            tiered=tiered,
            stays_local=not tiered,
            local_retention_ms_effective=0 if keep_bytes < 0 else -1,
            local_retention_bytes_effective=keep_bytes,
        )
        self.dropped_to = 0
        self.local_log_start_offset = 0
        self.lost: tuple[LostRange, ...] = ()

    def segments(self) -> list[Any]:
        return [segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 35, active=True)]

    def delete_local_before(self, offset: int) -> None:
        self.dropped_to = offset


def manifest(*ranges: tuple[int, int], log_start: int = 0) -> Any:
    """Of readable segments."""

    def find(offset: int) -> object | None:
        return next((one for one in ranges if one[0] <= offset < one[1]), None)

    return SimpleNamespace(
        tiered_end=max((end for _, end in ranges), default=0),
        state=SimpleNamespace(log_start_offset=log_start, find=find, finished=[uuid.UUID(int=1)]),
    )


@pytest.mark.parametrize(
    ("high_watermark", "ranges", "dropped_to"),
    [
        (35, [], 0),
        (35, [(0, 10)], 10),
        (35, [(0, 19)], 10),
        (35, [(0, 35)], 30),
        (29, [(0, 35)], 20),
        (0, [(0, 35)], 0),
    ],
)
def test_segments_go_below_the_tiered_end_and_the_high_watermark(
    high_watermark: int, ranges: list[tuple[int, int]], dropped_to: int
) -> None:
    log: Any = Log(high_watermark)
    assert drop_local(log, manifest(*ranges), now_ms=NOW) is None
    assert log.dropped_to == dropped_to


def test_only_as_much_goes_as_local_retention_says() -> None:
    log: Any = Log(35, keep_bytes=250)
    assert drop_local(log, manifest((0, 35)), now_ms=NOW) is None
    assert log.dropped_to == 10


def test_what_the_store_lacks_stays_and_is_told() -> None:
    log: Any = Log(35)
    assert (
        drop_local(log, manifest((0, 10), (20, 30)), now_ms=NOW)
        == "[10, 20) is below the tiered end, but not in the store"
    )
    assert log.dropped_to == 10
    log = Log(35)
    assert drop_local(log, manifest((20, 30), log_start=20), now_ms=NOW) is None, "deleted before is not missing"
    assert log.dropped_to == 30


def test_the_only_copies_of_a_topic_that_is_not_tiered_stay() -> None:
    log: Any = Log(35, tiered=False)
    assert drop_local(log, manifest((0, 35)), now_ms=NOW) is None
    assert log.dropped_to == 0


@pytest.mark.parametrize(
    ("high_watermark", "ranges", "dropped_to"),
    [
        (35, [(0, 10), (10, 20), (20, 30)], 20),
        (35, [(0, 10), (10, 20)], 20),
        (35, [(0, 10)], 0),
        (19, [(0, 10), (10, 20)], 0),
        (35, [(10, 20)], 0),
        (35, [], 0),
    ],
)
def test_a_log_begins_above_lost_segments_once_the_store_has_all_records_before(
    high_watermark: int, ranges: list[tuple[int, int]], dropped_to: int
) -> None:
    log = Log(high_watermark, keep_bytes=1_000_000)
    log.lost = (LostRange(Offset(10), Offset(20)),)
    drop_local(log, manifest(*ranges), now_ms=NOW)  # type: ignore[arg-type]
    assert log.dropped_to == dropped_to
