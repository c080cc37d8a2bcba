"""Records are read in pages and as streams, and only a page that cannot change may be cached."""

from __future__ import annotations

import asyncio
import json
import struct
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest
from confluent_kafka import Producer
from crc32c import crc32c
from fastapi import FastAPI
from starlette.types import Message

from app.client.consumer import FetchedBatch
from app.core.turns import STRIDE, Portion
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http import pages
from app.http.errors import RestError
from app.http.gateway import READERS_MAX, Gateway
from app.http.pages import batch_records
from app.http.rest_v3 import record_reads
from app.records.batch import CRC_START, check_stored_batch
from app.records.builder import build_batch
from app.records.record import Record
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.counted_loop import count_turns, on_looked_at_loop
from tests.support.talking import tier_everything
from tests.support.waiting import until

LINES: Final = {"accept": "application/x-ndjson"}
EVENTS: Final = {"accept": "text/event-stream"}


@pytest.fixture
async def path(cluster: str, broker: RunningBroker) -> str:
    """Of the records of a partition, which has none yet."""
    await broker.create_topic("t", 1)
    return f"{cluster}/topics/t/partitions/0/records"


async def fill(broker: RunningBroker, *counts: int, topic: str = "t") -> None:
    """A batch for each count of records."""
    async with talk(broker.port) as client:
        for count in counts:
            await client.produce(9, [(topic, [(0, batch(count))])])


async def produce(http: httpx.AsyncClient, cluster: str, *records: dict[str, Any]) -> None:
    content = b"".join(json.dumps(record).encode() for record in records)
    answer = await http.post(f"{cluster}/topics/t/records", content=content)
    assert {json.loads(line)["error_code"] for line in answer.text.splitlines()} == {200}


def offsets(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [record["offset"] for record in answer.json()["data"]]


# --- pages ----------------------------------------------------------------------------------------------------------


async def test_records_come_back_as_they_were_produced(http: httpx.AsyncClient, cluster: str, path: str) -> None:
    sent = [
        {"key": {"type": "STRING", "data": "UA"}, "value": {"type": "JSON", "data": {"a": [1, 1.5, None, "ä"]}}},
        {"key": None, "value": {"type": "STRING", "data": "late, \"very\" late"}},
        {"key": {"type": "BINARY", "data": "/wA="}, "value": {"type": "BINARY", "data": b64encode(bytes(range(256))).decode()}},
        {"key": {"type": "STRING", "data": "gone"}, "value": None},
        {"key": None, "value": {"type": "STRING", "data": "{not json"}},
        {"key": None, "value": {"type": "STRING", "data": ""}},
    ]  # fmt: skip
    stamped = [
        {**one, "timestamp": f"2013-07-01T00:00:0{index}.000Z", "headers": [{"name": "h", "value": "eA=="}]}
        for index, one in enumerate(sent)
    ]
    await produce(http, cluster, *stamped)
    answer = (await http.get(path)).json()
    assert answer["kind"] == "KafkaRecordList"
    assert answer["data"] == [{"partition_id": 0, "offset": index, **one} for index, one in enumerate(stamped)]
    again = [{name: one[name] for name in ("key", "value", "headers", "timestamp")} for one in answer["data"]]
    await produce(http, cluster, *again)
    whole = (await http.get(path)).json()["data"]
    assert [{**one, "offset": 0} for one in whole[6:]] == [{**one, "offset": 0} for one in whole[:6]]


@pytest.mark.parametrize(
    ("rendering", "kinds"),
    [("auto", ["JSON", "STRING", "BINARY"]), ("string", ["STRING", "STRING", "BINARY"]), ("binary", ["BINARY"] * 3)],
)
async def test_a_rendering_says_how_values_are_shown(
    http: httpx.AsyncClient, cluster: str, path: str, rendering: str, kinds: list[str]
) -> None:
    values = [("JSON", {"a": 1}), ("STRING", "x"), ("BINARY", "/w==")]
    await produce(http, cluster, *({"value": {"type": kind, "data": data}} for kind, data in values))
    found = (await http.get(f"{path}?rendering={rendering}")).json()["data"]
    assert [one["value"]["type"] for one in found] == kinds


@pytest.mark.parametrize("query", ["count=1", "count=4", "count=7", "bytes=1", "bytes=12", "count=100"])
async def test_pages_of_any_size_have_each_record_once(
    http: httpx.AsyncClient, broker: RunningBroker, path: str, query: str
) -> None:
    await fill(broker, 3, 1, 6, 4)
    found: list[int] = []
    url = f"{path}?{query}"
    while True:
        answer = await http.get(url)
        found += offsets(answer)
        if answer.json()["ended_by"] == "end":
            break
        url = answer.json()["metadata"]["next"]
    assert found == list(range(14))


@pytest.mark.parametrize(
    ("query", "first"),
    [("offset=5", 5), ("offset=latest", 6), ("offset=earliest", 0), ("timestamp=1700000000002", 2), ("offset=6", 6)],
)
async def test_a_read_begins_where_it_is_told(
    http: httpx.AsyncClient, cluster: str, path: str, query: str, first: int
) -> None:
    await produce(http, cluster, *({"timestamp": 1_700_000_000_000 + index} for index in range(6)))
    answer = await http.get(f"{path}?{query}")
    assert (offsets(answer), answer.json()["offset"]) == (list(range(first, 6)), first)


async def test_a_time_after_the_last_record_begins_at_the_end(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 3)
    answer = await http.get(f"{path}?timestamp=2100-01-01T00:00:00Z")
    assert (offsets(answer), answer.json()["next_offset"]) == ([], 3)


async def test_only_records_with_the_key_are_shown(http: httpx.AsyncClient, cluster: str, path: str) -> None:
    await produce(http, cluster, *({"key": {"type": "STRING", "data": "ab"[index % 2]}} for index in range(6)))
    assert offsets(await http.get(f"{path}?key=b")) == [1, 3, 5]
    assert offsets(await http.get(f"{path}?key_base64=Yg%3D%3D&count=2")) == [1, 3]
    assert offsets(await http.get(f"{path}?key=c")) == []


async def test_a_read_at_the_end_waits_for_a_record(http: httpx.AsyncClient, broker: RunningBroker, path: str) -> None:
    waiting = asyncio.create_task(http.get(f"{path}?max_wait_ms=30000", timeout=60))
    await asyncio.sleep(0)
    await fill(broker, 1)
    assert offsets(await waiting) == [0]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/html, application/xml;q=0.9, */*;q=0.8", "application/json"),
        ("text/html", "application/json"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/ndjson; charset=utf-8", "application/x-ndjson"),
        ("application/x-ndjson, application/json", "application/x-ndjson"),
        ("application/json, application/x-ndjson", "application/json"),
        ("application/x-ndjson;q=0.5, application/json;q=0.9", "application/json"),
        ("application/json;q=0, application/x-ndjson;q=0.1", "application/x-ndjson"),
        ("application/x-ndjson, */*", "application/x-ndjson"),
    ],
)
async def test_a_page_has_the_type_that_its_client_likes_best(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, accept: str, kind: str
) -> None:
    await broker.create_topic("t", 1)
    answer = await http.get(f"{cluster}/topics/t/partitions/0/records", headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)


async def test_lines_are_records_and_the_header_links_to_the_next(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 3)
    answer = await http.get(f"{path}?count=2", headers=LINES)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["offset"] for line in answer.text.splitlines()] == [0, 1]
    following = await http.get(answer.links["next"]["url"], headers=LINES)
    assert [json.loads(line)["offset"] for line in following.text.splitlines()] == [2]


async def test_json_with_line_breaks_stays_on_one_line(http: httpx.AsyncClient, cluster: str, path: str) -> None:
    text = '{\n  "a": [1,\n 2],\n  "b": "c\\nd"\n}'
    await produce(http, cluster, {"value": {"type": "STRING", "data": text}})
    (line,) = (await http.get(path, headers=LINES)).text.splitlines()
    assert json.loads(line)["value"] == {"type": "JSON", "data": {"a": [1, 2], "b": "c\nd"}}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("offset=-1", "offset"),
        ("offset=x", "offset"),
        ("offset=99999999999999999999", "offset"),
        ("offset=1&timestamp=1", "offset and timestamp"),
        ("timestamp=soon", "timestamp"),
        ("timestamp=99999999999999999999", "timestamp"),
        ("count=0", "count"),
        ("count=10001", "count"),
        ("bytes=0", "bytes"),
        ("max_wait_ms=30001", "max_wait_ms"),
        ("isolation=none", "isolation"),
        ("rendering=json5", "rendering"),
        ("follow=maybe", "follow"),
        ("follow=true", "follow"),
        ("key=a&key_base64=YQ==", "key and key_base64"),
        ("key_base64=%25", "key_base64"),
        ("end=5", "end"),
        ("offset=5&end=5", "end"),
        ("topic_id=7", "topic_id"),
        ("epoch=-1", "epoch"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_its_name(
    http: httpx.AsyncClient, path: str, query: str, field: str
) -> None:
    answer = await http.get(f"{path}?{query}")
    assert answer.status_code == 400
    assert f" {field} " in answer.json()["message"]
    assert answer.headers["cache-control"] == "no-store"


async def test_an_offset_outside_of_the_partition_is_refused(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(f"{path}?offset=7")
    assert (answer.status_code, answer.json()["error_code"]) == (400, 40002)
    assert (await http.get(path.replace("/0/", "/3/"))).json()["error_code"] == 40403


# --- transactions ---------------------------------------------------------------------------------------------------


async def with_transaction(broker: RunningBroker, end: Callable[[Producer], None] | None) -> Producer:
    """Three records of a transaction, which then is ended."""

    def run() -> Producer:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "id", "linger.ms": 100})
        producer.init_transactions(60)
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("t", b"open", partition=0)
        producer.flush(60)
        if end is not None:
            end(producer)
        return producer

    return await asyncio.to_thread(run)


async def test_records_of_an_open_and_of_an_aborted_transaction_are_left_out_unless_they_are_asked_for(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    producer = await with_transaction(broker, None)
    assert offsets(await http.get(path)) == [0]
    assert offsets(await http.get(f"{path}?isolation=read_uncommitted")) == [0, 1, 2, 3]
    open_page = await http.get(f"{path}?isolation=read_uncommitted&count=4")
    assert open_page.json()["metadata"]["permanent"] is None, "it does not lie below the last stable offset"
    await asyncio.to_thread(producer.abort_transaction, 60)
    await fill(broker, 1)
    assert offsets(await http.get(path)) == [0, 5]
    assert offsets(await http.get(f"{path}?isolation=read_uncommitted")) == [0, 1, 2, 3, 5]


# --- caches ---------------------------------------------------------------------------------------------------------


async def permanent(http: httpx.AsyncClient, path: str, query: str = "count=2") -> str | None:
    answer = await http.get(f"{path}?{query}")
    assert answer.headers["cache-control"] == "no-store"
    found: str | None = answer.json()["metadata"]["permanent"]
    assert (found is None) == ("bookmark" not in answer.links)
    return found


async def test_a_page_that_cannot_change_may_be_cached_under_its_permanent_url_alone(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 5)
    url = await permanent(http, path, "offset=1&count=2")
    assert url is not None
    kept = await http.get(url)
    assert offsets(kept) == [1, 2]
    assert kept.headers["cache-control"] == "private, max-age=600, immutable"
    assert kept.headers["vary"] == "Authorization, Cookie, Accept"
    await fill(broker, 5)
    again = await http.get(url)
    assert (again.content, again.headers["cache-control"]) == (kept.content, kept.headers["cache-control"])
    named = {"topic_id", "offset", "end", "epoch", "isolation", "rendering"}
    assert set(httpx.URL(url).params) == named
    other = await permanent(http, path, "count=2&isolation=read_uncommitted&rendering=binary")
    assert other is not None
    assert (httpx.URL(other).params["isolation"], httpx.URL(other).params["rendering"]) == (
        "read_uncommitted",
        "binary",
    )
    for name in named:
        without = httpx.URL(url).copy_remove_param(name)
        assert (await http.get(without)).headers["cache-control"] == "no-store", name


async def test_a_page_that_ended_by_bytes_may_be_cached_and_one_that_met_the_end_may_not(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 5)
    await produce(http, cluster, *({"key": {"type": "STRING", "data": "a"}} for _ in range(3)))
    assert await permanent(http, path, "bytes=6") is not None
    assert await permanent(http, path, "count=2&offset=5") is not None
    assert await permanent(http, path, "count=10") is None
    assert await permanent(http, path, "offset=latest") is None
    assert await permanent(http, path, "count=2&key=a") is None


async def test_a_page_may_be_cached_also_if_aborted_records_follow_it(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    url = await permanent(http, path, "count=1")
    assert url is not None
    await with_transaction(broker, lambda producer: producer.abort_transaction(60))
    kept = await http.get(url)
    assert (offsets(kept), "immutable" in kept.headers["cache-control"]) == ([0], True)


async def test_a_compacted_topic_has_no_page_that_may_be_cached(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, path: str
) -> None:
    await produce(http, cluster, *({"key": {"type": "STRING", "data": "k"}} for _ in range(5)))
    url = await permanent(http, path)
    assert url is not None
    await http.put(f"{cluster}/topics/t/configs/cleanup.policy", json={"value": "compact,delete"})
    assert (await http.get(url)).headers["cache-control"] == "no-store"
    assert await permanent(http, path) is None


async def test_a_permanent_url_never_shows_the_records_of_another_topic_or_of_another_leader(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 5)
    url = await permanent(http, path)
    assert url is not None
    other_epoch = httpx.URL(url).copy_set_param("epoch", "77")
    lost = await http.get(other_epoch)
    assert (lost.status_code, lost.headers["cache-control"]) == (404, "no-store")
    await http.delete(f"{cluster}/topics/t")
    await broker.create_topic("t", 1)
    await fill(broker, 5)
    gone = await http.get(url)
    assert (gone.status_code, gone.headers["cache-control"]) == (404, "no-store")


# --- streams --------------------------------------------------------------------------------------------------------


def events(text: str) -> list[tuple[str, int]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["id"], json.loads(fields["data"])["offset"]))
    return found


async def test_events_have_offsets_as_ids_and_go_on_behind_the_last_one_that_was_seen(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 5)
    answer = await http.get(f"{path}?count=2", headers=EVENTS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert events(answer.text) == [("0", 0), ("1", 1)]
    more = await http.get(f"{path}?count=3", headers={**EVENTS, "last-event-id": "1"})
    assert events(more.text) == [("2", 2), ("3", 3), ("4", 4)]
    wrong = await http.get(path, headers={**EVENTS, "last-event-id": "x"})
    assert (wrong.status_code, "Last-Event-ID" in wrong.json()["message"]) == (400, True)


async def test_lines_that_follow_go_on_with_records_that_come_later(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    following = asyncio.create_task(http.get(f"{path}?follow=true&count=3", headers=LINES, timeout=60))
    await asyncio.sleep(0)
    await fill(broker, 1, 1, 1)
    assert [json.loads(line)["offset"] for line in (await following).text.split()] == [0, 1, 2]


async def test_head_of_a_stream_ends_and_an_error_before_its_begin_has_a_status(
    http: httpx.AsyncClient, path: str
) -> None:
    assert (await http.head(path, headers=EVENTS)).status_code == 200
    assert (await http.get(f"{path}?offset=9", headers=EVENTS)).json()["error_code"] == 40002


async def test_a_deleted_topic_ends_a_stream_with_an_error(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    following = asyncio.create_task(http.get(path, headers=EVENTS, timeout=60))
    await asyncio.sleep(0)
    await http.delete(f"{cluster}/topics/t")
    text = (await following).text
    assert "error_code" in text
    assert text.rstrip().rpartition("event: error\ndata: ")[2].startswith('{"error_code":404')


def unreadable(count: int) -> bytes:
    """A batch whose last record has a header whose name is not UTF-8, behind ``count`` records."""
    last = (TimestampMs(0), None, b"v", (("name", b""),))
    built = bytearray(build_batch([(TimestampMs(0), None, b"v", ())] * count + [last]))
    built[built.index(b"name")] = 0xFF
    struct.pack_into(">I", built, 17, crc32c(bytes(built[CRC_START:])))
    return bytes(built)


async def test_records_before_one_that_cannot_be_read_are_streamed(
    http: httpx.AsyncClient, broker: RunningBroker, path: str
) -> None:
    async with talk(broker.port) as client:
        answer = await client.produce(9, [("t", [(0, unreadable(5))])])
        assert answer.responses[0].partition_responses[0].error_code == 0
    stream = (await http.get(path, headers=EVENTS)).text
    good, _, error = stream.rpartition("event: error\ndata: ")
    assert events(good) == [(str(offset), offset) for offset in range(5)]
    assert json.loads(error)["error_code"] == 50002
    lines = (await http.get(f"{path}?follow=true", headers=LINES)).text.splitlines()
    assert [json.loads(line).get("offset") for line in lines] == [0, 1, 2, 3, 4, None]
    assert offsets(await http.get(f"{path}?count=5")) == [0, 1, 2, 3, 4]
    assert (await http.get(f"{path}?count=6")).json()["error_code"] == 50002


async def test_readers_beyond_the_limit_are_told_to_come_later_and_a_lane_is_free_again_when_its_reader_is_done(
    http: httpx.AsyncClient, application: FastAPI, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    gateway: Gateway = application.state.gateway
    gateway.lanes._lanes_max = 1
    with gateway.lanes.taken(endless=False):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["error_code"], answer.headers["retry-after"]) == (429, 42901, "1")
    assert offsets(await http.get(path)) == [0]
    assert offsets(await http.get(path)) == [0]


async def test_a_quarter_of_the_readers_is_kept_for_pages(
    http: httpx.AsyncClient, application: FastAPI, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    gateway: Gateway = application.state.gateway
    with ExitStack() as taken:
        while True:
            try:
                taken.enter_context(gateway.lanes.taken(endless=True))
            except RestError:
                break
        refused = await http.get(path, headers=EVENTS)
        assert (refused.status_code, refused.json()["error_code"], refused.headers["retry-after"]) == (429, 42901, "1")
        for _ in range(READERS_MAX // 4):
            assert offsets(await http.get(path)) == [0]
            taken.enter_context(gateway.lanes.taken(endless=False))
        assert (await http.get(path)).status_code == 429
    assert events((await http.get(f"{path}?count=1", headers=EVENTS)).text) == [("0", 0)]


async def test_a_stream_whose_client_leaves_frees_its_reader(
    http: httpx.AsyncClient, application: FastAPI, broker: RunningBroker, path: str
) -> None:
    await fill(broker, 1)
    gateway: Gateway = application.state.gateway
    gateway.lanes._lanes_max = 1

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def nothing(message: Message) -> None:
        pass

    async def broken(message: Message) -> None:
        raise OSError("The connection is gone.")

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"firn"), (b"accept", b"text/event-stream")], "server": ("firn", 80),
    }  # fmt: skip
    await application(dict(scope), receive, nothing)
    with gateway.lanes.taken(endless=False):
        pass
    with pytest.raises(OSError, match="gone"):
        await application(dict(scope), receive, broken)
    with gateway.lanes.taken(endless=False):
        pass


# --- long partitions ------------------------------------------------------------------------------------------------


async def test_headers_count_as_bytes_of_a_page(http: httpx.AsyncClient, cluster: str, path: str) -> None:
    headers = [{"name": "h", "value": b64encode(bytes(600)).decode()}]
    await produce(http, cluster, *({"headers": headers} for _ in range(5)))
    answer = await http.get(f"{path}?bytes=1000")
    assert (offsets(answer), answer.json()["ended_by"]) == ([0, 1], "bytes")


async def test_a_page_whose_json_is_much_longer_than_its_records_ends_early_and_may_be_cached(
    http: httpx.AsyncClient, cluster: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await produce(http, cluster, *({"value": {"type": "STRING", "data": "\x00" * 100}} for _ in range(5)))
    monkeypatch.setattr(pages, "SHOWN_BYTES_MAX", 1_200)
    answer = await http.get(f"{path}?rendering=string")
    assert (offsets(answer), answer.json()["ended_by"]) == ([0, 1], "bytes")
    kept = await http.get(answer.json()["metadata"]["permanent"])
    assert (offsets(kept), "immutable" in kept.headers["cache-control"]) == ([0, 1], True)


async def test_a_page_that_finds_nothing_for_long_ends_and_the_next_one_goes_on(
    http: httpx.AsyncClient, broker: RunningBroker, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker, 3, 3, 3)
    monkeypatch.setattr(pages, "FETCH_BYTES_MAX", 1)  # a batch each
    monkeypatch.setattr(pages, "PAGE_MS_MAX", 0)
    url = f"{path}?key=none"
    ends: list[tuple[str, int]] = []
    while not ends or ends[-1][0] != "end":
        answer = await http.get(url)
        assert offsets(answer) == []
        ends.append((answer.json()["ended_by"], answer.json()["next_offset"]))
        url = answer.json()["metadata"]["next"]
    assert ends == [("time", 3), ("time", 6), ("end", 9)]


async def test_a_stream_that_skips_records_gives_signs_of_life(
    http: httpx.AsyncClient, broker: RunningBroker, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker, 3, 3)
    monkeypatch.setattr(pages, "FETCH_BYTES_MAX", 1)  # a batch each
    monkeypatch.setattr(record_reads, "ALIVE_S", 0.0)
    answer = await http.get(f"{path}?key=none&offset=0&end=6", headers=EVENTS)
    assert answer.text == ":\n\n"


async def test_records_that_left_the_local_disk_are_read_by_offset_and_by_time(
    http: httpx.AsyncClient, cluster: str, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1, segment_bytes="1048576", local_retention_ms="0", retention_ms="-1")
    path = f"{cluster}/topics/t/partitions/0/records"
    await produce(http, cluster, *({"timestamp": 1_700_000_000_000 + index} for index in range(6)))
    before = await http.get(f"{path}?offset=2&count=3")
    await tier_everything(broker, "t")
    await until(lambda: broker.log("t").local_log_start_offset == 6)
    await produce(http, cluster, {"timestamp": 1_700_000_000_006})
    after = await http.get(f"{path}?offset=2&count=3")
    assert (offsets(after), after.json()["data"]) == ([2, 3, 4], before.json()["data"])
    assert offsets(await http.get(f"{path}?timestamp=1700000000004")) == [4, 5, 6]
    kept = await http.get(before.json()["metadata"]["permanent"])
    assert (offsets(kept), "immutable" in kept.headers["cache-control"]) == ([2, 3, 4], True)
    assert [offset for _, offset in events((await http.get(f"{path}?count=7", headers=EVENTS)).text)] == list(range(7))


@on_looked_at_loop
async def test_records_before_the_offset_are_skipped_in_portions() -> None:
    built = build_batch([(TimestampMs(0), None, b"v", ())] * 10_000)
    view = memoryview(built)
    partition = TopicPartition("t", PartitionIndex(0))
    batch = FetchedBatch(partition, check_stored_batch(view), view, Offset(9_998))
    found: list[Record] = []

    async def read() -> None:
        found.extend(await batch_records(batch, Portion()))

    assert await count_turns(read()) > 10_000 / STRIDE / 10
    assert [record.offset for record in found] == [9_998, 9_999]
    behind = batch._replace(from_offset=Offset(10_000))
    assert [*await batch_records(behind, Portion())] == []
