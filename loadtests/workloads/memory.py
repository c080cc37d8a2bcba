"""Resident memory of a broker that does nothing, and what idle connections add to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.framing import request_frame
from loadtests.lab import Lab, allow_descriptors
from loadtests.measuring import Report
from loadtests.processes import cpu_seconds, family_memory_mb, memory_mb
from loadtests.results import Case
from loadtests.system import System

API_VERSIONS = request_frame(ApiKey.API_VERSIONS, 0, 1, "idle", ApiVersionsRequest())
SETTLE_S = 3.0
CONNECTED_S = 1.0
WATCH_S = 3.0


@contextmanager
def connections(peer: System, count: int) -> Iterator[None]:
    """So many open connections that have asked one question each."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((peer.host, peer.port), 10))
            connection.sendall(API_VERSIONS)
            connection.recv(4096)
        yield


def idle(lab: Lab) -> list[Case]:
    """At rest; then with idle connections that have asked one question each: a thousand, and as many as the run's effort says.
    Memory is the broker's, and that of all its processes; the CPU share is what the idle broker takes of its core."""
    counts = sorted({1_000, lab.effort.many_connections})
    allow_descriptors(counts[-1] + 500)
    found: dict[int, dict[str, Report]] = {count: {} for count in (0, *counts)}
    with lab.systems(fresh=True) as systems:
        time.sleep(1.0 if lab.quick else SETTLE_S)
        for name, peer in systems.items():
            for count, reports in found.items():
                with connections(peer, count):
                    reports[name] = _watched(lab, peer)
            found[0][name]["start_s"] = peer.start_s
    cases = []
    for count, reports in found.items():
        title = f"{count:,} idle connections" if count else "at rest"
        for name, report in reports.items():
            print(
                f"{title:<24} {name:<6} {report['memory_mb']:.0f} MB, all its processes {report['family_mb']:.0f} MB, "
                f"{report['idle_cpu_share']:.2%} of a core",
                flush=True,
            )
        cases.append(Case(title, reports, {"idle_connections": count}))
    return cases


def _watched(lab: Lab, peer: System) -> Report:
    settle_s, watch_s = (0.2, 0.5) if lab.quick else (CONNECTED_S, WATCH_S)
    time.sleep(settle_s)  # until what the connections' coming left to do is done
    before = cpu_seconds(peer.pid)
    time.sleep(watch_s)
    return {
        "memory_mb": memory_mb(peer.pid),
        "family_mb": family_memory_mb(peer.pid),
        "idle_cpu_share": (cpu_seconds(peer.pid) - before) / watch_s,
    }
