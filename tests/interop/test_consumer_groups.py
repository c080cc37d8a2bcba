"""Groups of the consumer protocol (KIP-848) by real clients: librdkafka and the Java client, and both protocols in one group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.consumers import Java, Reader, described, produce, read_all, settle
from tests.interop.java_programs import JavaProgram, Tools, running
from tests.interop.serving import Served, create_topic, firn_serving
from tests.interop.tools import DUMP, GROUPS

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")

from confluent_kafka import Consumer  # noqa: E402

pytestmark = pytest.mark.interop

QUICK = {
    "group_consumer_min_heartbeat_interval_ms": 200,
    "group_consumer_heartbeat_interval_ms": 200,
    "group_initial_rebalance_delay_ms": 100,
}


@pytest.fixture(scope="module")
def firn(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker whose groups settle quickly."""
    with firn_serving(tmp_path_factory.mktemp("firn"), *how, **QUICK) as served:
        yield served
    assert not served.troubles


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProgram]:
    with running("GroupConsumers.java") as program:
        yield program


class Librdkafka(Reader):
    def __init__(
        self, firn: Served, group: str, topics: Sequence[str], protocol: str = "consumer", **other: Any
    ) -> None:
        super().__init__()
        settings = {
            "bootstrap.servers": firn.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{key.replace("_", "."): value for key, value in other.items()},
        }
        if protocol == "classic":
            settings |= {"heartbeat.interval.ms": 200, "partition.assignment.strategy": "cooperative-sticky"}
        self.consumer = Consumer(settings)
        self.consumer.subscribe(list(topics))

    def poll(self) -> None:
        for message in self.consumer.consume(100, timeout=0.05):
            assert message.error() is None, message.error()
            self.values.append(message.value().decode())

    def assignment(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


@pytest.mark.ci
def test_librdkafka_members_share_a_topic_commit_and_resume(firn: Served) -> None:
    create_topic(firn.port, "rd", 6)
    values = [f"v{number}" for number in range(600)]
    produce(firn, "rd", 6, values)
    with ExitStack() as stack:
        readers = [Librdkafka(firn, "rd-group", ["rd"]) for _ in range(3)]
        for reader in readers:
            stack.callback(reader.close)
        settle(readers, [2, 2, 2], 6)
        found = described(firn, "rd-group")
        assert (found.group_state, found.assignor_name, len(found.members)) == ("Stable", "uniform", 3)
        assert {member.member_epoch for member in found.members} == {found.group_epoch}
        for reader in readers:
            reader.values.clear()
        produce(firn, "rd", 6, values := [f"w{number}" for number in range(600)])
        read_all(readers, values)
        for reader in readers:
            reader.commit()
    assert described(firn, "rd-group").group_state == "Empty"
    again = Librdkafka(firn, "rd-group", ["^rd$"])
    produce(firn, "rd", 6, ["new"])
    read_all([again], ["new"])
    again.close()


@pytest.mark.ci
def test_the_java_consumer_shares_a_topic_with_librdkafka(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "mixed", 4)
    one = Java(java, firn, "mixed-group", "group.protocol=consumer", "group.remote.assignor=range")
    one("subscribe", "mixed")
    settle([one], [4], 4)
    other = Librdkafka(firn, "mixed-group", ["mixed"])
    settle([one, other], [2, 2], 4)
    values = [f"v{number}" for number in range(200)]
    produce(firn, "mixed", 4, values)
    read_all([one, other], values)
    one.commit()
    one.close()
    settle([other], [4], 4)
    other.commit()
    other.close()


@pytest.mark.ci
@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_java_consumers_of_the_classic_protocol_share_a_topic_and_hand_it_over(
    firn: Served, java: JavaProgram, assignor: str
) -> None:
    topic, group = f"classic-{assignor}", f"classic-{assignor}"
    create_topic(firn.port, topic, 6)
    settings = (
        *("group.protocol=classic", "heartbeat.interval.ms=200", "session.timeout.ms=45000"),
        f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{assignor}",
    )
    readers = [Java(java, firn, group, *settings) for _ in range(3)]
    for number, reader in enumerate(readers, 1):
        reader("subscribe", topic)
        settle(readers[:number], [6 // number] * number, 6)
    values = [f"v{number}" for number in range(300)]
    produce(firn, topic, 6, values)
    read_all(readers, values)
    for reader in readers:
        reader.commit()
    readers.pop().close()
    settle(readers, [3, 3], 6)
    produce(firn, topic, 6, more := [f"w{number}" for number in range(300)])
    read_all(readers, more)
    for reader in readers:
        reader.close()


@pytest.mark.ci
def test_kafkas_tools_describe_reset_and_dump_a_group(firn: Served, jvm: JavaProgram) -> None:
    create_topic(firn.port, "tooled", 2)
    produce(firn, "tooled", 2, values := [f"v{number}" for number in range(20)])
    reader = Librdkafka(firn, "tooled-group", ["tooled"], client_id="reader")
    settle([reader], [2], 2)
    read_all([reader], values)
    reader.commit()
    tools = Tools(jvm, firn)
    assert re.search(r"tooled-group\s+Consumer", tools(GROUPS, "--list", "--type", "consumer"))
    state = tools(GROUPS, "--describe", "--group", "tooled-group", "--state")
    assert re.search(r"tooled-group\s+127\S+\s+\(1\)\s+uniform\s+Stable\s+1", state)
    members = tools(GROUPS, "--describe", "--group", "tooled-group", "--members")
    assert re.search(r"tooled-group\s+\S+\s+/127.0.0.1\s+reader\s+2", members)
    reader.close()
    reset = ("--reset-offsets", "--group", "tooled-group", "--all-topics", "--to-earliest", "--execute")
    tools(GROUPS, *reset)
    offsets = tools(GROUPS, "--describe", "--group", "tooled-group", "--offsets")
    assert len(re.findall(r"tooled-group\s+tooled\s+\d\s+0\s+10\s+10\s", offsets)) == 2
    logs = sorted(firn.data_dir.glob("__consumer_offsets-*/*.log"))
    dumped = tools.run(DUMP, "--files", ",".join(map(str, logs)), "--offsets-decoder")
    assert dumped.code == 0, dumped
    assert "isvalid: false" not in dumped.out
    assert "Failed to decode" not in dumped.out
    for kind in (3, 5, 6, 7, 8):  # ConsumerGroupMetadata to CurrentMemberAssignment; 4 is not written since Kafka 4.0
        assert re.search(rf'"type":"{kind}","data":{{"groupId":"tooled-group"', dumped.out), kind
    tools(GROUPS, "--delete", "--group", "tooled-group")
    assert "tooled-group" not in tools(GROUPS, "--list")


@pytest.mark.ci
def test_the_java_consumer_subscribes_by_regular_expression(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "orders-eu", 1)
    reader = Java(java, firn, "by-regex", "group.protocol=consumer")
    reader("match", "orders-.*")
    settle([reader], [1], 1)
    create_topic(firn.port, "orders-us", 2)
    settle([reader], [3], 3)
    assert {topic for topic, _ in reader.assignment()} == {"orders-eu", "orders-us"}
    found = described(firn, "by-regex")
    assert found.members[0].subscribed_topic_regex == "orders-.*"
    reader.close()


@pytest.mark.ci
def test_a_static_java_member_returns_to_its_partitions(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "static", 4)
    settings = ("group.protocol=consumer", "group.instance.id=i1")
    one, other = Java(java, firn, "static-group", *settings), Librdkafka(firn, "static-group", ["static"])
    one("subscribe", "static")
    settle([one, other], [2, 2], 4)
    had, epoch = one.assignment(), described(firn, "static-group").group_epoch
    one.close()
    again = Java(java, firn, "static-group", *settings)
    again("subscribe", "static")
    settle([again, other], [2, 2], 4)
    assert again.assignment() == had
    assert described(firn, "static-group").group_epoch == epoch
    other.close()
    again.close()


@pytest.mark.ci
def test_a_group_is_rolled_from_the_classic_protocol_to_the_new_one_and_back(firn: Served, java: JavaProgram) -> None:
    create_topic(firn.port, "rolled", 4)
    old: Reader = Librdkafka(firn, "rolled-group", ["rolled"], "classic")
    settle([old], [4], 4)
    new = Java(java, firn, "rolled-group", "group.protocol=consumer")
    new("subscribe", "rolled")
    settle([old, new], [2, 2], 4)
    found = described(firn, "rolled-group")
    assert sorted(member.member_type for member in found.members) == [0, 1]
    values = [f"v{number}" for number in range(100)]
    produce(firn, "rolled", 4, values)
    read_all([old, new], values)
    old.commit()
    new.commit()
    new.close()
    settle([old], [4], 4)
    assert described(firn, "rolled-group").error_code != 0, "it is a classic group again"
    old.close()


@pytest.mark.ci
def test_groups_are_found_again_by_a_broker_that_starts_anew(tmp_path: Path) -> None:
    values = [f"v{number}" for number in range(100)]
    settings = {
        **QUICK,
        "group_consumer_min_session_timeout_ms": 8000,
        "group_consumer_session_timeout_ms": 8000,
    }
    with ExitStack() as stack:
        with firn_serving(tmp_path, **settings) as first:
            create_topic(first.port, "kept", 4)
            readers = [Librdkafka(first, "kept-group", ["kept"]) for _ in range(2)]
            for reader in readers:
                stack.callback(reader.close)
            settle(readers, [2, 2], 4)
            produce(first, "kept", 4, values)
            read_all(readers, values)
            for reader in readers:
                reader.commit()
            before = described(first, "kept-group")
        with firn_serving(tmp_path, **settings) as second:
            after = described(second, "kept-group")
            assert (after.group_epoch, after.members) == (before.group_epoch, before.members)
            again = Librdkafka(second, "kept-group", ["kept"])
            stack.callback(again.close)
            settle([again], [4], 4)  # when the sessions of the others, who cannot find this broker, are over
            produce(second, "kept", 4, ["new"])
            read_all([again], ["new"])
            assert again.values == ["new"]
