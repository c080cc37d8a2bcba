"""Damage of every kind, and what is left after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import StorageUnavailable
from app.core.units import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from app.hot.checkpoints import LEADER_EPOCHS_FILE, RECOVERY_POINTS_FILE, encode_leader_epochs, parse_leader_epochs
from app.hot.log import PartitionLog
from app.hot.manager import LoadReport, LogManager
from app.hot.recovery import list_snapshots
from app.machine.files import read_file, replace_file
from app.records.control import ControlType
from tests.hot.helpers import DATA, NOW, batch, headers, idempotent, manager_over, new_log, read_all, running, sim
from tests.support.simfs import SimFileSystem

SIZE = len(idempotent(0))
SETTINGS = {"segment_bytes": 5 * SIZE, "index_interval_bytes": SIZE}
FIRST = f"{DATA}/t-0/00000000000000000000"
SECOND = f"{DATA}/t-0/00000000000000000005"


async def filled(fs: SimFileSystem, count: int, **settings: object) -> tuple[LogManager, PartitionLog]:
    manager = manager_over(fs)
    await manager.load_all()
    log = new_log(manager, **{**SETTINGS, **settings})
    for sequence in range(count):
        log.append_as_leader(idempotent(sequence, timestamp=NOW + sequence), now_ms=NOW)
    return manager, log


async def reopened(fs: SimFileSystem, **settings: object) -> tuple[PartitionLog, LoadReport]:
    fs.kill()
    manager = manager_over(fs)
    report = await manager.load_all(lambda _: TopicConfig(**{**SETTINGS, **settings}))  # type: ignore[arg-type]
    log = manager.get("t", 0)
    assert log is not None
    return log, report


async def test_nothing_is_lost_by_a_kill() -> None:
    fs = sim()
    _, log = await filled(fs, 8)
    before = await read_all(log)
    log, report = await reopened(fs)
    assert await read_all(log) == before
    assert (report.clean, report.scanned, report.truncated_bytes, report.problems) == (False, 1, 0, [])
    assert log.producers.entries[1].last_sequence == 7
    result = log.append_as_leader(idempotent(4), now_ms=NOW)  # the last five are known across a roll
    assert (result.base_offset, result.duplicate) == (4, True)


@pytest.mark.parametrize("position", [0, 5, 7, 10, 16, 18, 30, 60, SIZE - 1])
async def test_the_first_damaged_batch_and_all_after_it_are_cut_off(position: int) -> None:
    fs = sim()
    await filled(fs, 9)
    fs.flip_bit(f"{SECOND}.log", 2 * SIZE + position, 4)
    log, report = await reopened(fs)
    assert log.log_end_offset == 7
    assert report.truncated_bytes == 2 * SIZE
    assert len(report.problems) == 1
    assert [header.base_offset for header in headers(await read_all(log))] == list(range(7))
    assert log.append_as_leader(idempotent(7), now_ms=NOW).base_offset == 7


async def test_a_torn_tail_is_cut_off() -> None:
    fs = sim()
    await filled(fs, 8)
    for cut in (1, SIZE - 1, SIZE + 30):
        fs.open(f"{SECOND}.log").truncate(3 * SIZE - cut)
        log, _ = await reopened(fs)
        assert log.log_end_offset == 8 - -(-cut // SIZE)


async def test_segments_after_a_damaged_one_are_dropped() -> None:
    fs = sim()
    await filled(fs, 14)
    fs.flip_bit(f"{FIRST}.log", 3 * SIZE + 40)
    log, report = await reopened(fs)
    assert log.log_end_offset == 3
    assert report.truncated_bytes == 11 * SIZE
    assert [name for name in fs.list_dir(f"{DATA}/t-0") if name.endswith(".log")] == ["00000000000000000000.log"]
    assert log.append_as_leader(idempotent(3), now_ms=NOW).base_offset == 3


async def test_a_missing_segment_ends_the_log_before_it() -> None:
    fs = sim()
    await filled(fs, 14)
    fs.unlink(f"{SECOND}.log")
    log, report = await reopened(fs)
    assert log.log_end_offset == 5
    assert len(report.problems) == 2


async def test_nothing_below_the_recovery_point_is_checked_again() -> None:
    fs = sim()
    manager, log = await filled(fs, 9)
    await log.flush()
    await manager.checkpoint()
    fs.flip_bit(f"{FIRST}.log", 3 * SIZE + 40)
    log.append_as_leader(idempotent(9), now_ms=NOW)
    log, report = await reopened(fs)
    assert (log.log_end_offset, report.problems) == (10, [])


async def test_a_log_cut_below_its_recovery_point_ends_there_and_is_not_trusted_later() -> None:
    fs = sim()
    manager, log = await filled(fs, 4)
    await log.flush()
    await manager.checkpoint()
    fs.open(f"{FIRST}.log").truncate(2 * SIZE)
    log, _ = await reopened(fs)
    assert (log.log_end_offset, log.recovery_point) == (2, 2)
    for sequence in (2, 3):
        log.append_as_leader(idempotent(sequence), now_ms=NOW)
    fs.flip_bit(f"{FIRST}.log", 3 * SIZE + 40)
    log, _ = await reopened(fs)
    assert log.log_end_offset == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda fs: fs.unlink(f"{FIRST}.index"),
        lambda fs: fs.unlink(f"{SECOND}.index"),
        lambda fs: fs.unlink(f"{FIRST}.timeindex"),
        lambda fs: fs.unlink(f"{SECOND}.timeindex"),
        lambda fs: fs.flip_bit(f"{SECOND}.index", 3, 6),
        lambda fs: fs.flip_bit(f"{SECOND}.index", 7, 2),
        lambda fs: fs.flip_bit(f"{SECOND}.timeindex", 11, 6),
        lambda fs: fs.open(f"{SECOND}.index").truncate(3),
        lambda fs: fs.unlink(f"{SECOND}.snapshot"),
        lambda fs: fs.flip_bit(f"{SECOND}.snapshot", 20),
        lambda fs: fs.flip_bit(f"{DATA}/t-0/00000000000000000009.snapshot", 20),
        lambda fs: fs.unlink(f"{DATA}/t-0/leader-epoch-checkpoint"),
        lambda fs: fs.flip_bit(f"{DATA}/t-0/leader-epoch-checkpoint", 0, 6),
        lambda fs: fs.flip_bit(f"{DATA}/recovery-point-offset-checkpoint", 0, 6),
    ],
)
@pytest.mark.parametrize("clean", [False, True])
async def test_side_files_are_rebuilt_from_the_log(damage: Callable[[SimFileSystem], None], clean: bool) -> None:
    fs = sim()
    manager, log = await filled(fs, 9)
    log.become_leader(LeaderEpoch(3))
    log.append_as_leader(batch(timestamp=NOW + 50), now_ms=NOW)
    log.truncate_to(9)
    await log.flush()
    before, state = await read_all(log), log.state()
    await manager.checkpoint()
    if clean:
        await manager.close()
        fs.unlink(f"{DATA}/.firn_log_state")
    damage(fs)
    log, _ = await reopened(fs)
    assert await read_all(log) == before
    assert log.state().producers == state.producers
    assert log.leader_epochs() == ((0, 0),)
    for offset in range(9):
        assert await log.offset_for_timestamp(NOW + offset) == (NOW + offset, offset)
    assert await log.max_timestamp_offset() == (NOW + 8, 8)


async def test_transactions_are_rebuilt() -> None:
    fs = sim()
    manager, log = await filled(fs, 0)
    expected = []
    for sequence in range(6):
        log.append_as_leader(idempotent(sequence, transactional=True), now_ms=NOW)
        log.append_control(
            ControlType.ABORT if sequence % 2 else ControlType.COMMIT,
            producer_id=ProducerId(1),
            producer_epoch=ProducerEpoch(0),
            coordinator_epoch=0,
            now_ms=NOW,
        )
        if sequence % 2:
            expected.append((1, 2 * sequence, 2 * sequence + 1, 2 * sequence + 2))
        if sequence == 3:
            await log.flush()
            await manager.checkpoint()
    log.append_as_leader(idempotent(6, transactional=True), now_ms=NOW)
    assert len(log.segments()) > 2
    for damage in ("", "cut", "cut again"):
        if damage:
            path = next(f"{DATA}/t-0/{name}" for name in fs.list_dir(f"{DATA}/t-0") if name.endswith(".txnindex"))
            fs.open(path).truncate(fs.file_size(path) - 1)
        log, _ = await reopened(fs)
        assert await log.aborted_transactions_when_ready(0, 100) == expected
        assert log.last_stable_offset == 12
        await log.flush()


async def test_what_recovery_found_counts_as_stored_only_once_synced() -> None:
    fs = sim()
    _, log = await filled(fs, 3, firn_durability=Durability.DISK)
    assert log.high_watermark == 0
    fs.trace = []
    log, _ = await reopened(fs, firn_durability=Durability.DISK)
    assert log.high_watermark == 3
    assert ("fdatasync", f"{FIRST}.log") in fs.trace


async def test_a_start_past_the_end_begins_anew_there() -> None:
    fs = sim()
    manager, log = await filled(fs, 8)
    log.advance_log_start(8)
    await manager.checkpoint()
    fs.open(f"{SECOND}.log").truncate(SIZE)
    log, report = await reopened(fs)
    assert (log.log_start_offset, log.log_end_offset, log.local_log_start_offset) == (8, 8, 8)
    assert report.problems


async def test_starting_anew_keeps_lineage_and_producers() -> None:
    fs = sim()
    manager, log = await filled(fs, 8)
    snapshot, lineage = log.producer_snapshot(8), log.leader_epochs()
    log.truncate_fully_and_start_at(20, lineage, snapshot, log_start_offset=2)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (2, 20, 20)
    assert log.leader_epochs() == lineage
    assert log.append_as_leader(idempotent(8), now_ms=NOW).base_offset == 20
    await manager.checkpoint()
    log, report = await reopened(fs)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (2, 20, 21)
    assert log.producers.entries[1].last_sequence == 8
    assert report.problems == []


async def test_the_manifest_may_lower_the_log_start_and_lengthen_the_lineage() -> None:
    _, log = await filled(sim(), 3)
    log.truncate_fully_and_start_at(10)
    log.become_leader(LeaderEpoch(4))
    log.restore_log_start(1)
    log.restore_leader_epochs([*log.leader_epochs(), *[type(log.leader_epochs()[0])(LeaderEpoch(2), Offset(1))]])
    assert log.log_start_offset == 1
    assert log.leader_epochs() == ((2, 1), (4, 10))


async def test_a_snapshot_of_any_segment_can_be_had() -> None:
    fs = sim()
    manager, log = await filled(fs, 14)
    pending = log.producer_snapshot(5)
    await log.flush()
    assert log.producer_snapshot(5) == pending == fs.open(f"{SECOND}.snapshot").pread(1000, 0)
    assert log.producer_snapshot(5) == pending
    assert log.producer_snapshot(14) != pending
    assert manager.offline_reason is None


async def test_a_rolled_segment_that_was_recovered_keeps_its_greatest_timestamp() -> None:
    fs = sim()
    await filled(fs, 7, index_interval_bytes=10 * SIZE)
    log, _ = await reopened(fs, index_interval_bytes=10 * SIZE)
    await log.flush()
    assert fs.open(f"{FIRST}.timeindex").pread(100, 0).hex() == f"{NOW + 4:016x}00000004"


# --- what must not be trusted, or come back, after a kill ------------------------------------------------------------


async def test_what_is_appended_after_a_truncation_is_checked_by_the_next_recovery() -> None:
    fs = sim()
    manager, log = await filled(fs, 9)
    await log.flush()
    await manager.checkpoint()
    log.truncate_to(2)
    for sequence in range(2, 7):
        log.append_as_leader(idempotent(sequence), now_ms=NOW)
    fs.flip_bit(f"{FIRST}.log", 3 * SIZE + 40)
    log, _ = await reopened(fs)
    assert log.log_end_offset == 3


async def test_a_truncation_makes_the_dropped_names_durable() -> None:
    fs = sim()
    _, log = await filled(fs, 9)
    fs.trace = []
    log.truncate_to(3)
    dropped = max(number for number, (call, path) in enumerate(fs.trace) if call == "rename" and "05.log" in path)
    assert ("fsync_dir", f"{DATA}/t-0") in fs.trace[dropped:]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("before", [0, 1, 6])
async def test_a_log_that_a_truncation_emptied_at_its_start_begins_there_after_a_loss_of_power(
    before: int, seed: int
) -> None:
    fs = sim(seed)
    _, log = await filled(fs, 0)
    log.append_as_leader(batch(), now_ms=NOW)
    await log.flush()
    for sequence in range(before):
        log.append_as_leader(idempotent(sequence), now_ms=NOW)
    log.append_as_leader(batch(2), now_ms=NOW)
    start = before + 2
    log.advance_log_start(start)
    log.truncate_to(start)
    assert (log.log_start_offset, log.log_end_offset) == (start, start)
    fs.crash()
    log, _ = await reopened(fs)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (start, start, 0)


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_stored_in_a_log_damaged_below_its_start_after_a_clean_stop_survives_a_loss_of_power(
    seed: int,
) -> None:
    fs = sim(seed)
    manager, log = await filled(fs, 3, firn_durability=Durability.DISK)
    await log.flush()
    log.advance_log_start(2)
    await manager.close()
    fs.open(f"{FIRST}.log").truncate(SIZE)
    fs.unlink(f"{DATA}/t-0/{LEADER_EPOCHS_FILE}")
    fs.fsync_dir(f"{DATA}/t-0")
    manager = manager_over(fs)
    await manager.load_all(lambda _: TopicConfig(firn_durability=Durability.DISK))
    log = manager.get("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    log.append_as_leader(batch(), now_ms=NOW)
    async with running(manager):
        await log.wait_stored(3)
    fs.crash()
    log, _ = await reopened(fs, firn_durability=Durability.DISK)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 3, 3)


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_stored_in_a_log_whose_files_went_after_a_clean_stop_survives_a_loss_of_power(seed: int) -> None:
    fs = sim(seed)
    manager, log = await filled(fs, 0, firn_durability=Durability.DISK)
    log.truncate_fully_and_start_at(0)
    await manager.close()
    fs.unlink(f"{DATA}/.firn_log_state")
    fs.unlink(f"{FIRST}.log")
    fs.fsync_dir(f"{DATA}/t-0")
    manager = manager_over(fs)
    await manager.load_all(lambda _: TopicConfig(firn_durability=Durability.DISK))
    log = manager.get("t", 0)
    assert log is not None
    log.append_as_leader(batch(), now_ms=NOW)
    async with running(manager):
        await log.wait_stored(1)
    fs.crash()
    log, _ = await reopened(fs, firn_durability=Durability.DISK)
    assert (log.log_end_offset, log.high_watermark) == (1, 1)


async def test_producers_of_deleted_segments_are_not_forgotten_by_a_kill() -> None:
    fs = sim()
    _, log = await filled(fs, 5)
    for _ in range(2):
        log.append_as_leader(batch(), now_ms=NOW)
    log.advance_log_start(7)
    assert log.local_log_start_offset == 7
    log, _ = await reopened(fs)
    assert log.segments()[0].base_offset == 5
    assert log.producers.entries[1].last_sequence == 4


def flips_of(fs: SimFileSystem, path: str) -> Iterator[None]:
    """The file with one bit changed, for every bit of it; in the end it is as it was."""
    content = bytes(read_file(fs, path))
    for position in range(len(content)):
        for bit in range(8):
            replace_file(fs, path, content, durable=True)
            fs.flip_bit(path, position, bit)
            yield
    replace_file(fs, path, content, durable=True)


@pytest.mark.ci
@pytest.mark.parametrize("synced", [0, 7, 14])
async def test_a_flipped_bit_in_the_leader_epochs_is_found_whichever_it_is(synced: int) -> None:
    fs = sim()
    manager, log = await filled(fs, 0)
    for sequence in range(14):
        if sequence in (4, 5, 6, 10):  # within a segment, at its start, and more than one
            log.become_leader(LeaderEpoch(10 + sequence))
        log.append_as_leader(idempotent(sequence, timestamp=NOW + sequence), now_ms=NOW)
        if sequence == synced - 1:
            await log.flush()
            await manager.checkpoint()
    lineage = log.leader_epochs()
    assert lineage == ((0, 0), (14, 4), (15, 5), (16, 6), (20, 10))
    before = await read_all(log)
    replace_file(fs, f"{log.path}/{LEADER_EPOCHS_FILE}", encode_leader_epochs(lineage), durable=True)
    found = 0
    for _ in flips_of(fs, f"{log.path}/{LEADER_EPOCHS_FILE}"):
        log, report = await reopened(fs)
        assert log.leader_epochs() == lineage
        assert parse_leader_epochs(read_file(fs, f"{log.path}/{LEADER_EPOCHS_FILE}")) == list(lineage)
        assert log.log_end_offset == 14
        found += len(report.problems)
    assert found > 0
    assert await read_all(log) == before


async def test_a_batch_of_another_epoch_than_the_checkpoint_says_is_told() -> None:
    fs = sim()
    _, log = await filled(fs, 8)
    log.become_leader(LeaderEpoch(3))
    log.append_as_leader(idempotent(8), now_ms=NOW)
    manager = manager_over(fs)
    path = f"{log.path}/{LEADER_EPOCHS_FILE}"
    await log.flush()
    fs.kill()
    replace_file(fs, path, b"0\n2\n0 0\n3 7\n", durable=True)
    replace_file(fs, f"{DATA}/{RECOVERY_POINTS_FILE}", b"0\n1\nt 0 9\n", durable=True)
    report = await manager.load_all(lambda _: TopicConfig(**SETTINGS))  # type: ignore[arg-type]
    assert report.problems == [
        f"{path} has offset 7 in leader epoch 3, and the log has it in 0; it is rebuilt from the log"
    ]


async def test_epochs_that_no_checkpoint_has_yet_are_found_in_the_batches() -> None:
    fs = sim()
    _, log = await filled(fs, 3)
    await log.flush()
    log.become_leader(LeaderEpoch(4))
    log.append_as_leader(idempotent(3), now_ms=NOW)
    log.become_leader(LeaderEpoch(7))
    log.append_as_leader(idempotent(4), now_ms=NOW)
    assert read_file(fs, f"{log.path}/leader-epoch-checkpoint") == b"0\n1\n0 0\n"
    log, _ = await reopened(fs)
    assert log.leader_epochs() == ((0, 0), (4, 3), (7, 4))


async def test_an_epoch_past_the_end_does_not_claim_what_is_appended_later() -> None:
    fs = sim()
    _, log = await filled(fs, 3)
    checkpoint = fs.open(f"{log.path}/leader-epoch-checkpoint", create=True)
    checkpoint.pwrite(b"0\n2\n0 0\n9 3\n", 0)
    log, _ = await reopened(fs)
    assert log.leader_epochs() == ((0, 0),)
    log.append_as_leader(idempotent(3), now_ms=NOW)
    log, _ = await reopened(fs)
    assert log.leader_epochs() == ((0, 0),)


async def test_an_epoch_that_the_checkpoint_lacks_is_left_to_the_next_sync() -> None:
    fs = sim()
    _, log = await filled(fs, 3)
    await log.flush()
    log.become_leader(LeaderEpoch(4))
    log.append_as_leader(idempotent(3), now_ms=NOW)
    log, _ = await reopened(fs)
    assert log.leader_epochs() == ((0, 0), (4, 3))
    assert read_file(fs, f"{log.path}/{LEADER_EPOCHS_FILE}") == b"0\n1\n0 0\n"
    await log.flush()
    assert read_file(fs, f"{log.path}/{LEADER_EPOCHS_FILE}") == b"0\n2\n0 0\n4 3\n"


def claim_an_epoch_too_many(fs: SimFileSystem) -> None:
    """Recovery has to write the checkpoint at once."""
    replace_file(fs, f"{DATA}/t-0/{LEADER_EPOCHS_FILE}", b"0\n2\n0 0\n9 99\n", durable=True)


async def test_on_a_full_disk_logs_open_without_what_can_be_made_again() -> None:
    fs = sim()
    _, log = await filled(fs, 8)
    before = await read_all(log)
    claim_an_epoch_too_many(fs)
    fs.capacity_bytes = fs.used
    log, report = await reopened(fs)
    assert (await read_all(log), log.leader_epochs(), log.producers.entries[1].last_sequence) == (before, ((0, 0),), 7)
    assert sorted(problem.partition(" ")[0] for problem in report.problems) == [
        f"{SECOND}.snapshot",
        f"{DATA}/t-0/{LEADER_EPOCHS_FILE}",
    ]
    assert all("cannot be written now: No space left" in problem for problem in report.problems)
    fs.capacity_bytes = 1 << 40
    await log.flush()
    assert read_file(fs, f"{DATA}/t-0/{LEADER_EPOCHS_FILE}") == b"0\n1\n0 0\n"
    log, report = await reopened(fs)
    assert (await read_all(log), report.problems) == (before, [])


async def test_another_fault_than_a_full_disk_ends_the_opening_of_logs() -> None:
    fs = sim()
    await filled(fs, 8)
    claim_an_epoch_too_many(fs)
    fs.fail_next("fdatasync", f"{LEADER_EPOCHS_FILE}.tmp")
    with pytest.raises(StorageUnavailable, match="Cannot open the logs"):
        await reopened(fs)


async def test_recovery_replays_no_more_than_its_share_where_producers_have_no_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.hot.snapshots.REPLAY_BYTES_MAX", 4 * len(batch(1)))
    fs = sim()
    _, log = await filled(fs, 0, segment_bytes=1 << 20)
    snapshots = []
    for _ in range(10):
        log.append_as_leader(batch(1), now_ms=NOW)
        await log.flush()
        snapshots.append(list_snapshots(fs.list_dir(log.path))[-1:])
    assert snapshots == [[]] * 3 + [[4]] * 4 + [[8]] * 3
