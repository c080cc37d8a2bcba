"""Retention by time, whatever timestamps producers write.

Nothing is deleted that came less than ``retention.ms`` ago, and nothing whose timestamp is younger than that.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.configs import ProduceValidation, TimestampType
from app.configs.numbers import LONG_MAX
from app.core.metrics import Registry
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicIdPartition
from app.records.batch import HEADER_BYTES, parse_header, patch_batch, rewrite_header
from app.records.builder import build_batch
from app.records.record import iter_records
from app.tiering.read.reader import RemoteReader
from tests.tiering.segments import TOPIC
from tests.tiering.world import CONFIG, KEY, World, run_world

RETENTION_MS = 100_000
CHECK_MS = 50_000
DAY_MS = 86_400_000

WITHOUT_LIMITS = replace(
    CONFIG,
    retention_ms=RETENTION_MS,
    message_timestamp_after_max_ms=LONG_MAX,
    message_timestamp_before_max_ms=LONG_MAX,
)
TIERED = replace(WITHOUT_LIMITS, local_retention_ms=0)
LOCAL = replace(WITHOUT_LIMITS, remote_storage_enable=False)


def produced(timestamps: list[int], header_maximum: int | None, *, codec: int = 0, value_bytes: int = 150) -> bytearray:
    """A batch of records with these timestamps; ``header_maximum`` is what its header claims, if not the truth."""
    batch = bytearray(
        build_batch([(TimestampMs(one), None, bytes(value_bytes), ()) for one in timestamps], codec=codec)
    )
    if header_maximum is not None:
        rewrite_header(batch, 0, max_timestamp=TimestampMs(header_maximum))
    return batch


def librdkafka_without_timestamps() -> bytearray:
    """What librdkafka writes of records with timestamp -1: base timestamp -1, deltas of 0, and a maximum of 0."""
    return produced([-1, -1], 0)


class Arrivals:
    """When each record came and the time it bears, held against what is still there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._came_ms: dict[int, int] = {}
        self._newest_ms: dict[int, int] = {}
        """The greatest timestamp of the batch of each offset: Kafka deletes none that is younger than the retention."""
        self._start = 0

    def append(self, batch: bytearray, *, newest_ms: int | None = None) -> None:
        """``newest_ms``: the batch's greatest timestamp; None if its stored header is to be believed."""
        now_ms = self._world.clock.now_ms()
        result = self._world.log.append_as_leader(memoryview(batch), now_ms=now_ms)
        for offset in range(result.base_offset, result.last_offset_end):
            self._came_ms[offset] = now_ms
            self._newest_ms[offset] = parse_header(batch).max_timestamp if newest_ms is None else newest_ms

    def check(self) -> None:
        """Nothing went that was younger than the retention by its arrival or by its timestamp."""
        now_ms = self._world.clock.now_ms()
        start = self._world.log.log_start_offset
        for offset in range(self._start, start):
            age_ms = now_ms - self._came_ms[offset]
            assert age_ms > RETENTION_MS, f"offset {offset} went {age_ms} ms after it came"
            age_ms = now_ms - self._newest_ms[offset]
            assert age_ms > RETENTION_MS, f"offset {offset} went {age_ms} ms after the timestamp of its batch"
        self._start = start

    async def watch(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            self.check()


@pytest.mark.parametrize("config", [TIERED, LOCAL], ids=["tiered", "local"])
@pytest.mark.parametrize("restarted", [False, True])
def test_records_without_timestamps_stay_for_the_retention_and_go_after_it(
    tmp_path: Path, config: object, restarted: bool
) -> None:
    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        for _ in range(4):
            arrivals.append(librdkafka_without_timestamps())
        assert len(world.log.segments()) == 2, "a full segment rolled, none by time"
        if restarted:
            await world.crash()
            await world.start()
        await arrivals.watch(RETENTION_MS / 1000 - 1)
        assert world.log.log_start_offset == 0
        await arrivals.watch(3 * CHECK_MS / 1000 + RETENTION_MS / 1000)
        assert world.log.log_start_offset == world.log.log_end_offset == 8

    run_world(tmp_path, scenario, config=config, retention_interval_ms=CHECK_MS)


@pytest.mark.ci
def test_a_maximum_of_1970_over_records_without_timestamps_is_stored_as_none(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        batch = librdkafka_without_timestamps()
        world.log.append_as_leader(memoryview(batch), now_ms=world.clock.now_ms())
        read = world.log.read(0, 10_000, end_offset=2)
        stored = await read.read_bytes()
        assert parse_header(stored).max_timestamp == -1
        assert [record.timestamp for record in iter_records(stored)] == [-1, -1]
        assert world.log.segments()[0].max_timestamp == -1

    run_world(tmp_path, scenario, config=LOCAL)


@pytest.mark.parametrize("claimed", [-1, -7, 0, 12345])
def test_an_unknown_maximum_is_stored_as_the_greatest_timestamp_of_the_records(tmp_path: Path, claimed: int) -> None:
    async def scenario(world: World) -> None:
        now_ms = world.clock.now_ms()
        world.log.append_as_leader(memoryview(produced([now_ms, now_ms + 5, now_ms + 3], claimed)), now_ms=now_ms)
        assert world.log.segments()[0].max_timestamp == now_ms + 5
        assert await world.log.offset_for_timestamp(now_ms) == (now_ms, 0)
        assert await world.log.offset_for_timestamp(now_ms + 1) == (now_ms + 5, 1)
        assert await world.log.max_timestamp_offset() == (now_ms + 5, 1)

    run_world(tmp_path, scenario, config=LOCAL)


def test_a_partition_just_led_is_not_looked_at_before_the_check_interval(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        arrivals.append(produced([world.clock.now_ms()], None))
        world.log.roll()
        await asyncio.sleep(CHECK_MS / 1000 - 1)
        await world.crash()
        await asyncio.sleep(10 * RETENTION_MS / 1000)
        await world.start()
        world.log.become_leader(LeaderEpoch(9))
        world.tier.kick()  # a setting has changed
        await asyncio.sleep(CHECK_MS / 1000 - 1)
        assert world.log.log_start_offset == 0
        await world.until(lambda: world.log.log_start_offset == Offset(1), seconds=2)

    run_world(tmp_path, scenario, config=TIERED, retention_interval_ms=CHECK_MS)


def test_a_segment_stays_for_the_check_interval_after_it_rolled(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        arrivals.append(produced([world.clock.now_ms()], None))
        await world.until(lambda: len(world.log.segments()) == 2)  # too old, and rolled for that
        rolled_s = world.loop.time()
        assert rolled_s >= RETENTION_MS / 1000
        await world.until(lambda: world.log.log_start_offset == Offset(1))
        assert CHECK_MS / 1000 - 1 <= world.loop.time() - rolled_s <= CHECK_MS / 1000 + 11

    run_world(tmp_path, scenario, config=replace(LOCAL, segment_bytes=1 << 20), retention_interval_ms=CHECK_MS)


def test_old_records_stay_for_the_check_interval_after_their_segment_rolled(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        arrivals.append(produced([world.clock.now_ms()], None))
        await asyncio.sleep(2 * CHECK_MS / 1000 - 1)
        world.log.roll()  # between two looks, when the record is older than the retention already
        await asyncio.sleep(CHECK_MS / 1000)
        assert world.log.log_start_offset == 0
        await world.until(lambda: world.log.log_start_offset == Offset(1), seconds=CHECK_MS / 1000)

    run_world(tmp_path, scenario, config=replace(LOCAL, retention_ms=70_000), retention_interval_ms=CHECK_MS)


def test_an_arrival_is_known_after_a_stop_in_order_and_after_a_cut(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        came_ms = []
        for _ in range(3):
            came_ms.append(world.clock.now_ms())
            world.log.append_as_leader(memoryview(produced([-1], None)), now_ms=world.clock.now_ms())
            await asyncio.sleep(20)
        await world.log.flush()
        world.log.truncate_to(2)
        [cut] = world.log.segments()
        assert (cut.end_offset, cut.first_append_ms, cut.last_append_ms) == (2, came_ms[0], came_ms[2])
        await world.logs.close()
        await world.stop()
        await world.start()
        assert world.log.segments()[0].last_append_ms == came_ms[2]

    run_world(tmp_path, scenario, config=replace(LOCAL, segment_bytes=1 << 20))


def test_an_expiry_of_everything_says_so_once(tmp_path: Path) -> None:
    lines: list[str] = []

    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        arrivals.append(produced([world.clock.now_ms()], None))
        await world.until(lambda: world.log.log_start_offset == Offset(1))
        await asyncio.sleep(10 * CHECK_MS / 1000)

    run_world(tmp_path, scenario, config=LOCAL, retention_interval_ms=CHECK_MS, log_line=lines.append)
    [line] = lines
    assert "deletes every record of t-0: offsets 0 to 0" in line
    assert "retention.ms is 100000" in line


def test_an_expiry_that_leaves_records_says_nothing(tmp_path: Path) -> None:
    lines: list[str] = []

    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        for _ in range(40):
            arrivals.append(produced([world.clock.now_ms()], None, value_bytes=300))
            await asyncio.sleep(10)
        assert world.log.log_start_offset > 0

    run_world(tmp_path, scenario, config=LOCAL, retention_interval_ms=CHECK_MS, log_line=lines.append)
    assert lines == []


# --- the property -------------------------------------------------------------------------------------------------------

NEAR = st.integers(-2 * RETENTION_MS, 2 * RETENTION_MS).map(lambda delta_ms: ("now", delta_ms))
FAR = st.sampled_from([("now", -400 * DAY_MS), ("now", 400 * DAY_MS)])
FIXED = st.sampled_from([("at", -1), ("at", -86_400_000), ("at", 0), ("at", 1), ("at", 2**41)])
WHEN = st.one_of(NEAR, FAR, FIXED)
"""A timestamp: a distance from the time of the append, or a number."""
BATCHES = st.lists(
    st.tuples(
        st.lists(WHEN, min_size=1, max_size=3),
        st.one_of(st.none(), WHEN),
        st.sampled_from([0, 4]),
        st.integers(0, RETENTION_MS),
    ),
    min_size=1,
    max_size=12,
)
"""(timestamps, what the header claims, codec, pause before it in milliseconds)."""


def _at(when: tuple[str, int], now_ms: int) -> int:
    kind, number = when
    return now_ms + number if kind == "now" else number


def _of_the_future(tiered: bool) -> example:
    """Batches whose timestamps are later than their arrival, in a log with segments that have rolled."""
    batch = ([("now", RETENTION_MS)], None, 0, 0)
    return example(batches=[batch] * 8, tiered=tiered, append_time=False, checked=False, restart_after=12)


@pytest.mark.ci
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=BATCHES,
    tiered=st.booleans(),
    append_time=st.booleans(),
    checked=st.booleans(),
    restart_after=st.integers(0, 12),
)
@_of_the_future(tiered=True)
@_of_the_future(tiered=False)
def test_nothing_younger_than_the_retention_by_arrival_or_timestamp_is_deleted_and_all_else_is_in_time(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[list[tuple[str, int]], tuple[str, int] | None, int, int]],
    tiered: bool,
    append_time: bool,
    checked: bool,
    restart_after: int,
) -> None:
    config = replace(
        TIERED if tiered else LOCAL,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
        firn_produce_validation=ProduceValidation.RECORDS if checked else ProduceValidation.BATCH,
    )
    newest_ms = 0

    async def scenario(world: World) -> None:
        nonlocal newest_ms
        arrivals = Arrivals(world)
        for number, (whens, claim, codec, pause_ms) in enumerate(batches):
            await arrivals.watch(pause_ms / 1000)
            if number == restart_after:
                await world.crash()
                await world.start()
            now_ms = world.clock.now_ms()
            timestamps = [_at(when, now_ms) for when in whens]
            claimed = None if claim is None else _at(claim, now_ms)
            # Kafka computes it from the records. So does the broker if it checks them, or if the header has none; else it
            # believes the header.
            without = claimed is not None and (claimed < 0 or claimed < timestamps[0])
            greatest_ms = now_ms if append_time else max(-1, *timestamps) if checked or without else None
            arrivals.append(produced(timestamps, claimed, codec=codec), newest_ms=greatest_ms)
            newest_ms = max(newest_ms, now_ms, world.log.segments()[-1].max_timestamp)
        await arrivals.watch(2 * RETENTION_MS / 1000)
        if newest_ms <= world.clock.now_ms() + RETENTION_MS:
            # No timestamp is far in the future: everything goes, soon after its time.
            await arrivals.watch((newest_ms - world.clock.now_ms() + RETENTION_MS + 4 * CHECK_MS) / 1000)
            assert world.log.log_start_offset == world.log.log_end_offset

    run_world(tmp_path_factory.mktemp("world"), scenario, config=config, retention_interval_ms=CHECK_MS)


# --- records of before 1970 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TIERED, LOCAL], ids=["tiered", "local"])
def test_records_of_before_1970_stay_for_the_retention_and_go_after_it(tmp_path: Path, config: object) -> None:
    async def scenario(world: World) -> None:
        arrivals = Arrivals(world)
        for _ in range(4):
            arrivals.append(produced([-86_400_000, -5000], None), newest_ms=-1)
        assert {segment.max_timestamp for segment in world.log.segments()} == {-1}
        assert await world.log.offset_for_timestamp(0) is None
        assert await world.log.max_timestamp_offset() is None
        await arrivals.watch(10)
        await world.crash()
        await world.start()
        read = world.log.read(world.log.local_log_start_offset, 100_000, end_offset=8)
        stored = await read.read_bytes()
        assert [record.timestamp for record in iter_records(stored)] == [-86_400_000, -5000]
        assert parse_header(stored).max_timestamp == -1, "as in Kafka: no greatest timestamp"
        await arrivals.watch(RETENTION_MS / 1000 - 11)
        assert world.log.log_start_offset == 0
        await arrivals.watch(3 * CHECK_MS / 1000 + RETENTION_MS / 1000)
        assert world.log.log_start_offset == world.log.log_end_offset == 8

    run_world(tmp_path, scenario, config=config, retention_interval_ms=CHECK_MS)


# --- lookups in the store -----------------------------------------------------------------------------------------------


def test_lookups_in_the_store_pass_over_unreadable_batches_and_false_maxima(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        now_ms = world.clock.now_ms()
        poison = produced([now_ms + 100], None)
        poison[HEADER_BYTES] = 0xFE
        rewrite_header(poison, 0)
        for made in (
            produced([now_ms], None),
            poison,
            produced([now_ms + 50], now_ms + 9_000),
            produced([now_ms + 200, now_ms + 150], None),
            produced([now_ms + 60], None),
        ):
            world.log.append_as_leader(memoryview(made), now_ms=now_ms)
        world.log.roll()
        await world.until(world.all_copied)
        told: list[tuple[TopicIdPartition, Offset, Offset]] = []
        reader = RemoteReader(
            world.work,
            world.cache,
            world.tier.manifest_of,
            pool=world.pool,
            registry=Registry(),
            read_ahead_bytes=4000,
            on_unreadable=lambda key, batch: told.append((key, batch.base_offset, batch.end_offset)),
        )
        running = asyncio.create_task(reader.run())
        await asyncio.sleep(0.01)
        try:
            found = await reader.lookups.offset_for_timestamp(TOPIC, PartitionIndex(0), TimestampMs(now_ms + 70))
            assert found == (now_ms + 200, 3)
            assert told == [(KEY, 1, 2)]
            newest = await reader.lookups.max_timestamp_offset(TOPIC, PartitionIndex(0))
            assert newest == (now_ms + 200, 3), "not that which a header claims"
        finally:
            running.cancel()
            await asyncio.wait([running])

    run_world(tmp_path, scenario, config=replace(TIERED, local_retention_ms=-1))


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("chunk_bytes", [400, 4096])
def test_lookups_in_the_store_find_records_that_are_newer_than_earlier_versions_wrote_into_headers(
    tmp_path: Path, segments: int, chunk_bytes: int
) -> None:
    async def scenario(world: World) -> None:
        now_ms = world.clock.now_ms()
        times = [now_ms + number * 1000 for number in range(12)]
        for first in range(0, 12, 4):
            made = produced(times[first : first + 4], times[first])
            patch_batch(made, 0, Offset(first), LeaderEpoch(1))
            world.log.append_as_follower(memoryview(made), now_ms=now_ms)
            if segments == 3:
                world.log.roll()
        world.log.roll()
        await world.until(world.all_copied)
        reader = RemoteReader(
            world.work,
            world.cache,
            world.tier.manifest_of,
            pool=world.pool,
            registry=Registry(),
            read_ahead_bytes=4000,
        )
        running = asyncio.create_task(reader.run())
        await asyncio.sleep(0.01)
        try:
            end = Offset(12)
            for place, time in enumerate(times):
                found = await reader.lookups.offset_for_timestamp(
                    TOPIC, PartitionIndex(0), TimestampMs(time), claimed_from=end
                )
                assert found == (time, place)
                assert await world.log.offset_for_timestamp(time) == (time, place)
            after = TimestampMs(times[-1] + 1)
            assert await reader.lookups.offset_for_timestamp(TOPIC, PartitionIndex(0), after, claimed_from=end) is None
            assert await world.log.offset_for_timestamp(after) is None
            assert await reader.lookups.max_timestamp_offset(TOPIC, PartitionIndex(0)) == (times[-1], 11)
            assert await world.log.max_timestamp_offset() == (times[-1], 11)
        finally:
            running.cancel()
            await asyncio.wait([running])

    kept = replace(TIERED, local_retention_ms=-1, firn_tier_chunk_bytes=chunk_bytes, segment_bytes=1 << 20)
    run_world(tmp_path, scenario, config=kept)
