"""``firn debug bundle``: it has what helps, and none of the planted secrets."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

import pytest

from app.cli import main
from tests.support.broker import running_broker

PLANTED = ("plantedConfigPassword1", "plantedLogToken2", "plantedUrlUser3", "plantedKey4", "plantedStoreKey5")


def files_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for one in archive.getmembers():
            content = archive.extractfile(one)
            assert content is not None
            found[one.name.removeprefix("firn-debug/")] = content.read().decode()
    return found


async def test_a_bundle_describes_the_cluster_and_has_no_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        f"node.id=1\nssl.keystore.password={PLANTED[0]}\nfirn.quota.redis.url=redis://{PLANTED[2]}:x@host:6379\n"
        f"ssl.keystore.key=-----BEGIN PRIVATE KEY-----\\\n{PLANTED[3]}\\\n-----END PRIVATE KEY-----\n"
    )
    log = tmp_path / "broker.log"
    log.write_text("x" * (5 << 20) + f"\nAuthorization: Bearer {PLANTED[1]}\nthe broker serves\n")
    store = tmp_path / "store.json"
    store.write_text(json.dumps({"secret_access_key": PLANTED[4], "region": "eu-central-1"}))
    bundle = tmp_path / "bundle.tar.gz"
    async with running_broker(tmp_path, log_retention_check_interval_ms=12_345) as broker:
        await broker.create_topic("orders", 3, retention_ms="86400000")
        arguments = ["debug", "bundle", str(bundle), "--bootstrap", broker.bootstrap, "--log", str(log)]
        more = ["--config", str(config), "--config", str(store)]
        assert await asyncio.to_thread(main, [*arguments, *more]) == 0
        found = files_of(bundle)
        assert await asyncio.to_thread(main, [*arguments, *more]) != 0
        assert "exists. Name another file." in capfd.readouterr().err
    assert "missing.txt" not in found
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert json.loads(found["about.json"])["packages"]["numpy"]
    assert json.loads(found["cluster.json"])["topics"] == 1
    assert json.loads(found["topics.json"])["orders"] == {"partitions": 3, "settings": {"retention.ms": "86400000"}}
    assert json.loads(found["brokers/1.json"])["log.retention.check.interval.ms"] == "12345"
    assert 'firn_requests_total{node_id="1"' in found["metrics.txt"]
    assert {one["topic"] for one in json.loads(found["tier.json"])} == {"orders"}
    assert found["logs/1-broker.log"].endswith("the broker serves\n")
    assert len(found["logs/1-broker.log"]) <= 4 << 20
    assert json.loads(found["settings/2-store.json"])["region"] == "eu-central-1"
    assert "node.id=1" in found["settings/1-server.properties"]
    for secret in PLANTED:
        assert not [name for name, text in found.items() if secret in text], secret


def test_without_a_broker_a_bundle_has_the_rest_and_says_what_it_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    assert main(["debug", "bundle", str(bundle), "--bootstrap", "127.0.0.1:1"]) == 0
    found = files_of(bundle)
    assert found.keys() == {"about.json", "missing.txt"}
    assert "the cluster:" in found["missing.txt"]
    assert "It lacks the cluster" in capfd.readouterr().err
