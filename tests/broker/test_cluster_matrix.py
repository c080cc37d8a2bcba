"""Every API, asked of each of three brokers by whoever must not: as ``test_negative_matrix.py`` says of one broker."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.core.errors import ErrorCode
from app.handlers.apis.passing_on import PASSED_ON
from app.handlers.base.authorising import TABLE
from app.metadata.peers.control import ENVELOPE_SEQUENCE
from app.security.acls import CLUSTER_NAME, OPERATIONS, WILDCARD, Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.create_delegation_token import CreateDelegationTokenRequest
from app.wire.apis.expire_delegation_token import ExpireDelegationTokenRequest
from app.wire.apis.renew_delegation_token import RenewDelegationTokenRequest
from app.wire.codec import decode_response
from app.wire.header import parse_response_header
from app.wire.private import (
    PlaceResponse,
    TierSegmentsRequest,
    TierSegmentsResponse,
    TierStatusRequest,
    TierStatusResponse,
    pack,
    unpack,
)
from app.wire.versions import BETWEEN_BROKERS, OPAQUE, SERVED
from tests.broker.guarded import OF_LOGINS, SAYS_LESS, TOPIC, guarded, own_codes, read, written
from tests.broker.negative_lines import (
    EVERYTHING,
    NO_LOGINS,
    OF_GROUPS,
    OF_TOKENS,
    OTHERS,
    Issuer,
    ask,
    check_line,
    check_login_line,
    of_groups,
    requests,
    showing_certificate,
    tried,
)
from tests.handlers.conversation import Talk
from tests.interop.peers import request
from tests.support.cluster_rights import BETWEEN, OF_OPERATORS, Harm, envelope
from tests.support.guarded_cluster import (
    BROKERS,
    CLIENTS,
    CONTROLLER,
    FOLLOWER,
    HOST,
    HOST_OF_BROKERS,
    LEADER,
    NODES,
    GuardedCluster,
    guarded_cluster,
)
from tests.support.rights import GONE, GROUP, NEW, OTHER, SEEN, STEPS, TRANSACTION, Step, refusals, told
from tests.support.secured import certificates, listener, revocations
from tests.support.waiting import until

ALICE = "User:alice"
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def check_place(line: dict[str, Any], key: int, node_id: int, listener: str) -> None:
    """That a line is of the broker that decides."""
    passed_on = key in PASSED_ON and node_id != CONTROLLER
    assert line["broker"] == (CONTROLLER if passed_on else node_id), line
    assert line["listener"] == (BROKERS if passed_on else listener), line


ABSENT = {
    name: name.upper() for name in (SEEN, OTHER, GONE, NEW, "fresh", GROUP, "another", "shared", "nobody", TRANSACTION)
}
"""Names of topics, groups and transactional ids, and as many that are not there."""


QUOTED = re.compile("'([^']+)'")


def renamed(message: Any, names: dict[str, str]) -> Any:
    """A message with other names in it, in its sentences too."""
    if isinstance(message, str):
        return names.get(message) or QUOTED.sub(lambda found: f"'{names.get(found[1], found[1])}'", message)
    if isinstance(message, list):
        return [renamed(one, names) for one in message]
    if dataclasses.is_dataclass(message):
        fields = {item.name: renamed(getattr(message, item.name), names) for item in dataclasses.fields(message)}
        return type(message)(**fields)
    return message


def ids_of(message: Any) -> set[UUID]:
    if isinstance(message, list):
        return {one for part in message for one in ids_of(part)}
    if dataclasses.is_dataclass(message):
        return {one for item in dataclasses.fields(message) for one in ids_of(getattr(message, item.name))}
    return {message} - {UUID(int=0)} if isinstance(message, UUID) else set()


class Asked:
    """The same user, connected to each broker."""

    def __init__(self, cluster: GuardedCluster, clients: dict[int, Talk], listener: str) -> None:
        self.cluster, self.clients, self.listener = cluster, clients, listener
        self.before = cluster.state()

    async def each(self, step: Step, version: int, ids: Any) -> dict[int, Any]:
        """Ask each broker, and see that each refusal is one line. Returns: what they answer."""
        answers = {}
        for node_id, client in self.clients.items():
            answers[node_id] = await ask(client, step, version, ids)
            if step.label in SAYS_LESS:
                assert self.cluster.take() == [], (step.label, version, node_id)
                continue
            line = self.cluster.take_one((step.label, version, node_id))
            check_line(line, step, ALICE, HOST, client.correlation_id)
            check_place(line, step.key, node_id, self.listener)
        return answers


COLUMNS = {
    "no ACL": (CLIENTS, ()),
    "an ACL that denies": (CLIENTS, ("allow", "deny")),
    "an ACL for the brokers' host": (CLIENTS, ("allow host",)),
    "on the listener between brokers": (BROKERS, ()),
}
"""By which listener a user comes, and what it is given."""
OF_EVERY_RUN = ("no ACL", "on the listener between brokers")


@pytest.mark.parametrize(
    "column", [one if one in OF_EVERY_RUN else pytest.param(one, marks=pytest.mark.ci) for one in COLUMNS]
)
async def test_who_has_no_right_is_refused_alike_by_every_broker(tmp_path: Path, column: str) -> None:
    listener, rights = COLUMNS[column]
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        for one in rights:
            await cluster.allow(*EVERYTHING, deny=one == "deny", host=HOST_OF_BROKERS if "host" in one else "*")
        clients = {
            node_id: await stack.enter_async_context(cluster.as_user("alice", node_id, listener)) for node_id in NODES
        }
        asked = Asked(cluster, clients, listener)
        for step in STEPS:
            if step.key in OF_TOKENS:
                continue
            for version in step.versions():
                answers = await asked.each(step, version, cluster.ids)
                first = answers[CONTROLLER]
                for node_id, answer in answers.items():
                    if step.label in SAYS_LESS:
                        assert SEEN not in repr(told(answer)), (step.label, version, node_id)
                    elif not (step.key is ApiKey.DESCRIBE_LOG_DIRS and version < 3):
                        assert refusals(answer), (step.label, version, node_id, answer)
                    assert answer == first, (step.label, version, node_id)
            assert cluster.state() == asked.before, step.label


async def test_a_refusal_is_that_of_one_broker_and_does_not_tell_what_there_is(tmp_path: Path) -> None:
    async with guarded(tmp_path / "one") as alone, guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        of_one = await stack.enter_async_context(alone.as_user(ALICE))
        clients = [await stack.enter_async_context(cluster.as_user("alice", node_id)) for node_id in NODES]
        named = 0
        for step in STEPS:
            if step.key in OF_TOKENS or step.label in SAYS_LESS:
                continue
            for version in step.versions():
                expected = told(await ask(of_one, step, version, alone.ids))
                there = step.build(version, cluster.ids)
                absent = renamed(there, ABSENT)
                for client in clients:
                    answer = await ask(client, step, version, cluster.ids)
                    assert told(answer) == expected, (step.label, version)
                    if there == absent or ids_of(there):
                        continue  # it names nothing, or names by ids, which nobody guesses
                    named += 1
                    of_absent = step._replace(build=lambda version, ids, message=absent: message)
                    assert await ask(client, of_absent, version, cluster.ids) == renamed(answer, ABSENT), (
                        step.label,
                        version,
                    )
        assert named > 300


async def test_where_the_bytes_of_a_topic_are_is_refused_whether_there_is_one_or_not(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        before = cluster.state()
        for node_id in NODES:
            async with cluster.as_user("alice", node_id) as client:
                for name in (SEEN, "no such topic"):
                    body = await client.ask(ApiKey.FIRN_TIER_SEGMENTS, 0, pack(TierSegmentsRequest(name, 0)))
                    found = unpack(TierSegmentsResponse, body)
                    sentence = f"User:alice is not allowed to DESCRIBE topic '{name}'."
                    assert (found.segments, found.error) == ([], sentence)
                    line = cluster.take_one((name, node_id))
                    assert (line["principal"], line["host"], line["broker"]) == (ALICE, HOST, node_id)
                    asked = TierStatusRequest([name], replicas=True)
                    status = unpack(TierStatusResponse, await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(asked)))
                    assert (status.partitions, status.missing) == ([], [name])
                    cluster.take()
        assert cluster.state() == before


@pytest.mark.ci
async def test_who_has_every_right_is_refused_nothing_by_any_broker(tmp_path: Path) -> None:
    """That the lines above come of what is missing, and of nothing else."""
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        await cluster.allow(*EVERYTHING)
        clients = [await stack.enter_async_context(cluster.as_user("alice", node_id)) for node_id in NODES]
        for step in STEPS:
            if step.key is ApiKey.DELETE_TOPICS or step.key in OF_TOKENS:
                continue
            for version in step.versions():
                for client in clients:
                    answer = await ask(client, step, version, cluster.ids)
                    assert not refusals(answer), (step.label, version, answer)
                    assert {line["event"] for line in cluster.take()} <= {"change"}, (step.label, version)


@pytest.mark.parametrize(
    "denied",
    [pytest.param(False, marks=pytest.mark.ci, id="rights on one's own"), pytest.param(True, id="all but another's")],
)
async def test_anothers_group_and_transactional_id_are_refused_whoever_coordinates_them(
    tmp_path: Path, denied: bool
) -> None:
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        await cluster.allow((Operation.ALL, ResourceType.TOPIC, WILDCARD))
        for kind, names in OTHERS.items():
            await cluster.allow((Operation.ALL, kind, WILDCARD if denied else "mine"))
            if denied:
                await cluster.allow(*((Operation.ALL, kind, name) for name in names), deny=True)
        clients = {node_id: await stack.enter_async_context(cluster.as_user("alice", node_id)) for node_id in NODES}
        asked = Asked(cluster, clients, CLIENTS)
        for step in of_groups():
            for version in step.versions():
                answers = await asked.each(step, version, cluster.ids)
                assert refusals(answers[LEADER]) & OF_GROUPS, (step.label, version)
                assert answers[CONTROLLER] == answers[LEADER] == answers[FOLLOWER], (step.label, version)
            assert cluster.state() == asked.before, step.label


@pytest.mark.ci
async def test_what_another_was_allowed_is_refused_by_every_broker(tmp_path: Path) -> None:
    """Whatever a broker, or the controller behind it, remembers of a request belongs to who sent it."""
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        await cluster.allow(*EVERYTHING, user="bob")
        bobs = [await stack.enter_async_context(cluster.as_user("bob", node_id)) for node_id in NODES]
        clients = {node_id: await stack.enter_async_context(cluster.as_user("alice", node_id)) for node_id in NODES}
        for step in STEPS:
            if step.key in OF_TOKENS:
                continue
            for version in step.versions():
                if step.key is not ApiKey.DELETE_TOPICS:  # what is not there any more is not refused
                    for bob in bobs:
                        for _ in range(2):
                            await ask(bob, step, version, cluster.ids)
                    await cluster.still()
                cluster.take()
                asked = Asked(cluster, clients, CLIENTS)
                answers = await asked.each(step, version, cluster.ids)
                for answer in answers.values():
                    assert refusals(answer) or step.label in SAYS_LESS or step.key is ApiKey.DESCRIBE_LOG_DIRS
                assert cluster.state() == asked.before, (step.label, version)


async def test_a_shape_that_another_taught_is_refused_by_leaders_and_followers(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        await cluster.allow((Operation.WRITE, TOPIC, SEEN), (Operation.READ, TOPIC, SEEN), user="bob")
        bobs = {node_id: await stack.enter_async_context(cluster.as_user("bob", node_id)) for node_id in NODES}
        alices = {node_id: await stack.enter_async_context(cluster.as_user("alice", node_id)) for node_id in NODES}
        for _ in range(3):
            assert await written(bobs[LEADER]) == 0
            await cluster.still()
            before = cluster.state()
            for node_id in NODES:
                code, size = await read(bobs[node_id])
                assert (code, size > 0) == (0, True), "followers serve consumers"
                assert cluster.take() == []
                assert await read(alices[node_id]) == (REFUSED, 0)
                assert cluster.take_one()["broker"] == node_id
                assert await written(alices[node_id]) == REFUSED
                line = cluster.take_one()
                assert (line["broker"], line["principal"], line["request"]) == (node_id, ALICE, "PRODUCE")
            assert cluster.state() == before


# --- what brokers and operators ask ---------------------------------------------------------------------------------------


async def answer_to(client: Talk, harm: Harm, version: int, message: Any) -> Any:
    """None if the connection is closed instead."""
    client.send(harm.key, version, message)
    try:
        return (await client.answer(harm.key, version))[1]
    except asyncio.IncompleteReadError:
        return None


def is_refused(harm: Harm, answer: Any) -> bool:
    if answer is None:
        return True
    if harm.key is ApiKey.FIRN_PLACE:
        return not unpack(PlaceResponse, answer).looks  # who it is, everybody is told
    if isinstance(answer, (bytes, memoryview)):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED in own_codes(bytes(answer))
    parts = getattr(answer, "responses", None) or getattr(answer, "results", None)
    if parts and hasattr(parts[0], "resource_type"):
        return all(refusals(one) for one in parts)
    return bool(refusals(answer))


async def refuse_all(cluster: GuardedCluster, user: str, harms: list[Harm], listener: str) -> None:
    """Have a user ask every broker for all of it: each is refused with one line, and nothing changes anywhere."""
    async with AsyncExitStack() as stack:

        async def connect(node_id: int) -> Talk:
            return await stack.enter_async_context(cluster.as_user(user, node_id, listener))

        clients = {node_id: await connect(node_id) for node_id in NODES}
        before = cluster.state()
        for harm in harms:
            for version in harm.versions():
                what = (harm.label, version)
                answers = []
                for node_id, client in clients.items():
                    if harm.key is ApiKey.FIRN_PLACE and node_id != LEADER:
                        continue  # it is not about them
                    answer = await answer_to(client, harm, version, harm.build(version, cluster))
                    assert is_refused(harm, answer), (*what, node_id, answer)
                    answers.append(answer)
                    if harm.key is ApiKey.FETCH:
                        answer.session_id = 0  # drawn
                    line = cluster.take_one((*what, node_id))
                    assert (line["event"], line["outcome"]) == ("access", "denied"), what
                    assert (line["principal"], line["host"]) == (f"User:{user}", HOST), what
                    assert (line["request"], line["correlation_id"]) == (harm.key.name, client.correlation_id), what
                    assert [(one["operation"], one["type"]) for one in line["resources"]] == [
                        (harm.asks.name, "USER" if harm.asks is Operation.CREATE_TOKENS else "CLUSTER")
                    ], what
                    check_place(line, harm.key, node_id, listener)
                    if answer is None:
                        assert await client.closed()
                        clients[node_id] = await connect(node_id)
                assert all(answer == answers[0] for answer in answers), what
                await asyncio.sleep(0)
                assert cluster.state() == before, what
        assert not any(broker.ended.is_set() for broker in cluster.brokers.values())


ALL_BUT_OF_CLUSTER = [one for one in EVERYTHING if one[1] != ResourceType.CLUSTER]


def of_cluster(*operations: Operation) -> list[tuple[int, int, str]]:
    return [(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in operations]


ALL_BUT_CLUSTER_ACTION = [one for one in OPERATIONS[ResourceType.CLUSTER] if one is not Operation.CLUSTER_ACTION]


def test_every_api_that_brokers_alone_ask_is_among_these_requests() -> None:
    between = {harm.key for harm in BETWEEN}
    assert between >= BETWEEN_BROKERS.keys()
    asks = {key for key, entries in TABLE.items() if any("CLUSTER_ACTION" in repr(one) for one in entries)}
    of_clients_too = {ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.FIRN_SCHEMAS, ApiKey.FIRN_REQUESTS}
    assert between >= asks - of_clients_too, "whose callers may have a right on the topic or subject instead"
    of_topics = {ApiKey.FIRN_TIER_STATUS, ApiKey.FIRN_TIER_SEGMENTS, ApiKey.FIRN_TOPICS, ApiKey.FIRN_APPEND}
    of_topics |= {ApiKey.FIRN_TOPIC_LAGS, ApiKey.FIRN_KEYED}
    assert between | {harm.key for harm in OF_OPERATORS} >= OPAQUE - of_topics - {ApiKey.FIRN_FORWARDED}


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS])
async def test_what_brokers_and_operators_ask_is_refused_to_who_has_every_right_but_that(
    tmp_path: Path, listener: str
) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        for operation in sorted({harm.asks for harm in (*BETWEEN, *OF_OPERATORS)}):
            user = f"no-{operation.name}"
            await cluster.allow(*EVERYTHING, user=user)
            if operation is not Operation.CREATE_TOKENS:  # which is no operation on the cluster
                await cluster.allow(*of_cluster(operation), user=user, deny=True)
            # Administrators may write markers, too.
            asked = [harm for harm in (*BETWEEN, *OF_OPERATORS) if harm.key is not ApiKey.WRITE_TXN_MARKERS]
            await refuse_all(cluster, user, [harm for harm in asked if harm.asks is operation], listener)


LEAVING = ("stop a broker", "leave for another")
"""What has a broker lead nothing any more: asked last."""
ENDING = ("drain", "stop a drain", *(f"unregister broker {node_id}" for node_id in NODES))
"""What ends a broker."""
TELLING = {
    "fetch as a follower", "heartbeat", "read the cluster log", "ask for the controller", "read manifests",
    "look at transactions", "find a share coordinator", "read share state", "share state summary", "settings of brokers",
    "metrics", "cluster", "elect any leaders", "learn the fate of a record",
}  # fmt: skip
"""What changes nothing, and is for those who may know it."""
NOTHING_TO_DO = {
    "register", "register in another's place", "replace segments", "tell of a replacement", "elect preferred leaders",
    "forget a topic", "hold copies", "say that a broker lives", "register a schema of no topic", "alter the config of a subject",
}  # fmt: skip
"""What is served and changes nothing here: there is no such broker, there are no such segments, and nothing was deleted. What is
held back is in no state that is stored. The cluster's level has no registry: ``test_schema_rights.py`` writes to one."""


@pytest.mark.ci
async def test_what_is_refused_above_is_done_for_those_who_may(tmp_path: Path) -> None:
    """That those requests are refused for what is missing, and would change the cluster."""
    async with guarded_cluster(tmp_path) as cluster:
        await cluster.allow(*of_cluster(Operation.CLUSTER_ACTION), (Operation.ALTER, TOPIC, SEEN), user="carol")
        changed = set()

        async def ask_for(harm: Harm) -> None:
            # By the end all ACLs are deleted.
            user = "carol" if harm in BETWEEN and harm.label not in LEAVING else "admin"
            listener = BROKERS if harm in BETWEEN else CLIENTS
            for node_id in NODES:
                async with cluster.as_user(user, node_id, listener) as client:
                    before, version = cluster.state(), harm.versions()[-1]
                    answer = await answer_to(client, harm, version, harm.build(version, cluster))
                    if harm.key is not ApiKey.FIRN_PLACE or node_id == LEADER:
                        assert not is_refused(harm, answer), (harm.label, node_id, answer)
                    await cluster.level()
                    if cluster.state() != before:
                        changed.add(harm.label)
                    assert not [line for line in cluster.take() if line["outcome"] == "denied"], harm.label

        harms = {harm.label: harm for harm in (*BETWEEN, *OF_OPERATORS) if harm.label not in ENDING}
        for label in (*(one for one in harms if one not in LEAVING), *LEAVING):
            await ask_for(harms[label])
        assert changed >= harms.keys() - TELLING - NOTHING_TO_DO


# --- what is passed on ----------------------------------------------------------------------------------------------------


def passed_on() -> Iterator[tuple[Step, int]]:
    for step in STEPS:
        if step.key in PASSED_ON and step.key not in OF_TOKENS:
            yield from ((step, version) for version in step.versions())


@pytest.mark.parametrize(
    ("user", "listener"),
    [("alice", BROKERS), pytest.param("alice", CLIENTS, marks=pytest.mark.ci), ("carol", CLIENTS)],
)
async def test_nobody_but_a_broker_on_its_listener_speaks_for_others(tmp_path: Path, user: str, listener: str) -> None:
    """Carol may act as a broker, and comes by the listener of clients. Alice has every other right."""
    async with guarded_cluster(tmp_path) as cluster:
        await cluster.allow(*ALL_BUT_OF_CLUSTER, *of_cluster(*ALL_BUT_CLUSTER_ACTION))
        await cluster.allow(*of_cluster(Operation.CLUSTER_ACTION), user="carol")
        async with cluster.as_user(user, CONTROLLER, listener) as client:
            before = cluster.state()
            for step, version in passed_on():
                for whom in ("admin", "broker-1", "carol", user):
                    wanted = envelope(step.key, step.build(version, cluster.ids), whom, version=version)
                    answer = await client.ask(ApiKey.ENVELOPE, 0, wanted)
                    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, (step.label, version, whom)
                    assert answer.response_data is None
                    line = cluster.take_one((step.label, version, whom))
                    assert (line["request"], line["principal"], line["host"]) == ("ENVELOPE", f"User:{user}", HOST)
                    assert (line["outcome"], line["broker"], line["listener"]) == ("denied", CONTROLLER, listener)
                assert cluster.state() == before, (step.label, version)


async def test_the_controller_asks_what_the_client_may_and_not_the_broker(tmp_path: Path) -> None:
    """Carol may act as a broker and nothing else, bob may do everything else, and alice nothing."""
    address = "192.0.2.7"
    async with guarded_cluster(tmp_path) as cluster:
        await cluster.allow(*of_cluster(Operation.CLUSTER_ACTION), user="carol")
        await cluster.allow(*ALL_BUT_OF_CLUSTER, *of_cluster(*ALL_BUT_CLUSTER_ACTION), user="bob", host=address)
        async with cluster.as_user("carol", CONTROLLER, BROKERS) as carol:
            before = cluster.state()

            async def passed(key: ApiKey, message: Any, user: str, **more: Any) -> Any:
                wanted = envelope(key, message, user, host=address, **more)
                answer = await carol.ask(ApiKey.ENVELOPE, 0, wanted)
                assert answer.error_code == 0, (key, answer)
                version = more.get("version", SERVED[key][1])
                frame = memoryview(answer.response_data)[ENVELOPE_SEQUENCE.size :]
                return decode_response(key, version, frame[parse_response_header(frame, key, version).body_start :])

            for step, version in passed_on():
                message = step.build(version, cluster.ids)
                assert refusals(await passed(step.key, message, "alice", version=version)), (step.label, version)
                check_line(cluster.take_one((step.label, version)), step, ALICE, address, 1)
                assert cluster.state() == before, (step.label, version)
                if step.key is not ApiKey.DELETE_TOPICS:
                    assert not refusals(await passed(step.key, message, "bob", version=version)), (step.label, version)
                    lines = cluster.take()
                    assert [
                        line for line in lines if (line["event"], line["principal"]) != ("change", "User:bob")
                    ] == []
                    before = cluster.state()
            for harm in OF_OPERATORS:
                if harm.key in PASSED_ON:
                    answer = await passed(harm.key, harm.build(SERVED[harm.key][1], cluster), "alice")
                    assert is_refused(harm, answer), harm.label
                    line = cluster.take_one(harm.label)
                    assert (line["outcome"], line["principal"], line["host"]) == ("denied", ALICE, address), harm.label
                    assert cluster.state() == before, harm.label


async def test_only_what_the_controller_answers_is_passed_on(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster:
        await cluster.allow(*of_cluster(Operation.CLUSTER_ACTION), user="carol")
        async with cluster.as_user("carol", CONTROLLER, BROKERS) as carol:
            before, tried = cluster.state(), set()
            for step in STEPS:
                if step.key in PASSED_ON:
                    continue
                tried.add(step.key)
                version = step.versions()[-1]
                wanted = envelope(step.key, step.build(version, cluster.ids), version=version)
                answer = await carol.ask(ApiKey.ENVELOPE, 0, wanted)
                assert (answer.error_code, answer.response_data) == (ErrorCode.INVALID_REQUEST, None), step.label
            assert tried == SERVED.keys() - PASSED_ON - OF_LOGINS
            assert cluster.take() == []
            assert cluster.state() == before


async def test_a_token_of_another_is_refused_by_every_broker(tmp_path: Path) -> None:
    """Whoever has logged in may make tokens of its own, and has to ask nobody. So these requests are refused for what they name."""
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        bob = await stack.enter_async_context(cluster.as_user("bob", FOLLOWER))
        made = await bob.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, CreateDelegationTokenRequest(max_lifetime_ms=-1))
        assert (made.error_code, made.principal_name) == (0, "bob")
        await cluster.allow(*of_cluster(Operation.CLUSTER_ACTION), user="carol")
        carol = await stack.enter_async_context(cluster.as_user("carol", CONTROLLER, BROKERS))
        clients = {node_id: await stack.enter_async_context(cluster.as_user("alice", node_id)) for node_id in NODES}
        before = cluster.state()
        another = CreateDelegationTokenRequest("User", "bob", max_lifetime_ms=-1)
        renew = RenewDelegationTokenRequest(made.hmac, 1)
        expire = ExpireDelegationTokenRequest(made.hmac, -1)
        for key, version, message, code in (
            (ApiKey.CREATE_DELEGATION_TOKEN, 3, another, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
            (ApiKey.RENEW_DELEGATION_TOKEN, 1, renew, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
            (ApiKey.RENEW_DELEGATION_TOKEN, 2, renew, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
            (ApiKey.EXPIRE_DELEGATION_TOKEN, 1, expire, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
            (ApiKey.EXPIRE_DELEGATION_TOKEN, 2, expire, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        ):
            for node_id, client in clients.items():
                assert (await client.ask(key, version, message)).error_code == code, (key, version)
                line = cluster.take_one((key, version, node_id))
                assert (line["principal"], line["host"], line["request"]) == (ALICE, HOST, key.name)
                assert line["outcome"] == ("denied" if key is ApiKey.CREATE_DELEGATION_TOKEN else "failed")
                assert made.hmac.hex() not in str(line)
                check_place(line, key, node_id, CLIENTS)
            # Bob's own request, if a token has logged him in: its mark comes with what is passed on.
            wanted = envelope(key, message, "bob", version=version, by_token=True)
            answer = await carol.ask(ApiKey.ENVELOPE, 0, wanted)
            frame = memoryview(answer.response_data)[ENVELOPE_SEQUENCE.size :]
            found = decode_response(key, version, frame[parse_response_header(frame, key, version).body_start :])
            assert found.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, (key, version)
            line = cluster.take_one((key, version))
            assert (line["outcome"], line["principal"], line["request"]) == ("denied", "User:bob", key.name)
        every = request(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
        for client in clients.values():
            for version in range(1, 4):
                described = await client.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, every)
                assert (described.error_code, described.tokens) == (0, [])
        assert cluster.take() == []
        assert cluster.state() == before


async def test_a_broker_that_is_behind_lets_nobody_do_what_the_controller_has_forbidden(tmp_path: Path) -> None:
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        await cluster.allow(*EVERYTHING)
        steps = [step for step in STEPS if step.key in PASSED_ON and step.key not in OF_TOKENS]
        alices = [await stack.enter_async_context(cluster.as_user("alice", FOLLOWER)) for _ in steps]
        admin = await stack.enter_async_context(cluster.as_user("admin", CONTROLLER))
        follower = cluster.brokers[FOLLOWER].node
        async with cluster.behind(FOLLOWER):
            every = next(one for one in OF_OPERATORS if one.key is ApiKey.DELETE_ACLS)
            assert not is_refused(every, await answer_to(admin, every, 3, every.build(3, cluster)))
            cluster.take()
            before = cluster.state()
            assert follower.cluster.image.acls, "it has not heard of it"
            for step, alice in zip(steps, alices, strict=True):
                alice.send(step.key, step.versions()[-1], step.build(step.versions()[-1], cluster.ids))
                lines: list[dict[str, Any]] = []
                await until(lambda lines=lines: lines.extend(cluster.take()) or lines)
                (line,) = lines
                check_line(line, step, ALICE, HOST, alice.correlation_id)
                check_place(line, step.key, FOLLOWER, CLIENTS)
            assert cluster.state() == before
        for step, alice in zip(steps, alices, strict=True):
            _, answer = await alice.answer(step.key, step.versions()[-1])
            assert refusals(answer), step.label
        assert not follower.cluster.image.acls, "the answer comes when it has heard"
        assert cluster.take() == []
        for step in STEPS:
            if step.key not in OF_TOKENS and step.label not in SAYS_LESS:
                assert refusals(await ask(alices[0], step, step.versions()[-1], cluster.ids)), step.label
                assert cluster.take_one(step.label)["outcome"] == "denied"


async def test_a_broker_that_is_behind_gives_no_right_before_it_knows_it(tmp_path: Path) -> None:
    """It refuses what it decides itself, and the controller decides the rest."""
    async with guarded_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        alice = await stack.enter_async_context(cluster.as_user("alice", FOLLOWER))
        admin = await stack.enter_async_context(cluster.as_user("admin", CONTROLLER))
        async with cluster.behind(FOLLOWER):
            rules = [AclCreation(kind, name, 3, ALICE, "*", operation, 3) for operation, kind, name in EVERYTHING]
            assert not refusals(await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(rules)))
            cluster.take()
            for step in STEPS:
                if step.key in PASSED_ON or step.key in OF_TOKENS or step.label in SAYS_LESS:
                    continue
                for version in step.versions():
                    answer = await ask(alice, step, version, cluster.ids)
                    assert refusals(answer) or step.key is ApiKey.DESCRIBE_LOG_DIRS, (step.label, version)
                    check_line(cluster.take_one((step.label, version)), step, ALICE, HOST, alice.correlation_id)
        await cluster.level()
        assert not refusals(await ask(alice, STEPS[0], 9, cluster.ids))


# --- strangers ------------------------------------------------------------------------------------------------------------

STRANGERS = [(CLIENTS, column) for column in NO_LOGINS] + [
    (BROKERS, column) for column in ("no login", "wrong password", "wrong SCRAM", "a forwarded address")
]
STRANGERS_OF_EVERY_RUN = {(CLIENTS, "alg none"), (BROKERS, "no login")}


@pytest.mark.parametrize(
    ("listener", "column"),
    [one if one in STRANGERS_OF_EVERY_RUN else pytest.param(*one, marks=pytest.mark.ci) for one in STRANGERS],
)
async def test_a_stranger_is_served_nothing_and_nothing_is_passed_on(
    tmp_path: Path, listener: str, column: str
) -> None:
    issuer = Issuer(tmp_path)
    doors = {"mechanisms": "PLAIN,OAUTHBEARER,SCRAM-SHA-512", **issuer.settings}
    send, why = NO_LOGINS[column]
    async with guarded_cluster(tmp_path, clients=doors) as cluster:
        before, ids = cluster.state(), cluster.ids
        for key, version, message in requests(ids):
            async with cluster.connected(FOLLOWER, listener) as client:
                answers = await tried(client, partial(send, issuer), key, version, message, ids)
            assert len(answers) < 600, f"{key.name} was answered"
            line = cluster.take_one((key, version))
            check_login_line(line, why, HOST, listener)
            assert line["broker"] == FOLLOWER, key
            assert cluster.state() == before, key


@pytest.mark.ci
async def test_a_revoked_certificate_is_served_nothing_and_nothing_is_passed_on(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "tls", "client")
    revoked = tmp_path / "crl.pem"
    revoked.write_bytes(revocations(folder, "client"))
    door = listener("SSL", folder, ssl_client_auth="required", firn_ssl_crl_location=revoked)
    async with guarded_cluster(tmp_path, door, supers=["CN=client"]) as cluster:
        before = cluster.state()
        for key, version, message in requests(cluster.ids):
            try:
                async with showing_certificate(cluster.brokers[FOLLOWER].node.ports["SSL"], folder) as client:
                    client.send(key, version, message)
                    assert await client.reader.read() == b""
            except (ssl.SSLError, ConnectionError):
                pass
            lines: list[dict[str, Any]] = []
            await until(lambda lines=lines: lines.extend(cluster.take()) or lines)
            (line,) = lines
            assert (line["event"], line["outcome"], line["mechanism"]) == ("login", "failed", "TLS"), key
            assert (line["broker"], line["listener"], line["count"]) == (FOLLOWER, "SSL", 1), key
            assert "revoked" in line["reason"]
            assert cluster.state() == before, key
