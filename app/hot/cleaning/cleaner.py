"""The log cleaner: compacts the logs of one broker, ``log.cleaner.threads`` at a time, and replaces their segments.

The cleaner decides and swaps. A ``CleanerWork`` for each log reads and writes the segments. A damaged log is not compacted
until the next start; it is counted and logged. All code here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from app.configs import BrokerConfig
from app.core.errors import ConflictError, CorruptionError, FirnError, StorageUnavailable
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.metrics import Labels, Registry
from app.core.seams import BlockingPool, Clock
from app.core.units import Offset
from app.hot.cleaning.job import CleaningJob, SegmentFile
from app.hot.cleaning.selection import Dirt, find_dirt, group_segments, is_due
from app.hot.cleaning.work import CleanerWork
from app.hot.directory import run_to_end
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.hot.segment_holds import LogCleaning
from app.hot.segments import CleanedSegment, RolledSegment, SegmentHold
from app.hot.swapping import commit, remove_cleaned
from app.machine.files import FileSystem, storage_error
from app.machine.runtime import look_at_error

T = TypeVar("T")

LOGS_PER_TURN: Final = 100
"""Logs checked before the cleaner yields to the event loop."""
HASH_KEY_BYTES: Final = 16


class CleanerMetrics:
    """Counters of compaction."""

    def __init__(self, registry: Registry) -> None:
        self.rounds = registry.counter("firn_log_cleaner_rounds_total", "Rounds of compaction over a log")
        self.failures = registry.counter("firn_log_cleaner_failures_total", "Rounds of compaction that failed")
        self.bytes_read = registry.counter(
            "firn_log_cleaner_read_bytes_total", "Bytes that compaction read, both passes"
        )
        self.bytes_in = registry.counter(
            "firn_log_cleaner_input_bytes_total", "Bytes of segments that compaction replaced"
        )
        self.bytes_out = registry.counter(
            "firn_log_cleaner_output_bytes_total", "Bytes of the segments that replaced them"
        )
        self.records_read = registry.counter("firn_log_cleaner_records_read_total", "Records that compaction read")
        self.records_dropped = registry.counter(
            "firn_log_cleaner_records_dropped_total", "Records that compaction removed"
        )
        self.seconds = registry.histogram("firn_log_cleaner_seconds", "Time of one round of compaction over a log")


@dataclass(slots=True)
class _Task:
    """The compaction of one log, in one round or several."""

    work: CleanerWork
    log: PartitionLog
    cleaning: LogCleaning
    ended: asyncio.Event
    """Set when the log was cut, closed, taken offline, or got another cleanup policy. After that this work must not change it."""
    unfinished: Offset | None = None
    """Base offset of the segment that is being written and put in place."""

    def check(self) -> None:
        """Raises: ConflictError if the log has ended this work."""
        if self.cleaning.ended:
            raise ConflictError(f"The compaction of {self.log.topic}-{self.log.partition} was ended.")


class LogCleaner:
    """See the module's docstring."""

    def __init__(
        self,
        logs: LogManager,
        new_work: Callable[[], CleanerWork],
        *,
        config: Callable[[], BrokerConfig],
        fs: FileSystem,
        pool: BlockingPool,
        clock: Clock,
        rng: random.Random,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
        tiered_end: Callable[[PartitionLog], int] = lambda log: 0,
    ) -> None:
        """``config`` returns the broker's present settings. ``new_work`` creates another worker. ``tiered_end``: up to where the
        segments of a tiered log are in the object store, as far as its leader knows."""
        self._logs = logs
        self._new_work = new_work
        self._works: list[CleanerWork] = []
        self._choosing = asyncio.Lock()
        self._config = config
        self._tiered_end = tiered_end
        self._fs = fs
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        self._metrics = CleanerMetrics(registry)
        self._uncleanable: dict[PartitionLog, Offset] = {}
        """Log starts of damaged logs when the damage was found. A log is tried again when records were deleted since."""
        self._ratio_max = 0.0
        self._overdue_ms_max = 0
        registry.gauge("firn_log_cleaner_dirty_ratio_max", "Greatest dirty ratio of a compacted log", self._dirtiest)
        registry.gauge("firn_log_cleaner_overdue_seconds", "Longest time past max.compaction.lag.ms", self._latest)
        registry.gauge(
            "firn_log_cleaner_uncleanable_logs", "Logs that are not compacted because of damage", self._damaged
        )

    def _dirtiest(self) -> Iterable[tuple[Labels, float]]:
        yield (), self._ratio_max

    def _latest(self) -> Iterable[tuple[Labels, float]]:
        yield (), self._overdue_ms_max / 1000

    def _damaged(self) -> Iterable[tuple[Labels, float]]:
        yield (), float(len(self._uncleanable))

    async def run(self) -> None:
        """Clean due logs until cancelled, with the present number of workers. Clean nothing if the settings say so at the start."""
        if not self._config().log_cleaner_enable:
            return
        async with asyncio.TaskGroup() as tasks:
            workers = 0
            while True:
                while workers < self._config().log_cleaner_threads:
                    tasks.create_task(self._run_worker(workers))
                    workers += 1
                await self._back_off()

    async def _run_worker(self, worker: int) -> None:
        while True:
            if worker >= self._config().log_cleaner_threads or not await self.clean_next(worker):
                await self._work_of(worker).rest()
                await self._back_off()

    async def _back_off(self) -> None:
        await asyncio.sleep(self._config().log_cleaner_backoff_ms / 1000)

    def _work_of(self, worker: int) -> CleanerWork:
        while len(self._works) <= worker:
            self._works.append(self._new_work())
        return self._works[worker]

    async def clean_next(self, worker: int = 0) -> bool:
        """Clean the dirtiest due log that no worker has. False if there is none, or if it could not be cleaned."""
        async with self._choosing:
            found = await self._choose()
            if found is None:
                return False
            log, ended = found, asyncio.Event()
            task = _Task(self._work_of(worker), log, log.begin_cleaning(ended.set), ended)
            start = log.log_start_offset
        try:
            await self._clean(task)
        except ConflictError:
            return True  # cut, deleted, or no longer compacted
        except FirnError as error:
            if task.cleaning.ended:
                return True  # it read files that the log had changed
            if isinstance(error, CorruptionError):
                self._metrics.failures.value += 1
                self._uncleanable[log] = start
                self._log_line(
                    Event.COMPACTION_STOPPED.line(
                        f"{log.topic}-{log.partition} is no longer compacted: {error}",
                        topic=log.topic,
                        partition=int(log.partition),
                    )
                )
                return True
            self._metrics.failures.value += 1
            sentence = f"cannot compact {log.topic}-{log.partition}, will try again: {error}"
            self._faults.met("compacting", str(log.topic_partition), sentence)
            return False
        finally:
            log.finish_cleaning(task.cleaning)
        return True

    # --- choosing ---------------------------------------------------------------------------------------------------

    async def _choose(self) -> PartitionLog | None:
        now_ms = self._clock.now_ms()
        best: tuple[PartitionLog, Dirt] | None = None
        ratio_max, overdue_ms_max = 0.0, 0
        logs = self._logs.logs()
        if self._uncleanable:
            self._uncleanable = {log: self._uncleanable[log] for log in logs if self._is_still_damaged(log)}
        for number, log in enumerate(logs):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not log.config.compacted or log.offline_error is not None or log in self._uncleanable:
                continue
            dirt = self._dirt(log, now_ms)
            ratio_max = max(ratio_max, dirt.ratio)
            overdue_ms_max = max(overdue_ms_max, dirt.overdue_ms)
            if not log.cleaning and is_due(dirt, log.config) and (best is None or dirt.ratio > best[1].ratio):
                best = log, dirt
        self._ratio_max, self._overdue_ms_max = ratio_max, overdue_ms_max
        # It may have gone, or be rewritten for the tier, since the others were looked at.
        if best is None or best[0].offline_error is not None or best[0].cleaning:
            return None
        return best[0]

    def _is_still_damaged(self, log: PartitionLog) -> bool:
        found_at = self._uncleanable.get(log)
        return found_at == log.log_start_offset and log.config.compacted and log.offline_error is None

    def _dirt(self, log: PartitionLog, now_ms: int) -> Dirt:
        # Below the recovery point everything of a segment is durable, indexes included, and no more bytes are written to it.
        stable_end = min(log.last_stable_offset, log.recovery_point)
        if log.config.tiered:
            # A take-over may cut the records above. Then the newer record that was the reason for a removal would be gone
            # (J56).
            stable_end = min(stable_end, Offset(self._tiered_end(log)))
        return find_dirt(
            log.rolled_segments(),
            log.config,
            log_start_offset=log.log_start_offset,
            cleaned_end_offset=log.cleaned_end_offset,
            stable_end_offset=stable_end,
            now_ms=now_ms,
        )

    # --- cleaning ---------------------------------------------------------------------------------------------------

    async def _clean(self, task: _Task) -> None:
        """Run rounds over one log until all its present dirt is clean. Several rounds are needed if the map is too small for all
        keys.

        Raises: CorruptionError, ConflictError (the log has ended the work), StorageFull, StorageUnavailable.
        """
        log, work = task.log, task.work
        # It may take long to start a process. Nothing of the log is held before there is one that asks for segments.
        await self._unless_ended(task, work.ready())
        dirt = self._dirt(log, self._clock.now_ms())
        loop = asyncio.get_running_loop()
        while dirt.exists:
            started = loop.time()
            try:
                cleaned_end = await self._clean_round(task, dirt)
            finally:
                task.cleaning.release()
                await _to_the_end(work.end())
                await self._remove_unfinished(task)
            task.check()
            self._metrics.rounds.value += 1
            self._metrics.seconds.observe(loop.time() - started)
            log.cleaned_end_offset = Offset(cleaned_end)
            await self._logs.checkpoint()
            dirt = dirt._replace(start=cleaned_end)

    async def _clean_round(self, task: _Task, dirt: Dirt) -> int:
        """Index as many keys as fit into the map, and clean with them. Returns: the end of the cleaned part. Raises: as
        ``_clean``."""
        work, log, cleaning = task.work, task.log, task.cleaning
        if log.cleaned_end_offset is None:
            # Recovery must know of the gaps before there is the first.
            log.cleaned_end_offset = Offset(dirt.start)
            await self._logs.checkpoint()
        elif log.config.tiered:
            # Nor may it take the gaps for records lost with power: they come below a recovery point that is on the disk.
            await self._logs.checkpoint()
        task.check()
        rolled = [segment for segment in log.rolled_segments() if segment.base_offset < dirt.end]
        if not rolled or rolled[-1].end_offset <= dirt.start:
            raise ConflictError(
                f"The records of {log.topic}-{log.partition} that were to be compacted have been deleted."
            )
        holds = [cleaning.add(log.hold(segment.base_offset)) for segment in rolled]
        indexed = await self._unless_ended(task, work.begin(await self._job(task, dirt, rolled)))
        self._metrics.bytes_read.value += indexed.bytes_read
        to_clean = [segment for segment in rolled if segment.base_offset < indexed.offset_end]
        at = 0
        for group in group_segments(to_clean, log.config):
            files = [SegmentFile(segment.base_offset, segment.end_offset, segment.size_bytes) for segment in group]
            task.unfinished = Offset(group[0].base_offset)
            cleaned = await self._unless_ended(task, work.write(files))
            await self._take_over(task, holds[at : at + len(group)], cleaned)
            task.unfinished = None
            at += len(group)
        return indexed.offset_end

    async def _remove_unfinished(self, task: _Task) -> None:
        """Remove the files of a segment that was written but not put in place. Its process uses them no more."""
        base_offset, task.unfinished = task.unfinished, None
        if base_offset is not None and task.log.offline_error is None:
            fs, path = self._fs, task.log.path
            try:
                await run_to_end(self._pool, lambda: remove_cleaned(fs, path, base_offset))
            except OSError as error:
                raise storage_error(error, f"Cannot delete files of {path}") from error

    async def _job(self, task: _Task, dirt: Dirt, rolled: list[RolledSegment]) -> CleaningJob:
        log = task.log
        aborted = await log.aborted_transactions_when_ready(rolled[0].base_offset, dirt.end)
        config = self._config()
        threads = max(1, config.log_cleaner_threads)
        ends: list[int] = []
        epochs: dict[int, int] = {}
        for producer_id, entry in log.producers.entries.items():
            if entry.batches:
                ends.append(entry.batches[-1][3])
            else:
                epochs[producer_id] = entry.epoch
        return CleaningJob(
            directory=log.path,
            segments=[
                SegmentFile(segment.base_offset, segment.end_offset, segment.size_bytes)
                for segment in rolled
                if segment.end_offset > dirt.start
            ],
            dirty_start=dirt.start,
            dirty_end=dirt.end,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=log.config.delete_retention_ms,
            index_interval_bytes=log.config.index_interval_bytes,
            map_bytes_max=config.log_cleaner_dedupe_buffer_size // threads,
            map_load_factor=config.log_cleaner_io_buffer_load_factor,
            buffer_bytes_max=config.log_cleaner_io_buffer_size // threads,
            bytes_per_second_max=config.log_cleaner_io_max_bytes_per_second / threads,
            hash_key=self._rng.randbytes(HASH_KEY_BYTES),
            aborted=list(aborted),
            producer_ends=sorted(ends),
            producer_epochs=epochs,
        )

    async def _unless_ended(self, task: _Task, asked: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Raises: ConflictError as soon as the log has ended the work. Its result is dropped then: it may
        have read records that were cut. The caller ends the work."""
        asking = asyncio.ensure_future(asked)
        ending = asyncio.ensure_future(task.ended.wait())
        try:
            await asyncio.wait([asking, ending], return_when=asyncio.FIRST_COMPLETED)
            task.check()
            return asking.result()
        finally:
            ending.cancel()
            asking.add_done_callback(look_at_error)
            if not asking.done():
                await _to_the_end(task.work.end())
                asking.cancel()
                await asyncio.wait([asking])

    # --- swapping ---------------------------------------------------------------------------------------------------

    async def _take_over(self, task: _Task, holds: list[SegmentHold], cleaned: CleanedSegment) -> None:
        metrics = self._metrics
        metrics.bytes_read.value += cleaned.bytes_read
        metrics.records_read.value += cleaned.records_read
        metrics.records_dropped.value += cleaned.records_read - cleaned.records_kept
        if not cleaned.unchanged:
            size_bytes = sum(hold.segment.size_bytes for hold in holds)
            # Begun is finished: a committed segment that is not put in place would be taken for one by a later recovery.
            await _to_the_end(self._swap(task, holds, cleaned))
            metrics.bytes_in.value += size_bytes
            metrics.bytes_out.value += cleaned.size_bytes

    async def _swap(self, task: _Task, holds: list[SegmentHold], cleaned: CleanedSegment) -> None:
        """From the first renamed file to the last sync of the directory the log refuses to be cut: for two syncs, as for any sync.
        A log that was cut before refuses the swap.

        Raises: ConflictError, with nothing done; StorageUnavailable if the directory is offline or the log is gone."""
        log = task.log
        task.check()
        log.keep_for_replacement(holds)
        task.cleaning.swapping = True
        fs, path, has_aborted = self._fs, log.path, cleaned.has_aborted
        try:
            await run_to_end(self._pool, lambda: commit(fs, path, cleaned.base_offset, has_aborted=has_aborted))
            await log.quiet()
            log.replace_segments(holds, cleaned)
            await run_to_end(self._pool, lambda: fs.fsync_dir(path))
        except OSError as error:
            raise self._offline(log, error) from error
        finally:
            task.cleaning.swapping = False

    def _offline(self, log: PartitionLog, error: OSError) -> StorageUnavailable:
        if log.offline_error is not None:
            return StorageUnavailable(f"The log of {log.topic}-{log.partition} is gone.")
        failure = storage_error(error, f"Cannot swap segments of {log.topic}-{log.partition}")
        self._logs.log_directory.go_offline(str(failure))
        return StorageUnavailable(str(failure))


async def _to_the_end(work: Awaitable[T]) -> T:
    """Like ``await``, but a cancellation waits until the work is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        look_at_error(task)
        raise
