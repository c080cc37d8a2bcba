"""The write-ahead log of this broker (ADR 0037): the appends of the logs that it leads go into numbered objects in the bucket.

``WriteAhead`` is the journal of all logs of topics with ``firn.durability=object`` that this broker leads. It owns the writer of a
WAL under the present broker epoch, keeps it running, deletes objects that no partition needs, and rolls logs that hold old objects
back. ``SealedLogs`` reads WALs that have ended, for partitions that go on here.

A broker without such partitions has no writer, no task under way and no request.

Tests: ``tests/broker/test_write_ahead_trims.py``, ``tests/broker/test_write_ahead_stopped.py``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, FencedError, FirnError, RequestRejected, StorageUnavailable
from app.core.faults import Faults
from app.core.limits import MIB, WAL_OBJECT_BYTES_MAX
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.seams import Clock
from app.core.turns import Portion
from app.core.units import BrokerId, LeaderEpoch, Offset, TopicIdPartition
from app.hot.log import PartitionLog
from app.machine.allocator import keep_freed_memory
from app.metadata.image.image import ClusterImage, PartitionImage
from app.metadata.image.wal_ranges import WalId, WalRange
from app.metadata.log import layout
from app.metadata.peers.control import DropAsked, InSyncAnswer
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore
from app.objectstore.keys import LIST_LIMIT_MAX
from app.records.batch import CONTROL, parse_header
from app.records.control import parse_marker
from app.wal.format import (
    NO_COORDINATOR,
    NONCE_BYTES,
    MarkerKind,
    PartitionState,
    WalFooter,
    batch_fields,
    encode_seal,
)
from app.wal.objects import FOOTERS_AT_ONCE, list_sizes, put, read_footers, read_whole
from app.wal.owner import WalOwner
from app.wal.states import captured
from app.wal.takeover import Piece, Tiered, ranges_are_done
from app.wal.trimming import WalNeeds
from app.wal.writer import DurableObject, WalWriter

TRIM_S: Final = 1.0
"""Between two looks for objects to delete, while this broker has a write-ahead log."""
QUIET_S: Final = 0.03
TOGETHER_S: Final = 2.0
"""Partitions that go on together begin to read when no other has come for the first time, or after the second."""
OBJECTS_KEPT: Final = 16
"""Whole objects of ended WALs that are kept for partitions that go on together: 128 MiB at the default of wal.bytes."""
READS_AT_ONCE: Final = 8
KEPT_S: Final = 30.0
"""Footers and objects of ended WALs are forgotten after this time."""
ENDED_KEPT_S: Final = 300.0
"""How long a partition's last section is kept though all of it is tiered, and the ended range that it may be in. It alone knows
more than the last batch of each producer. Producers repeat a batch for two minutes by default (J32, J35)."""
ENDED_ROLL_S: Final = 10.0
"""A partition that has gone on from ended ranges is tiered up to there after this time (J38)."""
ROLLS_AT_ONCE: Final = 50
"""Partitions that are rolled at each look: a take-over may be of thousands."""
CLOSE_S: Final = 1.0
"""How long a stop waits for the seal of its own log. Without it the controller, or the next one, seals it."""
KEPT_MEMORY_BYTES_MAX: Final = 64 * MIB
"""Freed memory that stays with the process for the next objects, once there is a log: new pages for each would cost more than the
work on them."""
FLUSH_S: Final = 10.0
"""How long a stop waits until all appended records are in the bucket."""


class _Led:
    """The journal of one log in one leadership."""

    __slots__ = (
        "_owner",
        "_state",
        "began_at",
        "began_s",
        "key",
        "leader_epoch",
        "log",
        "rolled",
        "stopped_by",
        "taken_bytes",
        "took_s",
        "writer",
        "wrote",
    )

    def __init__(
        self, log: PartitionLog, key: TopicIdPartition, leader_epoch: LeaderEpoch, writer: WalWriter, owner: WalOwner
    ) -> None:
        self.log = log
        self.key = key
        self.leader_epoch = leader_epoch
        self.writer = writer
        self._owner = owner
        self._state: PartitionState | None = None
        """The log's state before the batch that is being appended, if the writer wants it."""
        self.began_at = int(log.log_end_offset)
        """The log end when this leadership began: nothing of earlier ranges is at or above it."""
        self.began_s = asyncio.get_running_loop().time()
        self.taken_bytes = 0
        self.took_s = self.began_s
        """When it took records last."""
        self.rolled = False
        """Whether the segment with the records of earlier ranges was closed, to be tiered."""
        self.stopped_by: set[object] = set()
        """The reasons (``stop_taking``) for which it takes no records."""
        self.wrote = False
        """Whether an object of this leadership is acknowledged."""

    def admit(self, size_bytes: int, batches: int = 1) -> None:
        writer, log = self.writer, self.log
        try:
            writer.check_room(self.key, size_bytes, batches)
        except FencedError as error:
            raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error
        if writer.wants_state(self.key):
            self._state = captured(log.producers, log.leader_epochs(), log.log_end_offset)

    def take(self, written: Sequence[memoryview]) -> None:
        self.took_s = now_s = asyncio.get_running_loop().time()
        now_ms = int(now_s * 1000)
        writer, linger_ms = self.writer, self.log.config.firn_wal_linger_ms
        for records in written:
            self.taken_bytes += len(records)
            position = 0
            while position < len(records):
                header = parse_header(records, position)
                data = bytes(records[position : position + header.size_bytes])
                position += header.size_bytes
                marker, coordinator_epoch = int(MarkerKind.NONE), NO_COORDINATOR
                if header.attributes & CONTROL and (found := parse_marker(data)) is not None:
                    marker, coordinator_epoch = int(found.control_type), found.coordinator_epoch
                state, self._state = self._state, None
                fields = batch_fields(header, marker, coordinator_epoch)
                writer.append(self.key, data, fields, now_ms=now_ms, linger_ms=linger_ms, state=state)
        self._owner.wake()


class _Kept(NamedTuple):
    footers: asyncio.Future[Mapping[int, WalFooter]]
    asked_s: float
    first: int


class TakeOvers:
    """Counts partitions that go on from ended write-ahead logs, of other brokers or of an earlier process of this one."""

    def __init__(self, registry: Registry) -> None:
        self._partitions = registry.counter(
            "firn_wal_take_overs_total", "Partitions that this broker continued from ended write-ahead logs."
        )
        self._failures = registry.counter(
            "firn_wal_take_over_failures_total",
            "Failed attempts to continue a partition from ended write-ahead logs. The broker tries again.",
        )
        self._seconds = registry.histogram(
            "firn_wal_take_over_seconds", "Time that it took to read and append the records of ended write-ahead logs."
        )
        self.bytes = registry.counter(
            "firn_wal_take_over_bytes_total", "Bytes of records that this broker appended from ended write-ahead logs."
        )

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Counts the attempt that is its block, as a success or as a failure. A cancelled attempt is neither."""
        began_s = asyncio.get_running_loop().time()
        try:
            yield
        except FirnError:
            self._failures.value += 1
            raise
        self._partitions.value += 1
        self._seconds.observe(asyncio.get_running_loop().time() - began_s)


class SealedLogs:
    """Reads WALs, or ranges of them, that have ended. Partitions that go on at the same time share footers and objects."""

    def __init__(self, store: ObjectStore, registry: Registry | None = None) -> None:
        self._store = store
        self.take_overs = TakeOvers(registry or Registry())
        self._footers: dict[WalId, _Kept] = {}
        self._known: dict[WalId, dict[int, WalFooter]] = {}
        """Every footer that was read: an object does not change (J2). A LIST tells whether the object still exists."""
        self._objects: dict[tuple[WalId, int], asyncio.Future[bytes]] = {}
        self._wanted: Counter[tuple[WalId, int]] = Counter()
        """The number of readers that still have to read an object."""
        self._ahead: list[tuple[WalId, int]] = []
        """A heap of wanted objects that may not be read yet."""
        self._waiting: dict[tuple[WalId, int], list[asyncio.Future[list[asyncio.Future[bytes]]]]] = {}
        """Readers that wait until there is room for an object."""
        self._readers = 0
        self._came = 0
        """The number of present readers, and of all readers so far."""
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._footer_turns = asyncio.Semaphore(FOOTERS_AT_ONCE)
        self._forgets: asyncio.TimerHandle | None = None

    async def footers(self, wal: WalId, first: int, since_s: float) -> Mapping[int, WalFooter]:
        """The footers of all objects of a WAL from ``first`` on, and perhaps of others, that were there at ``since_s`` (loop time)
        or later.

        The ranges that are looked for had ended by then (J15). Raises: StorageUnavailable, CorruptionError.
        """
        kept = self._footers.get(wal)
        if (
            kept is None
            or kept.asked_s < since_s
            or kept.first > first
            or (kept.footers.done() and kept.footers.exception() is not None)
        ):
            now_s = asyncio.get_running_loop().time()
            reading = asyncio.ensure_future(self._read(wal, first))
            kept = self._footers[wal] = _Kept(reading, now_s, first)
            kept.footers.add_done_callback(_look_at_error)
        self._forget_later()
        return await asyncio.shield(kept.footers)

    async def _read(self, wal: WalId, first: int) -> Mapping[int, WalFooter]:
        sizes = await list_sizes(self._store, wal, above=first - 1)
        # A store that is too slow for all of them at once gets further with each try.
        known = self._known.setdefault(wal, {})
        new = [number for number in sizes if number not in known]
        await read_footers(self._store, wal, new, sizes=sizes, into=known, turns=self._footer_turns)
        return {number: known[number] for number in sizes if number in known}

    @asynccontextmanager
    async def reading(self, pieces: Sequence[Piece]) -> AsyncIterator[Callable[[Piece], Awaitable[memoryview]]]:
        """Reads the batches of pieces, which are asked for one after another, each once.

        One GET reads an object for several partitions, if they come at the same time: it begins when no other partition has come
        for a moment. The reading function raises: ObjectMissing, StorageUnavailable, CorruptionError.
        """
        left = Counter((each.wal, each.number) for each in pieces)
        for key in left:
            if not self._wanted[key]:
                heappush(self._ahead, key)
            self._wanted[key] += 1
        self._came += 1
        self._readers += 1

        async def read(piece: Piece) -> memoryview:
            key = (piece.wal, piece.number)
            data = await self._object(key)
            left[key] -= 1
            if not left[key]:
                del left[key]
                self._consumed(key)
            section = piece.section
            return memoryview(data)[section.position : section.position + section.size_bytes]

        try:
            if left:
                await self._until_quiet()
                self._read_ahead()
            yield read
        finally:
            self._readers -= 1
            for key in left:
                self._consumed(key)
            self._go_on()

    async def _until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TOGETHER_S
        seen = -1
        while seen != self._came and loop.time() < until_s:
            seen = self._came
            await asyncio.sleep(QUIET_S)

    def _consumed(self, key: tuple[WalId, int]) -> None:
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key]
            self._objects.pop(key, None)
            self._read_ahead()

    def _read_ahead(self) -> None:
        """Begin to read the next wanted objects, the oldest first, as long as there is room."""
        while self._ahead and len(self._objects) < OBJECTS_KEPT:
            key = heappop(self._ahead)
            if self._wanted[key] and key not in self._objects:
                self._begin(key)

    def _go_on(self) -> None:
        """If all readers wait for objects for which there is no room, make room for the oldest of them."""
        if self._waiting and sum(map(len, self._waiting.values())) >= self._readers:
            self._begin(min(self._waiting))

    def _begin(self, key: tuple[WalId, int]) -> asyncio.Future[bytes]:
        found = self._objects[key] = asyncio.ensure_future(self._get(*key))
        found.add_done_callback(_look_at_error)
        for waiter in self._waiting.pop(key, ()):
            if not waiter.done():
                waiter.set_result([found])
        while len(self._objects) > OBJECTS_KEPT:
            # Readers that wait for its bytes get them all the same. The others come to the newest last.
            newest = max(each for each in self._objects if each != key)
            del self._objects[newest]
            if self._wanted[newest]:
                heappush(self._ahead, newest)
        return found

    async def _object(self, key: tuple[WalId, int]) -> bytes:
        found = self._objects.get(key)
        if found is None and len(self._objects) >= OBJECTS_KEPT:
            found = await self._turn_of(key)
        elif found is None or (found.done() and found.exception() is not None):
            found = self._begin(key)
        self._forget_later()
        try:
            return await asyncio.shield(found)
        except ObjectMissing:
            self._footers.pop(key[0], None)  # the footers name the object, and may be out of date
            raise

    async def _turn_of(self, key: tuple[WalId, int]) -> asyncio.Future[bytes]:
        waiter: asyncio.Future[list[asyncio.Future[bytes]]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(waiter)
        heappush(self._ahead, key)
        self._go_on()
        try:
            [found] = await waiter
        finally:
            if waiter in self._waiting.get(key, ()):
                self._waiting[key].remove(waiter)
                if not self._waiting[key]:
                    del self._waiting[key]
        return found

    async def _get(self, wal: WalId, number: int) -> bytes:
        async with self._turns:
            return await read_whole(self._store, wal, number)

    def _forget_later(self) -> None:
        if self._forgets is not None:
            self._forgets.cancel()
        self._forgets = asyncio.get_running_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._forgets = None
        self._footers.clear()
        self._known.clear()
        self._objects.clear()


def _look_at_error(future: asyncio.Future[bytes] | asyncio.Future[Mapping[int, WalFooter]]) -> None:
    if not future.cancelled():
        future.exception()


class WriteAhead:
    """Belongs to the broker's loop. Keep ``run`` running."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        config: Callable[[], BrokerConfig],
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        floor_of: Callable[[TopicIdPartition], tuple[Offset, Offset] | None],
        clock: Clock,
        rng: Random,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults,
    ) -> None:
        """``floor_of``: tiered end and log start of a partition that is led here, by the leader's manifest; None if it was not read
        yet."""
        self._store = store
        self._config = config
        self._broker_id = broker_id
        self._image = image
        self._floor_of = floor_of
        self._clock = clock
        self._rng = rng
        self._log_line = log_line
        self._faults = faults
        self.sealed = SealedLogs(store, registry)
        self._writer: WalWriter | None = None
        self._owner: WalOwner | None = None
        self._needs: WalNeeds | None = None
        self._trimmed = 0
        """Objects below this number are deleted."""
        self._led: dict[TopicIdPartition, _Led] = {}
        self._closed = False
        """Whether the log is, or is about to be, sealed by this broker itself."""
        self._noted: ClusterImage | None = None
        """The image by which the needs of earlier leaderships are known."""
        self._changed = asyncio.Event()
        self._moves = 0
        """Counts acknowledged objects, beginnings and ends of WALs."""
        self._moved = asyncio.Event()
        """Set by each of them. A waiter clears it, and compares ``_moves``."""
        self.on_ended: Callable[[WalId], None] | None = None
        """Called when another broker has ended this broker's WAL: this broker has to register again (J14)."""
        self.drop_ranges: Callable[[Sequence[DropAsked]], Awaitable[Sequence[InSyncAnswer]]] | None = None
        """Asks the controller to drop ended ranges from partitions' records, whose records are tiered (J35)."""
        self._objects = registry.counter(
            "firn_wal_objects_total", "Objects of the write-ahead log that were acknowledged"
        )
        self._bytes = registry.counter("firn_wal_bytes_total", "Bytes of the write-ahead log that were acknowledged")
        registry.gauge("firn_wal_held_bytes", "Bytes of batches that wait for the object store", self._held)
        registry.gauge("firn_wal_buffer_bytes", "Bytes of batches that may wait for the object store", self._buffer)
        registry.gauge("firn_wal_kept_bytes", "Bytes of the write-ahead log that are in the object store", self._kept)

    def _held(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(0 if self._writer is None else self._writer.held_bytes))]

    def _buffer(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [] if self._writer is None else [((), float(self._writer.buffer_bytes))]

    def _kept(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), self.kept_bytes)]

    @property
    def kept_bytes(self) -> float:
        """Bytes of the present WAL that are in the object store."""
        return float(0 if self._needs is None else self._needs.held_bytes)

    def next_number(self, broker_epoch: int) -> int:
        """The first number that was not begun in the WAL of that broker epoch, for its heartbeats (J19). A range of it that began
        at a number of an earlier WAL would leave its first objects out."""
        writer = self._writer
        return 0 if writer is None or writer.wal.broker_epoch != broker_epoch else writer.next_number

    # --- leadership ---------------------------------------------------------------------------------------------------

    def lead(self, log: PartitionLog, partition: PartitionImage) -> None:
        """Before this broker leads a partition whose earlier ranges are known up to their ends: the log ends there.

        Raises: FencedError if the open range is not of this broker's present broker epoch, or its WAL has ended.
        """
        ranges = partition.wal_ranges
        mine = self._image().brokers.get(self._broker_id)
        wal = WalId(self._broker_id, -1 if mine is None else mine.broker_epoch)
        if not ranges or not ranges[-1].is_open or ranges[-1].wal != wal:
            raise FencedError(f"{log.topic_partition} has no open range in the present write-ahead log of this broker.")
        if self._closed:
            raise FencedError("This broker stops.")
        if self._writer is None or self._writer.wal != wal:
            self._begin(wal)
        writer = self._writer
        assert writer is not None
        assert self._owner is not None
        if writer.sealed_at is not None:
            raise FencedError(f"Write-ahead log {wal} was sealed at {writer.sealed_at}: another broker goes on.")
        key = TopicIdPartition(log.topic_id, log.partition)
        writer.lead(key)
        assert self._needs is not None
        self._needs.note_led(key, partition.leader_epoch)
        led = self._led[key] = _Led(log, key, partition.leader_epoch, writer, self._owner)
        log.begin_journal(led)

    def _begin(self, wal: WalId) -> None:
        config = self._config()
        keep_freed_memory(KEPT_MEMORY_BYTES_MAX)
        self._writer = writer = WalWriter(
            wal,
            new_nonce=lambda: self._rng.randbytes(NONCE_BYTES),
            object_bytes=min(config.wal_bytes, WAL_OBJECT_BYTES_MAX),
            buffer_bytes=config.wal_buffer_bytes,
        )
        needs = self._needs = WalNeeds(wal)
        self._trimmed = 0
        self._owner = WalOwner(
            writer, self._store, self._clock, self._rng, lambda durable: self._acknowledged(needs, durable)
        )
        self._changed.set()
        self._note_move()

    def resign(self, log: PartitionLog) -> None:
        """This broker does not lead the partition any more, or never did. Appended records may still become durable."""
        key = TopicIdPartition(log.topic_id, log.partition)
        led = self._led.get(key)
        if led is not None and led.log is log:
            del self._led[key]
            if self._writer is not None:
                self._writer.forget(key)

    def gone(self, key: TopicIdPartition) -> None:
        """The partition was deleted."""
        led = self._led.get(key)
        if led is not None:
            self.resign(led.log)
        if self._needs is not None:
            self._needs.note_gone(key)

    # --- running ------------------------------------------------------------------------------------------------------

    def _note_move(self) -> None:
        self._moves += 1
        self._moved.set()

    async def _moved_since(self, moves: int) -> None:
        """Wait until ``_moves`` is more than that. Several may wait."""
        while self._moves == moves:
            self._moved.clear()
            await self._moved.wait()

    def _acknowledged(self, needs: WalNeeds, durable: DurableObject) -> None:
        self._note_move()
        self._objects.value += 1
        self._bytes.value += durable.size_bytes
        needs.note_object(durable)
        for section in durable.sections:
            led = self._led.get(section.partition)
            # Objects of an earlier leadership may become durable later: they say nothing about the records of this one.
            if led is not None and section.leader_epoch == led.leader_epoch:
                led.wrote = True
                led.log.note_journaled(section.end_offset)

    async def run(self) -> None:
        """Put appended records into the bucket, and delete unneeded objects, until cancelled.

        Raises: CorruptionError, FencedError if another process writes this broker's WAL.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._trim())

    async def _write(self) -> None:
        while True:
            self._changed.clear()
            owner, writer = self._owner, self._writer
            if owner is None or writer is None or writer.sealed_at is not None:
                await self._changed.wait()
                continue
            async with asyncio.TaskGroup() as group:
                running = group.create_task(owner.run())
                another = group.create_task(self._changed.wait())
                await asyncio.wait([running, another], return_when=asyncio.FIRST_COMPLETED)
                ended = running.done()
                # If another log has begun, the entry of its broker epoch has ended all leaderships of this one (J22). No request
                # waits for the objects that are still on their way.
                running.cancel()
                another.cancel()
            if ended:
                await self._ended(writer)

    async def _ended(self, writer: WalWriter) -> None:
        """Another broker has sealed this WAL: nothing of it is acknowledged any more, and a new broker epoch has to begin (J14).

        The leaderships end in portions (INV-15). Meanwhile the sealed writer takes no records of those that are left.
        """
        self._note_move()
        portion = Portion()
        error = RequestRejected(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Write-ahead log {writer.wal} was sealed at {writer.sealed_at}: another broker goes on.",
        )
        for led in tuple(self._led.values()):
            if led.writer is writer and self._led.get(led.key) is led:  # else the leadership ended during a rest
                led.log.end_journal(error)
                self.resign(led.log)
                if portion.spent_by():
                    await portion.rest()
        self._log_line(
            Event.WAL_SEALED.line(
                f"the write-ahead log {writer.wal} of this broker was sealed at {writer.sealed_at}: it registers again"
            )
        )
        if self.on_ended is not None:
            self.on_ended(writer.wal)

    async def flush(self) -> None:
        """Wait until all appended records are in the bucket, at most ``FLUSH_S``. For a stop."""
        writer = self._writer
        if writer is None:
            return
        self.stop_taking(self.led_partitions, self)
        try:
            async with asyncio.timeout(FLUSH_S):
                while writer.held_bytes and writer.sealed_at is None:
                    await self._moved_since(self._moves)
        except TimeoutError:
            self._log_line(
                Event.WAL_UNFINISHED.line(
                    f"{writer.held_bytes} bytes of the write-ahead log did not reach the object store within {FLUSH_S:g} s: their "
                    "producers were not answered"
                )
            )

    # --- giving leaderships up ----------------------------------------------------------------------------------------

    @property
    def id(self) -> WalId | None:
        """The present write-ahead log; None if there is none."""
        return None if self._writer is None else self._writer.wal

    @property
    def led_partitions(self) -> list[TopicIdPartition]:
        """The partitions that this broker writes to its log."""
        return list(self._led)

    def loads(self) -> dict[TopicIdPartition, float]:
        """Bytes a second that were written to each partition that this broker leads, since it leads it."""
        now_s = asyncio.get_running_loop().time()
        return {key: led.taken_bytes / max(1.0, now_s - led.began_s) for key, led in self._led.items()}

    def stop_taking(self, partitions: Collection[TopicIdPartition], by: object) -> None:
        """From now on these take no records: their producers get NOT_LEADER_OR_FOLLOWER. Waiting records are put at once (J18).

        ``by``: identifies the reason. There may be several, each with a request of its own under way.
        """
        if self._writer is not None and self._owner is not None:
            for key in partitions:
                led = self._led.get(key)
                if led is not None:
                    led.stopped_by.add(by)
                    self._writer.stop(key)
            self._owner.wake()

    def take_again(self, partition: TopicIdPartition, by: object) -> None:
        """End the stop by ``by``: an image that is newer than its requests shows that this broker still leads (J18)."""
        led = self._led.get(partition)
        if led is not None:
            led.stopped_by.discard(by)
            if self._writer is not None and not led.stopped_by:
                self._writer.resume(partition)

    def last_number(self, partition: TopicIdPartition) -> int | None:
        """The last number of a partition that takes no more, once all of it is acknowledged; None if it is not, or not led.

        None also if it takes records: then it was stopped in an earlier leadership.
        """
        led = self._stopped(partition)
        return None if led is None else led.writer.last_number_if_flushed(partition)

    def _stopped(self, partition: TopicIdPartition) -> _Led | None:
        """The present leadership of a partition, if it was stopped and its log has not ended."""
        led = self._led.get(partition)
        if led is None or not led.stopped_by or led.writer is not self._writer or led.writer.sealed_at is not None:
            return None
        return led

    async def flushed(self, partitions: Collection[TopicIdPartition]) -> None:
        """Wait until all records of stopped partitions are acknowledged, or their log has ended.

        Looks at the partitions in portions (INV-15). A partition whose records are acknowledged is not looked at again: it takes
        no more in this leadership, and a later leadership is not waited for.
        """
        waiting = list(partitions)
        portion = Portion()
        while True:
            moves = self._moves  # an object that is acknowledged during a rest counts
            left: list[TopicIdPartition] = []
            for key in waiting:
                if self._stopped(key) is not None and self.last_number(key) is None:
                    left.append(key)
                if portion.spent_by():
                    await portion.rest()
            if not left or self._writer is None or self._writer.sealed_at is not None:
                return
            waiting = left
            await self._moved_since(moves)

    async def close(self) -> None:
        """End this broker's own log, after the last leadership: then all of it can be deleted. It leads nothing any more.

        While objects are on their way it cannot; then the controller ends the log (J17).
        """
        self._closed = True
        writer = self._writer
        if writer is None or writer.sealed_at is not None or not writer.next_number or writer.held_bytes:
            return
        number = writer.durable_end
        nonce = self._rng.randbytes(NONCE_BYTES)
        with suppress(StorageUnavailable, AlreadyExists, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                seal = encode_seal(writer.wal, number, nonce, self._clock.now_ms(), self._broker_id)
                await put(self._store, writer.wal, number, seal)

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(TRIM_S)
            needs, writer = self._needs, self._writer
            if needs is not None and writer is not None:
                await self._trim_once(needs, writer)

    async def _trim_once(self, needs: WalNeeds, writer: WalWriter) -> None:
        """Look at each led partition, in portions (INV-15), and delete the objects that no partition needs.

        Other work runs between two portions. Each partition is looked at in one step. A floor that its leader has noted stays true
        when the leadership ends, and objects that become durable meanwhile are newer. The end of the deletion is computed from all
        partitions and told to the writer in one step. If another log has begun meanwhile, nothing is deleted.
        """
        portion = Portion()
        if not await self._note_images(needs, portion):
            return
        done: list[DropAsked] = []
        rolls = 0
        now_s = asyncio.get_running_loop().time()
        retention_bytes = self._config().wal_retention_bytes
        is_long = needs.is_long(retention_bytes)
        for led in tuple(self._led.values()):
            if needs is not self._needs:
                return
            if self._led.get(led.key) is led:  # else the leadership ended during a rest
                rolls += self._look_at(led, needs, now_s, done, is_long=is_long, may_roll=rolls < ROLLS_AT_ONCE)
                if portion.spent_by():
                    await portion.rest()
        await self._drop(done)
        for key in needs.to_roll(retention_bytes):
            if needs is not self._needs:
                return
            self._roll(key)
            await portion.rest_if_spent()
        if needs is not self._needs:
            return
        end = writer.begin_trim(needs.trim_end(writer.durable_end))
        if end > self._trimmed:
            await self._delete(writer.wal, end)
            if needs is self._needs:
                needs.note_deleted(self._trimmed)

    def _look_at(
        self, led: _Led, needs: WalNeeds, now_s: float, done: list[DropAsked], *, is_long: bool, may_roll: bool
    ) -> bool:
        """Note which objects a led partition does not need any more, and add the ranges that its record need not name to ``done``.

        Returns: whether the partition holds ended ranges, and its segment was to be closed for that. ``may_roll`` allows it.
        """
        floor = self._floor_of(led.key)
        if floor is None:
            return False
        tiered_end, log_start = floor
        may_be_repeated = now_s - led.took_s < ENDED_KEPT_S
        # No record is left to tier, and no producer repeats a batch after so long: it holds no objects back (J32).
        if log_start >= led.log.log_end_offset and not may_be_repeated:
            tiered_end = Offset(max(tiered_end, log_start))
        needs.note_floor(led.key, tiered_end, log_start, may_be_repeated=may_be_repeated and not is_long)
        done += self._ended_ranges(led, *floor)
        if led.rolled or not may_roll or now_s - led.began_s < ENDED_ROLL_S:
            return False
        holds = tiered_end < led.began_at and bool(self._closed_ranges(led))
        led.rolled = not holds or self._roll(led.key)
        return holds

    def _roll(self, key: TopicIdPartition) -> bool:
        """Close the log's segment, so that all of it is tiered. Returns: False if it is to be tried again."""
        led = self._led.get(key)
        if led is not None:
            name = str(led.log.topic_partition)
            try:
                led.log.roll()
            except FirnError as error:
                self._faults.met("rolling", name, f"cannot roll {name}: {error}")
                return False
        return True

    async def _note_images(self, needs: WalNeeds, portion: Portion) -> bool:
        """Keep the objects of earlier leaderships as long as the partitions' records name them (J34).

        A newer image that comes meanwhile is noted by the next look: an older one keeps more. Returns: False if another log began.
        """
        image = self._image()
        if image is not self._noted:
            for key in needs.partitions():
                partition = image.partition(*key)
                if partition is not None:
                    needs.note_image(key, leader_epoch=partition.leader_epoch, ranges=partition.wal_ranges)
                if portion.spent_by():
                    await portion.rest()
                    if needs is not self._needs:
                        return False
            self._noted = image
        return True

    def _ended_ranges(self, led: _Led, tiered_end: Offset, log_start: Offset) -> list[DropAsked]:
        """The ranges that a partition's record need not name any more (J35)."""
        if not ranges_are_done(Offset(led.began_at), Tiered(tiered_end, log_start), own_section=led.wrote):
            return []
        if not led.wrote and asyncio.get_running_loop().time() - led.began_s < ENDED_KEPT_S:
            return []
        partition = self._image().partition(*led.key)
        ended = self._closed_ranges(led)
        if partition is None or not ended:
            return []
        return [DropAsked(*led.key, partition.leader_epoch, partition.partition_epoch, ended)]

    def _closed_ranges(self, led: _Led) -> tuple[WalRange, ...]:
        """The ranges of earlier leaderships in the partition's record; none if there is a later leadership than this one."""
        partition = self._image().partition(*led.key)
        if partition is None or partition.leader_epoch != led.log.leader_epoch:
            return ()
        return tuple(each for each in partition.wal_ranges if not each.is_open)

    async def _drop(self, done: list[DropAsked]) -> None:
        if not done or self.drop_ranges is None:
            return
        try:
            await self.drop_ranges(done)  # a refused range is asked again, by a newer image
        except FirnError as error:
            self._faults.met_error("dropping ended ranges of", f"{len(done)} partitions", error)

    async def _delete(self, wal: WalId, end: int) -> None:
        numbers = range(self._trimmed, end)
        for first in range(numbers.start, numbers.stop, LIST_LIMIT_MAX):
            some = range(first, min(first + LIST_LIMIT_MAX, numbers.stop))
            try:
                await self._store.delete_many([layout.wal_key(*wal, number) for number in some])
            except StorageUnavailable as error:
                self._faults.met_error("deleting objects of", f"write-ahead log {wal}", error)
                return
            if self._writer is None or self._writer.wal != wal:
                return
            self._trimmed = some.stop
