"""``kafka-consumer-groups`` on three broker processes: groups of every coordinator, before and after one is killed."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.interop.java_programs import JavaProgram, Tools
from tests.support.cluster import WAIT_S, Brokers, brokers_running
from tests.support.waiting import block_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
NAMES = [f"group-{number}" for number in range(6)]
RECORDS = 12


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with brokers_running(tmp_path) as running:
        yield running


@pytest.fixture
def tools(jvm: JavaProgram, brokers: Brokers) -> Tools:
    return Tools(jvm, brokers)  # type: ignore[arg-type] # it has a bootstrap, too


def said(tools: Tools, tool: str, *arguments: object) -> str:
    """What a tool printed; nothing if it failed, as it may while a coordinator moves."""
    done = tools.run(tool, "--bootstrap-server", tools.firn.bootstrap, *arguments)
    return done.out if done.code == 0 else ""


def listed(tools: Tools) -> list[str]:
    return sorted(said(tools, GROUPS, "--list").split())


def offsets(tools: Tools, group: str) -> dict[int, tuple[int, int]]:
    """Committed offset and lag by partition."""
    rows = re.findall(
        rf"{group}\s+t\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)", said(tools, GROUPS, "--describe", "--group", group)
    )
    return {int(partition): (int(offset), int(lag)) for partition, offset, lag in rows}


def read_all(bootstrap: str, group: str, protocol: str) -> None:
    """Read every record as a member of the group, commit, and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["t"])
        count = 0
        end = time.monotonic() + WAIT_S
        while count < RECORDS:
            assert time.monotonic() < end, f"{group} has read {count}"
            count += sum(message.error() is None for message in consumer.consume(RECORDS, 0.5))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_groups_are_listed_described_reset_and_deleted_wherever_they_are(tools: Tools, brokers: Brokers) -> None:
    create = ("--create", "--if-not-exists", "--topic", "t", "--partitions", 3, "--replication-factor", 3)
    block_until(lambda: said(tools, TOPICS, *create) or "t" in said(tools, TOPICS, "--list"), "the topic is made")
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(RECORDS):
        producer.produce("t", b"%d" % number, partition=number % 3)
    assert producer.flush(WAIT_S) == 0
    for number, name in enumerate(NAMES):
        read_all(brokers.bootstrap, name, ("classic", "consumer")[number % 2])
    assert block_until(lambda: len(listed(tools)) == len(NAMES) and listed(tools), "all are listed") == NAMES
    everything = dict.fromkeys(range(3), (RECORDS // 3, 0))
    for name in NAMES:
        block_until(lambda name=name: offsets(tools, name) == everything, f"{name} has read all")
    states = said(tools, GROUPS, "--describe", "--all-groups", "--state")
    coordinators = set(re.findall(r"group-\d\s+127\.0\.0\.1:\d+\s+\((\d)\)", states))
    assert len(coordinators) > 1

    killed = int(min(coordinators))
    brokers.end(killed, signal.SIGKILL)
    block_until(lambda: listed(tools) == NAMES, "all are listed by the others")
    for name in NAMES:
        block_until(lambda name=name: offsets(tools, name) == everything, f"{name} is where it was")
    reset = ("--reset-offsets", "--group", NAMES[0], "--topic", "t:1", "--to-offset", 1, "--execute")
    block_until(lambda: re.search(r"t\s+1\s+1\b", said(tools, GROUPS, *reset)), "an offset is reset")
    block_until(lambda: offsets(tools, NAMES[0]) == {**everything, 1: (1, RECORDS // 3 - 1)}, "the reset is seen")
    gone = ("--delete-offsets", "--group", NAMES[1], "--topic", "t:2")
    assert "Successful" in block_until(lambda: said(tools, GROUPS, *gone), "an offset is deleted")
    block_until(lambda: set(offsets(tools, NAMES[1])) == {0, 1}, "it is gone")
    for name in NAMES[2:]:
        block_until(
            lambda name=name: "successful" in said(tools, GROUPS, "--delete", "--group", name), f"{name} is deleted"
        )
    brokers.start(killed)
    block_until(lambda: listed(tools) == NAMES[:2], "the others are left")
