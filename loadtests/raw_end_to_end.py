"""How late a record is: to its acknowledgement, and to a consumer that waits at the end of the log.

    python loadtests/raw_end_to_end.py end-to-end --port 9092 --topic t --rate 1000 --batch-bytes 16384 --records 140

One thread, two sockets: a producer held to a rate, or flat out, and a long poll on the same partition that is renewed at once.
Held to a rate, a request's latencies count from the moment at which it was due, not from when there was room to send it. With
``--spin`` its core never sleeps: what a timer is late and what it takes to wake a core would count as the broker's otherwise.
Prints one JSON object. Its ``load_share`` is the share of the time in which this process had something to do: near 1 it is this
process that is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from select import select

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.records.compression import CODEC_NAMES
from loadtests.processes import family_cpu_seconds
from loadtests.raw_load import percentiles, special_offsets
from loadtests.raw_many import Fetching, Producing

LATEST = -1


class Tailing(Fetching):
    """The consumer: never starts over."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments, 0)
        self.offset = special_offsets(self.wire, arguments.topic, 1, LATEST)[0]

    def over(self, high_watermark: int) -> None:
        del high_watermark


def run(arguments: argparse.Namespace) -> dict[str, object]:
    producer, consumer = Producing(arguments, 0), Tailing(arguments)
    sockets = [producer.wire.socket, consumer.wire.socket]
    rate, spin, clock = arguments.rate, arguments.spin, time.perf_counter

    def phase(seconds: float) -> tuple[int, float, float, list[float], list[float]]:
        """Requests, seconds, those of them in which there was nothing to do, and latencies."""
        acknowledged: list[float] = []
        delivered: list[float] = []
        due: deque[float] = deque()
        base = delivered_end = consumer.offset
        started = clock()
        count = answered = 0
        idle_s = 0.0
        consumer.send()
        while True:
            now = clock()
            sending = now - started < seconds
            if not sending and answered == count and delivered_end >= base + count * arguments.records:
                break
            room = arguments.pipeline - (count - answered)
            if rate:
                room = min(room, int((now - started) * rate) + 1 - count)
            if sending and room > 0:
                moments = [started + (count + n) / rate if rate else now for n in range(room)]
                producer.send(room, moments)
                due.extend(moments)
                count += room
            wait_s = 1.0
            if spin:
                wait_s = 0.0
            elif rate and sending and count - answered < arguments.pipeline:
                wait_s = max(0.0, started + count / rate - clock())
            before = now if room <= 0 else clock()
            found = select(sockets, (), (), wait_s)[0]
            if wait_s or not found:
                idle_s += clock() - before
            for ready in found:
                if ready is producer.wire.socket:
                    answered += producer.receive(acknowledged)
                elif consumer.receive() >= 0:
                    now = clock()
                    while due and delivered_end + arguments.records <= consumer.offset:
                        delivered_end += arguments.records
                        delivered.append(now - due.popleft())
                    consumer.send()
        elapsed = clock() - started
        # The poll that is still under way ends with nothing, after half a second that is not the broker's.
        while consumer.receive() < 0:
            pass
        return count, elapsed, idle_s, acknowledged, delivered

    phase(arguments.warm_up)
    before = family_cpu_seconds(arguments.server_pid)
    count, seconds, idle_s, acknowledged, delivered = phase(arguments.seconds)
    spent = family_cpu_seconds(arguments.server_pid) - before
    return {
        "requests": count,
        "requests_per_s": round(count / seconds),
        "mb_per_s": round(count * producer.batch_bytes / seconds / 1e6, 1),
        **percentiles(acknowledged),
        **{f"e2e_{name}": value for name, value in percentiles(delivered).items()},
        "server_cpu_us_per_request": round(spent / count * 1e6, 2),
        "server_cpu_s_per_gb": round(spent / (count * producer.batch_bytes) * 1e9, 3),
        "server_cpu_share": round(spent / seconds, 3),
        "load_share": round(1 - idle_s / seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("end-to-end",))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--topic", default="raw-load")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=1, help="seconds before anything is counted")
    parser.add_argument("--cpu", type=int, default=-1, help="pin this process to one core")
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0, help="requests per second; 0: as many as there is room for")
    parser.add_argument("--spin", action="store_true", help="never sleep while there is nothing to do")
    parser.add_argument("--batch-bytes", type=int, default=16_384)
    parser.add_argument("--records", type=int, default=140, help="records in a batch")
    parser.add_argument("--pipeline", type=int, default=64, help="requests in flight at most")
    parser.add_argument("--acks", type=int, default=-1, choices=(1, -1))
    parser.add_argument("--codec", choices=tuple(CODEC_NAMES), default="none")
    parser.add_argument("--idempotent", action="store_true", help="with a producer id and sequences")
    parser.add_argument("--max-bytes", type=int, default=1 << 20, help="of one answer")
    arguments = parser.parse_args()
    if arguments.cpu >= 0:
        os.sched_setaffinity(0, {arguments.cpu})
    # Searching what the imports have made takes tens of milliseconds, and a run makes no cycles.
    gc.disable()
    print(json.dumps(run(arguments)))


if __name__ == "__main__":
    main()
