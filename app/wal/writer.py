"""From appended batches to acknowledged records: the writer of one write-ahead log (ADR 0037, J1 to J8, J14, J18).

Batches wait in a buffer. ``cut`` takes the oldest of them into the next numbered object, and the shell puts that. At most
``WINDOW`` numbers are on their way. Outcomes come in any order; objects are acknowledged in the order of their numbers.

    lead ── append ── cut ──► Put ──┬─ written ─────────────► acknowledged, once all before it are
                              ▲     ├─ exists ──► ReadBack ──┬─ own nonce ──► as written
                              │     │                        ├─ a seal ─────► the log has ended there
                              └─────┴─ undecided ◄───────────┴─ missing, undecided

The writer is pure: time is an argument, and outcomes are reported. It never gives a number up (J3): the shell repeats what is asked
until the outcome is known, or the process ends.

An object ends when it has ``wal.bytes`` of records, or as much footer: the states of many partitions with many producers
would else make a footer that no reader takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from app.core.errors import CorruptionError, ErrorCode, FencedError, RequestRejected
from app.core.limits import (
    MIB,
    REQUEST_BYTES_MAX,
    WAL_FOOTER_BYTES_MAX,
    WAL_OBJECT_BYTES_MAX,
    WAL_STATE_BYTES_MAX,
)
from app.core.units import NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs, TopicIdPartition
from app.metadata.image.wal_ranges import WalId
from app.metadata.log.append_attempt import BACKOFF_FIRST_S, BACKOFF_MAX_S, PutOutcome, ReadOutcome
from app.wal.format import (
    BATCH_FOOTER_BYTES,
    SECTION_FOOTER_BYTES,
    STATE_NUMBERS_MAX,
    WINDOW,
    BatchFields,
    PartitionState,
    SectionDraft,
    WalFooter,
    encode_state,
    write_object,
)

OBJECT_BYTES: Final = 8 * MIB
"""Default of wal.bytes."""

BUFFER_BYTES: Final = 2 * (WINDOW + 1) * OBJECT_BYTES
"""Default of wal.buffer.bytes: a full window, and as much waiting."""

CORRUPT_READS: Final = 5
"""So many times in a row an own object may be read back with wrong bytes: the transfer may be damaged, and not the object."""

OBJECT_BYTES_MAX: Final = 64 * MIB
"""Largest wal.bytes. With the longest batch and the longest footer after it, an object is still no longer than readers allow."""

FOOTER_BYTES_MIN: Final = 8 * MIB
FOOTER_BYTES_MAX: Final = 32 * MIB
"""An object takes no further batch that would make its footer longer than wal.bytes, within these limits. A longer state is alone
in its object."""

# The limit of readers. A MiB is for the lineage, and for sections and batches beside a long state.
assert max(FOOTER_BYTES_MAX, WAL_STATE_BYTES_MAX + MIB) + MIB <= WAL_FOOTER_BYTES_MAX
assert max(OBJECT_BYTES_MAX, REQUEST_BYTES_MAX) + WAL_FOOTER_BYTES_MAX <= WAL_OBJECT_BYTES_MAX

WAITING_BYTES: Final = 500
"""Memory of a waiting batch besides its bytes. Small batches would else take several times as much as they count."""

STATE_EVERY: Final = 32
"""After so many numbers a partition's state is taken again. The batches that wait then take at most
``STATE_NUMBERS_MAX - STATE_EVERY`` objects more."""


def buffer_bytes_max(object_bytes: int, footer_bytes: int = FOOTER_BYTES_MIN) -> int:
    """The largest buffer for objects of this size.

    Two neighbouring objects have more than one object's records, or more than one object's footer. So the batches that wait take at
    most twice as many objects as fill the buffer either way, and none of them comes to lie too far from its state (J37).
    """
    objects = (STATE_NUMBERS_MAX - STATE_EVERY) // 2 - 2
    return objects * object_bytes * footer_bytes // (object_bytes + footer_bytes)


class Put(NamedTuple):
    """Put the bytes of that number, if absent, after ``delay_s``."""

    number: int
    delay_s: float


class ReadBack(NamedTuple):
    """Read the footer of that number after ``delay_s``."""

    number: int
    delay_s: float


class Done(NamedTuple):
    """Nothing is left to do about that number."""

    number: int


Action: TypeAlias = Put | ReadBack | Done


class DurableSection(NamedTuple):
    """A section of an acknowledged object."""

    partition: TopicIdPartition
    end_offset: Offset
    state_number: int
    leader_epoch: LeaderEpoch
    """Of the leadership that wrote it. A later one of the same partition has another log end: this section says nothing of it."""


class DurableObject(NamedTuple):
    """An object that counts: it is durable, and so are all before it (J5)."""

    number: int
    size_bytes: int
    sections: tuple[DurableSection, ...]


class _Waiting(NamedTuple):
    partition: TopicIdPartition
    data: bytes
    fields: BatchFields
    state: bytes | None
    due_ms: int
    led: _LedLog


class _InFlight:
    __slots__ = ("corrupt", "data", "durable", "failures", "nonce", "sections")

    def __init__(self, data: bytes, nonce: bytes, sections: tuple[DurableSection, ...]) -> None:
        self.data = data
        self.nonce = nonce
        self.sections = sections
        self.durable = False
        self.failures = 0
        self.corrupt = 0
        """Reads in a row that gave wrong bytes."""


class _LedLog:
    __slots__ = (
        "above_epoch",
        "end_offset",
        "last_number",
        "leader_epoch",
        "state_number",
        "state_waits",
        "stopped",
        "waiting",
    )

    def __init__(self, above_epoch: int) -> None:
        self.above_epoch = above_epoch
        """Batches of this leader epoch were dropped: a batch after them must be of a later one, or the log would have a hole."""
        self.leader_epoch = -1
        self.end_offset = -1
        """Of the last batch; -1 before the first one."""
        self.last_number = -1
        self.state_number = -1
        """-1: the first section of this leadership needs the state."""
        self.state_waits = False
        """Whether a batch in the buffer brings it."""
        self.waiting = 0
        """Batches in the buffer."""
        self.stopped = False


class WalWriter:
    """Belongs to one process under one broker epoch."""

    def __init__(
        self,
        wal: WalId,
        *,
        new_nonce: Callable[[], bytes],
        object_bytes: int = OBJECT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        window: int = WINDOW,
        footer_bytes: int | None = None,
        waiting_bytes: int = WAITING_BYTES,
    ) -> None:
        """``object_bytes``, ``buffer_bytes``: wal.bytes and wal.buffer.bytes; more than ``OBJECT_BYTES_MAX`` and
        ``buffer_bytes_max`` allow counts as these. ``footer_bytes``, ``waiting_bytes``: as the constants say; tests have smaller
        ones."""
        object_bytes = min(object_bytes, OBJECT_BYTES_MAX)
        if footer_bytes is None:
            footer_bytes = min(max(object_bytes, FOOTER_BYTES_MIN), FOOTER_BYTES_MAX)
        assert footer_bytes <= FOOTER_BYTES_MAX, footer_bytes
        buffer_bytes = min(buffer_bytes, buffer_bytes_max(object_bytes, footer_bytes))
        self.wal = wal
        self.next_number = 0
        """The first number that was not begun: for the broker's heartbeats (J19)."""
        self.durable_end = 0
        """D: every object below is durable."""
        self.sealed_at: int | None = None
        """The number at which another process has ended this log (J14)."""
        self._new_nonce = new_nonce
        self._object_bytes = object_bytes
        self._buffer_bytes = buffer_bytes
        self._window = window
        self._footer_bytes = footer_bytes
        self._each_bytes = waiting_bytes
        self._led: dict[TopicIdPartition, _LedLog] = {}
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        """Of records."""
        self._state_bytes = 0
        """Of states that wait."""
        self._dues: deque[tuple[int, int]] = deque()
        """(when it is due, count of batches before it) of each waiting batch that is due before all later ones; both rise."""
        self._appended = self._taken = 0
        """Batches so far."""
        self._hurried = 0
        """Waiting batches of stopped partitions."""
        self._forgotten = False
        """Whether batches of leaderships that have ended may be among those that wait."""
        self._in_flight: dict[int, _InFlight] = {}
        self._in_flight_bytes = 0
        self._acknowledged: list[DurableObject] = []

    # --- partitions -----------------------------------------------------------------------------------------------------

    def lead(self, partition: TopicIdPartition) -> None:
        """This broker begins to lead a partition, or begins to write it to this log.

        An earlier leadership that was not forgotten is forgotten now; the new one then has a higher leader epoch.
        """
        before = self._led.get(partition)
        self.forget(partition)
        self._led[partition] = _LedLog(before.leader_epoch if before is not None and before.waiting else -1)

    def stop(self, partition: TopicIdPartition) -> None:
        """The partition takes no more batches in this leadership, and waiting batches are cut at once (J18)."""
        led = self._led.get(partition)
        if led is not None and not led.stopped:
            led.stopped = True
            self._hurried += led.waiting

    def last_number_if_flushed(self, partition: TopicIdPartition) -> int | None:
        """The last number with records of a stopped partition, once all of them are acknowledged: for the release (J18).

        Returns: None if something is still on its way; -1 if there were no records.
        """
        led = self._led[partition]
        assert led.stopped, partition
        return None if led.waiting or led.last_number >= self.durable_end else led.last_number

    def resume(self, partition: TopicIdPartition) -> None:
        """The partition takes batches again, in the same leadership, and its records are in the same range.

        Only if the release was never asked for, as it could not be flushed; or once an image with a higher partition epoch shows
        that this broker leads on, in the same leader epoch, so that its request is refused for good (J18).
        """
        led = self._led[partition]
        if led.stopped:
            led.stopped = False
            self._hurried -= led.waiting

    def forget(self, partition: TopicIdPartition) -> None:
        """An image says that the leadership is over, or the partition is gone.

        Its batches that wait have no number, so they never were anywhere, and they are dropped (J3). Those on their way stay on
        their way; ``DurableSection.leader_epoch`` names their leadership.
        """
        led = self._led.pop(partition, None)
        if led is not None and led.waiting:
            self._forgotten = True

    def _drop_forgotten(self) -> None:
        """Once for any number of leaderships that have ended meanwhile."""
        self._forgotten = False
        waiting, self._waiting = self._waiting, deque()
        self._taken = self._appended
        self._waiting_bytes = self._state_bytes = self._hurried = 0
        self._dues.clear()
        for batch in waiting:
            if self._led.get(batch.partition) is batch.led:
                self._wait(batch)
                self._hurried += batch.led.stopped

    def _wait(self, batch: _Waiting) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += len(batch.data)
        if batch.state is not None:
            self._state_bytes += len(batch.state)
        dues, due_ms = self._dues, batch.due_ms
        while dues and dues[-1][0] >= due_ms:
            dues.pop()
        dues.append((due_ms, self._appended))
        self._appended += 1

    # --- appending ------------------------------------------------------------------------------------------------------

    def check_room(self, partition: TopicIdPartition, size_bytes: int, batches: int = 1) -> None:
        """Whether so many batches may be appended to the local log now, so that ``append`` takes all of them (J7).

        A single batch longer than the buffer is taken when the buffer is empty. Several batches are not.
        Raises: RequestRejected NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS; FencedError.
        """
        if self.sealed_at is not None:
            raise FencedError(f"Write-ahead log {self.wal} was sealed at {self.sealed_at}: another broker goes on.")
        led = self._led.get(partition)
        if led is None or led.stopped:
            raise RequestRejected(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"This broker has given {partition} up, or does not lead it yet."
            )
        held = self.held_bytes
        if (held or batches > 1) and held + size_bytes + (batches - 1) * self._each_bytes > self._buffer_bytes:
            raise RequestRejected(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{held} bytes wait for the object store, wal.buffer.bytes is {self._buffer_bytes}: try again later.",
            )

    @property
    def buffer_bytes(self) -> int:
        """``wal.buffer.bytes``, as far as it is used."""
        return self._buffer_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes in memory: of batches that wait, with Python's overhead and their states, and of objects that are not
        acknowledged. One state may come on top of ``wal.buffer.bytes``, as ``check_room`` does not know of it."""
        if self._forgotten:
            self._drop_forgotten()
        waiting_bytes = self._waiting_bytes + self._state_bytes + self._each_bytes * len(self._waiting)
        return waiting_bytes + self._in_flight_bytes

    def wants_state(self, partition: TopicIdPartition) -> bool:
        """Whether the next ``append`` of the partition is to bring the log's state as of before it (J28, J37)."""
        led = self._led[partition]
        return not led.state_waits and (led.state_number < 0 or self.next_number - led.state_number >= STATE_EVERY)

    def append(
        self,
        partition: TopicIdPartition,
        data: bytes,
        fields: BatchFields,
        *,
        now_ms: int,
        linger_ms: int,
        state: PartitionState | None = None,
    ) -> None:
        """One batch that was appended to the local log in this turn of the loop. ``check_room`` has said yes to it.

        ``data`` is kept and must not change. ``state`` is given if ``wants_state``.
        """
        led = self._led[partition]
        assert not led.stopped, partition
        assert self.sealed_at is None, self.sealed_at
        assert state is None or state.offset == fields.base_offset, (state, fields)
        assert led.state_number >= 0 or led.state_waits or state is not None, partition
        assert len(data) == fields.size_bytes, fields
        assert fields.base_offset == led.end_offset or (led.end_offset < 0 and fields.leader_epoch > led.above_epoch), (
            fields
        )
        encoded = None
        if state is not None:
            assert not led.state_waits, partition
            encoded = encode_state(state)
            assert len(encoded) <= WAL_STATE_BYTES_MAX + MIB, len(encoded)
            led.state_waits = True
        led.waiting += 1
        led.leader_epoch = fields.leader_epoch
        led.end_offset = fields.end_offset
        self._wait(_Waiting(partition, data, fields, encoded, now_ms + linger_ms, led))

    # --- objects --------------------------------------------------------------------------------------------------------

    @property
    def window_is_open(self) -> bool:
        """Whether the next number may be begun (J4)."""
        return self.next_number < self.durable_end + self._window

    @property
    def cut_ms(self) -> int | None:
        """When ``cut`` has an object: now or earlier if it is not above the clock; None while nothing waits, or until an outcome
        is told."""
        if self._forgotten:
            self._drop_forgotten()
        if not self._waiting or not self.window_is_open or self.sealed_at is not None:
            return None
        if self._hurried or self._waiting_bytes >= self._object_bytes or self._state_bytes >= self._footer_bytes:
            return -1
        return self._dues[0][0]

    def cut(self, now_ms: int, created_ms: TimestampMs = NO_TIMESTAMP) -> Put | None:
        """Begin the next object with the oldest batches, if it is time (J6, J8). ``created_ms``: wall-clock time, for people.

        The work is linear in the size of the object, not of the buffer. Nothing has changed if this raises.
        Returns: its put; None if it is not time.
        """
        cut_ms = self.cut_ms
        if cut_ms is None or cut_ms > now_ms:
            return None
        number = self.next_number
        taken = self._oldest()
        drafts = [self._draft(partition, batches, number) for partition, batches in taken.items()]
        nonce = self._new_nonce()
        data = write_object(self.wal, number, nonce, created_ms, drafts)
        sections = tuple(
            DurableSection(each.partition, each.batches[-1].end_offset, each.state_number, each.batches[0].leader_epoch)
            for each in drafts
        )
        self._take(taken, number)
        self._in_flight[number] = _InFlight(data, nonce, sections)
        self._in_flight_bytes += len(data)
        self.next_number += 1
        return Put(number, 0.0)

    def _oldest(self) -> dict[TopicIdPartition, list[_Waiting]]:
        """The batches of the next object, by partition: at least one."""
        taken: dict[TopicIdPartition, list[_Waiting]] = {}
        size = footer = 0
        for batch in self._waiting:
            size += len(batch.data)
            footer += BATCH_FOOTER_BYTES + (0 if batch.state is None else len(batch.state))
            of_partition = taken.get(batch.partition)
            if of_partition is None:
                footer += SECTION_FOOTER_BYTES
            if taken and (size > self._object_bytes or footer > self._footer_bytes):
                break
            if of_partition is None:
                taken[batch.partition] = [batch]
            else:
                of_partition.append(batch)
        return taken

    def _draft(self, partition: TopicIdPartition, batches: Sequence[_Waiting], number: int) -> SectionDraft:
        led = batches[0].led
        assert batches[-1].led is led, partition
        # A state that comes with a later batch is for later sections: this one begins before it, and names the one before (J37).
        state_number = led.state_number if batches[0].state is None else number
        assert max(0, number - STATE_NUMBERS_MAX) <= state_number, (number, state_number)
        state = next((batch.state for batch in batches if batch.state is not None), None) if led.state_waits else None
        return SectionDraft(
            partition, [batch.data for batch in batches], [batch.fields for batch in batches], state_number, state
        )

    def _take(self, taken: Mapping[TopicIdPartition, Sequence[_Waiting]], number: int) -> None:
        """The batches are in object ``number``, and wait no more."""
        for batches in taken.values():
            led = batches[0].led
            led.waiting -= len(batches)
            led.last_number = number
            if led.stopped:
                self._hurried -= len(batches)
            for _ in batches:
                batch = self._waiting.popleft()
                self._waiting_bytes -= len(batch.data)
                if batch.state is not None:
                    self._state_bytes -= len(batch.state)
                    batch.led.state_number, batch.led.state_waits = number, False
                self._taken += 1
        while self._dues and self._dues[0][1] < self._taken:
            self._dues.popleft()

    def bytes_of(self, number: int) -> bytes:
        """The bytes to put under that number: the same at every call (J2)."""
        return self._in_flight[number].data

    # --- outcomes -------------------------------------------------------------------------------------------------------

    def on_put(self, number: int, outcome: PutOutcome) -> Action:
        """The action after a put."""
        if outcome is PutOutcome.WRITTEN:
            return self._durable(number)
        if outcome is PutOutcome.EXISTS:
            return ReadBack(number, 0.0)
        return Put(number, self._delay_s(number))

    def on_read(self, number: int, outcome: WalFooter | ReadOutcome) -> Action:
        """The action after an object was read back (J2, J14).

        Raises: FencedError if another process writes this log; CorruptionError if the object is damaged whenever it is read.
        """
        flight = self._in_flight[number]
        flight.corrupt = flight.corrupt + 1 if outcome is ReadOutcome.CORRUPT else 0
        if flight.corrupt >= CORRUPT_READS:
            raise CorruptionError(
                f"Object {number} of write-ahead log {self.wal} was read back {flight.corrupt} times, and each time its bytes were "
                "not what was written."
            )
        if outcome is ReadOutcome.MISSING:
            return Put(number, self._delay_s(number))
        if isinstance(outcome, ReadOutcome):
            return ReadBack(number, self._delay_s(number))
        if outcome.nonce == flight.nonce:
            return self._durable(number)
        if not outcome.is_seal:
            raise FencedError(f"Object {number} of write-ahead log {self.wal} is not what this process has put there.")
        return self._ended(number)

    def _ended(self, number: int) -> Action:
        """No number from here on counts. Those below may still turn out to be durable: the seal came after them (J9)."""
        assert number >= self.durable_end, (number, self.durable_end)
        self.sealed_at = number if self.sealed_at is None else min(self.sealed_at, number)
        self._waiting.clear()
        self._dues.clear()
        self._waiting_bytes = self._state_bytes = 0
        for gone in [each for each in self._in_flight if each >= self.sealed_at]:
            self._in_flight_bytes -= len(self._in_flight.pop(gone).data)
        return Done(number)

    def wants(self, number: int) -> bool:
        """Whether an outcome of that number still matters."""
        return number in self._in_flight

    def _durable(self, number: int) -> Done:
        self._in_flight[number].durable = True
        while (found := self._in_flight.get(self.durable_end)) is not None and found.durable:
            del self._in_flight[self.durable_end]
            self._in_flight_bytes -= len(found.data)
            self._acknowledged.append(DurableObject(self.durable_end, len(found.data), found.sections))
            self.durable_end += 1
        return Done(number)

    def begin_trim(self, end: int) -> int:
        """Up to where objects may be deleted now, if no partition needs those below ``end`` (J32, J37).

        A partition whose batches are on their way may name its state object in them. Others bring their state anew if theirs is
        among the deleted.
        """
        for flight in self._in_flight.values():
            end = min([end, *(section.state_number for section in flight.sections)])
        for led in self._led.values():
            if led.waiting and led.state_number >= 0:
                end = min(end, led.state_number)
        for led in self._led.values():
            if led.state_number < end:
                led.state_number = -1
        return end

    def take_acknowledged(self) -> list[DurableObject]:
        """Objects that count since the last call, in the order of their numbers."""
        taken, self._acknowledged = self._acknowledged, []
        return taken

    def _delay_s(self, number: int) -> float:
        flight = self._in_flight[number]
        delay_s = min(BACKOFF_FIRST_S * 2 ** min(flight.failures, 10), BACKOFF_MAX_S)
        flight.failures += 1
        return float(delay_s)
