"""Produce over HTTP: REST v3 records, one a request and streamed. Apache Kafka has no HTTP of its own."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from loadtests.firn_peer import firn_running
from loadtests.lab import Lab, pinned_here
from loadtests.measuring import LOAD_CORE, SERVER_CORE, Report, alternate, make_topic
from loadtests.processes import family_cpu_seconds
from loadtests.results import Case
from loadtests.system import System, free_port

RECORD = json.dumps(
    {"value": {"type": "JSON", "data": {"flight": 1545, "origin": "EWR", "delay": 11, "text": "x" * 900}}}
)
CONNECTIONS = 8
STREAM_RECORDS = 5_000


def produce(lab: Lab) -> list[Case]:
    """JSON records of about 1 KB: eight connections with a request each, and one request that streams 5,000 of them. The broker
    and its HTTP process share one core."""
    cases = []
    port = free_port()
    with firn_running(lab.base / "http", cores=str(SERVER_CORE), http=f"127.0.0.1:{port}") as peer:
        make_topic(peer, "rest")
        path = _records_path(port)
        for name, run in (("HTTP, a record a request", _single), ("HTTP, streamed", _streamed)):
            with pinned_here(LOAD_CORE):
                run(peer, port, path, min(1.0, lab.effort.seconds))
                runs = {"Firn": partial(run, peer, port, path, lab.effort.seconds)}
                cases.append(Case(name, alternate(runs, lab.effort.variant_rounds, servers={"Firn": peer})))
            found = cases[-1].systems["Firn"]
            late = f"p99 {found['p99_ms']:.1f} ms, " if "p99_ms" in found else ""
            print(
                f"{name:<32} {found['records_per_s']:,.0f} records/s, {late}"
                f"{found['server_cpu_us_per_record']:.0f} µs CPU a record",
                flush=True,
            )
    return cases


def _records_path(port: int) -> str:
    """The path of the topic's records, once the HTTP process answers."""
    deadline = time.monotonic() + 30
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v3/clusters")
            answer = json.loads(connection.getresponse().read())
            return f"/v3/clusters/{answer['data'][0]['cluster_id']}/topics/rest/records"
        except (OSError, KeyError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _single(peer: System, port: int, path: str, seconds: float) -> Report:
    latencies: list[float] = []
    deadline = time.perf_counter() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while (asked := time.perf_counter()) < deadline:
            connection.request("POST", path, RECORD, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            latencies.append(time.perf_counter() - asked)
        connection.close()

    before, started = family_cpu_seconds(peer.pid), time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for client_done in [pool.submit(client) for _ in range(CONNECTIONS)]:
            client_done.result()
    report = _report(len(latencies), time.perf_counter() - started, family_cpu_seconds(peer.pid) - before)
    latencies.sort()
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        report[name] = latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000
    return report


def _streamed(peer: System, port: int, path: str, seconds: float) -> Report:
    body = RECORD * STREAM_RECORDS
    count = 0
    before, started = family_cpu_seconds(peer.pid), time.perf_counter()
    while time.perf_counter() - started < seconds:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answers = answer.read()
        assert answer.status == 200, answer.status
        assert answers.count(b'"offset"') == STREAM_RECORDS, "a record was not acknowledged"
        count += STREAM_RECORDS
        connection.close()
    return _report(count, time.perf_counter() - started, family_cpu_seconds(peer.pid) - before)


def _report(count: int, seconds: float, spent: float) -> Report:
    return {
        "records_per_s": count / seconds,
        "mb_per_s": count * len(RECORD) / seconds / 1e6,
        "server_cpu_s_per_gb": spent / (count * len(RECORD)) * 1e9,
        "server_cpu_us_per_record": spent / count * 1e6,
    }
