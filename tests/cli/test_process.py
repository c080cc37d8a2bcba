"""``firn`` as a process: help, wrong usage, signals, pipes, and a whole broker."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app import __version__
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
VERSION = rf"firn {re.escape(__version__)} \(commit (unknown|[0-9a-f]{{12}}( and local changes)?)\)\n"


def firn(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FIRN_")}
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        input=stdin,
        capture_output=True,
        cwd=environment.pop("cwd", ROOT),
        env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
        timeout=60,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_help_names_every_command() -> None:
    done = firn("--help")
    assert done.returncode == 0
    for command in ("serve", "http", "demo", "topic", "produce", "consume", "tier", "verify", "doctor", "cost"):
        assert f" {command} " in done.stdout
    assert re.fullmatch(VERSION, firn("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("serv", "No such command 'serv'"),
        ("serve --lisen x", "No such option"),
        ("serve --listen x", "--listen 'x' (listeners) is not allowed"),
        ("serve --store x", "it must be file:///path or s3://bucket/prefix"),
        ("serve --set log.segment.byte=1", "Did you mean log.segment.bytes?"),
        ("serve --config /nowhere.toml", "--config /nowhere.toml cannot be read"),
        ("topic create", "Missing argument"),
        ("consume t --count many", "valid integer"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(arguments: str, words: str) -> None:
    done = firn(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("firn: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_variable_is_found_by_serve() -> None:
    done = firn("serve", FIRN_LISTN="x")
    assert (done.returncode, "Did you mean FIRN_LISTEN?" in done.stderr) == (2, True)


def test_every_setting_is_listed() -> None:
    done = firn("serve", "--list-settings")
    assert done.returncode == 0
    assert "log.segment.bytes " in done.stdout
    assert "FIRN_DURABILITY " in done.stdout


def test_the_source_of_an_error_is_shown_on_demand() -> None:
    assert "Traceback" in firn("topic", "list", "-b", "127.0.0.1:1", FIRN_DEBUG="1").stderr


def test_serve_greets_works_and_stops_in_order(tmp_path: Path) -> None:
    kafka, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", kafka, "--http", http]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = (tmp_path / "log").open("wb")
    broker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log)
    try:
        assert broker.stdout is not None
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = broker.stdout.readline().decode()
            assert line, (tmp_path / "log").read_text()
            greeting += line
        for shown in (kafka, f"http://{http}", str(tmp_path / "firn-data"), (tmp_path / "firn-data-store").as_uri()):
            assert shown in greeting
        # The commands that the greeting proposes.
        assert firn("produce", "greetings", "-b", kafka, stdin=b"hello\n").returncode == 0
        assert firn("consume", "greetings", "-b", kafka).stdout == "hello\n"
        # A reader of our output that has seen enough.
        assert firn("produce", "greetings", "-b", kafka, stdin=b"x" * 99 + b"\n" + b"line\n" * 100_000).returncode == 0
        consume = f"{sys.executable} -m app.cli consume greetings -b {kafka}"
        piped = subprocess.run(
            ["bash", "-c", f"{consume} | head -1; exit ${{PIPESTATUS[0]}}"],
            env=environment, capture_output=True, cwd=ROOT, timeout=60, check=False,
        )  # fmt: skip
        assert (piped.returncode, piped.stdout, piped.stderr) == (0, b"hello\n", b"")
        # Ctrl-C while waiting for records.
        following = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "consume", "greetings", "-b", kafka, "--from", "last:1", "--follow"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # As at a terminal: a shell that starts the tests in the background hands an ignored SIGINT down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert following.stdout is not None
        assert following.stdout.readline() == b"line\n"
        following.send_signal(signal.SIGINT)
        assert following.communicate(timeout=60) == (b"", b"")
        assert following.returncode == 130
        # A second broker on the same data.
        second = firn("serve", "--http", "off", "--listen", "127.0.0.1:0", cwd=str(tmp_path))
        assert second.returncode in (1, 2)
        assert second.stderr.count("\n") == 1
        assert "Traceback" not in second.stderr
    finally:
        broker.send_signal(signal.SIGINT)
        try:
            broker.wait(60)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()
        log.close()
        assert broker.stdout is not None
        broker.stdout.close()
    assert broker.returncode == 0, (tmp_path / "log").read_text()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(kafka.rpartition(":")[2])), 1).close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", int(http.rpartition(":")[2])), 1).close()
        except OSError:
            break
    else:
        pytest.fail("the HTTP process outlived its broker")


@pytest.mark.ci
def test_serve_starts_with_the_stock_file_of_kafka_and_names_what_means_nothing(tmp_path: Path) -> None:
    stock = Path(__file__).with_name("stock_server.properties").read_text()
    port = free_port()
    path = tmp_path / "server.properties"
    path.write_text(
        stock.replace("/tmp/kraft-combined-logs", str(tmp_path / "logs")).replace(":9092", f":{port}")
        + "firn.http.listen=off\n"
    )
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log)
        try:
            assert broker.stdout is not None
            while "Ctrl-C" not in (line := broker.stdout.readline().decode()):
                assert line, (tmp_path / "log").read_text()
            # As another broker of the cluster would be told: under the advertised name.
            assert firn("produce", "t", "-b", f"localhost:{port}", stdin=b"hello\n").returncode == 0
        finally:
            broker.terminate()
            broker.communicate(timeout=60)
    said = (tmp_path / "log").read_text()
    assert broker.returncode == 0, said
    assert said.count("settings of Kafka that mean nothing here: ") == 1


def test_ctrl_c_before_anything_is_loaded_ends_in_order() -> None:
    program = """
import sys
from importlib.abc import MetaPathFinder
from app.cli import main

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "app.cli.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.exit(main(["topic", "list"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="it reads the command lines of processes")
def test_a_broker_keeps_its_secrets_out_of_lines_and_titles_and_writes_an_audit_log(tmp_path: Path) -> None:
    canary, plain, secured = "hunter2-canary", free_port(), free_port()
    audit = tmp_path / "audit" / "audit.log"
    config = tmp_path / "server.properties"
    config.write_text(
        f"log.dirs={tmp_path / 'data'}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{secured}\n"
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n"
        f'listener.name.sasl_plaintext.plain.sasl.jaas.config=x required user_alice="{canary}";\n'
        f"firn.http.listen=127.0.0.1:{free_port()}\n"
        f"firn.audit.log.path={audit}\n"
        f"delegation.token.secret.key={canary}\n"
    )
    client = tmp_path / "client.properties"
    client.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=wrong-canary\n"
    )
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(config)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FIRN_SSL_KEY_PASSWORD": canary}
    shown = firn("doctor", "--config", str(config), "--without-partitions", FIRN_SSL_KEY_PASSWORD=canary).stdout
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            assert broker.stdout is not None
            while "Ctrl-C" not in (line := broker.stdout.readline().decode()):
                assert line, (tmp_path / "log").read_text()
                shown += line
            titles = [
                (path.parent / "cmdline").read_bytes().decode()
                for path in Path("/proc").glob("[0-9]*/stat")
                if (fields := _stat_of(path)) and broker.pid in (int(path.parent.name), int(fields[1]))
            ]
            assert len(titles) >= 2, "the broker and its children"
            shown += "".join(titles)
            assert firn("topic", "create", "t", "-b", f"127.0.0.1:{plain}").returncode == 0
            refused = firn("--client-config", str(client), "topic", "list", "-b", f"127.0.0.1:{secured}")
            assert refused.returncode == 1
            shown += refused.stdout + refused.stderr
        finally:
            broker.terminate()
            broker.communicate(timeout=60)
    assert broker.returncode == 0, (tmp_path / "log").read_text()
    shown += (tmp_path / "log").read_text() + audit.read_text()
    assert canary not in shown
    assert "wrong-canary" not in shown
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line["outcome"]) for line in lines if line["event"] != "access"] == [
        ("change", "done"),
        ("login", "failed"),
    ]
    assert audit.stat().st_mode & 0o777 == 0o600
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or canary.encode() not in path.read_bytes(), path


def _stat_of(path: Path) -> list[str]:
    """State, parent and so on of a process; empty if it has gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []
