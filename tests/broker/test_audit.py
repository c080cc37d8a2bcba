"""The audit log of a whole broker: what becomes a line, and what the lines say (ADR 0033)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from app.broker.security import audit_topic
from app.broker.security.audit_log import BUFFER_BYTES_MAX
from app.broker.security.first_users import FirstUser, write_first_users
from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ConfigError
from app.machine.files import PosixFileSystem
from app.records.batch import iter_headers
from app.records.record import iter_records
from app.security.acls import CLUSTER_NAME, Operation, ResourceType
from app.security.audit import COARSE_PER_CALLER_MAX, EVENTS_PER_CALLER_MAX
from app.security.noting import AUDIT_TOPIC
from app.security.scram import ScramMechanism, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from app.wire.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.apis.leave_group import LeaveGroupRequest, MemberIdentity
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.apis.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.apis.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.broker.guarded import ADMIN, ALICE, BOB, TOPIC, Guarded, guarded, read, reading, written
from tests.handlers.conversation import Talk, talk
from tests.support.audited import Heard
from tests.support.broker import running_broker
from tests.support.rights import OTHER, SEEN
from tests.support.secured import listener, security
from tests.support.several import cluster_on
from tests.support.waiting import until


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# --- the file -----------------------------------------------------------------------------------------------------------


async def test_a_refused_request_is_one_line_and_those_like_it_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with guarded(tmp_path, firn_audit_log_path=str(path)) as broker, broker.as_user(ALICE) as alice:
        for _ in range(3):
            assert await written(alice) != 0
        await until(lambda: path.stat().st_size)
        assert [line["count"] for line in lines_of(path)] == [1], "the first is there before the others are counted"
        await broker.allow((Operation.WRITE, TOPIC, SEEN))
        assert await written(alice) == 0
    denied = [line for line in lines_of(path) if line["outcome"] == "denied"]
    assert [line["count"] for line in denied] == [1, 2]
    assert denied[0]["principal"] == ALICE
    assert denied[0]["host"] == "127.0.0.1"
    assert denied[0]["request"] == "PRODUCE"
    assert denied[0]["client_id"] == "test"
    assert denied[0]["resources"] == [{"operation": "WRITE", "type": "TOPIC", "name": SEEN}]
    assert denied[1]["since"] <= denied[1]["time"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_is_told_once_and_counted_and_requests_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    async with guarded(tmp_path, firn_audit_log_path=str(path)) as broker:
        node = broker.broker.node
        lost = node.registry.counter("firn_audit_lines_lost_total", "", to="file")
        write, full = os.write, True
        assert node.audit is not None
        assert node.audit.file is not None
        audit_file = node.audit.file._file

        def maybe(descriptor: int, data: bytes) -> int:
            if full and descriptor == audit_file._descriptor:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", maybe)
        async with broker.as_user(ALICE) as alice:
            for number in range(5):
                assert await written(alice, f"no-such-{number}") != 0
                await until(lambda number=number: lost.value == number + 1)
            told = [line for line in broker.broker.lines if "audit log" in line]
            assert len(told) == 1
            assert "No space left on device" in told[0]
            full = False
            assert await written(alice, "another") != 0
            await until(lambda: len(lines_of(path)) == 2)
    gap, line, *_ = lines_of(path)
    assert (gap["event"], gap["count"], gap["reason"]) == ("audit", 5, "No space left on device")
    assert line["resources"][0]["name"] == "another"


async def test_a_broker_that_cannot_write_its_audit_log_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot be written: .*Mend it, or set firn\.audit\.log\.path"):
        async with running_broker(tmp_path, firn_audit_log_path=str(tmp_path / "file" / "audit.log")):
            pass
    async with running_broker(tmp_path / "one", firn_audit_log_path=str(tmp_path / "audit.log")):
        with pytest.raises(ConfigError, match="written by another process"):
            async with running_broker(tmp_path / "two", firn_audit_log_path=str(tmp_path / "audit.log")):
                pass


async def test_without_a_file_denials_are_counted_alone_and_nothing_is_kept(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        audit = broker.context.audit
        assert audit is not None
        assert broker.context.sampler is None
        assert await written(alice) != 0
        denied = broker.broker.node.registry.counter(
            "firn_denied_requests_total", "", api="produce", listener="PLAINTEXT"
        )
        assert denied.value == 1
        assert len(audit._denied) == 0
    async with running_broker(tmp_path / "open") as open_broker:
        assert open_broker.node.context.audit is None


# --- changes ------------------------------------------------------------------------------------------------------------


async def test_every_change_is_a_line_with_what_was_changed_and_no_secret(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        heard = Heard(broker.context.audit)
        await broker.allow((Operation.READ, TOPIC, SEEN), (Operation.ALL, ResourceType.CLUSTER, CLUSTER_NAME))
        line = heard.take_one()
        assert (line["event"], line["outcome"], line["principal"]) == ("change", "done", ADMIN)
        assert line["changes"][0] == {
            "action": "CREATE_ACL",
            "type": "TOPIC",
            "name": SEEN,
            "pattern": "LITERAL",
            "principal": ALICE,
            "host": "*",
            "operation": "READ",
            "permission": "ALLOW",
        }
        assert len(line["changes"]) == 2
        assert await broker.forbid_all() == 2
        assert [one["action"] for one in heard.take_one()["changes"]] == ["DELETE_ACL"] * 2
        async with broker.as_user(ADMIN) as admin:
            topic = CreatableTopic("t", 3, 1, configs=[CreatableTopicConfig("retention.ms", "1000")])
            await admin.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic], validate_only=True))
            assert heard.take() == [], "that was only asked"
            await admin.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic]))
            (made,) = heard.take_one()["changes"]
            assert made == {
                "action": "CREATE",
                "type": "TOPIC",
                "name": "t",
                "partitions": 3,
                "replication_factor": 1,
                "configs": {"retention.ms": "1000"},
            }
            await admin.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([topic]))
            line = heard.take_one()
            assert (line["outcome"], line["changes"][0]["error"]) == ("failed", "TOPIC_ALREADY_EXISTS")
            configs = [AlterableConfig("retention.ms", 0, "2000"), AlterableConfig("no.such.setting", 0, "hunter2")]
            await admin.ask(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                IncrementalAlterConfigsRequest([AlterConfigsResource(2, "t", configs)]),
            )
            line = heard.take_one()
            assert [(one["name"], one["value"]) for one in line["changes"][0]["configs"]] == [
                ("retention.ms", "2000"),
                ("no.such.setting", None),
            ]
            salted = salted_password(ScramMechanism.SCRAM_SHA_256, "hunter2", b"salt" * 6, 4096)
            user = ScramCredentialUpsertion("carol", 1, 4096, b"salt" * 6, salted)
            await admin.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest(upsertions=[user]))
            line = heard.take_one()
            assert line["changes"] == [
                {"action": "SET_USER", "type": "USER", "name": "carol", "mechanism": "SCRAM-SHA-256"}
            ]
            entry = AlterClientQuotasRequestEntryData([EntityData("user", None)], [OpData("producer_byte_rate", 1e6)])
            await admin.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest([entry]))
            (limit,) = heard.take_one()["changes"]
            assert (limit["name"], limit["limits"]) == ("user=<default>", {"producer_byte_rate": "1000000.0"})
            states = [DeleteTopicState(name="t"), DeleteTopicState(name="not there")]
            await admin.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=states))
            line = heard.take_one()
            assert line["outcome"] == "done"
            assert [(one["name"], one.get("error")) for one in line["changes"]] == [
                ("t", None),
                ("not there", "UNKNOWN_TOPIC_OR_PARTITION"),
            ]


async def test_all_changes_of_a_request_are_told_however_many(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        heard = Heard(broker.context.audit)
        await broker.allow(*[(Operation.READ, TOPIC, f"t{number}") for number in range(120)])
        lines = heard.take()
        assert [len(line["changes"]) for line in lines] == [50, 50, 20]
        assert {name for line in lines for name in [one["name"] for one in line["changes"]]} == {
            f"t{number}" for number in range(120)
        }
        assert len({line["correlation_id"] for line in lines}) == 1


async def test_a_topic_that_is_made_because_somebody_named_it_is_a_change(tmp_path: Path) -> None:
    async with running_broker(tmp_path, firn_audit_log_path=str(tmp_path / "audit.log")) as broker:
        heard = Heard(broker.node.context.audit)
        async with talk(broker.port) as client:
            await client.ask(
                ApiKey.METADATA, 12, MetadataRequest([MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
            )
        line = heard.take_one()
        assert (line["request"], line["principal"]) == ("METADATA", "User:ANONYMOUS")
        assert [(one["action"], one["name"]) for one in line["changes"]] == [("CREATE", "new")]


async def test_what_is_passed_on_is_a_line_of_the_controller_with_the_clients_name(tmp_path: Path) -> None:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with cluster_on(tmp_path, 2, **settings) as brokers:
        sides = [Guarded(broker) for broker in brokers]
        controller, other = sorted(sides, key=lambda one: not one.broker.node.membership.controller.active)
        heard, silent = Heard(controller.context.audit), Heard(other.context.audit)
        topics = CreateTopicsRequest([CreatableTopic("t", 1, 1)])
        async with other.as_user(ALICE) as alice:
            await alice.ask(ApiKey.CREATE_TOPICS, 7, topics)
        line = heard.take_one()
        assert (line["event"], line["outcome"], line["principal"]) == ("access", "denied", ALICE)
        assert (line["host"], line["client_id"]) == ("127.0.0.1", "test")
        async with other.as_user(ADMIN) as admin:
            await admin.ask(ApiKey.CREATE_TOPICS, 7, topics)
        assert [(one["event"], one["principal"]) for one in heard.take()] == [("change", ADMIN)]
        assert silent.take() == []


async def test_users_that_were_left_for_the_first_start_are_changes(tmp_path: Path) -> None:
    salted = salted_password(ScramMechanism.SCRAM_SHA_256, "hunter2", b"s" * 24, 4096)
    user = FirstUser("carol", 1, credential_of(ScramMechanism.SCRAM_SHA_256, salted, b"s" * 24, 4096))
    write_first_users(PosixFileSystem(), str(tmp_path / "data"), [user])
    path = tmp_path / "audit.log"
    door = listener("SASL_PLAINTEXT", mechanisms="SCRAM-SHA-256")
    async with running_broker(tmp_path, new_level=2, firn_audit_log_path=str(path), **security(door)):
        pass
    (line,) = lines_of(path)
    assert (line["event"], line["outcome"], line["reason"]) == ("change", "done", "firn user add --offline")
    assert line["changes"] == [{"action": "SET_USER", "type": "USER", "name": "carol"}]


async def test_a_change_that_a_stop_cuts_off_is_told_as_unknown(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with running_broker(tmp_path, firn_audit_log_path=str(path)) as broker:
        asked = asyncio.Event()

        async def never(name: str, *more: Any, **named: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        broker.node.context.controller.create_topic = never  # type: ignore[method-assign]
        async with talk(broker.port) as client:
            client.send(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 1, 1)], timeout_ms=600_000))
            await asked.wait()
            broker.node.request_stop()
            await client.closed()
    (line,) = lines_of(path)
    assert (line["event"], line["outcome"], line["request"]) == ("change", "unknown", "CREATE_TOPICS")


async def test_changes_that_anybody_can_ask_for_and_fail_do_not_fill_the_log(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice:
        heard = Heard(broker.context.audit)

        async def flood(key: ApiKey, version: int, build: Callable[[int], Any], error: str) -> None:
            for number in range(300):
                await alice.ask(key, version, build(number))
            lines = heard.take()
            assert len(lines) <= EVENTS_PER_CALLER_MAX + COARSE_PER_CALLER_MAX + 1, key
            assert sum(line["count"] for line in lines) == 300
            assert {line["outcome"] for line in lines} == {"failed"}
            assert {one["error"] for line in lines for one in line.get("changes", ())} == {error}

        await flood(
            ApiKey.DELETE_TOPICS,
            6,
            lambda number: DeleteTopicsRequest([DeleteTopicState(topic_id=UUID(int=7 + number))]),
            "UNKNOWN_TOPIC_ID",
        )
        await flood(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            lambda number: IncrementalAlterConfigsRequest([AlterConfigsResource(99, f"name-{number}")]),
            "INVALID_REQUEST",
        )


async def test_offsets_that_no_member_commits_and_members_that_are_removed_are_changes(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((Operation.READ, TOPIC, SEEN), (Operation.READ, ResourceType.GROUP, "g"))
        heard = Heard(broker.context.audit)
        async with broker.as_user(ALICE) as alice:
            for offset in (3, 0, 1):
                part = OffsetCommitRequestPartition(0, offset)
                topic = OffsetCommitRequestTopic(name=SEEN, partitions=[part])
                answer = await alice.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest("g", topics=[topic]))
                assert answer.topics[0].partitions[0].error_code == 0
            first, others = heard.take()
            assert first["changes"] == [
                {"action": "ALTER_OFFSETS", "type": "GROUP", "name": "g", "topic": SEEN, "partition": 0, "offset": 3}
            ]
            assert (others["outcome"], others["count"]) == ("done", 2)
            removed = LeaveGroupRequest("g", [MemberIdentity("", "worker-1")])
            await alice.ask(ApiKey.LEAVE_GROUP, 5, removed)
            line = heard.take_one()
            assert (line["outcome"], line["changes"][0]["error"]) == ("failed", "UNKNOWN_MEMBER_ID")
            assert (line["changes"][0]["name"], line["changes"][0]["instance"]) == ("g", "worker-1")
            await alice.ask(ApiKey.LEAVE_GROUP, 5, LeaveGroupRequest("g", [MemberIdentity("m-1")]))
            assert heard.take() == [], "a member that leaves changes nothing that lasts"


async def test_markers_are_changes_unless_a_broker_writes_them(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, broker.as_user(ALICE) as alice, broker.as_user(ADMIN) as admin:
        await broker.allow((Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))
        heard = Heard(broker.context.audit)

        async def marked(client: Talk, topic_id: UUID) -> list[dict[str, Any]]:
            topic = WritableTxnMarkerTopic(SEEN, [0], topic_id)
            message = WriteTxnMarkersRequest([WritableTxnMarker(5, 0, False, [topic])])
            await client.ask(ApiKey.WRITE_TXN_MARKERS, 2, message)
            return [one for line in heard.take() for one in line["changes"]]

        by_name, by_id = UUID(int=0), broker.ids[SEEN]
        for client, topic_id in ((alice, by_name), (alice, by_id), (admin, by_name)):
            (told,) = await marked(client, topic_id)
            assert (told["action"], told["name"], told["producer_id"]) == ("ABORT_TRANSACTION", SEEN, 5)
        assert await marked(admin, by_id) == [], "a superuser who names ids on the brokers' listener is a broker"


# --- logins -------------------------------------------------------------------------------------------------------------


async def test_logins_are_lines_and_counted_by_listener_and_mechanism(tmp_path: Path) -> None:
    door = listener("SASL_PLAINTEXT", connection_failed_authentication_delay_ms=0)
    path = tmp_path / "audit.log"
    async with running_broker(tmp_path, firn_audit_log_path=str(path), **security(door)) as broker:
        heard = Heard(broker.node.context.audit)
        for user, password in (("alice", "alice-secret"), ("alice", "hunter2"), ("mallory", "hunter2")):
            async with talk(broker.node.ports["SASL_PLAINTEXT"]) as client:
                await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
                await client.ask(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(f"\0{user}\0{password}".encode()))
        lines = heard.take()
        assert [(line["outcome"], line.get("principal"), line.get("user")) for line in lines] == [
            ("done", "User:alice", None),
            ("failed", None, "alice"),
            ("failed", None, "mallory"),
        ]
        assert len({line.get("reason") for line in lines[1:]}) == 1, "not even here it is told whether there is a user"
        assert "hunter2" not in json.dumps(lines)
        assert "alice-secret" not in json.dumps(lines)
        samples = {
            (sample.name, dict(sample.labels).get("mechanism")): sample.value
            for sample in broker.node.registry.samples()
        }
        assert samples["firn_login_failures_total", "PLAIN"] == 2
        assert samples["firn_logins_total", "PLAIN"] == 1


# --- samples ------------------------------------------------------------------------------------------------------------


async def test_what_is_allowed_is_sampled_with_its_topic(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with guarded(tmp_path, firn_audit_log_path=str(path), firn_audit_allowed_one_in=1) as broker:
        await broker.allow((Operation.WRITE, TOPIC, SEEN), (Operation.READ, TOPIC, SEEN))
        heard = Heard(broker.context.audit)
        async with broker.as_user(ALICE) as alice:
            heard.take()
            for turn in range(3):  # the long way and then the short one
                assert await written(alice) == 0
                line = heard.take_one()
                assert (line["event"], line["outcome"], line["request"]) == ("access", "allowed", "PRODUCE"), turn
                assert (line["principal"], line["one_in"]) == (ALICE, 1)
                assert line["resources"] == [{"operation": "WRITE", "type": "TOPIC", "name": SEEN}]
                assert (await read(alice))[0] == 0
                line = heard.take_one()
                assert (line["outcome"], line["request"]) == ("allowed", "FETCH")
                assert line["resources"] == [{"operation": "READ", "type": "TOPIC", "name": SEEN}]
            await alice.ask(ApiKey.FETCH, 12, reading(0, topic=OTHER))
            assert {line["outcome"] for line in heard.take()} == {"denied"}, (
                "what was denied is no sample of the allowed"
            )


async def test_one_in_so_many_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with running_broker(tmp_path, firn_audit_log_path=str(path), firn_audit_allowed_one_in=10) as broker:
        await broker.create_topic(SEEN)
        heard = Heard(broker.node.context.audit)
        async with talk(broker.port) as client:
            for _ in range(100):
                assert await written(client) == 0
        lines = heard.take()
        assert sum(line["count"] for line in lines) == 10
        assert len(lines) == 2, "the first, and the number of the others"


# --- the topic ----------------------------------------------------------------------------------------------------------


async def records_of(port: int, partition: int = 0) -> list[dict[str, Any]]:
    """The lines in a partition of the topic, as whoever talks to the leader reads them."""
    from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic

    asked = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=AUDIT_TOPIC, partitions=[asked])]
    request = FetchRequest(max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    async with talk(port) as client:
        answer = await client.ask(ApiKey.FETCH, 12, request)
    (found,) = answer.responses[0].partitions
    if found.error_code:
        return []
    data = bytes(found.records or b"")
    return [
        json.loads(record.value or b"")
        for position, header in iter_headers(data)
        for record in iter_records(data[position : position + header.size_bytes])
    ]


async def wait_for(
    port: int, wanted: Callable[[list[dict[str, Any]]], bool], partition: int = 0
) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while True:
            found = await records_of(port, partition)
            if wanted(found):
                return found
            await asyncio.sleep(0.02)


async def test_lines_are_records_of_the_topic_and_none_tells_of_itself(tmp_path: Path) -> None:
    async with guarded(tmp_path, firn_audit_topic_enable=True, firn_audit_allowed_one_in=1) as broker:
        async with broker.as_user(ALICE) as alice:
            for number in range(20):
                assert await written(alice, f"t{number}") != 0
        found = await wait_for(
            broker.broker.port, lambda found: sum(line["outcome"] == "denied" for line in found) == 20
        )
        names = [one["resources"][0]["name"] for one in found if one["outcome"] == "denied"]
        assert names == [f"t{number}" for number in range(20)]
        written_to = [one for one in found if one.get("request") == "PRODUCE" and one["outcome"] == "allowed"]
        assert written_to == [], "what the broker writes to the topic is not a request"
        topic = broker.context.image.topic(AUDIT_TOPIC)
        assert topic is not None
        assert len(topic.partitions) == 1
        assert not topic.is_internal


async def test_a_broker_that_leads_no_partition_writes_to_one_that_does(tmp_path: Path) -> None:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with cluster_on(
        tmp_path, 2, firn_audit_topic_enable=True, firn_audit_allowed_one_in=1, **settings
    ) as brokers:
        sides = [Guarded(broker) for broker in brokers]
        # That the second broker has come is the first line.
        await until(lambda: all(side.context.image.topic(AUDIT_TOPIC) is not None for side in sides))
        topic = sides[0].context.image.topic(AUDIT_TOPIC)
        assert topic is not None
        leader = topic.partitions[0].leader
        (other,) = [broker.node.audit for broker in brokers if broker.node.config.node_id != leader]
        assert other is not None
        assert other.topic is not None
        other.topic._partitions = SimpleNamespace(led=lambda topic, index: None)  # type: ignore[assignment]
        for side, principal in zip(sides, (ALICE, BOB), strict=True):
            async with side.as_user(principal) as client:
                assert await written(client, f"of {principal}") != 0

        def told(found: list[dict[str, Any]]) -> list[tuple[int, str]]:
            return sorted((line["broker"], line["principal"]) for line in found if line["outcome"] == "denied")

        found = await wait_for(brokers[leader - 1].port, lambda found: len(told(found)) == 2)
        assert told(found) == [(1, ALICE), (2, BOB)]
        writes = [line for line in found if line.get("request") == "PRODUCE" and line["outcome"] == "allowed"]
        assert writes == [], "what a broker writes to the topic makes no record of its own"
        assert "REGISTER" in {one["action"] for line in found for one in line.get("changes", ())}


async def test_a_topic_that_cannot_be_written_is_told_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_topic, "WITHIN_S", 0.0)
    async with guarded(tmp_path, firn_audit_topic_enable=True) as broker:
        await broker.broker.create_topic(AUDIT_TOPIC, max_message_bytes="0")
        lost = broker.broker.node.registry.counter("firn_audit_lines_lost_total", "", to="topic")
        async with broker.as_user(ALICE) as alice:
            assert await written(alice) != 0
            await until(lambda: lost.value == 1)
        assert len([line for line in broker.broker.lines if "audit log cannot be written to the topic" in line]) == 1


async def test_what_waits_for_a_place_that_takes_nothing_is_bounded_and_changes_have_room(tmp_path: Path) -> None:
    async with guarded(tmp_path, firn_audit_log_path=str(tmp_path / "audit.log")) as broker:
        audit = broker.broker.node.audit
        assert audit is not None
        assert audit.writer is not None
        (way,) = audit.writer._ways
        hold = asyncio.Event()

        async def never(lines: Sequence[bytes]) -> tuple[int, str]:
            await hold.wait()
            return len(lines), ""

        way._place.write = never  # type: ignore[method-assign]
        line = b"x" * 9_999 + b"\n"
        for _ in range(1000):
            way.put(line, important=False)
            await asyncio.sleep(0)
        assert way._lines._bytes <= BUFFER_BYTES_MAX // 2
        assert way._lost.value > 0
        before = way._lost.value
        way.put(line, important=True)
        assert way._lost.value == before
        hold.set()
