"""A broker with much of everything: partitions, topics, groups, members, users, ACLs, regular expressions, long transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from app.configs.broker import STANDARD_AUTHORIZER
from app.machine.garbage import ShortCollections
from app.machine.runtime import raise_descriptor_limit, settle_memory
from app.metadata.image.records import LEVEL_MAX
from app.security.acls import CLUSTER_NAME, WILDCARD, Operation, PatternType, Permission, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis import consumer_group_heartbeat, create_acls, create_topics
from app.wire.apis.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from app.wire.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from tests.support.broker import RunningBroker, running_broker
from tests.support.fillings import Domains
from tests.support.several import unfenced
from tests.support.turns import CountedPool, Line, Measured
from tests.support.waiting import until

WIDE = "wide"
"""The topic with many partitions."""
CROWD = "crowd"
"""The group with many members."""
LOADED = "loaded"
"""A group with few offsets, for a walk that gives it many. No other request names it."""
LONG, ENDED = "long", "ended"
"""Transactional ids with a transaction over many partitions. Nothing but the end is asked of the second."""
TRANSACTION_MS = 900_000
CONCURRENT = 51


LOADING = (14, 15, 16)
"""The coordinator is not there yet."""
ASKED_AGAIN = 1_000


class Sizes(NamedTuple):
    """How much there is of everything."""

    partitions: int = 10_000
    topics: int = 5_000
    """Of one partition each, beside the topic with many."""
    groups: int = 5_000
    members: int = 3_000
    regular_expressions: int = 1_000
    users: int = 5_000
    acls: int = 5_000


SMALL = Sizes(200, 200, 200, 50, 20, 200, 200)
MODERATE = Sizes(1_000, 1_000, 1_000, 300, 50, 1_000, 1_000)
FULL = Sizes()


@dataclass
class Crowded:
    """A broker that is measured, and what there is on it."""

    measured: Measured
    broker: RunningBroker
    sizes: Sizes
    names: dict[str, list[str]]
    ids: list[UUID]
    """Of ``names["topic"]``."""
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Producer id and epoch of transactional ids."""

    def ask(self, key: int, version: int, message: Any) -> Any:
        """A request, answered."""
        with Line(self.broker.port) as line:
            return self.ask_on(line, key, version, message)

    @staticmethod
    def ask_on(line: Line, key: int, version: int, message: Any) -> Any:
        answer = line.ask(request_frame(key, version, 1, "crowd", message))
        assert answer is not None, f"the connection is closed: {ApiKey(key).name}"
        view = memoryview(answer)
        return decode_response(key, version, view[parse_response_header(view, key, version).body_start :])

    @property
    def domains(self) -> Domains:
        return Domains(self.names, KINDS, self.ids, self.sizes.partitions)


KINDS = {
    "topic": "topic",
    "topic_name": "topic",
    "topic_names": "topic",
    "topic_id": "topic_id",
    "group_id": "group",
    "group_ids": "group",
    "groups": "group",
    "groups_names": "group",
    "coordinator_keys": "group",
    "member_id": "member",
    "transactional_id": "transaction",
    "transactional_ids": "transaction",
    "subscribed_topic_names": "topic",
    "resource_name": "topic",
    "resource_name_filter": "topic",
    "principal": "principal",
    "principal_filter": "principal",
    "principal_name": "user",
    "owner_principal_name": "user",
    "owner_principal_type": "principal type",
    "principal_type": "principal type",
    "host": "host",
    "host_filter": "host",
    "partition": "partition",
    "partitions": "partition",
    "index": "partition",
    "partition_index": "partition",
    "partition_indexes": "partition",
    "UserName.name": "user",
    "ScramCredentialDeletion.name": "user",
    "ScramCredentialUpsertion.name": "user",
    "AlterableConfig.name": "setting",
    "CreatableTopicConfig.name": "setting",
    "configuration_keys": "setting",
    "JoinGroupRequestProtocol.name": "protocol",
    "feature": "feature",
    "entity_type": "entity type",
    "entity_name": "user",
    "match": "user",
    "OpData.key": "quota",
    "name": "topic",
    "group_instance_id": "instance",
    "reason": "reason",
    "client_software_name": "word",
    "client_software_version": "word",
    "rack_id": "word",
    "mechanism": "word",
    "states_filter": "state",
    "state_filters": "state",
    "types_filter": "state",
    "committed_metadata": "word",
}
"""What a field names. Fields that are not here have their default."""


@contextmanager
def crowded(path: Path, sizes: Sizes = MODERATE, *, rights: bool = True, **settings: Any) -> Iterator[Crowded]:
    """A broker in a thread of its own, filled. ``rights``: of those who ask it, once it is filled."""

    @asynccontextmanager
    async def live() -> AsyncIterator[RunningBroker]:
        async with running_broker(
            path,
            new_level=LEVEL_MAX,
            authorizer_class_name=STANDARD_AUTHORIZER,
            super_users="User:nobody;User:ANONYMOUS" if rights else "User:nobody",
            allow_everyone_if_no_acl_found=not rights,
            auto_create_topics_enable=False,
            group_max_size=10_000,
            group_consumer_max_size=10_000,
            group_share_max_size=1000,
            offsets_topic_num_partitions=50,
            pool=CountedPool(4),
            descriptors_max=raise_descriptor_limit(),
            **settings,
        ) as broker:
            await until(lambda: unfenced(broker))
            collections = ShortCollections(asyncio.get_running_loop().call_soon_threadsafe)
            settle_memory(collections)  # as the process of a broker does
            try:
                yield broker
            finally:
                collections.end()

    measured = Measured(live)
    try:
        made = Crowded(measured, measured.made, sizes, {}, [])
        fill(made)
        if not rights:
            deny_all(made)
        yield made
    finally:
        measured.close()


def fill(on: Crowded) -> None:
    """Make everything."""
    topics = [f"topic-{index:05}-{'n' * 60}" for index in range(on.sizes.topics)]
    with Line(on.broker.port) as line:

        def ask(key: int, version: int, message: Any) -> Any:
            return on.ask_on(line, key, version, message)

        for first in range(0, len(topics), 500):
            some = [create_topics.CreatableTopic(name, 1, 1, [], []) for name in topics[first : first + 500]]
            answer = ask(ApiKey.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest(some, 60_000, False))
            assert not any(one.error_code for one in answer.topics), answer.topics[0]
        wide = create_topics.CreatableTopic(WIDE, on.sizes.partitions, 1, [], [])
        answer = ask(ApiKey.CREATE_TOPICS, 7, create_topics.CreateTopicsRequest([wide], 60_000, False))
        assert not answer.topics[0].error_code
        image = on.measured.call(lambda: on.broker.node.context.image)
        names = [WIDE, *topics]
        on.ids = [image.topics_by_name[name].topic_id for name in names]
        fill_acls(ask, on.sizes.acls)
        users = [f"user-{index:05}" for index in range(on.sizes.users)]
        for first in range(0, len(users), 1000):
            made = [
                ScramCredentialUpsertion(name, 1, 4096, b"salt" * 5, b"p" * 32) for name in users[first : first + 1000]
            ]
            answer = ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest([], made))
            assert not any(one.error_code for one in answer.results), answer.results[0]
        groups = [f"group-{index:05}" for index in range(on.sizes.groups)]
        await_coordinator(ask, groups[0])
        for name in (*groups, LOADED):
            offsets = [OffsetCommitRequestPartition(index, 1, -1, "") for index in range(2)]
            topic = OffsetCommitRequestTopic(name=WIDE, partitions=offsets)
            commit = OffsetCommitRequest(group_id=name, topics=[topic])
            for _ in range(ASKED_AGAIN):
                answer = ask(ApiKey.OFFSET_COMMIT, 9, commit)
                if answer.topics[0].partitions[0].error_code not in LOADING:
                    break
            assert not answer.topics[0].partitions[0].error_code, answer
        members = fill_members(ask, on.sizes.members)
        fill_regular_expressions(ask, on.sizes.regular_expressions)
        for name in (LONG, ENDED):
            fill_transaction(on, ask, name)
        on.names = {
            "topic": names,
            "group": [CROWD, *groups],
            "member": members,
            "transaction": [LONG],
            "principal": [f"User:{name}" for name in users],
            "user": users,
            "principal type": ["User"],
            "host": ["127.0.0.1"],
            "setting": ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes"],
            "protocol": ["range"],
            "feature": ["firn.version", "kraft.version"],
            "entity type": ["user", "client-id"],
            "quota": ["producer_byte_rate", "consumer_byte_rate"],
            "instance": ["instance"],
            "reason": ["reason"],
            "word": ["word"],
            "state": ["Stable", "Empty"],
        }


def deny_all(on: Crowded) -> None:
    """From now on, who asks has no rights."""
    made = [
        create_acls.AclCreation(
            kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else WILDCARD, PatternType.LITERAL, "User:ANONYMOUS", WILDCARD,
            Operation.ALL, Permission.DENY,
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
    ]  # fmt: skip
    answer = on.ask(ApiKey.CREATE_ACLS, 3, create_acls.CreateAclsRequest(made))
    assert not any(one.error_code for one in answer.results), answer.results


def fill_acls(ask: Any, count: int) -> None:
    made = [
        create_acls.AclCreation(
            ResourceType.TOPIC, f"prefix-{index:05}", PatternType.PREFIXED if index % 2 else PatternType.LITERAL,
            f"User:user-{index:05}", WILDCARD, Operation.READ, Permission.ALLOW,
        )
        for index in range(count)
    ]  # fmt: skip
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER):
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else WILDCARD
        made.append(
            create_acls.AclCreation(
                kind, name, PatternType.LITERAL, "User:ANONYMOUS", WILDCARD, Operation.ALL, Permission.ALLOW
            )
        )
    for first in range(0, len(made), 1000):
        answer = ask(ApiKey.CREATE_ACLS, 3, create_acls.CreateAclsRequest(made[first : first + 1000]))
        assert not any(one.error_code for one in answer.results), answer.results[0]


def await_coordinator(ask: Any, name: str, key_type: int = 0) -> None:
    for _ in range(10_000):
        answer = ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=name, key_type=key_type))
        if not answer.error_code:
            return
    raise AssertionError(answer)


def fill_members(ask: Any, count: int) -> list[str]:
    members = [str(UUID(int=index + 1)) for index in range(count)]
    for member in members:
        for _ in range(ASKED_AGAIN):
            answer = ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                1,
                consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                    group_id=CROWD,
                    member_id=member,
                    member_epoch=0,
                    rebalance_timeout_ms=300_000,
                    subscribed_topic_names=[WIDE],
                    topic_partitions=[],
                ),
            )
            if answer.error_code not in LOADING:
                break
        assert not answer.error_code, answer
    return members


def fill_regular_expressions(ask: Any, count: int) -> None:
    for index in range(count):
        answer = ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=f"regex-{index}",
                member_id=str(UUID(int=index + 1)),
                member_epoch=0,
                rebalance_timeout_ms=300_000,
                subscribed_topic_regex=f"unmatched-{index}-" + expression_of(index),
                topic_partitions=[],
            ),
        )
        assert not answer.error_code, answer


def expression_of(index: int) -> str:
    """A regular expression of 4 KiB, nearly, that no topic matches."""
    return "|".join(f"a{index}b{part:03}.*" for part in range(4_000 // len(f"a{index}b000.*|")))


def fill_transaction(on: Crowded, ask: Any, name: str) -> None:
    """A transaction over all partitions of the wide topic."""
    await_coordinator(ask, name, 1)
    for _ in range(ASKED_AGAIN):
        answer = ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(name, TRANSACTION_MS, -1, -1))
        if not answer.error_code:
            break
    assert not answer.error_code, answer
    on.producers[name] = producer = (answer.producer_id, answer.producer_epoch)
    topic = AddPartitionsToTxnTopic(WIDE, list(range(on.sizes.partitions)))
    for _ in range(ASKED_AGAIN):
        answer = ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest([], name, *producer, [topic]))
        codes = {one.partition_error_code for one in answer.results_by_topic_v3_and_below[0].results_by_partition}
        if codes.isdisjoint({*LOADING, CONCURRENT}):
            break
    assert codes == {0}, codes
