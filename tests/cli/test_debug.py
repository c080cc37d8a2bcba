"""``firn debug bundle``: it has what helps, and none of the planted secrets."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.cli import main
from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.core.units import BrokerId
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
    cluster = json.loads(found["cluster.json"])
    assert cluster["topics"] == 1
    assert [(one["node_id"], one["state"]) for one in cluster["brokers"]] == [(1, "alive")]
    assert json.loads(found["topics.json"])["orders"] == {"partitions": 3, "settings": {"retention.ms": "86400000"}}
    assert json.loads(found["brokers/1.json"])["log.retention.check.interval.ms"] == "12345"
    assert 'firn_requests_total{node_id="1"' in found["metrics/1.txt"]
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


LOG_BYTES_MAX = 64 * 1024
"""Of the tests below: a whole log of 4 MiB takes a second."""


@pytest.fixture
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.debug.LOG_BYTES_MAX", LOG_BYTES_MAX)


def bundled_log(tmp_path: Path, text: str) -> str:
    log, bundle = tmp_path / "broker.log", tmp_path / "bundle.tar.gz"
    log.write_text(text)
    assert main(["debug", "bundle", str(bundle), "--bootstrap", "127.0.0.1:1", "--log", str(log)]) == 0
    return files_of(bundle)["logs/1-broker.log"]


@pytest.mark.usefixtures("_short_logs")
def test_a_line_that_the_begin_of_a_log_cuts_is_left_out(tmp_path: Path) -> None:
    rest = "password plain\n" + "x" * 80 + "\n"
    rest += "y" * (LOG_BYTES_MAX - len(rest) - len(PLANTED[0]) - 1)
    assert bundled_log(tmp_path, f"a=1\npassword={PLANTED[0]}\n{rest}") == rest


@pytest.mark.usefixtures("_short_logs")
def test_a_line_that_the_begin_of_a_log_does_not_cut_is_kept(tmp_path: Path) -> None:
    rest = "kept\n" + "y" * (LOG_BYTES_MAX - 5)
    assert bundled_log(tmp_path, f"a=1\n{rest}") == rest


@pytest.mark.usefixtures("_short_logs")
def test_a_private_key_that_the_begin_of_a_log_cuts_is_gone(tmp_path: Path) -> None:
    key = f"-----BEGIN PRIVATE KEY-----\nMIIE\n{PLANTED[3]}+/=\n-----END PRIVATE KEY-----\n"
    rest = "y" * (LOG_BYTES_MAX - len(key) + 10)
    assert bundled_log(tmp_path, key + rest) == "(redacted)\n" + rest


async def test_the_value_of_a_label_cannot_make_lines_of_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = AdminClient.metrics

    async def chosen(self: AdminClient, broker: Any) -> Any:
        told = await metrics(self, broker)
        sample = msgspec.structs.replace(told.samples[0], name="x", labels=[("client", 'a"\\\nforged 1')], value=1.0)
        return msgspec.structs.replace(told, samples=[sample])

    monkeypatch.setattr(AdminClient, "metrics", chosen)
    bundle = tmp_path / "bundle.tar.gz"
    async with running_broker(tmp_path) as broker:
        assert await asyncio.to_thread(main, ["debug", "bundle", str(bundle), "--bootstrap", broker.bootstrap]) == 0
    assert files_of(bundle)["metrics/1.txt"] == 'x{node_id="1",client="a\\"\\\\\\nforged 1"} 1.0\n'


async def test_the_metrics_of_a_broker_that_is_down_are_named_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = ClusterClient.refresh

    async def with_one_more(self: ClusterClient, topics: Any) -> Any:
        view: Any = await refresh(self, topics)
        view.brokers[BrokerId(2)] = view.brokers[BrokerId(1)]._replace(port=1)
        return view

    monkeypatch.setattr(ClusterClient, "refresh", with_one_more)
    bundle = tmp_path / "bundle.tar.gz"
    async with running_broker(tmp_path) as broker:
        assert await asyncio.to_thread(main, ["debug", "bundle", str(bundle), "--bootstrap", broker.bootstrap]) == 0
    found = files_of(bundle)
    assert 'firn_requests_total{node_id="1"' in found["metrics/1.txt"]
    assert "metrics/2.txt" not in found
    assert "metrics/2.txt: " in found["missing.txt"]
