from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.security.acls import Operation, ResourceType
from tests.http.secured import basic, secured
from tests.support.broker import RunningBroker
from tests.support.console_forms import HTML, send_form, token_in

SOURCE = "/console/topics/t/partitions/0/messages/0"
RESEND = f"{SOURCE}/resend"
RECORD = {
    "key": {"type": "BINARY", "data": "AP8="},
    "value": {"type": "STRING", "data": "</pre><script>alert(1)</script>"},
    "headers": [{"name": "h", "value": "AQI="}, {"name": "h", "value": None}],
    "timestamp": 1_700_000_000_000,
}


@pytest.fixture
async def written(http: httpx.AsyncClient, cluster: str, broker: RunningBroker) -> str:
    for name in ("t", "other"):
        await broker.create_topic(name, 1)
    assert (await http.post(f"{cluster}/topics/t/records", json=RECORD)).json()["error_code"] == 200
    return cluster


async def test_a_message_is_sent_on_as_it_is_after_a_preview(http: httpx.AsyncClient, written: str) -> None:
    assert RESEND in (await http.get(SOURCE, headers=HTML)).text
    preview = await http.get(f"{RESEND}?to=other", headers=HTML)
    assert "Send to other" in preview.text
    assert "&lt;script&gt;" in preview.text
    assert "<script>alert" not in preview.text
    assert (await http.get(f"{written}/topics/other/partitions/0/records")).json()["data"] == [], "a preview sends none"
    sent = await send_form(http, f"{RESEND}?to=other", to="other")
    assert sent.status_code == 303, sent.text
    after = (await http.get(sent.headers["location"], headers=HTML)).text
    assert '<a href="/console/topics/other/partitions/0/messages/0">0</a>' in after
    (one,) = (await http.get(f"{written}/topics/other/partitions/0/records")).json()["data"]
    (source,) = (await http.get(f"{written}/topics/t/partitions/0/records")).json()["data"]
    assert one == source


async def send(http: httpx.AsyncClient, **form: str) -> httpx.Response:
    token = token_in((await http.get(f"{RESEND}?to=other", headers=HTML)).text)
    return await http.post(RESEND, data={"form_token": token, **form}, headers=HTML)


async def test_a_topic_that_there_is_not_gets_nothing(http: httpx.AsyncClient, written: str) -> None:
    for response in (await http.get(f"{RESEND}?to=none", headers=HTML), await send(http, to="none")):
        assert response.status_code == 404
        assert "There is no topic none." in response.text
        assert 'method="post"' not in response.text
    assert (await http.get(f"{RESEND}?to={'x' * 300}")).status_code == 400
    missing = RESEND.replace("messages/0", "messages/9")
    assert (await http.get(missing, headers=HTML)).status_code == 404


async def test_a_message_is_not_sent_on_without_the_token_of_a_page(
    http: httpx.AsyncClient, written: str, broker: RunningBroker
) -> None:
    assert (await http.post(RESEND, data={"to": "other"})).status_code == 403
    assert broker.log("other").log_end_offset == 0


async def test_the_broker_decides_where_the_caller_may_send(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol")
        for name in ("t", "other"):
            await http.broker.create_topic(name)
        for operation in (Operation.READ, Operation.WRITE):
            await http.allow("carol", (operation, ResourceType.TOPIC, "t"))
        await http.allow("carol", (Operation.READ, ResourceType.TOPIC, "other"))
        await http.produce("carol", "t")
        own = basic("carol", "carol-secret")
        token = token_in((await http.client.get(f"{RESEND}?to=other", headers=own)).text)
        response = await http.client.post(RESEND, data={"form_token": token, "to": "other"}, headers=own)
        assert response.status_code == 403, response.text
        assert "The user has no right to write to topic other." in response.text
        assert http.stored("other") == 0
