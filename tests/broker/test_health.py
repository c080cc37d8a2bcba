"""What makes a broker unready, and how a hung store is named: the table, the line, and real processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from app.broker.watching.health import judge
from app.http.health import Health, HealthReader
from tests.faults.served import STORE_PROCESS, Served, firn, serving
from tests.support.ports import free_port
from tests.support.waiting import block_until

FINE: dict[str, Any] = {"store_trouble": "", "offline_reason": None, "no_room": None, "leaders": 3, "offline": 0}


@pytest.mark.parametrize(
    ("changes", "ready", "store", "disk"),
    [
        ({}, True, "ok", "ok"),
        ({"leaders": 0}, True, "ok", "ok"),
        ({"store_trouble": "The object store has not responded for 9 s."}, True, "away", "ok"),
        ({"no_room": "the disk is full"}, True, "ok", "full"),
        ({"offline": 2}, True, "ok", "ok"),
        ({"leaders": 0, "offline": 2}, False, "ok", "ok"),
        ({"offline_reason": "cannot sync"}, False, "ok", "offline"),
        ({"isolated": True}, True, "ok", "ok"),
        ({"isolated": True, "leaders": 0}, False, "ok", "ok"),
        ({"offline_reason": "cannot sync", "no_room": "the disk is full"}, False, "ok", "offline"),
    ],
)
def test_a_broker_is_ready_while_something_of_what_it_leads_can_be_served(
    changes: dict[str, Any], ready: bool, store: str, disk: str
) -> None:
    health = judge(**(FINE | changes))
    assert (health.ready, health.store.state, health.disk.state) == (ready, store, disk)
    assert bool(health.store.why) is (store != "ok")
    assert bool(health.disk.why) is (disk != "ok")
    if not ready:
        assert health.sentence().endswith(".")


def test_the_newest_line_counts_however_lines_are_cut() -> None:
    first, second = judge(**FINE), judge(**(FINE | {"no_room": "full"}))
    data = first.line() + second.line()
    listener = HealthReader()
    seen: list[Health | None] = []
    for position in range(0, len(data), 7):
        listener.feed(data[position : position + 7])
        seen.append(listener.newest)
    assert seen[0] is None
    assert first in seen
    assert listener.newest == second


def readiness(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def said(broker: Served, *arguments: str) -> str:
    done = firn(*arguments, "-b", broker.bootstrap, timeout_s=120)
    return done.stdout + done.stderr


@pytest.mark.ci
def test_a_store_that_hangs_is_named_by_readyz_and_commands_and_keeps_the_broker_ready(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, http=f"127.0.0.1:{port}") as broker:
        assert firn("topic", "create", "t", "-b", broker.bootstrap).returncode == 0
        block_until(lambda: readiness(port)[1].get("leaders") == 1, "the HTTP process knows the broker's health")
        status, body = readiness(port)
        assert (status, body["status"], body["store"], body["disk"]) == (200, "ready", {"state": "ok"}, {"state": "ok"})
        store = broker.child(STORE_PROCESS)
        store.suspend()
        try:
            refused = said(broker, "topic", "create", "u")
            assert "The object store has not responded for" in refused, refused
            assert "may be made when it responds" in refused
            block_until(lambda: readiness(port)[1]["store"]["state"] == "away", "readyz names the store")
            assert readiness(port)[0] == 200
            for command in (
                ("cluster", "status"),
                ("cluster", "brokers"),
                ("topic", "list"),
                ("topic", "describe", "t"),
            ):
                assert "The object store has not responded for" in said(broker, *command), command
            again = said(broker, "topic", "create", "v")
            assert "Nothing was changed." in again
        finally:
            store.resume()
        block_until(lambda: readiness(port)[1]["store"]["state"] == "ok", "the store responds again")
        assert "Created topic w" in said(broker, "topic", "create", "w")


@pytest.mark.ci
def test_a_disk_below_its_reserve_is_told_and_keeps_the_broker_ready(tmp_path: Path) -> None:
    port = free_port()
    settings = {"firn.log.dir.free.bytes.min": 1 << 60}
    with serving(tmp_path, http=f"127.0.0.1:{port}", settings=settings):
        block_until(lambda: readiness(port)[1].get("disk", {}).get("state") == "full", "the disk is told")
        status, body = readiness(port)
        assert status == 200
        assert "Producers are refused" in body["disk"]["why"]
