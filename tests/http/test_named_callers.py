"""Rules that name hosts, and the audit log, see the address of an HTTP caller: on a real broker that trusts the HTTP process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.http.callers import CallerLimits
from app.security.acls import Operation, ResourceType
from tests.http.processes import http_process
from tests.http.secured import Secured, basic, secured
from tests.support.audited import Heard

INSIDE, OUTSIDE = "192.0.2.7", "198.51.100.9"
PROXY = "10.0.0.1"
NAMES: Mapping[str, Any] = {"trusted_proxies": (PROXY,), "names_callers": True}
TRUSTS: Mapping[str, Any] = {"firn_trusted_proxies": frozenset({"127.0.0.1"})}


@asynccontextmanager
async def named(path: Path, **more: Any) -> AsyncIterator[Secured]:
    """A user who may write to a topic from one address."""
    async with secured(path, **{"of_broker": TRUSTS, "peer": PROXY, **NAMES, **more}) as running:
        await running.add_user("carol", "dave")
        await running.broker.create_topic("t")
        await running.allow("carol", (Operation.WRITE, ResourceType.TOPIC, "t"), host=INSIDE)
        yield running


async def written(http: Secured, client: str = "", user: str = "carol", **headers: str) -> httpx.Response:
    path = f"{http.cluster}/topics/t/records"
    body = {"value": {"type": "STRING", "data": "x"}}
    forwarded = {"X-Forwarded-For": client} if client else {}
    return await http.client.post(path, json=body, headers=basic(user, f"{user}-secret") | forwarded | headers)


async def test_a_rule_for_a_host_counts_for_callers_behind_a_proxy(tmp_path: Path) -> None:
    async with named(tmp_path) as http:
        for _ in range(2):  # whatever is remembered of one counts for that one alone
            for client, status in ((INSIDE, 200), (OUTSIDE, 403), ("", 403), (f"{INSIDE}, {OUTSIDE}", 403)):
                answer = await written(http, client)
                assert answer.status_code == status, (client, answer.text)
        assert (await written(http, f"{OUTSIDE}, {INSIDE}, {PROXY}")).status_code == 200
        assert http.stored("t") == 3


async def test_the_audit_log_has_the_address_of_the_caller_and_of_who_named_it(tmp_path: Path) -> None:
    async with named(tmp_path) as http:
        heard = Heard(http.broker.node.context.audit)
        assert (await written(http, OUTSIDE)).status_code == 403
        lines = heard.take()
        assert {line["host"] for line in lines} == {OUTSIDE}
        assert {line["via"] for line in lines} == {"127.0.0.1"}
        assert {(line["event"], line["outcome"]) for line in lines} == {("login", "done"), ("access", "denied")}
        wrong = basic("carol", "wrong")["Authorization"]
        assert (await written(http, OUTSIDE, Authorization=wrong)).status_code == 401
        assert {(line["event"], line["outcome"], line["host"], line["via"]) for line in heard.take()} == {
            ("login", "failed", OUTSIDE, "127.0.0.1")
        }


async def test_the_header_of_somebody_who_is_no_proxy_changes_nothing(tmp_path: Path) -> None:
    async with named(tmp_path, peer=OUTSIDE) as http:
        heard = Heard(http.broker.node.context.audit)
        for headers in ({}, {"X-Forwarded-For": INSIDE}, {"Forwarded": f"for={INSIDE}"}, {"X-Real-IP": INSIDE}):
            assert (await written(http, **headers)).status_code == 403
        assert {line["host"] for line in heard.take()} == {OUTSIDE}, "that of its own connection"
        assert http.stored("t") == 0


async def test_a_proxy_names_its_clients_in_the_header_that_is_set(tmp_path: Path) -> None:
    async with named(tmp_path, forwarded_header="forwarded") as http:
        assert (await written(http, Forwarded=f'for="{INSIDE}:80"')).status_code == 200
        assert (await written(http, INSIDE)).status_code == 403
        assert (await written(http, INSIDE, Forwarded=f"for={OUTSIDE}")).status_code == 403
        assert http.stored("t") == 1


async def test_a_broker_that_does_not_trust_the_process_serves_none_of_its_callers(tmp_path: Path) -> None:
    async with named(tmp_path, of_broker={}) as http:
        heard = Heard(http.broker.node.context.audit)
        assert (await written(http, INSIDE)).status_code == 503
        [line] = heard.take()
        assert (line["event"], line["outcome"], line["host"]) == ("login", "failed", "127.0.0.1")
        assert "127.0.0.1 is not in firn.trusted.proxies" in line["reason"]
        assert http.stored("t") == 0
        assert not http.callers._known


async def test_a_process_that_names_nobody_is_the_host_of_its_callers(tmp_path: Path) -> None:
    async with named(tmp_path, names_callers=False) as http:
        await http.allow("dave", (Operation.WRITE, ResourceType.TOPIC, "t"), host="127.0.0.1")
        assert (await written(http, INSIDE)).status_code == 403
        assert (await written(http, INSIDE, user="dave")).status_code == 200


async def test_one_credential_at_many_addresses_has_half_of_the_places(tmp_path: Path) -> None:
    async with named(tmp_path, limits=CallerLimits(callers_max=6)) as http:
        assert (await written(http, INSIDE, user="dave")).status_code == 403
        for number in range(10):
            assert (await written(http, f"192.0.2.{100 + number}")).status_code == 403
        keys = [key for key in http.callers._known if key.endswith(b"192.0.2.7")]
        assert (len(keys), len(http.callers._known)) == (1, 4), "the other user keeps its place"


async def test_logins_of_one_client_behind_a_proxy_do_not_hold_up_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    async with named(tmp_path) as http:
        turn = http.callers._turns.turn
        monkeypatch.setattr(http.callers._turns, "turn", lambda address: (asked.append(address), turn(address))[1])
        for client in (INSIDE, OUTSIDE):
            await written(http, client)
        assert asked == [INSIDE, OUTSIDE]


@pytest.mark.parametrize(("proxies", "status"), [("127.0.0.1", 200), ("10.0.0.0/8", 403), ("", 403)])
async def test_the_process_itself_believes_its_proxies_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxies: str, status: int
) -> None:
    """Not even what connects from the same machine, as its web server would by itself."""
    monkeypatch.setenv("FIRN_CLIENT_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    async with (
        named(tmp_path) as http,
        http_process(http.broker, "--name-callers", "--trusted-proxies", proxies, port=http.port) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", trust_env=False) as client,
    ):
        http.client = client
        assert (await written(http, f"{OUTSIDE}, {INSIDE}")).status_code == status
        assert http.stored("t") == (1 if status == 200 else 0)
