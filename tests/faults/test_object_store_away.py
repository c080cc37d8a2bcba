"""An S3 server that is away for a minute: it stands still, or is killed and started again (ADR 0037, "The store is away")."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from app.metadata.cluster import LEVEL_FEATURE, OBJECT_LEVEL
from tests.faults.object_load import OBJECT, TOPIC, check, create, create_all, wait_until_led
from tests.faults.served import firn, serving
from tests.faults.test_object_durability import BUFFER_BYTES, FLOODS, Clients, outage
from tests.support.s3_server import CREDENTIALS, s3_server

pytestmark = pytest.mark.faults


async def lose_the_server(path: Path, name: str, away_s: float, *, killed: bool) -> None:
    """``firn serve`` with topics of every durability, and a store that is not there for a while."""
    settings = {
        "firn.cluster.enable": "true",
        "wal.bytes": BUFFER_BYTES // 16,
        "wal.buffer.bytes": BUFFER_BYTES,
        "remote.log.manager.task.interval.ms": 200,
    }
    with (
        s3_server(name, path / "bucket") as s3,
        serving(path, "--take-over", store=s3.store, environment=CREDENTIALS, settings=settings) as broker,
    ):
        level = f"{LEVEL_FEATURE}={OBJECT_LEVEL}"
        raised = firn("cluster", "features", "--upgrade", level, "--bootstrap", broker.bootstrap, "--yes")
        assert raised.returncode == 0, raised.stderr
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        create_all(admin, 1)
        create(admin, 1, OBJECT, "flood", partitions=FLOODS)
        clients = Clients(broker.bootstrap, broker.port)
        assert broker.process is not None
        process = psutil.Process(broker.process.pid)
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
