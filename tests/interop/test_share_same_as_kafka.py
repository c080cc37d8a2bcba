"""The same share group conversations with Firn and with Apache Kafka (KIP-932): equal codes, epochs, assignments and deliveries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest

from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from loadtests.kafka_peer import kafka_running
from tests.interop.group_requests import NO_SUCH_ID, codes, plain
from tests.interop.peers import Peer, batch, make, produce, request
from tests.interop.serving import Raw, firn_serving, kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

HEARTBEAT, DESCRIBE = ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE
FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
DESCRIBE_OFFSETS = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
ALTER_OFFSETS, DELETE_OFFSETS = ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS
GROUP = "workers"
FIRST = 1000
"""Stands for the epoch of the first member; each broker counts from another."""
A, B, C = "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
"""Member ids, of the shape that clients make."""
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
LOADING = frozenset({14, 15, 16})
READY_S = 60
WAIT_MS = 20_000
"""For a fetch that has something to come: Kafka may be slow to look a new share-partition up."""
FETCHES = 8
"""How often a member may ask for what another has not been given."""

Ask = Callable[[Peer], tuple[ApiKey, int, Any]]


@pytest.fixture(scope="module")
def peers(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("peers")
    at_once = {"group.share.assignment.interval.ms": "0", "group.share.assignor.offload.enable": "false"}
    with (
        kafka_running(path / "kafka", settings=at_once) as kafka,
        firn_serving(path, *how, group_share_assignment_interval_ms=0) as firn,
    ):
        both = [Peer("Kafka", kafka.port), Peer("Firn", firn.port)]
        for peer in both:
            peer.create("t", 2)
            peer.create("u", 1)
            for group in (GROUP, "readers"):
                ready(peer, group)
            configure(peer, GROUP, "share.auto.offset.reset", "earliest")
            records = produce(("t", 0, batch(10)), ("t", 1, batch(4)))
            answer = peer.ask(ApiKey.PRODUCE, 9, records)
            assert all(part.error_code == 0 for topic in answer.responses for part in topic.partition_responses)
            initialize(peer, ["t"], 2)
            consumer = request(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                group_id="readers",
                member_id="m",
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
            assert peer.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer).error_code == 0
        yield both


def ready(peer: Peer, group: str) -> None:
    """Wait until the coordinator of a group serves."""
    peer.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group))
    deadline = time.monotonic() + READY_S
    while peer.ask(HEARTBEAT, 1, beat("nobody", 1, group=group)(peer)[2]).error_code in LOADING:
        assert time.monotonic() < deadline, peer.name
        time.sleep(0.1)


def initialize(peer: Peer, topics: list[str], partitions: int, *, group: str = GROUP) -> None:
    """Have a member come and go: Kafka assigns nothing of a topic before the group's state in it was made."""
    epoch = peer.ask(*beat(C, 0, topics, group=group)(peer)).member_epoch
    deadline = time.monotonic() + READY_S
    while True:
        answer = peer.ask(*beat(C, epoch, topics, group=group)(peer))
        epoch = answer.member_epoch
        if answer.assignment and sum(len(t.partitions) for t in answer.assignment.topic_partitions) == partitions:
            break
        assert time.monotonic() < deadline, (peer.name, answer)
        time.sleep(0.1)
    peer.ask(*beat(C, -1, group=group)(peer))


def configure(peer: Peer, group: str, name: str, value: str) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = make(key, "AlterableConfig", name=name, config_operation=0, value=value)
    resource = make(key, "AlterConfigsResource", resource_type=32, resource_name=group, configs=[change])
    (answer,) = peer.ask(key, 1, request(key, resources=[resource])).responses
    assert answer.error_code == 0, (peer.name, answer)


# --- what is asked ----------------------------------------------------------------------------------------------------


def beat(member: str, epoch: int, topics: list[str] | None = None, *, group: str = GROUP, **fields: Any) -> Ask:
    said = {"group_id": group, "member_id": member, "member_epoch": epoch, "subscribed_topic_names": topics, **fields}
    return lambda _: (HEARTBEAT, 1, request(HEARTBEAT, **said))


def named(peer: Peer, topic: str) -> UUID:
    return peer.ids.get(topic, NO_SUCH_ID)


Said = tuple[int, int, list[int]]
"""First and last offset, and what is said of them."""


def fetch(
    member: str | None,
    epoch: int,
    places: Mapping[tuple[str, int], list[Said]] | None = None,
    *,
    forgotten: tuple[str, int] | None = None,
    version: int = 2,
    group: str | None = GROUP,
    **fields: Any,
) -> Ask:
    chosen = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500, **fields}

    def ask(peer: Peer) -> tuple[ApiKey, int, Any]:
        topics = [
            make(
                FETCH,
                "FetchTopic",
                topic_id=named(peer, topic),
                partitions=[
                    make(
                        FETCH,
                        "FetchPartition",
                        partition_index=index,
                        acknowledgement_batches=[make(FETCH, "AcknowledgementBatch", **dict(_batch(*s))) for s in said],
                    )
                ],
            )
            for (topic, index), said in (places or {}).items()
        ]
        message = request(FETCH, group_id=group, member_id=member, share_session_epoch=epoch, topics=topics, **chosen)
        if forgotten is not None:
            topic, index = forgotten
            gone = make(FETCH, "ForgottenTopic", topic_id=named(peer, topic), partitions=[index])
            message.forgotten_topics_data = [gone]
        return FETCH, version, message

    return ask


def _batch(first: int, last: int, types: list[int]) -> dict[str, Any]:
    return {"first_offset": first, "last_offset": last, "acknowledge_types": types}


def say(
    member: str | None,
    epoch: int,
    *said: Said,
    place: tuple[str, int] = ("t", 0),
    version: int = 2,
    group: str | None = GROUP,
    **fields: Any,
) -> Ask:
    def ask(peer: Peer) -> tuple[ApiKey, int, Any]:
        batches = [make(ACKNOWLEDGE, "AcknowledgementBatch", **_batch(*each)) for each in said]
        part = make(ACKNOWLEDGE, "AcknowledgePartition", partition_index=place[1], acknowledgement_batches=batches)
        topics = [make(ACKNOWLEDGE, "AcknowledgeTopic", topic_id=named(peer, place[0]), partitions=[part])]
        return (
            ACKNOWLEDGE,
            version,
            request(
                ACKNOWLEDGE,
                group_id=group,
                member_id=member,
                share_session_epoch=epoch,
                topics=topics if said else [],
                **fields,
            ),
        )

    return ask


def describe(*groups: str) -> Ask:
    return lambda _: (DESCRIBE, 1, request(DESCRIBE, group_ids=list(groups), include_authorized_operations=True))


def describe_offsets(group: str, topics: dict[str, list[int]] | None = None, *, version: int = 1) -> Ask:
    key = DESCRIBE_OFFSETS
    rows = None
    if topics is not None:
        name = "DescribeShareGroupOffsetsRequestTopic"
        rows = [make(key, name, topic_name=topic, partitions=parts) for topic, parts in topics.items()]
    asked = make(key, "DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=rows)
    return lambda _: (key, version, request(key, groups=[asked]))


def alter_offsets(group: str, *places: tuple[str, int, int]) -> Ask:
    key = ALTER_OFFSETS
    topics = [
        make(
            key,
            "AlterShareGroupOffsetsRequestTopic",
            topic_name=topic,
            partitions=[
                make(key, "AlterShareGroupOffsetsRequestPartition", partition_index=index, start_offset=offset)
            ],
        )
        for topic, index, offset in places
    ]
    return lambda _: (key, 0, request(key, group_id=group, topics=topics))


def delete_offsets(group: str, *topics: str) -> Ask:
    key = DELETE_OFFSETS
    rows = [make(key, "DeleteShareGroupOffsetsRequestTopic", topic_name=topic) for topic in topics]
    return lambda _: (key, 0, request(key, group_id=group, topics=rows))


# --- the conversation -------------------------------------------------------------------------------------------------

T0, T1 = ("t", 0), ("t", 1)

MEMBERS: list[tuple[str, Ask]] = [
    ("no group id", beat(A, 0, ["t"], group="")),
    ("no member id", beat("", 0, ["t"])),
    ("an empty rack", beat(A, 0, ["t"], rack_id=" ")),
    ("no subscription", beat(A, 0)),
    ("an empty subscription", beat(A, 0, [])),
    ("an epoch that there is not", beat(A, -2, ["t"])),
    ("a group that there is not", beat(A, 1, group="no such")),
    ("leaving a group that there is not", beat(A, -1, group="no such")),
    ("the first joins", beat(A, 0, ["t"])),
    ("and goes on", beat(A, FIRST)),
    ("with an epoch too high", beat(A, FIRST + 5)),
    ("joining again", beat(A, 0, ["t"])),
    ("a stranger", beat(B, FIRST)),
    ("a stranger leaves", beat(B, -1)),
    ("the second joins", beat(B, 0, ["t"])),
    ("the first hears of it", beat(A, FIRST)),
    ("the first has said the epoch before", beat(A, FIRST)),
    ("a third with another subscription", beat(C, 0, ["nowhere"])),
    ("what it has", describe(GROUP, "no such", "")),
    ("it changes its mind", beat(C, FIRST + 2, ["t"])),
    ("and leaves", beat(C, -1)),
    ("the first once more", beat(A, FIRST + 1)),
]

RECORDS: list[tuple[str, Ask]] = [
    ("no group", fetch(A, 0, {T0: []}, group=None)),
    ("no member", fetch(None, 0, {T0: []})),
    ("an empty member", fetch("", 0, {T0: []})),
    ("a session that there is not", fetch(A, 3, {T0: []})),
    ("the end of a session that there is not", fetch(A, -1, {T0: []})),
    ("acknowledging with the first request", fetch(A, 0, {T0: [(0, 1, [ACCEPT])]})),
    ("acknowledging without a session", say(A, 1, (0, 0, [ACCEPT]))),
    ("acknowledging to begin a session", say(A, 0, (0, 0, [ACCEPT]))),
    ("ending what there is not", say(A, -1)),
    ("the first records", fetch(A, 0, {T0: []}, max_wait_ms=WAIT_MS)),
    ("a session epoch too high", fetch(A, 2)),
    ("nothing more", fetch(A, 1, max_wait_ms=1)),
    ("accepted", say(A, 2, (0, 1, [ACCEPT]))),
    ("accepted again, and forgotten already", say(A, 3, (0, 1, [ACCEPT]))),
    ("each its own", say(A, 4, (2, 5, [RELEASE, ACCEPT, REJECT, ACCEPT]))),
    ("what was given back was not acquired any more", say(A, 5, (2, 2, [ACCEPT]))),
    ("it comes again", fetch(A, 6, max_wait_ms=WAIT_MS)),
    ("what nobody has", say(A, 7, (10, 12, [ACCEPT]))),
    ("a range the wrong way round", say(A, 8, (7, 6, [ACCEPT]))),
    ("more types than offsets", say(A, 9, (6, 7, [ACCEPT, ACCEPT, ACCEPT]))),
    ("fewer types than offsets", say(A, 10, (6, 8, [ACCEPT, ACCEPT]))),
    ("no types", say(A, 11, (6, 6, []))),
    ("a type that there is not", say(A, 12, (6, 6, [5]))),
    ("a negative type", say(A, 13, (6, 6, [-1]))),
    ("a negative offset", say(A, 14, (-1, 6, [ACCEPT]))),
    ("ranges that overlap", say(A, 15, (6, 7, [ACCEPT]), (7, 8, [ACCEPT]))),
    ("more time where it cannot be asked for", say(A, 16, (6, 6, [RENEW]), version=1)),
    ("more time without saying so", say(A, 17, (6, 6, [RENEW]))),
    ("more time", say(A, 18, (6, 6, [RENEW]), is_renew_ack=True)),
    ("an unknown topic", say(A, 19, (6, 6, [ACCEPT]), place=("nowhere", 0))),
    ("an unknown partition", say(A, 20, (6, 6, [ACCEPT]), place=("t", 9))),
    ("a partition that the session has not", say(A, 21, (0, 0, [ACCEPT]), place=T1)),
    ("an epoch that was", say(A, 3, (6, 6, [ACCEPT]))),
    ("the second has nothing to get", fetch(B, 0, {T0: []}, max_wait_ms=1)),
    ("nor to say of what the first has", say(B, 1, (6, 6, [ACCEPT]))),
    (
        "the first gives something back with a fetch",
        fetch(A, 22, {T0: [(6, 6, [RELEASE])]}, max_wait_ms=1, max_records=0),
    ),
    ("a fetch that asks for more time without saying so", fetch(A, 23, {T0: [(7, 7, [RENEW])]}, max_wait_ms=1)),
    ("a fetch that asks for more time and records", fetch(A, 24, {T0: [(7, 7, [RENEW])]}, is_renew_ack=True)),
    (
        "a fetch that asks for more time",
        fetch(A, 24, {T0: [(7, 7, [RENEW])]}, is_renew_ack=True, min_bytes=0, max_bytes=0, max_records=0, batch_size=0),
    ),
    ("a fetch that says nonsense of one partition", fetch(A, 25, {T0: [(7, 7, [9])], T1: []}, max_wait_ms=WAIT_MS)),
    ("an unknown partition is added", fetch(A, 26, {("t", 9): []}, max_wait_ms=1)),
    ("and taken away", fetch(A, 27, forgotten=("t", 9), max_wait_ms=1)),
    ("a limit of none", fetch(A, 28, max_records=0, max_wait_ms=1)),
    ("another mode", fetch(A, 29, share_acquire_mode=1, max_wait_ms=1)),
    ("a negative limit", fetch(A, 30, max_records=-1, max_wait_ms=1)),
    ("beginning anew", fetch(A, 0, {T0: [], T1: []}, max_wait_ms=1)),
    ("it has still what it had", say(A, 1, (7, 7, [ACCEPT]))),
    ("it ends with a word", say(A, -1, (8, 8, [ACCEPT]))),
    ("the second gets what the first had", fetch(B, 2, max_wait_ms=WAIT_MS)),
    ("a few of the other partition", fetch(B, 3, {T1: []}, max_wait_ms=WAIT_MS, max_records=1, share_acquire_mode=1)),
    ("the end of a session by a fetch", fetch(B, -1, {T0: [(9, 9, [ACCEPT])]})),
]

OFFSETS: list[tuple[str, Ask]] = [
    ("where it is", describe_offsets(GROUP)),
    ("where it is, in version 0", describe_offsets(GROUP, version=0)),
    ("of some", describe_offsets(GROUP, {"t": [0, 1, 9], "u": [0], "nowhere": [0]})),
    ("of none", describe_offsets(GROUP, {})),
    ("of a group that there is not", describe_offsets("no such", {"t": [0]})),
    ("all of a group that there is not", describe_offsets("no such")),
    ("altered while there are members", alter_offsets(GROUP, ("t", 0, 3))),
    ("deleted while there are members", delete_offsets(GROUP, "t")),
    ("the first leaves", beat(A, -1)),
    ("the second leaves", beat(B, -1)),
    ("nobody is there", describe(GROUP)),
    ("altered in a group that there is not", alter_offsets("to begin", ("t", 0, 3))),
    ("which makes it", describe_offsets("to begin")),
    ("so that there is something to delete", delete_offsets("to begin", "t")),
    ("altered without a group", alter_offsets("", ("t", 0, 3))),
    ("of a group of another type", describe_offsets("readers", {"t": [0]})),
    ("altered in a group of another type", alter_offsets("readers", ("t", 0, 3))),
    ("deleted in a group of another type", delete_offsets("readers", "t")),
    ("a group of another type", describe("readers")),
    ("a member for a group of another type", beat(A, 0, ["t"], group="readers")),
    ("records for a group that there is not", fetch(C, 0, {T0: []}, group="no such", max_wait_ms=2000)),
    ("records for a group of another type", fetch(C, 0, {T0: []}, group="readers", max_wait_ms=2000)),
    ("altered", alter_offsets(GROUP, ("t", 0, 3))),
    ("and seen", describe_offsets(GROUP, {"t": [0]})),
    ("altered to beyond the end", alter_offsets(GROUP, ("t", 0, 99))),
    ("and seen to be there", describe_offsets(GROUP, {"t": [0]})),
    ("altered to begin anew", alter_offsets(GROUP, ("t", 0, -1))),
    ("and seen not to have begun", describe_offsets(GROUP, {"t": [0]})),
    ("altered once more", alter_offsets(GROUP, ("t", 0, 5))),
    ("altered where it is not known", alter_offsets(GROUP, ("t", 9, 0), ("nowhere", 0, 0))),
    ("altered in none", alter_offsets(GROUP)),
    ("and seen again", describe_offsets(GROUP, {"t": [0]})),
    ("deleted in a group that there is not", delete_offsets("no such", "t")),
    ("deleted without a group", delete_offsets("", "t")),
    ("deleted where it is not known", delete_offsets(GROUP, "nowhere")),
    ("deleted", delete_offsets(GROUP, "t")),
    ("deleted again", delete_offsets(GROUP, "t")),
    ("gone", describe_offsets(GROUP)),
    ("gone, also by name", describe_offsets(GROUP, {"t": [0, 1], "u": [0]})),
    ("deleted in none", delete_offsets(GROUP)),
]

IDLE: list[tuple[str, Ask]] = [
    ("it joins", beat(A, 0, ["u"], group="idle")),
    ("what it subscribed to, and never read", describe_offsets("idle")),
    ("by name", describe_offsets("idle", {"u": [0, 1], "t": [0]})),
    ("nobody is left", beat(A, -1, group="idle")),
    ("begun by hand", alter_offsets("idle", ("t", 1, 3))),
    ("and seen", describe_offsets("idle", {"t": [1], "u": [0]})),
    ("all of it", describe_offsets("idle")),
    ("forgotten", delete_offsets("idle", "u")),
    ("and again", delete_offsets("idle", "u")),
    ("what is left", describe_offsets("idle")),
]


MEMBER_IDS = ("x", "x" * 36, "x" * 37, "x" * 1000, " x ", "\u00e4\u65e5")


def test_every_step_of_a_conversation_is_answered_alike(peers: list[Peer]) -> None:
    every_step_is_answered_alike(peers, MEMBERS + RECORDS + OFFSETS)


def every_step_is_answered_alike(peers: list[Peer], script: list[tuple[str, Ask]]) -> None:
    differences = []
    firsts: dict[str, int] = {}
    with ExitStack() as stack:
        connections = {peer.name: stack.enter_context(Raw(peer.port)) for peer in peers}
        for label, step in script:
            try:
                kafka, firn = (asked(peer, connections[peer.name], step, firsts) for peer in peers)
            except TimeoutError as error:
                error.add_note(label)
                raise
            if kafka != firn:
                differences.append(f"{label}:\n  Kafka {kafka}\n  Firn  {firn}")
    assert not differences, "\n".join(differences)


def test_what_was_never_read_is_described_alike(peers: list[Peer]) -> None:
    for peer in peers:
        ready(peer, "idle")
        initialize(peer, ["u"], 1, group="idle")
    every_step_is_answered_alike(peers, IDLE)


@pytest.mark.parametrize("member_id", MEMBER_IDS, ids=lambda member_id: f"{len(member_id)}")
def test_member_ids_are_taken_alike(peers: list[Peer], member_id: str) -> None:
    for peer in peers:
        ready(peer, "ids")
        initialize(peer, ["t"], 2, group="ids")
    script = [
        ("it joins", beat(member_id, 0, ["t"], group="ids")),
        ("and begins to read", fetch(member_id, 0, {T0: []}, group="ids", max_wait_ms=WAIT_MS)),
        ("and says something", say(member_id, 1, (0, 0, [ACCEPT]), group="ids")),
        ("and leaves", beat(member_id, -1, group="ids")),
    ]
    every_step_is_answered_alike(peers, script)


def asked(peer: Peer, connection: Raw, step: Ask, firsts: dict[str, int]) -> Any:
    """What is compared of an answer. What is loading is waited for."""
    key, version, message = step(peer)
    first = firsts.get(peer.name, FIRST)
    if key == HEARTBEAT and message.member_epoch >= FIRST:
        message.member_epoch += first - FIRST
    deadline = time.monotonic() + READY_S
    while True:
        answer = connection.ask(key, version, message)
        if key == HEARTBEAT and answer.member_epoch > 0:
            first = firsts.setdefault(peer.name, answer.member_epoch)
        found = compared(plain(answer), first - FIRST)
        if not codes(found) & LOADING or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def acquired(peer: Peer, connection: Raw, member: str, epoch: int) -> int:
    """How many records of the topic ``fair`` one fetch of the group ``fair`` is given."""
    places: dict[tuple[str, int], list[Said]] = {("fair", index): [] for index in range(4)}
    asked = fetch(member, epoch, places, group="fair", max_wait_ms=WAIT_MS)
    parts = [part for topic in connection.ask(*asked(peer)).responses for part in topic.partitions]
    return sum(taken.last_offset - taken.first_offset + 1 for part in parts for taken in part.acquired_records)


def test_two_members_share_what_was_there_before_them(peers: list[Peer]) -> None:
    """Of partitions that the group has not read before, a first fetch is answered with what is ready first."""
    for peer in peers:
        peer.create("fair", 4)
        ready(peer, "fair")
        configure(peer, "fair", "share.auto.offset.reset", "earliest")
        answer = peer.ask(ApiKey.PRODUCE, 9, produce(*[("fair", index, batch(100)) for index in range(4)]))
        assert all(part.error_code == 0 for topic in answer.responses for part in topic.partition_responses)
        initialize(peer, ["fair"], 4, group="fair")
        counts = []
        with ExitStack() as connections:
            for member in (A, B):
                peer.ask(*beat(member, 0, ["fair"], group="fair")(peer))
                connection = connections.enter_context(Raw(peer.port))
                counts.append(acquired(peer, connection, member, 0))
            # On a busy machine the second member, too, is given what is ready first.
            for epoch in range(1, FETCHES):
                if sum(counts) == 400:
                    break
                counts.append(acquired(peer, connection, B, epoch))
        assert counts[0] < 400, (peer.name, counts)
        assert sum(counts) == 400, (peer.name, counts)


NOTHING = {"error_code": 0, "acknowledge_error_code": 0, "records": False, "acquired_records": []}
"""What is said of a partition of which there is nothing to be said; or not said."""


def says_something(found: Any) -> bool:
    if not isinstance(found, dict):
        return True
    return found != {"partitions": []} and found != {**NOTHING, "partition_index": found.get("partition_index")}


def compared(found: Any, epochs: int) -> Any:
    """Epochs count from the first; which partitions a member is given is each broker's own; records count as whether there are any;
    leaders are told by each broker when it likes."""
    if isinstance(found, list):
        return [kept for each in found if says_something(kept := compared(each, epochs))]
    if not isinstance(found, dict):
        return found
    kept: dict[str, Any] = {}
    for name, value in found.items():
        if name in ("current_leader", "node_endpoints", "acknowledge_error_message"):
            continue
        if name == "records" or (name == "partitions" and value and isinstance(value[0], int)):
            kept[name] = bool(value)
        elif name in ("member_epoch", "group_epoch", "assignment_epoch") and value > 0:
            kept[name] = value - epochs
        else:
            kept[name] = compared(value, epochs)
    return kept
