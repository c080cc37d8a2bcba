"""The same group requests to Firn and to Apache Kafka: every wrong one gets the same code from both, in every version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from struct import pack
from typing import Any
from uuid import UUID

import pytest

from app.wire.apikeys import ApiKey
from app.wire.versions import SERVED
from loadtests.kafka_peer import kafka_running
from tests.interop.group_requests import NO_SUCH_ID, READY_S, commit, fetch, outcome, plain
from tests.interop.peers import Peer, make, request
from tests.interop.serving import firn_serving, kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def peers(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("peers")
    settings = {"auto_create_topics_enable": "false", "group_initial_rebalance_delay_ms": 0}
    with kafka_running(path / "kafka") as kafka, firn_serving(path, *how, **settings) as firn:
        both = [Peer("Kafka", kafka.port), Peer("Firn", firn.port)]
        for peer in both:
            peer.create("t", 2)
            peer.create("u", 1)
            ready(peer)
        yield both


def ready(peer: Peer) -> None:
    """Wait until the coordinator of groups serves."""
    deadline = time.monotonic() + READY_S
    while True:
        found = peer.ask(ApiKey.FIND_COORDINATOR, 3, request(ApiKey.FIND_COORDINATOR, key="ready", key_type=0))
        if not found.error_code:
            answer = peer.ask(ApiKey.OFFSET_COMMIT, 8, commit("ready"))
            if answer.topics[0].partitions[0].error_code == 0:
                return
        assert time.monotonic() < deadline, peer.name
        time.sleep(0.1)


def same(peers: list[Peer], key: ApiKey, version: int, message: Callable[[Peer], Any]) -> Any:
    """Ask both; what both answered."""
    kafka, firn = (outcome(peer, key, version, message(peer)) for peer in peers)
    assert firn == kafka, (key.name, version)
    return firn


def versions(key: ApiKey) -> range:
    first, last = SERVED[key]
    return range(first, last + 1)


# --- requests ---------------------------------------------------------------------------------------------------------


def subscription(*topics: str) -> bytes:
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


def join(group: str, member_id: str = "", **fields: Any) -> Any:
    names = fields.pop("names", ("range",))
    protocols = [
        make(ApiKey.JOIN_GROUP, "JoinGroupRequestProtocol", name=name, metadata=subscription("t")) for name in names
    ]
    chosen = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": protocols,
        **fields,
    }
    return request(ApiKey.JOIN_GROUP, group_id=group, member_id=member_id, **chosen)


def sync(group: str, member_id: str, generation: int, **fields: Any) -> Any:
    return request(ApiKey.SYNC_GROUP, group_id=group, member_id=member_id, generation_id=generation, **fields)


def member_of(peer: Peer, group: str) -> str:
    """Join a group of one, whose leader gets an assignment; its member id. The generation is 1."""
    given = peer.ask(ApiKey.JOIN_GROUP, 9, join(group)).member_id
    joined = peer.ask(ApiKey.JOIN_GROUP, 9, join(group, given))
    assert (joined.error_code, joined.generation_id) == (0, 1), (peer.name, joined)
    assignment = make(ApiKey.SYNC_GROUP, "SyncGroupRequestAssignment", member_id=given, assignment=b"mine")
    synced = peer.ask(ApiKey.SYNC_GROUP, 4, sync(group, given, 1, assignments=[assignment]))
    assert (synced.error_code, synced.assignment) == (0, b"mine"), (peer.name, synced)
    return str(given)


# --- the same answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_joining(peers: list[Peer], version: int) -> None:
    static = {"group_instance_id": "i"} if version >= 5 else {}
    for name, message in {
        "empty id": join(""),
        "short session": join("j", session_timeout_ms=5999),
        "long session": join("j", session_timeout_ms=1_800_001),
        "no protocols": join("j", names=()),
        "no protocol type": join("j", protocol_type=""),
        "unknown member": join("j", "nobody"),
        "unknown static member": join("j", "nobody", **static),
    }.items():
        found = same(peers, ApiKey.JOIN_GROUP, version, lambda _, message=message: message)  # type: ignore[misc]
        assert found == "closed" or found["error_code"], name
    found = same(peers, ApiKey.JOIN_GROUP, version, lambda _: join(f"join-{version}"))
    assert found["error_code"] == (79 if version >= 4 else 0)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_joining_with_several_things_missing_at_once(peers: list[Peer], version: int) -> None:
    """Which of several mistakes is told is the broker's choice, and clients go by it."""
    ids = {peer.name: member_of(peer, f"missing-{version}") for peer in peers}
    nothing = request(ApiKey.JOIN_GROUP)
    found = same(peers, ApiKey.JOIN_GROUP, version, lambda _: nothing)
    assert found["error_code"] == 24, "of all that is missing, the group's id"
    for group, session_ms, names, kind, member in product(
        ("", f"missing-{version}", f"none-{version}"),
        (0, 10_000),
        ((), ("range",)),
        ("", "consumer"),
        ("", "nobody", None),
    ):
        if session_ms and names and kind and group and member != "nobody":
            continue  # that joins
        found = same(
            peers,
            ApiKey.JOIN_GROUP,
            version,
            lambda peer, group=group, session_ms=session_ms, names=names, kind=kind, member=member: join(  # type: ignore[misc]
                group,
                ids[peer.name] if member is None else member,
                session_timeout_ms=session_ms,
                names=names,
                protocol_type=kind,
            ),
        )
        assert found["error_code"], (group, session_ms, names, kind, member)


def test_joining_a_group_that_has_members(peers: list[Peer]) -> None:
    ids = {peer.name: member_of(peer, "has-members") for peer in peers}
    for version in versions(ApiKey.JOIN_GROUP):
        for fields in ({"names": ("sticky",)}, {"protocol_type": "connect"}, {"names": ()}):
            for known in (False, True):
                found = same(
                    peers,
                    ApiKey.JOIN_GROUP,
                    version,
                    lambda peer, known=known, fields=fields: join(  # type: ignore[misc]
                        "has-members", ids[peer.name] if known else "", **fields
                    ),
                )
                assert found["error_code"] == 23
        same(peers, ApiKey.JOIN_GROUP, version, lambda _: join("has-members", "nobody"))


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_syncing(peers: list[Peer], version: int) -> None:
    group = f"sync-{version}"
    ids = {peer.name: member_of(peer, group) for peer in peers}
    same(peers, ApiKey.SYNC_GROUP, version, lambda _: sync("", "m", 1))
    same(peers, ApiKey.SYNC_GROUP, version, lambda _: sync("no-such", "m", 1))
    same(peers, ApiKey.SYNC_GROUP, version, lambda _: sync(group, "nobody", 1))
    for generation in (-1, 0, 2):
        same(peers, ApiKey.SYNC_GROUP, version, lambda peer, g=generation: sync(group, ids[peer.name], g))  # type: ignore[misc]
    if version >= 5:
        for fields in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
            same(peers, ApiKey.SYNC_GROUP, version, lambda peer, f=fields: sync(group, ids[peer.name], 1, **f))  # type: ignore[misc]
    if version >= 3:
        same(peers, ApiKey.SYNC_GROUP, version, lambda peer: sync(group, ids[peer.name], 1, group_instance_id="i"))
    names = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    found = same(peers, ApiKey.SYNC_GROUP, version, lambda peer: sync(group, ids[peer.name], 1, **names))
    assert found["assignment"] == b"mine"


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeats(peers: list[Peer], version: int) -> None:
    group = f"beat-{version}"
    ids = {peer.name: member_of(peer, group) for peer in peers}

    def beat(group: str, member_id: str, generation: int, **fields: Any) -> Any:
        return request(ApiKey.HEARTBEAT, group_id=group, member_id=member_id, generation_id=generation, **fields)

    for asked in (("", "m", 1), ("no-such", "m", 1), (group, "nobody", 1), (group, "", 1)):
        same(peers, ApiKey.HEARTBEAT, version, lambda _, asked=asked: beat(*asked))  # type: ignore[misc]
    for generation in (-1, 0, 1, 2):
        same(peers, ApiKey.HEARTBEAT, version, lambda peer, g=generation: beat(group, ids[peer.name], g))  # type: ignore[misc]
    if version >= 3:
        same(peers, ApiKey.HEARTBEAT, version, lambda peer: beat(group, ids[peer.name], 1, group_instance_id="i"))


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_leaving(peers: list[Peer], version: int) -> None:
    group = f"leave-{version}"
    ids = {peer.name: member_of(peer, group) for peer in peers}

    def leave(group: str, *members: tuple[str, str | None]) -> Any:
        if version < 3:
            return request(ApiKey.LEAVE_GROUP, group_id=group, member_id=members[0][0])
        rows = [
            make(ApiKey.LEAVE_GROUP, "MemberIdentity", member_id=member_id, group_instance_id=instance_id)
            for member_id, instance_id in members
        ]
        return request(ApiKey.LEAVE_GROUP, group_id=group, members=rows)

    same(peers, ApiKey.LEAVE_GROUP, version, lambda _: leave("", ("m", None)))
    same(peers, ApiKey.LEAVE_GROUP, version, lambda _: leave("no-such", ("m", None)))
    same(peers, ApiKey.LEAVE_GROUP, version, lambda _: leave(group, ("nobody", None), ("", None), ("", "i")))
    same(peers, ApiKey.LEAVE_GROUP, version, lambda peer: leave(group, (ids[peer.name], None), ("nobody", "i")))
    same(peers, ApiKey.LEAVE_GROUP, version, lambda peer: leave(group, (ids[peer.name], None)))


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_committing(peers: list[Peer], version: int) -> None:
    group = f"commit-{version}"
    ids = {peer.name: member_of(peer, group) for peer in peers}

    def asked(peer: Peer, group: str, member_id: str = "", generation: int = -1, **fields: Any) -> Any:
        topic = fields.pop("topic", "u")
        return commit(
            group, member_id, generation, topic=peer.ids.get(topic, NO_SUCH_ID) if version >= 10 else topic, **fields
        )

    def both(*arguments: Any, own: bool = False, **fields: Any) -> Any:
        return same(
            peers,
            ApiKey.OFFSET_COMMIT,
            version,
            lambda peer: (
                asked(peer, group, ids[peer.name], *arguments, **fields) if own else asked(peer, *arguments, **fields)
            ),
        )

    both("")
    both("no-such", "m", 1)
    both("simple")
    both("simple", topic="nowhere")
    both("simple", partition=9)
    both("simple", offset=-1)
    both("simple", metadata="m" * 4096)
    both("simple", metadata="m" * 4097)
    both("simple", metadata=None)
    both("simple", "m")
    both("simple", "m", 1)
    both(group)
    both(group, "nobody", 1)
    for generation in (-1, 0, 1, 2):
        both(generation, own=True)
    if version >= 7:
        both(1, own=True, group_instance_id="i")
    if version < 5:
        both("simple", retention_time_ms=100_000)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_reading_offsets(peers: list[Peer], version: int) -> None:
    group = f"fetch-{version}"
    for peer in peers:
        answer = peer.ask(ApiKey.OFFSET_COMMIT, 8, commit(group, offset=77, metadata="note"))
        assert answer.topics[0].partitions[0].error_code == 0

    def named(peer: Peer, topic: str) -> str | UUID:
        return peer.ids.get(topic, NO_SUCH_ID) if version >= 10 else topic

    def both(group: str, topics: list[tuple[str, list[int]]] | None, **fields: Any) -> Any:
        return same(
            peers,
            ApiKey.OFFSET_FETCH,
            version,
            lambda peer: fetch(
                group, topics and [(named(peer, name), list(rows)) for name, rows in topics], version, **fields
            ),
        )

    both("", [("u", [0])])
    both("no-such-group", [("u", [0])])
    both(group, [("u", [0, 1, 9]), ("t", [0]), ("nowhere", [0])])
    both(group, [])
    if version >= 2:
        both(group, None)
        both("no-such-group", None)
    if version >= 7:
        both(group, [("u", [0])], require_stable=True)
    if version >= 9:
        both(group, [("u", [0])], member_id="nobody", member_epoch=3)


def test_describing_listing_and_deleting(peers: list[Peer]) -> None:
    ids = {peer.name: member_of(peer, "described") for peer in peers}
    for peer in peers:
        peer.ask(ApiKey.OFFSET_COMMIT, 8, commit("simple-one"))
    names = ["described", "simple-one", "no-such", ""]
    for version in versions(ApiKey.DESCRIBE_GROUPS):
        same(peers, ApiKey.DESCRIBE_GROUPS, version, lambda _: request(ApiKey.DESCRIBE_GROUPS, groups=names))
        if version >= 3:
            same(
                peers,
                ApiKey.DESCRIBE_GROUPS,
                version,
                lambda _: request(ApiKey.DESCRIBE_GROUPS, groups=names, include_authorized_operations=True),
            )

    def deletion(group: str, *topics: tuple[str, list[int]]) -> Any:
        rows = [
            make(
                ApiKey.OFFSET_DELETE,
                "OffsetDeleteRequestTopic",
                name=name,
                partitions=[
                    make(ApiKey.OFFSET_DELETE, "OffsetDeleteRequestPartition", partition_index=partition)
                    for partition in partitions
                ],
            )
            for name, partitions in topics
        ]
        return request(ApiKey.OFFSET_DELETE, group_id=group, topics=rows)

    for message in (
        deletion("", ("u", [0])),
        deletion("no-such", ("u", [0])),
        deletion("described", ("t", [0]), ("u", [0]), ("nowhere", [0])),
        deletion("simple-one", ("u", [0, 7])),
    ):
        same(peers, ApiKey.OFFSET_DELETE, 0, lambda _, message=message: message)  # type: ignore[misc]
    for version in versions(ApiKey.LIST_GROUPS):
        for filters in (
            {},
            *([{"states_filter": ["Stable"]}, {"states_filter": ["stable", "nonsense"]}] if version >= 4 else []),
            *([{"types_filter": ["classic"]}, {"types_filter": ["Consumer"]}] if version >= 5 else []),
        ):
            message = request(ApiKey.LIST_GROUPS, **filters)
            found = [peer.ask(ApiKey.LIST_GROUPS, version, message) for peer in peers]
            kafka, firn = (
                {
                    plain(group)["group_id"]: plain(group)
                    for group in answer.groups
                    if group.group_id in ("described", "simple-one")
                }
                for answer in found
            )
            assert [answer.error_code for answer in found] == [0, 0]
            assert firn == kafka, (version, filters, firn, kafka)
    for version in versions(ApiKey.DELETE_GROUPS):
        for names in (["described", "no-such", ""], ["simple-one"], ["simple-one"]):
            same(
                peers,
                ApiKey.DELETE_GROUPS,
                version,
                lambda _, names=names: request(ApiKey.DELETE_GROUPS, groups_names=names),
            )  # type: ignore[misc]
    assert ids


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_finding_coordinators(peers: list[Peer], version: int) -> None:
    for kind in (0, 9, -1) if version >= 1 else (0,):
        for keys in (["g"], ["g", "", "grüße"]):
            if version < 4:
                for name in keys:
                    same(
                        peers,
                        ApiKey.FIND_COORDINATOR,
                        version,
                        lambda _, name=name, kind=kind: request(ApiKey.FIND_COORDINATOR, key=name, key_type=kind),  # type: ignore[misc]
                    )
            else:
                same(
                    peers,
                    ApiKey.FIND_COORDINATOR,
                    version,
                    lambda _, keys=keys, kind=kind: request(  # type: ignore[misc]
                        ApiKey.FIND_COORDINATOR, coordinator_keys=keys, key_type=kind
                    ),
                )
