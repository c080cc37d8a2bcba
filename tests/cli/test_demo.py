"""The demo's own broker, which is nobody's to look after once the demo has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

SERVING = """
import sys, time
from pathlib import Path
from app.demo import serving

with serving(Path(sys.argv[1])) as broker:
    print(broker.bootstrap, flush=True)
    time.sleep(60)
"""


def test_a_demo_that_is_sent_sigterm_ends_its_broker(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().rpartition(":")
        [broker] = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        try:
            socket.create_connection((host, int(port)), 10).close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
            assert not psutil.pid_exists(broker) or psutil.Process(broker).status() == psutil.STATUS_ZOMBIE
        finally:
            with suppress(ProcessLookupError):
                os.kill(broker, signal.SIGKILL)
