"""The demo's own broker, which is nobody's to look after once the demo has ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from app.cli import main
from app.cli.demo_brokers import failover
from app.demo import run

SERVING = """
import signal, sys, time
from pathlib import Path
from app.demo import serving

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that were begun by nohup ignore it
with serving(Path(sys.argv[1])) as broker:
    print(broker.bootstrap, flush=True)
    time.sleep(60)
"""

KEPT = """
import signal, sys
from pathlib import Path
from app.cli.demo_brokers import failover
from app.demo import run

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that were begun in the background ignore it
sys.exit(run(Path(sys.argv[1]), failover(3, 20_000, keep=True), keep=True))
"""


@pytest.mark.slow
def test_a_broker_is_killed_meanwhile_and_everything_comes_back_also_a_second_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(psutil.Process().children(recursive=True))
    for _ in range(2):
        assert run(tmp_path / "demo", failover(3, 20_000)) == 0
        shown = capfd.readouterr().out
        assert "was killed with SIGKILL; others led these" in " ".join(shown.split())
        assert "everything came back as it went in" in shown
        assert set(psutil.Process().children(recursive=True)) <= before, "it leaves no process"


def test_two_brokers_are_no_demo(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--brokers", "2"]) != 0
    assert "write 3" in capfd.readouterr().err


@pytest.mark.ci
def test_several_brokers_stay_up_with_a_console_until_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KEPT, str(tmp_path / "demo")], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        news = next(line for line in process.stdout if line.startswith("The brokers go on."))
        [address] = re.findall(r"http://\S+/", news)
        brokers = psutil.Process(process.pid).children(recursive=True)
        try:
            with urlopen(Request(address + "console/topics", headers={"Accept": "text/html"}), timeout=60) as page:
                assert "flights" in page.read().decode()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert not [one for one in brokers if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        finally:
            process.kill()
            for one in brokers:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_ends_by_a_signal_ends_its_broker(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().rpartition(":")
        [broker] = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        try:
            socket.create_connection((host, int(port)), 10).close()
            process.send_signal(number)
            assert process.wait(60) == 128 + number
            assert not psutil.pid_exists(broker) or psutil.Process(broker).status() == psutil.STATUS_ZOMBIE
        finally:
            with suppress(ProcessLookupError):
                os.kill(broker, signal.SIGKILL)
