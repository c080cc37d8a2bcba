"""What figures were taken on: the class of machine, and the versions of all that has a part in them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loadtests.kafka_peer import PeerMissing, kafka_libs
from loadtests.processes import CLOCK_TICKS
from loadtests.results import UNKNOWN_COMMIT
from loadtests.system import ROOT

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
USUAL_CONGESTION_CONTROL = "cubic"
PACKAGES = ("uvloop", "crc32c", "zstandard", "msgspec", "aiobotocore", "confluent-kafka")


def machine(directory: Path) -> dict[str, Any]:
    """Processor, memory, kernel, and the file system that the systems keep their data on."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model[1].strip() if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "kernel": os.uname().release.split("-")[0],
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(),
        "congestion_control": congestion_control(),
        "file_system": _output("stat", "-f", "-c", "%T", str(directory)) or "unknown",
        "niceness": os.nice(0),
        "disk_free_gb": round(shutil.disk_usage(directory).free / 1e9),
    }


def congestion_control() -> str:
    """What new TCP connections of this machine use now."""
    return CONGESTION_CONTROL.read_text().strip()


@contextmanager
def usual_congestion_control(setting: Path = CONGESTION_CONTROL) -> Iterator[str | None]:
    """Let new connections of this machine use cubic, Linux's usual congestion control, for as long as the block lasts.

    BBR sends at a bandwidth that it has to guess. Over loopback, with a send buffer of some hundred KiB, it guesses far too little:
    consumers of Firn and of Kafka then wait up to 40 ms (``--only fetch --keep-congestion-control`` shows it on such a machine).

    Nothing changes if the machine uses cubic already, or if this process may not change it.

    Yields: what was in use before, if it has been changed.
    """
    before = setting.read_text().strip()
    if before == USUAL_CONGESTION_CONTROL:
        yield None
        return
    try:
        setting.write_text(USUAL_CONGESTION_CONTROL)
    except OSError:  # Not root's process, or a kernel without cubic. The page says what was in use.
        yield None
        return
    try:
        yield before
    finally:
        setting.write_text(before)


def cores_busy(seconds: float) -> float:
    """How many cores were at work on average for so long from now, for whatever process, the kernel or another machine (steal)."""
    before, started = busy_seconds(_first_line("/proc/stat")), time.monotonic()
    time.sleep(seconds)
    return (busy_seconds(_first_line("/proc/stat")) - before) / (time.monotonic() - started)


def busy_seconds(line: str) -> float:
    """Of all cores since the machine started, from proc_stat(5)'s first line: all but idle and waiting for a disk; guests are in
    user time."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(part) for part in line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICKS


def _first_line(path: str) -> str:
    with Path(path).open() as file:
        return file.readline()


def slug(facts: dict[str, Any]) -> str:
    """A name for files: ``amd-epyc-2-cores``."""
    words = re.sub(r"[^a-z0-9]+", "-", str(facts["processor"]).lower()).strip("-")
    return f"{words}-{facts['cores']}-cores"


def versions() -> dict[str, str]:
    found = {"Firn": commit(), "Python": platform.python_version()}
    found |= {package: version(package) for package in PACKAGES}
    try:
        jar = next(kafka_libs().glob("kafka_2.13-*.jar"))
        found["Apache Kafka"] = jar.stem.removeprefix("kafka_2.13-")
        found["Java"] = (_output("java", "--version") or "unknown").splitlines()[0]
    except PeerMissing as missing:
        found["Apache Kafka"] = f"missing: {missing}"
    return found


MEASURED = ("app", "loadtests", "pyproject.toml", "constraints.txt")
"""What figures depend on."""
WRITTEN = (":(exclude)loadtests/results", ":(exclude)loadtests/RESULTS.md")
"""What a run itself writes."""


def commit() -> str:
    """The commit of this tree; ``+`` if what figures depend on differs from it."""
    found = _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") or UNKNOWN_COMMIT
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", *MEASURED, *WRITTEN)
    return f"{found}+" if changed else found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
