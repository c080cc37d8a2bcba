"""``firn cluster place``: who has a node id, read from the store alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from tests.support.broker import running_broker


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


async def place(store: Path, node_id: int, *more: str) -> int:
    return await asyncio.to_thread(
        main, ("cluster", "place", "--store", f"file://{store}", "--node-id", str(node_id), *more)
    )


async def test_place_prints_who_is_registered_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_broker(tmp_path, node_id=3, firn_instance_id="i-0abc", broker_rack="eu-central-1a") as broker:
        await broker.create_topic("t", 4)
        before = files_of(tmp_path / "store")
        assert await place(tmp_path / "store", 3, "--json") == 0
        assert files_of(tmp_path / "store") == before
        found: dict[str, Any] = json.loads(capfd.readouterr().out)
        mine = broker.node.cluster.identity
        assert found["cluster_id"] == broker.node.cluster.image.cluster_id
        assert (found["node_id"], found["directory_id"]) == (3, str(mine.directory_id))
        assert (found["instance_id"], found["rack"], found["partitions"]) == ("i-0abc", "eu-central-1a", 4)
        address = {"listener": "PLAINTEXT", "host": "127.0.0.1", "port": broker.port, "protocol": "PLAINTEXT"}
        assert found["endpoints"] == [address]
        assert found["last_sign_of_life_ms"] >= found["registered_ms"] - 60_000
    assert await place(tmp_path / "store", 3) == 0
    text = capfd.readouterr().out
    assert "i-0abc" in text
    assert "none in the store" in text  # it stopped in order


async def test_place_ends_with_4_if_nobody_is_registered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert await place(tmp_path / "empty", 1, "--json") == 4
    found = json.loads(capfd.readouterr().out)
    assert (found["cluster_id"], found["directory_id"], found["partitions"]) == ("", None, 0)
    async with running_broker(tmp_path):
        assert await place(tmp_path / "store", 9) == 4
        assert "No broker is registered with node id 9" in capfd.readouterr().err


async def test_place_does_not_make_a_store_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert await place(tmp_path / "nowhere", 1) not in (0, 4)
    assert not (tmp_path / "nowhere").exists()
    assert "--store" in capfd.readouterr().err
