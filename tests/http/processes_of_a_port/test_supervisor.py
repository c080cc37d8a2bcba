"""A supervisor and its workers as real processes: they share a port, and each end of one has its consequence."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.errors import ConfigError
from app.http.consumers.names import owner_of
from app.http.health import Health, Part
from app.http.processes.supervisor import PREFIX, YOUNG_S, private_directory
from app.machine.runtime import SystemClock
from tests.http.processes import Http, head, http_process
from tests.support.broker import RunningBroker, running_broker
from tests.support.waiting import until

NOW_MS = SystemClock().now_ms()
V2 = {"content-type": "application/vnd.kafka.v2+json"}


@pytest.fixture(name="broker")
async def _broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1) as running:
        await running.create_topic("t", 1)
        yield running


@pytest.fixture(name="http")
async def _http(broker: RunningBroker) -> AsyncIterator[Http]:
    async with http_process(broker, "--processes", "2") as running:
        await until(lambda: len(children(running)) == 2)
        await until_all_serve(running)
        yield running


def children(http: Http) -> list[int]:
    """The process ids of the workers, the first one first."""
    text = Path(f"/proc/{http.process.pid}/task/{http.process.pid}/children").read_text()
    found = [int(one) for one in text.split()]
    return sorted(found, key=lambda one: index_of(one) if alive(one) else -1)


def index_of(process_id: int) -> int:
    arguments = Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")
    return int(arguments[arguments.index(b"--worker") + 1].split(b"/")[0]) if b"--worker" in arguments else -1


def folder_of(process_id: int) -> Path:
    arguments = Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")
    return Path("/" + arguments[arguments.index(b"--worker") + 1].decode().split("/", 4)[4])


def alive(process_id: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def ask(http: Http, method: str, path: str, **more: Any) -> httpx.Response:
    """On a connection of its own, so that any worker may get it."""
    async with httpx.AsyncClient(base_url=f"http://localhost:{http.port}", timeout=60) as client:
        return await client.request(method, path, **more)


async def until_all_serve(http: Http, count: int = 2) -> None:
    async def up() -> bool:
        lines = (await ask(http, "GET", "/metrics")).text.splitlines()
        return sum(line.startswith("firn_http_process_up{") and line.endswith(" 1") for line in lines) == count - 1

    async with asyncio.timeout(60):
        while not await up():
            await asyncio.sleep(0.02)


async def until_gone(process_ids: list[int]) -> None:
    await until(lambda: not any(map(alive, process_ids)))


async def created(http: Http, group: str, name: str) -> str:
    async with asyncio.timeout(60):
        while (
            made := await ask(http, "POST", f"/consumers/{group}", json={"name": name}, headers=V2)
        ).status_code == 503:
            await asyncio.sleep(0.02)  # until the topic of groups has a leader
    assert made.status_code == 200, made.text
    return f"/consumers/{group}/instances/{name}"


def name_for(owner: int) -> str:
    return next(name for name in map(str, range(1_000)) if owner_of("g", name, 2) == owner)


@pytest.mark.ci
async def test_a_worker_that_is_killed_loses_its_instances_alone_and_is_started_again(http: Http) -> None:
    places = [await created(http, "g", name_for(owner)) for owner in (0, 1)]
    first, second = children(http)
    os.kill(second, signal.SIGKILL)
    await until_gone([second])
    for _ in range(4):
        lost = await ask(http, "GET", f"{places[1]}/subscription")
        assert (lost.status_code, lost.json()["error_code"]) == (404, 40403)
        assert (await ask(http, "GET", f"{places[0]}/subscription")).json() == {"topics": []}
    await until_all_serve(http)
    assert children(http)[0] == first
    assert children(http)[1] != second
    await created(http, "g", name_for(1))
    for _ in range(4):
        assert (await ask(http, "GET", f"{places[1]}/subscription")).json() == {"topics": []}


@pytest.mark.ci
async def test_both_workers_take_connections(http: Http) -> None:
    async with asyncio.timeout(60):
        while True:
            clients = [await http.connect() for _ in range(20)]
            for _, writer in clients:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for reader, _ in clients:
                assert (await head(reader))[0] == 200
            lines = (await ask(http, "GET", "/metrics")).text.splitlines()
            found = {
                match[1]
                for match in (
                    re.match(r'firn_http_requests_total\{process="(.*?)".*route="/healthz"', one) for one in lines
                )
                if match
            }
            for _, writer in clients:
                writer.close()
            if found == {"http-0", "http-1"}:
                break


@pytest.mark.ci
async def test_a_signal_ends_all_in_order(http: Http, broker: RunningBroker) -> None:
    workers = children(http)
    folder = folder_of(workers[0])
    assert folder.stat().st_mode & 0o777 == 0o700
    reader, writer = await http.connect()
    path = f"/v3/clusters/{broker.node.cluster.image.cluster_id}/topics/t/records"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    record = b'{"value":{"data":1}}'
    writer.write(b"%x\r\n%b\r\n" % (len(record), record))
    assert (await head(reader))[0] == 200
    http.process.send_signal(signal.SIGTERM)
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(record), record))
    assert (await reader.read()).count(b'"error_code":200') == 2
    writer.close()
    assert await http.process.wait() == 0
    assert not any(map(alive, workers))
    assert not folder.exists()


@pytest.mark.ci
async def test_no_worker_outlives_a_supervisor_that_is_killed(http: Http) -> None:
    workers = children(http)
    http.process.kill()
    await http.process.wait()
    await until_gone(workers)


@pytest.mark.ci
async def test_all_end_when_the_parent_is_gone(http: Http) -> None:
    workers = children(http)
    http.leash.close()
    async with asyncio.timeout(60):
        assert await http.process.wait() == 0
    assert not any(map(alive, workers))


@pytest.mark.ci
async def test_a_worker_that_stands_still_makes_the_port_not_ready_until_it_ends(http: Http) -> None:
    first, second = children(http)
    await http.until_ready()
    os.kill(second, signal.SIGSTOP)
    answer: httpx.Response | None = None
    while answer is None or answer.status_code == 200:
        with contextlib.suppress(httpx.ReadTimeout):  # connections of the worker that stands still wait in it
            async with httpx.AsyncClient(base_url=f"http://localhost:{http.port}", timeout=10) as client:
                answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["message"]) == (503, "Process http-1 of the server does not respond.")
    os.kill(second, signal.SIGKILL)
    await until_gone([second])
    await http.until_ready()
    assert alive(first)


@pytest.mark.ci
async def test_each_worker_knows_the_health_of_the_broker_and_so_does_a_new_one(http: Http) -> None:
    full = Part("offline", "The disk is gone.")
    http.leash.send(Health(False, Part("ok"), full, 0, 3, False).line())

    async def until_said() -> None:
        async with asyncio.timeout(60):
            unready = 0
            while unready < 10:  # of any worker
                answer = await ask(http, "GET", "/readyz")
                unready = unready + 1 if answer.json().get("message") == "The disk is gone." else 0

    await until_said()
    for worker in children(http):
        os.kill(worker, signal.SIGKILL)
        await until_gone([worker])
    await until_all_serve(http)
    await until_said()


@pytest.mark.ci
async def test_an_address_in_use_is_said_in_one_sentence_and_no_worker_starts(
    http: Http, broker: RunningBroker
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.http", "--bootstrap", broker.bootstrap, "--processes", "2"),
        *("--listen", f"127.0.0.1:{http.port}"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert stderr.decode() == f"HTTP cannot listen on 127.0.0.1:{http.port}: address already in use.\n"


@pytest.mark.ci
async def test_wrong_settings_are_said_once_and_end_the_supervisor(broker: RunningBroker, tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.http", "--bootstrap", broker.bootstrap, "--processes", "2"),
        *("--listen", "127.0.0.1:0"),
        env={**os.environ, "FIRN_HTTP_SSL_KEYSTORE_LOCATION": str(absent), "FIRN_HTTP_SSL_KEYSTORE_TYPE": "PEM"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert stderr.decode().count(str(absent)) == 1


def test_one_process_imports_nothing_of_several() -> None:
    program = (
        "import sys, app.http.__main__, app.http.server;"
        "print(*sorted(name for name in sys.modules if name.startswith(('app.http.processes.', 'app.http.passing'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["app.http.processes.listening", "app.http.processes.worker"]


def test_the_supervisor_imports_no_application() -> None:
    program = (
        "import sys, app.http.__main__, app.http.processes.supervisor;"
        "print(*sorted({'fastapi', 'starlette', 'uvicorn', 'app.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


# --- folders ----------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    abandoned, used, young, other = (tmp_path / name for name in (f"{PREFIX}a", f"{PREFIX}b", f"{PREFIX}c", "other"))
    for folder in (abandoned, used, young, other):
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / "0.sock"))
    past_s = NOW_MS / 1000 - 2 * YOUNG_S
    for folder in (abandoned, used, other):
        os.utime(folder, (past_s, past_s))
    held = os.open(used, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with private_directory(str(tmp_path), NOW_MS) as made:
        assert {path.name for path in tmp_path.iterdir()} == {used.name, young.name, other.name, Path(made).name}
        os.utime(made, (past_s, past_s))
        with private_directory(str(tmp_path), NOW_MS) as second:
            assert Path(made).exists()
            assert second != made
    assert not Path(made).exists()
    os.close(held)


def old_folder(parent: Path, name: str) -> Path:
    folder = parent / f"{PREFIX}{name}"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "0.sock"))
    return folder


def make_old(*folders: Path) -> None:
    past_s = NOW_MS / 1000 - 2 * YOUNG_S
    for folder in folders:
        os.utime(folder, (past_s, past_s))


def test_a_folder_with_more_than_sockets_of_workers_stays(tmp_path: Path) -> None:
    file, other, nested = (old_folder(tmp_path, name) for name in "abc")
    (file / "1.sock").write_text("no socket")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(other / "x.sock"))
    (nested / "2.sock").mkdir()
    make_old(file, other, nested)
    with private_directory(str(tmp_path), NOW_MS):
        for folder in (file, other, nested):
            assert len(list(folder.iterdir())) == 2


def test_a_folder_that_another_supervisor_removes_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [old_folder(tmp_path, name) for name in "abc"]
    make_old(*folders)
    gone: list[str] = []

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        if not gone and str(path).startswith(str(tmp_path / PREFIX)):
            gone.append(str(path))
            shutil.rmtree(path)
        return opening(path, *arguments, **options)

    opening = os.open
    monkeypatch.setattr(os, "open", opened)
    with private_directory(str(tmp_path), NOW_MS) as made:
        assert gone
        assert [str(path) for path in tmp_path.iterdir()] == [made]


def test_a_path_that_no_socket_fits_in_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    with pytest.raises(ConfigError, match="Set TMPDIR"), private_directory(str(long), NOW_MS):
        pass
    assert not list(long.iterdir())
