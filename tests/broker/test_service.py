"""What a broker tells the service manager that started it (sd_notify)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.broker.start.process import Broker
from app.broker.start.service import ServiceManager
from app.configs import BrokerConfig
from tests.broker.processes import broker
from tests.broker.service_manager import Manager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_a_message_has_a_line_for_each_field(manager: Manager, tmp_path: Path) -> None:
    service = ServiceManager(str(tmp_path / "notify"))
    service.starting("reads\n1,000 logs")
    assert manager.next() == {"STATUS": "reads 1,000 logs", "EXTEND_TIMEOUT_USEC": "30000000"}
    service.ready("serves")
    assert manager.next() == {"READY": "1", "STATUS": "serves"}
    service.busy("drains")
    assert manager.next() == {"STATUS": "drains", "EXTEND_TIMEOUT_USEC": "30000000"}
    service.serving("serves")
    assert manager.next() == {"STATUS": "serves"}
    service.stopping("stops")
    service.stopping("stops")
    assert manager.next() == {"STOPPING": "1", "STATUS": "stops", "EXTEND_TIMEOUT_USEC": "30000000"}
    service.close()
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.next()


def test_a_broker_that_stops_before_it_served_keeps_its_time_and_is_not_called_ready(
    manager: Manager, tmp_path: Path
) -> None:
    service = ServiceManager(str(tmp_path / "notify"))
    service.starting("reads 1,000 logs")
    service.stopping("stops")
    service.ready("serves")
    service.busy("drains")
    service.close()
    assert [manager.next() for _ in range(2)][1]["STOPPING"] == "1"
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.next()


async def test_the_loop_says_that_it_runs_and_asks_for_time_while_it_needs_some(
    manager: Manager, tmp_path: Path
) -> None:
    service = ServiceManager(str(tmp_path / "notify"), watchdog_s=0.01)
    running = asyncio.create_task(service.run())
    assert await asyncio.to_thread(manager.next) == {"WATCHDOG": "1"}
    service.starting("reads")
    while "EXTEND_TIMEOUT_USEC" not in (told := await asyncio.to_thread(manager.until, "WATCHDOG")):
        pass
    assert told == {"WATCHDOG": "1", "EXTEND_TIMEOUT_USEC": "30000000"}
    running.cancel()
    await asyncio.wait([running])
    service.close()


def test_the_environment_names_the_manager_and_is_not_left_to_children(manager: Manager, tmp_path: Path) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "20000000",
        "WATCHDOG_PID": "7",
        "HOME": "/",
    }
    service = ServiceManager.of_environment(environment, 7)
    assert environment == {"HOME": "/"}
    service.ready("serves")
    assert manager.next()["READY"] == "1"
    service.close()


def test_without_a_manager_nothing_is_sent_and_nothing_fails() -> None:
    service = ServiceManager.of_environment({}, 7)
    service.ready("serves")
    service.close()


def test_an_address_of_an_unknown_kind_and_a_manager_that_is_gone_are_told_once(tmp_path: Path) -> None:
    lines: list[str] = []
    ServiceManager.of_environment({"NOTIFY_SOCKET": "vsock:2:1"}, 7, lines.append).ready("serves")
    assert "vsock:2:1" in lines.pop()
    service = ServiceManager.of_environment({"NOTIFY_SOCKET": str(tmp_path / "gone")}, 7, lines.append)
    service.ready("serves")
    service.ready("serves")
    service.close()
    assert len(lines) == 1
    assert "cannot notify the service manager" in lines[0]


def test_an_abstract_address_is_reached() -> None:
    name = f"firn-test-{os.getpid()}"
    made = Manager("\0" + name)
    service = ServiceManager.of_environment({"NOTIFY_SOCKET": f"@{name}"}, 7)
    service.ready("serves")
    assert made.next()["READY"] == "1"
    service.close()
    made.socket.close()


@pytest.mark.ci
@pytest.mark.faults
async def test_a_broker_tells_when_it_starts_serves_and_stops(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    async with broker(tmp_path) as running:
        first = manager.next()
        assert first["STATUS"].startswith("starts on ")
        assert int(first["EXTEND_TIMEOUT_USEC"]) > 0
        assert f":{running.port}" in manager.until("READY")["STATUS"]
        assert "EXTEND_TIMEOUT_USEC" not in manager.until("WATCHDOG")
        store = running.store_process()
        assert store is not None
        assert "NOTIFY_SOCKET" not in psutil.Process(store.pid).environ()
        running.process.send_signal(signal.SIGTERM)
        assert "EXTEND_TIMEOUT_USEC" in await asyncio.to_thread(manager.until, "STOPPING")
        async with asyncio.timeout(60):
            assert await running.process.wait() == 0


@pytest.mark.faults
async def test_a_stop_that_is_asked_for_before_there_is_a_node_is_not_forgotten(tmp_path: Path) -> None:
    broker = Broker(
        BrokerConfig(data_dir=str(tmp_path / "data"), listen_port=0, http_address="off", firn_log_dir_free_bytes_min=0),
        log_line=lambda line: None,
    )
    broker.request_stop()
    try:
        await broker.start()
        async with asyncio.timeout(60):
            await broker.wait()
    finally:
        await broker.stop()
