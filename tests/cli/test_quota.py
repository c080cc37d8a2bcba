"""``firn quota list|set|remove`` against a real broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.cli import main
from app.metadata.image.records import SECURITY_LEVEL
from tests.support.broker import running_broker
from tests.support.several import unfenced
from tests.support.waiting import until

Capture = pytest.CaptureFixture[str]


async def test_limits_are_set_listed_and_removed(tmp_path: Path, capfd: Capture) -> None:
    async with running_broker(tmp_path, new_level=SECURITY_LEVEL) as broker:
        await until(lambda: unfenced(broker) == [1])

        async def firn(*arguments: str) -> int:
            return await asyncio.to_thread(main, ("quota", *arguments, "--bootstrap", broker.bootstrap))

        assert await firn("list") == 0
        assert "There are no quotas." in capfd.readouterr().err
        assert await firn("set", "--user", "alice", "--client-id", "", "producer_byte_rate=1e6") == 0
        assert "user alice and client-id (default)" in capfd.readouterr().err
        assert await firn("set", "--ip", "::1", "connection_creation_rate=5") == 0
        capfd.readouterr()
        assert await firn("list") == 0
        table = capfd.readouterr().out
        assert "alice" in table
        assert "(default)" in table
        assert "1,000,000" in table
        assert await firn("remove", "--ip", "::1", "connection_creation_rate") == 0
        capfd.readouterr()
        assert await firn("list", "--json") == 0
        assert json.loads(capfd.readouterr().out) == [
            {"entity": {"user": "alice", "client-id": None}, "limits": {"producer_byte_rate": 1e6}}
        ]
        for wrong, told in (
            (("set", "producer_byte_rate=1"), "Say whose limits"),
            (("set", "--user", "a", "producer_byte_rate=much"), "is a number"),
            (("set", "--user", "a", "producer_rate=1"), "is not a quota of such an entity"),
            (("set", "--user", "a", "producer_byte_rate=0"), "above 0"),
        ):
            assert await firn(*wrong) != 0
            assert told in capfd.readouterr().err
