"""Who may write and read which subjects of `_schemas` (ADR 0041, SR6, SR7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode
from app.handlers.policy.callers import Caller
from app.metadata.image.records import LEVEL_MAX
from app.registry.ownership import OWNER_KEY
from app.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from app.wire.private import SchemaRecords, SchemasRequest, SchemasResponse, pack, unpack
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.callers import Everybody
from tests.support.schema_records import operator_record, schema_key, schema_record, schema_value
from tests.support.several import unfenced
from tests.support.waiting import until

ADMIN, ALICE = "User:admin", "User:alice"
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


class Named(Everybody):
    """A doorkeeper that is told who comes next."""

    def admit(self, listener: str, host: str, port: int) -> Caller:
        caller = super().admit(listener, host, port)
        self.principal = ADMIN
        return caller


class Guarded:
    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        context = broker.node.context
        self.names = context.doorkeeper = Named(context.rights, ADMIN)

    @asynccontextmanager
    async def talk(self, principal: str) -> AsyncIterator[Talk]:
        self.names.principal = principal
        async with talk(self.broker.port) as client:
            yield client

    async def ask(self, principal: str, request: SchemasRequest) -> SchemasResponse:
        async with self.talk(principal) as client:
            return unpack(SchemasResponse, await client.ask(ApiKey.FIRN_SCHEMAS, 0, pack(request)))

    async def write(self, principal: str, subject: str | None, records: SchemaRecords) -> SchemasResponse:
        """Append at the present end, once the leader has read the log."""
        while True:
            read = await self.ask(ADMIN, SchemasRequest("read", 0))
            asked = SchemasRequest("append", read.end, subject, records, read.history)
            answer = await self.ask(principal, asked)
            if answer.error_code not in (
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.OFFSET_NOT_AVAILABLE,
            ):
                return answer

    async def allow(self, operation: Operation, kind: ResourceType, name: str) -> None:
        async with self.talk(ADMIN) as admin:
            acl = AclCreation(kind, name, PatternType.LITERAL, ALICE, WILDCARD, operation, Permission.ALLOW)
            answer = await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest([acl]))
        assert [one.error_code for one in answer.results] == [0]

    async def take_back(self, operation: Operation, kind: ResourceType, name: str) -> None:
        async with self.talk(ADMIN) as admin:
            rule = DeleteAclsFilter(kind, name, PatternType.LITERAL, ALICE, WILDCARD, operation, Permission.ALLOW)
            answer = await admin.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest([rule]))
        assert [one.error_code for one in answer.filter_results] == [0]


@asynccontextmanager
async def guarded(path: Path) -> AsyncIterator[Guarded]:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with running_broker(path, new_level=LEVEL_MAX, **settings) as broker:
        await until(lambda: unfenced(broker))
        yield Guarded(broker)


async def test_a_subject_is_written_with_the_rights_of_its_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        record = schema_record("t-value", 1)
        refused = await broker.write(ALICE, "t-value", [record])
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert broker.broker.node.cluster.image.topic("_schemas") is None, (
            "nothing is made for a caller without a right"
        )
        await broker.allow(Operation.WRITE, TOPIC, "t")
        assert (await broker.write(ALICE, "t-value", [record])).error_code == 0
        in_context = ":.ctx:t-key"
        assert (await broker.write(ALICE, in_context, [schema_record(in_context, 1)])).error_code == 0
        marked: SchemaRecords = [(schema_key("t-value"), schema_value("t-value", 1, deleted=True))]
        tombstone: SchemaRecords = [(schema_key("t-value"), None)]
        for records in (marked, tombstone):
            assert (await broker.write(ALICE, "t-value", records)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await broker.allow(Operation.DELETE, TOPIC, "t")
        for records in (marked, tombstone):
            assert (await broker.write(ALICE, "t-value", records)).error_code == 0


async def test_everything_but_the_subject_of_a_topic_needs_the_right_to_alter_the_cluster(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow(Operation.ALL, TOPIC, "t")
        asked: list[tuple[str | None, SchemaRecords]] = [
            ("u-value", [schema_record("u-value", 1)]),
            ("com.example.T", [schema_record("com.example.T", 1)]),
            (None, [schema_record("t-value", 1)]),
            (None, [operator_record("CONFIG", None, compatibilityLevel="NONE")]),
            ("t-value", [operator_record("CONFIG", "t-value", compatibilityLevel="NONE")]),
            ("t-value", [operator_record("MODE", "t-value", mode="IMPORT")]),
        ]
        for subject, records in asked:
            answer = await broker.write(ALICE, subject, records)
            assert answer.error_code in (
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ), subject
        another = await broker.write(ALICE, "t-value", [schema_record("u-value", 1)])
        assert another.error_code == ErrorCode.INVALID_RECORD
        assert broker.broker.node.cluster.image.topic("_schemas") is None
        await broker.allow(Operation.ALTER, CLUSTER, CLUSTER_NAME)
        for subject, records in asked:
            assert (await broker.write(ALICE, subject, records)).error_code == 0, subject


async def test_a_read_shows_the_subjects_of_topics_that_the_caller_may_describe(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        for number, subject in enumerate(("t-value", "u-value", "com.example.T"), start=1):
            answer = await broker.write(ADMIN, subject, [schema_record(subject, number, f'"{subject}"')])
            assert answer.error_code == 0
        await broker.write(ADMIN, None, [operator_record("CONFIG", None, compatibilityLevel="NONE")])

        async def seen() -> tuple[set[bytes], int]:
            answer = await broker.ask(ALICE, SchemasRequest("read", 0))
            return {key for _, _, key, _ in answer.records}, answer.end

        everything, end = {key for _, _, key, _ in (await broker.ask(ADMIN, SchemasRequest("read", 0))).records}, 7
        general = {OWNER_KEY, operator_record("CONFIG", None)[0]}
        assert await seen() == (general, end)
        await broker.allow(Operation.READ, TOPIC, "t")
        assert await seen() == (general | {schema_key("t-value")}, end)
        for operation, kind, name in (
            (Operation.READ, TOPIC, "_schemas"),
            (Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME),
        ):
            await broker.allow(operation, kind, name)
            assert await seen() == (everything, end)
            await broker.take_back(operation, kind, name)
            assert await seen() == (general | {schema_key("t-value")}, end)
        assert len(everything) == 5
