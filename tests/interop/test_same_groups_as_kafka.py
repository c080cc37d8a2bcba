"""The same consumer group conversation with Firn and with Apache Kafka: equal codes, epochs and assignments at every step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from loadtests.kafka_peer import kafka_running
from tests.interop.group_requests import commit, fetch, outcome
from tests.interop.peers import Peer, make, request
from tests.interop.serving import Served, firn_serving, kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE
TRANSIENT = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
DEADLINE_S = 60.0
GROUP = "conversation"
AS_IN_4_2 = {"group.consumer.assignment.interval.ms": "0", "group.consumer.assignor.offload.enable": "false"}
"""Kafka 4.3 puts assignments off, which Firn does too, and makes them in the background (KIP-1263)."""


def _firn_at_once(path: Path, arguments: Sequence[str]) -> AbstractContextManager[Served]:
    return firn_serving(path, *arguments, group_consumer_assignment_interval_ms=0)


@pytest.fixture(scope="module")
def peers(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("peers")
    with kafka_running(path / "kafka", settings=AS_IN_4_2) as kafka, _firn_at_once(path, how) as firn:
        both = [Peer("Kafka", kafka.port), Peer("Firn", firn.port)]
        for peer in both:
            peer.create("t", 4)
            peer.create("u", 2)
            peer.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=GROUP))
            deadline = time.monotonic() + DEADLINE_S
            stranger = request(HEARTBEAT, group_id=GROUP, member_id="nobody", member_epoch=1)
            while peer.ask(HEARTBEAT, 1, stranger).error_code in TRANSIENT:
                assert time.monotonic() < deadline, peer.name
                time.sleep(0.2)
        yield both


def joining(member: str, *, group: str = GROUP, **fields: Any) -> dict[str, Any]:
    """A heartbeat that says everything."""
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
        **fields,
    }


def going_on(member: str, epoch: int, owned: int | None, **fields: Any) -> dict[str, Any]:
    """A heartbeat that says what is owned of t: the first so many partitions, or nothing about it."""
    return {"group_id": GROUP, "member_id": member, "member_epoch": epoch, "owned": owned, **fields}


SCRIPT: list[tuple[str, int, dict[str, Any]]] = [
    ("no group id", 1, joining("a", group="")),
    ("no member id", 1, joining("")),
    ("no member id, but then it need not have one", 0, joining("", group="other")),
    ("an empty instance id", 1, joining("a", instance_id="")),
    ("an empty rack id", 1, joining("a", rack_id=" ")),
    ("no rebalance time-out", 1, joining("a", rebalance_timeout_ms=-1)),
    ("a subscription alone (librdkafka)", 1, joining("a", rebalance_timeout_ms=-1, topic_partitions=None)),
    ("no word of partitions", 1, joining("a", topic_partitions=None)),
    ("no subscription", 1, joining("a", subscribed_topic_names=None)),
    ("an epoch that there is not", 1, joining("a", member_epoch=-3)),
    ("a static leave without an instance", 1, joining("a", member_epoch=-2)),
    ("an unknown assignor", 1, joining("a", server_assignor="clever")),
    ("a malformed expression", 1, joining("a", subscribed_topic_regex="(")),
    ("a heartbeat to a group that there is not", 1, going_on("a", 1, 0)),
    ("leaving a group that there is not", 1, going_on("a", -1, None)),
    ("the first joins", 1, joining("a")),
    ("and goes on", 1, going_on("a", 1, None)),
    ("with an epoch too high", 1, going_on("a", 2, None)),
    ("joining again", 1, joining("a")),
    ("a stranger", 1, going_on("b", 1, None)),
    ("a stranger leaves", 1, going_on("b", -1, None)),
    ("the second joins", 1, joining("b")),
    ("and waits", 1, going_on("b", 2, 0)),
    ("the first hears of it", 1, going_on("a", 1, 4)),
    ("and does not obey", 1, going_on("a", 1, 4)),
    ("the epoch to come is not there yet", 1, going_on("a", 2, 4)),
    ("an unknown subscription takes part", 1, joining("c", subscribed_topic_names=["nothing"])),
    ("leaves again", 1, going_on("c", -1, None)),
    ("the second changes its mind", 1, joining("b", member_epoch=2, subscribed_topic_names=["u"])),
    ("a static member joins", 1, joining("s", instance_id="i", subscribed_topic_names=["u"])),
    ("another cannot be it", 1, joining("z", instance_id="i", subscribed_topic_names=["u"])),
    ("nor speak for it", 1, going_on("z", 5, None, instance_id="i")),
    ("it leaves for a while", 1, going_on("s", -2, None, instance_id="i")),
    ("the old one is fenced", 1, going_on("s", 5, None, instance_id="i")),
    ("an instance that there is not", 1, going_on("s", 5, None, instance_id="j")),
    ("its successor comes", 1, joining("s2", instance_id="i", subscribed_topic_names=["u"])),
    ("and the old one is not known", 1, going_on("s", 5, None, instance_id="i")),
]


def seen(peer: Peer, first: int, version: int, step: dict[str, Any]) -> dict[str, Any]:
    """What is compared of an answer; epochs count from that of a group's first member."""
    fields = dict(step)
    if fields["member_epoch"] > 0:
        fields["member_epoch"] += first - 1
    owned = fields.pop("owned", 0)
    if "topic_partitions" not in fields:
        fields["topic_partitions"] = None
        if owned is not None:
            parts = make(HEARTBEAT, "TopicPartitions", topic_id=peer.ids["t"], partitions=list(range(owned)))
            fields["topic_partitions"] = [parts] if owned else []
    answer = peer.ask(HEARTBEAT, version, request(HEARTBEAT, **fields))
    assigned = answer.assignment
    names = {topic_id: name for name, topic_id in peer.ids.items()}
    return {
        "code": ErrorCode(answer.error_code).name,
        "epoch": answer.member_epoch - (first - 1 if answer.member_epoch > 0 else 0),
        "interval": answer.heartbeat_interval_ms,
        "assigned": (
            None
            if assigned is None
            else sorted((names[each.topic_id], len(each.partitions)) for each in assigned.topic_partitions)
        ),
    }


def test_every_step_of_a_conversation_is_answered_alike(peers: list[Peer]) -> None:
    firsts = {
        peer.name: peer.ask(HEARTBEAT, 1, request(HEARTBEAT, **joining("first", group="epochs"))).member_epoch
        for peer in peers
    }
    differences = []
    for label, version, step in SCRIPT:
        kafka, firn = (seen(peer, firsts[peer.name], version, step) for peer in peers)
        if kafka != firn:
            differences.append(f"{label}: Kafka {kafka}, Firn {firn}")
    assert not differences, "\n".join(differences)
    kafka, firn = (described(peer, firsts[peer.name]) for peer in peers)
    assert kafka == firn


def described(peer: Peer, first: int) -> Any:
    answer = peer.ask(DESCRIBE, 1, request(DESCRIBE, group_ids=[GROUP, "nobody's"]))
    return sorted(
        (
            group.error_code,
            group.group_state,
            group.group_epoch and group.group_epoch - first,
            group.assignment_epoch and group.assignment_epoch - first,
            group.assignor_name,
            sorted(
                (
                    member.member_id,
                    member.instance_id,
                    member.member_epoch - first,
                    member.subscribed_topic_names,
                    member.member_type,
                )
                for member in group.members
            ),
        )
        for group in answer.groups
    )


@pytest.mark.parametrize("member_id", ["x", "x" * 37, "x" * 1000, " ", "\u00e4\u65e5"], ids=lambda name: f"{len(name)}")
def test_member_ids_of_any_length_are_taken_alike(peers: list[Peer], member_id: str) -> None:
    group = f"ids-{len(member_id)}"
    for version in (0, 1):
        firsts = {
            peer.name: peer.ask(HEARTBEAT, version, request(HEARTBEAT, **joining("first", group=f"{group}-{version}")))
            for peer in peers
        }
        for step in (
            joining(member_id, group=f"{group}-{version}"),
            going_on(member_id, 2, None, group_id=f"{group}-{version}"),
            going_on(member_id, -1, None, group_id=f"{group}-{version}"),
        ):
            kafka, firn = (seen(peer, firsts[peer.name].member_epoch, version, step) for peer in peers)
            assert kafka == firn, (version, step)


# --- offsets by member epoch ------------------------------------------------------------------------------------------

OFFSETS = "committing"
STATIC = {"instance_id": "i"}
COMMITS = (("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", -1), ("s", 3), ("s", -2), ("nobody", 1), ("", 1), ("", -1))
"""Member ids and epochs, which count from that of the group's first member. They commit what the first has given up: of what it
keeps, Kafka 4.3 also takes commits with older epochs (KIP-1251), and 4.2 does not."""
LIVES: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("before there is a group", None),
    ("one member", joining("a", group=OFFSETS)),
    ("another has joined, the first has not heard of it", joining("b", group=OFFSETS)),
    ("the first is to give partitions up", going_on("a", 1, 4, group_id=OFFSETS)),
    ("it has given them up", going_on("a", 1, 2, group_id=OFFSETS)),
    ("a static member has joined", joining("s", group=OFFSETS, subscribed_topic_names=["u"], **STATIC)),
    ("it is away for a while", going_on("s", -2, None, group_id=OFFSETS, **STATIC)),
    ("the first has left", going_on("a", -1, None, group_id=OFFSETS)),
    ("the second has left", going_on("b", -1, None, group_id=OFFSETS)),
    ("nobody is left", going_on("s", -1, None, group_id=OFFSETS)),
)


def test_offsets_are_committed_and_read_by_member_epoch_alike(peers: list[Peer]) -> None:
    firsts = {
        peer.name: peer.ask(HEARTBEAT, 1, request(HEARTBEAT, **joining("first", group="epochs-too"))).member_epoch
        for peer in peers
    }

    def epoch(peer: Peer, relative: int) -> int:
        return relative if relative < 1 else relative + firsts[peer.name] - 1

    differences = []
    for label, step in LIVES:
        if step is not None:
            kafka, firn = (seen(peer, firsts[peer.name], 1, step) for peer in peers)
            assert kafka == firn, label
        for member_id, relative in COMMITS:
            instances: tuple[dict[str, str], ...] = ({}, {"group_instance_id": "i"}) if member_id == "s" else ({},)
            for version in (8, 9, 10):
                for fields in instances:
                    kafka, firn = (
                        outcome(
                            peer,
                            ApiKey.OFFSET_COMMIT,
                            version,
                            commit(
                                OFFSETS,
                                member_id,
                                epoch(peer, relative),
                                topic=peer.ids["t"] if version == 10 else "t",
                                partition=3,
                                offset=100 + relative,
                                **fields,
                            ),
                        )
                        for peer in peers
                    )
                    if kafka != firn:
                        differences.append(
                            f"{label}: commit {version} {member_id!r} {relative} {fields}: Kafka {kafka}, Firn {firn}"
                        )
                if version < 9:
                    continue
                kafka, firn = (
                    outcome(
                        peer,
                        ApiKey.OFFSET_FETCH,
                        version,
                        fetch(
                            OFFSETS,
                            [(peer.ids["t"] if version == 10 else "t", [3, 9])],
                            version,
                            member_id=member_id,
                            member_epoch=epoch(peer, relative),
                        ),
                    )
                    for peer in peers
                )
                if kafka != firn:
                    differences.append(f"{label}: fetch {version} {member_id!r} {relative}: Kafka {kafka}, Firn {firn}")
    assert not differences, "\n".join(differences)
