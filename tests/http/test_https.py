"""HTTPS as the process serves it: handshakes, renewed certificates, and answers that are read to their end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvicorn

from app.core.errors import ConfigError
from app.core.faults import Faults
from app.core.metrics import Registry
from app.http import connections
from app.http.application import create_app
from app.http.connections import ConnectionLimits, OpenConnections, connection_class
from app.http.gateway import HttpSettings
from app.http.tls import HttpTls
from app.http.tls_settings import read_tls
from app.machine.runtime import SystemClock
from tests.support.broker import running_broker
from tests.support.ports import free_port
from tests.support.secured import USERS, break_tls, certificates, revocations, store_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c")


class Served:
    def __init__(self, port: int, tls: HttpTls, registry: Registry) -> None:
        self.port = port
        self.tls = tls
        self.registry = registry
        self.lines: list[str] = []
        self.faults = Faults(self.lines.append)

    async def look(self) -> None:
        await self.tls.look(self.faults, self.lines.append)

    def closed(self, reason: str) -> float:
        name = "firn_http_connections_closed_total"
        found = [one for one in self.registry.samples() if one.name == name and dict(one.labels)["reason"] == reason]
        return sum(one.value for one in found)

    async def connect(self, trust: Path, **versions: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=str(trust))
        for name, version in versions.items():
            setattr(context, name, version)
        return await asyncio.open_connection("localhost", self.port, ssl=context)


@asynccontextmanager
async def serving(
    settings: dict[str, str], *, handshakes_max: int = 100, header_ms: int = 3_600_000
) -> AsyncIterator[Served]:
    registry = Registry()
    tls_settings = read_tls(settings)
    assert tls_settings is not None
    http = HttpSettings(bootstrap=(("127.0.0.1", free_port()),), retry_budget_ms=1)
    app = create_app(http, clock=SystemClock(), rng=random.Random(2), registry=registry)
    limits = ConnectionLimits(connections_max=100, header_timeout_ms=header_ms, transfer_timeout_ms=3_600_000)
    door = OpenConnections(limits, registry)
    tls = HttpTls(tls_settings, door, handshakes_max=handshakes_max)
    port = free_port()
    wrapped: Any = tls.around(connection_class(door))
    config = uvicorn.Config(app, host="127.0.0.1", port=port, http=wrapped, ws="none", log_level="error")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        yield Served(port, tls, registry)
    finally:
        tls.arrivals.end_all()
        server.should_exit = True
        await task


async def status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = "/healthz") -> int:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_are_served_over_tls(folder: Path, version: ssl.TLSVersion) -> None:
    async with serving({"ssl.keystore.location": str(folder / "broker.pem")}) as served:
        reader, writer = await served.connect(folder / "ca.pem", minimum_version=version, maximum_version=version)
        for path in ("/healthz", "/openapi.json", "/docs"):
            assert await status(reader, writer, path) == 200
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b'"https://localhost/v3/clusters"' in await reader.read()
        writer.close()


async def test_versions_that_are_not_named_are_not_spoken(folder: Path) -> None:
    settings = {"ssl.keystore.location": str(folder / "broker.pem"), "ssl.enabled.protocols": "TLSv1.3"}
    async with serving(settings) as served:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served.connect(folder / "ca.pem", maximum_version=ssl.TLSVersion.TLSv1_2)
        reader, writer = await served.connect(folder / "ca.pem")
        assert await status(reader, writer) == 200
        writer.close()
        assert served.closed("tls_handshake") == 1


async def test_new_connections_get_the_new_certificate_and_old_ones_stay(tmp_path: Path) -> None:
    old, new = certificates(tmp_path / "old"), certificates(tmp_path / "new")
    used = tmp_path / "web.pem"
    used.write_bytes((old / "broker.pem").read_bytes())
    async with serving({"ssl.keystore.location": str(used)}) as served:
        before = await served.connect(old / "ca.pem")
        used.write_bytes(b"broken")
        await served.look()
        assert "goes on with its old certificate" in served.lines[-1]
        used.write_bytes((new / "broker.pem").read_bytes())
        await served.look()
        assert "has read its certificate again" in served.lines[-1]
        after = await served.connect(new / "ca.pem")
        with pytest.raises(ssl.SSLCertVerificationError):
            await served.connect(old / "ca.pem")
        for one in (before, after):
            assert await status(*one) == 200
            one[1].close()


async def test_handshakes_that_nobody_finishes_are_bounded_and_others_are_served(folder: Path) -> None:
    settings = {"ssl.keystore.location": str(folder / "broker.pem")}
    async with serving(settings, handshakes_max=10) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(60)]
        reader, writer = await served.connect(folder / "ca.pem")
        assert await status(reader, writer) == 200
        assert len(served.tls.arrivals) <= 10
        for one, _ in silent[:40]:
            with contextlib.suppress(ConnectionResetError):
                assert await one.read() == b"", "the oldest made room"
        for _, other in (*silent, (reader, writer)):
            other.close()


async def test_a_handshake_has_a_deadline(folder: Path) -> None:
    async with serving({"ssl.keystore.location": str(folder / "broker.pem")}, header_ms=50) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert len(served.tls.arrivals) == 0
        writer.close()


async def test_what_is_not_tls_is_let_go(folder: Path) -> None:
    async with serving({"ssl.keystore.location": str(folder / "broker.pem")}) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await reader.read()
        assert served.closed("tls_handshake") == 1
        writer.close()


async def test_a_connection_whose_tls_breaks_is_let_go_and_counted(folder: Path) -> None:
    async with serving({"ssl.keystore.location": str(folder / "broker.pem")}) as served:
        await break_tls(served.port, folder / "ca.pem")
        assert served.closed("malformed") == 1
        reader, writer = await served.connect(folder / "ca.pem")
        assert await status(reader, writer) == 200
        writer.close()


async def test_who_is_still_sending_reads_the_last_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is sent, and the rest of a body is thrown away, as without TLS."""
    monkeypatch.setattr(connections, "LINGER_S", 120.0)  # a slow machine must not end it sooner than this client
    async with serving({"ssl.keystore.location": str(folder / "broker.pem")}) as served:
        reader, writer = await served.connect(folder / "ca.pem")
        # The host is refused before the body is read, and the connection closes.
        writer.write(b"POST /v3/clusters HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 4000000\r\n\r\n")
        writer.write(b"a" * 2_000_000)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 421")
        assert answer.endswith(b"}")
        writer.transport.abort()


async def test_many_requests_and_large_bodies_come_through(folder: Path) -> None:
    async with serving({"ssl.keystore.location": str(folder / "broker.pem")}) as served:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        async with httpx.AsyncClient(base_url=f"https://localhost:{served.port}", verify=context) as client:
            pages = await asyncio.gather(*(client.get("/openapi.json") for _ in range(50)))
            assert {one.status_code for one in pages} == {200}
            assert len({one.content for one in pages}) == 1
            large = await client.post("/v3/clusters/x/topics/y/records", content=b"{" + b" " * 3_000_000)
            assert large.status_code == 503, "there is no broker"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl.client.auth": "required"}, "cannot pass a caller's certificate on"),
        ({"ssl.keystore.key": "x"}, "HTTPS needs a key and a certificate"),
        ({"ssl.keystore.location": "x", "ssl.keystore.type": "JKS"}, "convert the file to PEM"),
        ({"ssl.keystore.location": "x", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2 and TLSv1.3"),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_the_mend(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_tls(settings)


def test_without_a_certificate_http_is_plain() -> None:
    assert read_tls({}) is None
    assert read_tls({"ssl.enabled.protocols": "TLSv1.3", "ssl.client.auth": "none"}) is None


# --- whole processes --------------------------------------------------------------------------------------------------


@pytest.mark.ci
async def test_firn_http_serves_https_by_itself(tmp_path: Path, folder: Path) -> None:
    port = free_port()
    async with running_broker(tmp_path) as broker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", "http", "--bootstrap", broker.bootstrap),
            *("--listen", f"127.0.0.1:{port}", "--tls-certificate", str(folder / "broker.pem")),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            line = (await process.stderr.readline()).decode()
            assert line == f"Firn HTTP listens on https://127.0.0.1:{port}\n"
            context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            streams = await asyncio.open_connection("localhost", port, ssl=context)
            for path in ("/readyz", "/v3/clusters"):
                assert await status(*streams, path) == 200
            streams[1].close()
        finally:
            process.terminate()
            await process.communicate()


async def test_firn_http_takes_no_passwords_in_the_clear(tmp_path: Path) -> None:
    client = tmp_path / "client.properties"
    client.write_text("security.protocol=SASL_PLAINTEXT\n")
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "app.cli",
            "--client-config",
            str(client),
            "http",
            "--listen",
            f"0.0.0.0:{free_port()}",
        ),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode == 2
    assert "HTTP at 0.0.0.0 would take passwords and tokens without encryption" in told.decode()
    assert b"Traceback" not in told


@pytest.mark.slow
async def test_a_broker_with_logins_serves_callers_over_https(tmp_path: Path) -> None:
    """`firn user add --offline`, then `firn serve` with SASL_SSL, and HTTPS by the certificates of `firn tls init`."""
    folder = certificates(tmp_path / "tls")
    kafka, web = free_port(), free_port()
    config = tmp_path / "server.properties"
    config.write_text(
        f"listeners=CLIENTS://127.0.0.1:{kafka}\nadvertised.listeners=CLIENTS://localhost:{kafka}\n"
        "listener.security.protocol.map=CLIENTS:SASL_SSL\ninter.broker.listener.name=CLIENTS\n"
        "listener.name.clients.sasl.enabled.mechanisms=SCRAM-SHA-512\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={folder / 'broker.pem'}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={folder / 'ca.pem'}\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=User:admin\n"
        f"firn.http.listen=127.0.0.1:{web}\nfirn.http.ssl.keystore.location={folder / 'broker.pem'}\n"
        f"log.dirs={tmp_path / 'data'}\n"
    )
    password = tmp_path / "password"
    password.write_text("admin-secret\n")
    firn = (sys.executable, "-m", "app.cli")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("FIRN_")}
    added = await asyncio.create_subprocess_exec(
        *firn, "user", "add", "admin", "--offline", "--data-dir", str(tmp_path / "data"), "--password-file", str(password),
        env=environment,
    )  # fmt: skip
    assert await added.wait() == 0
    process = await asyncio.create_subprocess_exec(
        *firn, "serve", "--config", str(config), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )  # fmt: skip
    try:
        waiting = await asyncio.create_subprocess_exec(
            *firn, "--client-config", str(_client(tmp_path, folder)), "wait", "--bootstrap", f"localhost:{kafka}",
            "--http", f"https://127.0.0.1:{web}", "--timeout", "90", env=environment,
        )  # fmt: skip
        assert await waiting.wait() == 0
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        async with httpx.AsyncClient(base_url=f"https://localhost:{web}", verify=context, timeout=60) as client:
            nobody = await client.get("/docs")
            assert (nobody.status_code, nobody.headers["www-authenticate"].partition(" ")[0]) == (401, "Basic")
            assert (await client.get("/readyz")).status_code == 200
            login = {"Authorization": "Basic " + base64.b64encode(b"admin:admin-secret").decode()}
            page = await client.get("/docs", headers=login)
            assert page.text.startswith("<!doctype html>")
            [cluster] = (await client.get("/v3/clusters", headers=login)).json()["data"]
            path = f"/v3/clusters/{cluster['cluster_id']}/topics"
            made = await client.post(path, headers=login, json={"topic_name": "t"})
            assert made.status_code == 201, made.text
            stored = await client.post(f"{path}/t/records", headers=login, json={"value": {"data": 1}})
            assert (stored.status_code, stored.json()["offset"]) == (200, 0)
            told = await client.get("/metrics", headers=login)
            assert f'firn_broker_up{{address="localhost:{kafka}"' in told.text
    finally:
        process.terminate()
        output, _ = await process.communicate()
    assert b"admin-secret" not in output
    assert b"Traceback" not in output, output.decode()


@pytest.mark.parametrize("trust", ["store", "by value"])
async def test_http_knows_the_broker_by_its_listeners_truststore_and_has_no_other_secret(
    tmp_path: Path, folder: Path, trust: str
) -> None:
    kafka, web = free_port(), free_port()
    config = tmp_path / "server.properties"
    config.write_text(
        f"listeners=SASL_SSL://127.0.0.1:{kafka}\nadvertised.listeners=SASL_SSL://localhost:{kafka}\n"
        "inter.broker.listener.name=SASL_SSL\nsasl.enabled.mechanisms=PLAIN\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={folder / 'broker.pem'}\n"
        f"firn.http.listen=127.0.0.1:{web}\nlog.dirs={tmp_path / 'data'}\n"
    )
    secrets = {
        "FIRN_SASL_JAAS_CONFIG": USERS,
        "FIRN_SSL_KEYSTORE_KEY": "canary-1",
        "FIRN_SSL_KEYSTORE_PASSWORD": "canary-2",
        "FIRN_SSL_KEY_PASSWORD": "canary-3",
        "FIRN_DELEGATION_TOKEN_SECRET_KEY": "canary-4",
        "FIRN_CLIENT_SASL_PASSWORD": "canary-5",
        "AWS_SECRET_ACCESS_KEY": "canary-6",
    }
    if trust == "store":
        handed = {
            "SSL_TRUSTSTORE_TYPE": "PKCS12",
            "SSL_TRUSTSTORE_LOCATION": str(store_of(folder, "client", "password-of-the-store")),
            "SSL_TRUSTSTORE_PASSWORD": "password-of-the-store",
        }
    else:
        (tmp_path / "crl.pem").write_bytes(revocations(folder))
        handed = {
            "SSL_TRUSTSTORE_CERTIFICATES": (folder / "ca.pem").read_text().strip(),
        }
        secrets["FIRN_SSL_CRL_LOCATION"] = str(tmp_path / "crl.pem")  # checks clients, and is not for HTTP
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("FIRN_", "AWS_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "serve", "--config", str(config)),
        env={**inherited, **secrets, **{f"FIRN_{name}": text for name, text in handed.items()}},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{web}", timeout=60) as client, asyncio.timeout(90):
            ready = False
            while not ready:
                assert process.returncode is None, await process.stderr.read() if process.stderr else ""
                with contextlib.suppress(httpx.TransportError):
                    ready = (await client.get("/readyz")).status_code == 200
                await asyncio.sleep(0.05)
            answer = await client.get("/v3/clusters", auth=("alice", "alice-secret"))
            assert answer.status_code == 200, answer.text
        children = {" ".join(one.cmdline()): one.environ() for one in psutil.Process(process.pid).children()}
        assert not any("password-of-the-store" in command for command in children)
        http, store = (
            next(found for command, found in children.items() if f" {module} " in command)
            for module in ("app.http", "app.tiering.store.store_process")
        )
        of_firn = {name: text for name, text in http.items() if name.startswith("FIRN_")}
        assert of_firn == {
            "FIRN_CLIENT_SECURITY_PROTOCOL": "SASL_SSL",
            **{f"FIRN_CLIENT_{name}": text for name, text in handed.items()},
        }
        assert not any(name.startswith("FIRN_") for name in store)
        assert store["AWS_SECRET_ACCESS_KEY"] == "canary-6"
        assert "canary" not in repr(http)
        assert "alice-secret" not in repr(children)
    finally:
        if process.returncode is None:
            process.terminate()
        _, told = await process.communicate()
    assert b"Traceback" not in told, told.decode()


def _client(path: Path, folder: Path) -> Path:
    made = path / "client.properties"
    made.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=admin\nsasl.password=admin-secret\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={folder / 'ca.pem'}\n"
    )
    return made
