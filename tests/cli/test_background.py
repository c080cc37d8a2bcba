"""A broker in the background: started once, found by its data directory, ended in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.broker.start.running import find_running, is_alive, is_locked, note_running
from app.machine.files import PosixFileSystem, claim_directory
from tests.faults.served import clean_environment, refusal_of
from tests.support.ports import free_port
from tests.support.waiting import block_until


def firn(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=cwd, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.ci
def test_a_broker_in_the_background_is_started_once_and_stopped_in_order(tmp_path: Path) -> None:
    data, kafka = tmp_path / "data", f"127.0.0.1:{free_port()}"
    serve = ("serve", "--background", "--data-dir", str(data), "--listen", kafka, "--http", "off")
    try:
        started = firn(*serve, cwd=tmp_path)
        assert started.returncode == 0, started.stderr
        running = find_running(data)
        assert running is not None
        assert (running.kafka, running.http) == (kafka, "off")
        assert f"  Process   {running.process_id}\n" in started.stdout
        assert f"  Log       {tmp_path}/data.log\n" in started.stdout
        assert f"`firn stop --data-dir {data}` stops it in order." in started.stdout
        again = firn(*serve, cwd=tmp_path)
        assert again.returncode == 1
        assert again.stderr == (
            f"firn: A broker already runs on {data}: process {running.process_id}, Kafka {kafka}, HTTP off."
            f" End it with `firn stop --data-dir {data}`.\n"
        )
        assert firn("wait", "-b", kafka, cwd=tmp_path).stderr == f"{kafka} responds.\n"
        stopped = firn("stop", "--data-dir", str(data), "--json", cwd=tmp_path)
        assert json.loads(stopped.stdout) == {
            "data_dir": str(data), "process_id": running.process_id, "stopped": True
        }  # fmt: skip
        assert not is_locked(data)
        assert not (data / ".firn" / "process.json").exists()
    finally:
        left = find_running(data)
        if left is not None:
            os.kill(left.process_id, signal.SIGKILL)
    none_left = firn("stop", "--data-dir", str(data), cwd=tmp_path)
    assert (none_left.returncode, none_left.stderr) == (1, f"firn: No broker runs on {data}.\n")
    not_there = firn("drain", "--data-dir", str(data), cwd=tmp_path)
    assert (not_there.returncode, not_there.stderr) == (1, f"firn: No broker runs on {data}. Start it first.\n")
    with closing(claim_directory(PosixFileSystem(), str(data))):
        for command in ("stop", "drain"):
            refused = firn(command, "--data-dir", str(data), cwd=tmp_path)
            assert refused.returncode == 1
            assert f"{data} is in use by a process that this command cannot see" in refused.stderr


@pytest.mark.ci
def test_a_broker_that_cannot_start_in_the_background_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = firn("serve", "--background", "--listen", address, "--http", "off", cwd=tmp_path)
    assert failed.returncode in (1, 2)
    assert failed.stdout == ""
    *_, why, where = failed.stderr.splitlines()
    assert address in why
    assert where == (
        f"firn: The broker did not start (exit code {failed.returncode}). Its log is {tmp_path}/firn-data.log."
    )
    assert find_running(tmp_path / "firn-data") is None


@pytest.mark.ci
def test_a_broker_whose_data_directory_was_deleted_is_stopped_and_its_banner_has_the_id_that_it_got(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    serve = ("serve", "--background", "--data-dir", str(data), "--listen", f"127.0.0.1:{free_port()}", "--http", "off")
    started = firn(*serve, "--node-id", "auto", cwd=tmp_path)
    running = find_running(data)
    assert running is not None, started.stderr
    try:
        assert running.node_id > 0
        assert f": broker {running.node_id} of cluster {running.cluster_id} is ready." in started.stdout
        shutil.rmtree(data)
        stopped = firn("stop", "--data-dir", str(data), cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        assert f"(process {running.process_id})" in stopped.stderr
        assert not is_alive(running)
    finally:
        if is_alive(running):
            os.kill(running.process_id, signal.SIGKILL)


def test_nobody_answers_within_the_time_is_exit_code_1() -> None:
    sentence = refusal_of("wait", "-b", "127.0.0.1:1", "--timeout", "0", code=1)
    assert sentence == "firn: 127.0.0.1:1 cannot be reached: connection refused. Waited 0 s."
    assert refusal_of("wait", "-b", "127.0.0.1:1", "--http", "off", "--timeout", "0", code=1) == sentence


def test_a_note_of_a_process_that_is_gone_or_of_another_of_its_number_means_nothing(tmp_path: Path) -> None:
    note_running(str(tmp_path), kafka="h:1")
    mine = find_running(tmp_path)
    assert mine is not None
    assert (mine.process_id, mine.kafka) == (os.getpid(), "h:1")
    note = tmp_path / ".firn" / "process.json"
    text = note.read_text()
    for changed in (
        text.replace(f'"started_ticks":{mine.started_ticks}', f'"started_ticks":{mine.started_ticks + 1}'),
        text.replace(f'"process_id":{os.getpid()}', '"process_id":4194999'),
        text[:-5],
    ):
        assert changed != text
        note.write_text(changed)
        assert find_running(tmp_path) is None


def test_a_process_that_has_ended_and_is_not_waited_for_is_gone(tmp_path: Path) -> None:
    code = "import sys; from app.broker.start.running import note_running; note_running(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=clean_environment())
    block_until(lambda: (tmp_path / ".firn" / "process.json").exists(), "the note is there")
    block_until(lambda: find_running(tmp_path) is None, "it is no longer found")
    assert process.wait(60) == 0


@pytest.mark.parametrize("words", ["stop --data-dir /nowhere/data", "serve --log-file x", "wait -b x:y"])
def test_wrong_use_is_one_sentence(words: str) -> None:
    assert refusal_of(*words.split(), code=2)
