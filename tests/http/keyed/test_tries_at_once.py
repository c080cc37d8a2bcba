"""Keyed requests whose steps one broker takes by itself (ADR 0043, EO19): through the HTTP application to a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.exactly_once import transactional_ids
from app.handlers.produce import keyed
from app.http.keyed import producing
from app.metadata.image.records import APPEND_LEVEL
from app.transactions.coordinator import TransactionCoordinator
from app.wire.apikeys import ApiKey
from tests.support.broker import RunningBroker
from tests.support.keyed_processes import Process, broker_on, committed, process_of, settled

LOST = BrokerUnavailable("lost")


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with broker_on(tmp_path, new_level=APPEND_LEVEL) as running:
        await running.create_topic("t", 2)
        yield running


@pytest.fixture(name="process")
async def _process(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """A process that has an identity to spare."""
    monkeypatch.setattr(transactional_ids, "REST_MS", 0)
    async with process_of(broker) as process:
        assert (await process.post("first")).status_code == 200
        await settled(broker)
        yield process


class Asked:
    """Notes the requests to brokers from now on, and may lose the first FirnKeyed or its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lost: str = "") -> None:
        self.keys: list[ApiKey] = []
        self.late: list[Any] = []
        """What was lost on its way."""
        request = KafkaConnection.request

        async def noted(connection: KafkaConnection, key: ApiKey, *args: Any, **named: Any) -> Any:
            self.keys.append(key)
            if key is not ApiKey.FIRN_KEYED or self.late or not lost:
                return await request(connection, key, *args, **named)
            self.late.append(lambda: request(connection, key, *args, **named))
            if lost == "answer":
                await self.late[0]()
            raise LOST

        monkeypatch.setattr(KafkaConnection, "request", noted)


async def test_one_request_to_the_broker_stores_a_keyed_request(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    first, batch = await process.post("k"), await process.batch("b")
    assert (first.status_code, batch.status_code) == (200, 207)
    assert asked.keys == [ApiKey.FIRN_KEYED] * 2
    assert (await process.post("k")).content == first.content
    assert (await process.batch("b")).content == batch.content
    assert (await process.post("k", {"value": {"data": 2}})).status_code == 422
    assert asked.keys == [ApiKey.FIRN_KEYED] * 5
    await settled(broker)
    stored = {one[:2]: one[2] for one in await committed(broker)}
    assert len(stored) == 6
    assert stored[first.json()["partition_id"], first.json()["offset"]] == b'{"flight": 1545}'
    places = {one["id"]: (one["partition_id"], one["offset"]) for one in batch.json()["successes"]}
    assert [stored[places[id]] for id in "abcd"] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_without_an_answer_the_records_are_stored_once(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    asked = Asked(monkeypatch, lost=lost)
    first = await process.post("k")
    assert first.status_code == 200
    assert asked.keys[0] is ApiKey.FIRN_KEYED
    assert ApiKey.END_TXN in asked.keys, "the transaction is aborted before another try"
    assert (await process.post("k")).content == first.content
    await settled(broker)
    assert len(await committed(broker)) == 2


async def test_a_try_that_comes_late_commits_nothing(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch, lost="request")
    first = await process.post("k")
    await asked.late[0]()
    await settled(broker)
    assert (await process.post("k")).content == first.content
    assert len(await committed(broker)) == 2


async def test_it_is_not_known_what_became_of_a_try_that_is_neither_answered_nor_aborted(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*args: Any, **named: Any) -> Any:
        raise LOST

    with monkeypatch.context() as away:
        asked = Asked(away, lost="request")
        away.setattr(producing, "end_transaction", fails)
        answer = await process.post("k")
    assert answer.status_code == 503
    assert "not known yet whether the records are stored" in answer.json()["message"]
    await asked.late[0]()
    await settled(broker)
    again = await process.post("k")
    assert again.status_code == 200
    assert len(await committed(broker)) == 2, "the late try is the one that counts"


async def test_a_record_that_a_broker_refuses_frees_the_key(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.node.membership.controller.create_topic("small", 1, {"max.message.bytes": "200"}, 1)
    asked = Asked(monkeypatch)
    refused = await process.post("k", {"value": {"type": "STRING", "data": "x" * 300}}, route="small/records")
    assert refused.status_code == 413
    assert ApiKey.FIRN_KEYED in asked.keys
    assert ApiKey.PRODUCE not in asked.keys
    assert (await process.post("k", route="small/records")).status_code == 200
    await settled(broker)
    assert len(await committed(broker, "small")) == 1


@pytest.mark.parametrize("step", ["append_records", "_stored"])
async def test_a_step_that_the_broker_cannot_take_now_is_taken_in_another_try(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    asked = Asked(monkeypatch)

    def cannot(*args: Any) -> Any:
        monkeypatch.undo()
        refused = RequestRejected(ErrorCode.REQUEST_TIMED_OUT, "Not yet.")
        raise keyed.StepRefused("failed", refused) if step == "append_records" else refused

    monkeypatch.setattr(keyed, step, cannot)
    answer = await process.post("k")
    assert (answer.status_code, asked.keys[0]) == (200, ApiKey.FIRN_KEYED)
    await settled(broker)
    assert len(await committed(broker)) == 2, "the try that was given up is aborted"
    assert (await process.post("k")).content == answer.content


async def test_a_step_that_the_broker_cannot_take_now_is_not_taken_again_before_its_try_is_aborted(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*args: Any) -> Any:
        raise keyed.StepRefused("failed", RequestRejected(ErrorCode.REQUEST_TIMED_OUT, "Not yet."))

    async def fails(*args: Any, **named: Any) -> Any:
        raise LOST

    with monkeypatch.context() as away:
        away.setattr(keyed, "append_records", cannot)
        away.setattr(producing, "end_transaction", fails)
        asked = Asked(away)
        assert (await process.post("k")).status_code == 503
        assert ApiKey.PRODUCE not in asked.keys
    assert len(await committed(broker)) == 1


async def test_a_broker_that_cannot_be_dialled_was_asked_nothing(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, connect = Asked(monkeypatch), ClusterClient.broker

    async def refuses(*args: Any) -> Any:
        monkeypatch.setattr(ClusterClient, "broker", connect)
        raise LOST

    monkeypatch.setattr(ClusterClient, "broker", refuses)
    assert (await process.post("k")).status_code == 200
    assert asked.keys == [ApiKey.FIRN_REQUESTS, ApiKey.PRODUCE, ApiKey.FIRN_REQUESTS, ApiKey.END_TXN]


async def test_a_broker_that_lacks_a_part_of_it_leaves_the_steps_to_the_process(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    monkeypatch.setattr(keyed, "is_here", lambda *args: False)
    assert (await process.post("k")).status_code == 200
    assert asked.keys == [ApiKey.FIRN_KEYED, ApiKey.PRODUCE, ApiKey.FIRN_REQUESTS, ApiKey.END_TXN]
    await settled(broker)
    assert len(await committed(broker)) == 2


async def test_a_commit_that_the_broker_cannot_confirm_is_asked_for_again(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, ends = TransactionCoordinator.end, 0

    async def once_unknown(self: TransactionCoordinator, *args: Any, **named: Any) -> Any:
        nonlocal ends
        ends += 1
        after = await end(self, *args, **named)
        if ends == 1:
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, "It may be stored later.")
        return after

    asked = Asked(monkeypatch)
    monkeypatch.setattr(TransactionCoordinator, "end", once_unknown)
    assert (await process.post("k")).status_code == 200
    assert asked.keys[:2] == [ApiKey.FIRN_KEYED, ApiKey.END_TXN]
    assert {*asked.keys[2:]} <= {ApiKey.END_TXN}, "the markers may be on their way"
    await settled(broker)
    assert len(await committed(broker)) == 2


async def test_of_processes_that_ask_at_once_one_stores_and_all_tell_of_it(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process_of(broker) as other:
        assert (await other.post("second")).status_code == 200
        await settled(broker)
        for number in range(10):
            asked = Asked(monkeypatch)
            answers = await asyncio.gather(process.post(f"k{number}"), other.post(f"k{number}"))
            assert ApiKey.FIRN_KEYED in asked.keys
            told = {answer.content for answer in answers if answer.status_code == 200}
            assert len(told) == 1, [answer.content for answer in answers]
            assert {answer.status_code for answer in answers} <= {200, 409}
            await settled(broker)
    assert len(await committed(broker)) == 12


async def test_requests_at_once_each_get_an_identity_and_go_to_one_broker(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    answers = await asyncio.gather(*(process.post(f"k{number}") for number in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    counted = Counter(asked.keys)
    assert (counted[ApiKey.FIRN_KEYED], counted[ApiKey.INIT_PRODUCER_ID]) == (8, 7), "one was there"
    assert counted.keys() == {ApiKey.FIRN_KEYED, ApiKey.INIT_PRODUCER_ID, ApiKey.FIND_COORDINATOR}
    await settled(broker)
    assert len(await committed(broker)) == 9


async def test_without_an_identity_a_known_key_is_told_all_the_same(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = 0

    async def fails(*args: Any, **named: Any) -> Any:
        nonlocal asks
        asks += 1
        raise LOST

    first = await process.post("k")
    monkeypatch.setattr(producing, "begin_transaction", fails)
    monkeypatch.setattr(producing, "IDENTITY_KEPT_S", 0.0)
    await process.post("l")
    assert (await process.post("k")).content == first.content
    assert asks == 1


async def test_a_large_request_goes_step_by_step(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    body = {"value": {"type": "STRING", "data": "x" * producing.AT_ONCE_BYTES_MAX}}
    assert (await process.post("k", body)).status_code == 200
    assert ApiKey.FIRN_KEYED not in asked.keys
    almost = {"value": {"type": "STRING", "data": "x" * (producing.AT_ONCE_BYTES_MAX - 400)}}
    await settled(broker)
    del asked.keys[:]
    assert (await process.post("l", almost)).status_code == 200
    assert asked.keys == [ApiKey.FIRN_KEYED]


async def test_a_transaction_that_another_has_not_left_waits(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests one after the other with the only identity: each waits until the markers of the one before are written."""
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 1)
    for number in range(5):
        assert (await process.post(f"k{number}")).status_code == 200
    await settled(broker)
    assert len(await committed(broker)) == 6


async def test_an_id_that_got_no_identity_is_not_set_aside(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a coordinator that is away for a moment takes all ids for a minute. One whose transaction may be open is set aside."""
    monkeypatch.setattr(transactional_ids, "IDS_MAX", 1)
    monkeypatch.setattr(producing, "ID_WITHIN_S", 0.0)
    begin, errors = producing.begin_transaction, [LOST, RequestRejected(ErrorCode.CONCURRENT_TRANSACTIONS, "It ends.")]

    async def fails(*args: Any, **named: Any) -> Any:
        if named.get("once"):
            raise errors[0]
        return await begin(*args, **named)

    monkeypatch.setattr(producing, "begin_transaction", fails)
    for status in (200, 503):
        process.gateway.keyed._kept.clear()
        assert (await process.post(f"k{status}")).status_code == status
        del errors[0]
