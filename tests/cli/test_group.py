"""``firn group`` against a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from app.core.errors import ErrorCode
from tests.support.broker import RunningBroker, running_broker
from tests.support.commands import Firn, runner
from tests.support.share_workers import ACCEPT, REJECT, configure, workers

READ_S_MAX = 30


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    settings = {"group_initial_rebalance_delay_ms": 0, "group_share_assignment_interval_ms": 0}
    async with running_broker(tmp_path, offsets_topic_num_partitions=3, **settings) as running:
        yield running


@pytest.fixture
def firn(broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firn:
    return runner(capfd, monkeypatch, broker.bootstrap)


@pytest.fixture
async def flights(firn: Firn, tmp_path: Path) -> None:
    """A topic of two partitions with 10 and 20 records, the second's of two days, and a group that has read some of it."""
    await firn("topic", "create", "flights", "-p", "2", "-s", "retention.ms=-1")
    for partition, count, day in ((0, 10, 1), (1, 5, 1), (1, 15, 2)):
        (tmp_path / "lines").write_text("x\n" * count)
        await firn(
            "produce", "flights", str(tmp_path / "lines"), "-p", str(partition), "--timestamp", f"2013-07-0{day}"
        )


def commit(bootstrap: str, group: str, *offsets: tuple[str, int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(*offset) for offset in offsets], asynchronous=False)
    finally:
        consumer.close()


async def test_a_group_is_listed_and_described_with_its_members_and_its_lag(
    firn: Firn, flights: None, broker: RunningBroker
) -> None:
    assert (await firn("group", "list", "--json")).json == []
    assert "no groups" in (await firn("group", "list")).err

    def read() -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "client.id": "reader",
            }
        )
        consumer.subscribe(["flights"])
        assert consumer.poll(READ_S_MAX) is not None
        consumer.commit(offsets=[TopicPartition("flights", 1, 12)], asynchronous=False)
        return consumer

    consumer = await asyncio.to_thread(read)
    try:
        (listed,) = (await firn("group", "list", "--json")).json
        assert listed == {
            "group": "readers",
            "type": "classic",
            "protocol_type": "consumer",
            "state": "Stable",
            "coordinator": 1,
        }
        described = (await firn("group", "describe", "readers", "--json")).json
        (member,) = described["members"]
        assert (member["client_id"], member["host"], member["partitions_count"]) == ("reader", "/127.0.0.1", 2)
        assert [
            (row["partition"], row["offset"], row["end_offset"], row["lag"], row["member_id"] == member["member_id"])
            for row in described["offsets"]
        ] == [(0, None, 10, None, True), (1, 12, 20, 8, True)]
        shown = await firn("group", "describe", "readers")
        assert "1 member; 8 records behind." in shown.out
        refused = await firn("group", "reset", "readers", "--all-topics", "--to", "latest", "--execute")
        assert (refused.code, refused.err) == (
            1,
            "firn: Group readers has members: stop them before you reset the group.\n",
        )
        refused = await firn("group", "delete", "readers", "-y")
        assert (refused.code, "has members" in refused.err) == (1, True)
    finally:
        await asyncio.to_thread(consumer.close)


async def test_a_group_of_the_consumer_protocol_is_described(firn: Firn, flights: None, broker: RunningBroker) -> None:
    def read() -> Consumer:
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "new", "group.protocol": "consumer"}
            | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe(["flights"])
        assert consumer.poll(READ_S_MAX) is not None
        return consumer

    consumer = await asyncio.to_thread(read)
    try:
        described = (await firn("group", "describe", "new", "--json")).json
    finally:
        await asyncio.to_thread(consumer.close)
    assert (described["type"], [member["partitions_count"] for member in described["members"]]) == ("consumer", [2])


async def test_a_share_group_is_listed_described_reset_and_deleted(
    firn: Firn, broker: RunningBroker, tmp_path: Path
) -> None:
    await firn("topic", "create", "t", "-s", "retention.ms=-1")
    (tmp_path / "lines").write_text("x\n" * 10)
    await firn("produce", "t", str(tmp_path / "lines"), "-p", "0")
    await configure(broker, share_auto_offset_reset="earliest")
    async with workers(broker, "a", "b") as (a, b):
        listed = (await firn("group", "list", "--json")).json
        assert [(group["group"], group["type"]) for group in listed] == [("workers", "share")]
        assert await a.get(max_records=10) != []
        assert await a.say(0, 2, ACCEPT) is ErrorCode.NONE
        assert await a.say(5, 5, REJECT) is ErrorCode.NONE
        described = (await firn("group", "describe", "workers", "--json")).json
        assert (described["type"], described["state"], len(described["members"])) == ("share", "Stable", 2)
        (row,) = described["offsets"]
        assert (row["topic"], row["offset"], row["end_offset"], row["lag"]) == ("t", 3, 10, 6)
        assert sorted(row["member_ids"]) == ["a", "b"]
        shown = await firn("group", "describe", "workers")
        assert "2 members; 6 records behind." in shown.out
        refused = await firn("group", "reset", "workers", "--all-topics", "--to", "latest", "--execute")
        assert (refused.code, refused.err) == (
            1,
            "firn: Group workers has members: stop them before you reset the group.\n",
        )
        for worker in (a, b):
            await worker.leave()
    planned = (await firn("group", "reset", "workers", "--all-topics", "--to", "earliest", "--json")).json
    assert planned["offsets"] == [{"topic": "t", "partition": 0, "offset_before": 3, "offset": 0}]
    assert (await firn("group", "reset", "workers", "-t", "t", "--to", "7", "--execute")).code == 0
    (row,) = (await firn("group", "describe", "workers", "--json")).json["offsets"]
    assert (row["offset"], row["lag"], row["member_ids"]) == (7, 3, [])
    assert (await firn("group", "delete", "workers", "-y")).code == 0
    assert (await firn("group", "describe", "workers")).err == "firn: There is no group workers.\n"


async def test_a_group_is_reset_to_every_kind_of_place_and_first_only_shown(
    firn: Firn, flights: None, broker: RunningBroker
) -> None:
    await asyncio.to_thread(commit, broker.bootstrap, "g", ("flights", 0, 4), ("flights", 1, 12))

    async def offsets() -> dict[int, int]:
        described = (await firn("group", "describe", "g", "--json")).json
        return {row["partition"]: row["offset"] for row in described["offsets"]}

    planned = (await firn("group", "reset", "g", "--all-topics", "--to", "earliest", "--json")).json
    assert planned == {
        "group": "g",
        "executed": False,
        "offsets": [
            {"topic": "flights", "partition": 0, "offset_before": 4, "offset": 0},
            {"topic": "flights", "partition": 1, "offset_before": 12, "offset": 0},
        ],
    }
    assert await offsets() == {0: 4, 1: 12}
    assert "add --execute" in (await firn("group", "reset", "g", "--all-topics", "--to", "latest")).err
    for arguments, expected in (
        (("--all-topics", "--shift-by", "-3"), {0: 1, 1: 9}),
        (("--all-topics", "--shift-by", "15"), {0: 10, 1: 20}),  # no further than there is
        (("--topic", "flights:1", "--to", "2013-07-02"), {0: 10, 1: 5}),
        (("--topic", "flights", "--to", "7"), {0: 7, 1: 7}),
        (("--topic", "flights:0", "--to", "2030-01-01"), {0: 10, 1: 7}),
        (("--all-topics", "--to", "earliest"), {0: 0, 1: 0}),
        (("--all-topics", "--to", "latest"), {0: 10, 1: 20}),
    ):
        done = await firn("group", "reset", "g", *arguments, "--execute")
        assert (done.code, await offsets()) == (0, expected), (arguments, done.err)


async def test_a_group_is_deleted_and_then_there_is_none(firn: Firn, flights: None, broker: RunningBroker) -> None:
    await asyncio.to_thread(commit, broker.bootstrap, "g", ("flights", 0, 4))
    assert (await firn("group", "delete", "g")).code == 2
    assert (await firn("group", "delete", "g", "-y")).err == "Deleted group g.\n"
    for command in (("delete", "g", "-y"), ("describe", "g")):
        done = await firn("group", *command)
        assert (done.code, done.err) == (1, "firn: There is no group g.\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--all-topics",), "either --to WHERE or --shift-by N"),
        (("--all-topics", "--to", "latest", "--shift-by", "1"), "either --to WHERE or --shift-by N"),
        (("--to", "latest"), "either --topic TOPIC"),
        (("--topic", "flights", "--all-topics", "--to", "latest"), "either --topic TOPIC"),
        (("--topic", "flights:7", "--to", "latest"), "'7' is no partition of flights, which has 2"),
        (("--topic", "flights:x", "--to", "latest"), "'x' is no partition"),
        (("--topic", "flights", "--to", "soon"), "is not a time"),
        (("--topic", "flights", "--shift-by", "1"), "has no committed offset to shift from"),
        (("--all-topics", "--to", "latest"), "has no offsets"),
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused_with_the_mend(
    firn: Firn, flights: None, arguments: tuple[str, ...], sentence: str
) -> None:
    done = await firn("group", "reset", "g", *arguments)
    assert (done.code, sentence in done.err) == (2, True), done.err
