"""S3 servers that others wrote, each with an empty bucket, started on this machine and ended by its process id.

moto comes with the development environment. MinIO and s3s-fs are looked for where ``make s3-servers`` builds them, and on the
PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from loadtests.start_up import S3_ENVIRONMENT
from loadtests.system import ROOT, free_port

START_TIMEOUT_S = 30.0
BUILT = ROOT / ".cache" / "s3-servers" / "bin"
USER, PASSWORD = S3_ENVIRONMENT["AWS_ACCESS_KEY_ID"], S3_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


class ServerMissing(Exception):
    """It is not installed, or did not start; the message says which."""


def _moto(port: int, directory: Path, user: str = USER, password: str = PASSWORD) -> list[str]:
    return [sys.executable, "-m", "moto.server", "-p", str(port)]


def _minio(port: int, directory: Path, user: str = USER, password: str = PASSWORD) -> list[str]:
    return [_program("minio"), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(directory)]


def _s3s_fs(port: int, directory: Path, user: str = USER, password: str = PASSWORD) -> list[str]:
    keys = ("--access-key", user, "--secret-key", password)
    return [_program("s3s-fs"), "--host", "127.0.0.1", "--port", str(port), *keys, str(directory)]


SERVERS: dict[str, Callable[..., list[str]]] = {"moto": _moto, "MinIO": _minio, "s3s-fs": _s3s_fs}
"""Name to the command that serves a directory on a port, to who has certain keys; moto keeps all in memory, and MinIO takes its
keys from its environment."""


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{BUILT}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ServerMissing(f"{name} is not here (make s3-servers)")
    return found


@contextmanager
def s3_server_running(name: str, directory: Path, *, pin: Sequence[str] = ()) -> Iterator[str]:
    """The endpoint of the server ``name`` with the bucket ``bench``. ``pin`` comes before its command. Raises: ServerMissing."""
    directory.mkdir(parents=True)
    port = free_port()
    command = [*pin, *SERVERS[name](port, directory)]
    environment = dict(os.environ) | {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as server:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            make_bucket(name, endpoint)
            yield endpoint
        finally:
            server.terminate()


def client_of(endpoint: str, *, verify: str | None = None) -> Any:
    """A client of one of these servers. ``verify``: the file of an authority that has signed its certificate."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=USER,
        aws_secret_access_key=PASSWORD,
        verify=verify,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def make_bucket(name: str, endpoint: str, *, verify: str | None = None) -> None:
    """Make the bucket ``bench`` as soon as the server ``name`` answers. ``verify``: as of ``client_of``. Raises: ServerMissing."""
    client = client_of(endpoint, verify=verify)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.create_bucket(Bucket="bench")
            return
        except (BotoCoreError, ClientError, OSError) as error:
            if time.monotonic() > deadline_s:
                raise ServerMissing(f"{name} did not make a bucket within {START_TIMEOUT_S:.0f} s: {error}") from error
            time.sleep(0.1)
