"""An S3 server that others wrote, as a process that a test may stop for a while, kill and start again.

moto keeps all in its memory: it may stand still, but not be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtests.s3_servers import SERVERS, ServerMissing, client_of, make_bucket
from loadtests.start_up import S3_ENVIRONMENT
from loadtests.system import ROOT
from tests.support.ports import free_port

MOTO = Path(__file__).parents[1] / "objectstore" / "moto_server.py"
BUCKET = "bench"
USER, PASSWORD = S3_ENVIRONMENT["AWS_ACCESS_KEY_ID"], S3_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD, "AWS_EC2_METADATA_DISABLED": "true"}


class S3Server:
    """One with an empty bucket, in a session of its own (Linux shares cores out among those). Make one with ``s3_server``."""

    def __init__(self, name: str, directory: Path, tls: Path | None = None) -> None:
        """``tls``: a folder of certificates, for moto alone."""
        assert tls is None or name == "moto"
        self.name = name
        self.keys = USER, PASSWORD
        """That it knows from its next start on. moto knows all."""
        self._tls = tls
        self.keeps = name != "moto"
        """Whether objects outlive its process."""
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)

    @property
    def port(self) -> int:
        return self._port

    @property
    def authority(self) -> Path | None:
        """Who has signed its certificate, if it has one."""
        return None if self._tls is None else self._tls / "ca.pem"

    @property
    def store(self) -> str:
        """Its bucket, as ``--store`` takes it."""
        return self.store_at(self._port)

    def store_at(self, port: int) -> str:
        """The same, where something that listens on ``port`` passes on what it is sent."""
        endpoint = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{port}"
        return f"s3://{BUCKET}/here?endpoint={endpoint}&region=us-east-1&path_style=true"

    def client(self) -> Any:
        """One of boto3."""
        return client_of(self._endpoint, verify=str(self.authority) if self._tls is not None else None)

    @property
    def _endpoint(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        if self.name == "stand-in":
            command = [sys.executable, "-m", "loadtests.slow_s3", str(self._directory), "--delay-ms", "5"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
            assert self._process.stdout is not None
            self._port = int(self._process.stdout.readline())
            return
        user, password = self.keys
        environment = dict(os.environ) | {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password}
        if self.name == "moto":
            # the one of the development environment looks whether a key is there, and writes afterwards
            command = [sys.executable, str(MOTO)]
            if self._tls is not None:
                command += ["127.0.0.1", str(self._tls / "broker.pem")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._process.stdout is not None
            self._port = int(self._process.stdout.readline())
        else:
            command = SERVERS[self.name](self._port, self._directory, user, password)
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def make_bucket(self) -> None:
        if self.name == "stand-in":
            return
        make_bucket(self.name, self._endpoint, verify=str(self.authority) if self._tls is not None else None)

    def stand_still(self) -> None:
        """It takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


@contextmanager
def s3_server(name: str, directory: Path, tls: Path | None = None) -> Iterator[S3Server]:
    """Start the server ``name`` (see ``loadtests.s3_servers``) with an empty bucket. Skips where it is not. ``tls``: a folder with
    certificates of an authority, for moto alone."""
    server = S3Server(name, directory, tls)
    try:
        try:
            server.start()
            server.make_bucket()
        except ServerMissing as missing:
            pytest.skip(str(missing))
        yield server
    finally:
        server.end()
