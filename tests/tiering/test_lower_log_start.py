"""A follower that was opened without its log start begins in the tier again, if readable segments lead there (ADR 0024, T10)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.core.units import Offset
from app.tiering.repair.rebuild import disagreement, lower_log_start


class Log:
    """Local records are [20, 30)."""

    def __init__(self, *, assumed: bool) -> None:
        self.start_is_assumed = assumed
        self.log_start_offset = self.local_log_start_offset = Offset(20)
        self.log_end_offset = Offset(30)
        self.epochs = dict.fromkeys(range(20, 30), 3)
        self.restored: list[int] = []

    def epoch_of(self, offset: int) -> int:
        return self.epochs.get(offset, -1)

    def restore_log_start(self, offset: int) -> None:
        self.restored.append(offset)


def manifest(*ranges: tuple[int, int], log_start: int = 0, epoch: int = 3) -> Any:
    def find(offset: int) -> object | None:
        return next((one for one in ranges if one[0] <= offset < one[1]), None)

    return SimpleNamespace(
        log_start_offset=log_start,
        tiered_end=max((end for _, end in ranges), default=0),
        finished=[SimpleNamespace(leader_epochs=((epoch, base),)) for base, _ in ranges],
        state=SimpleNamespace(log_start_offset=log_start, find=find),
    )


@pytest.mark.parametrize(
    ("assumed", "ranges", "log_start", "restored"),
    [
        (True, [(0, 10), (10, 20)], 0, [0]),
        (True, [(0, 10), (10, 25)], 5, [5]),
        (False, [(0, 10), (10, 20)], 0, []),  # it knows its start: somebody deleted what is before it
        (True, [(0, 10)], 0, []),  # [10, 20) is nowhere
        (True, [(10, 20)], 20, []),
        (True, [(0, 30)], 25, []),  # a start that rises is for others to set
        (True, [], 0, []),
    ],
)
def test_where_a_log_begins_again(
    assumed: bool, ranges: list[tuple[int, int]], log_start: int, restored: list[int]
) -> None:
    log: Any = Log(assumed=assumed)
    lower_log_start(log, manifest(*ranges, log_start=log_start))
    assert log.restored == restored


@pytest.mark.parametrize(
    ("ranges", "log_start", "epoch", "said"),
    [
        ([(0, 20)], 0, 9, None),  # what is not here cannot contradict
        ([(0, 25)], 0, 3, None),
        ([(0, 25)], 0, 4, "offset 24 is of leader epoch 3 here and of 4 in the tier"),
        ([(0, 40)], 0, 3, "the local log ends at 30, below the tiered end 40"),
        ([(0, 20)], 35, 3, "the local log ends at 30, below the log start 35"),
        ([(0, 25)], 25, 4, None),  # nothing of it is read any more
    ],
)
def test_t10_why_a_log_cannot_go_on_beside_its_manifest(
    ranges: list[tuple[int, int]], log_start: int, epoch: int, said: str | None
) -> None:
    log: Any = Log(assumed=False)
    assert disagreement(log, manifest(*ranges, log_start=log_start, epoch=epoch)) == said
