"""Keys of tokens by URL, with a real broker and a real web server on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from app.broker.security import token_keys
from app.broker.security.listener_doors import Doors
from app.client.connection import open_connection
from app.client.security import SecureDialer, client_security
from app.configs import BrokerConfig
from app.configs.listeners import ListenerConfig
from app.core.errors import ConfigError, RequestRejected
from tests.support.broker import RunningBroker, running_broker
from tests.support.ports import free_port
from tests.support.secured import certificates, listener, security
from tests.support.waiting import until
from tests.support.web import WebServer, http_answer, json_answer, web_server

KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("one", "two")}


def document(*names: str) -> dict[str, Any]:
    return {
        "keys": [
            {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key())), "kid": name} for name in names
        ]
    }


def door(url: str, folder: Path | None = None, **settings: Any) -> ListenerConfig:
    return listener(
        "SASL_PLAINTEXT" if folder is None else "SASL_SSL",
        folder,
        mechanisms="OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=url,
        firn_sasl_oauthbearer_allowed_urls=f"https://other.example/keys,{url}",
        sasl_oauthbearer_expected_audience="firn",
        connection_failed_authentication_delay_ms=0,
        **settings,
    )


def logging_in(broker: RunningBroker, path: Path, folder: Path | None = None) -> Callable[..., Any]:
    """A call that logs in with a token of a key, and says what came of it."""
    [(protocol, port)] = broker.node.ports.items()

    async def log_in(key: str, kid: str = "") -> str:
        claims = {"sub": "robot", "aud": "firn", "exp": int(time.time()) + 300}
        (path / "token").write_text(jwt.encode(claims, KEYS[key], algorithm="ES256", headers={"kid": kid or key}))
        texts = {
            "security.protocol": protocol,
            "sasl.mechanism": "OAUTHBEARER",
            "firn.sasl.oauthbearer.token.file": str(path / "token"),
        }
        if folder is not None:
            texts["ssl.truststore.location"] = str(folder / "ca.pem")
        try:
            connection = await open_connection("localhost", port, dial=SecureDialer(client_security(texts)))
        except RequestRejected as refused:
            return "refused" if "invalid_token" in str(refused) else str(refused)
        await connection.close()
        return "let in"

    return log_in


def keys_of(broker: RunningBroker) -> token_keys.TokenKeys:
    assert broker.node._doors is not None
    [keys] = broker.node._doors._keys
    return keys


@asynccontextmanager
async def served_keys(folder: Path | None = None) -> AsyncIterator[tuple[WebServer, str]]:
    async with web_server(json_answer(document("one")), None if folder is None else folder / "broker.pem") as server:
        yield server, f"http{'' if folder is None else 's'}://localhost:{server.port}/keys"


async def test_a_new_key_of_the_issuer_is_fetched_once_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "SOONEST_S", 0.01)
    folder = certificates(tmp_path / "tls")
    async with served_keys(folder) as (server, url), running_broker(tmp_path, **security(door(url, folder))) as broker:
        log_in = logging_in(broker, tmp_path, folder)
        await until(lambda: keys_of(broker).found)
        assert await log_in("one") == "let in"
        assert len(server.asked) == 1
        server.answer = json_answer(document("two"))
        assert await log_in("two") == "refused", "no login waits for keys"
        await until(lambda: keys_of(broker).found.keys() == {"two"})
        assert await log_in("two") == "let in"
        assert await log_in("one") == "refused", "a key that its issuer has taken back"


async def test_tokens_of_unknown_keys_do_not_make_the_broker_ask_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "SOONEST_S", 3600.0)  # so that a slow machine's time does not count
    async with served_keys() as (server, url), running_broker(tmp_path, **security(door(url))) as broker:
        log_in = logging_in(broker, tmp_path)
        await until(lambda: keys_of(broker).found)
        for number in range(10):
            assert await log_in("one", f"made up {number}") == "refused"
        assert await log_in("one") == "let in"
        assert len(server.asked) == 1


async def test_a_start_without_keys_refuses_tokens_and_goes_on_trying(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/keys"
    wait = {"sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": "100"}
    async with running_broker(tmp_path, **security(door(url, **wait))) as broker:
        log_in = logging_in(broker, tmp_path)
        assert await log_in("one") == "refused"
        await until(lambda: any("refuses all tokens until it has keys" in line for line in broker.lines))
        async with web_server(json_answer(document("one")), port=port):
            await until(lambda: keys_of(broker).found)
        assert await log_in("one") == "let in"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http_answer(b"", "503 Service Unavailable"), "status of the answer is 503"),
        (http_answer(b"<html>"), "the document is no JSON"),
        (http_answer(b"\xff\xfe\xfa"), "the document is no text|no JSON"),
        (http_answer(b"[" * 200_000), "nested too deeply"),
        (json_answer({"keys": []}), "no EC key"),
        (json_answer({"keys": [{}] * 101}), "at most 100 keys"),
        (json_answer([]), "not a JWKS document"),
    ],
)
async def test_keys_stay_while_others_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    monkeypatch.setattr(token_keys, "SOONEST_S", 0.01)
    wait = {"sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": "100"}
    async with served_keys() as (server, url), running_broker(tmp_path, **security(door(url, **wait))) as broker:
        log_in = logging_in(broker, tmp_path)
        await until(lambda: keys_of(broker).found)
        server.answer = answer
        assert await log_in("two") == "refused"
        await until(lambda: len(server.asked) >= 4)
        [line] = [line for line in broker.lines if "goes on with the keys that it has" in line]
        assert re.search(why, line), line
        assert await log_in("one") == "let in"
        server.answer = json_answer(document("one", "two"))
        await until(lambda: len(keys_of(broker).found) == 2)
        assert await log_in("two") == "let in"


@pytest.mark.parametrize(
    ("url", "allowed", "why"),
    [
        ("https://issuer.example/keys", "https://issuer.example/other", "is not allowed: write the same URL into firn"),
        ("https://issuer.example/keys", "", "is not allowed"),
        ("http://127.0.0.1:1/keys", "", "is not allowed"),
        ("http://issuer.example/keys", "http://issuer.example/keys", "http://… of this machine"),
        ("http://127.0.0.1.example/keys", "http://127.0.0.1.example/keys", "http://… of this machine"),
        ("https://me:pw1234@issuer.example/", "https://me:pw1234@issuer.example/", "must have no user"),
        ("https://issuer.example/a b", "https://issuer.example/a b", "ASCII characters"),
        ("https://issuer.example/ä", "https://issuer.example/ä", "ASCII characters"),
        ("https:///keys", "https:///keys", "must be https://"),
        ("https://issuer.example:99999/", "https://issuer.example:99999/", "is no URL"),
        ("ftp://issuer.example/keys", "ftp://issuer.example/keys", "must be https://"),
    ],
)
def test_keys_come_from_where_the_operator_says(url: str, allowed: str, why: str) -> None:
    settings = {"sasl_oauthbearer_jwks_endpoint_url": url, "firn_sasl_oauthbearer_allowed_urls": allowed}
    kind = listener("SASL_PLAINTEXT", mechanisms="OAUTHBEARER", sasl_oauthbearer_expected_audience="firn", **settings)
    with pytest.raises(ConfigError, match=why) as refused:
        Doors.check(BrokerConfig(**security(kind)))
    assert "pw1234" not in str(refused.value)


async def test_a_fetch_that_hangs_ends_with_the_broker(tmp_path: Path) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with served_keys() as (server, url):
        server.answer = silent
        async with running_broker(tmp_path, **security(door(url))):
            await until(lambda: server.asked)
