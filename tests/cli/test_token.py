"""``firn token`` against a running broker."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.cli.session import use_client_config
from app.client.security import client_security, read_settings
from tests.support.broker import RunningBroker
from tests.support.commands import Done, Firn
from tests.support.tokens import RIGHTS, SASL, broker_with_tokens


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with broker_with_tokens(tmp_path, **RIGHTS) as running:
        yield running


@pytest.fixture
def firn(
    broker: RunningBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Firn]:
    """Runs a command as a user, or with a file of settings, beside the broker's loop."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # main sets its own
    monkeypatch.setenv("FIRN_BOOTSTRAP", f"127.0.0.1:{broker.node.ports[SASL]}")

    async def run(who: str | Path, *arguments: str) -> Done:
        if isinstance(who, str):
            path = tmp_path / f"{who}.properties"
            path.write_text(
                f"security.protocol={SASL}\nsasl.mechanism=PLAIN\nsasl.username={who}\nsasl.password={who}-secret\n"
            )
            who = path
        capfd.readouterr()
        code = await asyncio.to_thread(main, ["--client-config", str(who), *arguments])
        out, err = capfd.readouterr()
        return Done(code, out, err)

    yield run
    use_client_config(None)


@pytest.mark.ci
async def test_a_token_is_made_used_renewed_and_expired(firn: Firn, tmp_path: Path) -> None:
    file = tmp_path / "token.properties"
    made = await firn("bob", "token", "create", "--renewer", "User:alice", "--lifetime-hours", "2", "--out", str(file))
    assert made.code == 0, made.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "HMAC" not in made.out
    (listed,) = (await firn("bob", "token", "list", "--json")).json
    assert (listed["owner"], listed["requester"], listed["renewers"]) == ("User:bob", "User:bob", ["User:alice"])
    token_id = listed["id"]
    assert (await firn(file, "topic", "list")).code == 0
    refused = await firn(file, "token", "create")
    assert refused.code == 1
    assert "not by somebody who has logged in with a delegation token" in refused.err
    again = await firn("bob", "token", "create", "--out", str(file))
    assert "exists already" in again.err
    renewed = await firn("alice", "token", "renew", token_id, "--hours", "1")
    assert renewed.code == 0, renewed.err
    assert "is valid until" in renewed.out
    assert (await firn("bob", "token", "expire", token_id)).out == f"The token {token_id} lets nobody in any more.\n"
    assert (await firn(file, "topic", "list")).code == 1
    assert (await firn("bob", "token", "list", "--json")).json == []
    gone = await firn("bob", "token", "expire", token_id)
    assert f"There is no delegation token {token_id} that you may see" in gone.err


async def test_a_file_with_a_token_has_nothing_of_who_made_it(
    firn: Firn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRN_CLIENT_SSL_KEYSTORE_LOCATION", "/alice.pem")
    monkeypatch.setenv("FIRN_CLIENT_SSL_KEY_PASSWORD", "hunter2")
    monkeypatch.setenv("FIRN_CLIENT_SSL_KEYSTORE_PASSWORD", "hunter3")
    monkeypatch.setenv("FIRN_CLIENT_SSL_TRUSTSTORE_LOCATION", "/ä\\b/ca.pem")
    file = tmp_path / "token.properties"
    assert (await firn("alice", "token", "create", "--out", str(file))).code == 0
    text = file.read_text()
    for secret in ("alice", "hunter2", "hunter3", "keystore"):
        assert secret not in text
    found = read_settings({}, str(file))
    assert found["ssl.truststore.location"] == "/ä\\b/ca.pem"
    assert client_security({**found, "security.protocol": SASL}).by_token
    refused = tmp_path / "refused"
    assert (await firn("bob", "token", "create", "--owner", "User:alice", "--out", str(refused))).code == 1
    assert not refused.exists()


async def test_the_secret_is_printed_once_and_a_list_has_none(firn: Firn) -> None:
    made = json.loads((await firn("alice", "token", "create", "--owner", "User:bob", "--json")).out)
    assert made["owner"] == "User:bob"
    listed = await firn("alice", "token", "list", "--owner", "User:bob")
    assert made["id"] in listed.out
    assert made["hmac"] not in listed.out
    assert made["id"] not in (await firn("alice", "token", "list", "--owner", "User:carol")).out


async def test_mistakes_are_told_with_the_mend(firn: Firn) -> None:
    for arguments, words in (
        (("create", "--owner", "alice"), "not of the form User:NAME"),
        (("create", "--owner", "User:alice"), "CREATE_TOKENS"),
        (("create", "--renewer", "Group:x"), "written User:NAME"),
        (("renew", "nothing"), "no delegation token nothing"),
    ):
        done = await firn("bob", "token", *arguments)
        assert done.code != 0
        assert words in done.err
