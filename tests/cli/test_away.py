"""Commands whose broker goes away, or speaks TLS where they do not."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path

import pytest

from app.cli import consume, main
from tests.support.broker import running_broker
from tests.support.commands import runner
from tests.support.ports import free_port
from tests.support.secured import certificates


async def test_a_plain_client_at_a_tls_port_is_told_what_to_set(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "broker.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        done = await runner(capfd, monkeypatch)("topic", "list", "-b", address)
    assert done.code == 1
    assert done.err == (
        f"firn: {address} speaks TLS, and this command does not. Name a file with security.protocol=SSL or SASL_SSL,"
        " and with the login if there is one, by --client-config.\n"
    )


async def test_a_reader_that_follows_says_when_its_broker_is_away_and_when_it_is_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "AWAY_PAUSE_S", 0.01)
    monkeypatch.setattr("app.cli.session.RETRY_BUDGET_MS", 200)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    port = free_port()
    said = ""

    async def until_said(words: str) -> None:
        nonlocal said
        async with asyncio.timeout(60):
            while words not in said:
                said += "".join(capfd.readouterr())
                await asyncio.sleep(0.01)

    async with running_broker(tmp_path, listen_port=port) as running:
        await running.create_topic("t", 1)
        await runner(capfd, monkeypatch)("produce", "t", str(_lines(tmp_path, "first")), "-b", running.bootstrap)
        following = asyncio.create_task(
            asyncio.to_thread(main, ["consume", "t", "-f", "-n", "2", "-b", running.bootstrap])
        )
        await until_said("first\n")
    await until_said("Trying again.")
    async with running_broker(tmp_path, listen_port=port) as running:
        await until_said("The brokers respond again.")
        await runner(capfd, monkeypatch)("produce", "t", str(_lines(tmp_path, "second")), "-b", running.bootstrap)
        assert await following == 0


def _lines(folder: Path, text: str) -> Path:
    path = folder / text
    path.write_text(f"{text}\n")
    return path
