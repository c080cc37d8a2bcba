"""The primitive of every durable decision: a log whose entries are objects that are put if absent.

``NumberedLog`` follows such a log, and appends to it after a seal. ``append_attempt.py`` decides the steps of an append, and
``log_format.py`` defines the bytes. This module is the asynchronous shell and its state.

**The writer.** A *seal* is an entry without records that names its writer in its header. The writer of the last seal is the
log's writer. A deleted number can be put again, so seals are never deleted: the next number of a replaced writer is always its
successor's seal, however long the old writer slept.

**Late seals.** A writer that has fallen behind may put its seal on a number that was written and deleted. So it LISTs greater
numbers before it trusts its seal. Compaction always leaves something greater than the entries that it deletes, so if there is
nothing, the number was never written. A seal on a deleted number stays where it is, and so does a seal whose writer died before
its LIST. Every entry names the nonce of the previous entry, and so others see that such a seal is not part of the log. If an
entry does not follow from the last applied one, a reader reloads the snapshot. Seals have no records, so the reader has shown
nothing wrong before.

**Compaction.** A snapshot at S has the newest record of every key after entry S. When it is durable, entries below the snapshot
*before* it are deleted, except seals (numbers are dense, so no LIST is needed). Snapshots older than that one are deleted too.
Two snapshots always stay, so that a reader that has just listed one can still get it.

**Order of effects.** ``state`` changes only when an entry is known to be durable, in number order, and between two awaits. So every
visible state may be returned to any caller. A long entry is encoded, decoded and applied in portions (ADR 0039). The state builds
the next state beside, and its last step replaces the present one. The log's lock is held meanwhile, so nothing is applied between.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Generic, Protocol, TypeAlias, TypeVar, assert_never, runtime_checkable

from app.core.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    FirnError,
    StorageUnavailable,
    clause,
    copy_of,
    without_frames,
)
from app.core.seams import Clock
from app.core.turns import Portion, Steps, run, slices, whole
from app.core.units import LogSequence
from app.metadata.log import layout
from app.metadata.log.append_attempt import (
    AppendAttempt,
    GiveUp,
    Lost,
    Ours,
    Put,
    PutOutcome,
    ReadBack,
    ReadOutcome,
)
from app.metadata.log.log_format import (
    APPLICATION_KIND_MIN,
    NO_NONCE,
    NO_WRITER,
    NONCE_BYTES,
    NOTHING_APPLIED,
    SNAPSHOT_BATCH_BYTES,
    WRITER_KEY,
    Entry,
    KeyValue,
    Proof,
    SnapshotHeader,
    SnapshotReader,
    Writer,
    counted,
    decode_entry,
    decode_key,
    decode_proven,
    encode_entry,
    encode_value,
    iter_snapshot,
    proven,
    writer_value,
)
from app.metadata.log.log_proofs import NO_MARK, Checker, Mark, Proofs, Untrusted
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore

T = TypeVar("T")

LIST_PAGE_KEYS = 1000
"""Keys of one LIST: S3's page."""

DELETE_PAGE_KEYS = 1000
"""Keys of one delete request: S3's maximum."""

READS_AT_ONCE = 64
"""Entries fetched at the same time."""

RECENT_ENTRIES_MAX = 1024
RECENT_BYTES_MAX = 8 * 1024 * 1024
"""Own entries that are kept to be handed on. Brokers that are further behind read the bucket."""

LONG_RECORDS_MIN = 200
"""Records from which on an entry is applied in steps: about 1 ms."""
LONG_BYTES_MIN = 16 * 1024
"""Bytes from which on an entry is decoded in steps."""

RELOADS_MAX = 8
"""Maximum restarts of a load because of concurrent compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTimings:
    """Bounds of the waits, in seconds of loop time."""

    append_deadline_s: float = 30.0
    """Deadline of an undecided append. After it we are no longer the writer."""
    attempt_timeout_s: float = 10.0
    """Deadline of one request."""
    read_deadline_s: float = 30.0
    """Deadline of one read with its retries."""


class LogState(Protocol):
    """The user's state of a numbered log. All methods are synchronous, and are called in number order."""

    def load(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Add a part of a snapshot. Called only on a new state, any number of times. Raises: CorruptionError."""
        ...

    def loaded(self, sequence: LogSequence) -> None:
        """The snapshot up to entry ``sequence`` is complete: check it, and make it usable. Raises: CorruptionError."""
        ...

    def apply(self, entry: Entry) -> None:
        """Apply one durable entry completely, or raise and apply nothing. Raises: CorruptionError."""
        ...


@runtime_checkable
class LongState(LogState, Protocol):
    """A state whose entries may have thousands of records. It applies an entry in steps, and shows it with the last one."""

    def loading_ends(self, sequence: LogSequence) -> Steps[None]:
        """As ``loaded``, in steps."""
        ...

    def applying(self, entry: Entry) -> Steps[None]:
        """As ``apply``, in steps. A caller that gives them up has applied nothing."""
        ...


S = TypeVar("S", bound=LogState)
_Checked: TypeAlias = tuple[Entry, Mark]
"""An entry whose proof was checked, and the mark of the proof."""


class _Moved(Exception):
    """A listed object no longer exists, or a number is missing: start again."""


@dataclass(slots=True)
class _Position(Generic[S]):
    """The known state of the log up to an entry. A reload replaces it as a whole."""

    state: S
    live: dict[bytes, bytes]
    applied: LogSequence
    nonce: bytes
    """Nonce of the entry ``applied``."""
    writer: Writer
    seals: list[int]
    """Every seal in [deleted_end, applied]."""
    deleted_end: int
    snapshot_sequence: int
    """Newest known snapshot object; -1 if none."""
    broken: bool = False
    """Whether the state refused an entry halfway. Then it must be loaded again first."""
    listed: Sequence[int] = ()
    """Number of entries after the snapshot that a load has found."""
    marks: frozenset[Mark] = frozenset()
    """Of the proofs of the newest snapshot and of all entries after it."""


class NumberedLog(Generic[S]):
    """One numbered log that is followed and may be written. Belongs to one event loop. Its methods may be called at any time,
    and wait for each other."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        writer_id: str,
        rng: random.Random,
        clock: Clock,
        new_state: Callable[[], S],
        epoch: int = 0,
        timings: LogTimings | None = None,
        proofs: Proofs | None = None,
        urgent: bool = False,
    ) -> None:
        """``writer_id`` must be new for every start of a process. ``epoch`` orders writers that something else chooses (a
        leader epoch): a writer with a lower epoch than the newest seal's never seals. ``proofs``: makes
        the proofs of written entries and snapshots, and checks those of read ones (ADR 0036). With None, none are written or
        demanded. ``urgent``: its long work does not wait for that of others; only one log of a process may be."""
        self.prefix = prefix
        self.writer_id = writer_id
        self.epoch = epoch
        self._store = store
        self._rng = rng
        self._clock = clock
        self._new_state = new_state
        self._timings = timings if timings is not None else LogTimings()
        self._urgent = urgent
        self._turn = asyncio.Lock()
        self._at = self._empty()
        self._sealed = False
        self._ever_sealed = False
        self._offered = NOTHING_APPLIED
        """Highest number under which we have sent an entry."""
        self._failure = ""
        """Why the last attempt of a write is undecided, for people."""
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0
        self._on_entry: Callable[[], None] | None = None
        self._proofs = proofs
        self.on_untrusted: Callable[[Untrusted], None] | None = None
        """Told when the store has an object that does not prove where it comes from."""
        self.on_written: Callable[[LogSequence, bytes], None] | None = None
        """Gets number and bytes of every entry that we wrote, once it is applied."""

    # --- the applied log --------------------------------------------------------------------------------------------

    @property
    def state(self) -> S:
        """The user's state at the last applied entry. A reload replaces the object."""
        return self._at.state

    @property
    def live(self) -> Mapping[bytes, bytes]:
        """Newest record of every live key, at the last applied entry."""
        return self._at.live

    @property
    def next_sequence(self) -> LogSequence:
        """Number of the first entry that is not applied yet."""
        return LogSequence(self._at.applied + 1)

    @property
    def writer(self) -> Writer:
        """The writer of the last applied seal."""
        return self._at.writer

    @property
    def is_writer(self) -> bool:
        """Whether an append may be tried without a new seal."""
        return self._sealed

    @property
    def end_is_known(self) -> bool:
        """Whether no undecided append of ours is left."""
        return self._offered <= self._at.applied and not self._at.broken

    @property
    def snapshot_due(self) -> bool:
        """Whether a new snapshot is due: too many entries follow the newest one, compared with the number of live records; or the
        proofs are to be others (K6)."""
        at = self._at
        return at.applied - at.snapshot_sequence >= max(64, len(at.live) // 16) or self.proofs_differ

    @property
    def has_key(self) -> bool:
        """Whether this log has a key to prove its writers."""
        return self._proofs is not None and self._proofs.mark is not None

    @property
    def proofs_differ(self) -> bool:
        """Whether the newest snapshot, or an entry after it, has another proof than this broker would give it."""
        mark = None if self._proofs is None else self._proofs.mark
        return mark is not None and not self._at.marks <= {mark}

    # --- reading ----------------------------------------------------------------------------------------------------

    async def load(self, cached: bytes | None = None, listed: Sequence[str] | None = None) -> bool:
        """Load the log up to its end: from ``cached`` (bytes of ``to_cache``) if it is sound, else from the newest snapshot.

        ``listed``: every key below the prefix, from a LIST of the caller for many logs at once. The log's end is then the end
        at that LIST. Costs one LIST unless ``listed`` is given, one GET for a snapshot, and one GET for each later entry. With
        a cached copy it costs only the entries that the copy lacks.
        Returns: whether the cached copy was used. Raises: StorageUnavailable, CorruptionError; then the known state is unchanged.
        """
        async with self._turn:
            with self._distrusting():
                return await self._load(cached, listed)

    async def _load(self, cached: bytes | None, listed: Sequence[str] | None) -> bool:
        if cached is not None:
            try:
                at = await self._decode_snapshot("the cached copy", cached, is_cache=True)
            except CorruptionError:
                # The copy only saves time; the bucket has everything.
                at = None
            if at is not None:
                self._move_to(at)
                await self._catch_up(listed)
                return True
        await self._reload(listed)
        return False

    async def restore(self, cached: bytes | None, end: int) -> bool:
        """Load the log up to ``end``, the number of the first missing entry, from a cached copy alone. No request.

        Returns: whether that was possible; if not, nothing has changed. None is the copy of a log without entries.
        """
        async with self._turn:
            try:
                at = (
                    self._empty()
                    if cached is None
                    else await self._decode_snapshot("the cached copy", cached, is_cache=True)
                )
            except CorruptionError:
                return False
            if at.applied + 1 != end:
                return False
            self._move_to(at)
            return True

    async def adopt(self, cached: bytes) -> bool:
        """Take over the state of a cached copy, however old it is. No request. Returns: whether the copy is sound."""
        async with self._turn:
            try:
                self._move_to(await self._decode_snapshot("the cached copy", cached, is_cache=True))
            except CorruptionError:
                return False
            return True

    async def is_anything_under(self, prefix: str) -> bool:
        """Whether the store has an object whose key begins with ``prefix``. Retries like a read of the log. One LIST.

        Raises: StorageUnavailable.
        """
        return bool(await self._retried(prefix, lambda: self._store.list_objects(prefix, limit=1)))

    async def poll(self) -> bool:
        """Apply new entries. One LIST if there are none.

        Returns whether anything changed.
        Raises: StorageUnavailable, CorruptionError (entries before the bad one are applied).
        """
        async with self._turn:
            with self._distrusting():
                return await self._catch_up()

    @contextmanager
    def _distrusting(self) -> Iterator[None]:
        """Tell of an object that does not prove where it comes from."""
        try:
            yield
        except Untrusted as error:
            if self.on_untrusted is not None:
                self.on_untrusted(error)
            raise

    async def confirm(self) -> None:
        """Make sure that no other writer has gone on, if we are the writer. One GET if none has, since the next number of a
        replaced writer is its successor's seal.

        Raises: as ``poll``.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(self._timings.attempt_timeout_s):
                    await self._store.get(layout.entry_key(self.prefix, self.next_sequence))
            except ObjectMissing:
                return
            except TimeoutError:
                raise StorageUnavailable(f"{self.prefix} was not confirmed in time.") from None
            with self._distrusting():
                await self._catch_up()

    # --- handing on (ADR 0023, "Spreading the log") -----------------------------------------------------------------

    def on_own_entry(self, listener: Callable[[], None]) -> None:
        """Keep the bytes of own entries for ``recent`` from now on, and call ``listener`` after each."""
        self._on_entry = listener

    def recent(self, start: int, bytes_max: int) -> list[bytes] | None:
        """The bytes of the own entries from number ``start`` on, at least one; None if they are not all at hand."""
        recent = self._recent
        if not recent or not recent[0][0] <= start <= recent[-1][0]:
            return None  # also of an entry whose append stayed undecided, and that was read afterwards
        found: list[bytes] = []
        for sequence, body in recent:
            if sequence >= start:
                bytes_max -= len(body)
                if found and bytes_max < 0:
                    break
                found.append(body)
        return found

    async def take(self, sequence: int, body: bytes) -> bool:
        """Apply entry ``sequence`` from its bytes, which another broker has handed on; they are checked as if read from the store.

        Returns: whether it is applied now, or was before. If it is not the next one, or does not follow, ``poll`` reads the store
        and decides. Raises: CorruptionError.
        """
        async with self._turn:
            at = self._at
            if sequence <= at.applied:
                return True  # it was read from the store while its bytes were on the way
            if sequence > at.applied + 1:
                return False
            try:
                entry, mark = await self._decoded(sequence, body)
            except Untrusted:
                return False  # the bucket decides (K8)
            if at.broken or not self._follows(at, sequence, entry):
                return False
            await self._apply(at, entry, mark)
            return True

    def step_down(self) -> None:
        """Accept that another writer has taken over; we may seal again later, above its epoch."""
        self._sealed = self._ever_sealed = False

    def to_cache(self) -> bytes:
        """The known state as bytes for ``load`` after a restart. Takes time in proportion to the live records."""
        at = self._at
        return b"".join(iter_snapshot(self._snapshot_header(at), at.writer, at.live, self._clock.now_ms()))

    # --- writing ----------------------------------------------------------------------------------------------------

    async def append(self, expected_sequence: int, records: Sequence[KeyValue]) -> LogSequence:
        """Write the next entry. We must have sealed before.

        Returns: its number; the entry is durable and applied. Raises, with nothing written: ConflictError
        (``expected_sequence`` is not the next number, or another entry has it: poll, and validate again), FencedError (we are
        no longer the writer), LimitExceeded.
        Raises StorageUnavailable or CorruptionError if the append stayed undecided until the deadline. Then the entry may be
        written, or may still be written. We are no longer the writer, and may seal again.
        """
        async with self._turn:
            if not self._sealed:
                self.check_not_overtaken()
                raise ConflictError(f"{self.prefix} is not sealed by {self.writer_id}.")
            return await self._write(expected_sequence, records, is_seal=False)

    async def seal(self, expected_sequence: int) -> LogSequence:
        """Become the writer with the next entry. A PUT and a LIST.

        Raises: as ``append``; FencedError also if we were the writer and another has sealed since, or if a writer of a higher
        epoch has sealed.
        """
        async with self._turn:
            self.check_not_overtaken()
            return await self._write(expected_sequence, (), is_seal=True)

    def check_not_overtaken(self) -> None:
        """Check that we are the writer or may become it, by the known state. Raises: FencedError."""
        writer = self._at.writer
        if writer.writer_id == self.writer_id and writer.epoch <= self.epoch:
            return
        # Of the same process and a higher epoch: a broker that leads again has opened its manifest again.
        if self._ever_sealed and writer.writer_id != self.writer_id:
            raise FencedError(f"{writer.writer_id} has taken over {self.prefix} from {self.writer_id}.")
        if writer.epoch > self.epoch:
            raise FencedError(
                f"{writer.writer_id} writes {self.prefix} with epoch {writer.epoch}, which is above {self.epoch}."
            )

    async def snapshot(self) -> None:
        """Write a snapshot of the applied state, then delete superfluous objects. Any user of the log may call this at any time.

        Costs a PUT, a LIST and a delete or two. Raises: StorageUnavailable (try later; nothing is lost).
        """
        async with self._turn:
            if self._at.applied == NOTHING_APPLIED or self._at.applied == self._at.snapshot_sequence:
                return
            await self._write_snapshot()
            await self._compact()

    # --- reading, inside --------------------------------------------------------------------------------------------

    def _empty(self) -> _Position[S]:
        return _Position(self._new_state(), {}, NOTHING_APPLIED, NO_NONCE, NO_WRITER, [], 0, -1)

    async def _reload(self, listed: Sequence[str] | None = None) -> None:
        missing_before: tuple[int, int] | None = None
        for _ in range(RELOADS_MAX):
            at = await self._load_snapshot(listed)
            listed = None
            if at is None:
                continue
            try:
                await self._apply_all(at, at.listed)
            except _Moved:
                # Compaction only deletes entries that a newer snapshot covers: the same gap after the same snapshot is a loss.
                missing = (at.snapshot_sequence, at.applied + 1)
                if missing == missing_before:
                    key = layout.entry_key(self.prefix, at.applied + 1)
                    raise CorruptionError(f"{key} is missing, or does not follow the entry before it.") from None
                missing_before = missing
                continue
            if at.applied < self._at.applied:
                raise CorruptionError(
                    f"{layout.entry_key(self.prefix, self._at.applied)} was there, and now the log ends at {at.applied}."
                )
            self._move_to(at)
            return
        raise StorageUnavailable(f"{self.prefix} was compacted again and again while it was read.")

    async def _load_snapshot(self, listed: Sequence[str] | None) -> _Position[S] | None:
        """The newest snapshot as a new position, with the numbers of the later entries; None if it was just deleted."""
        found = await self._list(f"{self.prefix}/", "") if listed is None else listed
        full_page = listed is None and len(found) == LIST_PAGE_KEYS
        keys = [parsed for key in found if (parsed := layout.parse_numbered_key(key)) and parsed.prefix == self.prefix]
        if full_page:
            # More keys than one page: ask for the snapshots alone, then for the entries after the newest.
            snapshots = [key.sequence for key in await self._list_all(layout.snapshot_prefix(self.prefix), "")]
        else:
            snapshots = [key.sequence for key in keys if key.is_snapshot]
        newest = max(snapshots, default=NOTHING_APPLIED)
        if newest == NOTHING_APPLIED:
            at = self._empty()
        else:
            key = layout.snapshot_key(self.prefix, newest)
            try:
                at = await self._verified(key, lambda data: self._decode_snapshot(key, data, is_cache=False))
            except ObjectMissing:
                return None
            if at.applied != newest:
                raise CorruptionError(f"{key} is corrupt: it says inside that it ends at entry {at.applied}.")
            at.snapshot_sequence = newest
        if full_page:
            at.listed = await self._list_entries(at.applied + 1)
        else:
            at.listed = [key.sequence for key in keys if not key.is_snapshot and key.sequence > newest]
        return at

    async def _catch_up(self, listed: Sequence[str] | None = None) -> bool:
        """Apply later entries; with ``listed``, the later entries of this listing."""
        before = self._at.applied
        while True:
            at = self._at
            if at.broken:
                await self._reload()
                continue
            # List from the last applied entry on. If even this entry is missing, the store has lost acknowledged entries.
            start = max(at.applied, 0)
            entries = await self._list_entries(start) if listed is None else self._entries_among(listed, start)
            if entries and entries[0] == at.applied:
                del entries[0]
            elif not entries and at.applied != NOTHING_APPLIED:
                await self._reload()
            if not entries:
                break
            try:
                await self._apply_all(at, entries)
            except _Moved:
                await self._reload()
            if listed is not None:
                break
        return self._at.applied != before

    async def _apply_all(self, at: _Position[S], sequences: Sequence[int]) -> None:
        """Read and apply listed entries, which must continue where ``at`` ends. Raises: _Moved."""
        for start in range(0, len(sequences), READS_AT_ONCE):
            chunk = sequences[start : start + READS_AT_ONCE]
            fetched = await self._fetch_entries(chunk)
            portion = Portion(urgent=self._urgent)
            for sequence, data in zip(chunk, fetched, strict=True):
                found = None if data is None else await self._read_entry(sequence, data, portion)
                if found is None or not self._follows(at, sequence, found[0]):
                    raise _Moved
                await self._apply(at, *found)
                await portion.rest_if_spent()

    @staticmethod
    def _follows(at: _Position[S], sequence: int, entry: Entry) -> bool:
        return sequence == at.applied + 1 and entry.previous == at.nonce

    async def _fetch_entries(self, sequences: Sequence[int]) -> list[bytes | None]:
        """The bytes of entries, fetched at the same time; None for each that is missing. Raises: StorageUnavailable."""
        if len(sequences) == 1:
            return [await self._fetch_entry(sequences[0])]
        # Errors come back as values: a TaskGroup would wrap them, and cancel reads that are nearly done.
        outcomes: list[bytes | FirnError | None] = [None] * len(sequences)

        async def fetch(index: int, sequence: int) -> None:
            try:
                outcomes[index] = await self._fetch_entry(sequence)
            except FirnError as error:
                outcomes[index] = without_frames(error)

        async with asyncio.TaskGroup() as group:
            for index, sequence in enumerate(sequences):
                group.create_task(fetch(index, sequence))
        fetched: list[bytes | None] = []
        for outcome in outcomes:
            if isinstance(outcome, FirnError):
                raise copy_of(outcome)
            fetched.append(outcome)
        return fetched

    async def _fetch_entry(self, sequence: int) -> bytes | None:
        try:
            return await self._get(layout.entry_key(self.prefix, sequence))
        except ObjectMissing:
            return None

    async def _read_entry(self, sequence: int, data: bytes, portion: Portion) -> _Checked | None:
        """An entry of the bytes that were fetched. Bad bytes are read once more, because the transfer may have damaged them.

        Returns: None if it is missing by then. Raises: CorruptionError, StorageUnavailable.
        """
        try:
            return await self._decoded(sequence, data, portion)
        except CorruptionError:
            again = await self._fetch_entry(sequence)
        return None if again is None else await self._decoded(sequence, again, Portion(urgent=self._urgent))

    async def _decoded(self, sequence: int, data: bytes, portion: Portion | None = None) -> _Checked:
        """An entry of its bytes. Raises: CorruptionError, Untrusted among them."""
        steps = self._decoding(sequence, data)
        if len(data) < LONG_BYTES_MIN:
            return whole(steps)
        return await run(steps, Portion(urgent=self._urgent) if portion is None else portion)

    def _decoding(self, sequence: int, data: bytes) -> Steps[_Checked]:
        key = layout.entry_key(self.prefix, sequence)
        entry, header, proof = yield from decode_proven.steps(key, sequence, data)
        if self._proofs is None:
            return entry, NO_MARK
        checker = self._proofs.checker(key, proof, timestamp_ms=entry.timestamp_ms, header=header)
        yield from checker.adding(entry.records)
        return entry, checker.check()

    async def _apply(self, at: _Position[S], entry: Entry, mark: Mark) -> None:
        """Apply one entry, first to the user's state, because that may refuse it. The caller holds the lock: if it is cancelled,
        nothing of the entry is applied."""
        assert entry.sequence == at.applied + 1, (entry.sequence, at.applied)
        if not entry.is_seal and entry.writer_id != at.writer.writer_id:
            raise CorruptionError(
                f"{layout.entry_key(self.prefix, entry.sequence)} was written by {entry.writer_id!r}, but"
                f" {at.writer.writer_id!r} had sealed the log."
            )
        if entry.is_seal and entry.epoch < at.writer.epoch:
            raise CorruptionError(
                f"{layout.entry_key(self.prefix, entry.sequence)} seals with epoch {entry.epoch} after {at.writer.epoch}."
            )
        try:
            if len(entry.records) >= LONG_RECORDS_MIN and isinstance(at.state, LongState):
                await run(at.state.applying(entry), Portion(urgent=self._urgent))
            else:
                at.state.apply(entry)
        except CorruptionError as error:
            at.broken = True
            raise CorruptionError(f"{layout.entry_key(self.prefix, entry.sequence)}: {clause(error)}.") from None
        for key, value in entry.records:
            if value is None:
                at.live.pop(key, None)
            else:
                at.live[key] = value
        if entry.is_seal:
            at.writer = Writer(entry.writer_id, entry.epoch, entry.sequence)
            at.seals.append(entry.sequence)
        at.applied = entry.sequence
        at.nonce = entry.nonce
        if at is self._at:
            self._notice_overtaking()
        if self._proofs is not None:
            at.marks |= {mark}

    async def _decode_snapshot(self, name: str, data: bytes, *, is_cache: bool) -> _Position[S]:
        at = self._empty()
        reader = SnapshotReader(name, data)
        checker: Checker | None = None
        for records in reader:
            if self._proofs is not None and not is_cache:
                if checker is None:
                    start = reader.start
                    assert start is not None
                    bare = encode_value(start.header)
                    checker = self._proofs.checker(name, start.proof, timestamp_ms=0, header=bare)
                    checker.add_all([(WRITER_KEY, start.writer_value)])
                checker.add_all(records)
            try:
                at.state.load(records)
            except CorruptionError as error:
                raise CorruptionError(f"{name}: {clause(error)}.") from None
            at.live.update(records)
            await asyncio.sleep(0)
        assert reader.start is not None
        header, writer = reader.start.header, reader.start.writer
        if checker is not None:
            at.marks = frozenset({checker.check()})
        at.applied = LogSequence(header.sequence)
        if isinstance(at.state, LongState):
            await run(at.state.loading_ends(at.applied), Portion(urgent=self._urgent))
        else:
            at.state.loaded(at.applied)
        at.nonce = header.nonce
        at.writer = writer
        at.seals = header.seals
        at.deleted_end = header.deleted_end
        at.snapshot_sequence = header.snapshot_sequence if is_cache else header.sequence
        return at

    # --- writing, inside --------------------------------------------------------------------------------------------

    def _move_to(self, at: _Position[S]) -> None:
        self._at = at
        self._notice_overtaking()

    def _notice_overtaking(self) -> None:
        """Give up the right to append once the known state has another writer's seal. Called wherever the known state changes, and
        not after a read: a read that fails or is cancelled may have applied such a seal."""
        if self._sealed and self._at.writer.writer_id != self.writer_id:
            self._sealed = False

    async def _write(self, expected_sequence: int, records: Sequence[KeyValue], *, is_seal: bool) -> LogSequence:
        sequence = self.next_sequence
        if self._at.broken:
            raise ConflictError(f"{self.prefix} must be read again.")
        if expected_sequence != sequence:
            raise ConflictError(f"{self.prefix} goes on at {sequence}, not {expected_sequence}.")
        nonce = self._rng.randbytes(NONCE_BYTES)
        key = layout.entry_key(self.prefix, sequence)
        now_ms = self._clock.now_ms()

        def prove(header: bytes) -> Steps[Proof | None]:
            prover = None if self._proofs is None else self._proofs.prover(key, timestamp_ms=now_ms, header=header)
            if prover is None:
                return None
            yield from prover.adding(records)
            return prover.proof()

        encode = partial(
            encode_entry.steps,
            sequence,
            records,
            writer_id=self.writer_id,
            nonce=nonce,
            is_seal=is_seal,
            epoch=self.epoch,
            previous=self._at.nonce,
            timestamp_ms=now_ms,
            prove=prove,
        )

        def encoding() -> Steps[bytes]:
            for some in slices(records, LONG_RECORDS_MIN):
                assert all(decode_key(record_key)[0] >= APPLICATION_KIND_MIN for record_key, _ in some), some
                yield
            return (yield from encode())

        # Until the first PUT a cancellation has written nothing, so this broker stays the writer.
        body = (
            await run(encoding(), Portion(urgent=self._urgent))
            if len(records) >= LONG_RECORDS_MIN
            else whole(encoding())
        )
        loop = asyncio.get_running_loop()
        attempt = AppendAttempt(
            writer_id=self.writer_id, nonce=nonce, deadline_s=loop.time() + self._timings.append_deadline_s
        )
        # If an error or a cancellation ends this method early, the number stays undecided.
        self._sealed = False
        self._offered = sequence
        self._failure = ""
        action = attempt.start()
        while True:
            match action:
                case Put(delay_s):
                    await self._pause(delay_s)
                    action = attempt.on_put(await self._put(key, body), loop.time())
                case ReadBack(delay_s):
                    await self._pause(delay_s)
                    action = attempt.on_read(await self._read_back(key, sequence), loop.time())
                case Ours():
                    break
                case Lost(winner):
                    raise ConflictError(f"{winner.writer_id} has written {key}.")
                case GiveUp(corrupt):
                    if corrupt:
                        raise CorruptionError(f"{key} is corrupt, and it is not known whose it is.")
                    waited = f"{key} stayed undecided for {self._timings.append_deadline_s:g} s"
                    raise StorageUnavailable(f"{waited}: {clause(self._failure)}." if self._failure else waited)
                case _:
                    assert_never(action)
        if is_seal and await self._list(layout.log_prefix(self.prefix), key):
            raise ConflictError(f"{self.prefix} had gone on past {key} when it was sealed.")
        mark = None if self._proofs is None else self._proofs.mark
        decoding = decode_entry.steps(key, sequence, body)
        entry = await run(decoding, Portion(urgent=self._urgent)) if len(body) >= LONG_BYTES_MIN else whole(decoding)
        await self._apply(self._at, entry, mark or NO_MARK)
        self._sealed = self._ever_sealed = True
        if self._on_entry is not None:
            self._keep(sequence, body)
            self._on_entry()
        if self.on_written is not None:
            self.on_written(sequence, body)
        return sequence

    def _keep(self, sequence: int, body: bytes) -> None:
        recent = self._recent
        if recent and recent[-1][0] != sequence - 1:
            recent.clear()
            self._recent_bytes = 0
        recent.append((sequence, body))
        self._recent_bytes += len(body)
        while len(recent) > RECENT_ENTRIES_MAX or (self._recent_bytes > RECENT_BYTES_MAX and len(recent) > 1):
            self._recent_bytes -= len(recent.popleft()[1])

    async def _put(self, key: str, data: bytes) -> PutOutcome:
        try:
            async with asyncio.timeout(self._timings.attempt_timeout_s):
                await self._store.put_if_absent(key, data)
        except AlreadyExists:
            return PutOutcome.EXISTS
        except (StorageUnavailable, TimeoutError) as error:
            self._failure = str(error) or "no answer in time"
            return PutOutcome.UNDECIDED
        return PutOutcome.WRITTEN

    async def _read_back(self, key: str, sequence: int) -> Entry | ReadOutcome:
        try:
            async with asyncio.timeout(self._timings.attempt_timeout_s):
                data = await self._store.get(key)
        except ObjectMissing:
            return ReadOutcome.MISSING
        except (StorageUnavailable, TimeoutError) as error:
            self._failure = str(error) or "no answer in time"
            return ReadOutcome.UNDECIDED
        try:
            return decode_entry(key, sequence, data)
        except CorruptionError:
            return ReadOutcome.CORRUPT

    def _snapshot_header(self, at: _Position[S]) -> SnapshotHeader:
        return SnapshotHeader(1, at.applied, 0, at.deleted_end, list(at.seals), at.snapshot_sequence, at.nonce)

    async def _write_snapshot(self) -> None:
        at = self._at
        key = layout.snapshot_key(self.prefix, at.applied)
        header = self._snapshot_header(at)
        if self._proofs is not None:
            header = await self._proven_header(key, header)
        pieces: list[bytes] = []
        for piece in iter_snapshot(header, at.writer, at.live, self._clock.now_ms()):
            pieces.append(piece)
            await asyncio.sleep(0)
        data = b"".join(pieces)
        is_ours = True

        async def put() -> None:
            nonlocal is_ours
            try:
                await self._store.put_if_absent(key, data)
            except AlreadyExists:
                # Every broker's snapshot at this number holds the same records.
                is_ours = False

        await self._retried(key, put)
        at.snapshot_sequence = at.applied
        mark = None if self._proofs is None else self._proofs.mark
        if mark is not None and is_ours:
            at.marks = frozenset({mark})

    async def _proven_header(self, key: str, header: SnapshotHeader) -> SnapshotHeader:
        """``header`` with the proof of a snapshot of the applied state, if snapshots get one."""
        at = self._at
        assert self._proofs is not None
        header = counted(header, at.live)
        prover = self._proofs.prover(key, timestamp_ms=0, header=encode_value(header))
        if prover is None:
            return header
        prover.add(WRITER_KEY, writer_value(at.writer))
        size_bytes = 0
        for record_key, value in at.live.items():
            prover.add(record_key, value)
            size_bytes += len(record_key) + len(value)
            if size_bytes >= SNAPSHOT_BATCH_BYTES:
                size_bytes = 0
                await asyncio.sleep(0)
        return proven(header, prover.proof())

    async def _compact(self) -> None:
        at = self._at
        snapshots = [key.sequence for key in await self._list_all(layout.snapshot_prefix(self.prefix), "")]
        if len(snapshots) < 2 or snapshots[-1] > at.applied:
            # This process is behind and does not know every seal, so it deletes nothing. Others will.
            return
        previous = snapshots[-2]
        doomed = [layout.snapshot_key(self.prefix, sequence) for sequence in snapshots[:-2]]
        seals = set(at.seals)
        doomed += [
            layout.entry_key(self.prefix, sequence)
            for sequence in range(at.deleted_end, previous)
            if sequence not in seals
        ]
        for start in range(0, len(doomed), DELETE_PAGE_KEYS):
            page = doomed[start : start + DELETE_PAGE_KEYS]
            await self._retried(self.prefix, lambda page=page: self._store.delete_many(page))  # type: ignore[misc]
        at.deleted_end = max(at.deleted_end, previous)
        at.seals = [sequence for sequence in at.seals if sequence >= at.deleted_end]

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _verified(self, key: str, decode: Callable[[bytes], Awaitable[T]]) -> T:
        """Read and decode an object. Bad bytes are read once more, because the transfer may have damaged them.

        Raises: ObjectMissing, CorruptionError, StorageUnavailable.
        """
        data = await self._get(key)
        try:
            return await decode(data)
        except CorruptionError:
            return await decode(await self._get(key))

    async def _get(self, key: str) -> bytes:
        return await self._retried(key, lambda: self._store.get(key))

    async def _list(self, prefix: str, start_after: str) -> list[str]:
        infos = await self._retried(
            prefix, lambda: self._store.list_objects(prefix, start_after=start_after, limit=LIST_PAGE_KEYS)
        )
        return [info.key for info in infos]

    async def _list_all(self, prefix: str, start_after: str) -> list[layout.NumberedKey]:
        found: list[layout.NumberedKey] = []
        while True:
            page = await self._list(prefix, start_after)
            found.extend(key for name in page if (key := layout.parse_numbered_key(name)) is not None)
            if len(page) < LIST_PAGE_KEYS:
                return found
            start_after = page[-1]

    def _entries_among(self, keys: Sequence[str], start: int) -> list[int]:
        """Numbers from ``start`` on of the entries among ``keys``, which all belong to this log and are in order."""
        first = bisect_left(keys, layout.entry_key(self.prefix, start))
        after = layout.snapshot_prefix(self.prefix)
        found = (layout.parse_numbered_key(key) for key in takewhile(lambda key: key < after, keys[first:]))
        return [key.sequence for key in found if key is not None]

    async def _list_entries(self, start: int) -> list[int]:
        """Numbers from ``start`` on of the existing entries, in order."""
        after = layout.entry_key(self.prefix, start - 1) if start > 0 else ""
        return [key.sequence for key in await self._list_all(layout.log_prefix(self.prefix), after)]

    async def _retried(self, what: str, request: Callable[[], Awaitable[T]]) -> T:
        """Retry an idempotent request until it succeeds or the read deadline passes. Raises: StorageUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timings.read_deadline_s
        delay_s = 0.05
        while True:
            try:
                async with asyncio.timeout(self._timings.attempt_timeout_s):
                    return await request()
            except TimeoutError:
                error: StorageUnavailable = StorageUnavailable(
                    f"{what} was not answered within {self._timings.attempt_timeout_s:g} s."
                )
            except StorageUnavailable as caught:
                error = caught
            if loop.time() + delay_s >= deadline_s:
                try:
                    raise error
                finally:
                    del error  # it holds this frame
            await self._pause(delay_s)
            delay_s = min(delay_s * 2, 2.0)

    async def _pause(self, delay_s: float) -> None:
        if delay_s > 0:
            await asyncio.sleep(delay_s * self._rng.uniform(0.5, 1.0))
