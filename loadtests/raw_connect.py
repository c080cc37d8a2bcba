"""New connections as fast as they go: each shakes hands, logs in if a user is named, and ends in order.

    python loadtests/raw_connect.py connect --port 9093 --tls-authority ca.pem --server-pid 1234
    python loadtests/raw_connect.py connect --port 9093 --tls-authority ca.pem --user load --password load-secret …

Some connections at a time, each with a thread. A connection is over when the server has closed it too: it has taken the client's
last word of the handshake by then. Prints one JSON object. Its ``load_share`` near 1 says that it is this process that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.security import scram
from loadtests.processes import families_cpu_seconds, process_ids
from loadtests.raw_load import percentiles
from loadtests.raw_tls import Secured, add_options, secured_of
from loadtests.raw_wire import Wire


def one(host: str, port: int, secured: Secured) -> None:
    """Connect and leave."""
    wire = Wire(host, port, secured, buffer_bytes=1 << 12)
    assert not isinstance(wire.socket, socket.socket)
    wire.socket.end()


def run(arguments: argparse.Namespace, secured: Secured, seconds: float) -> tuple[list[float], float]:
    """What each connection took, and seconds in all."""
    took: list[float] = []
    failed: list[BaseException] = []
    started = time.perf_counter()
    deadline = started + seconds

    def go() -> None:
        try:
            while (began := time.perf_counter()) < deadline and not failed:
                one(arguments.host, arguments.port, secured)
                took.append(time.perf_counter() - began)
        except (OSError, SystemExit) as error:
            failed.append(error)

    threads = [threading.Thread(target=go) for _ in range(arguments.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"a connection failed: {failed[0]}")
    return took, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("connect",))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9093)
    parser.add_argument("--topic", default="", help="without a meaning here")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds before anything is counted")
    parser.add_argument("--cpu", type=int, default=-1, help="pin this process to one core")
    parser.add_argument("--server-pid", type=process_ids, required=True)
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.cpu >= 0:
        os.sched_setaffinity(0, {arguments.cpu})
    # Some milliseconds of the client's own time: once is enough for all connections of a user.
    scram.salted_password = cache(scram.salted_password)
    secured = secured_of(arguments)
    if secured is None:
        parser.error("--tls-authority is needed")
    if arguments.warm_up:
        run(arguments, secured, arguments.warm_up)
    before, own = families_cpu_seconds(arguments.server_pid), time.process_time()
    took, seconds = run(arguments, secured, arguments.seconds)
    own, spent = time.process_time() - own, families_cpu_seconds(arguments.server_pid) - before
    report = {
        "connections_per_s": round(len(took) / seconds, 1),
        "server_cpu_us_per_connection": round(spent / len(took) * 1e6, 1),
        "server_cpu_share": round(spent / seconds, 3),
        **percentiles(took),
        "load_share": round(own / seconds, 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
