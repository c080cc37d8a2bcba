"""The last stable offset and the lists of aborted transactions, on the local disk, across restarts, and in the tier."""

from __future__ import annotations

import pytest

from app.configs import Durability
from app.core.units import ProducerEpoch, ProducerId
from app.hot.log import PartitionLog
from app.records.control import ControlType
from tests.hot.helpers import NOW, idempotent, manager_over, new_log, running, sim


def append(log: PartitionLog, producer_id: int, sequence: int, *, epoch: int = 0) -> None:
    records = idempotent(sequence, producer_id=producer_id, epoch=epoch, transactional=True)
    log.append_as_leader(records, now_ms=NOW)


def mark(log: PartitionLog, producer_id: int, kind: ControlType, *, epoch: int = 0) -> None:
    log.append_control(
        kind,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        coordinator_epoch=0,
        now_ms=NOW,
    )


async def test_the_oldest_open_transaction_holds_the_last_stable_offset_back() -> None:
    manager = manager_over(sim())
    await manager.load_all()
    log = new_log(manager)
    append(log, 1, 0)
    append(log, 2, 0)
    assert (log.last_stable_offset, log.high_watermark) == (0, 2)
    mark(log, 1, ControlType.COMMIT)
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    append(log, 1, 1)
    mark(log, 2, ControlType.ABORT)
    assert (log.last_stable_offset, log.high_watermark) == (3, 5)
    assert [(one.producer_id, one.first_offset) for one in log.aborted_transactions(0, 3)] == [(2, 1)]
    mark(log, 1, ControlType.COMMIT)
    assert log.last_stable_offset == log.high_watermark == 6
    await manager.close()


async def test_the_last_stable_offset_is_not_below_the_log_start() -> None:
    manager = manager_over(sim())
    await manager.load_all()
    log = new_log(manager)
    append(log, 1, 0)
    append(log, 1, 1)
    append(log, 1, 2)
    log.advance_log_start(2)
    assert (log.log_start_offset, log.last_stable_offset, log.high_watermark) == (2, 2, 3)
    mark(log, 1, ControlType.ABORT)
    assert log.last_stable_offset == 4
    assert [(one.producer_id, one.first_offset) for one in log.aborted_transactions(2, 4)] == [(1, 0)]
    await manager.close()


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_keeps_what_is_open_and_what_is_decided(durability: Durability, clean: bool) -> None:
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    log = new_log(manager, firn_durability=durability, segment_bytes=300)
    async with running(manager):
        append(log, 1, 0)
        mark(log, 1, ControlType.ABORT)
        append(log, 1, 0, epoch=1)
        mark(log, 1, ControlType.COMMIT, epoch=1)
        append(log, 2, 0)
        append(log, 3, 0)
        mark(log, 3, ControlType.ABORT)
        await log.flush()
    if clean:
        await manager.close()
    else:
        fs.kill()
    again = manager_over(fs)
    await again.load_all(lambda _: log.config)
    found = again.get("t", 0)
    assert found is not None
    assert (found.last_stable_offset, found.high_watermark) == (4, 7)
    assert found.producers.open_transactions == {2: 4}
    assert [(one.producer_id, one.first_offset) for one in await found.aborted_transactions_when_ready(0, 7)] == [
        (1, 0),
        (3, 5),
    ]
    mark(found, 2, ControlType.COMMIT)
    async with running(again):
        await found.flush()
    assert found.last_stable_offset == found.high_watermark == 8
    await again.close()


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
async def test_nothing_decided_holds_the_last_stable_offset_back_after_a_kill(durability: Durability) -> None:
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    log = new_log(manager, firn_durability=durability)
    append(log, 1, 0)
    mark(log, 1, ControlType.COMMIT)
    async with running(manager):
        await log.flush()
    fs.kill()
    again = manager_over(fs)
    await again.load_all(lambda _: log.config)
    found = again.get("t", 0)
    assert found is not None
    assert found.last_stable_offset == found.high_watermark == found.log_end_offset == 2
    await again.close()
