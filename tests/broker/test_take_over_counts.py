"""Metrics of partitions that go on from ended write-ahead logs (``app/broker/write_ahead/write_ahead.py``)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from app.broker.write_ahead.write_ahead import SealedLogs
from app.core.errors import ErrorCode, StorageUnavailable
from tests.broker.object_topics import alone, create, led, produce_count
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker


def counted(broker: RunningBroker) -> dict[str, float]:
    return {
        one.name.removeprefix("firn_wal_take_over"): one.value
        for one in broker.node.registry.samples()
        if one.name.startswith("firn_wal_take_over") and not one.name.endswith("_bucket")
    }


async def test_take_overs_their_bytes_and_failed_attempts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alone(tmp_path) as broker:
        await create(broker, "t", 2)
        async with talk(broker.port) as client:
            for index in (0, 1, 1):
                assert (await produce_count(client, 3, index=index))[0] is ErrorCode.NONE
        written = sum(broker.log("t", index).size_bytes for index in (0, 1))
        assert not any(counted(broker).values()), "a new partition continues nothing"
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    failures = 0
    reading = SealedLogs.reading

    def fails_once(*asked: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise StorageUnavailable("Try again.")
        return reading(*asked)

    monkeypatch.setattr(SealedLogs, "reading", fails_once)
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t", 2)
        found = counted(broker)
        assert found.pop("_seconds_sum") > 0
        assert found == {"s_total": 2, "_failures_total": 1, "_bytes_total": written, "_seconds_count": 2}
