"""A broker with an authorizer, and users whose rights differ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app.configs.broker import STANDARD_AUTHORIZER
from app.handlers.policy.callers import Caller
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import WILDCARD, PatternType, Permission, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.callers import Everybody
from tests.support.rights import GONE, OTHER, SEEN, Ids
from tests.support.several import unfenced
from tests.support.waiting import until

ADMIN, ALICE, BOB = "User:admin", "User:alice", "User:bob"
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


class Names(Everybody):
    """A doorkeeper that is told who comes next; whoever is not announced is the administrator, as the broker itself is."""

    def admit(self, listener: str, host: str, port: int) -> Caller:
        caller = super().admit(listener, host, port)
        self.principal = ADMIN
        return caller


class Guarded:
    """A broker that checks rights."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.context = broker.node.context
        self.names = self.context.doorkeeper = Names(self.context.rights, ADMIN)

    @asynccontextmanager
    async def as_user(self, principal: str) -> AsyncIterator[Talk]:
        self.names.principal = principal
        async with talk(self.broker.port) as client:
            # Somebody else may have come first.
            answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, 0, _who())
            assert (answer.cluster_authorized_operations == 0) is (principal != ADMIN)
            yield client

    async def allow(self, *rights: tuple[int, int, str], principal: str = ALICE, **more: Any) -> None:
        """(operation, resource type, name) each."""
        async with self.as_user(ADMIN) as admin:
            message = CreateAclsRequest([_acl(*right, principal=principal, **more) for right in rights])
            answer = await admin.ask(ApiKey.CREATE_ACLS, 3, message)
        assert [one.error_code for one in answer.results] == [0] * len(rights)

    async def forbid_all(self) -> int:
        """Delete every ACL. Returns: how many there were."""
        async with self.as_user(ADMIN) as admin:
            wanted = DeleteAclsFilter(1, None, 1, None, None, 1, 1)
            answer = await admin.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest([wanted]))
        return len(answer.filter_results[0].matching_acls)

    @property
    def ids(self) -> Ids:
        return {topic.name: topic.topic_id for topic in self.context.image.topics_by_name.values()}


def _who() -> Any:
    from app.wire.apis.describe_cluster import DescribeClusterRequest

    return DescribeClusterRequest(include_cluster_authorized_operations=True)


def _acl(
    operation: int, kind: int, name: str, *, principal: str, host: str = WILDCARD, deny: bool = False
) -> AclCreation:
    permission = Permission.DENY if deny else Permission.ALLOW
    return AclCreation(kind, name, PatternType.LITERAL, principal, host, operation, permission)


@asynccontextmanager
async def guarded(path: Path, **settings: Any) -> AsyncIterator[Guarded]:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "auto_create_topics_enable": False, **settings}
    async with running_broker(
        path, new_level=SECURITY_LEVEL, authorizer_class_name=STANDARD_AUTHORIZER, **settings
    ) as broker:
        await until(lambda: unfenced(broker))
        for name in (SEEN, OTHER, GONE):
            await broker.create_topic(name)
        for kind in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
            await broker.node.membership.controller.create_topic(kind, 1)
        yield Guarded(broker)


def state_of(broker: Guarded) -> Any:
    image = broker.context.image
    ends = {
        (name, index): log.log_end_offset
        for name, topic in image.topics_by_name.items()
        for index in range(len(topic.partitions))
        if (log := broker.broker.node.logs.get(name, index)) is not None
    }
    return image.topics_by_id, image.broker_configs, image.group_configs, image.acls, image.features, ends


OF_LOGINS = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
SAYS_LESS = frozenset(
    {
        "all topics", "describe all topics", "list groups", "list transactions", "cluster", "versions",
        "metrics subscription", "push of metrics",
    }
)  # fmt: skip
"""Requests that nobody is refused: they tell less to those who may see less, or nothing of topics."""


def own_codes(raw: bytes) -> list[int]:
    import msgspec

    found = msgspec.msgpack.decode(raw)
    return [one for one in (found.values() if isinstance(found, dict) else found) if isinstance(one, int)]


async def written(client: Talk, topic: str = SEEN, version: int = 9, **more: Any) -> int:
    answer = await client.produce(version, [(topic, [(0, batch())])], **more)
    return int(answer.responses[0].partition_responses[0].error_code)


def reading(offset: int, wait_ms: int = 0, topic: str = SEEN) -> Any:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )


async def read(client: Talk, offset: int = 0) -> tuple[int, int]:
    """Error code and bytes."""
    answer = await client.ask(ApiKey.FETCH, 12, reading(offset))
    (found,) = answer.responses[0].partitions
    return found.error_code, len(found.records or b"")
