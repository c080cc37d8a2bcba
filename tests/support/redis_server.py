"""A Redis server of a test's own, to be killed, emptied and stopped where it stands."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port

PASSWORD = "redis-secret"
REDIS_SERVER = shutil.which("redis-server") or "/usr/bin/redis-server"


class RedisServer:
    """``start`` it first. With ``tls``, a folder of certificates, it takes TLS alone, and asks for ``PASSWORD``."""

    def __init__(self, directory: Path, *, tls: Path | None = None) -> None:
        self._directory = directory
        self._tls = tls
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        if self._tls is None:
            return f"redis://127.0.0.1:{self.port}/0"
        return f"rediss://:{PASSWORD}@127.0.0.1:{self.port}/0?ssl_ca_certs={self._tls / 'ca.pem'}"

    def start(self) -> None:
        listen = ["--port", str(self.port)]
        if self._tls is not None:
            own, authority = str(self._tls / "broker.pem"), str(self._tls / "ca.pem")
            listen = [
                "--port",
                "0",
                "--tls-port",
                str(self.port),
                "--requirepass",
                PASSWORD,
                "--tls-auth-clients",
                "no",
            ]
            listen += ["--tls-cert-file", own, "--tls-key-file", own, "--tls-ca-cert-file", authority]
        self._process = subprocess.Popen(
            [REDIS_SERVER, *listen, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        """Kill it. What it had is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """It still accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def flush(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(64).startswith(b"+OK")


@contextmanager
def redis_running(directory: Path, *, tls: Path | None = None) -> Iterator[RedisServer]:
    """One that is started. ``tls``: a folder of certificates. Skips where there is none to start."""
    if not Path(REDIS_SERVER).exists():
        pytest.skip("redis-server is not installed")
    server = RedisServer(directory, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()
