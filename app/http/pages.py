"""Reads the records of one partition: a page of them, or all that come.

A page ends after ``count`` records or ``bytes_max`` bytes, or at the end of the partition once ``max_wait_ms`` have passed. Records
that a key filter skips count as bytes. Four more limits hold for every page:

- ``SHOWN_BYTES_MAX``: JSON may be six times as long as its record, because it escapes control characters.
- ``PAGE_MS_MAX``: a key filter, or aborted transactions, may skip all records of a long partition.
- ``COLD_WAIT_MS`` without progress: an object store may take so long.
- The bytes of all pages together (``app/http/read_budget.py``).

Batches are checked as a consumer does it. They are decompressed in a thread; the rest is done in portions.

Tests: ``tests/http/rest_v3/test_record_reads.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer, FetchedBatch
from app.core.errors import CorruptionError
from app.core.limits import KIB, MIB
from app.core.turns import Portion, run
from app.core.units import LeaderEpoch, Offset, TopicPartition
from app.http.gateway import Gateway
from app.http.read_budget import PageBytes
from app.http.record_rendering import Rendering, ShortRecords, shown_steps
from app.records.record import Record, iter_decompressed, raw_records

COUNT_MAX: Final = 10_000
COUNT_DEFAULT: Final = 500
BYTES_MAX: Final = 16 * MIB
"""Of keys, values and headers on one page. One record may pass it."""
BYTES_DEFAULT: Final = 1 * MIB
WAIT_MS_MAX: Final = 30_000
SHORT_BYTES: Final = 8 * KIB
SHORT_HEADERS: Final = 16
"""A record of at most so many bytes and headers is shown in less than 0.1 ms."""
LONG: Final = SHORT_BYTES + 1
"""Stands for the bytes of a record that is not short."""
RUN_BYTES: Final = 64 * KIB
"""Of JSON that is shown together. One record may pass it."""
RUN_BYTES_END: Final = RUN_BYTES + 8 * SHORT_BYTES
"""No run has so many: of a short record, all may be escaped."""
FETCH_BYTES_MAX: Final = 256 * KIB
"""Of one answer of a broker: its batches are checked in one turn. One batch may pass it."""
FETCH_WAIT_MS_MAX: Final = 500
"""Of one request. A request whose caller has left holds its connection for so long."""
OFFSET_END: Final = 1 << 63
"""All offsets are below it, and all counts."""
COLD_WAIT_MS: Final = 10_000
SHOWN_BYTES_MAX: Final = 2 * BYTES_MAX
"""Of the JSON of one page. One record may pass it."""
PAGE_MS_MAX: Final = 30_000
"""From the first request to a broker to the last one, if there is more to read."""


class EndedBy(Enum):
    """Why a page has no more records."""

    COUNT = "count"
    BYTES = "bytes"
    END = "end"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRecords:
    """A read of a partition."""

    partition: TopicPartition
    offset: Offset
    end: Offset | None = None
    """The offset before which to stop."""
    count: int = COUNT_DEFAULT
    bytes_max: int = BYTES_DEFAULT
    max_wait_ms: int = 0
    read_committed: bool = True
    key: bytes | None = None
    """Only records with this key."""
    rendering: Rendering = Rendering.AUTO


@dataclass(slots=True)
class RecordPage:
    """Records that were read, each as JSON."""

    records: list[bytes]
    next_offset: Offset
    """All records before it that were wanted are on this page or on one before."""
    ended_by: EndedBy
    epoch: LeaderEpoch | None
    """The leader epoch of the last record; None without a record."""
    stable: bool
    """Whether all of it lies below the last stable offset."""
    epoch_below: LeaderEpoch | None
    """The leader epoch of the last batch below ``next_offset``; None if the page has no batch or ends in the middle of one."""


ShownAt = tuple[Offset, bytes]
"""A record as JSON, with its offset."""


class _Reading:
    """The state of one read."""

    def __init__(
        self,
        consumer: Consumer,
        wanted: WantedRecords,
        *,
        shown_bytes_max: int | None = None,
        held: PageBytes | None = None,
    ) -> None:
        self.consumer = consumer
        self.wanted = wanted
        self.position = wanted.offset
        self.count = 0
        self.bytes = 0
        self.shown_bytes = 0
        self._shown_bytes_max = shown_bytes_max
        self._held = held
        self.epoch: LeaderEpoch | None = None
        self.ended_by: EndedBy | None = None
        self._fault: CorruptionError | None = None
        """Why the record after the last run cannot be read."""
        self.portion = Portion()
        self._short = ShortRecords(wanted.partition.partition, wanted.rendering)
        consumer.assign({wanted.partition: wanted.offset})

    async def fetch(self, wait_ms: int) -> list[FetchedBatch]:
        return await self.consumer.fetch_once(self.wanted.partition, max_wait_ms=min(wait_ms, FETCH_WAIT_MS_MAX))

    def limit(self) -> EndedBy | None:
        """The limit of the read that is reached, if one is."""
        if self.count >= self.wanted.count or (self.wanted.end is not None and self.position >= self.wanted.end):
            return EndedBy.COUNT
        if self.bytes >= self.wanted.bytes_max:
            return EndedBy.BYTES
        if self._shown_bytes_max is not None and self.shown_bytes >= self._shown_bytes_max:
            return EndedBy.BYTES
        return None

    @property
    def at_end(self) -> bool:
        """Whether this reader can see no further record now."""
        end = self.consumer.visible_end(self.wanted.partition)
        return end is not None and self.consumer.position(self.wanted.partition) >= end

    async def shown(self, batches: list[FetchedBatch]) -> AsyncIterator[list[ShownAt]]:
        """The wanted records of some batches, in runs that have at least one. ``position`` is moved on with each run.
        ``ended_by`` is set when a limit is reached. Raises: CorruptionError, after the records before it."""
        for batch in batches:
            epoch = batch.header.leader_epoch
            records = await batch_records(batch, self.portion)
            waiting: Record | None = None
            while True:
                found, waiting = self._run_of(records, epoch)
                if waiting is not None:
                    found += await self._shown_alone(waiting, epoch)
                if found:
                    yield found
                if self.ended_by is not None:
                    return
                fault, self._fault = self._fault, None
                if fault is not None:
                    raise fault
                if waiting is None:
                    break
            self._move_to(batch.header.end_offset)
        self._move_to(self.consumer.position(self.wanted.partition))
        self.ended_by = self.limit()

    def _run_of(self, records: Iterator[Record], epoch: LeaderEpoch) -> tuple[list[ShownAt], Record | None]:
        """Show short records, up to ``RUN_BYTES``, the end of the portion, a limit, or a record that is not short.

        Returns: those that are wanted, and the record that comes next; None if there is none, or if a limit is reached. A record
        that cannot be read ends the run, and is kept as ``_fault``.
        """
        key, count_max, bytes_max = self.wanted.key, self.wanted.count, self.wanted.bytes_max
        end = Offset(OFFSET_END) if self.wanted.end is None else self.wanted.end
        shown_max = OFFSET_END if self._shown_bytes_max is None else self._shown_bytes_max
        count, size, shown_bytes, position = self.count, self.bytes, self.shown_bytes, self.position
        run_end = shown_bytes + RUN_BYTES
        portion, held, shown = self.portion, self._held, self._short.shown
        roomy = held is None or held.has(RUN_BYTES_END)
        found: list[ShownAt] = []
        waiting: Record | None = None
        limited = False
        try:
            for record in records:
                offset, _, own_key, value, headers = record
                own_size = len(value) if value else 0
                if own_key:
                    own_size += len(own_key)
                if headers:
                    own_size = _bytes_of(record) if len(headers) <= SHORT_HEADERS else LONG
                if own_size > SHORT_BYTES or shown_bytes >= run_end or portion.spent_by():
                    waiting = record
                    break
                if offset > position:
                    position = min(offset, end)
                if count >= count_max or position >= end or size >= bytes_max or shown_bytes >= shown_max:
                    limited = True
                    break
                if key is None or own_key == key:
                    content = shown(record)
                    if not roomy and held is not None and not held.take(len(content)):
                        self.ended_by = EndedBy.BYTES
                        break
                    found.append((offset, content))
                    count += 1
                    shown_bytes += len(content)
                size += own_size
                position = Offset(offset + 1)
        except CorruptionError as error:
            self._fault = error
            limited = True
        if found:
            self.epoch = epoch
            if roomy and held is not None:
                taken = held.take(shown_bytes - self.shown_bytes)
                assert taken
        self.count, self.bytes, self.shown_bytes, self.position = count, size, shown_bytes, position
        if limited:
            self.ended_by = self.limit()
        return found, waiting

    async def _shown_alone(self, record: Record, epoch: LeaderEpoch) -> list[ShownAt]:
        """Show a record that may take longer; none if it is not wanted, or if a limit is reached before it."""
        wanted = self.wanted
        await self.portion.rest_if_spent()
        self._move_to(record.offset)
        self.ended_by = self.limit()
        if self.ended_by is not None:
            return []
        content: bytes | None = None
        if wanted.key is None or record.key == wanted.key:
            content = await run(shown_steps(record, wanted.partition.partition, wanted.rendering), self.portion)
            if self._held is not None and not self._held.take(len(content)):
                self.ended_by = EndedBy.BYTES
                return []
        self.bytes += _bytes_of(record)
        self.position = Offset(record.offset + 1)
        if content is None:
            return []
        self.count += 1
        self.epoch = epoch
        self.shown_bytes += len(content)
        return [(record.offset, content)]

    def _move_to(self, offset: Offset) -> None:
        end = self.wanted.end
        self.position = max(self.position, offset if end is None else min(offset, end))


def _bytes_of(record: Record) -> int:
    """The bytes of key, value and headers."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else size


async def batch_records(batch: FetchedBatch, portion: Portion) -> Iterator[Record]:
    """The records of a batch that were asked for, decompressed in a thread if they need it. Those before them are skipped in
    portions: 1 MiB may unfold to millions of records. Raises: CorruptionError."""
    header = batch.header
    data = await asyncio.to_thread(raw_records, batch.view, header) if header.codec else raw_records(batch.view, header)
    records = iter_decompressed(data, header)
    for record in records:
        if record.offset >= batch.from_offset:
            return chain((record,), records)  # offsets of a batch ascend
        if portion.spent_by():
            await portion.rest()
    return records


async def read_page(consumer: Consumer, wanted: WantedRecords, held: PageBytes) -> RecordPage:
    """One page, whose bytes are taken into ``held``.

    Raises: RequestRejected (OFFSET_OUT_OF_RANGE…), BrokerUnavailable, CorruptionError.
    """
    loop = asyncio.get_running_loop()
    reading = _Reading(consumer, wanted, shown_bytes_max=SHOWN_BYTES_MAX, held=held)
    began_s = cold_since_s = loop.time()
    deadline_s = began_s + wanted.max_wait_ms / 1000
    records: list[bytes] = []
    wait_ms = 0
    ended_by: EndedBy | None = None
    while ended_by is None:
        before = consumer.position(wanted.partition)
        batches = await reading.fetch(wait_ms)
        async for shown in reading.shown(batches):
            records += [content for _, content in shown]
        now_s = loop.time()
        if consumer.position(wanted.partition) > before:
            cold_since_s = now_s
        if reading.ended_by is not None:
            ended_by = reading.ended_by
        elif reading.at_end:
            if now_s >= deadline_s or records:
                ended_by = EndedBy.END
            wait_ms = max(1, int((deadline_s - now_s) * 1000))
        elif now_s - cold_since_s >= COLD_WAIT_MS / 1000 or now_s - began_s >= PAGE_MS_MAX / 1000:
            ended_by = EndedBy.TIME
        else:
            wait_ms = FETCH_WAIT_MS_MAX
    stable_end = consumer.last_stable_offset(wanted.partition)
    stable = stable_end is not None and reading.position <= stable_end
    at_end = ended_by is EndedBy.END and reading.position == consumer.position(wanted.partition)
    epoch_below = consumer.epoch_below(wanted.partition) if at_end else None
    return RecordPage(records, reading.position, ended_by, reading.epoch, stable, epoch_below)


async def follow(consumer: Consumer, wanted: WantedRecords) -> AsyncGenerator[list[ShownAt]]:
    """All records from an offset on, as they come, in runs, until a limit of ``wanted`` is reached. An empty run stands for a
    request to the broker that found no wanted record. Raises: as ``read_page``."""
    reading = _Reading(consumer, wanted)
    while reading.ended_by is None:
        shown_before = reading.count
        batches = await reading.fetch(FETCH_WAIT_MS_MAX)
        async for shown in reading.shown(batches):
            yield shown
        if reading.count == shown_before:
            yield []


@asynccontextmanager
async def reader(gateway: Gateway, *, read_committed: bool, endless: bool = False) -> AsyncIterator[Consumer]:
    """A consumer for one partition, with a lane of its own. Raises: RestError 429 if too many are reading."""
    cluster: ClusterClient = gateway.cluster
    with gateway.lanes.taken(endless=endless) as lane:
        async with Consumer(
            cluster,
            max_bytes=FETCH_BYTES_MAX,
            partition_max_bytes=FETCH_BYTES_MAX,
            read_committed=read_committed,
            lane=lane,
        ) as consumer:
            yield consumer
