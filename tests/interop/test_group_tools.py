"""Kafka's tools that look at groups of every type, and at those of a type that is not served."""

from __future__ import annotations

import re

import confluent_kafka
import pytest

from app.groups.offsets.deletion import TOMBSTONES_AT_ONCE
from app.wire.apikeys import ApiKey
from tests.interop.java_programs import JavaProgram, Tools
from tests.interop.peers import request
from tests.interop.serving import Raw, Served, create_topic
from tests.interop.tools import DUMP
from tests.interop.tools import GROUPS as CONSUMER_GROUPS

pytestmark = [pytest.mark.interop, pytest.mark.slow]

GROUPS = "org.apache.kafka.tools.GroupsCommand"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"


@pytest.fixture(scope="module")
def tools(jvm: JavaProgram, firn: Served) -> Tools:
    """With a group of each type. The one of the classic protocol has offsets only."""
    create_topic(firn.port, "read", 1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": firn.bootstrap, "group.id": "simple"})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("read", 0, 0)], asynchronous=False)
    consumer.close()
    with Raw(firn.port) as raw:
        for key, fields in (
            (ApiKey.CONSUMER_GROUP_HEARTBEAT, {"rebalance_timeout_ms": 60_000, "topic_partitions": []}),
            (ApiKey.SHARE_GROUP_HEARTBEAT, {}),
        ):
            joining = request(
                key, group_id=key.name.lower(), member_id="m", member_epoch=0, subscribed_topic_names=["read"], **fields
            )
            assert raw.ask(key, 1, joining).error_code == 0
    return Tools(jvm, firn)


def test_groups_of_all_types_are_listed(tools: Tools) -> None:
    rows = {tuple(line.split()) for line in tools(GROUPS, "--list").splitlines()[1:] if line}
    assert rows == {
        ("simple", "Classic"),
        ("consumer_group_heartbeat", "Consumer", "consumer"),
        ("share_group_heartbeat", "Share", "share"),
    }


@pytest.mark.parametrize(
    ("filters", "listed"),
    [
        (["--consumer"], ["consumer_group_heartbeat", "simple"]),
        (["--share"], ["share_group_heartbeat"]),
        (["--streams"], []),
        (["--group-type", "classic"], ["simple"]),
        (["--protocol", "consumer"], ["consumer_group_heartbeat"]),
    ],
    ids=" ".join,
)
def test_groups_are_listed_by_what_they_are(tools: Tools, filters: list[str], listed: list[str]) -> None:
    assert sorted(line.split()[0] for line in tools(GROUPS, "--list", *filters).splitlines()[1:] if line) == listed


def test_a_share_group_is_described_whose_members_have_read_nothing_yet(tools: Tools) -> None:
    offsets = tools(SHARE_GROUPS, "--describe", "--group", "share_group_heartbeat", "--offsets")
    assert re.search(r"share_group_heartbeat\s+read\s+0\s+-\s+-", offsets), offsets


def test_a_dump_shows_what_a_share_group_subscribed_to_and_what_stands_for_many_tombstones(tools: Tools) -> None:
    partitions = TOMBSTONES_AT_ONCE + 5
    create_topic(tools.firn.port, "wide", partitions)
    committed = [confluent_kafka.TopicPartition("wide", partition, 7) for partition in range(partitions)]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": tools.firn.bootstrap, "group.id": "wide"})
    consumer.commit(offsets=committed, asynchronous=False)
    consumer.close()
    names = ",".join(map(str, range(partitions)))
    tools(CONSUMER_GROUPS, "--delete-offsets", "--group", "wide", "--topic", f"wide:{names}")
    assert "wide" not in tools(CONSUMER_GROUPS, "--describe", "--group", "wide", "--offsets")
    logs = sorted(tools.firn.data_dir.glob("__consumer_offsets-*/*.log"))
    dumped = tools.run(DUMP, "--files", ",".join(map(str, logs)), "--offsets-decoder")
    assert (dumped.code, "Failed to decode" in dumped.out, "isvalid: false" in dumped.out) == (0, False, False), dumped
    assert re.search(r'"type":"15","data":{"groupId":"share_group_heartbeat"}.*"topicName":"read"', dumped.out)
    sweep = r'"type":"1","data":{"group":"wide","topic":"","partition":0}'
    assert len(re.findall(sweep, dumped.out)) == 2, "it comes and goes"
    assert re.search(sweep + r'.*\\"wide\\":\[\d+,\d+', dumped.out), "and says what is gone"


def test_streams_groups_are_refused_with_a_sentence(tools: Tools) -> None:
    assert "simple" not in tools(STREAMS_GROUPS, "--list")
    described = tools.run(STREAMS_GROUPS, "--bootstrap-server", tools.firn.bootstrap, "--describe", "--group", "simple")
    assert re.search(r"UnsupportedVersionException|does not support", described.out + described.error), described
