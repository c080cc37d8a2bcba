"""How a sync has the disk take what it covers."""

from __future__ import annotations

import pytest

from app.core.errors import StorageUnavailable
from app.hot import syncing
from app.hot.log import PartitionLog
from app.hot.syncing import WRITE_BACK_STEP_BYTES
from tests.hot.helpers import DATA, NOW, batch, manager_over, new_log, running, sim

LOG_PATH = f"{DATA}/t-0/00000000000000000000.log"


def fill(log: PartitionLog, steps: int) -> None:
    """Append so much that ``steps`` whole steps of write-back and a rest come together."""
    end = log.size_bytes + steps * WRITE_BACK_STEP_BYTES
    while log.size_bytes <= end:
        log.append_as_leader(batch(value=b"x" * 300_000), now_ms=NOW)


async def test_much_is_written_back_step_by_step_before_it_is_synced() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager)
        for steps in (3, 2):
            fill(log, steps)
            fs.trace = []
            await log.flush()
            calls = [call for call, path in fs.trace if path == LOG_PATH and call != "open"]
            assert calls == ["finish write-back"] * steps + ["fdatasync"], "what was synced before is not written again"


async def test_a_log_that_is_far_behind_takes_larger_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "WRITE_BACK_STEPS_MAX", 3)
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager)
        fill(log, 9)
        fs.trace = []
        await log.flush()
        assert 2 <= fs.trace.count(("finish write-back", LOG_PATH)) <= 3


async def test_little_is_only_synced() -> None:
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager)
        log.append_as_leader(batch(), now_ms=NOW)
        fs.trace = []
        await log.flush()
        assert [call for call, path in fs.trace if path == LOG_PATH] == ["fdatasync"]


async def test_a_write_back_that_fails_is_a_failed_sync() -> None:
    """The system tells of lost bytes once: a later fdatasync may succeed."""
    fs = sim()
    async with running(manager_over(fs)) as manager:
        log = new_log(manager)
        fill(log, 1)
        fs.fail_next("finish write-back", ".log")
        with pytest.raises(StorageUnavailable):
            await log.flush()
        assert manager.offline_reason is not None
        assert log.recovery_point == 0
        with pytest.raises(StorageUnavailable):
            log.append_as_leader(batch(), now_ms=NOW)
