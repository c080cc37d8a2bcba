"""All logs of one data directory: opening, creating, deleting, and background work."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from app.configs import TopicConfig
from app.core.errors import ConflictError, CorruptionError, FirnError, StorageFull, StorageUnavailable, clause
from app.core.faults import Faults
from app.core.metrics import Labels, Registry
from app.core.seams import BlockingPool, Clock, shared_wait_s
from app.core.turns import Portion
from app.core.units import NO_TOPIC_ID, Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition
from app.hot.checkpoints import (
    CLEAN_SHUTDOWN_CONTENT,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSETS_FILE,
    LOG_STARTS_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    MetaProperties,
    encode_meta_properties,
    encode_offsets,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
)
from app.hot.directory import LogDirectory, run_to_end
from app.hot.epochs import LeaderEpochs
from app.hot.freeing import free_files, free_tree
from app.hot.log import PartitionLog
from app.hot.producers import ProducerStates
from app.hot.recovery import FOR_EVER, LoadedLog, load_log, new_segment, restore_log
from app.hot.state_file import STATE_FILE, PartitionState, encode_states, parse_states
from app.machine.files import (
    DirectoryLock,
    FileSystem,
    claim_directory,
    read_file,
    replace_file,
    storage_error,
    unlink_quietly,
)

TICK_MS: Final = 5_000
"""Interval at which logs are checked for rolls and flushes by time."""

CHECKPOINT_MS: Final = 60_000
"""Kafka's ``log.flush.offset.checkpoint.interval.ms``."""

EXPIRY_MS: Final = 600_000
"""Kafka's ``producer.id.expiration.check.interval.ms``."""

IDLE_LOOK_MS: Final = 60_000
IDLE_MS: Final = 600_000
"""A log without appends for this time closes its active file."""
IDLE_SYNCS_MAX: Final = 200
"""Maximum number of idle logs that one look syncs. A thousand logs that became idle together need not be synced in one minute."""
_OF_LOGS: Final = (
    "firn_log_local_bytes",
    "firn_log_start_offset",
    "firn_log_end_offset",
    "firn_log_high_watermark",
    "firn_topic_bytes_in_total",
    "firn_topic_records_in_total",
    "firn_topic_bytes_out_total",
    "firn_topic_records_out_total",
)
"""Metrics of each partition and each topic."""
LOGS_PER_TURN: Final = 100
"""Logs that one look checks before it yields to the event loop."""

LOADS_AT_ONCE_MAX: Final = 8
LOADS_WAIT_S: Final = 0.1
"""If no running piece of work ends within this time, another one begins: the running ones then wait for the disk, or have much to
check. While all bytes are in the page cache, more threads are slower: they pass the interpreter to each other at every system
call, so eight threads take three times the CPU of one, and more time."""
LOGS_PER_LOAD_MAX: Final = 16
"""Logs that one piece of work opens in the pool. Handing over each of a thousand short logs would cost as much as opening it."""
CLOSES_AT_ONCE_MAX: Final = 8
"""Logs that are synced at the same time at a clean stop."""
DESCRIPTORS_DEFAULT: Final = 4_096
DELETE_SUFFIX: Final = "-delete"

_PARTITION_DIR: Final = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})$")
_DELETED_DIR: Final = re.compile(r"^.+-\d+\.[0-9a-f]{32}-delete$")


@dataclass(slots=True)
class LoadReport:
    """The result of opening all logs."""

    clean: bool
    """Whether the last stop was clean and its state file is sound."""
    logs: int = 0
    scanned: int = 0
    """Number of logs whose files had to be read."""
    truncated_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """Sentences for the operator: losses and repairs."""
    differing: set[TopicPartition] = field(default_factory=set)
    """Logs whose files differ from the state that a clean stop left."""
    lacking: list[PartitionLog] = field(default_factory=list)
    """Logs that lack segment files in their middle."""


class _Unread(NamedTuple):
    """A log that must be opened from its files."""

    key: TopicPartition
    path: str
    config: TopicConfig
    trusted_to: Offset
    """Its recovery point."""
    log_start_offset: Offset | None
    cleaned: bool


class _Doomed(NamedTuple):
    """A deleted partition whose files still exist. Nothing uses them."""

    path: str
    due_ms: int


class _Leaving(NamedTuple):
    """A deleted log whose files were still in use."""

    log: PartitionLog
    doomed: _Doomed


def read_meta(fs: FileSystem, data_dir: str) -> MetaProperties | None:
    """The owner of a data directory; None if it is new. Raises: CorruptionError, StorageUnavailable."""
    try:
        return parse_meta_properties(read_file(fs, f"{data_dir}/{META_PROPERTIES_FILE}"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, f"Cannot read {META_PROPERTIES_FILE}") from error


def write_meta(fs: FileSystem, data_dir: str, meta: MetaProperties) -> None:
    """Durably write the owner of a data directory. Raises: StorageUnavailable."""
    try:
        fs.make_dirs(data_dir)
        replace_file(fs, f"{data_dir}/{META_PROPERTIES_FILE}", encode_meta_properties(meta), durable=True)
    except OSError as error:
        raise storage_error(error, f"Cannot write {META_PROPERTIES_FILE}") from error


class LogManager:
    """Owns all logs of one data directory. Belongs to the event loop."""

    def __init__(
        self,
        data_dir: str,
        fs: FileSystem,
        pool: BlockingPool,
        clock: Clock,
        rng: random.Random,
        *,
        descriptors_max: int = DESCRIPTORS_DEFAULT,
        registry: Registry | None = None,
        producer_expiration_ms: int = 86_400_000,
        lock: DirectoryLock | None = None,
        faults: Faults | None = None,
    ) -> None:
        """``descriptors_max``: limit of open files of logs. Pass the process's limit minus the need of sockets.

        ``lock``: the lock of the data directory, if the caller already has it. The manager owns it from now on.
        """
        self.data_dir = data_dir
        self._fs = fs
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self.producer_expiration_ms = producer_expiration_ms
        self._faults = faults
        self.log_directory = LogDirectory(
            data_dir,
            fs=fs,
            pool=pool,
            rng=rng,
            descriptors_max=descriptors_max,
            now_ms=clock.now_ms,
            registry=registry,
        )
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._aside: dict[tuple[str, int], PartitionLog] = {}
        """Logs that are neither read nor written. They are kept, and closed with the other logs."""
        self._doomed: list[_Doomed] = []
        self._leaving: list[_Leaving] = []
        self._lock = lock
        self._closed = False
        self._checkpoint_lock = threading.Lock()
        """Held during a write of the checkpoints: an older plan in the pool must not overwrite a truncation's write."""
        self._checkpoints_planned = 0
        self._checkpoint_written = 0
        self._cleaned_ends_written: dict[TopicPartition, Offset] = {}
        self._checkpointed: set[TopicPartition] = set()
        """Partitions that the checkpoint files on the disk may contain."""
        self.log_directory.write_checkpoint = self._write_checkpoint_now
        if registry is not None:
            descriptors = self.log_directory.descriptors
            registry.gauge(
                "firn_log_open_files",
                "Files of logs and cached chunks that are open",
                lambda: [((), float(descriptors.open_count))],
            )
            registry.gauge(
                "firn_log_open_files_max",
                "Maximum number of open files of logs and cached chunks",
                lambda: [((), float(descriptors_max))],
            )
            registry.gauge("firn_log_offline", "Whether the log directory is offline", self._offline)
            self._show_logs(registry)

    def _show_logs(self, registry: Registry) -> None:
        registry.describe("firn_log_local_bytes", "gauge", "Bytes of a partition's log on the local disk")
        registry.describe("firn_log_start_offset", "gauge", "First offset of a partition, in either tier")
        registry.describe("firn_log_end_offset", "gauge", "Offset of a partition's next record")
        registry.describe("firn_log_high_watermark", "gauge", "Consumers can read a partition below this offset")
        text = "Bytes of batches appended to a topic, including markers and records of internal writers"
        registry.describe("firn_topic_bytes_in_total", "counter", text)
        text = "Records appended to a topic, including markers and records of internal writers"
        registry.describe("firn_topic_records_in_total", "counter", text)
        registry.describe("firn_topic_bytes_out_total", "counter", "Bytes of a topic's batches sent to consumers")
        registry.describe(
            "firn_topic_records_out_total", "counter", "Records of a topic sent to consumers, counted by offset"
        )
        registry.source(self._read_logs, _OF_LOGS)

    def _read_logs(self) -> Iterator[tuple[str, Labels, float] | None]:
        topics: dict[str, list[int]] = {}
        for (topic, partition), log in list(self._logs.items()):
            labels = (("partition", str(partition)), ("topic", topic))
            yield "firn_log_local_bytes", labels, log.size_bytes
            yield "firn_log_start_offset", labels, log.log_start_offset
            yield "firn_log_end_offset", labels, log.log_end_offset
            yield "firn_log_high_watermark", labels, log.high_watermark
            sums = topics.setdefault(topic, [0, 0, 0, 0])
            for place, value in enumerate((*log.appended, log.sent_bytes, log.sent_records)):
                sums[place] += value
        for topic, (bytes_in, records_in, bytes_out, records_out) in topics.items():
            label = (("topic", topic),)
            yield "firn_topic_bytes_in_total", label, bytes_in
            yield "firn_topic_records_in_total", label, records_in
            yield "firn_topic_bytes_out_total", label, bytes_out
            yield "firn_topic_records_out_total", label, records_out

    def _offline(self) -> Iterable[tuple[Labels, float]]:
        yield (), float(self.log_directory.offline_reason is not None)

    # --- the directory itself ---------------------------------------------------------------------------------------

    def lock(self) -> DirectoryLock:
        """Create the data directory and take its lock. The lock is held until ``close``.

        Raises: ConflictError if another process has it; StorageUnavailable.
        """
        if self._lock is None:
            self._lock = claim_directory(self._fs, self.data_dir)
        return self._lock

    def read_meta(self) -> MetaProperties | None:
        """The owner of the directory; None if it is new. Raises: CorruptionError, StorageUnavailable."""
        return read_meta(self._fs, self.data_dir)

    def write_meta(self, meta: MetaProperties) -> None:
        """Durably write the owner of the directory. Raises: StorageUnavailable."""
        write_meta(self._fs, self.data_dir, meta)

    @property
    def offline_reason(self) -> str | None:
        """Why the log directory is offline; None if it is not."""
        return self.log_directory.offline_reason

    def free_bytes(self) -> int:
        """Free bytes of the data directory's file system. Raises: StorageUnavailable."""
        try:
            return self._fs.free_bytes(self.data_dir)
        except OSError as error:
            raise storage_error(error, f"Cannot read the free space of {self.data_dir}") from error

    def total_bytes(self) -> int:
        """Size of the data directory's file system. Raises: StorageUnavailable."""
        try:
            return self._fs.total_bytes(self.data_dir)
        except OSError as error:
            raise storage_error(error, f"Cannot read the size of the disk of {self.data_dir}") from error

    # --- opening ----------------------------------------------------------------------------------------------------

    async def load_all(self, config_of: Callable[[str], TopicConfig] | None = None) -> LoadReport:
        """Open every log in the directory, and recover the logs that were not closed.

        ``config_of`` gives a topic's settings by its name; without it, and until ``update_config``, the defaults hold. After a
        clean stop this is one file and one stat per partition; otherwise the files are read, several logs at once.

        Raises: StorageUnavailable.
        """
        try:
            return await self._load_all(config_of if config_of is not None else lambda _: TopicConfig())
        except OSError as error:
            raise storage_error(error, f"Cannot open the logs in {self.data_dir}") from error
        except BaseExceptionGroup as failures:
            # Several logs are opened at once; the first that fails speaks for all.
            if failures.split(OSError)[1] is not None:
                raise
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            assert isinstance(first, OSError)
            raise storage_error(first, f"Cannot open the logs in {self.data_dir}") from first

    async def _load_all(self, config_of: Callable[[str], TopicConfig]) -> LoadReport:
        fs, data_dir = self._fs, self.data_dir
        fs.make_dirs(data_dir)
        names = await run_to_end(self._pool, lambda: fs.list_dir(data_dir))
        clean, states = self._take_clean_state(names)
        there = set(names)
        missing = [(state.topic, state.partition) for name, state in states.items() if name not in there]
        report = LoadReport(clean=clean)
        report.problems += [
            f"{data_dir}/{topic}-{partition} was there at the last clean stop and is missing: its records are lost, except those"
            " in the object store"
            for topic, partition in missing
        ]
        recovery_points = self._read_offsets(RECOVERY_POINTS_FILE, report)
        log_starts = self._read_offsets(LOG_STARTS_FILE, report)
        cleaned_ends = self._read_offsets(CLEANER_OFFSETS_FILE, report)
        self._cleaned_ends_written = cleaned_ends
        self._checkpointed = {*recovery_points, *log_starts, *cleaned_ends}
        now_ms = self._clock.now_ms()
        unread: list[_Unread] = []
        for name in names:
            match = _PARTITION_DIR.match(name)
            if match is not None:
                key = TopicPartition(match["topic"], PartitionIndex(int(match["partition"])))
                state = states.get(name)
                if state is not None and self._restore(key, state, config_of(key.topic), cleaned_ends.get(key)):
                    continue
                trusted_to = FOR_EVER if clean else recovery_points.get(key, Offset(0))
                if state is not None:
                    report.differing.add(key)
                    report.problems.append(
                        f"{data_dir}/{name} differs from the state at the last clean stop; it is recovered"
                    )
                    trusted_to = Offset(
                        0
                    )  # nothing of a log is trusted that differs from its state at the last clean stop
                unread.append(
                    _Unread(
                        key,
                        f"{data_dir}/{name}",
                        config_of(key.topic),
                        trusted_to,
                        log_starts.get(key),
                        key in cleaned_ends,
                    )
                )
            elif _DELETED_DIR.match(name):
                self._doomed.append(_Doomed(f"{data_dir}/{name}", now_ms))

        async def load(some: Sequence[_Unread]) -> None:
            found = await run_to_end(self._pool, lambda: [self._read(one, now_ms) for one in some])
            for one, log in zip(some, found, strict=True):
                if log is None:
                    continue
                topic_id, loaded = log
                report.scanned += 1
                report.truncated_bytes += loaded.truncated_bytes
                report.problems.extend(loaded.problems)
                self._add(
                    PartitionLog(self.log_directory, one.path, *one.key, topic_id, one.config, loaded, new=True),
                    cleaned_ends.get(one.key),
                )

        together = max(1, min(LOGS_PER_LOAD_MAX, len(unread) // (2 * LOADS_AT_ONCE_MAX)))
        pieces = iter([unread[start : start + together] for start in range(0, len(unread), together)])
        at_once = 1
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                running |= {group.create_task(load(some)) for some in islice(pieces, at_once - len(running))}
                if not running:
                    break
                done, running = await asyncio.wait(running, timeout=LOADS_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    at_once = min(at_once + 1, LOADS_AT_ONCE_MAX)
        if any(log.recovery_point < recovery_points.get(log.topic_partition, 0) for log in self._logs.values()):
            # A log ends before its recovery point: records appended there must not be trusted by the next recovery, nor be
            # taken for compacted.
            await run_to_end(self._pool, self._plan_checkpoint())
        report.logs = len(self._logs)
        report.lacking = [log for log in self._logs.values() if log.lost]
        metrics = self.log_directory.metrics
        metrics.truncated_bytes.value += report.truncated_bytes
        metrics.problems.value += len(report.problems) + sum(len(log.lost) for log in report.lacking)
        return report

    def _restore(
        self, key: TopicPartition, state: PartitionState, config: TopicConfig, cleaned_end_offset: Offset | None
    ) -> bool:
        """Open a log from the state of a clean stop. False if its files differ from that state. Raises: OSError."""
        path = f"{self.data_dir}/{key.topic}-{key.partition}"
        gaps = config.compacted or cleaned_end_offset is not None
        restored = restore_log(self._fs, self.log_directory.descriptors, path, state.log, gaps=gaps)
        if restored is None:
            return False
        topic_id = TopicId(uuid.UUID(bytes=state.topic_id))
        self._add(PartitionLog(self.log_directory, path, *key, topic_id, config, restored), cleaned_end_offset)
        return True

    def _read(self, unread: _Unread, now_ms: TimestampMs) -> tuple[TopicId, LoadedLog] | None:
        """Open a log from its files, on a pool thread; None if the path is not a directory. Raises: OSError."""
        if not self._fs.is_dir(unread.path):
            return None
        return _read_topic_id(self._fs, unread.path), load_log(
            self._fs,
            self.log_directory.descriptors,
            unread.path,
            config=unread.config,
            recovery_point=unread.trusted_to,
            log_start_offset=unread.log_start_offset,
            now_ms=now_ms,
            cleaned=unread.cleaned,
        )

    def _take_clean_state(self, names: list[str]) -> tuple[bool, dict[str, PartitionState]]:
        """Whether the last stop was clean, and the state that it left. The marker is durably removed when this returns."""
        fs, data_dir = self._fs, self.data_dir
        clean = CLEAN_SHUTDOWN_FILE in names
        states: dict[str, PartitionState] = {}
        if clean and STATE_FILE in names:
            try:
                found = parse_states(read_file(fs, f"{data_dir}/{STATE_FILE}"))
                states = {f"{state.topic}-{state.partition}": state for state in found}
            except CorruptionError:
                # Kafka's files say the same; they are read instead.
                states = {}
        unlink_quietly(fs, f"{data_dir}/{CLEAN_SHUTDOWN_FILE}")
        unlink_quietly(fs, f"{data_dir}/{STATE_FILE}")
        fs.fsync_dir(data_dir)
        return clean, states

    def _read_offsets(self, name: str, report: LoadReport) -> dict[TopicPartition, Offset]:
        try:
            return parse_offsets(read_file(self._fs, f"{self.data_dir}/{name}"), name)
        except FileNotFoundError:
            return {}
        except CorruptionError as error:
            report.problems.append(str(error))
            return {}

    def _add(self, log: PartitionLog, cleaned_end_offset: Offset | None = None) -> None:
        if cleaned_end_offset is not None:
            log.cleaned_end_offset = min(cleaned_end_offset, log.log_end_offset)
        self._logs[log.topic, log.partition] = log
        self.log_directory.logs[log] = None
        if log.unsynced_segments():
            log.request_checkpoint()

    # --- logs -------------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self._logs.get((topic, partition))

    def logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def set_aside(self, log: PartitionLog) -> None:
        """Keep a log and its files, but allow no use of it: its partition is offline."""
        del self._logs[log.topic, log.partition]
        self._aside[log.topic, log.partition] = log

    def bring_back(self, log: PartitionLog) -> None:
        """Undo ``set_aside`` if it was called: a follower whose records have to be cut away is offline with its log in use."""
        if self._aside.pop((log.topic, log.partition), None) is not None:
            self._logs[log.topic, log.partition] = log

    def _kept(self) -> list[PartitionLog]:
        return [*self._logs.values(), *self._aside.values()]

    def create(self, topic: str, topic_id: TopicId, partition: int, config: TopicConfig) -> PartitionLog:
        """Create an empty log in memory. Its first append makes its files. Their names become durable with its first sync.

        The data directory therefore has nothing of a partition without records. The cluster log has the partition, so the next
        start creates the log again.

        Raises: ConflictError if there is one already; StorageFull, StorageUnavailable.
        """
        if (topic, partition) in self._logs or (topic, partition) in self._aside:
            raise ConflictError(f"There is a log of {topic}-{partition} already.")
        if self.log_directory.offline_reason is not None:
            raise StorageUnavailable(
                f"The log directory is offline: {clause(self.log_directory.offline_reason or '')}."
            )
        path = f"{self.data_dir}/{topic}-{partition}"
        if any(log.path == path and (log.syncing or log.cleaning) for log, _ in self._leaving):
            raise StorageUnavailable(f"The deleted log of {topic}-{partition} is still being written to; try again.")
        if TopicPartition(topic, PartitionIndex(partition)) in self._checkpointed:
            # The checkpoint files know partitions by name alone: their entry may belong to an older topic and must not be used.
            try:
                self._write_checkpoint_now()
            except OSError as error:
                raise storage_error(error, f"Cannot make the log of {topic}-{partition}") from error
            self._checkpointed = {log.topic_partition for log in self._kept()}
        loaded = LoadedLog(
            segments=[new_segment(self.log_directory.descriptors, path, Offset(0))],
            epochs=LeaderEpochs(),
            producers=ProducerStates(),
            log_start_offset=Offset(0),
            recovery_point=Offset(0),
        )
        log = PartitionLog(
            self.log_directory, path, topic, PartitionIndex(partition), topic_id, config, loaded, has_files=False
        )
        self._add(log)
        return log

    def delete(self, topic: str, partition: int) -> bool:
        """Delete a log. Its directory is renamed at once and removed after ``file.delete.delay.ms``. False if there is no log.

        Raises: StorageFull, StorageUnavailable; then nothing has changed.
        """
        key = (topic, partition)
        log = self._logs.get(key) or self._aside.get(key)
        if log is None:
            return False
        path = f"{self.data_dir}/{topic}-{partition}.{self._rng.getrandbits(128):032x}{DELETE_SUFFIX}"
        if log.has_files:
            try:
                self._fs.rename(log.path, path)
            except OSError as error:
                raise storage_error(error, f"Cannot delete the log of {topic}-{partition}") from error
        self._logs.pop(key, None)
        self._aside.pop(key, None)
        log.abandon()
        if not log.has_files:
            return True
        doomed = _Doomed(path, self._clock.now_ms() + log.config.file_delete_delay_ms)
        if _in_use(log):
            self._leaving.append(_Leaving(log, doomed))
        else:
            self._doomed.append(doomed)  # only the path: a topic of thousands would keep its memory until it is due
        return True

    # --- in the background ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run requested syncs, roll and flush by time, write checkpoints, free deleted files. Runs until cancelled.

        While it does not run, no record is stored under ``firn.durability=disk``.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.log_directory.syncer.run())
            group.create_task(self._keep_house())
            group.create_task(self._free_deleted())

    async def _keep_house(self) -> None:
        directory = self.log_directory
        checkpoint_due_ms = self._clock.now_ms() + CHECKPOINT_MS
        expiry_due_ms = self._clock.now_ms() + EXPIRY_MS
        idle_due_ms = self._clock.now_ms() + IDLE_LOOK_MS
        loop = asyncio.get_running_loop()
        tick_due_s = loop.time() + shared_wait_s(loop.time(), TICK_MS / 1000)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(tick_due_s):
                    await directory.housekeeping.wait()
            directory.housekeeping.clear()
            if loop.time() >= tick_due_s:
                tick_due_s = loop.time() + shared_wait_s(loop.time(), TICK_MS / 1000)
                await self.tick()
            now_ms = self._clock.now_ms()
            if now_ms >= checkpoint_due_ms or directory.checkpoint_due:
                checkpoint_due_ms = now_ms + CHECKPOINT_MS
                await self.checkpoint()
            if now_ms >= idle_due_ms:
                idle_due_ms = now_ms + IDLE_LOOK_MS
                await self.close_idle_files(now_ms)
            if now_ms >= expiry_due_ms:
                expiry_due_ms = now_ms + EXPIRY_MS
                for log in self.logs():
                    log.expire_producers(now_ms, self.producer_expiration_ms)

    async def tick(self) -> None:
        """Roll and flush logs whose time has come."""
        now_ms = self._clock.now_ms()
        portion = Portion()
        # Of keys: a list of the logs would keep those of a deleted topic, and free all of them in one turn.
        for key in list(self._logs):
            if portion.spent_by():
                await portion.rest()
            log = self._logs.get(key)
            if log is None:
                continue
            log.maybe_flush_by_time(now_ms)
            try:
                if log.maybe_roll_by_time(now_ms):
                    await asyncio.sleep(0)
            except (StorageUnavailable, CorruptionError) as error:
                # Full, offline or damaged: appends raise this to producers; the next tick tries again.
                if self._faults is not None and self.log_directory.offline_reason is None:
                    self._faults.met_error("rolling", str(log.topic_partition), error)

    async def close_idle_files(self, now_ms: int) -> None:
        """Close files that were not used since the last look. Logs without appends for ``IDLE_MS`` are synced first.

        A file with unsynced bytes is closed by the look after its sync, and opened again by the next append or read.
        """
        self.log_directory.descriptors.close_unused()
        asked = 0
        for number, key in enumerate(list(self._logs)):
            log = self._logs.get(key)
            asked += log is not None and log.settle_if_idle(now_ms, IDLE_MS)
            if asked == IDLE_SYNCS_MAX:
                break
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _free_deleted(self) -> None:
        """Unlink deleted files, and remove due directories of deleted topics. Its own task, because a GB takes a second."""
        directory = self.log_directory
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(shared_wait_s(asyncio.get_running_loop().time(), TICK_MS / 1000)):
                    await directory.trash_added.wait()
            directory.trash_added.clear()
            await self.take_out_trash(self._clock.now_ms())

    async def take_out_trash(self, now_ms: int) -> None:
        fs, pool, trash = self._fs, self._pool, self.log_directory.trash
        self._doomed += [doomed for log, doomed in self._leaving if not _in_use(log)]
        self._leaving = [leaving for leaving in self._leaving if _in_use(leaving.log)]
        due = [doomed for doomed in self._doomed if doomed.due_ms <= now_ms]
        self._doomed = [doomed for doomed in self._doomed if doomed.due_ms > now_ms]
        try:
            await free_files(fs, pool, trash)
            for doomed in due:
                await free_tree(fs, pool, doomed.path)
        except OSError as error:
            self.log_directory.go_offline(f"cannot delete files: {error.strerror or error}")

    async def checkpoint(self) -> None:
        """Durably write the recovery points and log start offsets of all logs."""
        if self.log_directory.offline_reason is not None:
            return
        try:
            await run_to_end(self._pool, self._plan_checkpoint())
        except OSError as error:
            failure = storage_error(error, f"Cannot write the checkpoints of {self.data_dir}")
            if not isinstance(failure, StorageFull):
                self.log_directory.go_offline(str(failure))
            elif self._faults is not None:
                self._faults.met_error("writing the checkpoints of", self.data_dir, failure)

    def _write_checkpoint_now(self) -> None:
        self._plan_checkpoint()()

    def _plan_checkpoint(self) -> Callable[[], None]:
        """Plan a checkpoint with the present state. Of two plans the later one stays on disk, whichever is written first."""
        fs, data_dir = self._fs, self.data_dir
        self.log_directory.recovery_points_moved = 0
        with_files = [log for log in self._kept() if log.has_files]
        recovery_points = {log.topic_partition: log.recovery_point for log in with_files}
        log_starts = {log.topic_partition: log.log_start_offset for log in with_files if not log.start_is_assumed}
        cleaned_ends = self._cleaned_ends()
        self._checkpointed.update(recovery_points)
        self._checkpoints_planned += 1
        number = self._checkpoints_planned

        def work() -> None:
            with self._checkpoint_lock:
                if number < self._checkpoint_written:
                    return
                replace_file(fs, f"{data_dir}/{RECOVERY_POINTS_FILE}", encode_offsets(recovery_points), durable=True)
                replace_file(fs, f"{data_dir}/{LOG_STARTS_FILE}", encode_offsets(log_starts), durable=True)
                if cleaned_ends != self._cleaned_ends_written:
                    replace_file(fs, f"{data_dir}/{CLEANER_OFFSETS_FILE}", encode_offsets(cleaned_ends), durable=True)
                    self._cleaned_ends_written = cleaned_ends
                self._checkpoint_written = number

        return work

    def _cleaned_ends(self) -> dict[TopicPartition, Offset]:
        return {
            log.topic_partition: log.cleaned_end_offset for log in self._kept() if log.cleaned_end_offset is not None
        }

    def abandon(self) -> None:
        """Close all logs as they are, without a sync, and release the lock: they will not be read. Cancel ``run`` first."""
        if self._closed:
            return
        self._closed = True
        for log in self._kept():
            log.abandon()
        self._logs.clear()
        self._aside.clear()
        self.log_directory.descriptors.close_all()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def close(self, *, clean: bool = True) -> None:
        """Sync and close all logs, write the clean-shutdown marker, and release the lock. Cancel ``run`` first.

        The marker is not written without ``clean``, or if the directory is offline or has no space for the last checkpoints. The
        next start then recovers.
        """
        if self._closed:
            return
        self._closed = True
        limit = asyncio.Semaphore(CLOSES_AT_ONCE_MAX)
        states: list[PartitionState] = []
        unclean: list[FirnError] = []
        with_files = [log for log in self._kept() if log.has_files]
        starts = {log.topic_partition: log.log_start_offset for log in with_files if not log.start_is_assumed}
        cleaned_ends = self._cleaned_ends()

        async def close_one(log: PartitionLog) -> None:
            async with limit:
                try:
                    state = await log.close()
                except FirnError as error:
                    unclean.append(error)
                    log.abandon()
                    return
                if log.has_files and not log.start_is_assumed:  # else the next start would take it for known
                    states.append(PartitionState(log.topic, log.partition, log.topic_id.bytes, state))

        async with asyncio.TaskGroup() as group:
            for log in self._kept():
                group.create_task(close_one(log))
        ends = {
            TopicPartition(state.topic, PartitionIndex(state.partition)): Offset(state.log.segments[-1].end_offset)
            for state in states
        }
        self._logs.clear()
        self._aside.clear()
        fs, data_dir, trash = self._fs, self.data_dir, self.log_directory.trash

        def work() -> None:
            # After a clean stop they are not looked for.
            while trash:
                unlink_quietly(fs, trash[0])
                trash.popleft()
            replace_file(fs, f"{data_dir}/{RECOVERY_POINTS_FILE}", encode_offsets(ends), durable=True)
            replace_file(fs, f"{data_dir}/{LOG_STARTS_FILE}", encode_offsets(starts), durable=True)
            if cleaned_ends != self._cleaned_ends_written:
                replace_file(fs, f"{data_dir}/{CLEANER_OFFSETS_FILE}", encode_offsets(cleaned_ends), durable=True)
            replace_file(fs, f"{data_dir}/{STATE_FILE}", encode_states(states), durable=True)
            replace_file(fs, f"{data_dir}/{CLEAN_SHUTDOWN_FILE}", CLEAN_SHUTDOWN_CONTENT, durable=True)

        try:
            if clean and not unclean and self.log_directory.offline_reason is None:
                await run_to_end(self._pool, work)
        except OSError as error:
            self.log_directory.go_offline(f"cannot write the last checkpoints: {error.strerror or error}")
        finally:
            self.log_directory.descriptors.close_all()
            if self._lock is not None:
                self._lock.close()
                self._lock = None


def _in_use(log: PartitionLog) -> bool:
    """Whether a deleted log's files are still in use, by handle or by name."""
    return log.held or log.syncing or log.cleaning


def _read_topic_id(fs: FileSystem, path: str) -> TopicId:
    """The topic id of a partition's directory; the null id if the file is missing or damaged, as after a loss of power."""
    try:
        return parse_partition_metadata(read_file(fs, f"{path}/{PARTITION_METADATA_FILE}"))
    except (FileNotFoundError, CorruptionError):
        return NO_TOPIC_ID
