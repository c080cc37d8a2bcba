"""What the size of the send buffers costs: hot fetches from brokers that differ in it alone, in turns.

    python -m loadtests.micro_send_buffers [--sizes -1 102400] [--rounds 6]

Each size is a ``socket.send.buffer.bytes``; -1 is the kernel's choice. 1, 10 and 100 consumers of one partition, 1 MiB at a time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.measuring import SERVER_CORE, Report, generate, make_topic

CONSUMERS = (1, 10, 100)
MEGABYTES = 300
SECONDS = 2
WARM_UP_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["-1", "102400"], help="socket.send.buffer.bytes of each broker")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    found: dict[tuple[int, str], list[Report]] = {}
    with tempfile.TemporaryDirectory() as base, ExitStack() as stack:
        brokers = {
            size: stack.enter_context(
                firn_running(
                    Path(base) / str(number),
                    cores=str(SERVER_CORE),
                    settings={"socket.send.buffer.bytes": size},
                )
            )
            for number, size in enumerate(options.sizes)
        }
        for broker in brokers.values():
            make_topic(broker, "hot")
            generate(
                broker, "produce", "hot", batch_bytes=100_000, records=100, pipeline=3, megabytes=MEGABYTES, warm_up=0
            )
        for _ in range(options.rounds):
            for size, broker in brokers.items():
                for consumers in CONSUMERS:
                    many = {"connections": consumers} if consumers > 1 else {}
                    work = "fetch-many" if many else "fetch"
                    report = generate(
                        broker, work, "hot", max_bytes=1 << 20, seconds=SECONDS, warm_up=WARM_UP_S, **many
                    )
                    found.setdefault((consumers, size), []).append(report)
    print("consumers  socket.send.buffer.bytes     MB/s  CPU s per GB  p99 ms   medians")
    for (consumers, size), reports in sorted(found.items()):
        rate, cpu, p99 = (
            statistics.median(report[name] for report in reports)
            for name in ("mb_per_s", "server_cpu_s_per_gb", "p99_ms")
        )
        print(f"{consumers:9d}  {size:>24}  {rate:7.0f}  {cpu:12.2f}  {p99:6.1f}")


if __name__ == "__main__":
    main()
