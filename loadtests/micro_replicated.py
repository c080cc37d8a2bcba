"""What replication to two followers leaves of this machine where nothing but the system calls is done.

    python -m loadtests.micro_replicated [--seconds 4] [--rounds 3]

A leader, two followers and the load, each a process of C on whatever core the machine gives it, for the same requests as the load
test ``cluster``. The leader appends each request to a file, hands to a follower what there is whenever that asks, and answers a
request when both have appended it. It decodes nothing, checks nothing and knows nothing of offsets: a broker that replicates by
fetches does all of this, and more. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from loadtests.processes import cpu_seconds
from loadtests.workloads.cluster import LARGE, NAMES, ONE, replicated
from loadtests.workloads.produce import CONNECTED_IN_FLIGHT, SIZES

SOURCE = Path(__file__).with_name("bare_many.c")
ANSWER_BYTES: Final = 60
OVERHEAD_BYTES: Final = 80
"""Of a Produce request beyond its batch."""
FOLLOWERS: Final = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the files are (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firn-replicated-", dir=options.directory) as name:
        directory = Path(name)
        program = str(directory / "bare_many")
        subprocess.run(["cc", "-O2", "-o", program, str(SOURCE)], check=True)
        for size, connections in NAMES:
            request_bytes = SIZES[size][0] + OVERHEAD_BYTES
            in_flight = SIZES[size][2] if connections == ONE else 1 if size == LARGE else CONNECTED_IN_FLIGHT
            rounds = [
                _round(program, directory, request_bytes, connections, in_flight, options.seconds)
                for _ in range(options.rounds)
            ]
            rate = statistics.median(rate for rate, _ in rounds)
            cost_us = statistics.median(cpu_s / (rate * options.seconds) for rate, cpu_s in rounds) * 1e6
            print(
                f"{replicated(size, connections):<44} {rate:10,.0f} requests/s {cost_us:10.1f} µs of CPU each",
                flush=True,
            )


def _round(
    program: str, directory: Path, request_bytes: int, connections: int, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Requests a second, and CPU seconds of leader and followers."""
    request = directory / "request"
    request.write_bytes(os.urandom(request_bytes))
    with ExitStack() as stack:
        command = [program, "lead", str(connections), str(request_bytes), str(ANSWER_BYTES), str(directory / "leader")]
        leader = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(leader.terminate)
        assert leader.stdout is not None
        port = leader.stdout.readline().strip()
        servers = [leader]
        for number in range(FOLLOWERS):
            command = [program, "follow", port, str(directory / f"follower-{number}")]
            follower = stack.enter_context(subprocess.Popen(command, text=True))
            servers.append(follower)
            stack.callback(follower.terminate)
        leader.stdout.readline()  # both have connected
        load = [program, "load", port, str(connections), str(in_flight), str(request), str(ANSWER_BYTES), str(seconds)]
        with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as generator:
            assert generator.stdout is not None
            rate = generator.stdout.readline()
            spent = sum(cpu_seconds(one.pid) for one in servers)  # not waited for yet
        if generator.returncode or not rate:
            raise SystemExit(f"the load ended with {generator.returncode}")
    return float(rate), spent


if __name__ == "__main__":
    main()
