"""Fetch by followers: who is believed to be one, what is counted, and what followers are given (ADR 0024)."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import TopicConfig
from app.core.errors import ErrorCode, NotLeader, StorageUnavailable
from app.core.units import BrokerId, LeaderEpoch
from app.handlers.fetch.followers import (
    find_follower,
    moves_wait_ms,
    needs_no_record,
    note_position,
    read,
    share_of_moves,
)
from app.handlers.policy.callers import Quotas
from app.handlers.state.fetch_sessions import AskedPartition, CachedPartition, FetchSession, FetchSessions
from app.handlers.state.parked_followers import EXPECTING_MS, EXPECTING_S, HEARD_S, RESTLESS_MS, ParkedFollowers
from app.hot.reads import PageMiss
from app.metadata.image.records import Endpoint
from app.wire.fetch import FetchPartition
from tests.handlers.conversation import Talk, batch
from tests.handlers.fakes import Bench, FakeFile, FakeLog, FakeTier
from tests.handlers.fetching import FETCH, ask, offsets, only, ref, request, send
from tests.support.waiting import until

VERSION = 17
EPOCH = 4
"""Of the leader."""
BROKERS = {1: 10, 2: 20, 3: 30, 4: 40}
"""Broker epochs of the registered brokers by node id; broker 1 leads."""


def at_h(listener: str) -> Endpoint:
    return Endpoint(listener, "h", 1, "PLAINTEXT")


class Counting:
    """Counts followers as a test says."""

    def __init__(self, log: FakeLog) -> None:
        self.noted: list[dict[str, int]] = []
        self.commits = False
        self.rides: Any = None
        """Of a follower that is in sync; False if none is."""
        self._log = log

    def let_ride(self, broker_id: int, broker_epoch: int, log_end: int, ride: Any) -> bool:
        if self.rides is False:
            return False
        assert (broker_id, broker_epoch, log_end) == (2, 20, self._log.log_end_offset)
        self.rides = ride
        return True

    def note_follower(self, broker_id: int, broker_epoch: int, *, now_ms: int, **told: int) -> None:
        assert now_ms > 0
        self.noted.append({"id": broker_id, "epoch": broker_epoch, **told})
        if self.commits:
            self._log.high_watermark = self._log.last_stable_offset = told["stored_end"]


class Led:
    """A partition of three replicas that this broker leads in epoch 4, on a bench of level 1."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        image = bench.controller.image
        image.level = 1
        image.brokers = {
            node_id: SimpleNamespace(broker_id=node_id, broker_epoch=epoch, rack=None, endpoint=at_h)
            for node_id, epoch in BROKERS.items()
        }
        self.bench = bench
        self.log = bench.logs.add("t")
        self.log.leader_epoch = EPOCH
        self.counting = Counting(self.log)
        self.refused: Exception | None = None
        self.partition = followed = SimpleNamespace(
            log=self.log,
            leads=True,
            serves=True,
            reader_epoch=EPOCH,
            replicas=(1, 2, 3),
            in_sync=(1, 2, 3),
            adding=(),
            counting=self.counting,
            note_follower=self.counting.note_follower,
        )

        def require(topic: str, index: int) -> Any:
            assert (topic, index) == ("t", 0)
            if self.refused is not None:
                raise self.refused
            return followed

        monkeypatch.setattr(bench.logs.table, "require", require)
        monkeypatch.setattr(bench.logs.table, "require_replica", require)

    def request(self, offset: int = 0, *, broker: int = 2, **fields: Any) -> Any:
        partition = {
            name: fields.pop(name)
            for name in ("current_leader_epoch", "last_fetched_epoch", "log_start_offset", "stored_end")
            if name in fields
        }
        asked = FetchPartition(0, fetch_offset=offset, **{"current_leader_epoch": EPOCH, **partition})
        fields = {"replica_id": broker, "replica_epoch": BROKERS.get(broker, 50), **fields}
        return request(asked, topic=ref(self.bench, VERSION), **fields)

    def incremental(self, session_id: int, epoch: int, broker: int, *partitions: FetchPartition, **fields: Any) -> Any:
        fields = {"replica_id": broker, "replica_epoch": BROKERS.get(broker, -1), **fields}
        topic = ref(self.bench, VERSION)
        return request(*partitions, topic=topic, session_id=session_id, session_epoch=epoch, **fields)


@pytest.fixture
async def led(start, monkeypatch) -> Led:
    return Led(await start(max_incremental_fetch_session_cache_slots=1), monkeypatch)


@pytest.fixture
async def client(led, connect) -> Talk:
    return await connect(led.bench)


# --- who asks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"replica_epoch": 19}, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # the process before
        ({"replica_epoch": -1}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"replica_epoch": 21}, ErrorCode.UNKNOWN_LEADER_EPOCH),  # registered, as this broker does not know yet
        ({"broker": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"broker": 4}, ErrorCode.UNKNOWN_LEADER_EPOCH),  # no replica
        ({"broker": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),  # the leader itself
        ({"current_leader_epoch": EPOCH - 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": EPOCH + 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"current_leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": EPOCH - 1, "replica_epoch": 19}, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
async def test_who_is_no_follower_of_now_is_refused_and_not_counted(led, client, fields, code):
    led.log.append_uncommitted(batch(3))
    for _ in range(2):  # the second looks like the first
        found = only(await ask(client, VERSION, led.request(**fields, wait_ms=60_000)))
        assert (found.error_code, found.records or b"") == (code, b"")
    assert led.counting.noted == []


async def test_at_level_0_nobody_is_a_follower(led, client):
    led.bench.controller.image.level = 0
    led.log.append_uncommitted(batch(3))
    found = only(await ask(client, VERSION, led.request()))
    assert (found.error_code, found.records or b"") == (ErrorCode.UNKNOWN_LEADER_EPOCH, b"")
    assert led.counting.noted == []


@pytest.mark.parametrize("version", [11, 14])
async def test_a_version_without_broker_epochs_makes_no_follower(led, client, version):
    asked = FetchPartition(0, current_leader_epoch=EPOCH)
    found = only(await ask(client, version, request(asked, topic=ref(led.bench, version), replica_id=2)))
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_broker_is_who_it_says_only_under_its_broker_epoch():
    image: Any = SimpleNamespace(level=1, brokers={2: SimpleNamespace(broker_epoch=20)})
    assert find_follower(image, 1, 2, 20) == (2, 20)
    assert find_follower(image, 1, 2, 19) is find_follower(image, 2, 2, 20) is find_follower(image, 1, 3, 20) is None


# --- what it has, and what it is given --------------------------------------------------------------------------------


async def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark(led, client):
    led.log.append_uncommitted(batch(3))
    led.log.append_uncommitted(batch(2))
    led.log.high_watermark = led.log.last_stable_offset = 3
    found = only(await ask(client, VERSION, led.request()))
    assert (found.error_code, offsets(found.records), found.high_watermark) == (0, [0, 3], 3)
    assert bytes(found.records) == bytes(led.log.file.data)
    found = only(await ask(client, VERSION, request(FetchPartition(0), topic=ref(led.bench, VERSION))))
    assert offsets(found.records) == [0]
    assert led.log.handle.users == 0


class Charges(Quotas):
    """Quotas that limit nothing, and note each charge."""

    def __init__(self) -> None:
        self.charged: list[int] = []

    def charge(self, caller: Any, client_id: str | None, api_key: int, size_bytes: int) -> int:
        self.charged.append(size_bytes)
        return 0


@pytest.mark.parametrize("session_epoch", [-1, 0], ids=["without a session", "in a session"])
@pytest.mark.parametrize(
    ("sender", "result", "counted", "charged", "waits_for"),
    [
        ({"replica_id": -1, "replica_epoch": -1}, (0, [0]), 0, ["the records"], "commits"),
        ({}, (0, [0, 3]), 1, [], "appends"),
        ({"broker": 4}, (ErrorCode.UNKNOWN_LEADER_EPOCH, []), 0, [], None),
        ({"broker": 9}, (ErrorCode.UNKNOWN_LEADER_EPOCH, []), 0, ["nothing"], None),
        ({"replica_epoch": 19}, (ErrorCode.NOT_LEADER_OR_FOLLOWER, []), 0, ["nothing"], None),
    ],
    ids=["a consumer", "a follower", "a broker without a replica", "no broker", "an earlier process"],
)
async def test_each_kind_of_sender_has_its_own_records_count_charge_and_wait(
    led, client, session_epoch, sender, result, counted, charged, waits_for
):
    led.log.append_uncommitted(batch(3))
    committed_bytes = len(led.log.file.data)
    led.log.append_uncommitted(batch(2))
    led.log.high_watermark = led.log.last_stable_offset = 3
    led.bench.context.quotas = charges = Charges()
    found = only(await ask(client, VERSION, led.request(session_epoch=session_epoch, **sender)))
    assert (found.error_code, offsets(found.records or b"")) == result
    assert len(led.counting.noted) == counted
    assert charges.charged == [{"the records": committed_bytes, "nothing": 0}[one] for one in charged]
    at_end = 3 if waits_for == "commits" else 5
    sent = send(client, VERSION, led.request(at_end, session_epoch=session_epoch, wait_ms=60_000, **sender))
    if waits_for is None:
        assert (await client.answer(FETCH, VERSION))[0] == sent, "it is refused at once"
    else:
        await until(lambda: led.log.waiters or led.log.tail_waiters, pause_s=0)
        in_session = waits_for == "appends" and session_epoch == 0  # a watch hears of commits, too
        assert (bool(led.log.waiters), bool(led.log.tail_waiters)) == (
            waits_for == "commits" or in_session,
            waits_for == "appends",
        )


async def test_no_request_of_a_follower_is_served_as_a_remembered_one_of_a_consumer(led, client):
    led.log.append_uncommitted(batch(3))
    consumer = {"replica_id": -1, "replica_epoch": -1}
    for _ in range(2):
        assert not only(await ask(client, VERSION, led.request(**consumer))).records
        found = only(await ask(client, VERSION, led.request()))
        assert offsets(found.records) == [0], "it is not committed"


async def test_a_position_counts_before_the_answer_is_made(led, client):
    led.log.append_uncommitted(batch(3))
    led.log.append_uncommitted(batch(2))
    led.counting.commits = True
    asked = led.request(3, last_fetched_epoch=EPOCH, stored_end=3, log_start_offset=0)
    found = only(await ask(client, VERSION, asked))
    assert (offsets(found.records), found.high_watermark, found.last_stable_offset) == ([3], 3, 3)
    assert led.counting.noted == [
        {"id": 2, "epoch": 20, "fetch_offset": 3, "stored_end": 3, "log_end": 5, "log_start": 0}
    ]


@pytest.mark.parametrize(
    ("offset", "last_epoch", "stored", "counted"),
    [
        (3, EPOCH, 1, (3, 1)),  # S1
        (3, EPOCH, -1, (3, -1)),
        (3, EPOCH, 5, (3, 3)),  # nobody has stored what it did not fetch
        (1, -1, 1, (1, 1)),  # nothing is there that could be of another history
        (2, -1, 2, (2, 2)),  # R10: the tier has all that is not there
        (3, -1, 3, None),  # R10: it may lack a record
    ],
)
def test_what_counts_of_a_follower(offset, last_epoch, stored, counted):
    log: Any = FakeLog("t", config=TopicConfig(remote_storage_enable=True))
    log.append_uncommitted(batch(5))
    log.log_start_offset = 1
    context: Any = SimpleNamespace(remote_log_manager=FakeTier())
    context.remote_log_manager.manifest = SimpleNamespace(tiered_end=2)
    counting = Counting(log)
    asked = CachedPartition(AskedPartition("t", 0, offset, 1 << 20, EPOCH, last_epoch, stored))
    led = SimpleNamespace(log=log, counting=counting, note_follower=counting.note_follower)
    note_position(context, led, find_follower_2(), asked, 7)
    assert [(one["fetch_offset"], one["stored_end"]) for one in counting.noted] == (
        [] if counted is None else [counted]
    )
    note_position(context, SimpleNamespace(log=log, counting=None), find_follower_2(), asked, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("knows", [True, False])
def test_r10_without_a_tier_an_empty_follower_counts_at_the_log_start_alone(knows):
    log: Any = FakeLog("t", config=TopicConfig(remote_storage_enable=not knows))
    log.append_uncommitted(batch(5))
    context: Any = SimpleNamespace(remote_log_manager=FakeTier())
    context.remote_log_manager.manifest = SimpleNamespace(tiered_end=5) if knows else None
    asked = CachedPartition(AskedPartition("t", 0, 5, 1 << 20, EPOCH, -1, 5))
    assert not needs_no_record(context, log, asked)


def find_follower_2() -> Any:
    return find_follower(SimpleNamespace(level=1, brokers={2: SimpleNamespace(broker_epoch=20)}), 1, 2, 20)  # type: ignore[arg-type]


async def test_a_follower_at_the_end_waits_for_an_append_that_is_not_committed_and_counts_once(led, client):
    send(client, VERSION, led.request(wait_ms=60_000))
    await until(lambda: led.log.tail_waiters, pause_s=0)
    assert not led.log.waiters
    led.log.append_uncommitted(batch(2))
    found = only((await client.answer(FETCH, VERSION))[1])
    assert (offsets(found.records), found.high_watermark) == ([0], 0)
    assert not led.log.tail_waiters
    assert len(led.counting.noted) == 1


async def test_a_follower_that_waits_is_checked_again_and_told_when_another_leads(led, client):
    send(client, VERSION, led.request(wait_ms=60_000))
    await until(lambda: led.log.tail_waiters, pause_s=0)
    led.bench.controller.image.brokers[2].broker_epoch = 21
    led.log.append_uncommitted(batch(2))
    found = only((await client.answer(FETCH, VERSION))[1])
    assert (found.error_code, found.records or b"") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
    led.log.file.data.clear()
    led.log.log_end_offset = 0
    send(client, VERSION, led.request(replica_epoch=21, wait_ms=60_000))
    await until(lambda: led.log.tail_waiters, pause_s=0)
    led.refused = NotLeader("broker 3 leads", BrokerId(3), LeaderEpoch(5))
    led.log.tail_waiters[0]()
    found = only((await client.answer(FETCH, VERSION))[1])
    assert (found.error_code, found.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)


@pytest.mark.parametrize("parts_at", [(2, 1), (2, 3), (3, 1)])
async def test_a_follower_of_another_history_is_told_where_it_parts_and_is_not_counted(led, client, parts_at):
    led.log.append_uncommitted(batch(3))
    led.log.epoch_end_offset = lambda epoch: parts_at
    asked = led.request(3, last_fetched_epoch=3, stored_end=3, wait_ms=60_000)
    found = only(await ask(client, VERSION, asked))
    assert (found.error_code, found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (0, *parts_at)
    assert led.counting.noted == []


@pytest.mark.parametrize(
    ("offset", "last_epoch", "code"),
    [
        (1, EPOCH, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, 3, ErrorCode.OFFSET_OUT_OF_RANGE),  # also if its history parts
        (2, EPOCH, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE),
        (3, EPOCH, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE),
        (7, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (4, 9, ErrorCode.OFFSET_OUT_OF_RANGE),  # no such epoch
    ],
)
async def test_outside_of_the_local_log_a_follower_is_told_its_ends_and_the_store_is_not_asked(
    led, client, offset, last_epoch, code
):
    log = led.log
    log.append_uncommitted(batch(6))
    log.high_watermark = log.last_stable_offset = 6
    log.log_start_offset, log.local_log_start_offset = 2, 4
    log.epoch_end_offset = lambda epoch: (-1, -1) if epoch > EPOCH else (epoch, 6 if epoch == EPOCH else 0)
    asked = led.request(offset, last_fetched_epoch=last_epoch, wait_ms=60_000)
    found = only(await ask(client, VERSION, asked))
    assert (found.error_code, found.high_watermark, found.log_start_offset) == (code, 6, 2)
    assert found.records in (None, b"")
    assert (led.bench.remote.asked, led.counting.noted) == ([], [])
    found = only(await ask(client, VERSION, led.request(4, last_fetched_epoch=EPOCH)))
    assert found.error_code == 0


@pytest.mark.parametrize(
    ("offset", "last_epoch", "lacking_bytes", "moved"),
    [
        (0, -1, 1, True),  # it has nothing
        (1, EPOCH, 101, True),  # more than a segment
        (1, EPOCH, 100, False),
        (3, EPOCH, 1000, False),  # it has reached the tiered end
    ],
)
async def test_t5_a_follower_that_has_nothing_or_lacks_much_begins_in_the_tier(
    led, client, offset, last_epoch, lacking_bytes, moved
):
    log = led.log
    log.append_uncommitted(batch(3))
    log.append_uncommitted(batch(3))
    log.high_watermark = log.last_stable_offset = 6
    log.epoch_end_offset = lambda epoch: (epoch, 6)
    log.config = replace(log.config, segment_bytes=100)
    led.bench.context.remote_log_manager.manifest = SimpleNamespace(
        tiered_end=3,
        finished=[SimpleNamespace(raw_bytes=lacking_bytes)],
        state=SimpleNamespace(index_at=lambda offset: 0),
    )
    found = only(await ask(client, VERSION, led.request(offset, last_fetched_epoch=last_epoch)))
    assert found.error_code == (ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE if moved else 0)
    log.config = replace(log.config, remote_storage_enable=False)
    found = only(await ask(client, VERSION, led.request(offset, last_fetched_epoch=last_epoch)))
    assert found.error_code == 0


async def test_what_followers_get_is_neither_consumption_nor_charged_to_a_client(led, client):
    led.log.append_uncommitted(batch(3))
    size = len(led.log.file.data)
    led.bench.context.quotas = charges = Charges()
    await ask(client, VERSION, led.request())
    bench = led.bench
    assert bench.counter("firn_replication_bytes_out_total") == size
    assert bench.counter("firn_bytes_out_total") == bench.counter("firn_records_out_total") == 0
    assert (led.log.sent_bytes, led.log.sent_records, charges.charged) == (0, 0, [])
    led.log.high_watermark = 3
    await ask(client, VERSION, request(FetchPartition(0), topic=ref(bench, VERSION)))
    assert bench.counter("firn_bytes_out_total") == bench.counter("firn_replication_bytes_out_total") == size
    assert (led.log.sent_bytes, charges.charged) == (size, [size])


async def test_indexes_that_are_not_in_memory_are_read_first_and_a_fault_of_the_disk_is_told(led, client, monkeypatch):
    led.log.append_uncommitted(batch(3))
    whole, faults = led.log.plan_read, 0

    async def fetch(miss: PageMiss, pool: Any) -> None:
        nonlocal faults
        if faults:
            raise StorageUnavailable("the disk is gone")
        led.log.plan_read = whole

    def not_in_memory(*_: Any, **__: Any) -> Any:
        raise PageMiss(SimpleNamespace(deleted=False), lambda: None, lambda _: None)

    monkeypatch.setattr(PageMiss, "fetch", fetch)
    led.log.plan_read = not_in_memory
    assert offsets(only(await ask(client, VERSION, led.request())).records) == [0]
    led.log.plan_read, faults = not_in_memory, 1
    assert only(await ask(client, VERSION, led.request(wait_ms=60_000))).error_code == ErrorCode.KAFKA_STORAGE_ERROR


class CachedFile(FakeFile):
    def is_cached(self, position: int, length: int) -> bool:
        return True

    def fileno(self) -> int:
        return 99


def test_only_committed_records_are_sent_by_reference():
    log: Any = FakeLog("t")
    log.file = log.handle.file = CachedFile()
    log.append_uncommitted(batch(3))
    log.append_uncommitted(batch(3))
    for high_watermark, sent_by in ((6, 99), (5, -1), (0, -1)):
        log.high_watermark = high_watermark
        found = read(log, 0, 1 << 20, min_one_batch=True)
        assert found.range is not None
        assert (found.range.reference(0, 10), found.end_offset, found.at_end) == (sent_by, 6, True)
        found.range.release()
    first = read(log, 0, 1, min_one_batch=True)
    assert first.range is not None
    assert (first.end_offset, first.at_end) == (3, False)
    first.range.release()
    assert read(log, 0, 0, min_one_batch=False) == (ErrorCode.NONE, None, None, 0, False)
    assert read(log, 6, 1 << 20, min_one_batch=True).at_end


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_a_session_keeps_the_position_and_tells_it_anew_with_each_request(led, client):
    led.log.append_uncommitted(batch(3))
    full = await ask(client, VERSION, led.request(session_epoch=0))
    assert full.session_id
    moved = FetchPartition(0, EPOCH, 3, EPOCH, -1, 1 << 20, 2)
    led.counting.rides = False
    for epoch, told in ((1, [moved]), (2, [])):
        await ask(client, VERSION, led.incremental(full.session_id, epoch, 2, *told))
    assert [(one["fetch_offset"], one["stored_end"]) for one in led.counting.noted] == [(0, -1), (3, 2), (3, 2)]


async def session_at_the_end(led: Led, client: Talk) -> int:
    """A session whose follower has all three records, and whose next epoch is 2."""
    led.log.append_uncommitted(batch(3))
    full = await ask(client, VERSION, led.request(session_epoch=0))
    moved = FetchPartition(0, EPOCH, 3, EPOCH, -1, 1 << 20, 3)
    await ask(client, VERSION, led.incremental(full.session_id, 1, 2, moved))
    assert len(led.counting.noted) == 2
    return full.session_id


async def test_a_partition_with_nothing_to_tell_is_not_looked_at_until_its_log_grows(led, client):
    session_id = await session_at_the_end(led, client)
    asked_ms = led.counting.rides.asked_ms
    assert asked_ms > 0
    led.refused = NotLeader("not looked at", BrokerId(3), LeaderEpoch(5))
    await asyncio.sleep(0.002)
    assert (await ask(client, VERSION, led.incremental(session_id, 2, 2))).responses == []
    assert len(led.counting.noted) == 2
    assert led.counting.rides.asked_ms > asked_ms  # W2: the request shows that the follower has all of it
    led.refused = None
    send(client, VERSION, led.incremental(session_id, 3, 2, wait_ms=60_000))
    await until(lambda: led.log.tail_waiters, pause_s=0)
    await asyncio.sleep(0.002)
    led.log.append_uncommitted(batch(2))
    found = only((await client.answer(FETCH, VERSION))[1])
    assert offsets(found.records) == [3]
    frozen_ms = led.counting.rides.asked_ms
    await asyncio.sleep(0.002)
    found = only(await ask(client, VERSION, led.incremental(session_id, 4, 2)))
    assert offsets(found.records) == [3], "it has not told that it has them"
    assert led.counting.noted[-1]["fetch_offset"] == 3
    assert led.counting.rides.asked_ms == frozen_ms  # W2: it is behind since the append


async def test_a_high_watermark_that_moved_is_told_with_the_next_answer(led, client):
    session_id = await session_at_the_end(led, client)
    led.log.high_watermark = 3
    for waiter in led.log.waiters:
        waiter()
    assert only(await ask(client, VERSION, led.incremental(session_id, 2, 2))).high_watermark == 3
    assert len(led.counting.noted) == 3
    assert (await ask(client, VERSION, led.incremental(session_id, 3, 2))).responses == []


SOON_S = 20.0
"""A fetch that asks for a minute is answered in less."""


async def test_a_fetch_with_nothing_to_tell_waits_until_a_high_watermark_moves(led, client):
    session_id = await session_at_the_end(led, client)
    send(client, VERSION, led.incremental(session_id, 2, 2, wait_ms=60_000))
    answer = asyncio.ensure_future(client.answer(FETCH, VERSION))
    assert not (await asyncio.wait([answer], timeout=0.7))[0]
    led.log.high_watermark = 3
    for waiter in led.log.waiters:
        waiter()
    async with asyncio.timeout(SOON_S):
        assert only((await answer)[1]).high_watermark == 3


async def test_a_fetch_that_comes_with_something_untold_waits_shortly(led, client):
    session_id = await session_at_the_end(led, client)
    for waiter in led.log.waiters:
        waiter()
    async with asyncio.timeout(SOON_S):
        assert (await ask(client, VERSION, led.incremental(session_id, 2, 2, wait_ms=60_000))).responses == []
    led.counting.rides = False  # it has something, and stays due
    moved = FetchPartition(0, EPOCH, 3, EPOCH, -1, 1 << 20, 2)
    async with asyncio.timeout(SOON_S):
        assert (await ask(client, VERSION, led.incremental(session_id, 3, 2, moved, wait_ms=60_000))).responses == []


async def test_after_a_change_of_leaders_a_follower_is_asked_soon_whom_it_follows(led, client):
    parked = led.bench.context.parked_followers
    session_id = await session_at_the_end(led, client)
    send(client, VERSION, led.incremental(session_id, 2, 2, wait_ms=60_000))
    await until(lambda: parked.waiting, pause_s=0)
    parked.leaders_changed()
    async with asyncio.timeout(SOON_S):
        assert (await client.answer(FETCH, VERSION))[1].responses == []
        assert not parked.waiting
        assert parked.restless
        assert (await ask(client, VERSION, led.incremental(session_id, 3, 2, wait_ms=60_000))).responses == []


def test_leaders_that_have_changed_long_ago_are_known_to_all():
    now_s = 0.0
    parked = ParkedFollowers(lambda: now_s)
    assert not parked.restless
    parked.leaders_changed()
    now_s = HEARD_S - 0.1
    assert parked.restless
    now_s = HEARD_S
    assert not parked.restless


async def test_a_broker_that_begins_to_lead_answers_those_who_follow_it_soon(led, client):
    parked = led.bench.context.parked_followers
    session_id = await session_at_the_end(led, client)
    send(client, VERSION, led.incremental(session_id, 2, 2, wait_ms=60_000))
    await until(lambda: parked.waiting, pause_s=0)
    parked.began_to_lead()
    async with asyncio.timeout(SOON_S):
        assert (await client.answer(FETCH, VERSION))[1].responses == []
        assert not parked.waiting


def test_fetches_wait_shorter_the_newer_the_change():
    now_s = 0.0
    parked = ParkedFollowers(lambda: now_s)
    hurried = []
    parked.waiting[hurried.append] = None
    assert parked.wait_ms(2000, restless=False) == 2000
    assert parked.wait_ms(2000, restless=True) == RESTLESS_MS
    parked.leaders_changed()
    assert parked.wait_ms(2000, restless=False) == RESTLESS_MS
    parked.began_to_lead()
    parked.began_to_lead()  # thousands of partitions in one turn hurry nobody twice
    assert hurried == [RESTLESS_MS, EXPECTING_MS]
    assert parked.wait_ms(2000, restless=False) == EXPECTING_MS
    assert parked.wait_ms(5, restless=False) == 5
    now_s = EXPECTING_S
    assert parked.wait_ms(2000, restless=False) == RESTLESS_MS
    now_s = HEARD_S
    assert parked.wait_ms(2000, restless=False) == 2000


async def test_a_partition_that_was_forgotten_shows_no_follower_to_be_caught_up(led, client):
    session_id = await session_at_the_end(led, client)
    ride = led.counting.rides
    await ask(client, VERSION, led.incremental(session_id, 2, 2, forgotten=[(ref(led.bench, VERSION), [0])]))
    frozen_ms = ride.asked_ms
    assert not led.log.tail_waiters
    await asyncio.sleep(0.002)
    assert ride.asked_ms == frozen_ms


async def test_a_checked_follower_takes_the_place_of_a_consumers_session_and_a_liar_does_not(led, client, connect):
    topic = ref(led.bench, VERSION)
    stranger = await connect(led.bench)
    consumer = await ask(client, VERSION, request(FetchPartition(0), topic=topic, session_epoch=0))
    assert consumer.session_id
    for fields in ({"replica_epoch": 19}, {"broker": 1}, {"broker": 9}):
        assert (await ask(stranger, VERSION, led.request(session_epoch=0, **fields))).session_id == 0
    follower = await ask(stranger, VERSION, led.request(session_epoch=0))
    assert follower.session_id
    gone = await ask(client, VERSION, request(topic=topic, session_id=consumer.session_id, session_epoch=1))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (await ask(client, VERSION, request(FetchPartition(0), topic=topic, session_epoch=0))).session_id == 0


async def test_nobody_goes_on_with_the_session_of_a_follower_or_ends_it(led, client, connect):
    stranger = await connect(led.bench)
    session_id = (await ask(client, VERSION, led.request(session_epoch=0))).session_id
    noted = len(led.counting.noted)
    for broker, fields in ((3, {}), (-1, {}), (2, {"replica_epoch": 19})):
        answer = await ask(stranger, VERSION, led.incremental(session_id, 1, broker, **fields))
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        await ask(stranger, VERSION, led.incremental(session_id, -1, broker, FetchPartition(0), **fields))
    assert len(led.counting.noted) == noted
    mine = await ask(client, VERSION, led.incremental(session_id, 1, 2))
    assert (mine.error_code, mine.session_id) == (0, session_id)
    await ask(client, VERSION, led.incremental(session_id, -1, 2))
    assert (await ask(client, VERSION, led.incremental(session_id, 2, 2))).error_code == (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


# --- moves beside what is in sync (V9) --------------------------------------------------------------------------------


def test_v9_a_move_has_a_share_only_while_the_session_is_given_records_that_it_is_in_sync_for():
    session = FetchSession(1, True, (2, 20), 0)
    assert share_of_moves(session, 0.0, 5_000) is None
    session.in_sync_ms = 5_000
    assert share_of_moves(session, 0.0, 5_010) == 200_000
    session.moves_bytes -= 300_000  # a large batch, which is sent whole
    assert share_of_moves(session, 0.0, 5_010) == 0
    assert moves_wait_ms(session) == 6
    assert share_of_moves(session, 0.0, 5_016) == 20_000
    assert share_of_moves(session, 0.0, 5_999) == 1_000_000, "what is saved has a bound"
    assert share_of_moves(session, 0.0, 6_000) is None


def test_v9_a_move_gets_more_than_producers_append():
    session = FetchSession(1, True, (2, 20), 0)
    session.in_sync_ms = 5_000
    share_of_moves(session, 7_000_000.0, 5_000)
    session.moves_bytes = 0
    assert share_of_moves(session, 17_000_000.0, 5_001) == 20_020_000


def test_v9_moves_are_looked_at_in_turn():
    cache: FetchSessions = FetchSessions(1, random.Random(1))
    wanted = [AskedPartition("t", index, 0, 1 << 20, EPOCH, EPOCH) for index in range(4)]
    plan = cache.plan(0, 0, wanted, (), uses_topic_ids=True, follower=(2, 20), now_ms=1)
    session = plan.followed
    assert session is not None
    zero, one, two, three = session.to_look_at()
    for cached in (one, two, three):
        session.let_move(cached)
    assert session.to_look_at(1) == [zero, one]
    session.let_move(one)
    assert session.to_look_at(2) == [zero, two, three]
    session.let_move(three)
    session.let_go(one)
    assert session.to_look_at() == [zero, two, three]
    assert not session.moving


async def test_v9_beside_records_in_sync_a_move_waits_until_it_has_a_share(led, client):
    led.partition.adding, led.partition.in_sync = (2,), (1, 3)
    led.log.append_uncommitted(batch(3))
    full = await ask(client, VERSION, led.request(session_epoch=0))
    assert offsets(only(full).records) == [0], "nothing else is sent on this connection"
    cache: FetchSessions = led.bench.context.fetch_sessions
    plan = cache.plan(full.session_id, 1, [], (), uses_topic_ids=True, follower=(2, 20), now_ms=1)
    [cached], session = plan.partitions, plan.followed
    assert session is not None
    loop = asyncio.get_running_loop()
    session.moves_ms = int(loop.time() * 1000)
    session.in_sync_ms = session.moves_ms + 3_600_000  # it stays beside them, however long a turn takes
    session.moves_bytes = -2_000_000  # a tenth of a second
    send(client, VERSION, led.incremental(full.session_id, 2, 2, wait_ms=1_000_000))
    await until(lambda: session.moving, pause_s=0)
    assert list(session.moving) == [cached]
    epoch = 2
    async with asyncio.timeout(60):
        # While leaders change a fetch waits until a moment that it shares with others, which may come before.
        while not (answer := (await client.answer(FETCH, VERSION))[1]).responses:
            epoch += 1
            send(client, VERSION, led.incremental(full.session_id, epoch, 2, wait_ms=1_000_000))
        found = only(answer)
    assert offsets(found.records) == [0], "it comes although nothing has happened but time"
    assert session.moves_bytes > -100_000, "it has waited until what it had too much was made up for"
