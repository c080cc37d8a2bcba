"""The Grafana dashboard is what its code writes, and each of its queries has a value on a broker that works."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from app.core.errors import ErrorCode
from app.core.metrics import Registry
from app.machine.runtime import SystemClock
from app.objectstore.memory import MemoryStore
from app.objectstore.metered import MeteredStore
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import running_broker
from tests.support.metric_rows import documented_metrics
from tests.support.promql import labels_read, metrics_read
from tests.support.scraping import scraped
from tests.support.talking import fetch_all, produce, tier_everything
from tests.support.waiting import until
from tools.dashboard import ROWS, TARGET, dashboard, text

QUERIES: Final = [query for row in ROWS for panel in row.panels for query, _ in panel.queries]
OF_EACH: Final = {"node_id", "process", "le"}
WITHOUT_VALUE: Final = {
    "firn_wal_held_bytes", "firn_wal_take_overs_total", "firn_wal_take_over_failures_total", "firn_cost_dollars_per_month",
    "firn_loop_stalled_seconds_total",
}  # fmt: skip
"""Metrics that a broker of a test does not show: it has no topic in write-ahead logs, no bill, and no watch of the loop."""


def test_the_file_is_what_the_code_writes() -> None:
    assert TARGET.read_text() == text(), "run python tools/dashboard.py"


def test_panels_have_different_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    cells = [
        (x, y)
        for one in panels
        for x in range(one["gridPos"]["x"], one["gridPos"]["x"] + one["gridPos"]["w"])
        for y in range(one["gridPos"]["y"], one["gridPos"]["y"] + one["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_reads_metrics_and_labels_that_there_are(query: str) -> None:
    known = documented_metrics()
    read = metrics_read(query)
    assert read
    assert read <= known.keys()
    assert labels_read(query) <= OF_EACH.union(*(labels for name, (_, labels) in known.items() if name in read))


async def test_each_query_has_a_value_on_a_broker_that_works(tmp_path: Path) -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(clock=SystemClock()), registry)
    async with (
        running_broker(tmp_path, store=store, store_registry=registry, offsets_topic_num_partitions=1) as broker,
        scraped(broker, read="\n".join(QUERIES)) as prometheus,
        talk(broker.port) as client,
    ):
        await broker.create_topic("t", 1, segment_bytes="16777216", local_retention_ms="0", retention_ms="-1")
        for at_s in (0, 60):
            start = 10 * (at_s // 60)
            await produce(client, "t", batch(10))
            await tier_everything(broker, "t")
            await until(lambda end=start + 10: broker.log("t").local_log_start_offset == end)
            await fetch_all(client, "t", start=start, end=start + 10)
            await committed(client)
            await prometheus.scrape(at_s)
        without = {
            name
            for query in QUERIES
            if not prometheus.scrapes.value(query.replace("$__rate_interval", "5m").replace("$node", ".*"), 60)
            for name in metrics_read(query)
        }
    assert without == WITHOUT_VALUE


async def committed(client: Talk) -> None:
    """Commit an offset of a group without members."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    while code in (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ):
        await client.ask(ApiKey.FIND_COORDINATOR, 1, FindCoordinatorRequest(key="g"))
        answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, request)
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
    assert code is ErrorCode.NONE
