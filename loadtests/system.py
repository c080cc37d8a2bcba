"""A system under test: a broker of any kind in processes of its own, started, pinned, waited for, and ended by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 30.0
ROOT = Path(__file__).parent.parent


class SystemFailed(Exception):
    """It did not come up; the message names its log."""


@dataclass(frozen=True, slots=True)
class System:
    """One that accepts connections."""

    name: str
    host: str
    port: int
    pid: int
    start_s: float
    """Seconds from exec to the first accepted connection."""
    logs: Path
    """Folder with one folder for each local partition log."""

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, timeout_s: float) -> None:
    """Raises: SystemFailed if nobody accepts connections there within the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise SystemFailed(f"nobody listens at port {port} after {timeout_s:.0f} s") from None
        time.sleep(0.01)


def keep_priority(pid: int) -> None:
    """Give a process's session the niceness of this process: Linux schedules sessions as groups, and a niceness counts within
    one only. Without effect where it does not."""
    group = Path(f"/proc/{pid}/autogroup")
    if os.nice(0) and group.exists():
        group.write_text(str(os.nice(0)))


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    *,
    port: int,
    output: Path,
    logs: Path,
    timeout_s: float,
    cores: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[System]:
    """Run ``command``, pinned to ``cores`` (as ``taskset -c`` writes them), until the block is left.

    Raises: SystemFailed if it ends or does not accept connections within ``timeout_s``.
    """
    pin = [] if cores is None else ["taskset", "-c", cores]
    with output.open("ab") as out:
        started = time.monotonic()
        process = subprocess.Popen(
            [*pin, *command],
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env=dict(os.environ) | dict(environment or {}),
            start_new_session=True,
        )
        keep_priority(process.pid)
        try:
            while True:
                if process.poll() is not None:
                    raise SystemFailed(f"{name} ended with code {process.returncode}, see {output}")
                if time.monotonic() - started > timeout_s:
                    raise SystemFailed(f"{name} did not listen within {timeout_s:.0f} s, see {output}")
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.01)
            yield System(name, "127.0.0.1", port, process.pid, time.monotonic() - started, logs)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
