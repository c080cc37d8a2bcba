"""An S3 server that is away for a minute: it stands still, or is killed and started again (ADR 0037, "The store is away")."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.object_brokers import ALONE, begin, outage
from tests.faults.object_load import TOPIC, check, wait_until_led
from tests.faults.served import serving
from tests.support.s3_server import CREDENTIALS, s3_server

pytestmark = pytest.mark.faults


async def lose_the_server(path: Path, name: str, away_s: float, *, killed: bool) -> None:
    """``firn serve`` with topics of every durability, and a store that is not there for a while."""
    with (
        s3_server(name, path / "bucket") as s3,
        serving(path, "--take-over", store=s3.store, environment=CREDENTIALS, settings=ALONE) as broker,
    ):
        clients, process = begin(broker)
        cut, heal = (s3.kill, s3.start) if killed else (s3.stand_still, s3.go_on)
        try:
            await outage(clients, process, cut, heal, away_s)
        finally:
            s3.go_on()
            clients.stop()
        assert check(broker.bootstrap, clients.writing, clients.following)
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start()
        wait_until_led(AdminClient({"bootstrap.servers": broker.bootstrap}), TOPIC)
        records = check(broker.bootstrap, clients.writing, clients.following)
        print(f"{name}, {'killed' if killed else 'still'} for {away_s:.0f} s: {records} records")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "killed"), [("moto", False), ("s3s-fs", False), ("s3s-fs", True), ("MinIO", False), ("MinIO", True)]
)
async def test_a_minute_without_an_s3_server(tmp_path: Path, name: str, killed: bool) -> None:
    await lose_the_server(tmp_path, name, 60, killed=killed)
