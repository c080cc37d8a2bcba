"""FirnKeyed: a broker that takes all steps of a keyed request by itself checks all that the steps check (ADR 0043, EO19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import ProducerEpoch, ProducerId, TimestampMs
from app.exactly_once.coordinator import RequestCoordinator
from app.exactly_once.records import TOPIC, Part, RequestKey, Result, encode_result
from app.exactly_once.transactional_ids import prefix_of
from app.handlers.clients.client import SIDE_BY_SIDE_MAX
from app.handlers.produce import keyed, produce
from app.handlers.produce.produce import BESIDE_BYTES_MAX
from app.metadata.image.records import APPEND_LEVEL, REQUESTS_LEVEL
from app.records.builder import build_batch
from app.replication.partition import Partition
from app.transactions.coordinator import TransactionCoordinator
from app.transactions.markers import Marker, MarkerWriter
from app.transactions.state import Transaction
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from app.wire.private import (
    KEYED_BYTES_MAX,
    KEYED_RECORDS_MAX,
    KeyedRequest,
    KeyedResponse,
    RequestsRequest,
    RequestsResponse,
    pack,
    unpack,
)
from tests.broker.guarded import ADMIN, ALICE, BOB, Guarded
from tests.broker.keyed_tries import AGAIN, DIGEST, OTHER_TRY, TOPICS, TRY, WRITE
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.keyed_processes import committed
from tests.support.several import unfenced
from tests.support.waiting import until

ANYBODY = "User:ANONYMOUS"
TIMEOUT_MS = 10_000


@asynccontextmanager
async def broker_of(path: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    async with running_broker(path, **({"new_level": APPEND_LEVEL} | settings)) as broker:
        await until(lambda: unfenced(broker))
        await broker.create_topic("t", 2)
        await broker.node.membership.controller.create_topic("__transaction_state", 1)
        yield broker


class Writer(NamedTuple):
    """A producer of one transactional id."""

    client: Talk
    principal: str
    transactional_id: str
    producer_id: int
    epoch: int

    def asked(self, key: bytes, try_id: bytes = TRY, *indexes: int, digest: bytes = DIGEST) -> KeyedRequest:
        parts = tuple(Part("t", index, -1, 1, -1) for index in indexes or (0,))
        result = Result(try_id, digest, 200, 0, 0, parts, tuple(range(len(parts))))
        _, value = encode_result(RequestKey(self.principal, key), result)
        batches = [self.batch(b"v%d" % part.partition) for part in parts]
        return KeyedRequest(key, try_id, *self[2:], TIMEOUT_MS, value, batches)

    def of_records(self, key: bytes, many: int) -> KeyedRequest:
        result = Result(TRY, DIGEST, 200, 0, 0, (Part("t", 0, -1, many, -1),), (0,) * many)
        _, value = encode_result(RequestKey(self.principal, key), result)
        return KeyedRequest(key, TRY, *self[2:], TIMEOUT_MS, value, [self.batch(*[b"v"] * many)])

    def batch(self, *values: bytes, transactional: bool = True) -> bytes:
        return build_batch(
            [(TimestampMs(1_790_000_000_000), None, value, ()) for value in values],
            producer_id=ProducerId(self.producer_id),
            producer_epoch=ProducerEpoch(self.epoch),
            base_sequence=0,
            transactional=transactional,
        )

    async def ask(self, asked: KeyedRequest) -> KeyedResponse:
        while True:
            answer = unpack(KeyedResponse, await self.client.ask(ApiKey.FIRN_KEYED, 0, pack(asked)))
            if answer.found or answer.error_code not in AGAIN:
                return answer

    def next(self, answer: KeyedResponse) -> Writer:
        return self._replace(producer_id=answer.producer_id, epoch=answer.producer_epoch)


async def writer_of(client: Talk, principal: str = ANYBODY, name: str = "x") -> Writer:
    """A producer whose transactional id is ready, at a broker that has made the topic of results."""
    key = b"first of " + name.encode()
    look = RequestsRequest("look", key, OTHER_TRY, [("t", 0)], 300)
    while unpack(RequestsResponse, await client.ask(ApiKey.FIRN_REQUESTS, 0, pack(look))).error_code in AGAIN:
        pass
    transactional_id = f"{prefix_of(principal)}{name}"
    message = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    while True:
        answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 5, message)
        if answer.error_code not in AGAIN:
            assert answer.error_code == 0
            return Writer(client, principal, transactional_id, answer.producer_id, answer.producer_epoch)


async def test_records_and_result_are_committed_and_a_repeat_is_known(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        answer = await writer.ask(writer.asked(b"k", TRY, 1, 0))
        assert (answer.found, answer.error_code, answer.offsets) == ("committed", 0, [(0, -1), (0, -1)])
        assert (answer.principal, answer.prefix) == (ANYBODY, prefix_of(ANYBODY))
        after = writer.next(answer)
        assert after[2:] != writer[2:]
        known = await after.ask(after.asked(b"k", OTHER_TRY))
        assert (known.found, known.producer_id) == ("known", -1)
        assert (await after.ask(after.asked(b"l", OTHER_TRY))).found == "committed", "the same identity is still good"
        assert sorted(await committed(broker)) == [(0, 0, b"v0"), (0, 2, b"v0"), (1, 0, b"v1")]


async def test_many_tries_of_one_connection_are_served_side_by_side_and_answered_in_order(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writers = [await writer_of(client, name=f"w{number}") for number in range(20)]
        sent = [
            client.send(ApiKey.FIRN_KEYED, 0, pack(writer.asked(b"k%d" % number)))
            for number, writer in enumerate(writers)
        ]
        answers = []
        for one in sent:
            correlation_id, answer = await client.answer(ApiKey.FIRN_KEYED, 0)
            assert correlation_id == one
            answers.append(unpack(KeyedResponse, answer))
        assert [answer.found for answer in answers] == ["committed"] * 20
        assert len({offset for answer in answers for offset, _ in answer.offsets}) == 20
        assert len(await committed(broker)) == 20


async def test_look_ups_of_one_connection_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, look, asked = asyncio.Event(), RequestCoordinator.look, list[bytes]()

    async def waits(self: RequestCoordinator, key: RequestKey, *args: Any) -> Any:
        asked.append(key.key)
        if len(asked) == 1:
            await may_go_on.wait()
        return await look(self, key, *args)

    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        await writer_of(client)
        monkeypatch.setattr(RequestCoordinator, "look", waits)
        for key in (b"slow", b"quick"):
            client.send(ApiKey.FIRN_REQUESTS, 0, pack(RequestsRequest("settle", key, TRY)))
        await until(lambda: asked == [b"slow", b"quick"])
        may_go_on.set()
        for _ in range(2):
            _, answer = await client.answer(ApiKey.FIRN_REQUESTS, 0)
            assert unpack(RequestsResponse, answer).found == "unknown"


async def test_identities_are_given_beside_each_other_and_not_before_a_produce_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, initialize, asked = asyncio.Event(), TransactionCoordinator.initialize, list[str]()

    async def waits(self: TransactionCoordinator, transactional_id: str, *args: Any) -> Any:
        asked.append(transactional_id)
        await may_go_on.wait()
        return await initialize(self, transactional_id, *args)

    async with broker_of(tmp_path) as broker, talk(broker.port) as client, talk(broker.port) as other:
        await writer_of(client)
        monkeypatch.setattr(TransactionCoordinator, "initialize", waits)
        first, second = (InitProducerIdRequest(transactional_id=f"{n}", transaction_timeout_ms=9_000) for n in "ab")
        client.send(ApiKey.INIT_PRODUCER_ID, 5, first)
        client.send(ApiKey.INIT_PRODUCER_ID, 5, second)
        await until(lambda: asked == ["a", "b"])
        stored = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(Partition, "wait_stored", lambda *args, **named: stored)
        data = PartitionProduceData(index=0, records=build_batch([(TimestampMs(0), None, b"v", ())]))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        produced = ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=topics)
        other.send(ApiKey.PRODUCE, 9, produced)
        other.send(ApiKey.INIT_PRODUCER_ID, 5, first)
        await until(lambda: broker.log("t", 0).log_end_offset == 1)
        await asyncio.sleep(0.05)
        assert asked == ["a", "b"]
        stored.set_result(None)
        await until(lambda: asked == ["a", "b", "a"])
        may_go_on.set()


async def test_ends_of_keyed_requests_are_decided_beside_each_other_and_other_ends_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, asked = asyncio.Event(), list[str]()

    async def waits(self: TransactionCoordinator, transactional_id: str, *args: Any, **named: Any) -> Any:
        asked.append(transactional_id)
        await may_go_on.wait()
        raise RequestRejected(ErrorCode.INVALID_TXN_STATE, "It has no transaction.")

    monkeypatch.setattr(TransactionCoordinator, "end", waits)
    async with broker_of(tmp_path) as broker, talk(broker.port) as client, talk(broker.port) as other:
        of_requests = [f"{prefix_of(ANYBODY)}{number}" for number in range(SIDE_BY_SIDE_MAX + 1)]
        for connection, names in ((client, of_requests), (other, ["a", "b"])):
            for name in names:
                connection.send(ApiKey.END_TXN, 5, EndTxnRequest(name, 1, 0, True))
        await until(lambda: len(asked) > SIDE_BY_SIDE_MAX)
        await serve_what_came(broker)
        assert sorted(asked) == sorted([*of_requests[:-1], "a"])
        may_go_on.set()
        for connection, names in ((client, of_requests), (other, ["a", "b"])):
            for _ in names:
                _, answer = await connection.answer(ApiKey.END_TXN, 5)
                assert answer.error_code == ErrorCode.INVALID_TXN_STATE


async def test_batches_of_keyed_requests_wait_for_their_coordinator_beside_each_other_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, add, asked = asyncio.Event(), TransactionCoordinator.add_partitions, list[str]()

    async def later(self: TransactionCoordinator, *args: Any) -> Transaction:
        await may_go_on.wait()
        added = add(self, *args)
        return added if isinstance(added, Transaction) else await added

    def waits(self: TransactionCoordinator, transactional_id: str, *args: Any) -> Any:
        asked.append(transactional_id)
        return later(self, transactional_id, *args)

    def send(connection: Talk, transactional_id: str, records: bytes, index: int = 0) -> None:
        connection.send_produce(12, [("t", [(index, records)])], transactional_id=transactional_id)

    most = 3
    monkeypatch.setattr(produce, "SIDE_BY_SIDE_MAX", most)
    async with broker_of(tmp_path) as broker, talk(broker.port) as client, talk(broker.port) as other:
        writers = [await writer_of(client, name=f"w{number}") for number in range(most + 1)]
        monkeypatch.setattr(TransactionCoordinator, "add_partitions", waits)
        for one in writers:
            send(client, one.transactional_id, one.batch(b"v"))
        for name in ("a", "b"):
            send(other, name, writers[0].batch(b"v"))
        async with talk(broker.port) as third:
            for one in writers[:2]:
                send(third, one.transactional_id, one.batch(bytes(BESIDE_BYTES_MAX)), 1)
            await until(lambda: len(asked) >= most + 2)
            await serve_what_came(broker)
            names = [one.transactional_id for one in writers]
            assert sorted(asked) == sorted([*names[:most], "a", names[0]])
        may_go_on.set()
        for offset, _ in enumerate(writers):
            _, answer = await client.answer(ApiKey.PRODUCE, 12)
            (stored,) = answer.responses[0].partition_responses
            assert (stored.error_code, stored.base_offset) == (0, offset)


async def serve_what_came(broker: RunningBroker) -> None:
    """Wait until the broker has served the requests that came before."""
    async with talk(broker.port) as client:
        await client.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())


@pytest.mark.parametrize("key", [ApiKey.FIRN_REQUESTS, ApiKey.FIRN_KEYED])
async def test_no_more_requests_of_a_connection_are_served_side_by_side_than_may_begin_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: ApiKey
) -> None:
    may_go_on, look, asked = asyncio.Event(), RequestCoordinator.look, 0

    async def waits(self: RequestCoordinator, *args: Any) -> Any:
        nonlocal asked
        asked += 1
        await may_go_on.wait()
        return await look(self, *args)

    sent = SIDE_BY_SIDE_MAX + 8
    async with broker_of(tmp_path) as broker, talk(broker.port) as client, talk(broker.port) as other:
        writer = await writer_of(client)
        monkeypatch.setattr(RequestCoordinator, "is_new", lambda *args: False)
        monkeypatch.setattr(RequestCoordinator, "look", waits)
        settle = RequestsRequest("settle", b"k", TRY)
        message = pack(settle if key is ApiKey.FIRN_REQUESTS else writer.asked(b"k"))
        for _ in range(sent):
            client.send(key, 0, message)
        await until(lambda: asked >= SIDE_BY_SIDE_MAX)
        await other.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
        assert asked == SIDE_BY_SIDE_MAX
        may_go_on.set()
        for _ in range(sent):
            await client.answer(key, 0)


async def test_a_result_of_more_records_than_a_try_may_have_is_refused(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        most = (KEYED_RECORDS_MAX, KEYED_RECORDS_MAX + 1)
        allowed, more = [await writer.ask(writer.of_records(b"k%d" % many, many)) for many in most]
        assert (allowed.found, more.found, more.error_code) == ("committed", "", ErrorCode.KAFKA_STORAGE_ERROR)
        assert f"has {KEYED_RECORDS_MAX + 1} records" in more.error


async def test_two_tries_of_one_identity_do_not_take_each_others_records_for_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = asyncio.Barrier(2)

    async def waits(*args: Any) -> None:
        await both.wait()

    names = {RequestKey(ANYBODY, name).partition: name for name in (b"k%d" % number for number in range(50))}
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        monkeypatch.setattr(TransactionCoordinator, "wait_settled", waits)
        for key, try_id in ((names[3], TRY), (names[4], OTHER_TRY)):
            client.send(ApiKey.FIRN_KEYED, 0, pack(writer.asked(key, try_id)))
        answers = [unpack(KeyedResponse, (await client.answer(ApiKey.FIRN_KEYED, 0))[1]) for _ in range(2)]
        assert sorted(one.found for one in answers) == ["committed", "failed"]
        assert len(await committed(broker)) == 1


async def test_a_key_that_is_reserved_or_has_an_open_result_is_left_alone(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        look = RequestsRequest("look", b"k", OTHER_TRY, [("t", 0)], 300)
        assert unpack(RequestsResponse, await client.ask(ApiKey.FIRN_REQUESTS, 0, pack(look))).found == "unknown"
        assert (await writer.ask(writer.asked(b"k"))).found == "reserved"
        assert (await writer.ask(writer.asked(b"k", OTHER_TRY))).found == "committed", "its own reservation"
        assert len(await committed(broker)) == 1


async def test_the_rights_are_those_of_the_steps(tmp_path: Path) -> None:
    settings = {"super_users": f"{ANYBODY};{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with broker_of(tmp_path, **settings) as running:
        broker = Guarded(running)
        await broker.allow((WRITE, TOPICS, "t"), principal=ALICE)
        async with broker.as_user(ALICE) as client:
            alice = await writer_of(client, ALICE)
            stranger = alice._replace(transactional_id=f"{prefix_of(BOB)}x")
            denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert (await stranger.ask(stranger.asked(b"k"))).error_code == denied
            assert (await alice.ask(alice.asked(b"k"))).found == "committed"
        async with broker.as_user(BOB) as client:
            bob = alice._replace(client=client, principal=BOB, transactional_id=f"{prefix_of(BOB)}x")
            refused = await bob.ask(bob.asked(b"k"))
            assert (refused.found, refused.error_code) == ("", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert len(await committed(running)) == 1


async def test_an_identity_that_is_not_the_transactions_begins_nothing(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        for strange in (writer._replace(producer_id=writer.producer_id + 1), writer._replace(epoch=writer.epoch + 1)):
            answer = await strange.ask(strange.asked(b"k"))
            assert answer.found == "unknown", "the caller goes on by itself, and is refused"
        other = KeyedRequest(**{**_fields(writer.asked(b"k")), "timeout_ms": 60_000})
        assert (await writer.ask(other)).found == "unknown", "the transaction may not be open for so long"
        assert broker.log("t", 0).log_end_offset == 0
        assert (await writer.ask(writer.asked(b"k"))).found == "committed"


async def test_a_record_or_a_result_that_is_refused_leaves_the_transaction_to_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        damaged = writer.asked(b"k")
        records = bytearray(damaged.batches[0])
        records[-1] ^= 1
        answer = await writer.ask(KeyedRequest(**{**_fields(damaged), "batches": [bytes(records)]}))
        assert (answer.found, answer.error_code) == ("failed", ErrorCode.CORRUPT_MESSAGE)
        assert (answer.offsets, answer.producer_id) == ([], -1)
        assert await committed(broker) == []


async def test_a_partition_with_too_few_replicas_in_sync_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        for topic in ("t", TOPIC):
            lacks = {topic}
            monkeypatch.setattr(
                Partition, "enough_in_sync", property(lambda self, lacks=lacks: self.log.topic not in lacks)
            )
            assert (await writer.ask(writer.asked(b"k"))).found == "unknown", "the caller goes on by itself"
        lacks.clear()
        assert (await writer.ask(writer.asked(b"k"))).found == "committed"


async def test_a_key_whose_hash_another_key_has_is_left_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestKey, "index_hash", property(lambda _: 7))
    names = (b"k%d" % number for number in count())
    first, second = islice((name for name in names if RequestKey(ANYBODY, name).partition == 3), 2)
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        done = await writer.ask(writer.asked(first))
        assert done.found == "committed"
        writer = writer.next(done)
        await until(
            lambda: not any(shard.open_producers() for _, shard in broker.node.context.requests._coordinator.shards())
        )
        assert (await writer.ask(writer.asked(second, OTHER_TRY))).found == "unknown"
        assert len(await committed(broker)) == 1


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_committed_result_that_has_lost_its_marker_outlives_the_next_transaction_of_its_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    write = MarkerWriter.write

    def loses(writer: MarkerWriter, marker: Marker, partition: Any, *rest: Any) -> Any:
        return None if partition.topic == TOPIC and marker.commit else write(writer, marker, partition, *rest)

    names = (b"k%d" % number for number in count())
    first, second = islice((name for name in names if RequestKey(ANYBODY, name).partition == 3), 2)
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        monkeypatch.setattr(MarkerWriter, "write", loses)
        done = await writer.ask(writer.asked(first))
        assert done.found == "committed"
        writer = writer.next(done)
        asked = writer.asked(second, OTHER_TRY)
        if at_once:
            assert (await writer.ask(asked)).found == "unknown", "its caller goes on by itself"
        else:
            fields = (writer.transactional_id, writer.producer_id, writer.epoch, asked.result)
            step = RequestsRequest("append", second, OTHER_TRY, [], -1, *fields)
            answer = unpack(RequestsResponse, await client.ask(ApiKey.FIRN_REQUESTS, 0, pack(step)))
            assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        ended = await client.ask(ApiKey.END_TXN, 5, EndTxnRequest(*writer[2:], committed=False))
        assert ended.error_code == 0
        await broker.node.context.transactions.wait_settled(writer.transactional_id, 5.0)
        look = RequestsRequest("settle", first, OTHER_TRY)
        assert unpack(RequestsResponse, await client.ask(ApiKey.FIRN_REQUESTS, 0, pack(look))).found == "open"


async def test_settings_that_change_before_the_append_have_a_code_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        await broker.node.membership.controller.create_topic(
            "checked", 1, {"confluent.value.schema.validation": "true"}, 1
        )
        writer = await writer_of(client)
        result = Result(TRY, DIGEST, 200, 0, 0, (Part("checked", 0, -1, 1, -1),), (0,))
        _, value = encode_result(RequestKey(ANYBODY, b"k"), result)
        asked = KeyedRequest(b"k", TRY, *writer[2:], TIMEOUT_MS, value, [writer.batch(b"v")])
        assert (await writer.ask(asked)).found == "unknown"
        monkeypatch.setattr(keyed, "is_here", lambda *args: True)
        answer = await writer.ask(asked)
        assert (answer.found, answer.error_code) == ("failed", ErrorCode.NOT_ENOUGH_REPLICAS)


async def test_a_try_that_comes_after_its_transaction_was_aborted_does_not_keep_its_key(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        late = await writer_of(client)
        next_of_id = await writer_of(client)
        assert next_of_id[2:] != late[2:]
        assert (await late.ask(late.asked(b"k"))).found == "unknown"
        look = RequestsRequest("look", b"k", OTHER_TRY, [("t", 0)], 300)
        assert unpack(RequestsResponse, await client.ask(ApiKey.FIRN_REQUESTS, 0, pack(look))).found == "unknown"


async def test_nothing_is_committed_by_a_broker_that_did_not_lead_all_the_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = keyed.append_records

    def of_an_older_leadership(*args: Any) -> Any:
        placed, waiting, parts = append(*args)
        return [one._replace(leadership=one.leadership - 1) for one in placed], waiting, parts

    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        monkeypatch.setattr(keyed, "append_records", of_an_older_leadership)
        answer = await writer.ask(writer.asked(b"k"))
        assert (answer.found, answer.error_code) == ("failed", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await committed(broker) == []


async def test_of_two_tries_that_both_find_the_key_new_the_second_is_refused_at_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of(tmp_path) as broker, talk(broker.port) as client:
        one, other = await writer_of(client, name="one"), await writer_of(client, name="other")
        monkeypatch.setattr(RequestCoordinator, "is_new", lambda *args: True)
        assert (await one.ask(one.asked(b"k"))).found == "committed"
        taken = await other.ask(other.asked(b"k", OTHER_TRY))
        assert (taken.found, taken.producer_id) == ("taken", -1)
        assert len(await committed(broker)) == 1


def _fields(asked: KeyedRequest) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in asked.__struct_fields__}


async def test_a_message_that_no_client_of_firn_sends_closes_its_connection(tmp_path: Path) -> None:
    async with broker_of(tmp_path) as broker:
        async with talk(broker.port) as client:
            writer = await writer_of(client)
            good = _fields(writer.asked(b"k"))
            twice = _fields(writer.asked(b"k", TRY, 0, 0))
        strange: list[dict[str, Any]] = [
            good | {"key": b""},
            good | {"try_id": OTHER_TRY},
            good | {"batches": []},
            good | {"batches": [writer.batch(b"v", b"w")]},
            good | {"batches": [writer.batch(b"v", transactional=False)]},
            good | {"batches": [writer._replace(epoch=5).batch(b"v")]},
            good | {"batches": [b"short"]},
            good | {"batches": [writer.batch(b"x" * KEYED_BYTES_MAX)]},
            twice,
        ]
        async with talk(broker.port) as client:
            unsound = KeyedRequest(**(good | {"result": b"no result"}))
            assert (await writer._replace(client=client).ask(unsound)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for fields in strange:
            async with talk(broker.port) as client:
                client.send(ApiKey.FIRN_KEYED, 0, pack(KeyedRequest(**fields)))
                assert await client.closed(), fields
        assert broker.log("t", 0).log_end_offset == 0


async def test_a_cluster_of_an_older_level_is_told_with_its_mend(tmp_path: Path) -> None:
    async with broker_of(tmp_path, new_level=REQUESTS_LEVEL) as broker, talk(broker.port) as client:
        writer = await writer_of(client)
        answer = await writer.ask(writer.asked(b"k"))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert f"firn.version={APPEND_LEVEL}" in answer.error
        assert broker.log("t", 0).log_end_offset == 0
        assert broker.node.cluster.image.topic(TOPIC) is not None
