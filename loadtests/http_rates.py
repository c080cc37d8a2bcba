"""Rates of the HTTP process beside bare uvicorn, in turns of one run: their ratio to uvicorn's, and CPU µs of each process.

    python -m loadtests.http_rates [--rounds 5] [--seconds 2] [--only single,lookup] [--durability disk] [--set NAME=VALUE]

uvicorn answers a constant and has no application. The hop is uvicorn too, with one awaited Produce request for each request: a
process that stores each record by a request of its own cannot do without it. Ratios are of neighbouring turns, so a busy machine
bends them little. The CPU of a request is that of the HTTP process, of the broker with its store process (from /proc), and of the
generator. A round whose generator used most of its core measures the generator. Paced cases have a rate, and tell the wait at it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loadtests.firn_peer import firn_running
from loadtests.measuring import make_topic
from loadtests.processes import family, memory_mb
from loadtests.raw_http import MARK, Load, Outcome, RequestFailed, request_of
from loadtests.system import ROOT, System, free_port, wait_for_port

CONNECTIONS = 16
STREAMS = 4
STREAM_RECORDS = 5_000
BATCH_RECORDS = 500
KEYED_CONNECTIONS = 50
PACED_RATE = 800
"""Requests a second of all callers together. Both kinds of request can have this rate, so their waits show the cost of a key."""
HOP_TOPIC = "hop"
DURABILITIES = ("memory", "disk", "object")
READERS = 4
READ_RECORDS = 32_000
SCHEMA = '{"type":"record","name":"Flight","fields":[{"name":"flight","type":"int"},{"name":"origin","type":"string"}]}'
RECEIPT = b'"offset"'


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request."""

    title: str
    unit: str
    load: Load
    count: Callable[[Outcome], float]
    """How many of ``unit`` an outcome has."""
    beside: tuple[str, ...] = ("bare",)
    """The cases to whose rates its own is a ratio."""


@dataclass(slots=True)
class Turn:
    """One run of a case."""

    rate: float
    cpu_us: dict[str, float]
    """Of each kind of process, for one of the case's unit."""
    wait_ms: float
    """The median of the times from a request to the end of its response."""
    busy: float
    """The part of the time in which the generator computed."""


def cpu_of(pids: Sequence[int]) -> float:
    """CPU seconds of processes, by the scheduler's count of nanoseconds."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def is_http(pid: int) -> bool:
    """Whether a process serves HTTP."""
    with suppress(FileNotFoundError):
        return b"app.http" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def ask(port: int, method: str, path: str, content: object = None, **headers: str) -> tuple[int, bytes]:
    """One request and its status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = None if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
    connection.request(method, path, body, headers | ({"Content-Type": "application/json"} if body else {}))
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def cluster_path(port: int) -> str:
    """The path of the cluster, once the HTTP process answers."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError, KeyError, ValueError, IndexError):
            return f"/v3/clusters/{json.loads(ask(port, 'GET', '/v3/clusters')[1])['data'][0]['cluster_id']}"
        if time.monotonic() > deadline:
            raise SystemExit("The HTTP process did not answer within a minute.")
        time.sleep(0.1)


def record_of(size: int) -> bytes:
    """A record of JSON with a value of so many bytes."""
    data = {"flight": 1545, "origin": "EWR", "delay": 11, "text": ""}
    data["text"] = "x" * (size - len(json.dumps(data, separators=(",", ":"))))
    return json.dumps({"value": {"type": "JSON", "data": data}}, separators=(",", ":")).encode()


def cases(peer: System, port: int, bare_port: int, hop_port: int, durability: str) -> dict[str, Case]:
    """All cases, with the topics and the schema that they need. ``durability``: of the topic of keyed requests."""
    path = cluster_path(port)
    for topic in (HOP_TOPIC, "single", "stream", "read", "avro"):
        make_topic(peer, topic)
    record = record_of(200)

    def requests(found: Outcome) -> float:
        return found.requests

    def receipts(found: Outcome) -> float:
        return found.found

    def megabytes(found: Outcome) -> float:
        return found.body_bytes / 1e6

    made = {
        "bare": Case("bare uvicorn", "requests", _load(bare_port, "POST", "/", record), requests),
        "single": Case(
            "produce, a record a request",
            "requests",
            _load(port, "POST", f"{path}/topics/single/records", record, pattern=RECEIPT),
            receipts,
            ("bare", "hop"),
        ),
        "hop": Case("uvicorn and a Produce request", "requests", _load(hop_port, "POST", "/", record), requests),
        "lone-bare": Case(
            "bare uvicorn, one caller", "requests", _load(bare_port, "POST", "/", record, connections=1), requests, ()
        ),
        "lone-hop": Case(
            "uvicorn and a Produce request, one caller",
            "requests",
            _load(hop_port, "POST", "/", record, connections=1),
            requests,
            ("lone-bare",),
        ),
        "lone": Case(
            "produce, a record a request, one caller",
            "requests",
            _load(port, "POST", f"{path}/topics/single/records", record, connections=1, pattern=RECEIPT),
            receipts,
            ("lone-bare", "lone-hop"),
        ),
        "stream": Case(
            "produce, streamed records of 200 B",
            "records",
            _load(
                port,
                "POST",
                f"{path}/topics/stream/records",
                record * STREAM_RECORDS,
                connections=STREAMS,
                pattern=RECEIPT,
            ),
            receipts,
        ),
    }
    make_topic(peer, "keyed", firn_durability=durability)
    made |= keyed(port, f"{path}/topics/keyed/records", record)
    filler = record_of(1_000) * (READ_RECORDS // 8)
    for _ in range(8):
        status, _body = ask(port, "POST", f"{path}/topics/read/records", filler)
        assert status == 200, status
    asked = request_of(
        "GET",
        f"{path}/topics/read/partitions/0/records?count=10000&bytes=10000000",
        port,
        Accept="application/x-ndjson",
    )
    made["read"] = Case(
        "reads of 1 KB records as NDJSON", "MB", Load(port=port, request=asked, connections=READERS), megabytes
    )
    status, body = ask(port, "POST", "/subjects/avro-value/versions", {"schema": SCHEMA})
    if status == 200:
        schema_id = json.loads(body)["id"]
        made["lookup"] = Case(
            "registry, a schema by its id", "requests", _load(port, "GET", f"/schemas/ids/{schema_id}"), requests
        )
        batch = {
            "value_schema_id": schema_id,
            "records": [{"value": {"flight": 1545, "origin": "EWR"}}] * BATCH_RECORDS,
        }
        made["avro"] = Case(
            f"produce in Avro, {BATCH_RECORDS} records a request of REST v2",
            "records",
            _load(
                port,
                "POST",
                "/topics/avro",
                json.dumps(batch, separators=(",", ":")).encode(),
                connections=STREAMS,
                pattern=RECEIPT,
                Content_Type="application/vnd.kafka.avro.v2+json",
            ),
            receipts,
        )
        avro = {"value": {"schema_id": schema_id, "data": {"flight": 1545, "origin": "EWR"}}}
        encoded = json.dumps(avro, separators=(",", ":")).encode()
        status, body = ask(port, "POST", f"{path}/topics/avro/records", encoded)
        if status == 200 and b'"AVRO"' in body:
            made["avro-stream"] = Case(
                "produce, streamed records in Avro",
                "records",
                _load(
                    port,
                    "POST",
                    f"{path}/topics/avro/records",
                    encoded * STREAM_RECORDS,
                    connections=STREAMS,
                    pattern=RECEIPT,
                ),
                receipts,
            )
        else:
            print(f"Streams in Avro are left out: {status} {body[:200]!r}")
    else:
        print(f"The registry is left out: {status} {body[:200]!r}")
    return made


def keyed(port: int, path: str, record: bytes) -> dict[str, Case]:
    """A record a request with a key of its own, beside as many callers without keys; none if keys are not served."""
    status, body = ask(port, "POST", path, record, **{"Idempotency-Key": "first"})
    again, repeated = ask(port, "POST", path, record, **{"Idempotency-Key": "first"})
    if (status, body) != (again, repeated) or status != 200:
        print(f"Keyed requests are left out: {status} {body[:200]!r}, then {again} {repeated[:200]!r}")
        return {}

    def load(rate: float = 0.0, **headers: str) -> Load:
        made = _load(port, "POST", path, record, connections=KEYED_CONNECTIONS, pattern=RECEIPT, **headers)
        return replace(made, requests_a_second=rate)

    def receipts(found: Outcome) -> float:
        return found.found

    return {
        "unkeyed": Case(f"produce, a record a request of {KEYED_CONNECTIONS} callers", "requests", load(), receipts),
        "keyed": Case(
            f"produce with a key, a record a request of {KEYED_CONNECTIONS} callers",
            "requests",
            load(Idempotency_Key=MARK.decode()),
            receipts,
        ),
        "paced-unkeyed": Case(
            f"produce, a record a request, {PACED_RATE} requests a second of {KEYED_CONNECTIONS} callers",
            "requests",
            load(PACED_RATE),
            receipts,
            (),
        ),
        "paced-keyed": Case(
            f"produce with a key, a record a request, {PACED_RATE} requests a second of {KEYED_CONNECTIONS} callers",
            "requests",
            load(PACED_RATE, Idempotency_Key=MARK.decode()),
            receipts,
            (),
        ),
    }


def _load(
    port: int,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    connections: int = CONNECTIONS,
    pattern: bytes = b"",
    **headers: str,
) -> Load:
    request = request_of(method, path, port, body, **headers)
    return Load(port=port, request=request, connections=connections, pattern=pattern)


def turn(case: Case, seconds: float, pids: Mapping[str, Sequence[int]]) -> Turn:
    """Run a case once. Raises: RequestFailed."""
    before = {name: cpu_of(group) for name, group in pids.items()}
    outcome = case.load.run(seconds)
    count = case.count(outcome)
    spent = {name: (cpu_of(group) - before[name]) / count * 1e6 for name, group in pids.items()}
    spent["generator"] = outcome.cpu_s / count * 1e6
    wait_ms = statistics.median(outcome.waits_s) * 1e3
    return Turn(count / outcome.seconds, spent, wait_ms, outcome.cpu_s / outcome.seconds)


def median_of(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):10,.2f} ({min(values):,.2f} to {max(values):,.2f})"


def show(case: Case, all_turns: Mapping[str, Sequence[Turn]], turns: Sequence[Turn]) -> None:
    """A case's figures: medians of its rounds, with their range."""
    print(f"{case.title} ({case.unit})", flush=True)
    print(f"  a second            median {median_of([one.rate for one in turns])}")
    for name in case.beside:
        if others := all_turns.get(name):
            ratios = [one.rate / other.rate for one, other in zip(turns, others, strict=True)]
            print(f"  to {name:<16} median {median_of(ratios)}")
    print(f"  ms to a response    median {median_of([one.wait_ms for one in turns])}")
    for name in turns[0].cpu_us:
        print(f"  CPU µs, {name:<11} median {median_of([one.cpu_us[name] for one in turns])}")
    print(f"  generator's share   median {median_of([one.busy for one in turns])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="cases with commas between them; bare uvicorn is always there")
    parser.add_argument("--durability", choices=DURABILITIES, default="memory", help="of the topic of keyed requests")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the broker")
    options = parser.parse_args()
    wanted = {name for name in options.only.split(",") if name}
    settings = dict(pair.split("=", 1) for pair in options.set)
    port, bare_port, hop_port = free_port(), free_port(), free_port()
    command = [sys.executable, "-m", "loadtests.bare_http"]
    bare = subprocess.Popen([*command, str(bare_port)], cwd=ROOT)
    hop: subprocess.Popen[bytes] | None = None
    try:
        with (
            tempfile.TemporaryDirectory(prefix="firn-http-rates-") as directory,
            firn_running(Path(directory), http=f"127.0.0.1:{port}", settings=settings) as peer,
        ):
            hop = subprocess.Popen([*command, str(hop_port), str(peer.port), HOP_TOPIC], cwd=ROOT)
            wait_for_port(bare_port, 30)
            wait_for_port(hop_port, 30)
            cluster_path(port)
            servers = [pid for pid in family(peer.pid) if is_http(pid)]
            print(f"HTTP processes: {len(servers)}; idle: {', '.join(f'{memory_mb(pid):.1f} MB' for pid in servers)}")
            chosen = {
                name: case
                for name, case in cases(peer, port, bare_port, hop_port, options.durability).items()
                if not wanted or name in wanted or name == "bare"
            }
            turns: dict[str, list[Turn]] = {name: [] for name in chosen}
            for number in range(options.rounds + 1):  # the first one warms up
                for name, case in chosen.items():
                    http_pids = [pid for pid in family(peer.pid) if is_http(pid)]
                    brokers = [pid for pid in family(peer.pid) if pid not in http_pids]
                    pids = {"HTTP": http_pids, "broker": brokers}
                    if case.load.port == bare_port:
                        pids = {"HTTP": [bare.pid]}
                    elif case.load.port == hop_port:
                        pids["HTTP"] = [hop.pid]
                    found = turn(case, options.seconds if number else options.seconds / 2, pids)
                    if number:
                        turns[name].append(found)
            print(f"{options.rounds} rounds of {options.seconds:g} s in turns, medians; the range in brackets")
            for name, case in chosen.items():
                show(case, turns, turns[name])
            after = ", ".join(f"{memory_mb(pid):.1f} MB" for pid in family(peer.pid) if is_http(pid))
            print(f"HTTP processes at the end: {after}")
    except RequestFailed as error:
        raise SystemExit(f"A request failed: {error}") from None
    finally:
        for process in (bare, hop):
            if process is not None:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
