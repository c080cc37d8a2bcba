"""Segment files that a start finds missing between others."""

from __future__ import annotations

import pytest

from app.configs import TopicConfig
from app.core.errors import CorruptionError
from app.core.units import LeaderEpoch, Offset
from app.hot.descriptors import DescriptorCache, FileHandle
from app.hot.indexes import SegmentIndex
from app.hot.log import PartitionLog
from app.hot.manager import LoadReport, LogManager
from app.hot.missing import LostRange, bases_without_log, end_in_file
from app.hot.segments import Segment
from tests.hot.helpers import DATA, NOW, batch, headers, idempotent, manager_over, new_log, read_all, sim
from tests.support.simfs import SimFileSystem

SIZE = len(idempotent(0))
SETTINGS = {"segment_bytes": 5 * SIZE, "index_interval_bytes": SIZE}
COMPACTED = {"segment_bytes": 5 * len(batch(key=b"00")), "cleanup_policy": frozenset({"compact"})}
SECOND = f"{DATA}/t-0/00000000000000000005"
THIRD = f"{DATA}/t-0/00000000000000000010"
SIDES = (".index", ".timeindex", ".snapshot")


async def synced(fs: SimFileSystem, count: int = 23, **settings: object) -> tuple[LogManager, PartitionLog]:
    """A log of five records a segment, all of it below its recovery point."""
    manager = manager_over(fs)
    await manager.load_all()
    log = new_log(manager, **{**SETTINGS, **settings})
    for sequence in range(count):
        log.append_as_leader(idempotent(sequence, timestamp=NOW), now_ms=NOW)
    await log.flush()
    await manager.checkpoint()
    return manager, log


async def started(fs: SimFileSystem, **settings: object) -> tuple[LogManager, PartitionLog, LoadReport]:
    manager = manager_over(fs)
    report = await manager.load_all(lambda _: TopicConfig(**{**SETTINGS, **settings}))  # type: ignore[arg-type]
    log = manager.get("t", 0)
    assert log is not None
    return manager, log, report


async def after_a_kill(fs: SimFileSystem, **settings: object) -> tuple[LogManager, PartitionLog, LoadReport]:
    fs.kill()
    return await started(fs, **settings)


def test_only_side_files_without_a_log_file_show_a_loss() -> None:
    names = [
        "0.log",
        "0.index",
        "5.index",
        "7.snapshot",
        "9.timeindex",
        "9.log",
        "leader-epoch-checkpoint",
        "11.log.deleted",
    ]
    assert bases_without_log(names) == [5, 7]


@pytest.mark.parametrize("left", SIDES)
async def test_a_missing_segment_is_found_by_each_name_that_it_leaves(left: str) -> None:
    fs = sim()
    await synced(fs)
    for suffix in (".log", *SIDES):
        if suffix != left:
            fs.unlink(SECOND + suffix)
    _, log, report = await after_a_kill(fs)
    assert log.lost == (LostRange(5, 10),)
    assert report.lacking == [log]
    assert log.log_end_offset == 23


async def test_records_around_missing_ones_are_read_and_the_missing_ones_are_an_error() -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    fs.unlink(f"{THIRD}.log")
    _, log, _ = await after_a_kill(fs)
    first = await log.read_when_ready(0, 1 << 20, end_offset=log.high_watermark)
    assert first.end_offset == 5  # or the next read would begin behind the loss
    for offset in (5, 9, 14):
        with pytest.raises(
            CorruptionError,
            match=r"Offsets \[5, 15\) of t-0 are lost on this disk: segment files are missing or damaged",
        ):
            log.plan_read(offset, 1 << 20, end_offset=23)
    assert [header.base_offset for header in headers(await read_all(log, 15))] == list(range(15, 23))


async def test_an_append_continues_a_log_that_lacks_a_segment() -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    _, log, _ = await after_a_kill(fs)
    assert log.append_as_leader(idempotent(23), now_ms=NOW).base_offset == 23


async def test_a_loss_is_known_at_every_later_start() -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    for suffix in (".index", ".timeindex"):
        fs.unlink(SECOND + suffix)
    for sequence in range(23, 26):
        manager, log, report = await after_a_kill(fs)
        assert (log.lost, report.lacking) == ((LostRange(5, 10),), [log])
        log.append_as_leader(idempotent(sequence), now_ms=NOW)
        await log.flush()
        await manager.checkpoint()  # deletes snapshots that are older than its own
    await manager.close()
    manager, log, report = await started(fs)
    assert (report.clean, report.scanned, log.lost) == (True, 0, (LostRange(5, 10),))
    assert report.lacking == [log]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_loss_before_an_empty_active_segment_is_known(clean: bool) -> None:
    fs = sim()
    await synced(fs, 16)
    fs.unlink(f"{THIRD}.log")
    fs.open(f"{DATA}/t-0/00000000000000000015.log").truncate(0)  # its first batch was torn
    manager, log, report = await after_a_kill(fs)
    if clean:
        await manager.close()
        manager, log, report = await started(fs)
    assert (report.clean, log.lost, report.lacking) == (clean, (LostRange(10, 15),), [log])
    assert log.append_as_leader(idempotent(15), now_ms=NOW).base_offset == 15
    with pytest.raises(CorruptionError, match=r"Offsets \[10, 15\)"):
        log.plan_read(10, 1 << 20, end_offset=16)


async def test_a_truncation_behind_a_loss_keeps_it_and_one_at_its_start_ends_it() -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    _, log, _ = await after_a_kill(fs)
    log.truncate_to(17)
    assert (log.log_end_offset, log.lost) == (17, (LostRange(5, 10),))
    log.truncate_to(5)
    assert (log.log_end_offset, log.lost) == (5, ())


@pytest.mark.parametrize("offset", [7, 10])
async def test_a_truncation_to_within_a_loss_gives_no_committed_record_up(offset: int) -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    _, log, _ = await after_a_kill(fs)
    log.commit_alone(False)
    log._high_watermark = offset
    with pytest.raises(CorruptionError, match=f"to 5, but all below {offset} is committed"):
        log.truncate_to(offset)
    assert (log.log_end_offset, log.lost) == (23, (LostRange(5, 10),))
    assert log.truncate_to(offset, given_up=True)
    assert (log.log_end_offset, log.high_watermark, log.lost) == (5, 5, ())


async def test_deleting_the_records_before_its_end_gives_a_loss_up() -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    _, log, _ = await after_a_kill(fs)
    log.advance_log_start(10)
    assert (log.lost, log.local_log_start_offset) == ((), 10)
    assert len(headers(await read_all(log))) == 13


async def test_files_that_an_interrupted_truncation_left_are_no_loss() -> None:
    fs = sim()
    manager, log = await synced(fs, 9)
    log.truncate_to(8)
    await log.flush()
    for suffix in SIDES:
        fs.open(f"{DATA}/t-0/00000000000000000007{suffix}", create=True).close()  # a cut segment's, which a kill left
    for sequence in range(8, 14):
        log.append_as_leader(idempotent(sequence), now_ms=NOW)
    await log.flush()
    await manager.checkpoint()
    _, log, report = await after_a_kill(fs)
    assert (log.lost, report.lacking, report.problems) == ((), [], [])


@pytest.mark.parametrize("compacted", [True, False])
async def test_a_compacted_log_is_not_looked_at(compacted: bool) -> None:
    fs = sim()
    await synced(fs)
    fs.unlink(f"{SECOND}.log")
    _, log, _ = await after_a_kill(fs, cleanup_policy=frozenset({"compact"}) if compacted else frozenset({"delete"}))
    assert log.lost == (() if compacted else (LostRange(5, 10),))


async def test_a_usual_log_is_not_read_more_than_before() -> None:
    fs = sim()
    await synced(fs)
    opened: list[str] = []
    fs.kill()
    real = fs.open

    def open_and_note(path: str, **options: bool):  # type: ignore[no-untyped-def]
        opened.append(path.rsplit("/", 1)[1])
        return real(path, **options)

    fs.open = open_and_note  # type: ignore[method-assign]
    await started(fs)
    read = {int(name.partition(".")[0]) for name in opened if name.endswith(".index")}
    assert read == {0, 20}  # where the first and the last leader epoch are compared


@pytest.mark.parametrize(("position", "end"), [(2 * SIZE, 3), (SIZE + 7, 3), (0, 3)])
async def test_an_index_that_does_not_fit_hides_no_end(position: int, end: int) -> None:
    fs = sim()
    await synced(fs, 3)
    path = f"{DATA}/t-0/00000000000000000000.log"
    segment = Segment(Offset(0), FileHandle(DescriptorCache(fs, 8), path))
    segment.size_bytes = fs.file_size(path)
    index = SegmentIndex()
    index.offsets.append(0)
    index.positions.append(position)
    assert end_in_file(segment, fs.open(path), index) == end


async def test_a_log_without_producers_tells_a_loss_as_well() -> None:
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    size = len(batch())
    log = new_log(manager, segment_bytes=5 * size, index_interval_bytes=size)
    for _ in range(13):
        log.append_as_leader(batch(), now_ms=NOW)
    await log.flush()
    await manager.checkpoint()
    fs.unlink(f"{SECOND}.log")
    _, log, _ = await after_a_kill(fs)
    assert log.lost == (LostRange(5, 10),)


async def with_a_hole(count: int = 23, kept: int = 2) -> SimFileSystem:
    """The disk of a compacted log after a loss of power that took records of its second segment, of which it kept the first ones
    of five."""
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    log = new_log(manager, **COMPACTED)
    for number in range(count):
        log.append_as_leader(batch(key=b"%02d" % number), now_ms=NOW)
    file = fs.open(f"{SECOND}.log")
    file.truncate(kept * (file.size() // 5))
    file.close()
    fs.kill()
    return fs


async def bases_from(log: PartitionLog, offset: int) -> list[int]:
    return [header.base_offset for header in headers(await read_all(log, offset))]


@pytest.mark.parametrize("starts", [1, 2])
async def test_readers_of_a_compacted_log_go_on_behind_a_hole(starts: int) -> None:
    fs = await with_a_hole()
    manager, log, report = await started(fs, **COMPACTED)
    assert (log.unsure_from, log.lacks_from) == (7, 7)
    assert [line for line in report.problems if "ends at 7, but the next segment begins at 10: a loss of power" in line]
    if starts == 2:
        # Now all is below the recovery point, and the segment is trusted to go on to the next one.
        await log.flush()
        await manager.checkpoint()
        _, log, _ = await after_a_kill(fs, **COMPACTED)
    views = log.segments()
    assert [one.end_offset for one in views[:-1]] == [one.base_offset for one in views[1:]]
    rest = [5, 6, *range(10, 23)]
    assert await bases_from(log, 5) == rest
    for offset in (7, 8, 9, 10):
        assert await bases_from(log, offset) == rest[2:]


@pytest.mark.parametrize("kept", [0, 2])
async def test_a_cut_in_a_hole_takes_what_is_behind_it(kept: int) -> None:
    end = 5 + kept
    for offset in range(end, 10):
        fs = await with_a_hole(kept=kept)
        manager, log, _ = await started(fs, **COMPACTED)
        await log.flush()
        await manager.checkpoint()
        _, log, _ = await after_a_kill(fs, **COMPACTED)
        assert log.truncate_to(offset, given_up=True)
        assert log.log_end_offset == end
        assert await bases_from(log, 4) == list(range(4, end))
        log.append_as_follower(batch(key=b"07", base_offset=Offset(end), leader_epoch=LeaderEpoch(0)), now_ms=NOW)
        assert await bases_from(log, 4) == list(range(4, end + 1))


async def test_a_hole_in_a_log_that_is_not_compacted_is_damage() -> None:
    fs = await with_a_hole()
    _, log, report = await started(fs)
    assert log.log_end_offset == 7
    assert [line for line in report.problems if "ends at 7, but the next segment begins at 10" in line]


async def test_a_synced_segment_of_such_a_log_that_lacks_records_is_damage_when_it_is_read() -> None:
    fs = await with_a_hole(kept=5)
    manager, log, _ = await started(fs)
    await log.flush()
    await manager.checkpoint()
    file = fs.open(f"{SECOND}.log")
    file.truncate(2 * (file.size() // 5))
    file.close()
    _, log, report = await after_a_kill(fs)
    assert (log.log_end_offset, report.problems) == (23, [])
    for offset in (7, 8, 9):
        with pytest.raises(CorruptionError):
            await read_all(log, offset)


@pytest.mark.parametrize("end", [7, 8, 9, 10, 11])
async def test_a_read_up_to_an_offset_in_a_hole_has_all_before_it(end: int) -> None:
    _, log, _ = await started(await with_a_hole(), **COMPACTED)
    found = []
    offset = 4
    while offset < end:
        read = log.read(offset, 2**20, end_offset=end)
        if not (data := await read.read_bytes()):
            break
        found += [header.base_offset for header in headers(bytes(data))]
        offset = read.end_offset
    assert found == [base for base in (4, 5, 6, 10) if base < end]
