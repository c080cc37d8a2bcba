"""A log whose records count as stored when a journal has them (ADR 0037, J5, J7)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.configs import Durability
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import LeaderEpoch, ProducerEpoch, ProducerId
from app.hot.log import PartitionLog
from app.records.batch import HeaderFields, iter_headers
from app.records.control import ControlType
from tests.hot.helpers import NOW, batch, idempotent, manager_over, new_log, sim


class Kept:
    """A journal that keeps what it is given, and refuses when it is told to."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.asked: list[int] = []
        self.room = 100
        """Batches that it admits."""

    def admit(self, size_bytes: int, batches: int = 1) -> None:
        self.asked.append(size_bytes)
        if batches > self.room:
            raise RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "full")

    def take(self, written: Sequence[memoryview]) -> None:
        self.batches += map(bytes, written)

    def offsets(self) -> list[int]:
        return [header.base_offset for data in self.batches for _, header in iter_headers(data)]


def journalled() -> tuple[PartitionLog, Kept]:
    log, kept = new_log(manager_over(sim()), firn_durability=Durability.OBJECT), Kept()
    log.begin_journal(kept)
    log.become_leader(LeaderEpoch(3))
    return log, kept


def append(log: PartitionLog, count: int = 1) -> int:
    return log.append_as_leader(batch(count), now_ms=NOW).last_offset_end


async def test_records_are_stored_and_committed_when_the_journal_has_them() -> None:
    log, _ = journalled()
    first, second = log.wait_stored(append(log, 3)), log.wait_stored(append(log))
    assert first is not None
    assert second is not None
    assert (log.high_watermark, log.stored_end_offset, log.log_end_offset) == (0, 0, 4)
    log.note_journaled(3)
    await first
    assert (log.high_watermark, log.stored_end_offset) == (3, 3)
    log.note_journaled(4)
    await second
    assert log.wait_stored(4) is None


async def test_every_way_of_appending_hands_the_batches_over_with_their_offsets_and_epoch() -> None:
    log, kept = journalled()
    append(log, 2)  # the general way, which makes the files
    append(log, 2)  # the short way
    log.append_as_leader(memoryview(bytearray(batch(1).tobytes() + batch(2).tobytes())), now_ms=NOW)
    log.append_from_coordinator(batch(1), now_ms=NOW)
    log.append_control(
        ControlType.ABORT, producer_id=ProducerId(5), producer_epoch=ProducerEpoch(0), coordinator_epoch=1, now_ms=NOW
    )
    assert kept.offsets() == [0, 2, 4, 5, 7, 8]
    assert {header.leader_epoch for data in kept.batches for _, header in iter_headers(data)} == {3}
    assert log.log_end_offset == 9
    assert len(kept.asked) == 5


async def test_a_refusal_of_the_journal_leaves_the_log_as_it_was() -> None:
    log, kept = journalled()
    append(log)
    kept.room = 0
    with pytest.raises(RequestRejected) as refused:
        append(log)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (log.log_end_offset, len(kept.batches)) == (1, 1)


def run_of(log: PartitionLog, *batches: memoryview) -> list[tuple[memoryview, HeaderFields]]:
    run: list[tuple[memoryview, HeaderFields]] = []
    for records in batches:
        fields = log.check_plain(records)
        assert fields is not None
        run.append((records, fields))
    return run


async def test_a_run_is_admitted_as_a_whole_and_each_of_its_batches_is_handed_over_and_waits_for_its_own_end() -> None:
    log, kept = journalled()
    append(log)
    sent = [batch(2), batch(1), batch(3)]
    results = log.append_run(run_of(log, *sent), now_ms=NOW)
    assert [tuple(one) for one in results] == [(1, 3, -1, False), (3, 4, -1, False), (4, 7, -1, False)]
    assert kept.asked[1:] == [sum(map(len, sent))]
    assert kept.offsets() == [0, 1, 3, 4]
    assert kept.batches[1:] == [bytes(one) for one in sent], "with their offsets"
    stored = [log.wait_stored(one.last_offset_end) for one in results]
    log.note_journaled(4)
    assert log.high_watermark == 4
    assert [one is not None and one.done() for one in stored] == [True, True, False]  # type: ignore[attr-defined]


async def test_a_run_that_the_journal_has_no_room_for_leaves_the_log_as_it_was() -> None:
    log, kept = journalled()
    append(log)
    kept.room = 1
    with pytest.raises(RequestRejected) as refused:
        log.append_run(run_of(log, batch(), batch()), now_ms=NOW)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (log.log_end_offset, len(kept.batches)) == (1, 1)
    assert append(log) == 2, "alone it has room"


async def test_a_batch_that_is_out_of_order_ends_a_run_before_it() -> None:
    log, kept = journalled()
    log.append_as_leader(idempotent(0), now_ms=NOW)
    run = run_of(log, idempotent(1), idempotent(7), idempotent(2))
    assert [one.base_offset for one in log.append_run(run, now_ms=NOW)] == [1]
    assert kept.offsets() == [0, 1]


@pytest.mark.parametrize("ends", ["resigned", "journal ended"])
async def test_no_run_is_taken_once_the_leadership_has_ended(ends: str) -> None:
    log, kept = journalled()
    append(log)
    run = run_of(log, batch(), batch())
    if ends == "resigned":
        log.resign()
    else:
        log.end_journal(RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, "sealed"))
    assert log.check_plain(batch()) is None
    assert log.append_run(run, now_ms=NOW) == []
    assert (log.log_end_offset, kept.offsets()) == (1, [0])


async def test_a_duplicate_is_handed_over_once_and_waits_for_the_original() -> None:
    log, kept = journalled()
    log.append_as_leader(idempotent(0), now_ms=NOW)
    again = log.append_as_leader(idempotent(0), now_ms=NOW)
    assert (again.duplicate, kept.offsets()) == (True, [0])
    stored = log.wait_stored(again.last_offset_end)
    assert stored is not None
    log.note_journaled(1)
    await stored


async def test_a_sync_of_the_disk_says_nothing_about_what_is_stored() -> None:
    log, _ = journalled()
    stored = log.wait_stored(append(log))
    await log.flush()
    assert log.high_watermark == 0
    log.request_stored(1)
    log.note_journaled(1)
    assert stored is not None
    await stored


@pytest.mark.parametrize("ends", ["resigned", "journal ended"])
async def test_whoever_waits_when_the_leadership_ends_has_to_ask_the_next_leader(ends: str) -> None:
    log, _ = journalled()
    stored = log.wait_stored(append(log))
    if ends == "resigned":
        log.resign()
    else:
        log.end_journal(RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, "sealed"))
    log.note_journaled(1) if ends == "resigned" else None
    assert stored is not None
    with pytest.raises(RequestRejected) as raised:
        await stored
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(RequestRejected):
        append(log)
    assert log.high_watermark == 0


async def test_everything_below_the_log_end_is_committed_when_a_journal_begins() -> None:
    log = new_log(manager_over(sim()), firn_durability=Durability.OBJECT)
    log.resign()
    log.append_as_follower(batch(4, leader_epoch=2), now_ms=NOW)
    assert log.high_watermark == 0
    log.begin_journal(Kept())
    log.become_leader(LeaderEpoch(3))
    log.commit_alone(True)
    assert (log.high_watermark, log.stored_end_offset) == (4, 4)
    assert log.wait_stored(4) is None
