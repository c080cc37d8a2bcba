"""Programs that run in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT_S_MAX = 1200.0
"""Of a session of Spark with all that it starts: a busy machine takes ten times the minute or two that it needs."""


def files_that_count(sink: Path) -> list[str]:
    """Files that the log of Spark's own sink names: of a batch that was killed there may be others."""
    named = set()
    for log in (sink / "_spark_metadata").glob("[0-9]*"):
        version, *files = log.read_text().splitlines()
        assert version == "v1"
        named |= {json.loads(file)["path"].removeprefix("file://") for file in files}
    return sorted(named)


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run("-c", script, *arguments, timeout_s=SCRIPT_S_MAX)


def run_module(module: str, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return _run("-m", module, *arguments, timeout_s=timeout_s)


def _run(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(arguments, process.returncode, output)
