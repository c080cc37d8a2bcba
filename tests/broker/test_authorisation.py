"""Who may do what, asked of a whole broker: every API and version without a right, single rights, and rights that are taken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode
from app.core.units import ProducerEpoch, ProducerId, TimestampMs, TopicId
from app.exactly_once.records import Part, RequestKey, Result, encode_result
from app.exactly_once.transactional_ids import prefix_of
from app.handlers.base.authorising import TABLE
from app.handlers.serving.dispatch import Apis
from app.metadata.image.records import SECURITY_LEVEL
from app.metadata.peers.control import HoldId, HoldRequest, LookRequest
from app.records.builder import build_batch
from app.security.acls import CLUSTER_NAME, EVERYBODY, WILDCARD, Operation, ResourceType
from app.wire import private as own
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from app.wire.apis.create_acls import CreateAclsRequest
from app.wire.apis.envelope import EnvelopeRequest
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from app.wire.framing import request_frame
from app.wire.principal import encode_principal
from app.wire.versions import ADVERTISED, BETWEEN_BROKERS, OPAQUE, SERVED
from tests.broker.guarded import (
    ADMIN,
    ALICE,
    BOB,
    CLUSTER,
    OF_LOGINS,
    SAYS_LESS,
    TOPIC,
    Guarded,
    _acl,
    guarded,
    own_codes,
    read,
    reading,
    state_of,
    written,
)
from tests.handlers.conversation import batch, talk
from tests.support.audited import Heard
from tests.support.broker import running_broker
from tests.support.rights import GROUP, OTHER, SEEN, STEPS, TRANSACTION, refusals, told
from tests.support.schema_records import operator_record
from tests.support.several import cluster_on, unfenced
from tests.support.waiting import until

# --- the table ------------------------------------------------------------------------------------------------------


def test_every_served_api_has_an_entry_and_a_request_of_this_test() -> None:
    served = {*SERVED, *ADVERTISED, *BETWEEN_BROKERS, *map(ApiKey, OPAQUE)}
    assert served <= TABLE.keys()
    # Who logs in has no rights yet.
    asking = {key: versions for key, versions in SERVED.items() if key not in OF_LOGINS}
    assert {step.key for step in STEPS} == set(asking)
    assert all({*step.versions()} for step in STEPS)
    for key, (first, last) in asking.items():
        asked = {version for step in STEPS if step.key is key for version in step.versions()}
        assert asked >= set(range(first, last + 1)), key


def test_an_api_without_an_entry_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TABLE, ApiKey.LIST_GROUPS)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="asks nothing"):
        Apis()


async def test_nobody_may_do_anything_without_a_right_and_nothing_changes(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        ids, before = broker.ids, state_of(broker)
        async with broker.as_user(ALICE) as alice:
            for step in STEPS:
                for version in step.versions():
                    message = step.build(version, ids)
                    if step.key is ApiKey.PRODUCE:
                        name = "topic_id" if version >= 13 else "name"
                        records = batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
                        if message.transactional_id is None:
                            records = batch()
                        topics = [(getattr(one, name), [(0, records)]) for one in message.topic_data]
                        answer = await alice.produce(version, topics, transactional_id=message.transactional_id)
                    else:
                        answer = await alice.ask(step.key, version, message)
                    if step.label in SAYS_LESS:
                        assert SEEN not in repr(told(answer)), (step.label, version)
                        assert not refusals(answer), (step.label, version)
                    elif step.key is ApiKey.DESCRIBE_LOG_DIRS and version < 3:
                        assert not answer.results, "these versions have no place for an error"
                    else:
                        assert refusals(answer), (step.label, version, answer)
                    shown = repr(told(answer))
                    if "named" not in step.label and "by id" in step.label:
                        assert SEEN not in shown, "an id does not tell the name"
                assert state_of(broker) == before, step.label


def _keyed_request() -> own.KeyedRequest:
    records = build_batch(
        [(TimestampMs(1), None, b"v", ())],
        producer_id=ProducerId(0),
        producer_epoch=ProducerEpoch(0),
        base_sequence=0,
        transactional=True,
    )
    result = Result(bytes(16), bytes(32), 200, 0, 0, (Part(SEEN, 0, -1, 1, -1),), (0,))
    _, value = encode_result(RequestKey(ALICE, b"k"), result)
    return own.KeyedRequest(b"k", bytes(16), f"{prefix_of(ALICE)}x", 0, 0, 10_000, value, [records])


@pytest.mark.parametrize(
    "key",  # FIRN_FORWARDED comes before a login: tests/broker/test_forwarded.py
    sorted({*OPAQUE, ApiKey.ALTER_PARTITION, ApiKey.ENVELOPE, ApiKey.BROKER_HEARTBEAT} - {ApiKey.FIRN_FORWARDED}),
)
async def test_what_brokers_and_operators_ask_is_refused_to_others(tmp_path: Path, key: int) -> None:
    from app.metadata.peers import control
    from app.wire.apis.alter_partition import AlterPartitionRequest
    from app.wire.apis.broker_heartbeat import BrokerHeartbeatRequest

    nobody = broker_id = 1
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        cluster_id = broker.context.image.cluster_id
        uuid = next(iter(broker.ids.values()))
        before, mine = state_of(broker), broker.context.cluster.identity
        heard = Heard(broker.context.audit)
        messages: dict[int, Any] = {
            ApiKey.FIRN_METRICS: own.MetricsRequest(),
            ApiKey.FIRN_TIER_STATUS: own.TierStatusRequest([]),
            ApiKey.FIRN_TIER_SEGMENTS: own.TierSegmentsRequest(SEEN, 0),
            ApiKey.FIRN_TIER_REPLACE: own.TierReplaceRequest(SEEN, 0, "begin", bytes(16), []),
            ApiKey.FIRN_PLACE: own.PlaceRequest(cluster_id, nobody, mine.directory_id, "somebody"),
            ApiKey.FIRN_DRAIN: own.DrainRequest("begin"),
            ApiKey.FIRN_CLUSTER: own.ClusterRequest(),
            ApiKey.FIRN_TOPICS: own.TopicsRequest(internal=True),
            ApiKey.FIRN_TOPIC_LAGS: own.TopicLagsRequest([(SEEN, [9])], 10),
            ApiKey.FIRN_ENTRIES: control.EntriesRequest(cluster_id, 0, 0),
            ApiKey.FIRN_MEMBERS: control.HeardRequest(cluster_id, broker_id),
            ApiKey.FIRN_REGISTER: control.RegisterRequest(
                cluster_id, 5, uuid, uuid, -1, -1, -1, "", "", (), None, "", 0, 9
            ),
            ApiKey.FIRN_CHANGE: control.ChangeRequest(cluster_id, broker_id, 0, control.CREATE_TOPIC, b""),
            ApiKey.FIRN_MANIFESTS: control.ManifestsRequest(cluster_id, broker_id, "", 0, 0),
            ApiKey.FIRN_TRANSACTIONS: LookRequest(cluster_id, 0),
            ApiKey.FIRN_HOLD: HoldRequest(cluster_id, HoldId(TopicId(uuid), 0, 1), 0, ((0, 0),)),
            ApiKey.FIRN_PULSE: control.PulseRequest(cluster_id, broker_id, 0, True, 0),
            ApiKey.FIRN_SCHEMAS: own.SchemasRequest(
                "append", 0, None, [operator_record("CONFIG", None, compatibilityLevel="NONE")]
            ),
            ApiKey.FIRN_REQUESTS: own.RequestsRequest("fate", partitions=[(SEEN, 0)], producer_id=0, offset=0),
            ApiKey.FIRN_APPEND: own.AppendRequest(broker.ids[SEEN], 0, bytes(batch()), 0, -1),
            ApiKey.FIRN_KEYED: _keyed_request(),
            ApiKey.ALTER_PARTITION: AlterPartitionRequest(broker_id=1),
            ApiKey.BROKER_HEARTBEAT: BrokerHeartbeatRequest(broker_id=1),
            ApiKey.ENVELOPE: EnvelopeRequest(b"", b"", b""),
        }
        message = messages[key]
        if key not in OPAQUE:
            answer = await alice.ask(key, BETWEEN_BROKERS[ApiKey(key)][1], message)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        elif key == ApiKey.FIRN_TIER_STATUS:
            answer = own.unpack(own.TierStatusResponse, await alice.ask(key, 0, own.pack(message)))
            assert not answer.partitions
        elif key == ApiKey.FIRN_TOPICS:
            topics = own.unpack(own.TopicsResponse, await alice.ask(key, 0, own.pack(message)))
            assert topics == own.TopicsResponse(), "the count of topics is not told either"
        elif key == ApiKey.FIRN_TOPIC_LAGS:
            lags = own.unpack(own.TopicLagsResponse, await alice.ask(key, 0, own.pack(message)))
            assert lags == own.TopicLagsResponse()
        elif key == ApiKey.FIRN_PLACE:
            answer = own.unpack(own.PlaceResponse, await alice.ask(key, 0, own.pack(message)))
            assert (answer.node_id, answer.directory_id) == (mine.broker_id, mine.directory_id), (
                "silence would be worse"
            )
            assert not answer.looks
        elif key == ApiKey.FIRN_TIER_SEGMENTS:
            answer = own.unpack(own.TierSegmentsResponse, await alice.ask(key, 0, own.pack(message)))
            assert "not allowed to DESCRIBE" in answer.error
        elif key == ApiKey.FIRN_KEYED:
            code, *_ = own_codes(await alice.ask(key, 0, own.pack(message)))
            assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif key == ApiKey.FIRN_APPEND:
            assert own_codes(await alice.ask(key, 0, own.pack(message)))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif key in {
            ApiKey.FIRN_TIER_REPLACE,
            ApiKey.FIRN_ENTRIES,
            ApiKey.FIRN_REGISTER,
            ApiKey.FIRN_CHANGE,
            ApiKey.FIRN_PULSE,
            ApiKey.FIRN_SCHEMAS,
            ApiKey.FIRN_REQUESTS,
        }:
            raw = await alice.ask(key, 0, own.pack(message))
            assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in own_codes(raw)
        else:
            alice.send(key, 0, own.pack(message))
            assert await alice.closed()
        assert state_of(broker) == before
        assert broker.context.drain.state.value == "serving"
        if key in (ApiKey.FIRN_TIER_STATUS, ApiKey.FIRN_TOPICS, ApiKey.FIRN_TOPIC_LAGS):
            assert heard.take() == [], "a list without what one may not see"
        else:
            line = heard.take_one()
            assert (line["outcome"], line["principal"], line["request"]) == ("denied", ALICE, ApiKey(key).name)


# --- rights that are given and taken --------------------------------------------------------------------------------


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_right_counts_from_when_it_is_given_to_when_it_is_taken(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        assert await written(alice) == DENIED
        await broker.allow((Operation.WRITE, TOPIC, SEEN))
        for _ in range(3):  # the long way and then the short one
            assert await written(alice) == 0
        assert (await read(alice))[0] == DENIED
        await broker.allow((Operation.READ, TOPIC, SEEN))
        for _ in range(4):
            code, size = await read(alice)
            assert code == 0
            assert size
        assert await broker.forbid_all() == 2
        assert await written(alice) == DENIED, "what was remembered of Produce"
        assert await read(alice) == (DENIED, 0), "what was remembered of Fetch"
        assert broker.broker.log(SEEN).log_end_offset == 3


async def test_nobody_goes_the_short_way_that_another_was_taught(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.WRITE, TOPIC, SEEN), (Operation.READ, TOPIC, SEEN))
        async with broker.as_user(ALICE) as alice, broker.as_user(BOB) as bob:
            for _ in range(3):
                assert await written(alice) == 0
                assert (await read(alice))[0] == 0
                assert await written(bob) == DENIED
                assert await read(bob) == (DENIED, 0)


async def test_a_right_that_is_taken_reaches_a_fetch_that_waits(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        await broker.allow((Operation.READ, TOPIC, SEEN))
        log = broker.broker.log(SEEN)
        alice.send(ApiKey.FETCH, 12, reading(0, wait_ms=600_000))
        async with asyncio.timeout(60):
            while not log._waiters:
                await asyncio.sleep(0.01)
        await broker.forbid_all()
        _, answer = await alice.answer(ApiKey.FETCH, 12)
        (found,) = answer.responses[0].partitions
        assert found.error_code == DENIED
        assert not log._waiters


async def test_a_denied_topic_beside_an_allowed_one_is_refused_alone_and_never_the_short_way(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        await broker.allow((Operation.WRITE, TOPIC, SEEN))
        for turn in range(1, 4):
            answer = await alice.produce(9, [(OTHER, [(0, batch())]), (SEEN, [(0, batch())])])
            codes = {one.name: one.partition_responses[0].error_code for one in answer.responses}
            assert codes == {SEEN: 0, OTHER: DENIED}
            assert broker.broker.log(SEEN).log_end_offset == turn
        assert broker.broker.node.logs.get(OTHER, 0).log_end_offset == 0


async def test_without_acks_a_denied_write_closes_the_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        alice.send_produce(9, [(SEEN, [(0, batch())])], acks=0)
        assert await alice.closed()
        assert broker.broker.log(SEEN).log_end_offset == 0


async def test_a_rule_for_a_host_is_for_that_host_and_denial_wins(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        await broker.allow((Operation.WRITE, TOPIC, SEEN), host="10.1.2.3")
        assert await written(alice) == DENIED
        await broker.allow((Operation.WRITE, TOPIC, SEEN), host="127.0.0.1")
        assert await written(alice) == 0
        await broker.allow((Operation.WRITE, TOPIC, WILDCARD), principal=EVERYBODY, deny=True)
        assert await written(alice) == DENIED


async def test_another_users_transactional_id_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        await broker.allow(
            (Operation.WRITE, TOPIC, SEEN), (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, TRANSACTION)
        )
        records = batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        for transactional_id, code in (("another", failed), (TRANSACTION, ErrorCode.INVALID_PRODUCER_ID_MAPPING)):
            # Neither does a batch outside of transactions teach the short way to those within.
            assert await written(alice, transactional_id=transactional_id) == 0
            answer = await alice.produce(9, [(SEEN, [(0, records)])], transactional_id=transactional_id)
            assert answer.responses[0].partition_responses[0].error_code == code
        assert broker.broker.log(SEEN).log_end_offset == 2


async def test_topics_that_one_may_not_see_are_left_out_or_refused_and_never_told(tmp_path: Path) -> None:
    from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic

    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        await broker.allow((Operation.DESCRIBE, TOPIC, SEEN))
        everything = await alice.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        assert [topic.name for topic in everything.topics] == [SEEN]
        named = await alice.ask(
            ApiKey.METADATA,
            12,
            MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in (SEEN, OTHER, "no such topic")]),
        )
        assert {topic.name: topic.error_code for topic in named.topics} == {
            SEEN: 0,
            OTHER: DENIED,
            "no such topic": DENIED,
        }, "whether there is such a topic is not told"
        by_id = await alice.ask(
            ApiKey.METADATA,
            12,
            MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=broker.ids[OTHER])]),
        )
        (hidden,) = by_id.topics
        assert (hidden.name, hidden.error_code) == (None, DENIED)


async def test_the_rules_are_there_before_anything_is_served(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.WRITE, TOPIC, SEEN))
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}"}
    async with running_broker(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, **settings) as again:
        assert again.node.context.authorizer is not None
        found = again.node.context.authorizer.allows(ALICE, "127.0.0.1", Operation.WRITE, TOPIC, SEEN)
        assert found


async def test_without_an_authorizer_there_are_no_acls_and_everybody_may_do_everything(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=SECURITY_LEVEL) as broker, talk(broker.port) as client:
        await until(lambda: unfenced(broker))
        await broker.create_topic(SEEN)
        assert await written(client) == 0
        answer = await client.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest([_acl(3, 2, SEEN, principal=ALICE)]))
        assert [one.error_code for one in answer.results] == [ErrorCode.SECURITY_DISABLED]


async def test_acls_of_a_lower_level_are_refused_with_the_mend(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS") as broker,
        talk(broker.port) as client,
    ):
        answer = await client.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest([_acl(3, 2, SEEN, principal=ALICE)]))
        (result,) = answer.results
        assert result.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "firn cluster features --upgrade firn.version=2" in result.error_message


async def test_a_group_of_another_is_refused_and_ones_own_is_served(tmp_path: Path) -> None:
    from app.wire.apis.heartbeat import HeartbeatRequest

    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        await broker.allow((Operation.READ, ResourceType.GROUP, GROUP))
        mine = await alice.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(GROUP, 1, "m"))
        other = await alice.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest("another", 1, "m"))
        assert mine.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert other.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_a_producer_id_without_transactions_asks_for_a_topic_that_may_be_written(tmp_path: Path) -> None:
    from app.wire.apis.init_producer_id import InitProducerIdRequest

    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        message = InitProducerIdRequest(None, 1000)
        assert (await alice.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).error_code == 31
        await broker.allow((Operation.READ, TOPIC, SEEN))
        assert (await alice.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).error_code == 31
        await broker.allow((Operation.WRITE, TOPIC, SEEN))
        assert (await alice.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).error_code == 0
        await broker.forbid_all()
        await broker.allow((Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME))
        assert (await alice.ask(ApiKey.INIT_PRODUCER_ID, 4, message)).error_code == 0


# --- several brokers, and groups ------------------------------------------------------------------------------------


async def test_a_request_that_is_passed_on_is_checked_for_whom_it_comes(tmp_path: Path) -> None:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with cluster_on(tmp_path, 2, **settings) as brokers:
        sides = [Guarded(broker) for broker in brokers]
        controller, other = sorted(sides, key=lambda one: not one.broker.node.membership.controller.active)
        creates = CreateAclsRequest([_acl(Operation.READ, TOPIC, SEEN, principal=BOB)])
        async with other.as_user(ALICE) as alice:
            answer = await alice.ask(ApiKey.CREATE_ACLS, 3, creates)
            assert [one.error_code for one in answer.results] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
            assert not controller.context.image.acls
            await controller.allow((Operation.ALTER, CLUSTER, CLUSTER_NAME), host="127.0.0.1")
            answer = await alice.ask(ApiKey.CREATE_ACLS, 3, creates)
            assert [one.error_code for one in answer.results] == [0], "her right is for her host, which is passed on"
            assert other.context.authorizer is not None
            assert other.context.authorizer.allows(BOB, "10.0.0.1", Operation.READ, TOPIC, SEEN), "it is there at once"


async def test_nobody_but_a_broker_speaks_for_others(tmp_path: Path) -> None:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with cluster_on(tmp_path, 2, **settings) as brokers:
        sides = [Guarded(broker) for broker in brokers]
        controller, _ = sorted(sides, key=lambda one: not one.broker.node.membership.controller.active)
        creates = CreateAclsRequest([_acl(Operation.READ, TOPIC, SEEN, principal=BOB)])
        frame = request_frame(ApiKey.CREATE_ACLS, 3, 1, "test", creates)[4:]
        async with controller.as_user(ALICE) as alice:
            asked = EnvelopeRequest(frame, encode_principal("User", "admin"), b"127.0.0.1:1")
            answer = await alice.ask(ApiKey.ENVELOPE, 0, asked)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert not controller.context.image.acls


async def test_nobody_but_a_broker_takes_the_place_of_a_follower(tmp_path: Path) -> None:
    """The leader goes on with the follower's own session."""
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with cluster_on(tmp_path, 2, **settings) as brokers:
        leader, follower = (Guarded(broker) for broker in brokers)
        await leader.broker.node.membership.controller.create_topic(SEEN, assignments={0: [1, 2]})
        sessions = leader.context.fetch_sessions._sessions
        await until(lambda: [one.follower for one in sessions.values() if one.follower])
        ((kept, session),) = sessions.items()
        await leader.allow((Operation.READ, TOPIC, SEEN))
        asked = FetchRequest(
            replica_state=ReplicaState(2, leader.context.image.brokers[2].broker_epoch),
            session_epoch=0,
            topics=[FetchTopic(topic_id=leader.ids[SEEN], partitions=[FetchPartition(0, 0, 0)])],
        )
        heard = Heard(leader.context.audit)
        async with leader.as_user(ALICE) as alice:
            for _ in range(2):
                answer = await alice.ask(ApiKey.FETCH, 17, asked)
                assert answer.responses[0].partitions[0].error_code == DENIED
                (denied,) = heard.take_one()["resources"]
                assert denied["operation"] == "CLUSTER_ACTION"
                assert sessions[kept] is session
        assert [one.follower.broker_id for one in sessions.values() if one.follower] == [2]
        async with leader.as_user(ADMIN) as admin:
            answer = await admin.ask(ApiKey.FETCH, 17, asked)
            assert answer.responses[0].partitions[0].error_code == 0
            assert kept not in sessions, "a broker that has started again takes its own place"
        assert follower.broker.node.logs.get(SEEN, 0) is not None


async def test_an_expression_subscribes_to_what_its_member_may_see(tmp_path: Path) -> None:
    async with guarded(tmp_path, group_consumer_assignment_interval_ms=0) as broker, broker.as_user(ALICE) as alice:
        await broker.allow(
            (Operation.READ, ResourceType.GROUP, GROUP),
            (Operation.DESCRIBE, TOPIC, SEEN),
            (Operation.DESCRIBE, TOPIC, "se2"),
        )
        epoch, names = 0, set()

        async def beat() -> set[str]:
            nonlocal epoch, names
            message = ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="m",
                member_epoch=epoch,
                rebalance_timeout_ms=10_000 if not epoch else -1,
                subscribed_topic_names=[] if not epoch else None,
                subscribed_topic_regex=".*" if not epoch else None,
                topic_partitions=[] if not epoch else None,
            )
            answer = await alice.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
            assert answer.error_code == 0, answer
            epoch = answer.member_epoch
            if answer.assignment is not None:
                topics = broker.context.image.topics_by_id
                names = {topics[one.topic_id].name for one in answer.assignment.topic_partitions}
            return names

        async def assigned(wanted: set[str]) -> None:
            async with asyncio.timeout(60):
                while await beat() != wanted:
                    await asyncio.sleep(0.02)

        await assigned({SEEN})
        await broker.broker.create_topic("se3")
        await broker.broker.create_topic("se2")
        await assigned({SEEN, "se2"})


async def test_a_group_is_not_described_to_who_may_not_see_its_topics(tmp_path: Path) -> None:
    async with guarded(tmp_path, group_consumer_assignment_interval_ms=0) as broker:
        async with broker.as_user(ADMIN) as admin:
            message = ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id="m",
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[OTHER],
                topic_partitions=[],
            )
            assert (await admin.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)).error_code == 0
        await broker.allow((Operation.DESCRIBE, ResourceType.GROUP, GROUP))
        asked = ConsumerGroupDescribeRequest([GROUP], True)
        async with broker.as_user(ALICE) as alice:
            (hidden,) = (await alice.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked)).groups
            assert (hidden.group_id, hidden.error_code, hidden.members) == (GROUP, DENIED, [])
            assert hidden.group_state == ""
            await broker.allow((Operation.DESCRIBE, TOPIC, OTHER))
            (shown,) = (await alice.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked)).groups
            assert (shown.error_code, len(shown.members)) == (0, 1)
            assert shown.authorized_operations == 1 << Operation.DESCRIBE
