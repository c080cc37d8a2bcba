from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.s3 import BUCKET

HERE = Path(__file__).parent
MOTO = HERE.parent / "objectstore" / "moto_server.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder hurts real processes."""
    ours = {path for path in {item.path for item in items} if HERE in path.parents}
    for item in items:
        if item.path in ours:
            item.add_marker(pytest.mark.faults)


@pytest.fixture
def s3_port() -> Iterator[int]:
    """An S3 server with an empty bucket, in a process that ends with its standard input."""
    with subprocess.Popen(
        [sys.executable, str(MOTO)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        yield port
        process.stdin.close()
        process.wait()
