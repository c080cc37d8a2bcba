"""Brokers without disks as whole machines: ``firn serve --ephemeral`` on a tmpfs, with a bucket in an S3 server.

A machine that is lost takes all its processes and its disk with it. What starts in its place has its address and nothing else.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient

from tests.faults.served import BUG, READY, START_S_MAX, clean_environment
from tests.support.cluster import ROOT, WAIT_S
from tests.support.ports import free_port
from tests.support.waiting import block_until

SHARED_MEMORY = Path("/dev/shm")


class Machines:
    """Numbered from 1 on. The broker of each takes over the id of the one before: where ids vanish every few seconds, some of
    librdkafka's consumers (2.16) end up without a coordinator to ask, and wait for ever."""

    def __init__(
        self,
        path: Path,
        disks: Path,
        count: int,
        store: str,
        settings: Mapping[str, object],
        environment: Mapping[str, str],
    ) -> None:
        self.numbers = tuple(range(1, count + 1))
        self.ports = {number: free_port() for number in self.numbers}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._path = path
        self._disks = disks
        self._store = store
        self._settings = settings
        self._environment = environment
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._lost: set[int] = set()
        self.exits: list[str] = []
        """What brokers said last that ended by themselves. They were started again on their disks, as a supervisor does."""
        self._supervisor = threading.Thread(target=self._supervise)

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def _supervise(self) -> None:
        while not self._stop.wait(0.2):
            with self._lock:
                for number, process in self.processes.items():
                    code = process.poll()
                    if code is not None and number not in self._lost:
                        self.exits.append(f"machine {number}, exit code {code}: {self.lines(number)[-1:]}")
                        self._signal(number, signal.SIGKILL)
                        self._spawn(number)

    def start(self, number: int) -> None:
        """A broker on an empty disk."""
        with self._lock:
            self._lost.discard(number)
            self._spawn(number)

    def supervise(self) -> None:
        """From now on brokers that end by themselves are started again."""
        self._supervisor.start()

    def _spawn(self, number: int) -> None:
        settings = (f"{name.replace('_', '.')}={value}" for name, value in self._settings.items())
        node = ("--node-id", str(100 + number), "--take-over")
        command = [
            *(sys.executable, "-m", "app.cli", "serve", "--ephemeral", "--create-store", *node, "--http", "off"),
            *(
                "--listen",
                f"127.0.0.1:{self.ports[number]}",
                "--data-dir",
                str(self._disk(number)),
                "--store",
                self._store,
            ),
            *(part for setting in settings for part in ("--set", setting)),
        ]
        with self._log(number).open("ab") as log:
            self.processes[number] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=clean_environment(**self._environment),
                start_new_session=True,
            )

    def wait_until_ready(self, number: int) -> None:
        """Until a broker serves that was started for the first time."""

        def ready() -> bool:
            assert len(self.exits) < len(self.numbers), self.exits
            return any(READY.search(line) for line in self.lines(number))

        block_until(ready, "the broker serves", START_S_MAX)

    def lose(self, numbers: Sequence[int], how: signal.Signals = signal.SIGKILL) -> None:
        """All at once, with all their processes and disks. SIGTERM asks the brokers to stop in order first."""
        with self._lock:
            self._lost.update(numbers)
        for number in numbers:
            process = self.processes[number]
            if how is signal.SIGTERM:
                process.send_signal(how)
            else:
                self._signal(number, how)
        for number in numbers:
            self.processes[number].wait(WAIT_S)
            self._signal(number, signal.SIGKILL)
            shutil.rmtree(self._disk(number), ignore_errors=True)

    def pause(self, number: int) -> None:
        self._signal(number, signal.SIGSTOP)

    def go_on(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, how: signal.Signals) -> None:
        try:
            os.killpg(self.processes[number].pid, how)
        except ProcessLookupError:
            return  # nothing of it is left

    def resident_bytes(self, number: int) -> int:
        """Of the broker and its children."""
        broker = psutil.Process(self.processes[number].pid)
        return sum(int(one.memory_info().rss) for one in (broker, *broker.children(recursive=True)))

    def lines(self, number: int) -> list[str]:
        """What the brokers on this machine have said in all their lives."""
        return self._log(number).read_text(errors="replace").splitlines()

    def check_no_bug(self) -> None:
        for number in self.numbers:
            found = [line for line in self.lines(number) if BUG.search(line)]
            assert not found, (number, found)

    def end(self) -> None:
        self._stop.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for number in self.processes:
            self._signal(number, signal.SIGCONT)
        self.lose(list(self.processes))

    def _disk(self, number: int) -> Path:
        return self._disks / f"machine-{number}"

    def _log(self, number: int) -> Path:
        return self._path / f"machine-{number}.log"


@contextmanager
def machines_running(
    path: Path, count: int, store: str, *, settings: Mapping[str, object], environment: Mapping[str, str]
) -> Iterator[Machines]:
    """Start brokers of one new cluster. Logs go to ``path``, disks are in memory where the system has a place for that."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else path) as disks:
        machines = Machines(path, Path(disks), count, store, settings, environment)
        try:
            machines.supervise()
            for number in machines.numbers:
                machines.start(number)
                machines.wait_until_ready(number)
            yield machines
        finally:
            machines.end()
