"""Segment files that are missing in the middle of a log when a broker starts: read from the store, fetched again, or told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.broker.replication.followers import Followers
from app.configs import TopicConfig
from app.core.errors import BrokerUnavailable, ErrorCode
from app.core.faults import Faults
from app.core.units import BrokerId, TopicIdPartition
from app.hot.checkpoints import CLEAN_SHUTDOWN_FILE, CLEANER_OFFSETS_FILE, RECOVERY_POINTS_FILE
from app.hot.log import PartitionLog
from app.hot.state_file import STATE_FILE
from app.metadata.membership.member import ClusterMember
from app.records.builder import build_batch
from app.replication.roles import Role
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import batch, talk
from tests.hot.helpers import NOW, manager_over, new_log, sim
from tests.hot.helpers import batch as record
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.talking import fetch_all, headers, produce, tier_everything
from tests.support.waiting import until

BATCHES = 12
"""Of ten records each; a segment holds three."""
END = BATCHES * 10
SETTINGS: dict[str, Any] = {
    "replica_lag_time_max_ms": 600_000,
    "broker_session_timeout_ms": 600_000,
    "remote_log_manager_task_interval_ms": 50,
}
"""No follower leaves the in-sync set because it is slow or away."""


async def fill(broker: RunningBroker, first: int = 0, count: int = BATCHES) -> None:
    async with talk(broker.port) as client:
        await produce(client, "t", *[batch(10, value=b"%d" % n * 30_000) for n in range(first, first + count)])


async def bases(broker: RunningBroker, start: int = 0, end: int = END) -> list[int]:
    async with talk(broker.port) as client:
        return [one.base_offset for one in headers(await fetch_all(client, "t", start=start, end=end))]


def lose_the_second_segment(data_dir: Path) -> tuple[int, int]:
    """Let a stop in order look like a kill, and the log of ``t`` lack a file. Returns: the range that is lost."""
    for name in (CLEAN_SHUTDOWN_FILE, STATE_FILE):
        (data_dir / name).unlink(missing_ok=True)
    logs = sorted((data_dir / "t-0").glob("*.log"))
    assert len(logs) > 3
    logs[1].unlink()
    return int(logs[1].stem), int(logs[2].stem)


async def code_at(broker: RunningBroker, offset: int) -> ErrorCode:
    async with talk(broker.port) as client:
        client.correlation_id += 1
        request = FetchRequest(max_wait_ms=1000, topics=[("t", [FetchPartition(0, -1, offset)])])
        client.writer.write(encode_fetch_request(12, client.correlation_id, "test", request))
        _, answer = await client.answer(1, 12)
        return ErrorCode(answer.responses[0].partitions[0].error_code)


async def stored(broker: RunningBroker) -> bytes:
    """All records on the disk of a broker."""
    log, data, offset = broker.log("t"), bytearray(), 0
    while offset < END:
        read = await log.read_when_ready(offset, 1 << 20, end_offset=END)
        found = read.try_read_now()
        data += await read.read_bytes() if found is None else found
        offset = read.end_offset
    return bytes(data)


@pytest.mark.ci
async def test_lost_records_that_nothing_has_are_an_error_and_the_others_are_served(tmp_path: Path) -> None:
    async with member(tmp_path, 1) as broker:
        await broker.create_topic("t", segment_bytes="1048576", remote_storage_enable="false")
        await fill(broker)
    start, end = lose_the_second_segment(tmp_path / "broker-1" / "data")
    async with member(tmp_path, 1) as broker:
        assert [line for line in broker.lines if f"lacks offsets [{start}, {end}): segment files are missing" in line]
        assert await bases(broker, end=start) == list(range(0, start, 10))
        assert {await code_at(broker, lost) for lost in (start, end - 1)} == {ErrorCode.KAFKA_STORAGE_ERROR}
        await fill(broker, BATCHES, 1)
        assert await bases(broker, end, END + 10) == list(range(end, END + 10, 10))
    async with member(tmp_path, 1) as broker:
        assert [line for line in broker.lines if "segment files are missing" in line], "after a stop in order, too"


@pytest.mark.ci
async def test_lost_records_that_the_store_has_are_read_there(tmp_path: Path) -> None:
    async with member(tmp_path, 1, **SETTINGS) as broker:
        await broker.create_topic("t", segment_bytes="1048576", remote_storage_enable="true", retention_ms="-1")
        await fill(broker)
        await tier_everything(broker, "t")
        assert broker.log("t").local_log_start_offset == 0
    start, end = lose_the_second_segment(tmp_path / "broker-1" / "data")
    assert start < end
    async with member(tmp_path, 1, **SETTINGS) as broker:
        await until(lambda: not broker.log("t").lost)
        assert broker.log("t").local_log_start_offset == end
        assert await bases(broker) == list(range(0, END, 10))


async def two_brokers(path: Path, stack: AsyncExitStack) -> RunningBroker:
    """A leader and a follower of ``t`` that was killed. Returns: the leader."""
    leader = await stack.enter_async_context(member(path, 1, **SETTINGS))
    async with member(path, 2, **SETTINGS) as follower:
        await until(lambda: unfenced(leader) == unfenced(follower) == [1, 2])
        await leader.node.membership.controller.create_topic(
            "t",
            configs={"segment.bytes": "1048576", "min.insync.replicas": "1", "remote.storage.enable": "false"},
            assignments={0: [1, 2]},
        )
        await until(lambda: follower.node.logs.get("t", 0) is not None and leader.node.logs.get("t", 0) is not None)
        await fill(leader)
        await until(lambda: follower.log("t").high_watermark == END)
        await follower.log("t").flush()
        await follower.kill()
    return leader


def in_sync(broker: RunningBroker) -> list[int]:
    return sorted(broker.node.cluster.image.topics_by_name["t"].partitions[0].isr)


@pytest.mark.ci
async def test_a_follower_leaves_the_in_sync_set_and_fetches_lost_records_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ClusterMember] = []
    lacks_records = ClusterMember.lacks_records
    monkeypatch.setattr(ClusterMember, "lacks_records", lambda self: [asked.append(self), lacks_records(self)])
    async with AsyncExitStack() as stack:
        leader = await two_brokers(tmp_path, stack)
        start, _ = lose_the_second_segment(tmp_path / "broker-2" / "data")
        follower = await stack.enter_async_context(member(tmp_path, 2, **SETTINGS))
        await until(lambda: not follower.log("t").lost and follower.log("t").log_end_offset == END)
        await until(lambda: in_sync(leader) == [1, 2])
        assert [line for line in follower.lines if f"cut back from {END} to {start}, where segment files" in line]
        assert asked == [follower.node.membership.member]
        assert await stored(follower) == await stored(leader)


def lose_power_over_a_segment(data_dir: Path, number: int, batches: int) -> int:
    """Let a kill look like a loss of power: some batches of a segment had reached the disk, and all later segments had.

    Returns: the first offset that is lost."""
    for name in (CLEAN_SHUTDOWN_FILE, STATE_FILE, RECOVERY_POINTS_FILE):
        (data_dir / name).unlink(missing_ok=True)
    (data_dir / CLEANER_OFFSETS_FILE).write_text("0\n1\nt 0 1\n")
    logs = sorted((data_dir / "t-0").glob("*.log"))
    assert len(logs) > 3
    kept = batches * (logs[number].stat().st_size // 3)
    logs[number].write_bytes(logs[number].read_bytes()[:kept])
    return int(logs[number].stem) + 10 * batches


@pytest.mark.parametrize(
    ("boot_id", "number", "batches"),
    [
        ("the next boot", 1, 0),
        ("the next boot", 1, 1),
        ("the next boot", 0, 0),
        ("the next boot", 2, 2),
        ("boot", 1, 0),
    ],
)
async def test_a_follower_of_a_compacted_log_fetches_again_what_it_may_have_lost_with_power(
    tmp_path: Path, boot_id: str, number: int, batches: int
) -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": "600000",
        "segment.bytes": "1048576",
        "min.insync.replicas": "1",
    }
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(member(tmp_path, 1, **SETTINGS))
        async with member(tmp_path, 2, **SETTINGS) as follower:
            await until(lambda: unfenced(leader) == unfenced(follower) == [1, 2])
            await leader.node.membership.controller.create_topic("t", configs=configs, assignments={0: [1, 2]})
            await until(lambda: follower.node.logs.get("t", 0) is not None and leader.node.logs.get("t", 0) is not None)
            async with talk(leader.port) as client:
                rows = [
                    [(NOW, b"%d" % n, b"v" * 30_000, ()) for n in range(first, first + 10)]
                    for first in range(0, END, 10)
                ]
                await produce(client, "t", *map(build_batch, rows))
            await until(lambda: follower.log("t").high_watermark == END)
            await follower.kill()
        start = lose_power_over_a_segment(tmp_path / "broker-2" / "data", number, batches)
        follower = await stack.enter_async_context(member(tmp_path, 2, boot_id=boot_id, **SETTINGS))
        if boot_id == "boot":  # its machine lost nothing, so others may count on it
            await until(lambda: follower.log("t").high_watermark == END)
            assert follower.log("t").lacks_from == start
            return
        await until(lambda: follower.log("t").lacks_from is None and follower.log("t").log_end_offset == END)
        await until(lambda: in_sync(leader) == [1, 2])
        assert [
            line for line in follower.lines if f"cut back from {END} to {start}, where a compacted log may lack" in line
        ]
        assert await stored(follower) == await stored(leader)


def lead(broker: RunningBroker) -> int:
    return broker.node.cluster.image.topics_by_name["t"].partitions[0].leader


@pytest.mark.ci
async def test_a_leader_that_lacks_records_follows_at_its_end_until_its_next_start(tmp_path: Path) -> None:
    async with AsyncExitStack() as first, member(tmp_path, 2, **SETTINGS) as second:
        leader = await first.enter_async_context(member(tmp_path, 1, **SETTINGS))
        await until(lambda: unfenced(leader) == unfenced(second) == [1, 2])
        await second.node.membership.controller.create_topic(
            "t",
            configs={"segment.bytes": "1048576", "min.insync.replicas": "1", "remote.storage.enable": "false"},
            assignments={0: [1, 2]},
        )
        await until(lambda: second.node.logs.get("t", 0) is not None and leader.node.logs.get("t", 0) is not None)
        await fill(leader)
        await first.aclose()
        await until(lambda: in_sync(second) == [2])
    lose_the_second_segment(tmp_path / "broker-2" / "data")
    async with AsyncExitStack() as stack:
        async with member(tmp_path, 2, **SETTINGS) as second:
            leader = await stack.enter_async_context(member(tmp_path, 1, **SETTINGS))
            await until(lambda: in_sync(leader) == [1, 2])
            assert lead(second) == 2, "the last known replica"
            await second.node.membership.controller.elect_leaders([("t", 0)])
            await until(lambda: lead(second) == lead(leader) == 1)
            await until(lambda: leader.node.partitions.table.led("t", 0) is not None)
            await fill(leader, BATCHES, 1)
            assert (in_sync(leader), len(second.log("t").lost)) == ([1, 2], 1)
            assert [line for line in second.lines if "follows all the same" in line]
        second = await stack.enter_async_context(member(tmp_path, 2, **SETTINGS))
        await until(lambda: not second.log("t").lost and second.log("t").log_end_offset == END + 10)
        await until(lambda: in_sync(leader) == [1, 2])
        assert await stored(second) == await stored(leader)


async def lacking_log() -> PartitionLog:
    """A log of ten records that lacks the offsets from 3 to 6."""
    fs = sim()
    manager = manager_over(fs)
    await manager.load_all()
    size = len(record())
    log = new_log(manager, segment_bytes=3 * size, index_interval_bytes=size)
    for _ in range(10):
        log.append_as_leader(record(), now_ms=NOW)
    await log.flush()
    await manager.checkpoint()
    fs.unlink(f"{log.path}/00000000000000000003.log")
    fs.kill()
    manager = manager_over(fs)
    await manager.load_all(lambda _: TopicConfig(segment_bytes=3 * size))
    found = manager.get("t", 0)
    assert found is not None
    assert found.lost == ((3, 6),)
    found.commit_alone(False)
    return found


class OneFollowed:
    """Broker 2 follows one partition of broker 1, by an image that the test changes."""

    def __init__(self, log: PartitionLog, **image: tuple[int, ...]) -> None:
        self.image = SimpleNamespace(**{"isr": (1,), "eligible": ()} | image)
        self.lowered: list[int] = []
        self.may_lower = True
        self.lines: list[str] = []
        self.looks = asyncio.Queue[None]()
        self.first_fetch = asyncio.get_running_loop().create_future()
        self.fails = asyncio.Event()
        self.this = SimpleNamespace(broker_epoch=1)
        key = TopicIdPartition(log.topic_id, log.partition)
        partition: Any = SimpleNamespace(
            key=key, log=log, role=Role.FOLLOWER, leader_epoch=1, topic="t", index=log.partition
        )
        self.partition = partition
        whole: Any = SimpleNamespace(brokers={2: self.this}, partition=lambda topic_id, index: self.image)
        whole.brokers[1] = whole
        table: Any = PartitionTableOf(partition)
        no_start: Any = None
        throttle: Any = SimpleNamespace(is_exceeded=lambda now_ms: False)
        clock: Any = None
        self.followers = Followers(
            table, self, broker_id=BrokerId(2), broker_epoch=lambda: 1, image=lambda: whole, start_at_tier=no_start,
            throttle=throttle, clock=clock, faults=Faults(self.lines.append), log_line=self.lines.append,
            lower_high_watermark=self._lower,
        )  # fmt: skip

    async def _lower(self, key: object, offset: int) -> bool:
        self.lowered.append(offset)
        return self.may_lower

    async def reach(self, to: object) -> None:
        self.looks.put_nowait(None)

    async def fetch(self, to: object, request: FetchRequest) -> Any:
        self.first_fetch.set_result(request.topics[0][1][0].fetch_offset)
        await self.fails.wait()
        self.fails.clear()
        raise BrokerUnavailable("The leader is away.")

    async def some_looks(self) -> None:
        for _ in range(3):
            await self.looks.get()


class PartitionTableOf(list[Any]):
    on_touched = None
    lag_ms_max = 30_000

    def __init__(self, partition: object) -> None:
        super().__init__([partition])

    def leader_to_follow(self, partition: object) -> int:
        return 1

    def take_touched(self) -> list[Any]:
        return list(self)


@asynccontextmanager
async def following(one: OneFollowed) -> AsyncIterator[None]:
    task = asyncio.create_task(one.followers.run())
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_follower_neither_fetches_nor_is_cut_before_the_image_has_its_registration() -> None:
    log = await lacking_log()
    one = OneFollowed(log, isr=(1, 2))
    one.this.broker_epoch = 0
    async with following(one):
        await one.some_looks()
        assert (log.log_end_offset, len(log.lost), one.lowered) == (10, 1, [])
        assert not one.first_fetch.done()
        one.this.broker_epoch, one.image.isr = 1, (1,)
        assert await one.first_fetch == 3
    assert (log.log_end_offset, log.lost, one.lowered) == (3, (), [3])
    assert len(one.lines) == 1


@pytest.mark.parametrize("image", [{"isr": (1, 2)}, {"eligible": (2,)}])
async def test_a_follower_that_others_count_on_fetches_at_its_end_and_is_not_cut(
    image: dict[str, tuple[int, ...]],
) -> None:
    log = await lacking_log()
    one = OneFollowed(log, **image)
    async with following(one):
        assert await one.first_fetch == 10
        one.image.isr, one.image.eligible = (1,), ()
        one.first_fetch = asyncio.get_running_loop().create_future()
        one.partition.leader_epoch += 1
        one.followers.table.on_touched()  # type: ignore[misc]
        one.fails.set()
        assert await one.first_fetch == 10, "a leader has heard of the old end"
    assert (log.log_end_offset, len(log.lost), one.lowered) == (10, 1, [])
    assert ["t-0 lacks offsets [3, 6) and follows all the same" in line for line in one.lines] == [True, False]


async def test_a_follower_is_not_cut_before_its_lower_high_watermark_is_durable() -> None:
    log = await lacking_log()
    one = OneFollowed(log)
    one.may_lower = False
    async with following(one):
        await one.some_looks()
    assert one.lowered
    assert (log.log_end_offset, len(log.lost)) == (10, 1)
