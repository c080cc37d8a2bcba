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

import pytest

from loadtests.s3_servers import SERVERS, ServerMissing, make_bucket
from loadtests.start_up import S3_ENVIRONMENT
from loadtests.system import ROOT
from tests.support.ports import free_port

MOTO = Path(__file__).parents[1] / "objectstore" / "moto_server.py"
BUCKET = "bench"
USER, PASSWORD = S3_ENVIRONMENT["AWS_ACCESS_KEY_ID"], S3_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD, "AWS_EC2_METADATA_DISABLED": "true"}


class S3Server:
    """One with an empty bucket, in a session of its own (Linux shares cores out among those). Make one with ``s3_server``."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.keeps = name != "moto"
        """Whether objects outlive its process."""
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)

    @property
    def store(self) -> str:
        """Its bucket, as ``--store`` takes it."""
        return f"s3://{BUCKET}/here?endpoint=http://127.0.0.1:{self._port}&region=us-east-1&path_style=true"

    def start(self) -> None:
        if self.name == "stand-in":
            command = [sys.executable, "-m", "loadtests.slow_s3", str(self._directory), "--delay-ms", "5"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
            assert self._process.stdout is not None
            self._port = int(self._process.stdout.readline())
            return
        environment = dict(os.environ) | {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD}
        if self.name == "moto":
            # the one of the development environment looks whether a key is there, and writes afterwards
            command = [sys.executable, str(MOTO)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._process.stdout is not None
            self._port = int(self._process.stdout.readline())
        else:
            command = SERVERS[self.name](self._port, self._directory)
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def make_bucket(self) -> None:
        if self.name == "stand-in":
            return
        make_bucket(self.name, f"http://127.0.0.1:{self._port}")

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
def s3_server(name: str, directory: Path) -> Iterator[S3Server]:
    """Start the server ``name`` (see ``loadtests.s3_servers``) with an empty bucket. Skips where it is not."""
    server = S3Server(name, directory)
    try:
        try:
            server.start()
            server.make_bucket()
        except ServerMissing as missing:
            pytest.skip(str(missing))
        yield server
    finally:
        server.end()
