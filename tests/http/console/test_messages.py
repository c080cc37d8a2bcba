from __future__ import annotations

import base64
import re
from html import unescape
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from msgspec.structs import replace

from app.client.admin import AdminClient
from app.client.cluster import refusal
from app.core.errors import ErrorCode
from app.core.turns import Portion
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http.console.pages.messages import moment_of
from app.http.console.records.masks import Masks
from app.http.console.records.reading import (
    FILTERED_HEADERS_MAX,
    FORMATTED_BYTES_MAX,
    HEX_BYTES,
    PREVIEW_BYTES,
    WHOLE_BYTES_MAX,
    Browse,
    Header,
    fits,
    shown_of,
    stays_small,
    text_of,
)
from app.http.console.texts.command_lines import Reach
from app.http.errors import RestError
from app.records.record import Record
from app.wire.private import TierStatusResponse

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}\u202e'
TOPIC = "/console/topics/t"
PARTITION = TopicPartition("t", PartitionIndex(0))


async def write(http: httpx.AsyncClient, cluster: str, *records: Any) -> None:
    await http.post(f"{cluster}/topics", json={"topic_name": "t"})
    for record in records:
        response = await http.post(f"{cluster}/topics/t/records", json=record)
        assert response.json()["error_code"] == 200, response.text


def string(value: str, **more: Any) -> dict[str, Any]:
    return {"value": {"type": "STRING", "data": value}, **more}


def offsets(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"/partitions/0/messages/(\d+)\">", text)]


async def test_a_message_of_a_secured_cluster_says_which_file_has_the_login_of_which_tool(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(http, cluster, string("v"))
    note = "those of librdkafka in <code>kcat.conf</code>"
    assert note not in (await http.get(f"{TOPIC}/partitions/0/messages/0")).text
    for module in ("rendering", "pages.messages"):
        monkeypatch.setattr(f"app.http.console.{module}.reach_of", lambda _: Reach("b", 1, secured=True))
    text = (await http.get(f"{TOPIC}/partitions/0/messages/0")).text
    assert "<code>kcat -F kcat.conf -b b:1 " in text
    assert "<code>firn --client-config client.properties consume " in text
    assert note in text


async def test_the_newest_messages_are_shown_first_and_links_lead_through_all(
    http: httpx.AsyncClient, cluster: str
) -> None:
    await write(http, cluster, *(string(f"v{index}") for index in range(60)))
    text = (await http.get(f"{TOPIC}/messages?count=20")).text
    assert offsets(text) == list(range(40, 60))
    older = re.search(r'rel="prev" href="([^"]+)"', text)
    assert older is not None
    assert offsets((await http.get(f"{TOPIC}/messages{older[1].replace('&amp;', '&')}")).text) == list(range(20, 40))
    first = (await http.get(f"{TOPIC}/messages?offset=0&count=20")).text
    assert 'rel="prev"' not in first
    newer = re.search(r'rel="next" href="([^"]+)"', first)
    assert newer is not None
    assert offsets((await http.get(f"{TOPIC}/messages{newer[1].replace('&amp;', '&')}")).text) == list(range(20, 40))


async def test_filters_let_only_some_messages_through(http: httpx.AsyncClient, cluster: str) -> None:
    key = {"type": "STRING", "data": "red"}
    await write(http, cluster, string("one"), string("two", key=key), string("twelve"))
    assert offsets((await http.get(f"{TOPIC}/messages?offset=0&key=red")).text) == [1]
    assert offsets((await http.get(f"{TOPIC}/messages?offset=0&contains=tw")).text) == [1, 2]
    none = (await http.get(f"{TOPIC}/messages?offset=0&contains=zebra")).text
    assert "No record from offset 0 on fits the filter, up to the end." in none
    assert "Search from the oldest" not in none
    newest = (await http.get(f"{TOPIC}/messages?count=1&key=red")).text
    assert "No record from offset 2 on fits the filter, up to the end." in newest
    link = re.search(r'<a href="([^"]+)">Search from the oldest</a>', newest)
    assert link is not None
    assert offsets((await http.get(f"{TOPIC}/messages{unescape(link[1])}")).text) == [1]
    beyond = (await http.get(f"{TOPIC}/messages?offset=99")).text
    assert "No record here, up to the end." in beyond
    assert "these lie" not in beyond


async def test_a_filter_of_headers_lets_only_some_messages_through(http: httpx.AsyncClient, cluster: str) -> None:
    def with_header(value: str, name: str, content: bytes) -> dict[str, Any]:
        return string(value, headers=[{"name": name, "value": base64.b64encode(content).decode()}])

    await write(
        http,
        cluster,
        string("none"),
        with_header("one", "trace", b"id:17"),
        with_header("two", "trace", b"id:18"),
        with_header("three", "other", b"id:17"),
    )
    for asked, found in (
        ("trace:id:17", [1]),
        ("trace:", [1, 2]),
        ("trace", [1, 2]),
        ("other:7", [3]),
        ("trac:17", []),
    ):
        page = (await http.get(f"{TOPIC}/messages", params={"offset": "0", "header": asked})).text
        assert offsets(page) == found, asked
    assert "header=trace%3Aid%3A17" in (await http.get(f"{TOPIC}/messages?header=trace:id:17")).text
    assert (await http.get(f"{TOPIC}/messages?header={'x' * 1001}")).status_code == 400


def test_a_filter_looks_at_so_many_headers_of_a_record() -> None:
    headers = (*(("h", b"") for _ in range(FILTERED_HEADERS_MAX)), ("wanted", b"x"))
    wanted = Browse(partition=PARTITION, offset=0, count=1, header=Header("wanted", b"x"))
    assert fits(Record(Offset(0), TimestampMs(0), None, None, headers[1:]), wanted)
    assert not fits(Record(Offset(0), TimestampMs(0), None, None, headers), wanted)


async def test_a_search_ends_after_so_many_portions_and_goes_on_by_a_link(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(http, cluster, *(string("x") for _ in range(10)))
    monkeypatch.setattr("app.http.console.records.reading.SCAN_PORTIONS_MAX", 4)
    monkeypatch.setattr(Portion, "spent_by", lambda _: True)
    page = (await http.get(f"{TOPIC}/messages?offset=0&key=none")).text
    following = re.search(r'rel="next" href="[^"]*offset=(\d+)">Search on<', page)
    assert following is not None
    assert 0 < int(following[1]) < 10


def _searched_to(page: str) -> int:
    following = re.search(r'rel="next" href="[^"]*offset=(\d+)">Search on<', page)
    return int(following[1]) if following else -1


async def test_portions_that_masks_use_up_count_for_the_search(
    http: httpx.AsyncClient, cluster: str, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(http, cluster, *(string('{"card": 1}') for _ in range(10)))
    application.state.console.masks = Masks([("t", "card")])
    monkeypatch.setattr("app.http.console.records.reading.SCAN_PORTIONS_MAX", 4)
    monkeypatch.setattr("app.core.turns.PORTION_S", 0.0)
    assert 0 < _searched_to((await http.get(f"{TOPIC}/messages?offset=0&contains=none")).text) < 10


async def test_a_search_ends_within_a_response_of_the_broker(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(http, cluster, *(string("four") for _ in range(10)))
    url = f"{TOPIC}/messages?offset=0&contains=none"
    monkeypatch.setattr("app.http.console.records.reading.SCANNED_BYTES_MAX", 12)
    assert _searched_to((await http.get(url)).text) == 3
    monkeypatch.setattr("app.http.console.records.reading.SCAN_MS_MAX", 0)
    assert _searched_to((await http.get(url)).text) == 1


async def test_a_time_leads_to_the_first_message_of_that_time(http: httpx.AsyncClient, cluster: str) -> None:
    times = ("2024-05-06T00:00:00Z", "2024-05-07T00:00:00Z", "2024-05-08T00:00:00Z")
    await write(http, cluster, *(string("x", timestamp=time) for time in times))
    assert offsets((await http.get(f"{TOPIC}/messages?time=2024-05-07")).text) == [1, 2]
    assert offsets((await http.get(f"{TOPIC}/messages?time=2025-01-01")).text) == []
    assert (await http.get(f"{TOPIC}/messages?time=soon")).status_code == 400


async def test_hostile_records_are_text(http: httpx.AsyncClient, cluster: str) -> None:
    data = base64.b64encode(HOSTILE.encode()).decode()
    await write(
        http,
        cluster,
        {
            "key": {"type": "STRING", "data": HOSTILE},
            "value": {"type": "STRING", "data": HOSTILE},
            "headers": [{"name": HOSTILE, "value": data}],
        },
    )
    for url in (f"{TOPIC}/messages", f"{TOPIC}/partitions/0/messages/0", f"{TOPIC}/messages?key={HOSTILE}&offset=0"):
        text = (await http.get(url)).text
        assert "<script>" not in text, url
        assert "<img src=x" not in text, url
        assert "\u202e" not in text or "key=" in url, "the field of the filter has the reader's own text"
        assert "{{7*7}}" in text, url
        assert text.count("&lt;script&gt;") >= 3, url
    saved = await http.get(f"{TOPIC}/partitions/0/messages/0/value")
    assert saved.content == HOSTILE.encode()
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"] == 'attachment; filename="offset-0.bin"'
    assert saved.headers["x-content-type-options"] == "nosniff"


async def test_a_long_message_has_a_short_page(http: httpx.AsyncClient, cluster: str) -> None:
    await write(http, cluster, string("a" * 900_000))
    listed = (await http.get(f"{TOPIC}/messages")).text
    assert len(listed) < 20_000
    assert "879 KiB" in listed
    one = (await http.get(f"{TOPIC}/partitions/0/messages/0")).text
    assert "Only the beginning is shown." in one
    assert WHOLE_BYTES_MAX < len(one) < WHOLE_BYTES_MAX + 20_000
    assert len((await http.get(f"{TOPIC}/partitions/0/messages/0/value")).content) == 900_000


def test_bytes_are_text_json_or_hexadecimal() -> None:
    assert text_of(None, 10)[:4] == ("null", "null", 0, False)
    assert text_of("Grüße".encode(), 4)[:4] == ("Grü", "text", 7, True)
    assert text_of("Grüße".encode(), 3)[:4] == ("Gr", "text", 7, True)
    assert text_of(b"\x00\xff\x01", 10)[:4] == ("00 ff 01", "binary", 3, False)
    assert text_of(bytes([255]) * 999, PREVIEW_BYTES).text == " ".join(["ff"] * HEX_BYTES)
    assert text_of(b'{"a":1}', 10, pretty=True).text == '{\n  "a": 1\n}'
    assert text_of(b'{"a":1}', 10)[:4] == ('{"a":1}', "json", 7, False)
    assert text_of(b"{broken", 10).kind == "text"
    assert text_of(b"[" * 5_000, 10_000, pretty=True).kind == "text"


def nested(depth: int, inner: bytes) -> bytes:
    return b"[" * depth + inner + b"]" * depth


MANY = b"1," * 100_000 + b"1"
CLOSING = b"]" * 399


@pytest.mark.parametrize(
    "inner",
    [
        MANY,
        MANY + b"]" * 400,
        b'"' + CLOSING + b'",' + MANY,  # brackets in a string end no list
        b'"\\\\","' + CLOSING + b'",' + MANY,
        b'"\\"' + CLOSING + b'",' + MANY,
        b"1," * 8_000 + b"1" + b"]" * 20_000,  # it fails at its end, after the lines
    ],
)
def test_deep_json_with_many_elements_is_shown_as_it_is(inner: bytes) -> None:
    data = b"[" * 400 + inner
    assert not stays_small(data)
    assert text_of(data, len(data), pretty=True).text == data.decode()


def test_json_has_line_breaks_as_long_as_it_stays_small() -> None:
    rows = b"[" + b",".join(b'{"a": [1, "]]{{"], "b": "\\""}' for _ in range(5_000)) + b"]"
    shown = text_of(rows, len(rows), pretty=True)
    assert shown.kind == "json"
    assert shown.text.startswith('[\n  {\n    "a": [\n      1,')
    for depth in (1, 50, 200, 600):
        data = nested(depth, b"1," * 2_000 + b"1")
        length = len(msgspec.json.format(data, indent=2))
        assert stays_small(data) is (length <= FORMATTED_BYTES_MAX), length


def test_a_record_of_hidden_characters_is_shown_in_steps() -> None:
    hidden = b"\x01" * WHOLE_BYTES_MAX
    record = Record(Offset(1), TimestampMs(2), hidden, hidden)
    assert sum(1 for _ in shown_of.steps(record, whole=True)) >= 16
    assert shown_of(record, whole=True).key.text == "⟨0001⟩" * WHOLE_BYTES_MAX


async def test_a_value_beyond_the_end_is_404(http: httpx.AsyncClient, cluster: str) -> None:
    await write(http, cluster, string("a"))
    for offset in (1, 2**63 - 1, 2**63, 10**30, -1):
        for end in ("", "/value"):
            response = await http.get(f"{TOPIC}/partitions/0/messages/{offset}{end}")
            assert response.status_code == 404, (offset, end)


def test_a_record_keeps_some_of_its_headers() -> None:
    record = Record(Offset(1), TimestampMs(2), None, b"v", tuple((f"h{index}", b"x") for index in range(20)))
    shown = shown_of(record, whole=False)
    assert (len(shown.headers), shown.headers_left) == (8, 12)
    assert shown_of(record, whole=True).headers_left == 0


def test_a_tombstone_fits_no_filter_of_values() -> None:
    record = Record(Offset(1), TimestampMs(2), b"k", None)
    place: Any = None
    assert fits(record, Browse(partition=place, offset=0, count=1, key=b"k"))
    assert not fits(record, Browse(partition=place, offset=0, count=1, contains=b""))


def test_times_are_read_in_utc() -> None:
    assert moment_of("2013-07-01") == 1_372_636_800_000
    assert moment_of("2013-07-01T02:00:00+02:00") == 1_372_636_800_000
    assert moment_of("1372636800000") == 1_372_636_800_000
    with pytest.raises(RestError):
        moment_of("yesterday")
    assert moment_of("1970-01-01") == 0
    for text in ("1969-12-31T23:59:59.999", "1969-12-31"):
        with pytest.raises(RestError, match="The time is before 1970"):
            moment_of(text)


async def test_a_value_is_held_within_the_budget_of_reads_until_it_is_sent(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    await write(http, cluster, string("a" * 1_000))
    budget = application.state.gateway.read_budget
    url = f"{TOPIC}/partitions/0/messages/0/value"
    seen = []

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            seen.append(budget.taken)
            await send(message)

        await application(scope, receive, watched)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=asked), base_url="http://firn") as client:
        assert len((await client.get(url)).content) == 1_000
    assert set(seen) == {1_000}
    assert budget.taken == 0
    budget.add(budget.bytes_max)
    refused = await http.get(url)
    assert refused.status_code == 429
    assert "Other responses hold the memory for records. Try again later." in refused.text
    budget.add(-budget.bytes_max)
    assert (await http.get(url)).status_code == 200


@pytest.mark.parametrize(
    ("local_start", "status", "sentence"),
    [
        (2, 503, "Records from offset 2 on lie on its local disk and can be read."),
        (3, 503, "the object store does not respond to the broker.</p>"),
        (0, 500, "The broker of t-0 cannot use its storage now."),
    ],
)
async def test_records_in_a_store_that_does_not_respond_are_said_to_lie_there(
    http: httpx.AsyncClient, cluster: str, monkeypatch: pytest.MonkeyPatch, local_start: int, status: int, sentence: str
) -> None:
    async def refused(*given: object) -> None:
        raise refusal(ErrorCode.KAFKA_STORAGE_ERROR, "t-0")

    ask = AdminClient.tier_status_by

    async def told(self: AdminClient, *given: Any) -> TierStatusResponse:
        found = await ask(self, *given)
        return replace(found, partitions=[replace(one, local_start_offset=local_start) for one in found.partitions])

    await write(http, cluster, *(string(str(index)) for index in range(3)))
    monkeypatch.setattr("app.http.console.pages.messages.browse", refused)
    monkeypatch.setattr(AdminClient, "tier_status_by", told)
    for path in ("messages?offset=0", "partitions/0/messages/0"):
        page = await http.get(f"{TOPIC}/{path}")
        assert page.status_code == status
        assert sentence in page.text
        assert f'<a href="{TOPIC}/{path}">Try again</a>' in page.text
        assert ("/console/runbooks/store-unreachable" in page.text) is (status == 503)
