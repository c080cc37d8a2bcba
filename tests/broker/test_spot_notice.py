"""A spot notice of the machine's metadata service begins a drain: a stand-in answers as AWS does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.broker.watching.spot_notice import SpotNotice
from app.core.faults import Faults
from tests.broker.ephemeral import SETTINGS, in_cluster
from tests.support.several import broker_on

TOKEN = "AQAEAK"


class Metadata:
    """Answers with a token to a PUT, and to who has it with the notice, if there is one."""

    def __init__(self) -> None:
        self.notice: bytes | None = None
        self.requests: list[str] = []
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.requests.append(first.rsplit(" ", 1)[0])
        status, body = 404, b""
        if first.startswith("PUT /latest/api/token ") and headers.get("x-aws-ec2-metadata-token-ttl-seconds"):
            status, body = 200, TOKEN.encode()
        elif headers.get("x-aws-ec2-metadata-token") != TOKEN:
            status = 401
        elif first.startswith("GET /latest/meta-data/spot/instance-action ") and self.notice is not None:
            status, body = 200, self.notice
        writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        self.asked.set()

    async def asked_again(self, times: int) -> None:
        for _ in range(times):
            self.asked.clear()
            await self.asked.wait()

    async def listen(self) -> tuple[asyncio.Server, str]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


NOTICE = json.dumps({"action": "terminate", "time": "2026-01-01T00:02:00Z"}).encode()


async def test_a_notice_is_told_once_with_one_token_for_all_questions() -> None:
    metadata, lines, told = Metadata(), [], []
    server, url = await metadata.listen()
    async with server:
        notice = SpotNotice(
            url, on_notice=lambda: told.append(1), log_line=lines.append, faults=Faults(lines.append), interval_s=0.01
        )
        asking = asyncio.create_task(notice.run())
        await metadata.asked_again(4)
        assert not told
        metadata.notice = NOTICE
        await asking
    assert told == [1]
    assert metadata.requests.count("PUT /latest/api/token") == 1
    assert lines == [
        "this machine is about to be taken away (terminate at 2026-01-01T00:02:00Z): the broker drains and stops"
    ]


async def test_a_service_that_is_away_or_talks_nonsense_stops_nobody() -> None:
    metadata, lines, told = Metadata(), [], []
    metadata.notice = b"<html>"
    server, url = await metadata.listen()
    notice = SpotNotice(
        url, on_notice=lambda: told.append(1), log_line=lines.append, faults=Faults(lines.append), interval_s=0.01
    )
    asking = asyncio.create_task(notice.run())
    async with server:
        await metadata.asked_again(6)
    metadata.notice = NOTICE
    asking.cancel()
    await asyncio.wait([asking])
    assert not told
    assert len(lines) == 1
    assert "whether this machine is about to end" in lines[0]


async def test_a_broker_without_a_disk_stops_in_order_when_its_machine_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.watching.spot_notice.INTERVAL_S", 0.02)
    metadata = Metadata()
    server, url = await metadata.listen()
    async with server, broker_on(tmp_path, "a", **SETTINGS, firn_spot_notice_endpoint=url) as broker:
        await in_cluster(broker)
        metadata.notice = NOTICE
        await asyncio.wait_for(broker.ended.wait(), 60)
        assert [line for line in broker.lines if "taken away" in line]
