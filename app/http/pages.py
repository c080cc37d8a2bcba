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
from typing import Final, NamedTuple

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer, FetchedBatch
from app.core.limits import KIB, MIB
from app.core.turns import Portion, run, whole
from app.core.units import LeaderEpoch, Offset, TopicPartition
from app.http.gateway import Gateway
from app.http.read_budget import PageBytes
from app.http.record_rendering import Rendering, shown_steps
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
FETCH_BYTES_MAX: Final = 256 * KIB
"""Of one answer of a broker: its batches are checked in one turn. One batch may pass it."""
FETCH_WAIT_MS_MAX: Final = 500
"""Of one request. A request whose caller has left holds its connection for so long."""
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


class ShownAt(NamedTuple):
    """A record as JSON, with its offset."""

    offset: Offset
    content: bytes


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
        self.portion = Portion()
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

    async def shown(self, batches: list[FetchedBatch]) -> AsyncIterator[ShownAt]:
        """The wanted records of some batches. ``position`` is moved before each. ``ended_by`` is set when a limit is reached."""
        wanted = self.wanted
        for batch in batches:
            header = batch.header
            for record in await batch_records(batch, self.portion):
                size = _bytes_of(record)
                is_short = size <= SHORT_BYTES and len(record.headers) <= SHORT_HEADERS
                if self.portion.spent_by() if is_short else self.portion.spent():
                    await self.portion.rest()
                self._move_to(record.offset)
                self.ended_by = self.limit()
                if self.ended_by is not None:
                    return
                if wanted.key is not None and record.key != wanted.key:
                    self.bytes += size
                    self.position = Offset(record.offset + 1)
                    continue
                steps = shown_steps(record, wanted.partition.partition, wanted.rendering)
                content = whole(steps) if is_short else await run(steps, self.portion)
                if self._held is not None and not self._held.take(len(content)):
                    self.ended_by = EndedBy.BYTES
                    return
                self.bytes += size
                self.position = Offset(record.offset + 1)
                self.count += 1
                self.epoch = header.leader_epoch
                self.shown_bytes += len(content)
                yield ShownAt(record.offset, content)
            self._move_to(header.end_offset)
        self._move_to(self.consumer.position(wanted.partition))
        self.ended_by = self.limit()

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
            records.append(shown.content)
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


async def follow(consumer: Consumer, wanted: WantedRecords) -> AsyncGenerator[ShownAt | None]:
    """All records from an offset on, as they come, until a limit of ``wanted`` is reached. None stands for a request to the broker
    that found no wanted record. Raises: as ``read_page``."""
    reading = _Reading(consumer, wanted)
    while reading.ended_by is None:
        shown_before = reading.count
        batches = await reading.fetch(FETCH_WAIT_MS_MAX)
        async for shown in reading.shown(batches):
            yield shown
        if reading.count == shown_before:
            yield None


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
