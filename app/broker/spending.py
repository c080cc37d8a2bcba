"""This broker's requests to its store and bytes across zones in the last hour, and their costs a month.

Once a minute the counters are read, and their increases are kept for an hour (``app/cost/measured.py``). Metrics show them, with
the dollars at list prices.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from app.core.errors import StorageUnavailable
from app.core.faults import Faults
from app.core.loop_time import loop_time_s
from app.core.metrics import Labels, Registry, Sample
from app.core.seams import BlockingPool, shared_wait_s
from app.core.units import TopicIdPartition
from app.cost import measured
from app.cost.measured import Hour, MeasuredBill, PartitionBytes, Reading, Spent, measured_bill
from app.cost.prices import Prices, StoreKind
from app.handlers.state.metrics import ApiMetrics
from app.hot.manager import LogManager
from app.replication.partition import PartitionTable
from app.tiering.upload.remote_log_manager import RemoteLogManager

READ_S: Final = 60.0
"""Between two readings."""
LOGS_AT_ONCE: Final = 256
"""Logs that are read before others get their turn."""


class Spending:
    """Belongs to the broker's loop. Keep ``run`` running."""

    def __init__(
        self,
        registry: Registry,
        *,
        logs: LogManager,
        table: PartitionTable,
        tier: RemoteLogManager,
        traffic: ApiMetrics,
        store_samples: Callable[[], Awaitable[Sequence[Sample]]],
        wal_kept_bytes: Callable[[], float],
        wal_store: StoreKind | None = None,
        pool: BlockingPool,
        faults: Faults,
        read_s: float = READ_S,
    ) -> None:
        """``store_samples``: metrics of the store process, which counts requests. ``pool`` is for work that takes long with many
        partitions. ``wal_store``: the kind of store that write-ahead logs have of their own."""
        self._logs = logs
        self._table = table
        self._tier = tier
        self._traffic = traffic
        self._store_samples = store_samples
        self._wal_kept_bytes = wal_kept_bytes
        self._wal_store = wal_store
        self._faults = faults
        self._read_s = read_s
        self._pool = pool
        self._hour = Hour()
        self.spent: Spent | None = None
        """The counts of the hour before the last reading; None before the second one."""
        self._bill: MeasuredBill | None = None
        registry.describe("firn_hour_seconds", "gauge", "Time that the other numbers of the last hour cover")
        registry.describe("firn_hour_requests", "gauge", "Operations on the object store in the last hour")
        registry.describe("firn_hour_zone_bytes", "gauge", "Bytes of record batches in the last hour, by zone")
        registry.describe("firn_hour_topic_bytes", "gauge", "Bytes of the topics with most bytes in the last hour")
        registry.describe(
            "firn_hour_wal_store_bytes", "gauge", "Bytes sent to and received from the WAL store in the last hour"
        )
        registry.describe(
            "firn_cost_dollars_per_month", "gauge", "Cost of a month like the last hour, by line of the bill"
        )
        registry.describe("firn_cost_topic_dollars_per_month", "gauge", "The part of the cost that a topic causes")
        registry.source(self._samples)

    async def run(self) -> None:
        """Take readings until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(shared_wait_s(loop_time_s(), self._read_s))

    async def read(self) -> None:
        """Take a reading now. Without the store process's numbers none is taken: the next one covers more time."""
        requests: dict[tuple[str, str], float] = defaultdict(float)
        wal_bytes: dict[tuple[str, str], float] = {}
        if self._wal_store is not None:
            wal_bytes = {(measured.UP, self._wal_store): 0.0, (measured.DOWN, self._wal_store): 0.0}
        try:
            samples = await self._store_samples()
        except StorageUnavailable as error:
            self._faults.met_error("reading the counters of", "the store process", error)
            return
        for sample in samples:
            if sample.name == "firn_store_requests_total":
                labels = dict(sample.labels)
                requests[labels["operation"], labels["kind"]] += sample.value
            elif self._wal_store is not None and sample.name == "firn_store_bytes_total":
                labels = dict(sample.labels)
                if labels.get("store") == measured.WAL:
                    wal_bytes[labels["direction"], self._wal_store] += sample.value
        partitions: dict[tuple[str, int], PartitionBytes] = {}
        stored: dict[str, float] = defaultdict(float)
        for place, log in enumerate(self._logs.logs(), start=1):
            segments, stored_bytes = self._tier.copied_and_stored(TopicIdPartition(log.topic_id, log.partition))
            appended, sent = log.appended[0], log.sent_bytes
            if appended or sent or segments:
                key = (log.topic, int(log.partition))
                partitions[key] = PartitionBytes(appended if log.journaled else 0, segments, appended, sent)
            if stored_bytes:
                stored[log.topic] += stored_bytes
            if not place % LOGS_AT_ONCE:
                await asyncio.sleep(0)
        reading = Reading(requests, self._zones(), partitions, wal_bytes)
        led = [(one.topic, int(one.index)) for one in self._table.all_led()]
        digest = partial(self._digest, reading, loop_time_s(), led, stored)
        if len(partitions) > LOGS_AT_ONCE:
            await self._pool.run(digest)
        else:
            digest()

    def _digest(
        self, reading: Reading, now_s: float, led: Sequence[tuple[str, int]], stored: Mapping[str, float]
    ) -> None:
        self._hour.note(reading, now_s, led)
        self.spent = self._hour.spent(stored, self._wal_kept_bytes())
        self._bill = None if self.spent is None else measured_bill([self.spent], Prices())

    def _zones(self) -> dict[tuple[str, str], float]:
        traffic = self._traffic
        found: dict[tuple[str, str], float] = {} if traffic.zones is None else traffic.zones.counted()
        totals = {
            measured.IN: traffic.bytes_in.value,
            measured.OUT: traffic.bytes_out.value,
            measured.REPLICATION: traffic.replication_bytes_out.value,
        }
        for direction, total in totals.items():
            known = sum(value for (of, _), value in found.items() if of == direction)
            found[direction, measured.UNKNOWN] = max(0.0, total - known)
        return found

    def _samples(self) -> Iterator[tuple[str, Labels, float] | None]:
        spent, bill = self.spent, self._bill
        if spent is None or bill is None:
            return
        yield from measured.samples_of(spent)
        for line in bill.lines:
            yield "firn_cost_dollars_per_month", (("line", line.what),), line.dollars
        for topic in bill.topics:
            yield "firn_cost_topic_dollars_per_month", (("topic", topic.topic),), topic.dollars
