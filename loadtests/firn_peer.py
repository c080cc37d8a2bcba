"""Firn as a system under test: ``firn serve`` in a process of its own, pinned, on the directory store."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.kafka_peer import free_port

START_TIMEOUT_S = 60.0


class FirnFailed(Exception):
    """The broker did not come up; the message names its log."""


@dataclass(frozen=True, slots=True)
class FirnPeer:
    host: str
    port: int
    pid: int
    start_s: float
    """Seconds from exec to the first accepted connection."""

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"


def serve_command(
    directory: Path, port: int, *, settings: Mapping[str, str] | None = None, store: str | None = None
) -> list[str]:
    """The command line of a broker with its data and its bucket in ``directory``."""
    assignments = [part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")]
    return [
        *(sys.executable, "-m", "app.cli", "serve", "--listen", f"127.0.0.1:{port}", "--http", "off"),
        *("--data-dir", str(directory / "data"), "--store", store or (directory / "bucket").resolve().as_uri()),
        *assignments,
    ]


@contextmanager
def firn_running(
    directory: Path, *, cores: str | None = None, settings: Mapping[str, str] | None = None, store: str | None = None
) -> Iterator[FirnPeer]:
    """Start a broker in ``directory``, pinned to ``cores`` (as ``taskset -c`` writes them); end it when the block is left.

    Raises: FirnFailed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    pin = [] if cores is None else ["taskset", "-c", cores]
    command = [*pin, *serve_command(directory, port, settings=settings, store=store)]
    with (directory / "firn.out").open("ab") as out:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            while True:
                if process.poll() is not None:
                    raise FirnFailed(f"the broker ended with code {process.returncode}, see {directory / 'firn.out'}")
                if time.monotonic() - started > START_TIMEOUT_S:
                    raise FirnFailed(f"the broker did not listen within {START_TIMEOUT_S:.0f} s")
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.01)
            yield FirnPeer("127.0.0.1", port, process.pid, time.monotonic() - started)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
