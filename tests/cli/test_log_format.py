"""``--log-format json``: whatever a broker and its processes write is one JSON object a line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.core.notices import FORMAT_VARIABLE
from tests.faults.served import clean_environment
from tests.support.ports import free_port
from tests.support.waiting import block_until


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def serving(tmp_path: Path, *arguments: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A broker whose standard output and error go to one file, as in a container."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "firn_broker", "serve", "--data-dir", str(tmp_path / "data"), *arguments],
            cwd=tmp_path, env=clean_environment() | environment, stdout=out, stderr=out,
        )  # fmt: skip
    return process, log


def find(log: Path, event: str) -> dict[str, Any] | None:
    return next((one for one in lines_of(log) if one["event"] == event), None)


@pytest.mark.ci
def test_the_life_of_a_broker_is_told_in_json_alone(tmp_path: Path) -> None:
    ports = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    process, log = serving(tmp_path, "--listen", ports[0], "--http", ports[1], "--log-format", "json")
    try:
        block_until(lambda: find(log, "broker.ready") is not None or process.poll() is not None, 120)
        store, *_ = [
            one
            for one in psutil.Process(process.pid).children()
            if any("store_process" in word for word in one.cmdline())
        ]
        store.kill()
        block_until(lambda: find(log, "process.ended") is not None, 60)
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
    events = [one["event"] for one in lines_of(log)]
    told = [name for name in events if name.startswith("broker.") and name != "broker.node_id"]
    assert told == ["broker.starting", "broker.ready", "broker.stopping", "broker.stopped"]
    ready, ended = find(log, "broker.ready"), find(log, "process.ended")
    assert ready is not None
    assert ended is not None
    assert (ready["level"], ready["broker_id"], ready["port"]) == ("info", 1, int(ports[0].rpartition(":")[2]))
    assert (ended["level"], ended["process"], ended["exit_code"]) == ("error", "store", -signal.SIGKILL)


def test_a_start_that_fails_is_told_in_json_by_broker_and_store_process(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    process, log = serving(
        tmp_path,
        "--store",
        f"file://{tmp_path}/store",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        FIRN_LOG_FORMAT="json",
    )
    assert process.wait(120) == 2
    told = {one["event"]: one for one in lines_of(log)}
    assert list(told) == ["broker.starting", "store_process.failed", "broker.failed"]
    assert told["broker.failed"]["exit_code"] == 2
    assert "could not open file:///" in told["broker.failed"]["message"]
    assert os.fspath(tmp_path) in told["store_process.failed"]["message"]


def test_another_format_is_refused(tmp_path: Path) -> None:
    process, log = serving(tmp_path, "--log-format", "xml")
    assert process.wait(120) == 2
    assert "firn.log.format" in log.read_text()


def test_a_broker_whose_log_has_no_reader_any_more_still_stops_in_order(tmp_path: Path) -> None:
    ready, told_ready = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "firn_broker", "serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0",
         "--http", "off", "--log-format", "json", "--ready-fd", str(told_ready)],
        cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, pass_fds=(told_ready,),
    )  # fmt: skip
    try:
        os.close(told_ready)
        with os.fdopen(ready, "rb") as told:
            assert told.read() == b"ready\n"
        assert process.stderr is not None
        process.stderr.close()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_http_that_cannot_listen_is_told_by_the_name_of_its_own_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "firn_broker", "http", "--listen", address, "--log-format", "json"],
            cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["event"], line["exit_code"], done.returncode) == ("http.failed", 2, 2)


SUPERVISOR = """
import sys
from app.http import __main__ as command
from app.http.processes import supervisor

def fails(**_):
    raise LookupError("nothing there")

supervisor.supervise = fails
sys.argv = ["app.http", "--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--processes", "2"]
command.main()
"""


def test_the_end_of_the_supervisor_of_http_processes_by_an_error_is_json_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR],
        cwd=tmp_path, env=clean_environment() | {FORMAT_VARIABLE: "json"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["event"], done.returncode) == ("process.crashed", 1)
