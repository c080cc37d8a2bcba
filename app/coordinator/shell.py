"""The shell around the state machines of a kind of coordinator: led partitions, loading, timers, and responses.

A **shard** is the state machine of one partition of the internal topic: pure, synchronous, without clock or loop. It changes
only in a **turn**. An event comes in (a request, or a due timer). The shard appends records, changes its memory, sets timers,
and responds. Three rules make it a state machine on a log:

- **Append first, then apply.** ``Turn.append`` writes at once, and raises if it cannot. A shard changes its memory only
  afterwards. So a failed append leaves the state unchanged, and the response has a code on which clients retry.
- **Respond when stored.** Responses of a turn are sent when all records appended so far are stored under the topic's
  durability by all replicas in sync. This holds even for responses of turns that appended nothing, because they may depend on a
  record that is not stored yet. The wait has a limit; a response that waited longer is replaced by a refusal (ADR 0025, G4).
- **The log is the truth.** When this broker becomes leader of the partition, a shard begins empty and gets every record (``load``),
  once the high watermark has reached the start of the leadership (G2). When the leadership ends, or the disk fails, the shard is
  dropped, and waiting requests are refused (G3).

    on_leader → loading → active → on_resign
                   │  └─ held ─┘
                   └─ failed ─┘ (tried again)

A broker that is isolated drops its shards and keeps its leaderships. Requests are refused until the shards are loaded again.

A leadership is this broker's, as its ``Partition`` has it: it ends with the role, not only with the image (G1). A leader that
leads on under a higher epoch keeps its shard, because its log was not cut (G6).

A log that may lack its end is read and then **held**: no request is served until its owner has recovered from the loss and admits
the shard (ADR 0037, J46).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from enum import Enum
from math import inf
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from app.coordinator.partition import (
    REPLAY_READ_BYTES,
    CoordinatedLog,
    ProducerIdAndEpoch,
    RawRecord,
    ReplayedBatch,
    decode_batches,
)
from app.coordinator.timers import Timers
from app.coordinator.topics import (
    CONSUMER_OFFSETS,
    HTTP_REQUESTS,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    InternalTopic,
    partition_for,
)
from app.core.errors import (
    CorruptionError,
    ErrorCode,
    FirnError,
    NotLeader,
    RequestRejected,
    StorageFull,
    StorageUnavailable,
    copy_of,
    kafka_code,
)
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.loop_time import loop_time_ms
from app.core.metrics import Labels, Registry
from app.core.seams import Clock
from app.core.turns import Portion
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex
from app.core.wake import Wake
from app.metadata.image.image import ClusterImage
from app.replication.partition import Partition, PartitionTable
from app.replication.reading import PartitionReads
from app.replication.roles import Role

LOADS_AT_ONCE: Final = 4
"""Partitions read at the same time, so that one that waits for the disk does not delay the others."""

RELOAD_S: Final = 5.0
"""Pause after a failed load."""

DUE_AT_ONCE: Final = 256
"""Timers served before the event loop serves other work."""
ANSWERS_AT_ONCE: Final = 100
"""Responses that are given in one turn of the loop. Each wakes a request, which encodes and sends it: up to 100 µs."""

BULK_RECORDS: Final = 10_000
"""A log with fewer records is not worth another decoder."""

LOST: Final = {
    CONSUMER_OFFSETS.name: "offsets that groups committed last may be lost, and groups go on at older ones",
    TRANSACTION_STATE.name: "its open transactions are decided by their markers, and its transactional ids get new producer ids",
    SHARE_GROUP_STATE.name: "share groups may be given records again that they have acknowledged",
    HTTP_REQUESTS.name: "retries of keyed requests whose results are lost may be written again",
    "_schemas": "schemas that were registered last may be lost, and 1,000 ids are skipped",
}
"""The consequence of losing the newest records of an internal topic."""

R = TypeVar("R")

TimerKey = tuple[type, Hashable]
"""The key with its type, because named tuples of different types are equal if their fields are equal."""


class ShardState(Enum):
    LOADING = "loading"
    """The log is being read, is still being made, or is not known to its end yet."""
    HELD = "held"
    """The log is read, but may lack its end. Requests are refused as before, until the owner admits the shard."""
    ACTIVE = "active"
    FAILED = "failed"
    """The log cannot be read."""


class Reply(Generic[R]):
    """A response that may come in a later turn. For example, a JoinGroup waits for the other members."""

    __slots__ = ("_future", "_refusal", "answer")

    def __init__(self) -> None:
        self.answer: R | None = None
        self._refusal: FirnError | None = None
        self._future: asyncio.Future[None] | None = None

    def put(self, answer: R) -> None:
        """Set the response. Only the shell calls this, after all records of the response are stored."""
        assert self.answer is None
        self.answer = answer
        self._wake()

    def refuse(self, error: FirnError) -> None:
        """Set an error instead of a response. Only the shell calls this."""
        self._refusal = copy_of(error)
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> R:
        """Wait for the response. Raises: the refusal."""
        if self.answer is None and self._refusal is None:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        if self._refusal is not None:
            raise copy_of(self._refusal)
        assert self.answer is not None
        return self.answer


class Turn(Protocol):
    """The operations of a shard while it serves one event. Do not keep the object."""

    now_ms: int
    """Wall-clock time, for stored or displayed times."""

    @property
    def steady_ms(self) -> int:
        """Monotonic time, for limits that are not stored."""
        ...

    def append(self, records: Sequence[RawRecord], *, producer: ProducerIdAndEpoch | None = None) -> Offset:
        """Write records as one batch now. Raises, with nothing written: RequestRejected with the code for the client."""
        ...

    def answer(self, reply: Reply[R], answer: R) -> None:
        """Respond to a request of this turn or an older one, when all records appended so far are stored."""
        ...

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        """Call ``Shard.due`` with ``key`` in ``delay_ms``. This replaces an earlier timer of ``key``."""
        ...

    def cancel_timer(self, key: Hashable) -> None: ...


class Shard(Protocol):
    """The state machine of one partition."""

    def load(self, batch: ReplayedBatch) -> None:
        """Load records of the log, in order. Raises: CorruptionError."""
        ...

    def loaded(self, turn: Turn) -> None:
        """All records are loaded. Set timers, and correct faults that only the whole state shows."""
        ...

    def due(self, turn: Turn, key: Any) -> None:
        """A timer is due. Must not raise. If an append fails, set a timer to retry."""
        ...

    def unloaded(self, turn: Turn) -> None:
        """This broker is no longer the coordinator: respond to all waiting requests with NOT_COORDINATOR. Also called for a shard
        whose log was not read to its end."""
        ...


S = TypeVar("S", bound=Shard)

Decode = Callable[[bytes], Iterable[Any]]
"""Gives the arguments of ``Shard.load`` that are in some whole batches. Each step takes a few milliseconds."""


class Bulk(NamedTuple):
    """Another way to decode long logs of a topic."""

    decoder: Callable[[], Awaitable[Decode]]
    """Gives the decoder, when a log needs it. ``load`` of the topic's shards must accept the objects that the decoder yields."""
    read_bytes: int
    """Bytes that it decodes at a time."""


_CODES: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""A refusal by the log, and the code that a coordinator's client gets for it, as in Kafka."""


def coordinator_code(error: FirnError) -> ErrorCode:
    """The client's codes for a failed append or load. On these codes a client looks for its coordinator, and retries."""
    match error:
        case StorageFull():
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case StorageUnavailable() | CorruptionError():
            return ErrorCode.NOT_COORDINATOR
        case _:
            code = kafka_code(error)
            return _CODES.get(code, code)


class _Waiting(NamedTuple):
    """A response that is sent when the log is stored up to an offset."""

    offset: Offset
    reply: Reply[Any]
    answer: Any
    until_s: float
    """Loop time at which it is refused."""


class _Seat(Generic[S]):
    """A led partition in one leadership: its shard, and the shell's state for it. Another leadership has another ``_Seat``."""

    __slots__ = ("epoch", "forget", "log", "partition", "queued", "shard", "state", "timers", "waiting", "waits")

    def __init__(self, partition: PartitionIndex, epoch: LeaderEpoch) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state = ShardState.LOADING
        self.shard: S | None = None
        self.log: CoordinatedLog | None = None
        self.timers: Timers[TimerKey] = Timers()
        self.waiting: deque[_Waiting] = deque()
        self.waits = False
        self.queued = False
        """Whether it is to be loaded, or is being loaded."""
        self.forget: Callable[[], None] | None = None
        """Ends the wait for the end of the log to be known."""


class _Turn:
    """One event of one shard."""

    __slots__ = ("_coordinator", "_seat", "now_ms")

    def __init__(self, coordinator: Coordinator[Any], seat: _Seat[Any], now_ms: int) -> None:
        self._coordinator = coordinator
        self._seat = seat
        self.now_ms = now_ms

    @property
    def steady_ms(self) -> int:
        return self._coordinator.loop_ms()

    def append(self, records: Sequence[RawRecord], *, producer: ProducerIdAndEpoch | None = None) -> Offset:
        seat = self._seat
        assert seat.log is not None
        try:
            return seat.log.append(records, now_ms=self.now_ms, producer=producer)
        except FirnError as error:
            self._coordinator.note_failed_append(seat, error)
            raise RequestRejected(coordinator_code(error), str(error)) from error

    def answer(self, reply: Reply[R], answer: R) -> None:
        seat = self._seat
        assert seat.log is not None
        seat.waiting.append(_Waiting(seat.log.end_offset, reply, answer, self._coordinator.stored_until_s()))

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        self._seat.timers.set((type(key), key), self._coordinator.loop_ms() + delay_ms)

    def cancel_timer(self, key: Hashable) -> None:
        self._seat.timers.cancel((type(key), key))


class Coordinator(Generic[S]):
    """All partitions of one internal topic that this broker leads. Belongs to its loop; keep ``run`` running."""

    def __init__(
        self,
        topic: InternalTopic,
        new_shard: Callable[[PartitionIndex], S],
        *,
        broker_id: BrokerId,
        partitions: PartitionTable,
        clock: Clock,
        registry: Registry,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
        stored_within_ms: int | None = None,
        hold: Callable[[Partition, S], bool] | None = None,
        reads: PartitionReads | None = None,
        bulk: Bulk | None = None,
    ) -> None:
        """``stored_within_ms``: how long a response may wait for its records to be stored. Without it there is no limit, and the
        caller sees to that. ``hold`` says whether a shard that was read must not serve before it is admitted (``admit``).
        ``reads``: for a topic whose records may be in the store alone. ``bulk``: for a topic with millions of records."""
        self.topic = topic
        self._new_shard = new_shard
        self._broker_id = broker_id
        self._partitions = partitions
        self._clock = clock
        self._faults = faults if faults is not None else Faults(log_line)
        self._stored_within_ms = stored_within_ms
        self._hold = hold
        self._reads = reads
        self._bulk = bulk
        self._log_line = log_line
        self._seats: dict[PartitionIndex, _Seat[S]] = {}
        self._topic_id: UUID | None = None
        self._partition_count = 0
        self._to_load: deque[_Seat[S]] = deque()
        self._wake = asyncio.Event()
        self._seats_changed = Wake()
        """Woken when the read of a partition ends."""
        self._tasks: asyncio.TaskGroup | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._load_seconds = registry.histogram(
            "firn_coordinator_load_seconds", "Time to read a partition of an internal topic at start.", topic=topic.name
        )
        self._lost_ends = registry.counter(
            "firn_coordinator_lost_ends_total",
            "Partitions of internal topics that this broker began to lead with records that may lack the newest.",
            topic=topic.name,
        )
        registry.gauge(
            "firn_coordinator_partitions",
            "Partitions of internal topics that this broker leads.",
            self._count_partitions,
        )
        partitions.watch(topic.name, self._role_changed)

    def _count_partitions(self) -> Iterable[tuple[Labels, float]]:
        found = Counter(seat.state for seat in self._seats.values())
        for state in ShardState:
            yield (("state", state.value), ("topic", self.topic.name)), float(found[state])

    def loop_ms(self) -> int:
        """Monotonic time, for timers."""
        return loop_time_ms()

    def stored_until_s(self) -> float:
        """Loop time until which a response of now may wait for its records."""
        if self._stored_within_ms is None:
            return inf
        return asyncio.get_running_loop().time() + self._stored_within_ms / 1000

    # --- leadership ---------------------------------------------------------------------------------------------------

    def follow(self, image: ClusterImage) -> None:
        """Update the led partitions to a new image of the cluster. Call it after the roles have followed the image (G1)."""
        topic = image.topic(self.topic.name)
        partitions = () if topic is None else topic.partitions
        topic_id = None if topic is None else topic.topic_id
        if topic_id != self._topic_id:
            for index in tuple(self._seats):
                self.on_resign(index)  # of an older topic of that name
        self._topic_id = topic_id
        self._partition_count = len(partitions)
        led = {
            partition.partition_index: partition.leader_epoch
            for partition in partitions
            if partition.leader == self._broker_id
        }
        for index in tuple(self._seats):
            if index not in led:
                self.on_resign(index)
        for index, epoch in led.items():
            self.on_leader(index, epoch)

    def on_leader(self, partition: PartitionIndex, epoch: LeaderEpoch) -> None:
        """This broker leads the partition: load its shard, once for each leadership."""
        seat = self._seats.get(partition)
        if seat is None:
            seat = self._seats[partition] = _Seat(partition, epoch)
        else:
            seat.epoch = (
                epoch  # it leads on, its log was not cut, and nothing that others wrote was committed meanwhile (G6)
            )
        if seat.state is ShardState.LOADING:
            self._load_soon(seat)

    def on_resign(self, partition: PartitionIndex) -> None:
        """This broker no longer leads the partition, or the partition does not exist: drop its shard."""
        seat = self._seats.pop(partition, None)
        if seat is not None:
            self._unload(seat)
            self._seats_changed.wake()

    def _role_changed(self, partition: Partition) -> None:
        """The role in a partition has followed an image, or the partition cannot be led or served for now. A shard of an isolated
        broker is dropped: when it is loaded again, each member of its groups has a whole session time-out (ADR 0040, IS7)."""
        seat = self._seats.get(partition.index)
        if seat is None:
            return
        if partition.serves:
            if seat.shard is None:
                self._load_soon(seat)
        elif seat.log is None or seat.log.is_of(partition):
            # Unload even if the image still names this leadership: the log may be another one when this broker leads again (G1).
            self._unload(seat)
            again = self._seats[partition.index] = _Seat(partition.index, seat.epoch)
            self._load_soon(again)
            self._seats_changed.wake()

    def _unload(self, seat: _Seat[S]) -> None:
        if seat.forget is not None:
            seat.forget()
        shard, seat.shard = seat.shard, None
        if shard is not None and seat.log is not None:
            # The records of waiting responses are not known to be stored, so these responses are refused. ``unloaded`` adds the
            # responses for all other waiting requests, which are sent now.
            not_stored = [each.reply for each in seat.waiting]
            seat.waiting.clear()
            shard.unloaded(_Turn(self, seat, self._clock.now_ms()))
            for each in seat.waiting:
                each.reply.put(each.answer)
            seat.waiting.clear()
            error = RequestRejected(ErrorCode.NOT_COORDINATOR, "What was answered is not known to be stored.")
            for reply in not_stored:
                reply.refuse(error)
        seat.timers = Timers()

    # --- serving ------------------------------------------------------------------------------------------------------

    def partition_of(self, name: str) -> PartitionIndex:
        """The partition that a group id or transactional id belongs to.

        Raises: RequestRejected COORDINATOR_NOT_AVAILABLE while the topic does not exist.
        """
        if self._partition_count == 0:
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"There is no topic {self.topic.name} yet.")
        return partition_for(name, self._partition_count)

    def perform(self, partition: PartitionIndex, event: Callable[[S, Turn], R]) -> R | Awaitable[R]:
        """Run an event on a shard now. Returns the result of ``event``: at once if all records of the shard are stored, else an
        awaitable until they are.

        Raises: RequestRejected NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, with nothing done;
        any error of ``event``. The awaitable raises RequestRejected NOT_COORDINATOR if the appended records cannot be stored, or
        the next leader decides on them. It raises COORDINATOR_NOT_AVAILABLE if they were not stored in time. They may count later.
        """
        seat = self._seat(partition)
        result = self._happens(seat, event)
        log = seat.log
        assert log is not None
        waiting = log.stored(log.end_offset)
        if waiting is None:
            return result
        return self._when_stored(seat, waiting, result)

    def tell(self, partition: PartitionIndex, event: Callable[[S, Turn], None]) -> None:
        """Like ``perform``, for an event without a response. The next request finds out whether it is stored."""
        self._happens(self._seat(partition), event)

    def _happens(self, seat: _Seat[S], event: Callable[[S, Turn], R]) -> R:
        shard = seat.shard
        assert shard is not None
        try:
            return event(shard, _Turn(self, seat, self._clock.now_ms()))
        finally:
            self._after(seat)

    async def request(self, partition: PartitionIndex, event: Callable[[S, Turn, Reply[R]], None]) -> R:
        """Like ``perform``, for an event whose response comes through its ``Reply``, in this turn or a later one."""
        reply: Reply[R] = Reply()

        def ask(shard: S, turn: Turn) -> None:
            event(shard, turn, reply)

        waiting = self.perform(partition, ask)
        if waiting is not None:
            await waiting
        return await reply.wait()

    def look(self, partition: PartitionIndex, read: Callable[[S], R]) -> R:
        """The present state of a shard, stored or not. For checks that are repeated, not for responses.

        Raises: RequestRejected as ``perform``.
        """
        shard = self._seat(partition).shard
        assert shard is not None
        return read(shard)

    def held(self) -> list[tuple[PartitionIndex, S]]:
        """The shards that wait to be admitted, with all records of their logs."""
        return [
            (index, seat.shard)
            for index, seat in self._seats.items()
            if seat.state is ShardState.HELD and seat.shard is not None
        ]

    def perform_held(self, partition: PartitionIndex, shard: S, event: Callable[[S, Turn], R]) -> R | Awaitable[R]:
        """Like ``perform``, for a shard that is held. Raises: RequestRejected NOT_COORDINATOR if it is held no more."""
        seat = self._held_seat(partition, shard)
        result = self._happens(seat, event)
        log = seat.log
        assert log is not None
        waiting = log.stored(log.end_offset)
        return result if waiting is None else self._when_stored(seat, waiting, result)

    def admit(self, partition: PartitionIndex, shard: S) -> None:
        """Let a held shard serve. Raises: RequestRejected NOT_COORDINATOR if it is held no more."""
        self._activate(self._held_seat(partition, shard), shard)

    def _held_seat(self, partition: PartitionIndex, shard: S) -> _Seat[S]:
        seat = self._seats.get(partition)
        if seat is None or seat.state is not ShardState.HELD or seat.shard is not shard:
            raise RequestRejected(ErrorCode.NOT_COORDINATOR, f"{self.topic.name}-{partition} is not held any more.")
        return seat

    def shards(self) -> list[tuple[PartitionIndex, S]]:
        """The active shards."""
        return [
            (index, seat.shard)
            for index, seat in self._seats.items()
            if seat.state is ShardState.ACTIVE and seat.shard is not None
        ]

    def active(self, partition: PartitionIndex) -> S | None:
        """The shard of a partition, if it is active."""
        seat = self._seats.get(partition)
        return seat.shard if seat is not None and seat.state is ShardState.ACTIVE else None

    @property
    def loading(self) -> bool:
        """Whether a led partition is not active yet."""
        return any(seat.state is not ShardState.ACTIVE for seat in self._seats.values())

    @property
    def being_read(self) -> bool:
        """Whether a led partition will be active soon. One that cannot be read does not count."""
        return any(map(self._is_being_read, self._seats.values()))

    def _is_being_read(self, seat: _Seat[S]) -> bool:
        return seat.state is ShardState.LOADING and not self._is_shut(seat)

    def _is_shut(self, seat: _Seat[S]) -> bool:
        """Whether the gate of isolation shuts the partition (ADR 0040)."""
        partition = self._partitions.get(self.topic.name, seat.partition)
        return partition is not None and partition.shut

    async def when_loaded(self, partitions: Iterable[PartitionIndex] | None = None, *, timeout_s: float) -> None:
        """Wait until none of these partitions is being read (without ``partitions``: no led partition).

        Raises: RequestRejected COORDINATOR_LOAD_IN_PROGRESS if that takes longer than ``timeout_s``.
        """
        wanted = None if partitions is None else frozenset(partitions)

        def are_loaded() -> bool:
            return all(
                not self._is_being_read(seat)
                for index, seat in self._seats.items()
                if wanted is None or index in wanted
            )

        if are_loaded():
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not are_loaded():
                    await self._seats_changed.wait()
        except TimeoutError as error:
            raise RequestRejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic.name} is being read. Try again later."
            ) from error

    def _seat(self, partition: PartitionIndex) -> _Seat[S]:
        seat = self._seats.get(partition)
        if seat is None:
            raise RequestRejected(
                ErrorCode.NOT_COORDINATOR, f"This broker does not lead {self.topic.name}-{partition}."
            )
        if seat.state is ShardState.LOADING:
            if self._is_shut(seat):
                raise RequestRejected(
                    ErrorCode.NOT_COORDINATOR, f"{self.topic.name}-{partition} is not served: this broker is isolated."
                )
            raise RequestRejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic.name}-{partition} is being read."
            )
        if seat.state is ShardState.HELD:
            raise RequestRejected(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"{self.topic.name}-{partition} may have lost its last records, and what depends on them is being decided.",
            )
        if seat.state is ShardState.FAILED:
            raise RequestRejected(ErrorCode.NOT_COORDINATOR, f"{self.topic.name}-{partition} cannot be read.")
        return seat

    async def _when_stored(self, seat: _Seat[S], waiting: Awaitable[None], result: R) -> R:
        """The result of an event, as ``perform`` says."""
        try:
            async with self._limit(self.stored_until_s()):
                await waiting
        except TimeoutError:
            raise self._not_stored_in_time(seat) from None
        except NotLeader as error:
            raise RequestRejected(ErrorCode.NOT_COORDINATOR, str(error)) from error
        except FirnError as error:
            self._fail(seat, error)
            raise RequestRejected(coordinator_code(error), str(error)) from error
        if self._seats.get(seat.partition) is not seat:
            raise RequestRejected(
                ErrorCode.NOT_COORDINATOR,
                f"{self.topic.name}-{seat.partition} was given up before the answer was stored.",
            )
        return result

    @staticmethod
    def _limit(until_s: float) -> asyncio.Timeout:
        return asyncio.timeout_at(None if until_s == inf else until_s)

    def _not_stored_in_time(self, seat: _Seat[S]) -> RequestRejected:
        return RequestRejected(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"The replicas of {self.topic.name}-{seat.partition} did not store the records in time. They may still do so.",
        )

    def note_failed_append(self, seat: _Seat[S], error: FirnError) -> None:
        """An append failed: nothing was written. The request is refused, and the reason is logged."""
        if kafka_code(error) is not ErrorCode.NOT_LEADER_OR_FOLLOWER:  # else another broker leads: that is no fault
            self._faults.met_error("writing", f"{self.topic.name}-{seat.partition}", error)

    def _fail(self, seat: _Seat[S], error: FirnError) -> None:
        """The shard's memory may differ from the log: drop the shard, and read the log again."""
        if seat.shard is not None and self._seats.get(seat.partition) is seat:
            subject = f"{self.topic.name}-{seat.partition}"
            self._faults.met("storing what was written to", subject, f"{subject} is read again: {error}")
            seat.state = ShardState.FAILED
            self._unload(seat)
            self._load_later(seat, RELOAD_S)

    # --- answers and time -----------------------------------------------------------------------------------------------

    def _after(self, seat: _Seat[S]) -> None:
        """End a turn: send responses, and arm the timer."""
        if seat.waiting and not seat.waits:
            self._give_answers(seat)
        next_ms = seat.timers.next_ms()
        if next_ms is not None and (self._timer is None or next_ms < self._timer_ms):
            self._arm(next_ms)

    def _give_answers(self, seat: _Seat[S]) -> None:
        """Respond to all whose records are stored, some in each turn: one event may respond to all members of a group."""
        log = seat.log
        assert log is not None
        left = ANSWERS_AT_ONCE
        while seat.waiting:
            first = seat.waiting[0]
            waiting = log.stored(first.offset)
            if waiting is not None:
                assert self._tasks is not None
                seat.waits = True
                self._tasks.create_task(self._answer_later(seat, waiting, first.until_s))
                return
            if not left:
                assert self._tasks is not None
                seat.waits = True
                self._tasks.create_task(self._go_on_answering(seat))
                return
            left -= 1
            seat.waiting.popleft()
            first.reply.put(first.answer)

    async def _go_on_answering(self, seat: _Seat[S]) -> None:
        try:
            await Portion().rest()
        finally:
            seat.waits = False
        if seat.waiting:
            self._give_answers(seat)

    async def _answer_later(self, seat: _Seat[S], waiting: Awaitable[None], until_s: float) -> None:
        try:
            async with self._limit(until_s):
                await waiting
        except TimeoutError:
            now_s = asyncio.get_running_loop().time()
            while seat.waiting and seat.waiting[0].until_s <= max(now_s, until_s):
                seat.waiting.popleft().reply.refuse(self._not_stored_in_time(seat))
        except NotLeader:
            pass  # the waiting requests were refused when the role changed
        except FirnError as error:
            self._fail(seat, error)
        finally:
            seat.waits = False
        if seat.waiting:
            self._give_answers(seat)

    def _arm(self, next_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer_ms = next_ms
        self._timer = loop.call_at(next_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        """Serve due timers, some at a time, and sleep until the next deadline.

        An exception of a shard is a bug, which the event loop reports. The other timers are served in the loop's next turn.
        """
        self._timer = None
        # Loops count time in floating seconds, so the timer may fire a little early. The deadline of this timer counts as due. Else
        # the timer would be set again.
        now_ms = max(self.loop_ms(), self._timer_ms)
        left = 0
        try:
            left = self._serve_due(now_ms)
        finally:
            if left == 0:
                self._arm(now_ms)

    def _serve_due(self, now_ms: int) -> int:
        """Serve up to ``DUE_AT_ONCE`` timers of all shards. Returns: how many more timers it could have served."""
        left, portion = DUE_AT_ONCE, Portion()
        for seat in tuple(self._seats.values()):
            shard = seat.shard
            if shard is None or seat.state is not ShardState.ACTIVE:
                continue
            try:
                while left and seat.shard is shard:
                    if portion.spent():
                        return 0
                    key = seat.timers.pop_due(now_ms)
                    if key is None:
                        break
                    left -= 1
                    shard.due(_Turn(self, seat, self._clock.now_ms()), key[1])
            finally:
                self._after(seat)
        return left

    # --- loading ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load the shards of led partitions, and serve timers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for _ in range(LOADS_AT_ONCE):
                    tasks.create_task(self._load_forever())
        finally:
            self._tasks = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def _load_forever(self) -> None:
        while True:
            while self._to_load:
                seat = self._to_load.popleft()
                try:
                    await self._load(seat)
                finally:
                    seat.queued = False
                if seat.state is ShardState.LOADING and self._seats.get(seat.partition) is seat:
                    self._load_when_known(seat)
            self._wake.clear()
            await self._wake.wait()

    def _load_soon(self, seat: _Seat[S]) -> None:
        if not seat.queued:
            seat.queued = True
            self._to_load.append(seat)
            self._wake.set()

    def _to_read(self, seat: _Seat[S]) -> Partition | None:
        """The partition of a seat if it can be read to its end now, else None. This broker must have begun to lead it, all records
        that earlier leaders may have committed must be known to be committed (G1, G2), and the gate of isolation must be open."""
        partition = self._partitions.get(self.topic.name, seat.partition)
        if partition is None or not partition.serves or not partition.end_is_known:
            return None
        return partition

    def _load_when_known(self, seat: _Seat[S]) -> None:
        """Load a seat once its partition can be read. Its role tells by itself when it changes; here its log does."""
        if self._to_read(seat) is not None:
            self._load_soon(seat)  # it became so while a loader looked at it
            return
        partition = self._partitions.get(self.topic.name, seat.partition)
        if partition is None or seat.forget is not None:
            return
        log = partition.log

        def look() -> None:
            if self._to_read(seat) is not None:
                forget()
                self._load_soon(seat)

        def forget() -> None:
            log.remove_waiter(look)
            seat.forget = None

        log.add_waiter(look)
        seat.forget = forget

    async def _load(self, seat: _Seat[S]) -> None:
        """Read a partition into a new shard. Failures are retried while the partition is led."""
        if self._seats.get(seat.partition) is not seat or seat.shard is not None:
            return
        partition = self._partitions.get(self.topic.name, seat.partition)
        if partition is not None and partition.role is Role.OFFLINE:
            seat.state = ShardState.FAILED  # the partition tells when it is led again
            self._seats_changed.wake()
            return
        seat.state = ShardState.LOADING
        partition = self._to_read(seat)
        if partition is None:
            return
        seat.log = CoordinatedLog(partition)
        begun = asyncio.get_running_loop().time()
        shard = self._new_shard(seat.partition)
        if not await self._read(shard, seat, seat.log):
            shard.unloaded(_Turn(self, seat, self._clock.now_ms()))
            return
        seat.shard = shard
        seat.timers = Timers()
        self._load_seconds.observe(asyncio.get_running_loop().time() - begun)
        if partition.unclean_epoch >= 0 and partition.unclean_epoch == partition.log.leader_epoch:
            self._tell_of_loss(seat)
        if self._hold is not None and self._hold(partition, shard):
            seat.state = ShardState.HELD
            self._seats_changed.wake()
        else:
            self._activate(seat, shard)

    async def _read(self, shard: S, seat: _Seat[S], log: CoordinatedLog) -> bool:
        """Load a log into a shard. Returns: False if the log cannot be read, or if this leadership has ended meanwhile."""
        try:
            await self._read_all(shard, seat, log)
        except FirnError as error:
            if self._seats.get(seat.partition) is seat:
                subject = f"{self.topic.name}-{seat.partition}"
                self._faults.met("loading", subject, f"{subject} cannot be read, will try again: {error}")
                seat.state = ShardState.FAILED
                self._seats_changed.wake()
                self._load_later(seat, RELOAD_S)
            return False
        return self._seats.get(seat.partition) is seat

    async def _read_all(self, shard: S, seat: _Seat[S], log: CoordinatedLog) -> None:
        """Load a log into a shard, in portions, to its end or to the end of this leadership. Raises: FirnError."""
        decode: Decode = decode_batches
        at_once_bytes = REPLAY_READ_BYTES
        if self._bulk is not None and log.record_count >= BULK_RECORDS:
            decode = await self._bulk.decoder()
            at_once_bytes = self._bulk.read_bytes
        portion = Portion()
        async for data in log.read_all(reads=self._reads, at_once_bytes=at_once_bytes):
            for batch in decode(data):
                if self._seats.get(seat.partition) is not seat:
                    return
                shard.load(batch)
                await portion.rest_if_spent()

    def _tell_of_loss(self, seat: _Seat[S]) -> None:
        """This is the first leadership after the log may have lost its end (J46j)."""
        self._lost_ends.value += 1
        self._log_line(
            Event.COORDINATOR_RECORDS_LOST.line(
                f"{self.topic.name}-{seat.partition} may lack its newest records, because no replica that has them all could lead:"
                f" {LOST[self.topic.name]}",
                topic=self.topic.name,
                partition=int(seat.partition),
            )
        )

    def _activate(self, seat: _Seat[S], shard: S) -> None:
        seat.state = ShardState.ACTIVE
        self._seats_changed.wake()
        shard.loaded(_Turn(self, seat, self._clock.now_ms()))
        self._after(seat)

    def _load_later(self, seat: _Seat[S], delay_s: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_s)
            if self._seats.get(seat.partition) is seat and seat.shard is None:
                self._load_soon(seat)

        if self._tasks is not None:
            self._tasks.create_task(wait())
