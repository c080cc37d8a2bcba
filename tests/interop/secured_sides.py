"""Firn and Apache Kafka with the same listeners, for conversations that are held with both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtests.kafka_peer import kafka_running
from tests.interop.serving import READY, kafka_libs_or_skip
from tests.support.ports import free_port

PLAIN = "PLAINTEXT"
"""The listener between brokers, for the administrator."""


class Sided(NamedTuple):
    """One of the brokers."""

    name: str
    ports: Mapping[str, int]
    """By listener."""


@contextmanager
def firn_with(path: Path, settings: Mapping[str, str], protocols: Mapping[str, str]) -> Iterator[Sided]:
    """A broker process of Firn. ``protocols``: of its listeners besides the plain one."""
    path.mkdir(parents=True, exist_ok=True)
    ports = {name: free_port() for name in (PLAIN, *protocols)}
    texts = {
        **settings,
        **_listeners(ports, protocols),
        "firn.log.dir.free.bytes.min": "0",
        "group.initial.rebalance.delay.ms": "0",
    }
    config = path / "server.properties"
    config.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(config), "--http", "off"]
    command += ["--data-dir", str(path / "data"), "--store", f"file://{path / 'store'}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        with closing(process.stderr):
            lines = []
            for line in process.stderr:
                lines.append(line)
                if READY.search(line):
                    break
            assert process.poll() is None, "".join(lines)
            try:
                yield Sided("Firn", ports)
            finally:
                process.terminate()
                rest = process.stderr.read()
                process.wait()
    assert "Traceback" not in rest, rest
    assert "internal error" not in rest, rest


@contextmanager
def kafka_with(
    path: Path, settings: Mapping[str, str], protocols: Mapping[str, str], *, allowed_urls: str = ""
) -> Iterator[Sided]:
    """Kafka, or the test is skipped. ``allowed_urls``: where it may get the keys of tokens."""
    kafka_libs_or_skip()
    ports = {name: free_port() for name in (PLAIN, *protocols)}
    controller = free_port()
    texts = {**settings, **_listeners(ports, protocols), "controller.quorum.voters": f"1@127.0.0.1:{controller}"}
    texts["listeners"] += f",CONTROLLER://127.0.0.1:{controller}"
    texts["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    before = os.environ.get("JDK_JAVA_OPTIONS")
    if allowed_urls:
        os.environ["JDK_JAVA_OPTIONS"] = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed_urls}"
    try:
        with kafka_running(path, settings=texts, port=ports[PLAIN]):
            yield Sided("Kafka", ports)
    finally:
        if allowed_urls:
            os.environ.pop("JDK_JAVA_OPTIONS")
        if before is not None:
            os.environ["JDK_JAVA_OPTIONS"] = before


def _listeners(ports: Mapping[str, int], protocols: Mapping[str, str]) -> dict[str, str]:
    where = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    return {
        "listeners": where,
        "advertised.listeners": where.replace("127.0.0.1", "localhost"),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in {PLAIN: "PLAINTEXT", **protocols}.items()
        ),
        "inter.broker.listener.name": PLAIN,
    }
