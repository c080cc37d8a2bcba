"""Requests with an `If-Match` through the HTTP application to a real broker: stored at the end that was read, or not at all
(ADR 0043, EO18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.http.keyed import producing
from app.http.keyed.results import ResultClient
from app.metadata.image.records import APPEND_LEVEL
from app.wire.private import RequestsRequest, RequestsResponse
from tests.support.broker import RunningBroker
from tests.support.keyed_processes import Process, broker_on, committed, process_of
from tests.support.waiting import WAIT_S, until


def record(value: object = 1, partition: int | None = 0) -> dict[str, Any]:
    named = {} if partition is None else {"partition_id": partition}
    return named | {"value": {"type": "JSON", "data": value}}


def batch(*values: object, partition: int | None = 0) -> dict[str, Any]:
    return {"entries": [{"id": str(place), **record(value, partition)} for place, value in enumerate(values)]}


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with broker_on(tmp_path, new_level=APPEND_LEVEL) as running:
        await running.create_topic("t", 2)
        yield running


@pytest.fixture(name="process")
async def _process(broker: RunningBroker) -> AsyncIterator[Process]:
    async with process_of(broker) as process:
        yield process


async def end_of(process: Process, partition: int = 0) -> str:
    answer = await process.http.get(f"{process.base}/t/partitions/{partition}")
    assert answer.status_code == 200
    return answer.headers["etag"]


async def page(process: Process, **query: object) -> httpx.Response:
    answer = await process.http.get(
        f"{process.base}/t/partitions/0/records", params={k: str(v) for k, v in query.items()}
    )
    assert answer.status_code == 200
    return answer


async def test_a_record_is_stored_at_the_end_that_was_read_or_not_at_all(
    broker: RunningBroker, process: Process
) -> None:
    start = await end_of(process)
    first = await process.post(None, record("a"), if_match=start)
    assert (first.status_code, first.json()["offset"]) == (200, 0)
    assert first.headers["etag"] == await end_of(process) != start
    late = await process.post(None, record("late"), if_match=start)
    assert (late.status_code, late.headers["etag"]) == (412, first.headers["etag"])
    assert "If-Match" in late.json()["message"]
    second = await process.batch(None, batch("b", "c"), if_match=late.headers["etag"])
    assert second.status_code == 207
    assert [one["offset"] for one in second.json()["successes"]] == [1, 2]
    assert (await process.batch(None, batch("late"), if_match=start)).status_code == 412
    assert (await process.post(None, record("d"), if_match=second.headers["etag"])).json()["offset"] == 3
    assert [value for _, _, value in await committed(broker)] == [b'"a"', b'"b"', b'"c"', b'"d"']


async def test_a_page_that_reaches_the_end_has_its_etag(process: Process) -> None:
    start = await end_of(process)
    assert "etag" not in (await page(process)).headers, "it read no batch"
    await process.batch(None, batch("a", "b", "c"), if_match=start)
    whole = await page(process)
    assert whole.headers["etag"] == await end_of(process)
    assert (await page(process, isolation="read_uncommitted")).headers["etag"] == whole.headers["etag"]
    assert "etag" not in (await page(process, count=2)).headers
    await process.post(None, record("d"))
    assert (await process.post(None, record("late"), if_match=whole.headers["etag"])).status_code == 412
    fresh = (await page(process, offset=3)).headers["etag"]
    assert (await process.post(None, record("e"), if_match=fresh)).json()["offset"] == 4
    # A keyed record has a marker behind it.
    assert (await process.post("k", record("f"))).status_code == 200
    answer = await process.post(None, record("g"), if_match=await settled_end(process))
    assert answer.status_code == 200


async def settled_end(process: Process) -> str:
    """The ETag of a page that has read the last record."""
    while True:
        answer = await page(process)
        if answer.json()["data"][-1]["value"]["data"] == "f":
            return answer.headers["etag"]


async def test_of_racing_requests_one_is_stored(broker: RunningBroker, process: Process) -> None:
    async with process_of(broker) as other:
        seen = await end_of(process)
        for number in range(10):
            requests = [one.post(None, record(number), if_match=seen) for one in (process, other) * 4]
            answers = await asyncio.gather(*requests)
            won = [one for one in answers if one.status_code == 200]
            assert sorted(one.status_code for one in answers) == [200] + [412] * 7
            assert won[0].json()["offset"] == number
            seen = won[0].headers["etag"]
    assert [offset for _, offset, _ in await committed(broker)] == list(range(10))


@pytest.mark.parametrize(
    "etag",
    [
        "*",
        "",
        "W/{}",
        "{}, {}",
        "x",
        '"x"',
        '"00.1.2"',
        "{}x",
        '"{:032}.-1.0"',
        f'"{"a" * 32}.{2**63}.0"',
        f'"{"a" * 32}.0.{2**31}"',
    ],
)
async def test_a_malformed_etag_is_refused_by_the_name_of_its_header(process: Process, etag: str) -> None:
    end = await end_of(process)
    value = etag.replace("{}", end) if "{}" in etag else etag.format(0)
    answer = await process.post(None, record(), if_match=value)
    assert (answer.status_code, "If-Match" in answer.json()["message"]) == (400, True), value


async def test_a_request_names_one_partition_and_is_no_stream(broker: RunningBroker, process: Process) -> None:
    end = await end_of(process)
    twice = await process.http.post(
        f"{process.base}/t/records", json=record(), headers=[("if-match", end), ("if-match", end)]
    )
    two = {"entries": batch(1)["entries"] + [{"id": "x", **record(2, 1)}]}
    for answer in (
        twice,
        await process.post(None, record(partition=None), if_match=end),
        await process.post("key", record(partition=None), if_match=end),
        await process.post(None, b'{"partition_id": 0} {"partition_id": 0}', if_match=end),
        await process.batch(None, two, if_match=end),
        await process.batch(None, batch(1, 2, partition=None), if_match=end),
    ):
        assert answer.status_code == 400
        assert "If-Match" in answer.json()["message"]
    bad = await process.batch(
        None, {"entries": [*batch(1)["entries"], {"id": "y", "partition_id": 0, "value": 5}]}, if_match=end
    )
    assert (bad.status_code, "with an If-Match the whole batch is" in bad.json()["message"]) == (400, True)
    assert await committed(broker) == []


async def test_a_partition_that_is_not_there_is_404_without_a_second_try(
    broker: RunningBroker, process: Process
) -> None:
    end = await end_of(process)
    process.gateway.cluster.retry_budget_ms = 10**9
    async with asyncio.timeout(WAIT_S):
        answer = await process.post(None, record(partition=2), if_match=end)
        assert (answer.status_code, answer.json()["error_code"]) == (404, 40403)
        async with process_of(broker) as other:
            await other.gateway.admin.create_partitions("t", 3)
            stored = await process.post(None, record(partition=2), if_match=await end_of(other, 2))
        assert (stored.status_code, stored.json()["offset"]) == (200, 0)


async def test_an_older_cluster_refuses_with_the_command_that_raises_its_level(tmp_path: Path) -> None:
    async with broker_on(tmp_path, new_level=APPEND_LEVEL - 1) as broker, process_of(broker) as process:
        await broker.create_topic("t", 1)
        shown = await process.http.get(f"{process.base}/t/partitions/0")
        assert (shown.status_code, "etag" in shown.headers) == (200, False)
        etag = f'"{broker.log("t", 0).topic_id.hex}.0.-1"'
        for key in (None, "k"):
            answer = await process.post(key, record(), if_match=etag)
            assert answer.status_code == 400
            assert f"firn cluster features --upgrade firn.version={APPEND_LEVEL}" in answer.json()["message"]


# --- with a key -------------------------------------------------------------------------------------------------------


async def test_a_repeat_of_a_keyed_request_gets_its_stored_answer_first(
    broker: RunningBroker, process: Process
) -> None:
    end = await end_of(process)
    first = await process.post("k", record("a"), if_match=end)
    assert (first.status_code, first.json()["offset"]) == (200, 0)
    for if_match in (end, f'"{"0" * 32}.5.5"'):
        again = await process.post("k", record("a"), if_match=if_match)
        assert (again.status_code, again.content) == (200, first.content)
    other = await process.post("l", record("b"), if_match=end)
    assert other.status_code == 412
    log = broker.log("t", 0)
    await until(lambda: not log.producers.open_transactions)
    assert (await process.post("l", record("b"), if_match=await end_of(process))).status_code == 200
    await until(lambda: not log.producers.open_transactions)
    assert [value for _, _, value in await committed(broker)] == [b'"a"', b'"b"']


async def test_a_try_that_lost_to_another_try_of_its_request_gets_that_ones_answer(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator forgot the reservation between the look-ups of two tries."""
    end = await end_of(process)
    ask, others = ResultClient.ask_once, []

    async def outrun(self: ResultClient, asked: RequestsRequest) -> RequestsResponse:
        answer = await ask(self, asked)
        if asked.step == "look" and not others:
            others.append(None)
            await ask(self, RequestsRequest("release", asked.key, asked.try_id))
            async with process_of(broker) as other:
                others[0] = await other.post("k", record("a"), if_match=end)
        return answer

    monkeypatch.setattr(ResultClient, "ask_once", outrun)
    answer = await process.post("k", record("a"), if_match=end)
    assert others[0].status_code == 200
    assert (answer.status_code, answer.content) == (200, others[0].content)
    assert [offset for _, offset, _ in await committed(broker)] == [0]


@pytest.mark.parametrize("patience_s", [15.0, 0.2])
async def test_a_refusal_waits_for_the_try_whose_open_records_have_moved_the_end(
    broker: RunningBroker, process: Process, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """The coordinator has forgotten the reservation of a slow try, whose records are open, and which is committed later."""
    monkeypatch.setattr(producing, "SETTLE_S", patience_s)
    end = await end_of(process)
    ask, others = ResultClient.ask_once, list[asyncio.Task[httpx.Response]]()

    async def slow(self: ResultClient, asked: RequestsRequest) -> RequestsResponse:
        if asked.step == "append" and not others:
            await ask(self, RequestsRequest("release", asked.key, asked.try_id))
            others.append(asyncio.create_task(other.post("k", record("a"), if_match=end)))
            await asyncio.wait(others, timeout=1.0 if patience_s > 1.0 else None)
        return await ask(self, asked)

    monkeypatch.setattr(ResultClient, "ask_once", slow)
    async with process_of(broker) as other:
        answer = await process.post("k", record("a"), if_match=end)
        again = await others[0]
    assert answer.status_code == 200
    if patience_s > 1.0:
        assert (again.status_code, again.content) == (200, answer.content)
    else:
        assert (again.status_code, again.json()["error_code"]) == (503, 50302)
    assert [offset for _, offset, _ in await committed(broker)] == [0]
