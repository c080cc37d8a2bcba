"""What a process takes of the machine, as the metrics show it."""

from __future__ import annotations

import os
import subprocess
import sys

from app.core.metrics import Registry
from app.core.usage import read_usage, show_process


def test_what_a_process_takes_is_told() -> None:
    # A process of its own: in this one the memory may come from what was freed before, and the kernel may take other pages.
    program = (
        "import time; held = bytearray(b'x') * 40_000_000\n"
        "while time.process_time() < 0.2: pass  # many ticks of the kernel's clock\n"
        "print(time.process_time(), flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        took_s = float(process.stdout.readline())
        before = read_usage(process.pid)
        assert before is not None
        assert 40_000_000 < before.resident_bytes < 200_000_000
        assert before.cpu_s >= took_s / 2 > 0
        after = read_usage(process.pid)
        assert after is not None
        assert after.started_s == before.started_s
        process.communicate(b"\n")


def test_a_process_that_is_gone_has_no_usage() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert read_usage(ended.pid) is None


def test_processes_of_one_name_are_shown_as_their_sum_and_none_is_not_shown() -> None:
    others: list[tuple[str, int]] = []
    registry = Registry()
    show_process(registry, "1.2", others=lambda: others)

    def resident() -> dict[str, float]:
        name = "process_resident_memory_bytes"
        return {dict(one.labels).get("process", "self"): one.value for one in registry.samples() if one.name == name}

    assert resident().keys() == {"self"}
    others += [("cleaner", os.getpid()), ("cleaner", os.getpid())]
    assert resident().keys() == {"self", "cleaner"}
    assert resident()["cleaner"] > resident()["self"]
    (build,) = [one for one in registry.samples() if one.name == "firn_build_info"]
    assert (dict(build.labels)["version"], build.value) == ("1.2", 1)
