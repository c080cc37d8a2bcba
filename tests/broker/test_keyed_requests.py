"""The results of keyed requests at their broker: rights, the topic, expiry, strength and lost markers (ADR 0043)."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.client.transactions import end_transaction
from app.configs import InternalDurability
from app.configs.broker import STANDARD_AUTHORIZER
from app.coordinator.partition import ProducerIdAndEpoch
from app.coordinator.shell import Coordinator
from app.core.errors import CorruptionError, ErrorCode, FencedError, FirnError, NotLeader, RequestRejected
from app.core.units import PartitionIndex, ProducerEpoch, TopicPartition
from app.exactly_once import columns
from app.exactly_once import coordinator as coordinators
from app.exactly_once.coordinator import RequestCoordinator
from app.exactly_once.deciding import RecordFate
from app.exactly_once.records import PARTITIONS, TOPIC, Part, RequestKey, Result, Tick, encode_result
from app.exactly_once.shard import RequestShard
from app.exactly_once.transactional_ids import prefix_of
from app.http.errors import RestError
from app.http.keyed.producing import KeyedProducer, KeyedRecord
from app.machine.runtime import SystemClock
from app.metadata.image.records import REQUESTS_LEVEL
from app.replication.reading import PartitionReads
from app.security.acls import ResourceType
from app.tiering.upload.remote_log_manager import RemoteLogManager
from app.transactions.markers import MarkerWriter
from app.wire.apikeys import ApiKey
from app.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.private import RequestsRequest, RequestsResponse, pack, unpack
from tests.broker.guarded import ADMIN, ALICE, BOB, Guarded
from tests.broker.keyed_tries import AGAIN, DIGEST, OTHER_TRY, READ, TOPICS, TRY, WRITE
from tests.broker.object_topics import CONFIGS
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import member, unfenced
from tests.support.talking import tier_everything
from tests.support.waiting import until


@asynccontextmanager
async def guarded(path: Path) -> AsyncIterator[Guarded]:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with running_broker(path, new_level=REQUESTS_LEVEL, **settings) as broker:
        await until(lambda: unfenced(broker))
        for topic in ("t", "u"):
            await broker.create_topic(topic, 1)
        await broker.node.membership.controller.create_topic("__transaction_state", 1)
        yield Guarded(broker)


@asynccontextmanager
async def open_broker(path: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    async with running_broker(path, new_level=REQUESTS_LEVEL, **settings) as broker:
        await until(lambda: unfenced(broker))
        await broker.create_topic("t", 2)
        yield broker


async def ask(client: Talk, request: RequestsRequest) -> RequestsResponse:
    while True:
        answer = unpack(RequestsResponse, await client.ask(ApiKey.FIRN_REQUESTS, 0, pack(request)))
        if answer.error_code not in AGAIN:
            return answer


def look(key: bytes, try_id: bytes = TRY, *topics: str) -> RequestsRequest:
    return RequestsRequest("look", key, try_id, [(topic, 0) for topic in topics or ("t",)], 300)


# --- rights -----------------------------------------------------------------------------------------------------------


async def test_two_principals_have_two_keys(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        for principal in (ALICE, BOB):
            await broker.allow((WRITE, TOPICS, "t"), principal=principal)
        async with broker.as_user(ALICE) as alice, broker.as_user(BOB) as bob:
            assert (await ask(alice, look(b"k"))).found == "unknown"
            assert (await ask(alice, look(b"k", OTHER_TRY))).found == "reserved"
            of_bob = await ask(bob, look(b"k", OTHER_TRY))
            assert (of_bob.found, of_bob.principal, of_bob.prefix) == ("unknown", BOB, prefix_of(BOB))
            assert (await ask(bob, RequestsRequest("release", b"k", TRY))).error_code == 0
            assert (await ask(alice, look(b"k", OTHER_TRY))).found == "reserved", "another principal frees nothing"


async def test_a_new_key_needs_the_right_to_write_to_each_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        async with broker.as_user(ALICE) as alice:
            assert (await ask(alice, look(b"k"))).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert broker.context.image.topic(TOPIC) is None, "nothing is made for a caller without a right"
        await broker.allow((WRITE, TOPICS, "t"))
        async with broker.as_user(ALICE) as alice:
            assert (await ask(alice, look(b"k"))).found == "unknown"
            assert (await ask(alice, look(b"l", TRY, "t", "u"))).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert (await ask(alice, look(b"l", TRY, "no-topic"))).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result = Result(TRY, DIGEST, 200, 0, 0, (Part("u", 0, 0, 1, -1),), (0,))
            refused = await ask(alice, append(ALICE, b"k", result, f"{prefix_of(ALICE)}x"))
            assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def append(principal: str, key: bytes, result: Result, transactional_id: str, producer_id: int = 0) -> RequestsRequest:
    _, value = encode_result(RequestKey(principal, key), result)
    return RequestsRequest("append", key, result.try_id, [], 0, transactional_id, producer_id, 0, value)


async def test_a_result_is_appended_in_a_transaction_of_its_principal_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((WRITE, TOPICS, "t"), principal=ALICE)
        await broker.allow((WRITE, ResourceType.TRANSACTIONAL_ID, "mine"), principal=ALICE)
        await broker.allow((WRITE, ResourceType.TRANSACTIONAL_ID, f"{prefix_of(BOB)}x"), principal=ALICE)
        result = Result(TRY, DIGEST, 200, 0, 0, (Part("t", 0, 0, 1, -1),), (0,))
        async with broker.as_user(ALICE) as alice:
            assert (await ask(alice, look(b"k"))).found == "unknown"
            for name in ("mine", f"{prefix_of(BOB)}x", ""):
                refused = await ask(alice, append(ALICE, b"k", result, name))
                assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, name
            unknown = await ask(alice, append(ALICE, b"k", result, f"{prefix_of(ALICE)}x"))
            assert unknown.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_an_id_of_keyed_requests_needs_no_rule_and_is_refused_to_others_whatever_rules_say(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as broker:
        await broker.allow((WRITE, ResourceType.TRANSACTIONAL_ID, f"{prefix_of(BOB)}x"), principal=ALICE)

        async def begin(principal: str, name: str) -> int:
            message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=10_000)
            async with broker.as_user(principal) as client:
                while True:
                    answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 5, message)
                    if answer.error_code not in AGAIN:
                        return int(answer.error_code)

        assert await begin(BOB, f"{prefix_of(BOB)}x") == 0
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await begin(ALICE, f"{prefix_of(BOB)}x") == denied
        assert await begin(ADMIN, f"{prefix_of(BOB)}x") == denied
        assert await begin(BOB, "__http.") == denied


async def test_a_message_that_no_client_of_firn_sends_is_refused(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        long = await _one(broker, RequestsRequest("append", b"k", TRY, result=bytes(600_000)))
        assert long.error_code == ErrorCode.MESSAGE_TOO_LARGE
        for message in (
            RequestsRequest("look", b"", TRY, [("t", 0)]),
            RequestsRequest("look", b"k" * 256, TRY, [("t", 0)]),
            RequestsRequest("look", b"k", b"short", [("t", 0)]),
            RequestsRequest("look", b"k", TRY),
            RequestsRequest("fly", b"k", TRY),
            RequestsRequest("append", b"k", OTHER_TRY, result=append("", b"k", _RESULT, "").result),
            RequestsRequest("fate", partitions=[("t", 0), ("t", 1)]),
        ):
            assert await _closes(broker, message), message


_RESULT = Result(TRY, DIGEST, 200, 0, 0, (Part("t", 0, 0, 1, -1),), (0,))


async def _one(broker: RunningBroker, message: RequestsRequest) -> RequestsResponse:
    async with _talk(broker) as client:
        return await ask(client, message)


async def _closes(broker: RunningBroker, message: RequestsRequest) -> bool:
    async with _talk(broker) as client:
        client.send(ApiKey.FIRN_REQUESTS, 0, pack(message))
        return await client.closed()


def _talk(broker: RunningBroker) -> Any:
    return talk(broker.port)


# --- the topic --------------------------------------------------------------------------------------------------------


async def test_no_client_makes_changes_or_writes_the_topic(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, _talk(broker) as client:
        created = await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(TOPIC, 1, 1)]))
        assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await ask(client, look(b"k"))).found == "unknown"
        topic = broker.node.cluster.image.topic(TOPIC)
        assert topic is not None
        assert (len(topic.partitions), topic.configs["retention.ms"], topic.configs["cleanup.policy"]) == (
            PARTITIONS,
            "-1",
            "delete",
        )
        grown = await client.ask(
            ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest([CreatePartitionsTopic(TOPIC, 16)])
        )
        assert grown.results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        for state in (DeleteTopicState(name=TOPIC), DeleteTopicState(name=None, topic_id=topic.topic_id)):
            deleted = await client.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[state]))
            assert deleted.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        emptied = await client.ask(
            ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest([DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, -1)])])
        )
        assert emptied.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        (produced,) = (await client.produce(9, [(TOPIC, [(0, batch())])])).responses
        assert produced.partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await altered(client, "retention.ms", "60000") == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await altered(client, "min.insync.replicas", "1") == 0


@pytest.mark.parametrize("configs", [{"retention.ms": "60000"}, {"retention.ms": "-1", "cleanup.policy": "compact"}])
async def test_a_topic_that_a_client_of_an_older_broker_made_takes_no_keys(
    tmp_path: Path, configs: dict[str, str]
) -> None:
    """Its results would be gone before their retention is over."""
    async with open_broker(tmp_path) as broker, _talk(broker) as client:
        await broker.node.membership.controller.create_topic(TOPIC, PARTITIONS, configs)
        refused = await ask(client, look(b"k"))
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "was not made by Firn" in refused.error


async def altered(client: Talk, name: str, value: str) -> int:
    resource = AlterConfigsResource(2, TOPIC, [AlterableConfig(name, 0, value)])
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([resource]))
    return int(answer.responses[0].error_code)


async def test_results_are_read_by_a_rule_that_names_their_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        async with broker.as_user(ADMIN) as admin:
            await ask(admin, look(b"k"))

        async def fetched() -> int:
            message = FetchRequest(
                session_epoch=-1,
                max_bytes=1_000,
                topics=[FetchTopic(topic=TOPIC, partitions=[FetchPartition(partition=0, partition_max_bytes=1_000)])],
            )
            async with broker.as_user(ALICE) as alice:
                while True:
                    answer = await alice.ask(ApiKey.FETCH, 11, message)
                    code = int(answer.responses[0].partitions[0].error_code)
                    if code not in AGAIN:
                        return code

        await broker.allow((READ, TOPICS, "*"))
        assert await fetched() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await broker.allow((READ, TOPICS, TOPIC))
        assert await fetched() == 0


async def test_a_topic_that_survives_more_than_its_results_takes_no_keys(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, _talk(broker) as client:
        await broker.node.membership.controller.create_topic("synced", 1, {"firn.durability": "disk"}, 1)
        assert (await ask(client, look(b"k", TRY, "synced"))).found == "unknown"
        assert await altered(client, "firn.durability", "memory") == 0
        refused = await ask(client, look(b"l", TRY, "synced"))
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "would not survive a loss of power, which records of topic 'synced' survive" in refused.error
        await broker.node.membership.controller.create_topic("cached", 1, {"firn.durability": "memory"}, 1)
        assert (await ask(client, look(b"l", TRY, "cached"))).found == "unknown"


# --- time -------------------------------------------------------------------------------------------------------------


class Clock(SystemClock):
    """Its time goes on as the test says."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@asynccontextmanager
async def producer_of(broker: RunningBroker) -> AsyncIterator[KeyedProducer]:
    async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
        producer = KeyedProducer(cluster, SystemClock())
        yield producer
        await producer.close(1.0)


RECORDS = [KeyedRecord(0, None, b"a"), KeyedRecord(1, None, b"b"), KeyedRecord(0, None, b"c")]


async def produced(producer: KeyedProducer) -> Result:
    """The result of the request, but for the time of its append, which no answer shows."""
    return (await producer.produce(b"k", DIGEST, "t", RECORDS, 200))._replace(appended_ms=0)


def pass_minutes(broker: RunningBroker, key: RequestKey, clock: Clock, minutes: int) -> None:
    shell = broker.node.requests._coordinator
    for _ in range(minutes):
        clock.ahead_ms += 60_000
        shell.tell(PartitionIndex(key.partition), lambda shard, turn: shard.due(turn, Tick))


async def test_a_result_is_kept_for_the_retention_and_then_its_key_and_its_space_are_free(tmp_path: Path) -> None:
    clock = Clock()
    key = RequestKey("User:ANONYMOUS", b"k")
    async with (
        open_broker(tmp_path, clock=clock, firn_http_idempotency_retention_ms=300_000) as broker,
        producer_of(broker) as producer,
    ):
        first = await produced(producer)
        await until(lambda: not broker.log(TOPIC, key.partition).producers.open_transactions)
        pass_minutes(broker, key, clock, 4)
        await broker.node.requests.expire()
        assert broker.log(TOPIC, key.partition).log_start_offset == 0
        assert await produced(producer) == first
        pass_minutes(broker, key, clock, 2)
        await broker.node.requests.expire()
        assert broker.log(TOPIC, key.partition).log_start_offset > 1
        assert broker.node.requests._usage.total.keys == 0
        second = await produced(producer)
        assert second.parts[0].base_offset > first.parts[0].base_offset


async def test_a_clock_that_jumps_by_a_day_forgets_no_key(tmp_path: Path) -> None:
    clock = Clock()
    key = RequestKey("User:ANONYMOUS", b"k")
    async with open_broker(tmp_path, clock=clock) as broker, producer_of(broker) as producer:
        first = await produced(producer)
        clock.ahead_ms += 86_400_000
        pass_minutes(broker, key, clock, 2)
        await broker.node.requests.expire()
        assert await produced(producer) == first


# --- lost markers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
async def test_a_result_that_lost_its_marker_is_decided_as_its_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    write = MarkerWriter.write

    def loses(self: MarkerWriter, marker: Any, partition: Any, *more: Any) -> Any:
        return None if partition.topic == TOPIC else write(self, marker, partition, *more)

    monkeypatch.setattr(coordinators, "ABANDONED_S", 0.0)
    key = RequestKey("User:ANONYMOUS", b"k")
    async with open_broker(tmp_path) as broker, producer_of(broker) as producer:
        if not commit:

            async def aborts(cluster: Any, transaction: Any, *, commit: bool) -> Any:
                return await end_transaction(cluster, transaction, commit=False)

            monkeypatch.setattr("app.http.keyed.producing.end_transaction", aborts)
        monkeypatch.setattr(MarkerWriter, "write", loses)
        first = await produced(producer)
        monkeypatch.setattr("app.http.keyed.producing.end_transaction", end_transaction)
        log = broker.log(TOPIC, key.partition)
        await until(lambda: not any(broker.log("t", index).producers.open_transactions for index in (0, 1)))
        assert log.producers.open_transactions, "no marker came"
        with pytest.raises(RestError) as refused:
            await producer.produce(b"k", DIGEST, "t", RECORDS, 200)
        assert refused.value.answer.status == 409
        monkeypatch.setattr(MarkerWriter, "write", write)
        await broker.node.requests.decide_abandoned()
        assert not log.producers.open_transactions
        assert any("had lost its marker" in line for line in broker.lines)
        second = await produced(producer)
        assert (second == first) is commit


@pytest.mark.parametrize("is_one_lost", [False, True])
async def test_a_result_whose_records_were_deleted_meanwhile_is_not_taken_for_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_one_lost: bool
) -> None:
    write, fate = MarkerWriter.write, RequestCoordinator.fate

    def loses(self: MarkerWriter, marker: Any, partition: Any, *more: Any) -> Any:
        return None if partition.topic == TOPIC else write(self, marker, partition, *more)

    async def lost(self: RequestCoordinator, target: TopicPartition, *more: Any) -> RecordFate:
        return RecordFate.LOST if is_one_lost and target.partition else await fate(self, target, *more)

    monkeypatch.setattr(coordinators, "ABANDONED_S", 0.0)
    clock = Clock()
    key = RequestKey("User:ANONYMOUS", b"k")
    records = tuple(record._replace(partition=place) for place, record in enumerate(RECORDS[:1] * 2))
    async with open_broker(tmp_path, clock=clock) as broker, producer_of(broker) as producer:
        monkeypatch.setattr(MarkerWriter, "write", loses)
        await producer.produce(b"k", DIGEST, "t", records, 200)
        monkeypatch.setattr(MarkerWriter, "write", write)
        log = broker.log(TOPIC, key.partition)
        await until(lambda: not any(broker.log("t", index).producers.open_transactions for index in (0, 1)))
        for index in (0, 1):
            data = broker.log("t", index)
            await broker.node.remote_log_manager.advance_log_start(data.topic_id, data.partition, data.log_end_offset)
        broker.node.requests.fate_of = partial(lost, broker.node.requests)
        retention_ms = broker.node.cluster.effective_broker_config().firn_http_idempotency_retention_ms
        clock.ahead_ms += retention_ms  # a jump of one clock lets two minutes pass
        await broker.node.requests.decide_abandoned()
        assert log.producers.open_transactions, "readers may have seen the records"
        with pytest.raises(RestError) as refused:
            await producer.produce(b"k", DIGEST, "t", records, 200)
        assert refused.value.answer.status == 409
        pass_minutes(broker, key, clock, retention_ms // 60_000)
        await broker.node.requests.decide_abandoned()
        assert not log.producers.open_transactions


async def test_the_fate_of_a_record_is_that_of_its_own_transaction(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, producer_of(broker) as producer:
        part = (await produced(producer)).parts[0]
        target = TopicPartition("t", PartitionIndex(part.partition))
        data = broker.log("t", part.partition)
        await until(lambda: not data.producers.open_transactions)
        ((producer_id, entry),) = data.producers.entries.items()
        fate = broker.node.requests.fate
        for epoch in range(entry.epoch + 1):
            own = ProducerIdAndEpoch(producer_id, ProducerEpoch(epoch))
            if await fate(target, part.base_offset, own) == "committed":
                break
        later = ProducerIdAndEpoch(producer_id, ProducerEpoch(epoch + 1))
        assert await fate(target, part.base_offset, own) == "committed"
        assert await fate(target, part.base_offset, later) == "lost"
        assert await fate(target, data.log_end_offset, own) == "lost"
        await broker.node.remote_log_manager.advance_log_start(data.topic_id, data.partition, data.log_end_offset)
        assert await fate(target, part.base_offset, own) == "gone"


async def test_a_record_that_cannot_be_read_has_no_fate_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path) as broker, producer_of(broker) as producer:
        part = (await produced(producer)).parts[0]
        target = TopicPartition("t", PartitionIndex(part.partition))
        await until(lambda: not broker.log("t", part.partition).producers.open_transactions)
        requests = broker.node.requests
        own = ProducerIdAndEpoch(next(iter(broker.log("t", part.partition).producers.entries)), ProducerEpoch(0))

        async def nothing(self: PartitionReads, read: Any) -> bytes:
            del self, read
            return b""

        with monkeypatch.context() as patch:
            patch.setattr(PartitionReads, "take", nothing)
            with pytest.raises(CorruptionError, match=f"A read of {target} at offset {part.base_offset} has no whole"):
                await requests.fate(target, part.base_offset, own)
        assert await requests.fate(target, part.base_offset, own) == "committed"


@pytest.mark.parametrize(
    "failure",
    [
        CorruptionError("It has failed once."),
        RequestRejected(ErrorCode.INVALID_REQUEST, "It has failed once."),
        FencedError("It has failed once."),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_results_are_decided_later_and_the_failure_is_told(
    failure: FirnError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    async def decide(self: coordinators.RequestCoordinator) -> None:
        tries.append("again" if tries else "first")
        if len(tries) == 1:
            raise failure

    monkeypatch.setattr(coordinators, "DECIDE_S", 0.01)
    monkeypatch.setattr(coordinators.RequestCoordinator, "decide_abandoned", decide)
    async with open_broker(tmp_path) as broker:
        await until(lambda: len(tries) > 1)
        assert any("It has failed once." in line for line in broker.lines)


REFUSALS = [
    RequestRejected(ErrorCode.INVALID_REQUEST, "It has failed once."),
    FencedError("It has failed once."),
    NotLeader("It has failed once.", -1, 0),
]


@pytest.mark.parametrize("failure", REFUSALS, ids=lambda failure: type(failure).__name__)
async def test_a_result_that_cannot_be_decided_is_told_and_decided_later(
    failure: FirnError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MarkerWriter.write

    def loses(self: MarkerWriter, marker: Any, partition: Any, *more: Any) -> Any:
        return None if partition.topic == TOPIC else write(self, marker, partition, *more)

    async def fate(*_: object) -> Any:
        raise failure

    monkeypatch.setattr(coordinators, "ABANDONED_S", 0.0)
    key = RequestKey("User:ANONYMOUS", b"k")
    async with open_broker(tmp_path) as broker, producer_of(broker) as producer:
        monkeypatch.setattr(MarkerWriter, "write", loses)
        await produced(producer)
        monkeypatch.setattr(MarkerWriter, "write", write)
        await until(lambda: not any(broker.log("t", index).producers.open_transactions for index in (0, 1)))
        requests = broker.node.requests
        with monkeypatch.context() as patch:
            patch.setattr(requests, "fate_of", fate)
            for _ in range(3):
                await requests.decide_abandoned()
        subject = f"deciding a result of {TOPIC}-{key.partition} fails: It has failed once."
        assert [line for line in broker.lines if "It has failed once." in line] == [subject]
        await requests.decide_abandoned()
        assert not broker.log(TOPIC, key.partition).producers.open_transactions


@pytest.mark.parametrize("failure", REFUSALS, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("moved", [False, True])
async def test_results_that_cannot_be_expired_are_told_unless_they_have_another_leader(
    failure: FirnError, moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    key = RequestKey("User:ANONYMOUS", b"k")
    advance = RemoteLogManager.advance_log_start
    fails = False

    async def advances(self: RemoteLogManager, *asked: Any) -> None:
        if not fails:
            return await advance(self, *asked)
        if moved:
            patch.setattr(Coordinator, "shards", lambda _: [])
        raise failure

    monkeypatch.setattr(RemoteLogManager, "advance_log_start", advances)
    async with (
        open_broker(tmp_path, clock=clock, firn_http_idempotency_retention_ms=300_000) as broker,
        producer_of(broker) as producer,
    ):
        await produced(producer)
        log = broker.log(TOPIC, key.partition)
        await until(lambda: not log.producers.open_transactions)
        pass_minutes(broker, key, clock, 6)
        await until(lambda: log.last_stable_offset == log.log_end_offset)
        fails = True
        with monkeypatch.context() as patch:
            for _ in range(3):
                await broker.node.requests.expire()
        fails = False
        subject = f"expiring results of {TOPIC}-{key.partition} fails: It has failed once."
        told = [line for line in broker.lines if "It has failed once." in line]
        assert told == ([] if moved and isinstance(failure, NotLeader) else [subject])
        await broker.node.requests.expire()
        assert log.log_start_offset > 1


async def test_a_result_whose_records_are_open_waits_for_its_own_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "ABANDONED_S", 0.0)
    key = RequestKey("User:ANONYMOUS", b"k")
    async with open_broker(tmp_path) as broker, producer_of(broker) as producer:

        async def decides_first(cluster: Any, transaction: Any, *, commit: bool) -> Any:
            await broker.node.requests.decide_abandoned()
            assert broker.log(TOPIC, key.partition).producers.open_transactions
            return await end_transaction(cluster, transaction, commit=commit)

        monkeypatch.setattr("app.http.keyed.producing.end_transaction", decides_first)
        first = await produced(producer)
        assert await produced(producer) == first


# --- results in the store ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def object_broker(path: Path, *, take_over: bool = False) -> AsyncIterator[RunningBroker]:
    """The only broker of its cluster, whose results are in write-ahead logs."""
    settings: dict[str, Any] = {
        "firn_internal_durability": InternalDurability.OBJECT,
        "broker_heartbeat_interval_ms": 50,
        "remote_log_manager_task_interval_ms": 50,
    }
    async with member(path, 1, new_level=REQUESTS_LEVEL, take_over=take_over, **settings) as broker:
        await until(lambda: unfenced(broker))
        yield broker


@pytest.mark.parametrize("by_columns", [False, True])
async def test_results_in_the_store_alone_are_found_by_a_broker_with_an_empty_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_columns: bool
) -> None:
    loaded: list[int] = []
    if by_columns:
        monkeypatch.setattr("app.coordinator.shell.BULK_RECORDS", 1)
        monkeypatch.setattr(columns, "COLUMN_MIN", 1)
        load = RequestShard.load

        def noted(shard: RequestShard, batch: Any) -> None:
            loaded.append(len(batch.offsets) if isinstance(batch, columns.Columns) else 0)
            load(shard, batch)

        monkeypatch.setattr(RequestShard, "load", noted)
    keys = [b"key-%d" % number for number in range(12)]
    first: dict[bytes, Result] = {}

    async def ask(producer: KeyedProducer, key: bytes) -> Result:
        return (await producer.produce(key, DIGEST, "t", RECORDS, 200))._replace(appended_ms=0)

    async with object_broker(tmp_path) as broker:
        await broker.node.membership.controller.create_topic("t", 2, CONFIGS, 1)
        async with producer_of(broker) as producer:
            for place, key in enumerate(keys):
                first[key] = await ask(producer, key)
                if place == len(keys) // 2:
                    for index in range(PARTITIONS):
                        log = broker.log(TOPIC, index)
                        await until(lambda log=log: not log.producers.open_transactions)  # type: ignore[misc]
                        if log.log_end_offset:
                            await tier_everything(broker, TOPIC, index)
            for index in range(PARTITIONS):  # a request is answered before its markers are written
                log = broker.log(TOPIC, index)
                await until(lambda log=log: not log.producers.open_transactions)  # type: ignore[misc]
                stored = log.wait_stored(log.log_end_offset)
                if stored is not None:
                    await stored
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with object_broker(tmp_path, take_over=True) as broker:
        async with producer_of(broker) as producer:
            assert {key: await ask(producer, key) for key in keys} == first
        starts = [broker.log(TOPIC, index).local_log_start_offset for index in range(PARTITIONS)]
        assert max(starts) > 0, "some are in the store alone"
    assert sum(loaded) == (len(keys) if by_columns else 0)
