"""An object store in memory, with faults as data.

It is the reference for the guarantees of every adapter, and the object store of the simulation. It has no threads. Time comes
only from the running loop and the ``Clock`` seam, and randomness only from the given ``random.Random``. The same calls with the
same seed get the same faults.

An operation takes effect at one instant, between two waits for the way there and the way back. A ``Fault`` defines a failure,
its operations and keys, and how often it occurs. The store checks its faults in order, and every matching fault counts:
latencies add up, and the first fault of another kind decides the outcome.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, NoReturn, TypeVar, cast

from app.core.errors import FirnError, StorageUnavailable
from app.core.seams import Clock
from app.core.units import Buffer, TimestampMs
from app.objectstore.api import AlreadyExists, ObjectInfo, ObjectMissing, RangeUnsatisfiable, UploadInfo
from app.objectstore.keys import LIST_LIMIT_MAX, PART_NUMBER_MAX, check_key, check_prefix, check_range

T = TypeVar("T")

ANY_OPERATION: Final = "*"
HISTORY_LENGTH_MAX: Final = 200_000


class FaultKind(Enum):
    """The failure of an operation that a fault strikes."""

    LATENCY = auto()
    """It takes ``latency_ms`` longer, half of it before it takes effect and half after."""
    UNAVAILABLE = auto()
    """503: StorageUnavailable, nothing was done."""
    LOST_ANSWER = auto()
    """It took effect, and StorageUnavailable is raised."""
    APPLIED_LATE = auto()
    """StorageUnavailable is raised at once, and it takes effect ``latency_ms`` later, as a request still under way does."""
    HANG = auto()
    """Nothing was done and no answer comes: waits until cancelled."""
    HANG_APPLIED = auto()
    """It took effect and no answer comes: waits until cancelled."""
    SHORT_ANSWER = auto()
    """A read whose body ended early and was found out: StorageUnavailable."""
    TORN_READ = auto()
    """A read that silently answers only a beginning of the bytes."""
    FLIPPED_BYTE = auto()
    """A read that silently answers one wrong byte."""


_READ_FAULTS: Final = frozenset({FaultKind.SHORT_ANSWER, FaultKind.TORN_READ, FaultKind.FLIPPED_BYTE})
_READS: Final = frozenset({"get", "get_range", "get_tail"})


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong.

    It strikes operations named ``operation`` (a method's name of the seam; uploads: ``put_part``, ``complete``, ``abort``;
    ``"*"`` is all) on keys or prefixes that start with ``key_prefix``: the first ``skip`` of them are spared, then each is
    struck with ``probability``, until ``times`` were (None: no end). Read faults spare all other operations.
    """

    kind: FaultKind
    operation: str = ANY_OPERATION
    key_prefix: str = ""
    probability: float = 1.0
    skip: int = 0
    times: int | None = None
    latency_ms: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest, evenly spread; for LATENCY and APPLIED_LATE."""
    met: int = field(default=0, init=False)
    """Matching operations so far."""
    struck: int = field(default=0, init=False)
    """Those that it struck."""

    def strikes(self, operation: str, key: str, rng: random.Random) -> bool:
        if self.operation not in (ANY_OPERATION, operation) or not key.startswith(self.key_prefix):
            return False
        if self.kind in _READ_FAULTS and operation not in _READS:
            return False
        self.met += 1
        if self.met <= self.skip or (self.times is not None and self.struck >= self.times):
            return False
        if self.probability < 1.0 and rng.random() >= self.probability:
            return False
        self.struck += 1
        return True


class StoreCall(NamedTuple):
    """One call as a checker sees it. Times are loop time in seconds."""

    started_s: float
    ended_s: float
    operation: str
    key: str
    outcome: str
    """``ok``, or the class name of the exception (``CancelledError`` included)."""
    applied: bool
    """Whether it had taken effect when it ended; APPLIED_LATE ends before."""
    size_bytes: int


@dataclass(slots=True)
class _Pending:
    """A multipart upload under way."""

    key: str
    started_ms: TimestampMs
    parts: dict[int, bytes]


class MemoryStore:
    """ObjectStore in memory. Every adapter's promises hold; see the module's text for faults."""

    def __init__(
        self,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        faults: Iterable[Fault] = (),
        *,
        part_bytes_min: int = 1,
    ) -> None:
        """``faults`` may be changed at any time through the attribute of that name. Without ``clock``, modification times
        come from the running loop; without ``rng``, from a fixed seed."""
        self.part_bytes_min = part_bytes_min
        self.faults: list[Fault] = list(faults)
        self.history: deque[StoreCall] = deque(maxlen=HISTORY_LENGTH_MAX)
        self._clock = clock
        self._rng = rng if rng is not None else random.Random(0)
        self._objects: dict[str, tuple[bytes, TimestampMs]] = {}
        self._keys: list[str] = []
        self._uploads: dict[str, _Pending] = {}
        self._upload_count = 0

    # --- reads ------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> bytes:
        check_key(key)
        data, _ = await self._read("get", key, lambda: (self._object(key), 0))
        return data

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        check_key(key)
        check_range(start, end)

        def work() -> tuple[bytes, int]:
            data = self._object(key)
            if start >= len(data):
                raise RangeUnsatisfiable(f"{key} has {len(data)} bytes; none at {start}.")
            return data[start:end], 0

        data, _ = await self._read("get_range", key, work)
        return data

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        check_key(key)
        check_range(0, length)

        def work() -> tuple[bytes, int]:
            data = self._object(key)
            return data[-length:], len(data)

        return await self._read("get_tail", key, work)

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)

        def work() -> ObjectInfo:
            data = self._object(key)
            return ObjectInfo(key, len(data), self._objects[key][1])

        return await self._call("head", key, work)

    async def list_objects(
        self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX
    ) -> list[ObjectInfo]:
        check_prefix(prefix)
        assert 0 < limit <= LIST_LIMIT_MAX, limit

        def work() -> list[ObjectInfo]:
            found: list[ObjectInfo] = []
            # A key equal to the prefix belongs to the answer, one equal to start_after does not.
            index = bisect_right(self._keys, start_after) if start_after >= prefix else self._first_at(prefix)
            for key in self._keys[index : index + limit]:
                if not key.startswith(prefix):
                    break
                data, modified_ms = self._objects[key]
                found.append(ObjectInfo(key, len(data), modified_ms))
            return found

        return await self._call("list_objects", prefix, work)

    # --- writes -----------------------------------------------------------------------------------------------------

    def encrypted_with(self, kms_key_id: str) -> NoReturn:
        raise StorageUnavailable(
            f"Memory encrypts nothing, so no object can be written with the key {kms_key_id}: take firn.tier.kms.key.id"
            " from the topic, or use an S3 store."
        )

    async def put(self, key: str, data: Buffer) -> None:
        check_key(key)
        kept = bytes(data)
        await self._call("put", key, lambda: self._store(key, kept), len(kept))

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        check_key(key)
        kept = bytes(data)

        def work() -> None:
            if key in self._objects:
                raise AlreadyExists(f"{key} exists.")
            self._store(key, kept)

        await self._call("put_if_absent", key, work, len(kept))

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._call("delete", key, lambda: self._remove(key))

    async def delete_many(self, keys: list[str]) -> None:
        assert len(keys) <= LIST_LIMIT_MAX, len(keys)
        for key in keys:
            check_key(key)

        def work() -> None:
            for key in keys:
                self._remove(key)

        if keys:
            await self._call("delete_many", keys[0], work)

    # --- uploads ----------------------------------------------------------------------------------------------------

    async def begin_upload(self, key: str) -> MemoryUpload:
        check_key(key)

        def work() -> str:
            self._upload_count += 1
            upload_id = f"upload-{self._upload_count}"
            self._uploads[upload_id] = _Pending(key, self._now_ms(), {})
            return upload_id

        return MemoryUpload(self, key, await self._call("begin_upload", key, work))

    async def list_uploads(self, prefix: str) -> list[UploadInfo]:
        check_prefix(prefix)

        def work() -> list[UploadInfo]:
            return sorted(
                UploadInfo(pending.key, upload_id, pending.started_ms)
                for upload_id, pending in self._uploads.items()
                if pending.key.startswith(prefix)
            )

        return await self._call("list_uploads", prefix, work)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        check_key(key)

        def work() -> None:
            pending = self._uploads.get(upload_id)
            if pending is not None and pending.key == key:
                del self._uploads[upload_id]

        await self._call("abort", key, work)

    async def close(self) -> None:
        """Nothing to release; the objects stay, as a bucket's do."""

    # --- for tests and the simulation: no client of a store can do this ---------------------------------------------

    def contents(self) -> dict[str, bytes]:
        """Every object, in key order, without an operation."""
        return {key: self._objects[key][0] for key in self._keys}

    def flip_byte(self, key: str, position: int) -> None:
        """Rot one stored byte."""
        data, modified_ms = self._objects[key]
        rotten = bytearray(data)
        rotten[position] ^= 0xFF
        self._objects[key] = (bytes(rotten), modified_ms)

    def lose(self, key: str) -> None:
        """Remove an object without an operation."""
        self._remove(key)

    # --- how an operation goes --------------------------------------------------------------------------------------

    async def _call(self, operation: str, key: str, work: Callable[[], T], size_bytes: int = 0) -> T:
        """Apply the faults, do ``work`` at one instant, and write the history."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        applied = False
        outcome = "CancelledError"
        try:
            latency_s, fault = self._faults_of(operation, key)
            kind = fault.kind if fault is not None else None
            if latency_s:
                await asyncio.sleep(latency_s / 2)
            match kind:
                case FaultKind.UNAVAILABLE:
                    raise StorageUnavailable(f"{operation} of {key}: 503 Slow Down.")
                case FaultKind.HANG:
                    await loop.create_future()
                case FaultKind.APPLIED_LATE:
                    assert fault is not None
                    loop.call_later(self._rng.uniform(*fault.latency_ms) / 1000, _apply_late, work)
                    raise StorageUnavailable(f"{operation} of {key}: no response in time.")
                case FaultKind.SHORT_ANSWER:
                    raise StorageUnavailable(f"{operation} of {key}: the response ended early.")
                case _:
                    pass
            result: T | None = None
            refusal: FirnError | None = None
            try:
                result = work()
                applied = True
            except FirnError as error:
                refusal = error
            if latency_s:
                await asyncio.sleep(latency_s / 2)
            match kind:
                case FaultKind.LOST_ANSWER:
                    raise StorageUnavailable(f"{operation} of {key}: the connection was lost.")
                case FaultKind.HANG_APPLIED:
                    await loop.create_future()
                case _:
                    pass
            if refusal is not None:
                raise refusal
            outcome = "ok"
            answer = cast(T, result)
            if kind is FaultKind.TORN_READ or kind is FaultKind.FLIPPED_BYTE:
                return self._spoiled(answer, torn=kind is FaultKind.TORN_READ)
            return answer
        except FirnError as error:
            outcome = type(error).__name__
            raise
        finally:
            self.history.append(StoreCall(started_s, loop.time(), operation, key, outcome, applied, size_bytes))

    async def _read(self, operation: str, key: str, work: Callable[[], tuple[bytes, int]]) -> tuple[bytes, int]:
        return await self._call(operation, key, work)

    def _faults_of(self, operation: str, key: str) -> tuple[float, Fault | None]:
        latency_s = 0.0
        deciding: Fault | None = None
        for fault in self.faults:
            if not fault.strikes(operation, key, self._rng):
                continue
            if fault.kind is FaultKind.LATENCY:
                latency_s += self._rng.uniform(*fault.latency_ms) / 1000
            elif deciding is None:
                deciding = fault
        return latency_s, deciding

    def _spoiled(self, result: T, *, torn: bool) -> T:
        """``result`` of a read, (bytes, number), with its bytes cut short or one of them changed."""
        assert isinstance(result, tuple)
        data, number = result
        if data and torn:
            data = data[: self._rng.randrange(len(data))]
        elif data:
            spoiled = bytearray(data)
            spoiled[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            data = bytes(spoiled)
        return (data, number)  # type: ignore[return-value] # T is that tuple: read faults strike reads only

    # --- state, changed without a wait ------------------------------------------------------------------------------

    def _object(self, key: str) -> bytes:
        stored = self._objects.get(key)
        if stored is None:
            raise ObjectMissing(f"{key} is not there.")
        return stored[0]

    def _store(self, key: str, data: bytes) -> None:
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = (data, self._now_ms())

    def _remove(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_right(self._keys, key) - 1]

    def _first_at(self, prefix: str) -> int:
        index = bisect_right(self._keys, prefix)
        return index - 1 if prefix in self._objects else index

    def _now_ms(self) -> TimestampMs:
        if self._clock is not None:
            return self._clock.now_ms()
        return TimestampMs(int(asyncio.get_running_loop().time() * 1000))

    def _put_part(self, upload_id: str, number: int, data: bytes) -> None:
        self._pending(upload_id).parts[number] = data

    def _complete(self, upload_id: str, key: str) -> None:
        if upload_id not in self._uploads and key in self._objects:
            raise AlreadyExists(f"{key} exists.")
        pending = self._pending(upload_id)
        if key in self._objects:
            raise AlreadyExists(f"{key} exists.")
        parts = [pending.parts[number] for number in sorted(pending.parts)]
        assert parts, "an upload has at least one part"
        assert all(len(part) >= self.part_bytes_min for part in parts[:-1]), "a part before the last is too small"
        self._store(key, b"".join(parts))
        del self._uploads[upload_id]

    def _pending(self, upload_id: str) -> _Pending:
        pending = self._uploads.get(upload_id)
        if pending is None:
            raise ObjectMissing(f"Upload {upload_id} is gone.")
        return pending


class MemoryUpload:
    """Upload of a MemoryStore."""

    def __init__(self, store: MemoryStore, key: str, upload_id: str) -> None:
        self.key = key
        self.upload_id = upload_id
        self._store = store

    async def put_part(self, number: int, data: Buffer) -> None:
        assert 1 <= number <= PART_NUMBER_MAX, number
        kept = bytes(data)
        await self._store._call(
            "put_part", self.key, lambda: self._store._put_part(self.upload_id, number, kept), len(kept)
        )

    async def complete(self) -> None:
        await self._store._call("complete", self.key, lambda: self._store._complete(self.upload_id, self.key))

    async def abort(self) -> None:
        await self._store.abort_upload(self.key, self.upload_id)


def _apply_late(work: Callable[[], object]) -> None:
    """Apply a request whose sender has given up; no caller is left to hear a refusal."""
    try:
        work()
    except (AlreadyExists, ObjectMissing):
        return
