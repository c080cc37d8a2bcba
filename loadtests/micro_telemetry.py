"""What all telemetry together costs a broker that only produces: CPU a Produce request of 1 KB, with it and without it.

    python -m loadtests.micro_telemetry [--turns 5] [--seconds 20] [--together] [--parts scrapes,traces,pushes]

Each side of a turn is a broker in a process of its own, which gets pipelined requests without a network, as ``micro_connection``
does. The sides follow one another in the order A B, B A, and so on. Seconds are seconds of CPU: those of a broker that has a core
to itself and uses all of it. So a busy machine does not change how often something is done for each request. On a busy machine,
``--together`` runs both sides at the same time. With telemetry:

- scrapes: all metrics are asked for every 5 s, the 20,000 series of clients among them;
- traces: 1 % of requests are traced, 50 in a second at most, and a collector takes their spans each second;
- pushes: 1,000 clients push 20 series each every five minutes (KIP-714), so that one push comes every 0.3 s.

The CPU of all threads of the broker counts, but for that of making requests. The HTTP process that renders a scrape is another
process. It is measured alone, and is not in the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import uvloop

from app.broker.node import Node
from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.core.metrics import Sample
from app.core.tracing import Span, SpanContext, Tracer
from app.core.turns import run
from app.http.metrics import labelled, render_steps
from app.machine.runtime import settle_memory
from app.machine.span_export import SEND_EVERY_S
from app.metadata.image.records import CLIENT_METRICS_LEVEL
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis import incremental_alter_configs as incremental
from app.wire.apis.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from app.wire.apis.push_telemetry import PushTelemetryRequest
from app.wire.header import encode_request_header, parse_response_header
from loadtests.micro_connection import SIZES, Producer, Sink
from tests.support.broker import running_broker
from tests.support.client_metrics import Pushed, metrics_data
from tests.support.waiting import until

SCRAPE_EVERY_S: Final = 5.0
CLIENTS: Final = 1_000
SERIES_OF_CLIENT: Final = 20
PUSH_EVERY_S: Final = 300.0 / CLIENTS
INTERVAL_MS: Final = 100
"""So that no push is refused: a measurement is shorter than five minutes, and a push comes by the CPU time that was taken."""
RATIO: Final = 0.01
PARTS: Final = ("scrapes", "traces", "pushes")
CLIENT_METRICS: Final = 16
CLIENT_METRICS_MAX: Final = CLIENTS * SERIES_OF_CLIENT


class Peer(Sink):
    """A client that reads its responses."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._came = bytearray()
        self._new = asyncio.Event()
        self._connection = node.server.make()
        self._connection.connection_made(self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        self._came += data
        self._new.set()

    def send(self, key: ApiKey, version: int, body: bytes) -> None:
        header = encode_request_header(key, version, 1, "telemetry")
        data = (len(header) + len(body)).to_bytes(4, "big") + header + body
        position = 0
        while position < len(data):
            room = self._connection.get_buffer(-1)
            count = min(len(room), len(data) - position)
            room[:count] = data[position : position + count]
            position += count
            self._connection.buffer_updated(count)

    async def answer(self) -> bytes:
        """The next response, without its size."""
        while len(self._came) < 4 or len(self._came) < 4 + int.from_bytes(self._came[:4], "big"):
            self._new.clear()
            await asyncio.wait_for(self._new.wait(), 60)
        end = 4 + int.from_bytes(self._came[:4], "big")
        found = bytes(self._came[4:end])
        del self._came[:end]
        return found

    async def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        self.send(key, version, codec.encode_request(key, version, message))
        answer = memoryview(await self.answer())
        _, start = parse_response_header(answer, key, version)
        return codec.decode_response(key, version, answer[start:])


class Pushing:
    """The clients that push."""

    def __init__(self, node: Node) -> None:
        self._peer = Peer(node)
        self._requests: deque[PushTelemetryRequest] = deque()
        """Those of all clients. The one that pushed last is the first."""
        series = [
            Pushed("org.apache.kafka.producer.topic.bytes", float(n), {"topic": f"t-{n}"})
            for n in range(SERIES_OF_CLIENT)
        ]
        self._metrics = metrics_data(series)

    async def subscribe(self) -> None:
        """Ask all clients for their metrics, and take the first push of each."""
        wanted = [
            incremental.AlterableConfig("metrics", 0, "org.apache.kafka."),
            incremental.AlterableConfig("interval.ms", 0, str(INTERVAL_MS)),
        ]
        resource = incremental.AlterConfigsResource(CLIENT_METRICS, "all", wanted)
        altered = await self._peer.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, incremental.IncrementalAlterConfigsRequest([resource])
        )
        assert not altered.responses[0].error_code, altered
        key = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
        for number in range(CLIENTS):
            told = await self._peer.ask(key, 0, GetTelemetrySubscriptionsRequest(UUID(int=number + 2)))
            self._requests.append(
                PushTelemetryRequest(told.client_instance_id, told.subscription_id, False, 0, self._metrics)
            )
            await self.push()

    async def push(self) -> None:
        """The next push of the next client."""
        self._requests.rotate()
        answer = await self._peer.ask(ApiKey.PUSH_TELEMETRY, 0, self._requests[0])
        assert not answer.error_code, answer


def sent(node: Node) -> float:
    """Spans that the collector has taken."""
    return sum(one.value for one in node.registry.samples() if one.name == "firn_trace_spans_sent_total")


def pace(tracer: Tracer) -> None:
    """Give spans to the thread that sends them once in a second of CPU, as on a machine that the broker has to itself."""
    take, sent_s = tracer.take, 0.0

    def taken(count_max: int) -> list[Span]:
        nonlocal sent_s
        now_s = time.process_time()
        if now_s - sent_s < SEND_EVERY_S:
            return []
        spans = take(count_max)
        if len(spans) < count_max:
            sent_s = now_s
        return spans

    tracer.take = taken  # type: ignore[method-assign]


async def measure(directory: Path, seconds: float, parts: frozenset[str], collector: str) -> dict[str, float]:
    """One side. Returns: CPU microseconds a request, and counts."""
    settings: dict[str, Any] = {"firn_telemetry_series_max": CLIENT_METRICS_MAX}
    if "traces" in parts:
        settings |= {"firn_tracing_endpoint": collector, "firn_tracing_sample_ratio": RATIO}
    async with running_broker(directory, new_level=CLIENT_METRICS_LEVEL, **settings) as broker:
        node = broker.node
        settle_memory()
        now_s = time.process_time()
        if "traces" in parts:  # a look at the clock of CPU costs 100 times that at the usual one, so one a call must do
            node.server.tracer.elapsed_s = lambda: now_s  # type: ignore[attr-defined]
        _, batch_bytes, records, together = SIZES[0]
        await node.membership.controller.create_topic("t", 1, {"remote.storage.enable": "false"})
        connection, sink = node.server.make(), Sink()
        connection.connection_made(sink)  # type: ignore[arg-type]
        producer, pushing = Producer("t", batch_bytes, records, together, 1000), Pushing(node)
        scraper = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtests.micro_telemetry", "--scraper", str(broker.port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert scraper.stdin is not None
        assert scraper.stdout is not None
        await scraper.stdout.readline()
        if "pushes" in parts:
            await pushing.subscribe()
        if "scrapes" in parts:  # the first one packs all series of clients, which a broker does once for each push
            scraper.stdin.write(b"\n")
            await scraper.stdout.readline()
        if "traces" in parts:  # the thread imports OpenTelemetry before it sends the first span
            node.server.tracer.ended("first", SpanContext(1, 1), None, 0.0, 0.0, {})  # type: ignore[attr-defined]
            await until(lambda: sent(node) > 0)
            pace(node.server.tracer)  # type: ignore[attr-defined]
        scrapes = 0
        pushes = 0
        made_s, requests = 0.0, 0
        began_s = time.process_time()
        due_scrape_s, due_push_s = SCRAPE_EVERY_S / 2, PUSH_EVERY_S
        while (spent_s := (now_s := time.process_time()) - began_s - made_s) < seconds:
            making_s = time.thread_time()
            data = memoryview(producer.renew())
            made_s += time.thread_time() - making_s
            position = 0
            while position < len(data):
                room = connection.get_buffer(-1)
                count = min(len(room), len(data) - position)
                room[:count] = data[position : position + count]
                position += count
                connection.buffer_updated(count)
            requests += together
            if "scrapes" in parts and spent_s >= due_scrape_s:
                due_scrape_s += SCRAPE_EVERY_S
                scraper.stdin.write(b"\n")
                scrapes += 1
            if "pushes" in parts and spent_s >= due_push_s:
                due_push_s += PUSH_EVERY_S
                await pushing.push()
                pushes += 1
            await asyncio.sleep(0)
        rendered = [json.loads(await scraper.stdout.readline()) for _ in range(scrapes)]
        spent_s = time.process_time() - began_s - made_s
        spans = sent(node)
        scraper.stdin.close()
        await scraper.wait()
        connection.close()
    return {
        "us": spent_s / requests * 1e6,
        "requests": requests,
        "scrapes": scrapes,
        "pushes": pushes,
        "spans": spans,
        "rendering_ms": statistics.median(one["ms"] for one in rendered) if rendered else 0.0,
        "rendered_bytes": rendered[-1]["bytes"] if rendered else 0,
    }


async def scrape(port: int) -> None:
    """Do for each line of standard input as the HTTP process does for a scrape, and print the CPU that it takes here."""
    loop = asyncio.get_running_loop()
    async with ClusterClient([("127.0.0.1", port)], rng=random.Random(1)) as cluster:
        admin, address = AdminClient(cluster), ("127.0.0.1", port)
        await cluster.bootstrap_broker(address)
        print("{}", flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            began_s = time.process_time()
            answer = await admin.metrics(await cluster.bootstrap_broker(address))
            samples = [
                Sample(s.family, "gauge", s.help, s.name, tuple((name, value) for name, value in s.labels), s.value)
                for s in answer.samples
            ]
            pieces = await run(render_steps(list(labelled(samples, node_id="1"))))
            told = {"ms": (time.process_time() - began_s) * 1e3, "bytes": sum(map(len, pieces))}
            print(json.dumps(told), flush=True)


class _Collecting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is told."""


def collect() -> None:
    """Take spans until killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collecting)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def collecting() -> Iterator[str]:
    """The endpoint of a collector in a process of its own."""
    command = [sys.executable, "-m", "loadtests.micro_telemetry", "--collector"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1/traces"
        finally:
            process.kill()


def side(options: argparse.Namespace, parts: str, endpoint: str) -> dict[str, float]:
    """One side in a process of its own."""
    command = [
        *(sys.executable, "-m", "loadtests.micro_telemetry", "--side", parts, "--endpoint", endpoint),
        *("--seconds", str(options.seconds), *(("--directory", str(options.directory)) if options.directory else ())),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(options: argparse.Namespace) -> None:
    """All turns, and their ratios."""
    off: list[float] = []
    on: list[float] = []
    last: dict[str, float] = {}
    with collecting() as endpoint:
        for turn in range(options.turns):
            sides = ("", options.parts) if turn % 2 == 0 else (options.parts, "")
            with ThreadPoolExecutor(len(sides) if options.together else 1) as pool:
                for parts, found in zip(sides, pool.map(lambda one: side(options, one, endpoint), sides), strict=True):
                    (on if parts else off).append(found["us"])
                    last = found if parts else last
            print(
                f"turn {turn + 1}: without {off[-1]:.2f} µs, with {on[-1]:.2f} µs, {on[-1] / off[-1]:.3f} x", flush=True
            )
    ratios = sorted(b / a for a, b in zip(off, on, strict=True))
    print(
        f"telemetry ({options.parts}): {statistics.median(ratios):.3f} x ({ratios[0]:.3f} to {ratios[-1]:.3f}), "
        f"{statistics.median(off):.2f} µs without, {statistics.median(on):.2f} µs with it; {last['requests']:,.0f} requests, "
        f"{last['scrapes']:.0f} scrapes, {last['pushes']:.0f} pushes, {last['spans']:.0f} spans sent"
    )
    print(
        f"HTTP process, each scrape: {last['rendering_ms']:.0f} ms to read and render {last['rendered_bytes'] / 1e6:.1f} MB, "
        "not in the ratio"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU, for each side of a turn")
    parser.add_argument(
        "--together", action="store_true", help="both sides of a turn at once, so that other work slows both alike"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="the telemetry of one side")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the broker keeps its data (a temporary folder)"
    )
    parser.add_argument("--side", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    parser.add_argument("--scraper", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--collector", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collector:
        collect()
    elif options.scraper is not None:
        asyncio.run(scrape(options.scraper))
    elif options.side is None:
        compare(options)
    else:
        directory = Path(tempfile.mkdtemp(prefix="firn-micro-", dir=options.directory))
        parts = frozenset(filter(None, options.side.split(",")))
        try:
            print(json.dumps(uvloop.run(measure(directory, options.seconds, parts, options.endpoint))))
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
