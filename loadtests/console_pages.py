"""How long the first pages of the console take in a large cluster, and how long they hold the broker's loop.

    python -m loadtests.console_pages [--topics 10000] [--partitions 4] [--groups 15000] [--rounds 3]

One broker has the topics, each with some partitions, and the groups, each with one committed offset. There are no records. "Cold"
is the first time that the HTTP process serves the page, before which it has asked the broker for nothing. The longest turn of the
broker's loop is seen from outside: a client asks for the versions of APIs all the time, and the longest wait for a response is
told, with the pages and without. CPU time is that of the broker and of the HTTP process together, with what the question for
versions costs.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import random
import statistics
import tempfile
import time
from pathlib import Path

from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from loadtests.firn_peer import firn_running
from loadtests.processes import family_cpu_seconds
from loadtests.system import System, free_port, wait_for_port

PAGES = (
    "/",
    "/console/topics",
    "/console/topics?sort=lag&q=topic-00",
    "/console/groups",
    "/console/topics/topic-00000",
    "/console/topics/topic-00000/groups",
    "/console/groups/group-00000",
    "/console/cost",
)
TOPICS_A_REQUEST = 100
COMMITS_AT_ONCE = 32
COMMIT_VERSION = 8
"""The last one with a member's generation and topics by name, for groups without members."""
ASK_TIMEOUT_MS = 300_000
PAUSE_S = 0.0005
TIMEOUT_S = 120


async def fill(cluster: ClusterClient, topics: int, partitions: int, groups: int) -> None:
    """Create the topics and the groups."""
    connection = await cluster.any_broker()
    names = [f"topic-{number:05}" for number in range(topics)]
    for start in range(0, topics, TOPICS_A_REQUEST):
        wanted = [CreatableTopic(name, partitions, 1) for name in names[start : start + TOPICS_A_REQUEST]]
        answer = await connection.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(wanted), timeout_ms=ASK_TIMEOUT_MS)
        failed = [(one.name, one.error_code, one.error_message) for one in answer.topics if one.error_code]
        assert not failed, failed[:3]
    limit = asyncio.Semaphore(COMMITS_AT_ONCE)

    async def commit(number: int) -> None:
        offset = OffsetCommitRequestTopic(name=names[number % topics], partitions=[OffsetCommitRequestPartition(0, 0)])
        request = OffsetCommitRequest(f"group-{number:05}", topics=[offset])
        async with limit:
            answer = await connection.request(
                ApiKey.OFFSET_COMMIT, request, version=COMMIT_VERSION, timeout_ms=ASK_TIMEOUT_MS
            )
        assert not answer.topics[0].partitions[0].error_code, answer

    await _coordinator_is_there(connection)
    await asyncio.gather(*map(commit, range(groups)))


async def _coordinator_is_there(connection: KafkaConnection) -> None:
    while True:
        request = FindCoordinatorRequest(key="group-00000", key_type=0, coordinator_keys=["group-00000"])
        answer = await connection.request(ApiKey.FIND_COORDINATOR, request, timeout_ms=ASK_TIMEOUT_MS)
        if not answer.coordinators[0].error_code:
            return
        await asyncio.sleep(0.2)


class Waits:
    """The longest wait for a response to a request that costs nothing."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self.longest_s = 0.0

    async def look(self) -> None:
        """Ask until it is cancelled."""
        while True:
            began_s = time.perf_counter()
            await self._connection.request(
                ApiKey.API_VERSIONS, ApiVersionsRequest("load", "1"), timeout_ms=ASK_TIMEOUT_MS
            )
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
            await asyncio.sleep(PAUSE_S)


def load(port: int, path: str) -> tuple[float, float, int]:
    """Seconds to the first byte and to the last one, and the bytes of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    began_s = time.perf_counter()
    connection.request("GET", path, headers={"accept": "text/html"})
    response = connection.getresponse()
    first_s = time.perf_counter() - began_s
    content = response.read()
    whole_s = time.perf_counter() - began_s
    connection.close()
    assert response.status == 200, (path, response.status, content[:300])
    return first_s, whole_s, len(content)


async def measure(peer: System, web: int, options: argparse.Namespace) -> None:
    """Fill the broker, and print a line for each page."""
    port = peer.port
    async with ClusterClient([("127.0.0.1", port)], rng=random.Random(1)) as cluster:
        began_s = time.perf_counter()
        await fill(cluster, options.topics, options.partitions, options.groups)
        print(f"filled in {time.perf_counter() - began_s:.0f} s", flush=True)
        await asyncio.sleep(options.settle)
        async with ClusterClient([("127.0.0.1", port)], rng=random.Random(2), client_id="waits") as other:
            waits = Waits(await other.any_broker())
            looking = asyncio.create_task(waits.look())
            await asyncio.sleep(options.settle)
            print(f"{'without pages':34} longest wait {1000 * waits.longest_s:7.1f} ms", flush=True)
            for path in PAGES:
                waits.longest_s = 0.0
                cpu_s = family_cpu_seconds(peer.pid)
                first_s, cold_s, size = await asyncio.to_thread(load, web, path)
                cpu_s = family_cpu_seconds(peer.pid) - cpu_s
                cold_wait_s, waits.longest_s = waits.longest_s, 0.0
                warm = [(await asyncio.to_thread(load, web, path))[1] for _ in range(options.rounds)]
                print(
                    f"{path:34} cold {1000 * cold_s:7.0f} ms (first byte {1000 * first_s:.0f} ms, CPU {1000 * cpu_s:.0f} ms),"
                    f" longest wait {1000 * cold_wait_s:6.1f} ms; later {1000 * statistics.median(warm):6.0f} ms,"
                    f" longest wait {1000 * waits.longest_s:6.1f} ms; {size:,} bytes",
                    flush=True,
                )
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=4, help="of each topic")
    parser.add_argument("--groups", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=5.0, help="seconds to wait before the pages")
    parser.add_argument("--directory", type=Path, help="where the broker keeps its data (a temporary folder)")
    options = parser.parse_args()
    web = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="firn-pages-", dir=options.directory) as directory,
        firn_running(Path(directory), http=f"127.0.0.1:{web}") as peer,
    ):
        wait_for_port(web, TIMEOUT_S)
        asyncio.run(measure(peer, web, options))


if __name__ == "__main__":
    main()
