"""Resident memory of a broker that does nothing, and what idle connections add to it."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.framing import request_frame
from loadtests.lab import Lab
from loadtests.measuring import Report
from loadtests.processes import cpu_seconds, family_memory_mb, memory_mb
from loadtests.results import Case
from loadtests.system import System

API_VERSIONS = request_frame(ApiKey.API_VERSIONS, 0, 1, "idle", ApiVersionsRequest())
SETTLE_S = 3.0
WATCH_S = 5.0


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
    """At rest; then with idle connections: a thousand, and as many as the run's effort says."""
    counts = sorted({1_000, lab.effort.many_connections})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, counts[-1] + 500), hard))
    watch_s = 1.0 if lab.quick else WATCH_S
    found: dict[str, Report] = {}
    with lab.systems(new=True) as systems:
        time.sleep(SETTLE_S)
        for name, peer in systems.items():
            report: Report = {"start_s": peer.start_s, "memory_mb": memory_mb(peer.pid)}
            report["family_mb"] = family_memory_mb(peer.pid)
            for count in counts:
                with connections(peer, count):
                    time.sleep(1)
                    before = cpu_seconds(peer.pid)
                    time.sleep(watch_s)
                    report[f"with_{count}_mb"] = memory_mb(peer.pid) - report["memory_mb"]
                    report[f"with_{count}_cpu_share"] = (cpu_seconds(peer.pid) - before) / watch_s
            found[name] = report
            print(
                f"at rest {name:<6} {report['memory_mb']:.0f} MB, all its processes {report['family_mb']:.0f} MB; "
                + "; ".join(f"{count:,} connections add {report[f'with_{count}_mb']:.1f} MB" for count in counts),
                flush=True,
            )
    return [Case("at rest", found)]
