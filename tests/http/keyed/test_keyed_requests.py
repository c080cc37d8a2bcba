"""Requests with an `Idempotency-Key` through the HTTP application to a real broker: once for readers, and always the same answer
(ADR 0043)."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.exactly_once import transactional_ids
from app.exactly_once.records import TOPIC, RequestKey
from app.hot.log import PartitionLog
from app.http.errors import RestError
from app.http.keyed import producing
from app.http.keyed.results import ResultClient
from app.machine.runtime import SystemClock
from app.metadata.image.records import APPEND_LEVEL, REQUESTS_LEVEL
from app.security.acls import Operation, Permission, ResourceType
from app.transactions.markers import MarkerWriter
from app.wire.apikeys import ApiKey
from app.wire.private import RequestsRequest, RequestsResponse
from tests.http.secured import basic, secured
from tests.support.broker import RunningBroker
from tests.support.keyed_processes import BATCH, RECORD, Process, broker_on, committed, process_of, settled
from tests.support.waiting import until


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with broker_on(tmp_path) as running:
        await running.create_topic("t", 2)
        yield running


@pytest.fixture(name="process")
async def _process(broker: RunningBroker) -> AsyncIterator[Process]:
    async with process_of(broker) as process:
        yield process


def results_of(broker: RunningBroker) -> list[PartitionLog]:
    return [one.log for one in broker.node.partitions.table.all_led() if one.topic == TOPIC]


# --- one record -------------------------------------------------------------------------------------------------------


async def test_a_repeat_gets_the_same_bytes_and_there_is_one_record(broker: RunningBroker, process: Process) -> None:
    first = await process.post("order-1001")
    assert first.status_code == 200
    assert first.json()["value"] == {"type": "JSON", "size": 16}
    for key in ("order-1001", '"order-1001"'):
        again = await process.post(key)
        assert (again.status_code, again.content) == (200, first.content), key
    packed = await process.post("order-1001", gzip.compress(json.dumps(RECORD).encode()), content_encoding="gzip")
    assert packed.content == first.content
    await settled(broker)
    assert len(await committed(broker)) == 1
    assert [(first.json()["partition_id"], first.json()["offset"])] == [one[:2] for one in await committed(broker)]


async def test_keys_and_values_name_their_schemas_by_id_alone(broker: RunningBroker, process: Process) -> None:
    answer = await process.http.post("/subjects/any/versions", json={"schema": '"int"'})
    schema_id = answer.json()["id"]
    part = {"schema_id": schema_id, "data": 5}
    entry = {"partition_id": 0, "key": part, "value": part}
    for key, route, body in (
        ("one", "t/records", entry),
        ("all", "t/records:batch", {"entries": [{"id": "a", **entry}]}),
    ):
        first = await process.post(key, body, route=route)
        assert first.status_code in (200, 207), first.text
        assert (await process.post(key, body, route=route)).content == first.content
    await settled(broker)
    coded = b"\0" + schema_id.to_bytes(4) + b"\n"
    assert [value for _, _, value in await committed(broker)] == [coded, coded]
    for query in ("", "?permanent=true"):
        assert (await process.http.delete(f"/subjects/any{query}")).status_code == 200
    gone = await process.post("one", entry)
    assert gone.status_code == 408, "a cluster of this level stores no names of schemas"


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_repeat_whose_schema_was_deleted_gets_its_stored_answer(tmp_path: Path, is_batch: bool) -> None:
    async with broker_on(tmp_path, new_level=APPEND_LEVEL) as broker, process_of(broker) as process:
        await broker.create_topic("t", 1)
        registered = await process.http.post("/subjects/t-value/versions", json={"schema": '"int"'})
        part = {"schema_id": registered.json()["id"], "data": 5}
        entry = {"key": {"type": "STRING", "data": "x"}, "value": part}
        if is_batch:
            route, body = "t/records:batch", {"entries": [{"id": "a", **entry}, {"id": "b"}, {"id": "c", "key": part}]}
        else:
            route, body = "t/records", entry
        first = await process.post("k", body, route=route)
        assert first.status_code in (200, 207), first.text
        assert b'"subject":"t-value"' in first.content
        for query in ("", "?permanent=true"):
            assert (await process.http.delete(f"/subjects/t-value{query}")).status_code == 200
            again = await process.post("k", body, route=route)
            assert (again.status_code, again.content) == (first.status_code, first.content)
        assert (await process.post("l", body, route=route)).status_code == 408
        await settled(broker)
        assert len(await committed(broker)) == (3 if is_batch else 1)


async def test_a_request_without_a_key_is_stored_each_time(broker: RunningBroker, process: Process) -> None:
    assert [(await process.post(None)).status_code for _ in range(2)] == [200, 200]
    assert len(await committed(broker)) == 2


@pytest.mark.parametrize("other", ["body", "media type", "path"])
async def test_another_request_with_the_key_is_refused(broker: RunningBroker, process: Process, other: str) -> None:
    await broker.create_topic("u", 2)
    first = await process.post("k")
    match other:
        case "body":
            refused = await process.post("k", {"value": {"type": "JSON", "data": {"flight": 1546}}})
        case "media type":
            refused = await process.post("k", content_type="application/octet-stream")
        case _:
            refused = await process.post("k", route="u/records")
    assert refused.status_code == 422
    assert "Another request had this Idempotency-Key" in refused.json()["message"]
    assert (await process.post("k")).content == first.content
    await settled(broker)
    assert len(await committed(broker)) == 1
    assert await committed(broker, "u") == []


async def test_the_path_below_kafka_is_the_same_path(broker: RunningBroker, process: Process) -> None:
    first = await process.post("k")
    again = await process.http.post(
        f"/kafka{process.base}/t/records", content=json.dumps(RECORD).encode(), headers=first.request.headers
    )
    assert (again.status_code, again.content) == (200, first.content)


async def test_a_key_that_is_being_served_is_409_until_it_has_a_result(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, may_end = asyncio.Event(), asyncio.Event()
    end = producing.end_transaction

    async def slowly(*args: Any, **named: Any) -> Any:
        ends.set()
        await may_end.wait()
        return await end(*args, **named)

    monkeypatch.setattr(producing, "end_transaction", slowly)
    first = asyncio.create_task(process.post("k"))
    await ends.wait()
    async with process_of(broker) as other:
        refused = await other.post("k")
        assert (refused.status_code, refused.headers["retry-after"]) == (409, "1")
        may_end.set()
        answered = await first
        assert answered.status_code == 200
        await settled(broker)
        assert (await other.post("k")).content == answered.content
    assert len(await committed(broker)) == 1


async def test_of_two_processes_that_ask_at_once_one_stores_and_both_tell_of_it(broker: RunningBroker) -> None:
    async with process_of(broker) as one, process_of(broker) as other:
        for number in range(10):
            answers = await asyncio.gather(one.post(f"k{number}"), other.post(f"k{number}"), one.post(f"k{number}"))
            told = {answer.content for answer in answers if answer.status_code == 200}
            assert len(told) == 1, [answer.content for answer in answers]
            assert {answer.status_code for answer in answers} <= {200, 409}
    await settled(broker)
    assert len(await committed(broker)) == 10


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([("idempotency-key", "a"), ("idempotency-key", "b")], "Send one"),
        ([("idempotency-key", "")], "has 0 bytes"),
        ([("idempotency-key", "x" * 256)], "has 256 bytes"),
        ([("idempotency-key", '"open')], "quotation mark at its end"),
    ],
)
@pytest.mark.parametrize("route", ["records", "records:batch"])
async def test_a_key_of_another_form_is_refused(
    broker: RunningBroker, process: Process, headers: list[tuple[str, str]], words: str, route: str
) -> None:
    content = json.dumps(RECORD if route == "records" else BATCH)
    answer = await process.http.post(f"{process.base}/t/{route}", content=content, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["message"]
    assert await committed(broker) == []


async def test_a_stream_takes_no_key(broker: RunningBroker, process: Process) -> None:
    answer = await process.post("k", json.dumps(RECORD).encode() * 2)
    assert answer.status_code == 400
    assert "has one record" in answer.json()["message"]
    assert await committed(broker) == []
    assert (await process.post("k")).status_code == 200, "the key is free"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"colour":1}', b'{"partition_id":7}'])
async def test_a_request_that_cannot_be_served_stores_nothing_and_leaves_the_key_free(
    broker: RunningBroker, process: Process, content: bytes
) -> None:
    assert 400 <= (await process.post("k", content)).status_code < 500
    assert (await process.post("k")).status_code == 200
    await settled(broker)
    assert len(await committed(broker)) == 1


async def test_a_record_that_a_broker_refuses_frees_the_key(broker: RunningBroker, process: Process) -> None:
    await broker.node.membership.controller.create_topic("small", 1, {"max.message.bytes": "200"}, 1)
    refused = await process.post("k", {"value": {"type": "STRING", "data": "x" * 300}}, route="small/records")
    assert refused.status_code == 413
    assert (await process.post("k", route="small/records")).status_code == 200
    await settled(broker)
    assert len(await committed(broker, "small")) == 1


async def test_an_older_level_is_told_with_its_mend(tmp_path: Path) -> None:
    async with broker_on(tmp_path, new_level=REQUESTS_LEVEL - 1) as broker, process_of(broker) as process:
        await broker.create_topic("t", 2)
        for answer in (await process.post("k"), await process.batch("k")):
            assert answer.status_code == 400
            assert f"firn cluster features --upgrade firn.version={REQUESTS_LEVEL}" in answer.json()["message"]
        assert await committed(broker) == []


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_in_several_partitions_is_stored_once_as_a_whole(broker: RunningBroker, process: Process) -> None:
    first = await process.batch("k")
    assert first.status_code == 207
    assert first.json()["failures"] == []
    places = {one["id"]: (one["partition_id"], one["offset"]) for one in first.json()["successes"]}
    assert (await process.batch("k")).content == first.content
    await settled(broker)
    stored = await committed(broker)
    assert sorted(places.values()) == sorted(one[:2] for one in stored)
    values = {one[:2]: one[2] for one in stored}
    assert [values[places[id]] for id in "abcd"] == [b"1", b"2", b"3", b"4"]
    assert first.json()["successes"][2]["timestamp"] == "1970-01-01T00:00:01.000Z"


async def test_of_a_batch_with_a_bad_entry_nothing_is_stored(broker: RunningBroker, process: Process) -> None:
    bad = {"entries": [*BATCH["entries"], {"id": "e", "value": {"type": "BINARY", "data": "%"}}]}
    answer = await process.batch("k", bad)
    assert answer.status_code == 400
    assert "'e'" in answer.json()["message"]
    assert (await process.batch("k")).status_code == 207, "the key is free"
    await settled(broker)
    assert len(await committed(broker)) == 4


# --- lost answers, and restarts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [BrokerUnavailable("lost"), RequestRejected(ErrorCode.PRODUCER_FENCED)])
async def test_a_commit_whose_answer_is_no_success_is_looked_up(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    end = producing.end_transaction

    async def loses(*args: Any, **named: Any) -> Any:
        await end(*args, **named)
        raise error

    monkeypatch.setattr(producing, "end_transaction", loses)
    first = await process.post("k")
    assert first.status_code == 200
    monkeypatch.undo()
    assert (await process.post("k")).content == first.content
    assert len(await committed(broker)) == 1


async def test_a_commit_that_did_not_come_through_is_told_as_nothing_stored(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = producing.end_transaction

    async def aborts(cluster: Any, transaction: Any, *, commit: bool) -> Any:
        await end(cluster, transaction, commit=False)
        raise BrokerUnavailable("lost")

    monkeypatch.setattr(producing, "end_transaction", aborts)
    refused = await process.post("k")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    monkeypatch.undo()
    assert (await process.post("k")).status_code == 200
    await settled(broker)
    assert len(await committed(broker)) == 1


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
@pytest.mark.parametrize("step", ["write_batches", "begin_transaction"])
async def test_a_failure_that_may_be_over_at_the_next_try_is_503(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, version: int, step: str
) -> None:
    async def refuses(*args: Any, **named: Any) -> Any:
        raise RequestRejected(code)

    monkeypatch.setattr(producing, step, refuses)
    refused = await (process.post("k") if version == 3 else v2(process, "k"))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error_code"] == 50302
    if code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
        assert refused.json()["message"].startswith("Nothing was stored: ")
        assert refused.json()["message"].endswith(". Try again with the same Idempotency-Key.")
    monkeypatch.undo()
    assert (await (process.post("k") if version == 3 else v2(process, "k"))).status_code == 200


@pytest.fixture(name="held_markers")
def _held_markers(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No marker is written until it is set."""
    write, free = MarkerWriter.write, asyncio.Event()

    async def when_free(wait: Callable[[], Any]) -> None:
        await free.wait()
        if (written := wait()) is not None:
            await written

    def holds(self: MarkerWriter, *asked: Any) -> Any:
        return when_free(lambda: write(self, *asked))

    monkeypatch.setattr(MarkerWriter, "write", holds)
    return free


async def test_an_id_whose_last_transaction_does_not_end_is_set_aside(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch, held_markers: asyncio.Event
) -> None:
    used: list[str] = []
    write = producing.write_batches

    async def notes(cluster: Any, transaction: Any, batches: Any, **named: Any) -> Any:
        used.append(transaction.transactional_id.rpartition(".")[2])
        return await write(cluster, transaction, batches, **named)

    monkeypatch.setattr(producing, "write_batches", notes)
    monkeypatch.setattr(transactional_ids, "REST_MS", 0)
    answers = [await process.post(key) for key in "ab"]
    assert [one.status_code for one in answers] == [200, 200]
    assert used == ["1", "1", "2"], "the first id is busy for the second request, which gets on with another"
    held_markers.set()
    await settled(broker)
    assert [(await process.post(key)).content for key in "ab"] == [one.content for one in answers]
    assert len(await committed(broker)) == 2


async def test_an_id_with_an_open_result_of_before_is_left_for_another_one(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of the first request's result is lost. The second one has its result in the same partition."""
    write, lost = MarkerWriter.write, list[Any]()

    def loses(writer: MarkerWriter, marker: Any, partition: Any, *rest: Any) -> Any:
        if partition.topic == TOPIC and not lost:
            lost.append(marker)
            return None
        return write(writer, marker, partition, *rest)

    monkeypatch.setattr(MarkerWriter, "write", loses)
    monkeypatch.setattr(transactional_ids, "REST_MS", 0)
    names = [f"k{number}" for number in range(50)]
    first, second = [one for one in names if RequestKey("User:ANONYMOUS", one.encode()).partition == 3][:2]
    assert (await process.post(first)).status_code == 200
    await until(lambda: lost)
    assert (await process.post(second)).status_code == 200
    assert (await process.post(first)).status_code == 409
    await until(lambda: not any(broker.log("t", index).producers.open_transactions for index in (0, 1)))
    assert len(await committed(broker)) == 2


async def test_a_request_waits_for_an_id_while_all_are_in_use(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 1)
    write, look = producing.write_batches, ResultClient.look
    gate, looked = asyncio.Event(), 0

    async def held(*args: Any, **named: Any) -> Any:
        await gate.wait()
        return await write(*args, **named)

    async def counts(self: ResultClient, *asked: Any) -> Any:
        nonlocal looked
        found = await look(self, *asked)
        looked += 1
        return found

    monkeypatch.setattr(producing, "write_batches", held)
    monkeypatch.setattr(ResultClient, "look", counts)
    asked = [asyncio.create_task(process.post(key)) for key in "abc"]
    await until(lambda: looked == 3)
    gate.set()
    assert [(await one).status_code for one in asked] == [200, 200, 200]
    await settled(broker)
    assert len(await committed(broker)) == 3


async def test_a_request_that_gets_no_id_in_time_is_told_to_try_again(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 1)
    monkeypatch.setattr(producing, "ID_WITHIN_S", 0.0)
    write, gate = producing.write_batches, asyncio.Event()

    async def held(*args: Any, **named: Any) -> Any:
        await gate.wait()
        return await write(*args, **named)

    monkeypatch.setattr(producing, "write_batches", held)
    asked = [asyncio.create_task(process.post(key)) for key in "ab"]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = [one.result() for one in done]
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "are being served for the caller" in refused.json()["message"]
    gate.set()
    assert sorted([(await one).status_code for one in asked]) == [200, 503]
    assert [(await process.post(key)).status_code for key in "ab"] == [200, 200]
    await settled(broker)
    assert len(await committed(broker)) == 2


def _with_one_id(monkeypatch: pytest.MonkeyPatch) -> producing.KeyedProducer:
    """A producer that may have one id."""
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 1)
    cluster = ClusterClient([("127.0.0.1", 1)], rng=random.Random(1))
    return producing.KeyedProducer(cluster, SystemClock())


async def test_a_request_that_got_no_id_holds_up_no_request_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "ID_WITHIN_S", 0.0)
    producer = _with_one_id(monkeypatch)
    taken = await producer.take("p.")
    producer.give_back(taken, None, 1)
    with pytest.raises(RestError, match="are being served for the caller"):
        await producer.take("p.")
    loop = asyncio.get_running_loop()
    later_s = loop.time() + transactional_ids.SET_ASIDE_MS / 1000 + 1
    monkeypatch.setattr(loop, "time", lambda: later_s)
    assert await producer.take("p.") == taken


async def test_a_request_that_waits_gets_an_id_that_was_set_aside_when_it_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactional_ids, "SET_ASIDE_MS", 50)
    producer = _with_one_id(monkeypatch)
    taken = await producer.take("p.")
    producer.give_back(taken, None, 1)
    waits = asyncio.create_task(producer.take("p."))
    assert await waits == taken


async def test_the_coordinator_of_an_id_is_looked_for_once(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 1)
    request, found = KafkaConnection.request, 0

    async def counts(self: KafkaConnection, api: ApiKey, *asked: Any, **named: Any) -> Any:
        nonlocal found
        found += api is ApiKey.FIND_COORDINATOR
        return await request(self, api, *asked, **named)

    monkeypatch.setattr(KafkaConnection, "request", counts)
    assert [(await process.post(key)).status_code for key in "abc"] == [200, 200, 200]
    assert found == 1


async def test_a_refusal_for_good_has_the_status_that_it_has_without_a_key(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code, status in ((ErrorCode.TOPIC_AUTHORIZATION_FAILED, 403), (ErrorCode.UNKNOWN_SERVER_ERROR, 500)):

        async def refuses(*args: Any, code: ErrorCode = code, **named: Any) -> Any:
            raise RequestRejected(code)

        monkeypatch.setattr(producing, "write_batches", refuses)
        assert (await process.post("k")).status_code == status


async def test_a_result_whose_answer_was_lost_is_accepted_again_and_written_once(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ResultClient.ask_once
    lost: list[str] = []

    async def loses(self: ResultClient, asked: RequestsRequest) -> RequestsResponse:
        answer = await ask(self, asked)
        if asked.step == "append" and not lost:
            lost.append(asked.step)
            raise BrokerUnavailable("lost")
        return answer

    monkeypatch.setattr(ResultClient, "ask_once", loses)
    assert (await process.post("k")).status_code == 200
    assert lost == ["append"]
    await settled(broker)
    assert sum(log.log_end_offset for log in results_of(broker)) == 2, "one result and one marker"
    assert len(await committed(broker)) == 1


async def test_a_client_that_leaves_does_not_stop_its_request(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, may_write = asyncio.Event(), asyncio.Event()
    write = producing.write_batches

    async def slowly(*args: Any, **named: Any) -> Any:
        writes.set()
        await may_write.wait()
        return await write(*args, **named)

    monkeypatch.setattr(producing, "write_batches", slowly)
    leaving = asyncio.create_task(process.post("k"))
    await writes.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    may_write.set()
    await until(lambda: not process.gateway.keyed._running)
    await settled(broker)
    assert len(await committed(broker)) == 1
    assert (await process.post("k")).status_code == 200
    assert len(await committed(broker)) == 1


async def test_results_outlive_the_broker_and_the_http_process(tmp_path: Path) -> None:
    async with broker_on(tmp_path) as broker, process_of(broker) as process:
        await broker.create_topic("t", 2)
        first, batch = await process.post("k"), await process.batch("b")
        await settled(broker)
    async with broker_on(tmp_path) as broker, process_of(broker) as process:
        assert (await process.post("k")).content == first.content
        assert (await process.batch("b")).content == batch.content
        assert (await process.post("k", {"value": {"data": 2}})).status_code == 422
        assert len(await committed(broker)) == 5


async def test_a_transaction_left_open_is_aborted_by_time_and_its_key_is_free(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        raise BrokerUnavailable("lost before it was sent")

    monkeypatch.setattr(producing, "end_transaction", never)
    monkeypatch.setattr(producing, "SETTLE_S", 0.0)
    undecided = await process.post("k")
    assert (undecided.status_code, undecided.headers["retry-after"]) == (503, "1")
    assert "not known yet" in undecided.json()["message"]
    monkeypatch.undo()
    assert (await process.post("k")).status_code == 409
    coordinator = broker.node.transactions
    ((_, shard),) = [one for one in coordinator._coordinator.shards() if any(one[1].busy())]
    ((index, _),) = [one for one in coordinator._coordinator.shards() if one[1] is shard]
    (open_one,) = shard.busy()
    coordinator._coordinator.tell(index, lambda shard, turn: shard.due(turn, open_one.transactional_id))
    await settled(broker)
    assert (await process.post("k")).status_code == 200
    await settled(broker)
    assert len(await committed(broker)) == 1


# --- REST v2 ----------------------------------------------------------------------------------------------------------

V2 = {"records": [{"value": {"a": 1}}, {"key": "x", "value": 2}, {"partition": 1, "value": 3}]}


async def v2(process: Process, key: str, content: Any = V2, path: str = "/topics/t") -> httpx.Response:
    headers = {"content-type": "application/vnd.kafka.json.v2+json", "idempotency-key": key}
    return await process.http.post(path, content=json.dumps(content), headers=headers)


async def test_a_request_of_v2_is_stored_once_and_answered_alike(broker: RunningBroker, process: Process) -> None:
    first = await v2(process, "k")
    assert first.status_code == 200
    places = [(one["partition"], one["offset"]) for one in first.json()["offsets"]]
    again = await v2(process, '"k"')
    assert (again.status_code, again.content) == (200, first.content)
    refused = await v2(process, "k", {"records": [{"value": 4}]})
    assert (refused.status_code, refused.json()["error_code"]) == (422, 422)
    await settled(broker)
    stored = {one[:2]: one[2] for one in await committed(broker)}
    assert [stored.pop(place) for place in places] == [b'{"a": 1}', b"2", b"3"]
    assert stored == {}


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_repeat_of_v2_names_the_schemas_of_its_first_try(tmp_path: Path, by_id: bool) -> None:
    async with broker_on(tmp_path, new_level=APPEND_LEVEL) as broker, process_of(broker) as process:
        await broker.create_topic("t", 1)
        given: dict[str, Any] = {"value_schema": '"int"', "key_schema": '"string"'}
        if by_id:
            ids = [
                (await process.http.post(f"/subjects/{name}/versions", json={"schema": schema})).json()["id"]
                for name, schema in (("t-value", '"int"'), ("t-key", '"string"'))
            ]
            given = dict(zip(("value_schema_id", "key_schema_id"), ids, strict=True))
        headers = {"content-type": "application/vnd.kafka.avro.v2+json", "idempotency-key": "k"}
        body = json.dumps({**given, "records": [{"key": "a", "value": 1}, {"key": "b", "value": 2}]})

        async def ask() -> httpx.Response:
            return await process.http.post("/topics/t", content=body, headers=headers)

        first = await ask()
        assert first.status_code == 200, first.text
        assert None not in (first.json()["key_schema_id"], first.json()["value_schema_id"])
        for query in ("", "?permanent=true"):
            for name in ("t-value", "t-key"):
                assert (await process.http.delete(f"/subjects/{name}{query}")).status_code == 200
            again = await ask()
            assert (again.status_code, again.content) == (200, first.content)
        assert (await process.http.get("/subjects?deleted=true")).json() == [], "nothing is registered for a repeat"
        await settled(broker)
        assert len(await committed(broker)) == 2


async def test_of_a_request_of_v2_with_a_bad_record_nothing_is_stored(broker: RunningBroker, process: Process) -> None:
    bad = {"records": [*V2["records"], {"partition": 7, "value": 4}]}
    refused = await v2(process, "k", bad)
    assert (refused.status_code, refused.json()["error_code"]) == (404, 40402)
    placed = await v2(process, "k", {"records": [{"value": 4}]}, "/topics/t/partitions/1")
    assert placed.status_code == 200, "the key is free"
    await settled(broker)
    assert [one[::2] for one in await committed(broker)] == [(1, b"4")]


async def test_v2_refuses_a_key_of_another_form_and_an_older_level(tmp_path: Path) -> None:
    async with broker_on(tmp_path, new_level=REQUESTS_LEVEL - 1) as broker, process_of(broker) as process:
        await broker.create_topic("t", 2)
        assert (await v2(process, "x" * 256)).status_code == 400
        refused = await v2(process, "k")
        assert refused.status_code == 400
        assert "firn cluster features" in refused.json()["message"]
        assert await committed(broker) == []


# --- what may change between two tries ----------------------------------------------------------------------------------


async def test_an_answer_outlives_its_records_and_the_growth_of_its_topic(
    broker: RunningBroker, process: Process
) -> None:
    """The record's key belongs to another partition of the larger topic. A record of 1970 makes its answer no older."""
    keyed = {"key": {"type": "STRING", "data": "UA"}, "value": {"data": 1}}
    asked = {"entries": [{"id": "a", "timestamp": 1, **keyed}, {"id": "b", **keyed}]}
    first = await process.batch("k", asked)
    assert first.status_code == 207
    assert len(first.json()["successes"]) == 2
    await settled(broker)
    await process.gateway.admin.create_partitions("t", 9)
    for index in range(2):
        log = broker.log("t", index)
        await broker.node.remote_log_manager.advance_log_start(log.topic_id, log.partition, log.log_end_offset)
    process.gateway.cluster.forget("t")
    again = await process.batch("k", asked)
    assert (again.status_code, again.content) == (207, first.content)
    await settled(broker)
    assert await committed(broker) == [], "nothing was stored again"


WAYS: dict[str, Callable[[Process, str], Any]] = {
    "a record": lambda process, key: process.post(key, {"partition_id": 1, **RECORD}),
    "a batch": lambda process, key: process.batch(key),
    "v2": lambda process, key: v2(process, key),
    "v2 to a partition": lambda process, key: v2(process, key, {"records": [{"value": 4}]}, "/topics/t/partitions/1"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("partitions", [0, 1, 2])
async def test_an_answer_outlives_its_topic(broker: RunningBroker, process: Process, way: str, partitions: int) -> None:
    """``partitions``: of another topic of the name, which is made after the deletion."""
    ask = WAYS[way]
    first = await ask(process, "k")
    assert first.is_success
    await settled(broker)
    await process.gateway.admin.delete_topic("t")
    if partitions:
        await broker.create_topic("t", partitions)
    process.gateway.cluster.forget("t")
    again = await ask(process, "k")
    assert (again.status_code, again.content) == (first.status_code, first.content)
    new = await ask(process, "new")
    if partitions < 2:
        assert new.status_code == 404, new.text
    else:
        assert new.status_code == first.status_code
        await settled(broker)
    if partitions:
        expected = len(new.json().get("successes", new.json().get("offsets", [0]))) if partitions == 2 else 0
        assert len(await committed(broker)) == expected, "nothing was stored again"


async def test_a_missing_topic_with_the_key_of_another_request_is_422(broker: RunningBroker, process: Process) -> None:
    assert (await process.post("k")).status_code == 200
    assert (await v2(process, "l")).status_code == 200
    await process.gateway.admin.delete_topic("t")
    process.gateway.cluster.forget("t")
    other = {"value": {"data": 2}}
    for refused in (
        await process.post("k", other),
        await process.batch("k"),
        await v2(process, "l", {"records": [{"value": 4}]}),
    ):
        assert refused.status_code == 422
        assert "Another request had this Idempotency-Key" in refused.json()["message"]
    for key in ("m", None):
        new = await process.post(key, other)
        assert (new.status_code, new.json()["error_code"]) == (404, 40403)


async def test_a_keyed_request_of_v2_to_a_missing_topic_registers_no_schema(
    broker: RunningBroker, process: Process
) -> None:
    body = json.dumps({"value_schema": '"int"', "records": [{"value": 1}]})
    headers = {"content-type": "application/vnd.kafka.avro.v2+json", "idempotency-key": "k"}
    for path, code in (
        ("/topics/none", 40401),
        ("/topics/none/partitions/0", 40401),
        ("/topics/t/partitions/7", 40402),
    ):
        refused = await process.http.post(path, content=body, headers=headers)
        assert (refused.status_code, refused.json()["error_code"]) == (404, code)
    assert (await process.http.get("/subjects")).json() == []


async def test_an_answer_of_a_deleted_topic_is_for_its_caller_with_the_right_to_the_name(tmp_path: Path) -> None:
    async with secured(tmp_path, new_level=REQUESTS_LEVEL) as http:
        await http.add_user("alice", "carol", "dave")
        await http.broker.create_topic("t")
        topic = ResourceType.TOPIC, "t"
        await http.allow("carol", (Operation.WRITE, *topic))

        async def ask(user: str, path: str = f"{http.cluster}/topics/t/records", **headers: str) -> httpx.Response:
            for caller in [*http.callers._known.values()]:
                http.callers.end(caller)  # so nothing is remembered of topics
            headers |= {"idempotency-key": "k"} | basic(user, f"{user}-secret")
            return await http.client.post(path, json=RECORD, headers=headers)

        first = await ask("carol")
        assert first.status_code == 200, first.text
        assert (await http.ask("alice", f"{http.cluster}/topics/t", "DELETE")).status_code == 204
        again = await ask("carol")
        assert (again.status_code, again.content) == (200, first.content)
        assert (await ask("dave")).status_code == 403
        await http.allow("dave", (Operation.DESCRIBE, *topic))
        assert (await ask("dave")).status_code == 404, "it is another caller's key"
        await http.allow("carol", (Operation.DESCRIBE, *topic), permission=Permission.DENY)
        assert (await ask("carol")).status_code == 403
        of_v2 = {"content-type": "application/vnd.kafka.json.v2+json"}
        assert (await ask("carol", "/topics/t", **of_v2)).status_code == 403, "the key is not even looked up"


@pytest.mark.parametrize("why", ["open", "not known"])
async def test_a_repeat_that_cannot_be_served_is_told_of_a_try_that_may_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The schema of the first try is deleted before it commits."""
    may_end, end = asyncio.Event(), producing.end_transaction

    async def late(*args: Any, **named: Any) -> Any:
        await may_end.wait()
        return await end(*args, **named)

    async def unreachable(*args: Any) -> Any:
        raise BrokerUnavailable("It cannot be reached.")

    monkeypatch.setattr(producing, "end_transaction", late)
    async with broker_on(tmp_path, new_level=APPEND_LEVEL) as broker, process_of(broker) as process:
        await broker.create_topic("t", 1)
        registered = await process.http.post("/subjects/t-value/versions", json={"schema": '"int"'})
        body = {"value": {"schema_id": registered.json()["id"], "data": 5}}
        first = asyncio.create_task(process.post("k", body))
        await until(lambda: any(log.log_end_offset for log in results_of(broker)))
        for query in ("", "?permanent=true"):
            assert (await process.http.delete(f"/subjects/t-value{query}")).status_code == 200
        with monkeypatch.context() as patch:
            if why == "not known":
                patch.setattr(ResultClient, "settle", unreachable)
            again = await process.post("k", body)
        assert again.status_code == (409 if why == "open" else 503)
        may_end.set()
        assert (await first).status_code == 200
        assert (await process.post("k", body)).content == (await first).content


async def test_a_batch_of_many_records_has_a_long_answer_and_the_same_one_again(
    broker: RunningBroker, process: Process
) -> None:
    """Offsets of a long answer are not in the result. They follow from a few numbers."""
    body = {"records": [{"value": n, "partition": n % 2} for n in range(10_000)]}
    first = await v2(process, "k", body)
    assert first.status_code == 200
    assert len(first.content) > 500_000
    assert (await v2(process, "k", body)).content == first.content
    await settled(broker)
    assert len(await committed(broker)) == 10_000


async def test_no_transaction_is_open_and_no_key_is_taken_while_a_body_comes(
    broker: RunningBroker, process: Process
) -> None:
    more, body = asyncio.Event(), json.dumps(RECORD).encode()

    async def trickling() -> AsyncIterator[bytes]:
        yield body[:10]
        await more.wait()
        yield body[10:]

    headers = {"idempotency-key": "k", "content-type": "application/json"}
    slow = asyncio.create_task(process.http.post(f"{process.base}/t/records", content=trickling(), headers=headers))
    async with process_of(broker) as other:
        first = await other.post("k")
        assert first.status_code == 200, "the slow request has taken nothing"
    await settled(broker)
    more.set()
    assert (await slow).content == first.content
    assert len(await committed(broker)) == 1
