from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from app.client.producer import Acknowledged
from app.core.metrics import Registry
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http.application import create_app
from app.http.console import asking
from app.http.console.acts import producing
from app.http.console.acts.producing import HEADERS_BYTES_MAX, SHOWN_AGAIN_BYTES_MAX, VALUE_BYTES_MAX, headers_of
from app.http.errors import RestError
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.image.records import REGISTRY_LEVEL
from app.security.acls import Operation, ResourceType
from tests.http.secured import basic, secured
from tests.support.broker import RunningBroker, running_broker
from tests.support.console_forms import HTML, send_form, token_in
from tests.support.routes import served_routes

PRODUCE = "/console/topics/t/produce"
MESSAGE = "/console/topics/t/partitions/0/messages"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=2, new_level=REGISTRY_LEVEL) as running:
        await running.create_topic("t", 2)
        yield running


async def value_at(http: httpx.AsyncClient, offset: int) -> bytes:
    response = await http.get(f"{MESSAGE}/{offset}/value")
    assert response.status_code == 200, response.text
    return response.content


async def test_a_message_is_stored_and_its_place_is_a_link(http: httpx.AsyncClient) -> None:
    sent = await send_form(
        http,
        PRODUCE,
        partition="0",
        key_kind="text",
        key="k1",
        value_kind="text",
        value="one\r\ntwo",
        headers="trace: a:b\r\n\r\nempty:",
    )
    assert sent.status_code == 303, sent.text
    shown = (await http.get(sent.headers["location"], headers=HTML)).text
    assert f'Partition 0, offset <a href="{MESSAGE}/0">0</a>' in shown
    for link in (f"{PRODUCE}?stored=0-0", sent.headers["location"].replace("stored=0-0", "stored=0-7")):
        assert "<strong>Stored</strong>" not in (await http.get(link, headers=HTML)).text, "a link claims nothing"
    assert '<option value="0" selected>' in shown, "the form has the partition again"
    assert await value_at(http, 0) == b"one\ntwo"
    message = (await http.get(f"{MESSAGE}/0")).text
    assert "k1" in message
    assert '<td data-label="Name" class="data">trace</td>' in message
    assert "a:b" in message


async def test_a_value_is_text_json_bytes_or_none(http: httpx.AsyncClient) -> None:
    for kind, value in (("json", '{"a": 1}'), ("base64", "AP8\r\nB"), ("tombstone", "")):
        sent = await send_form(http, PRODUCE, partition="0", key_kind="text", key="k", value_kind=kind, value=value)
        assert sent.status_code == 303, sent.text
    assert await value_at(http, 0) == b'{"a": 1}'
    assert await value_at(http, 1) == b"\x00\xff\x01"
    assert "null" in (await http.get(f"{MESSAGE}/2")).text


async def test_a_value_is_encoded_by_the_newest_schema_of_its_subject(http: httpx.AsyncClient) -> None:
    schema = '{"type": "record", "name": "F", "fields": [{"name": "n", "type": "int"}]}'
    made = await http.post("/subjects/t-value/versions", json={"schema": schema})
    number = made.json()["id"]
    form = {"partition": "0", "key_kind": "none", "value_kind": "schema"}
    assert (await send_form(http, PRODUCE, value='{"n": 7}', **form)).status_code == 303
    assert await value_at(http, 0) == b"\x00" + number.to_bytes(4, "big") + b"\x0e"
    wrong = await send_form(http, PRODUCE, value='{"n": "x"}', **form)
    assert wrong.status_code == 422
    assert "The value does not fit its schema" in wrong.text


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"value_kind": "json", "value": "{'a'}"}, 400, "The value is not JSON: "),
        ({"value_kind": "base64", "value": "a"}, 400, "The value is not base64."),
        ({"value_kind": "tombstone", "value": "x"}, 400, "There is a value, and the form says that there is none."),
        ({"key_kind": "none", "key": "x"}, 400, "There is a key, and the form says that there is none."),
        ({"partition": "9"}, 400, "Topic t has the partitions 0 to 1."),
        ({"headers": "trace"}, 400, "Each line of the headers must be of the form NAME: VALUE."),
        ({"value": "a" * (VALUE_BYTES_MAX + 1)}, 413, "The value is larger than 1048576 bytes."),
        ({"key_kind": "xml"}, 400, "The form of the key is none of the page"),
        ({"value_kind": "schema", "value": "{}"}, 408, "t-value"),
    ],
)
async def test_a_form_that_is_refused_is_shown_again_with_its_content(
    http: httpx.AsyncClient, broker: RunningBroker, fields: dict[str, str], status: int, sentence: str
) -> None:
    form = {"key_kind": "text", "value_kind": "text", "value": "</textarea><b>", "partition": "0", **fields}
    response = await send_form(http, PRODUCE, **form)
    assert response.status_code == status, response.text
    assert sentence in response.text
    if form["value"] == "</textarea><b>":
        assert "\n&lt;/textarea&gt;&lt;b&gt;</textarea>" in response.text
    assert broker.log("t").log_end_offset == 0


async def test_a_long_field_of_a_refused_form_is_not_shown_again(http: httpx.AsyncClient) -> None:
    long = '"' * (SHOWN_AGAIN_BYTES_MAX + 1)
    form = {"value_kind": "text", "value": "short", "headers": long, "key": long, "partition": "9"}
    response = await send_form(http, PRODUCE, key_kind="text", **form)
    assert response.status_code == 400
    assert len(response.content) < 64 * 1024
    assert "\nshort</textarea>" in response.text
    for name in ("key", "headers"):
        assert f"The field “{name}” is empty now" in response.text


async def test_a_message_without_the_token_of_a_page_is_not_stored(
    http: httpx.AsyncClient, broker: RunningBroker
) -> None:
    form = {"key_kind": "none", "value_kind": "text", "value": "x", "partition": "0"}
    token = token_in((await http.get(PRODUCE, headers=HTML)).text)
    assert (await http.post(PRODUCE, data=form)).status_code == 403
    assert (await http.post(PRODUCE, data={**form, "form_token": "0" * 64})).status_code == 403
    for origin in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        response = await http.post(PRODUCE, data={**form, "form_token": token}, headers=origin)
        assert response.status_code == 403
    assert broker.log("t").log_end_offset == 0
    assert (await http.post(PRODUCE, data={**form, "form_token": token})).status_code == 303


async def test_a_page_of_a_topic_that_there_is_not_is_404(http: httpx.AsyncClient) -> None:
    assert (await http.get("/console/topics/none/produce")).status_code == 404


def test_headers_are_bounded() -> None:
    assert headers_of("a: 1\nb:\n") == (("a", b"1"), ("b", b""))
    with pytest.raises(RestError):
        headers_of("a: 1\n" * 101)


def test_long_headers_are_refused_before_their_lines_are_read() -> None:
    assert headers_of("\n" * HEADERS_BYTES_MAX) == ()
    with pytest.raises(RestError, match="The headers are larger than 65536 bytes"):
        headers_of("\n" * (HEADERS_BYTES_MAX + 1))


# --- as the caller ----------------------------------------------------------------------------------------------------


async def test_the_broker_decides_whether_the_caller_may_write(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol")
        for name in ("hers", "read"):
            await http.broker.create_topic(name)
        await http.allow("carol", (Operation.WRITE, ResourceType.TOPIC, "hers"))
        await http.allow("carol", (Operation.READ, ResourceType.TOPIC, "read"))
        for topic, status in (("hers", 303), ("read", 403)):
            page = f"/console/topics/{topic}/produce"
            token = token_in((await http.client.get(page, headers=basic("carol", "carol-secret"))).text)
            form = {"form_token": token, "key_kind": "none", "value_kind": "text", "value": "x"}
            response = await http.client.post(page, data=form, headers=basic("carol", "carol-secret"))
            assert response.status_code == status, response.text
        assert "The user has no right to write to topic read." in response.text
        assert (http.stored("hers"), http.stored("read")) == (1, 0)


# --- a console that only shows ----------------------------------------------------------------------------------------


@pytest.fixture
async def showing(broker: RunningBroker) -> AsyncIterator[httpx.AsyncClient]:
    settings = HttpSettings(bootstrap=(("127.0.0.1", broker.port),), linger_ms=0, console_read_only=True)
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        client.app = app  # type: ignore[attr-defined]
        yield client


async def test_a_console_that_only_shows_refuses_each_change_and_offers_none(
    showing: httpx.AsyncClient, broker: RunningBroker
) -> None:
    app = showing.app  # type: ignore[attr-defined]
    token = app.state.console.sessions.form_token(None)
    form = {"form_token": token, "key_kind": "none", "value_kind": "text", "value": "x", "partition": "0"}
    refused = 0
    for method, path in sorted(served_routes(app)):
        if not path.startswith("/console") or method in ("GET", "HEAD"):
            continue
        if path in ("/console/login", "/console/logout"):
            continue
        url = path.replace("{topic_name}", "t").replace("{group_id}", "g").replace("{partition_id}", "0")
        response = await showing.request(method, url.replace("{offset}", "0"), data=form, headers=HTML)
        assert response.status_code == 403, (method, path)
        assert "This console only shows (firn.console.read.only)." in response.text
        assert "content-security-policy" in response.headers
        refused += 1
    assert refused >= 1
    assert broker.log("t").log_end_offset == 0
    assert (await showing.post("/console/logout", data={"form_token": token})).status_code == 303
    for page in ("/console/topics/t", PRODUCE):
        text = (await showing.get(page, headers=HTML)).text
        assert 'method="post"' not in text, page
        assert "/produce" not in text.replace("firn produce", ""), page
    assert (await showing.post("/topics/t", json={"records": []})).status_code != 403, "REST is as it was"


async def test_a_message_whose_response_comes_with_the_deadline_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "BROKER_S", 0.02)
    loop = asyncio.get_running_loop()
    stored = Acknowledged(TopicPartition("t", PartitionIndex(0)), Offset(7), TimestampMs(1))

    class LateProducer:
        async def send(self, *_: Any, **__: Any) -> asyncio.Future[Acknowledged]:
            answer: asyncio.Future[Acknowledged] = loop.create_future()
            deadline_s = loop.time() + 0.02
            loop.call_at(deadline_s, answer.set_result, stored)
            loop.call_soon(time.sleep, 0.05)  # a late turn: the deadline and the response are due together
            return answer

        def take_back(self, _: object) -> None:
            return None

    gateway = SimpleNamespace(producer=LateProducer(), registry=Registry())
    found = await producing.stored(
        gateway,
        "t",
        key=None,
        value=b"v",
        headers=(),
        partition=0,  # type: ignore[arg-type]
    )
    assert found == stored
