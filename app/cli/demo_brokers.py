"""``firn demo --brokers 3``: a broker is killed while the flights go in, and everything comes back.

Three brokers begin a cluster on one directory as object store, each by ``firn serve --node-id auto``. The leader of some partitions
is killed with SIGKILL while librdkafka produces. The rest is as in the demo of one broker (``app/demo.py``): each record that went
in must come back once and in order, from the brokers that are left and from the object store.

Tests: ``tests/cli/test_demo.py``.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app.core.errors import clause
from app.demo import (
    DEADLINE_S,
    PARTITIONS,
    TOPIC,
    DemoFailed,
    create_topic,
    flights_table,
    free_port,
    keep_up,
    mib,
    produce,
    progress_bar,
    replay,
    to_flights,
    wait_for_port,
)
from app.machine.interpreter import python_command, python_environment
from app.machine.terminating import ended_by_signals

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata
    from rich.console import Console

KILL_AT: Final = 0.4
"""The share of the flights that is sent before a broker is killed."""
STOP_S: Final = 20.0
SILENT: Final = 2
"""librdkafka's log level: that a killed broker refuses connections is no news here."""
LOOK_S: Final = 0.2


@dataclass(slots=True)
class DemoBrokers:
    """The processes of the cluster, by the port of each."""

    root: Path
    ports: list[int]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    admin: AdminClient | None = None
    http: str | None = None
    """Where the first broker serves HTTP and the console; no broker does by default."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    def start(self, port: int, stack: ExitStack) -> None:
        place = self.ports.index(port) + 1
        http = self.http if place == 1 and self.http else "off"
        log = stack.enter_context((self.root / f"broker-{place}.log").open("ab"))
        command = [
            *python_command("app.cli", "serve"),
            *("--node-id", "auto", "--data-dir", str(self.root / f"broker-{place}")),
            *("--store", self.bucket.resolve().as_uri(), "--listen", f"127.0.0.1:{port}", "--http", http),
            *("--set", "remote.log.manager.task.interval.ms=500"),
        ]
        self.processes[port] = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=python_environment(),
            start_new_session=True,
        )

    def wait_for(self, port: int) -> None:
        """Wait until a broker listens. Raises: DemoFailed."""
        place = self.ports.index(port) + 1
        wait_for_port(self.processes[port], f"127.0.0.1:{port}", self.root / f"broker-{place}.log")

    def end_all(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _serving(root: Path, count: int, http: str | None) -> Iterator[tuple[DemoBrokers, ExitStack]]:
    """Brokers that end when the block is left, however it is left."""
    brokers = DemoBrokers(root, [free_port() for _ in range(count)], http=http)
    with ended_by_signals(), ExitStack() as stack:
        try:
            for port in brokers.ports:
                brokers.start(port, stack)
            for port in brokers.ports:
                brokers.wait_for(port)
            yield brokers, stack
        finally:
            brokers.end_all()


def failover(count: int, flights_max: int | None = None, *, keep: bool = False) -> Callable[[Console, Path], None]:
    """The demo with so many brokers, and with the first so many flights. It raises DemoFailed.

    ``keep``: the brokers go on until this process is interrupted, and the first one has the console.
    """

    def show(console: Console, root: Path) -> None:
        console.print("[bold]1. Real records[/]")
        flights = to_flights(flights_table().slice(0, flights_max))
        raw_bytes = sum(len(flight.key) + len(flight.value) for flight in flights)
        console.print(f"  {len(flights):,} flights out of New York in 2013, {mib(raw_bytes)} of JSON, keyed by carrier")

        http = f"127.0.0.1:{free_port()}" if keep else None
        with _serving(root, count, http) as (brokers, stack):
            console.print(
                f"[bold]2. {count} brokers[/], each started by the same command, on one directory as object store"
            )
            ids = ports_by_id(brokers, count)
            for node_id, port in sorted(ids.items()):
                console.print(f"  broker {node_id} on 127.0.0.1:{port}", highlight=False)
            create_topic(brokers.bootstrap, min(3, count))
            _wait(brokers, all_in_sync, "all replicas of the topic are in sync")
            console.print(f"  topic {TOPIC}, {PARTITIONS} partitions of 3 replicas, min.insync.replicas=2")

            console.print("[bold]3. Produce[/] with librdkafka, idempotent, acks=all, and kill a leader meanwhile")
            killing = Killing(brokers, ids)
            sent, produce_s = produce(
                console,
                brokers.bootstrap,
                flights,
                at={int(len(flights) * KILL_AT): killing.kill},
                stored=killing.stored,
                log_level=SILENT,
            )
            console.print(f"  {len(flights) / produce_s:,.0f} records/s, {raw_bytes / produce_s / 1e6:.0f} MB/s")
            console.print(f"  {killing.told()}")

            console.print(f"[bold]4. Replay[/] from the {count - 1} brokers that are left")
            replay_s = replay(console, brokers.bootstrap, sent, log_level=SILENT)
            console.print(f"  {len(flights) / replay_s:,.0f} records/s: every record once, and in order")

            console.print(f"[bold]5. Start broker {killing.node_id} again[/] on its data directory")
            brokers.start(killing.port, stack)
            brokers.wait_for(killing.port)
            back_s = _wait(brokers, all_in_sync, "the broker that was killed is in sync again")
            console.print(f"  in sync with all partitions {back_s:.1f} s after it listened")

            console.print("[bold]6. Tier[/], and replay from the object store, with no record left on a leader's disk")
            tier_s = _wait_until_tiered(console, brokers)
            console.print(f"  all of it within {tier_s:.1f} s")
            replay_s = replay(console, brokers.bootstrap, sent)
            console.print(f"  {len(flights) / replay_s:,.0f} records/s, {raw_bytes / replay_s / 1e6:.0f} MB/s")
            console.print("  count, order and SHA-256 of every partition are what was sent:")
            for partition, digest in enumerate(sent):
                console.print(f"    {TOPIC}-{partition}  {digest.count:>7,} records  {digest.hexdigest[:32]}…")
            if http is not None:
                keep_up(console, "The brokers go on.", http, brokers.bootstrap)

    return show


class Killing:
    """Kills the leader of the first partition, and notes when other brokers accept writes to its partitions."""

    def __init__(self, brokers: DemoBrokers, ids: dict[int, int]) -> None:
        self._brokers = brokers
        self._ids = ids
        self.node_id = -1
        self.port = -1
        self._led: set[int] = set()
        self._killed_s = 0.0
        self._written_s: dict[int, float] = {}

    def kill(self) -> None:
        """Raises: DemoFailed."""
        topic = _cluster(self._brokers).topics[TOPIC]
        leaders = {index: one.leader for index, one in topic.partitions.items()}
        self.node_id = leaders[0]
        self.port = self._ids[self.node_id]
        self._led = {index for index, leader in leaders.items() if leader == self.node_id}
        process = self._brokers.processes[self.port]
        process.kill()
        process.wait()
        self._killed_s = time.monotonic()

    def stored(self, partition: int) -> None:
        if partition in self._led and partition not in self._written_s:
            topic = _topic_leader(self._brokers, partition)
            if topic not in (-1, self.node_id):
                self._written_s[partition] = time.monotonic() - self._killed_s

    def told(self) -> str:
        """The sentence on the killed broker. Raises: DemoFailed if one of its partitions was never written again."""
        if self._written_s.keys() != self._led:
            raise DemoFailed(
                f"What broker {self.node_id} led has no other leader: {sorted(self._led - set(self._written_s))}."
            )
        named = ", ".join(f"{TOPIC}-{one}" for one in sorted(self._led))
        return (
            f"broker {self.node_id}, which led {named}, was killed with SIGKILL; others led these partitions and acknowledged"
            f" records of them within {max(self._written_s.values()):.1f} s"
        )


# --- watching -------------------------------------------------------------------------------------------------------


def _cluster(brokers: DemoBrokers) -> ClusterMetadata:
    """The cluster's metadata from the first broker that responds. Raises: DemoFailed."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if brokers.admin is None:
        brokers.admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": SILENT})
    try:
        return brokers.admin.list_topics(timeout=10)
    except KafkaException as error:
        raise DemoFailed(f"No broker answers: {clause(error)}.") from None


def _topic_leader(brokers: DemoBrokers, partition: int) -> int:
    leader: int = _cluster(brokers).topics[TOPIC].partitions[partition].leader
    return leader


def ports_by_id(brokers: DemoBrokers, count: int) -> dict[int, int]:
    """The ports by node id. Raises: DemoFailed."""
    _wait(brokers, lambda found: len(found.brokers) == count, f"{count} brokers are in the cluster")
    return {node_id: int(one.port) for node_id, one in _cluster(brokers).brokers.items()}


def all_in_sync(found: ClusterMetadata) -> bool:
    topic = found.topics.get(TOPIC)
    return (
        topic is not None
        and bool(topic.partitions)
        and all(one.leader >= 0 and len(one.isrs) == len(one.replicas) for one in topic.partitions.values())
    )


def _wait(brokers: DemoBrokers, holds: Callable[[ClusterMetadata], bool], what: str) -> float:
    """Wait until the cluster is so. Returns the seconds it took. Raises: DemoFailed."""
    began_s = time.monotonic()
    while not holds(_cluster(brokers)):
        if time.monotonic() - began_s > DEADLINE_S:
            raise DemoFailed(f"It did not come to this within {DEADLINE_S:.0f} seconds: {what}.")
        time.sleep(LOOK_S)
    return time.monotonic() - began_s


def _wait_until_tiered(console: Console, brokers: DemoBrokers) -> float:
    """Wait until the leaders have no record on their disks. Returns the seconds it took. Raises: DemoFailed."""
    began_s = time.monotonic()
    with progress_bar(console) as bars:
        first = max(1, asyncio.run(_local_bytes(brokers)))
        bar = bars.add_task("tier   ", total=first, note="")
        while True:
            left = asyncio.run(_local_bytes(brokers))
            stored = len(list((brokers.bucket / "data").rglob("*.seg")))
            bars.update(bar, completed=max(0, first - left), note=f"{stored} segments stored")
            if not left:
                return time.monotonic() - began_s
            if time.monotonic() - began_s > DEADLINE_S:
                raise DemoFailed(f"{left} bytes are still on the leaders' disks after {DEADLINE_S:.0f} seconds.")
            time.sleep(LOOK_S)


async def _local_bytes(brokers: DemoBrokers) -> int:
    """Bytes of the topic on the disks of its leaders."""
    from app.cli.session import connected
    from app.client.admin import AdminClient

    async with connected(brokers.bootstrap) as cluster:
        return sum(one.local_bytes for one in await AdminClient(cluster).tier_status((TOPIC,)))
