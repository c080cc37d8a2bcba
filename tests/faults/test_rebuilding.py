"""A lost data directory, as a user meets it: ``rm -rf``, start again, and everything that was tiered is back."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.records.batch import iter_headers
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.faults.producing import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    Link,
    Producer,
    link,
    read_log,
)
from tests.faults.served import firn, refusal_of, serving

PARTITIONS = 2
CONFIGS = {
    "segment.bytes": "1048576",
    "retention.ms": "-1",
    "local.retention.bytes": "0",
    "max.message.bytes": "7654321",
}
TOPIC = 2
"""The resource type."""


async def config_of(connection: Link, topic: str, name: str) -> str:
    asked = DescribeConfigsResource(TOPIC, topic, [name])
    answer = await connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest([asked]))
    return str(answer.results[0].configs[0].value)


async def leader_epochs(connection: Link, topic: str, partition: int, start: int) -> list[int]:
    answer = await connection.fetch(topic, partition, start)
    assert answer.error_code == 0
    return [header.leader_epoch for _, header in iter_headers(answer.records)]


async def rebuild(path: Path, *, take_over: bool, killed: bool) -> None:
    store = (path / "store").as_uri()
    with serving(path, name="first") as first:
        async with link(first.port) as connection:
            await connection.create_topic("t", PARTITIONS, CONFIGS)
            await connection.create_topic("empty", 1, {"retention.ms": "12345678"})
            producers = [
                Producer(lambda: first.port, "t", n, random.Random(n), value_bytes=20_000) for n in range(PARTITIONS)
            ]
            async with asyncio.TaskGroup() as group:
                for producer in producers:
                    group.create_task(producer.run())
                async with asyncio.timeout(60):
                    while min(producer.records for producer in producers) < 300:
                        await asyncio.sleep(0.01)
                for producer in producers:
                    producer.stopping = True
            ends = []
            for producer in producers:
                # All rolled segments are in the store; the active one stays behind.
                n = producer.partition
                async with asyncio.timeout(30):
                    while await asyncio.to_thread(rolled_local_segments, first.bootstrap, n):
                        continue
                tiered_end = await connection.offset("t", n, LATEST_TIERED) + 1
                end = await connection.offset("t", n, LATEST)
                assert await connection.offset("t", n, EARLIEST_LOCAL) == tiered_end
                ends.append(tiered_end)
                assert 0 < tiered_end < end
            epochs_before = await leader_epochs(connection, "t", 0, ends[0] - 1)
        await asyncio.to_thread(first.kill if killed else first.stop)
    shutil.rmtree(path / "data")

    if not take_over and killed:
        # The sign of life of the killed one is still fresh: nobody may know that it is dead.
        told = await asyncio.to_thread(
            lambda: refusal_of(
                "serve",
                "--http",
                "off",
                "--listen",
                "127.0.0.1:0",
                "--data-dir",
                str(path / "data"),
                "--store",
                store,
                code=2,
            )
        )
        assert "or start with --take-over" in told
        shutil.rmtree(path / "data", ignore_errors=True)
        await asyncio.sleep(31)

    flags = ("--take-over",) if take_over else ()
    with serving(path, *flags, name="second", start=False) as second:
        await asyncio.to_thread(second.start)
        for n, end in enumerate(ends):
            assert any(
                f"t-{n} continues at its tiered end {end}: offsets from 0 are in" in line for line in second.lines
            )
        async with link(second.port) as connection:
            assert await config_of(connection, "t", "max.message.bytes") == "7654321"
            assert await config_of(connection, "empty", "retention.ms") == "12345678"
            assert await connection.offset("empty", 0, LATEST) == 0
            for producer, end in zip(producers, ends, strict=True):
                n = producer.partition
                assert await connection.offset("t", n, EARLIEST) == 0
                assert await connection.offset("t", n, LATEST) == end
                wanted = [value for sent in producer.acknowledged for value in sent.values][:end]
                records = await read_log(second.port, "t", n)
                assert [record.value for record in records] == wanted
                await check_producer_state(connection, producer, end)
            (epoch, *_) = await leader_epochs(connection, "t", 0, ends[0])
            assert epoch > max(epochs_before)
        await asyncio.to_thread(second.stop)
    verified = await asyncio.to_thread(firn, "verify", "--store", store, "--json")
    assert json.loads(verified.stdout)["sound"], verified.stdout


def rolled_local_segments(bootstrap: str, partition: int) -> int:
    """How many segments have rolled but are not in the store alone yet, by the command line."""
    done = firn("tier", "segments", "t", "-p", str(partition), "-b", bootstrap, "--json")
    assert done.returncode == 0, done.stderr
    return sum(line["tier"] != "remote" and line["state"] != "ACTIVE" for line in json.loads(done.stdout))


async def check_producer_state(connection: Link, producer: Producer, end: int) -> None:
    """What a producer did up to the tiered end is known: the last batch again is a duplicate, a gap is refused, the next
    number goes on at the tiered end."""
    last = next(sent for sent in producer.acknowledged if sent.offset + len(sent.values) == end)
    again = await connection.produce("t", producer.partition, last.data)
    assert (again.error_code, again.base_offset) == (0, last.offset)

    def batch(sequence: int) -> bytes:
        producer_id, producer_epoch = producer._identity
        return build_batch(
            [(1_700_000_000_000, None, b"later", ())],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )

    next_sequence = last.sequence + len(last.values)
    gap = await connection.produce("t", producer.partition, batch(next_sequence + 7))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    following = await connection.produce("t", producer.partition, batch(next_sequence))
    assert (following.error_code, following.base_offset) == (0, end)


@pytest.mark.ci
async def test_after_a_kill_with_take_over(tmp_path: Path) -> None:
    await rebuild(tmp_path, take_over=True, killed=True)


@pytest.mark.slow
async def test_after_a_clean_stop_without_a_word(tmp_path: Path) -> None:
    await rebuild(tmp_path, take_over=False, killed=False)


@pytest.mark.slow
async def test_after_a_kill_once_the_sign_of_life_is_old(tmp_path: Path) -> None:
    await rebuild(tmp_path, take_over=False, killed=True)
