"""``firn serve`` as a process that is to be hurt: started, killed, started again, and what it said meanwhile.

Everything is on the loopback with ports that the kernel picks, so a broker that starts again may be elsewhere: ``port`` is
where it is now. What the processes write to standard error is kept over all starts, and every broker is looked at in the
end: a traceback, or an error that it calls its own, fails the test that was running.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.waiting import block_until

ROOT = Path(__file__).parents[2]
START_S_MAX = 180.0
"""A machine with 40 runnable processes on two cores needed more than 90 s."""
STOP_S_MAX = 90.0
READY = re.compile(r"serves Kafka on \S+?:(\d+),")
BUG = re.compile(r"Traceback|internal error|this should not happen|never retrieved|AssertionError")
SMALL_SEGMENTS = {"segment.bytes": "1048576", "local.retention.bytes": "0", "retention.ms": "-1"}
"""Of a topic that rolls, moves to the store and leaves the local disk while a test looks on. 1 MiB is Kafka's least."""


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without Firn's settings, in which ``-m app.cli`` is found from anywhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FIRN_")}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}


def firn(*arguments: str, timeout_s: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``firn`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(**environment),
        timeout=timeout_s,
        check=False,
    )


def refusal_of(*arguments: str, code: int) -> str:
    """The one sentence with which ``firn`` refuses. Anything else on its output, or another exit code, is a failure."""
    done = firn(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done
    lines = [line for line in done.stderr.splitlines() if not line.startswith("`firn ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("firn: "), done.stderr
    assert not BUG.search(done.stderr), done.stderr
    return lines[0]


class Served:
    """A broker on ``path/data`` and ``path/store``, unless told otherwise."""

    def __init__(
        self,
        path: Path,
        *arguments: str,
        name: str = "broker",
        data_dir: Path | None = None,
        store: str | None = None,
        http: str = "off",
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "app.cli"),
    ) -> None:
        self.data_dir = data_dir or path / "data"
        self.store = store or (path / "store").resolve().as_uri()
        self.port = 0
        self.starts = 0
        self._path = path / f"{name}.log"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        chosen = {"firn.log.dir.free.bytes.min": 0} | dict(settings or {})
        self.command = [
            *(*program, "serve", "--listen", "127.0.0.1:0", "--http", http),
            *("--data-dir", str(self.data_dir), "--store", self.store, *arguments),
            *(part for key, value in chosen.items() for part in ("--set", f"{key}={value}")),
        ]
        self._environment = clean_environment(**(environment or {}))
        self.process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    # --- what it says --------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """All that was written to standard error, by the store process too, since the first start."""
        return self._path.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def new_lines(self) -> list[str]:
        """Those since the last start."""
        with self._path.open("rb") as file:
            file.seek(self._read_from)
            return file.read().decode(errors="replace").splitlines()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- life ----------------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start it without waiting for anything."""
        assert self.process is None or self.process.poll() is not None
        self.starts += 1
        self._read_from = self._path.stat().st_size
        with self._path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until it serves."""
        assert self.process is not None
        process = self.process

        def ready() -> re.Match[str] | None:
            found = READY.search("\n".join(self.new_lines))
            assert found or process.poll() is None, f"exit code {process.returncode}\n" + "\n".join(self.new_lines)
            return found

        self.port = int(block_until(ready, "the broker serves", START_S_MAX).group(1))

    def start(self) -> None:
        self.spawn()
        self.wait_until_ready()

    def kill(self) -> None:
        """SIGKILL to the broker alone; its children have to notice by themselves."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(children, timeout=STOP_S_MAX)
        assert not alive, f"{alive} outlived the broker"

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = STOP_S_MAX) -> int:
        """Wait until it has ended by itself; the exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> None:
        """End it in order."""
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, "\n".join(self.new_lines)

    def child(self, module: str) -> psutil.Process:
        """The child process that runs ``module`` now. Raises: LookupError."""
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            try:
                if module in child.cmdline():
                    return child
            except psutil.Error:
                continue
        raise LookupError(f"no {module} under process {self.process.pid}")

    def kill_child(self, module: str) -> int:
        """SIGKILL to a child process; its process id. False ones are waited for: it may be on its way."""

        def find() -> psutil.Process | None:
            try:
                return self.child(module)
            except LookupError:
                return None

        victim: psutil.Process = block_until(find, f"{module} runs")
        victim.kill()
        return int(victim.pid)

    @property
    def resident_bytes(self) -> int:
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def end(self) -> None:
        """Make sure that nothing is left of it."""
        if self.process is not None and self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            psutil.wait_procs(children, timeout=STOP_S_MAX)

    def check_no_bug(self) -> None:
        found = [line for line in self.lines if BUG.search(line)]
        assert not found, self.text


STORE_PROCESS = "app.tiering.store.store_process"
HTTP_PROCESS = "app.http"
CLEANER_PROCESS = "app.hot.cleaning.process"


@contextmanager
def serving(path: Path, *arguments: str, start: bool = True, **options: Any) -> Iterator[Served]:
    """A broker that is gone when the block is left, and that must not have met a bug of its own."""
    broker = Served(path, *arguments, **options)
    try:
        if start:
            broker.start()
        yield broker
        if broker.process is not None and broker.process.poll() is None:
            broker.stop()
        broker.check_no_bug()
    finally:
        broker.end()
