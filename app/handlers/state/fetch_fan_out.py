"""Keeps answers that many consumers of one partition share, so that each is prepared only once.

Consumers that read the same records ask for the same offsets soon after each other. Under the same limits an offset is answered
with the same batches, in the same encoding, as long as the batches before the high watermark stay where they are. So the answer is
kept when an offset is asked for a second time. Later requests for it get the kept answer. Only the correlation id, the high
watermark, the last stable offset and the log start offset in it are new.

An answer is kept only if it is whole and the byte limit ended it: one range of a local segment, with committed records behind it.
A range at the end of the log grows with the next append.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from app.wire.fetch import FLEXIBLE, PartitionData, RecordsRef, encode_fetch_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.handlers.policy.callers import Rights
    from app.hot.descriptors import FileHandle
    from app.hot.log import PartitionLog
    from app.replication.partition import PartitionTable
    from app.wire.produce import TopicRef

ANSWERS_MAX: Final = 1024
"""Offsets with a kept answer, or that were asked for once. The oldest gives way."""
CACHED_FOR_S: Final = 0.1
"""A range that was found in the page cache counts as cached for this time. It was just sent, so other pages are dropped first."""

_MARKS: Final = (0x7E6D5C4B3A291808, 0x7E6D5C4B3A291809, 0x7E6D5C4B3A29180A)
"""High watermark, last stable offset and log start of the answer that is taken apart."""
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_HEAD_END: Final = 8
"""A response begins with its size and the correlation id in every version."""


class FetchKind(NamedTuple):
    """The fields that are equal in requests (without a session) that get the same answer at the same offset."""

    rights: Rights
    """Compared by identity: a caller never gets a response that was made for a caller with more rights."""
    version: int
    topic: TopicRef
    partition: int
    bytes_max: int
    bytes_min: int
    isolation_level: int
    current_leader_epoch: int
    rack_id: str
    """Consumers in another rack may be sent to another replica."""


class SharedAnswer:
    """The answer to one offset."""

    __slots__ = (
        "_middle",
        "_numbers",
        "_pack",
        "_rest",
        "_size",
        "_throttle_at",
        "cached_at_s",
        "end",
        "handle",
        "leader_epoch",
        "length",
        "log",
        "offset_span",
        "position",
    )

    def __init__(
        self,
        kind: FetchKind,
        log: PartitionLog,
        handle: FileHandle,
        position: int,
        length: int,
        offset_span: int,
        aborted: Sequence[tuple[int, int]] | None,
    ) -> None:
        self.log = log
        self.leader_epoch = log.leader_epoch
        self.handle = handle
        self.position = position
        self.length = length
        self.offset_span = offset_span
        self.cached_at_s = 0.0
        """When the range was last seen in the page cache."""
        data = PartitionData(kind.partition, 0, *_MARKS, -1, RecordsRef(length), aborted)
        pieces = encode_fetch_response(kind.version, 0, [(kind.topic, [data])])
        head = pieces[0]
        assert isinstance(head, bytes)
        self.end = b"".join(piece for piece in pieces[2:] if isinstance(piece, bytes))
        """The bytes after the records."""
        numbers = b"".join(_INT64.pack(mark) for mark in _MARKS)
        if numbers not in head:  # version 4 has no log start
            numbers = numbers[: 2 * _INT64.size]
        self._size = head[:4]
        self._middle, found, self._rest = head[_HEAD_END:].rpartition(numbers)
        assert found, "an answer says its offsets one after the other"
        self._throttle_at = _HEAD_END + (kind.version >= FLEXIBLE)
        self._numbers = len(numbers) // _INT64.size
        self._pack = Struct(f">4si{len(self._middle)}s{self._numbers}q{len(self._rest)}s").pack

    def head(self, correlation_id: int, throttle_time_ms: int) -> bytes:
        """The bytes before the records."""
        log = self.log
        offsets = (log.high_watermark, log.last_stable_offset, log.log_start_offset)[: self._numbers]
        head: bytes = self._pack(self._size, correlation_id, self._middle, *offsets, self._rest)
        if throttle_time_ms:
            at = self._throttle_at
            head = head[:at] + _INT32.pack(throttle_time_ms) + head[at + _INT32.size :]
        return head

    def holds(self, offset: int) -> bool:
        """Whether the log would still give this answer: it has the same leader epoch, and the records are where they were."""
        log = self.log
        return (
            not self.handle.deleted
            and log.offline_error is None
            and log.leader_epoch == self.leader_epoch
            and log.log_start_offset <= offset
        )

    def is_cached(self, now_s: float) -> bool:
        """Whether the file is open and the whole range in the page cache, or was a moment ago."""
        file = self.handle.file
        if file is None:
            return False
        if now_s - self.cached_at_s < CACHED_FOR_S:
            return True
        if not file.is_cached(self.position, self.length):
            return False
        self.cached_at_s = now_s
        return True


class FanOut:
    """The answers kept for all partitions of a broker."""

    def __init__(self) -> None:
        self._answers: dict[tuple[FetchKind, int], SharedAnswer | None] = {}
        """By kind and offset; None if the offset was asked for once."""

    def find(self, partitions: PartitionTable, kind: FetchKind, offset: int, now_s: float) -> SharedAnswer | None:
        """The kept answer to a request, if it is still right and can be sent without waiting for the disk."""
        found = self._answers.get((kind, offset))
        if found is None:
            return None
        log = found.log
        if partitions.led_log(log.topic, log.partition) is not log or not found.holds(offset):
            del self._answers[kind, offset]
            return None
        return found if found.is_cached(now_s) else None

    def asked(self, kind: FetchKind, offset: int) -> bool:
        """Note that an offset is asked for. Returns whether it was asked for before: then its answer is worth keeping."""
        answers = self._answers
        key = (kind, offset)
        if key in answers:
            return True
        answers[key] = None
        if len(answers) > ANSWERS_MAX:
            del answers[next(iter(answers))]
        return False

    def forget_all(self) -> None:
        """Forget all answers, because partitions that were served until now may be refused."""
        self._answers.clear()

    def keep(self, kind: FetchKind, offset: int, answer: SharedAnswer) -> None:
        self._answers[kind, offset] = answer
