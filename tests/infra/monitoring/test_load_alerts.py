"""Alerts on load and security fire when their faults happen to brokers, and only then.

The metrics are those that the HTTP process serves. Only the times of the scrapes are made up, so that nothing waits for minutes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.core.units import TimestampMs
from app.handlers.base.api import Api
from app.machine.runtime import SystemClock
from app.metadata.image.records import SECURITY_LEVEL
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from app.wire.apis.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.broker.guarded import ALICE, guarded, written
from tests.handlers.conversation import Talk, batch, talk
from tests.support.alerts import causes, scraped, until_counted
from tests.support.broker import running_broker
from tests.support.scraping import Prometheus, minutes
from tests.support.secured import add_certificate, certificates, listener, security
from tests.support.waiting import until

HOUR_MS = 3_600_000


class Shifted(SystemClock):
    """The machine's wall clock, and some time more."""

    ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.ahead_ms)


# --- load -------------------------------------------------------------------------------------------------------------


@pytest.mark.ci
@causes("FirnLoopStalls")
async def test_a_loop_that_stands_still_again_and_again_is_told_of(tmp_path: Path) -> None:
    held_s = 0.0

    def handle(context: Any, request: Any, message: Any) -> Any:
        threading.Event().wait(held_s)  # as for a disk
        return DescribeClusterResponse()

    async with running_broker(tmp_path) as broker, scraped(broker) as prometheus, talk(broker.port) as client:
        watch = broker.node.watch_loop()
        assert watch is not None
        key = int(ApiKey.DESCRIBE_CLUSTER)
        found: Api = broker.node.server.apis[key]
        stalled_s = 0.0
        await prometheus.scrape(*minutes(0, 5))
        assert prometheus.firing("FirnLoopStalls", 300) == []
        # Two per cent of five minutes, and of some seconds before and after them.
        for at_s, held_s in ((600, 0.0), (610, 0.4), (900, 6.4), (910, 0.4)):
            if held_s:
                broker.node.server.apis = {**broker.node.server.apis, key: found._replace(handle=handle)}
                await client.ask(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
                broker.node.server.apis = {**broker.node.server.apis, key: found}
                stalled_s += held_s * 0.9
                await until_counted(prometheus, "firn_loop_stalled_seconds_total", stalled_s)
            await prometheus.scrape(at_s)
        assert [one["node_id"] for one in prometheus.firing("FirnLoopStalls", 910)] == ["1"]
        await prometheus.scrape(*minutes(30, 40))
        assert prometheus.firing("FirnLoopStalls", 40 * 60) == []
        watch.stop()


@pytest.mark.ci
@causes("FirnQuotaBreached")
async def test_a_client_beyond_its_quota_is_told_of_until_the_quota_is_raised(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=SECURITY_LEVEL) as broker, scraped(broker) as prometheus:
        await broker.create_topic("t")

        async def limit(rate: int) -> None:
            command = ["quota", "set", "--user", "ANONYMOUS", f"producer_byte_rate={rate}"]
            assert await asyncio.to_thread(main, [*command, "--bootstrap", broker.bootstrap]) == 0

        async def throttled() -> int:
            async with talk(broker.port) as client:
                answer = await client.produce(9, [("t", [(0, batch(1, value=b"x" * 50_000))])])
            return int(answer.throttle_time_ms)

        await limit(100)
        await prometheus.scrape(*minutes(0, 1))
        assert prometheus.firing("FirnQuotaBreached", 60) == []
        for at_s in minutes(2, 13):
            assert await throttled() > 0
            await prometheus.scrape(at_s)
        assert [one["quota"] for one in prometheus.firing("FirnQuotaBreached", 13 * 60)] == ["producer_byte_rate"]
        await limit(1_000_000_000)
        while await throttled():
            await asyncio.sleep(0.05)
        for at_s in minutes(20, 31):
            assert await throttled() == 0
            await prometheus.scrape(at_s)
        assert prometheus.firing("FirnQuotaBreached", 31 * 60) == []


async def _initialize(client: Talk, timeout_ms: int) -> InitProducerIdResponse:
    await client.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]))
    async with asyncio.timeout(60):
        while True:
            request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=timeout_ms)
            answer: InitProducerIdResponse = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
            if not answer.error_code:
                return answer
            await asyncio.sleep(0.01)


@causes("FirnTransactionOpenTooLong")
async def test_a_transaction_is_open_too_long_until_its_producer_is_started_again(tmp_path: Path) -> None:
    clock = Shifted()
    settings = {"clock": clock, "transaction_max_timeout_ms": 4 * HOUR_MS}
    async with (
        running_broker(tmp_path, **settings) as broker,
        scraped(broker) as prometheus,
        talk(broker.port) as client,
    ):
        await broker.create_topic("t")
        producer = await _initialize(client, 2 * HOUR_MS)
        added = await client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic("t", partitions=[0])],
            ),
        )
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        await prometheus.scrape(*minutes(0, 1))
        assert prometheus.firing("FirnTransactionOpenTooLong", 60) == []
        clock.ahead_ms = 1_000_000
        await prometheus.scrape(*minutes(17, 18))
        assert [one["node_id"] for one in prometheus.firing("FirnTransactionOpenTooLong", 18 * 60)] == ["1"]
        await _initialize(client, 2 * HOUR_MS)  # aborts it
        await prometheus.scrape(19 * 60)
        assert prometheus.firing("FirnTransactionOpenTooLong", 19 * 60) == []


async def _until_cleaning_fails(prometheus: Prometheus, broken: int) -> None:
    async with asyncio.timeout(60):
        while await prometheus.value("firn_log_cleaner_uncleanable_logs") != broken:
            await asyncio.sleep(0.01)


@pytest.mark.ci
@causes("FirnCompactionBehind")
async def test_compaction_is_behind_while_a_log_is_damaged_below_its_start(tmp_path: Path) -> None:
    settings = {"log_cleaner_backoff_ms": 20, "log_cleaner_enable": True}
    compacted = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0", "remote_storage_enable": "false"}
    async with (
        running_broker(tmp_path, **settings) as broker,
        scraped(broker) as prometheus,
        talk(broker.port) as client,
    ):
        await broker.create_topic("t", **compacted)
        await prometheus.scrape(*minutes(0, 10))
        assert prometheus.firing("FirnCompactionBehind", 600) == []
        keyed = [build_batch([(1_700_000_000_000, b"k", b"%d" % at, ())]) for at in range(10)]
        for one in keyed:
            answer = await client.produce(9, [("t", [(0, one)])])
            assert answer.responses[0].partition_responses[0].error_code == 0
        log = broker.log("t")
        path = Path(log.segments()[0].path)
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
        log.roll()
        await _until_cleaning_fails(prometheus, 1)
        await prometheus.scrape(*minutes(20, 30))
        assert [one["node_id"] for one in prometheus.firing("FirnCompactionBehind", 30 * 60)] == ["1"]

        async def run(*command: str) -> None:
            assert await asyncio.to_thread(main, [*command, "--bootstrap", broker.bootstrap]) == 0

        await run("topic", "alter", "t", "--config", "cleanup.policy=compact,delete")
        await run("topic", "delete-records", "t", "--partition", "0", "--before", "10", "--yes")
        await run("topic", "alter", "t", "--config", "cleanup.policy=compact")
        await _until_cleaning_fails(prometheus, 0)
        await prometheus.scrape(31 * 60)
        assert prometheus.firing("FirnCompactionBehind", 31 * 60) == []


# --- security ---------------------------------------------------------------------------------------------------------


@causes("FirnCertificateExpires")
async def test_a_certificate_that_ends_soon_is_told_of_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.security.listener_doors.LOOK_S", 0.02)
    folder = certificates(tmp_path / "tls")
    add_certificate(folder, "broker", "localhost", "127.0.0.1", days=90)
    doors = security(listener("PLAINTEXT"), listener("SSL", folder))
    async with running_broker(tmp_path / "b", **doors) as broker, scraped(broker) as prometheus:
        began_s = datetime.now(UTC).timestamp()
        for at_s, days in ((began_s, 90), (began_s + 60, 5), (began_s + 120, 90)):
            add_certificate(folder, "broker", "localhost", "127.0.0.1", days=days)
            end_s = datetime.now(UTC).timestamp() + days * 86_400
            async with asyncio.timeout(60):
                while abs(await prometheus.value("firn_certificate_expiry_timestamp_seconds") - end_s) > 3600:
                    await asyncio.sleep(0.01)
            await prometheus.scrape(at_s)
            fires = [one["listener"] for one in prometheus.firing("FirnCertificateExpires", at_s)]
            assert fires == ["SSL"] * (days == 5)


@causes("FirnAuditLinesLost")
async def test_lines_of_the_audit_log_are_lost_while_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    async with guarded(tmp_path, firn_audit_log_path=str(path)) as broker, scraped(broker.broker) as prometheus:
        await prometheus.scrape(0)
        assert prometheus.firing("FirnAuditLinesLost", 0) == []
        audit = broker.broker.node.audit
        assert audit is not None
        assert audit.file is not None
        file, write = audit.file._file, os.write

        def fail(descriptor: int, data: bytes) -> int:
            if descriptor == file._descriptor:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data)

        with monkeypatch.context() as full:
            full.setattr(os, "write", fail)
            async with broker.as_user(ALICE) as alice:
                assert await written(alice, "no-such") != 0
                await until_counted(prometheus, "firn_audit_lines_lost_total")
        await prometheus.scrape(60)
        assert [one["node_id"] for one in prometheus.firing("FirnAuditLinesLost", 60)] == ["1"]
        async with broker.as_user(ALICE) as alice:
            assert await written(alice, "another") != 0
        await until(lambda: b"another" in path.read_bytes())
        await prometheus.scrape(*minutes(17, 18))
        assert prometheus.firing("FirnAuditLinesLost", 18 * 60) == []
