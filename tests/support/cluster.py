"""Real broker processes of one cluster, and what writes to them: for tests that kill, stop, pause and cut.

with brokers_running(path) as brokers:
    ...  # brokers.bootstrap, brokers.end(1, signal.SIGKILL), brokers.start(1)
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from app.machine.files import PRIVATE_DIRECTORY
from tests.support.links import Links
from tests.support.ports import free_port
from tests.support.power import begin, lose_power
from tests.support.secured_cluster import Security
from tests.support.waiting import block_until

ROOT = Path(__file__).parents[2]
NODES = (1, 2, 3)
SERVES = re.compile(rb"^ready$|serves Kafka on ", re.MULTILINE)
"""What a broker prints when it serves."""
STORE = 0
"""An S3 server, among the node ids of ``Brokers.links``."""
PARTITIONS = 6
WAIT_S = 90.0
"""How long anything may take before the test gives up. It says nothing of how fast it should be."""


@dataclass(frozen=True)
class Bucket:
    """One in an S3 server, for brokers that are ``firn serve`` with all its processes."""

    url: Callable[[int], str]
    """As ``--store`` takes it, by the port where a broker reaches the server."""
    port: int
    """Where the server is."""
    environment: Mapping[str, str]
    """Of the brokers: what lets them in."""


class Brokers:
    """Brokers on one bucket directory, or on a ``Bucket``."""

    def __init__(
        self,
        path: Path,
        stack: ExitStack,
        nodes: Sequence[int],
        settings: Mapping[str, Any],
        *,
        proxied: bool,
        redis: str | None,
        security: Security | None,
        patience_ms: int | None,
        bucket: Bucket | None,
        loses_power: bool,
    ) -> None:
        assert bucket is None or not loses_power, "processes of firn serve keep no account of what is not synced"
        self.path = path
        self._stack = stack
        self._bucket = bucket
        if bucket is None:
            (path / "store").mkdir()
        self.nodes = tuple(nodes)
        self.ports = {node_id: free_port() for node_id in nodes}
        self.inner_ports = self.ports if security is None else {node_id: free_port() for node_id in nodes}
        """Where brokers reach each other."""
        self.hosts = {
            node_id: security.host(node_id)
            if security is not None
            else f"127.0.0.{node_id}"
            if proxied
            else "127.0.0.1"
            for node_id in nodes
        }
        """Brokers that may be cut off are on machines of their own, because brokers of one host count once (ADR 0040)."""
        self._security = security
        self.settings = settings
        self._redis = redis
        self._patience_ms = patience_ms
        self._loses_power = loses_power
        self._boots = dict.fromkeys(nodes, 0)
        """How often the machine of each was started again."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._paused: set[int] = set()
        self._said_before: dict[int, int] = {}
        """How much each broker had printed before it was started last, in bytes."""
        self._serving: set[int] = set()
        """Those that have printed since their last start that they serve."""
        self.addresses = {node_id: f"{self.hosts[node_id]}:{port}" for node_id, port in self.ports.items()}
        """Where clients reach each."""
        self.bootstrap = ",".join(self.addresses.values())
        to_bucket = {} if bucket is None else {STORE: bucket.port}
        self.links = None
        if proxied:
            self.links = stack.enter_context(Links(self.inner_ports | to_bucket, self.hosts | {STORE: "127.0.0.1"}))
        if security is not None:
            for node_id in nodes:
                security.prepare(path / f"broker-{node_id}" / "data")

    @property
    def admin(self) -> AdminClient:
        """One that may do everything."""
        return AdminClient({"bootstrap.servers": self.bootstrap, **self.client_of("admin")})

    def client_of(self, user: str) -> Mapping[str, Any]:
        """Settings with which a user gets in: none where everybody does."""
        return {} if self._security is None else self._security.client(user)

    def start(self, node_id: int) -> None:
        log = self._stack.enter_context((self.path / f"log-{node_id}").open("ab"))
        self._said_before[node_id] = log.tell()
        self._serving.discard(node_id)
        settings = {
            name: value.format(node=node_id) if isinstance(value, str) else value
            for name, value in self.settings.items()
        }
        if self._security is None and self._bucket is None and self.links is not None:
            settings["listen_host"] = self.hosts[node_id]
        more: dict[str, Any] = {"settings": settings}
        if self._redis is not None:
            more["redis"] = self._redis
        if self._patience_ms is not None:
            more["patience_ms"] = self._patience_ms
        if self._loses_power:
            directory, account = self._disk(node_id)
            directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            if not account.exists():
                begin(directory, account)
            more |= {"account": str(account), "boots": self._boots[node_id]}
        if self.links is not None:
            more["links"] = {
                str(self.inner_ports[to]): port
                for (one, to), port in self.links.ports.items()
                if one == node_id and to != STORE
            }
        if self._security is not None:
            file = self._security.properties(
                self.path / f"broker-{node_id}", node_id, self.ports[node_id], self.inner_ports[node_id]
            )
            more["properties"] = str(file)
        if self._bucket is None:
            arguments = ["tests.support.cluster_process", str(self.path), str(node_id), str(self.ports[node_id])]
            command, environment = [*arguments, json.dumps(more)], None
        else:
            arguments = ["tests.support.cluster_served", json.dumps(more.get("links", {})), "serve"]
            given = (f"--set={name.replace('_', '.')}={value}" for name, value in settings.items())
            command = [*arguments, *self.flags(node_id), "--node-id", str(node_id), *given]
            environment = self.environment
        self.processes[node_id] = self._stack.enter_context(
            subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log, cwd=ROOT, env=environment)
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """Of brokers on a ``Bucket``, and of commands that look at it."""
        assert self._bucket is not None
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("FIRN_", "AWS_"))}
        return kept | self._bucket.environment

    def flags(self, node_id: int) -> Sequence[str]:
        """Of ``firn serve`` and of commands that look at the same settings, for a broker on a ``Bucket``."""
        assert self._bucket is not None
        port = self._bucket.port if self.links is None else self.links.ports[node_id, STORE]
        directory = self.path / f"broker-{node_id}"
        door = (
            ("--listen", self.addresses[node_id], "--http", "off")
            if self._security is None
            else ("--config", str(directory / "server.properties"))
        )
        return (
            *door,
            *("--data-dir", str(directory / "data")),
            *("--store", self._bucket.url(port)),
        )

    def _disk(self, node_id: int) -> tuple[Path, Path]:
        """The data directory of a broker, and the account of what is not synced there."""
        return self.path / f"broker-{node_id}" / "data", self.path / f"account-{node_id}"

    def end(self, node_id: int, how: signal.Signals) -> None:
        process = self.processes[node_id]
        process.send_signal(how)
        process.wait(WAIT_S)
        self._paused.discard(node_id)

    def kill_at_once(self, node_ids: Sequence[int]) -> None:
        """Kill brokers so that none of them does anything after the others' end."""
        for node_id in node_ids:
            self.pause(node_id)
        for node_id in node_ids:
            self.end(node_id, signal.SIGKILL)

    def lose_power(self, node_ids: Sequence[int], rng: random.Random) -> None:
        """Take the power of the machines of brokers that were killed: disks lose what was not synced, and each is booted anew."""
        assert self._loses_power
        for node_id in node_ids:
            assert self.processes[node_id].poll() is not None
            lost = lose_power(*self._disk(node_id), rng)
            self._boots[node_id] += 1
            print(f"    broker {node_id} lost power: {lost}")

    def pause(self, node_id: int) -> None:
        self._paused.add(node_id)
        self.processes[node_id].send_signal(signal.SIGSTOP)

    def go_on(self, node_id: int) -> None:
        self.processes[node_id].send_signal(signal.SIGCONT)
        self._paused.discard(node_id)

    def hold_loop(self, node_id: int, seconds: float) -> None:
        """Let the event loop of a broker stand for so long, while its threads go on."""
        (self.path / f"hold-{node_id}").write_text(str(seconds))
        self.processes[node_id].send_signal(signal.SIGUSR1)

    def is_up(self, node_id: int) -> bool:
        """Whether its process runs, is not paused, and serves since its last start."""
        process = self.processes.get(node_id)
        if process is None or process.poll() is not None or node_id in self._paused:
            return False
        if node_id not in self._serving:
            with (self.path / f"log-{node_id}").open("rb") as log:
                log.seek(self._said_before[node_id])
                if SERVES.search(log.read()):
                    self._serving.add(node_id)
        return node_id in self._serving

    def hear_each_other(self, one: int, other: int) -> bool:
        """Whether bytes pass both ways between two brokers."""
        return self.links is None or (self.links.passes((one, other)) and self.links.passes((other, one)))

    def lose_disk(self, node_id: int) -> None:
        """Take the data directory of a broker that has ended."""
        assert self.processes[node_id].poll() is not None
        directory, account = self._disk(node_id)
        shutil.rmtree(directory)
        if self._loses_power:
            shutil.rmtree(account)

    def cut_bucket(self, node_id: int) -> None:
        """Requests to a directory fail, those to an S3 server have no answer."""
        if self._bucket is not None:
            assert self.links is not None
            self.links.cut(self.links.apart([node_id], [STORE]))
        else:
            (self.path / f"no-bucket-{node_id}").touch()

    def heal_bucket(self, node_id: int) -> None:
        if self._bucket is not None:
            assert self.links is not None
            self.links.heal(self.links.apart([node_id], [STORE]))
        else:
            (self.path / f"no-bucket-{node_id}").unlink(missing_ok=True)

    def mend(self) -> None:
        """End whatever fault is under way."""
        if self.links is not None:
            self.links.heal()
        for node_id in self.nodes:
            self.heal_bucket(node_id)
            if node_id in self._paused:
                self.go_on(node_id)
            if self.processes[node_id].poll() is not None:
                self.start(node_id)

    def lines(self, node_id: int) -> str:
        """What a broker has printed in all its lives."""
        return (self.path / f"log-{node_id}").read_text(errors="replace")

    def end_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(WAIT_S)


@contextmanager
def brokers_running(
    path: Path,
    nodes: Sequence[int] = NODES,
    *,
    proxied: bool = False,
    settings: Mapping[str, Any] | None = None,
    redis: str | None = None,
    security: Security | None = None,
    patience_ms: int | None = None,
    bucket: Bucket | None = None,
    loses_power: bool = False,
) -> Iterator[Brokers]:
    """Start brokers of one new cluster. ``proxied``: the ways between them can be cut (``Brokers.links``). ``settings``: fields of
    ``BrokerConfig``; ``{node}`` in a text stands for the node id. ``redis``: URL of a server. ``security``: what their listeners
    ask for. ``patience_ms``: how long a broker waits for another to accept a connection, and to answer a sign of life, if not as
    long as usual. ``bucket``: where they store what they have, instead of a directory.
    ``loses_power``: whether ``Brokers.lose_power`` may be called; each then keeps account of what it has not synced."""
    with ExitStack() as stack:
        brokers = Brokers(
            path,
            stack,
            nodes,
            settings or {},
            proxied=proxied,
            redis=redis,
            security=security,
            patience_ms=patience_ms,
            bucket=bucket,
            loses_power=loses_power,
        )
        try:
            for node_id in nodes:
                brokers.start(node_id)
            yield brokers
        finally:
            brokers.end_all()


class Writing:
    """A thread that produces numbers to every partition, idempotent and ``acks=all``, and keeps what was acknowledged."""

    name = "librdkafka's idempotent producer"
    between_brokers = False

    def __init__(
        self,
        bootstrap: str,
        topic: str = "t",
        *,
        pace_s: float = 0.002,
        one_by_one: bool = False,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        """``client``: settings with which it gets in. ``one_by_one``: a number is written when the one before is acknowledged in
        every partition. Otherwise, where that takes longer than ``pace_s``, librdkafka (2.16) polls its sockets without a pause as
        long as records wait behind a request: three brokers that are slow cost half a core. And it may write records twice: what
        was sent behind a refused request is out of order, and then it begins a new epoch, and sends again what other leaders have
        (``docs/proof.md``)."""
        self.topic = topic
        self.client = client or {}
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        """Offset by number, per partition."""
        self.refused: list[str] = []
        self._pace_s = pace_s
        self._one_by_one = one_by_one
        self.least = max(int(0.04 / pace_s), 3)
        """Numbers of a partition that are more than what is under way at any moment."""
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 2_000,
                **self.client,
            }
        )
        self._stop = threading.Event()
        self._left = -1
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                self._produce(partition, number)
            number += 1
            self.producer.poll(self._pace_s)
            while self._one_by_one and len(self.producer) and not self._stop.is_set():
                self.producer.poll(self._pace_s)
        self._left = self.producer.flush(WAIT_S)

    def _produce(self, partition: int, number: int) -> None:
        def done(error: Any, message: Any) -> None:
            if error is None:
                offset = message.offset()
                # None: the broker knows the batch, and remembers no more where it is (DUPLICATE_SEQUENCE_NUMBER).
                self.acknowledged[partition][number] = -1 if offset is None else offset
            else:
                self.refused.append(f"{partition} {number}: {error}")

        while True:
            try:
                self.producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=done)
            except BufferError:
                self.producer.poll(0.05)
            else:
                return

    def more(self) -> Callable[[], bool]:
        """Whether records that were written since this call are acknowledged in every partition."""
        before = [len(found) for found in self.acknowledged]
        return lambda: all(
            len(found) > old + self.least for found, old in zip(list(self.acknowledged), before, strict=True)
        )

    def wait_for_more(self) -> None:
        """Until records that are written from now on were acknowledged in every partition."""
        block_until(self.more(), "records are acknowledged in every partition")

    def finish(self) -> None:
        """Write no more, and wait for what was written. A second call does nothing."""
        self._stop.set()
        self._thread.join(2 * WAIT_S)
        assert not self._thread.is_alive()
        assert self._left == 0, "all was acknowledged or refused"

    def check(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> None:
        """After ``finish``: all that was acknowledged is there once, in order. ``client``: settings with which it is read, if not
        with those of the writer."""
        assert self.refused == []
        check_numbers(bootstrap, self.topic, self.acknowledged, self.client if client is None else client)


def seen(admin: AdminClient) -> ClusterMetadata:
    """What a broker says of the cluster; nothing if none answers now: the caller asks again."""
    try:
        return admin.list_topics(timeout=5)
    except KafkaException:
        return ClusterMetadata()


def controller_of(admin: AdminClient) -> int:
    """The controller's node id, as soon as a broker that is asked knows one."""
    found: list[int] = []

    def known() -> bool:
        node_id = seen(admin).controller_id
        found.append(-1 if node_id is None else node_id)
        return found[-1] >= 0

    block_until(known, "a broker is the controller")
    return found[-1]


def lacking(admin: AdminClient, nodes: Sequence[int] = NODES, in_store: Collection[str] = ()) -> list[str]:
    """What is not in sync on all brokers, or, of topics whose records are ``in_store``, without a leader. Topics have a replica on
    each."""
    found = seen(admin)
    left = [] if len(found.brokers) == len(nodes) else [f"there are {len(found.brokers)} brokers"]
    left += [] if found.topics else ["there are no topics"]
    return left + [
        f"{name}-{index} has {one.isrs}"
        for name, topic in found.topics.items()
        for index, one in topic.partitions.items()
        if (one.leader < 0 if name in in_store else len(one.isrs) < len(nodes))
    ]


def wait_until_whole(admin: AdminClient, after: str, in_store: Collection[str] = ()) -> None:
    """Until all replicas of all topics are in sync. A topic whose records are ``in_store`` has but a leader."""
    try:
        block_until(lambda: not lacking(admin, in_store=in_store), f"all are in sync after {after}")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {lacking(admin, in_store=in_store)}") from None


def wait_for_brokers(admin: AdminClient) -> None:
    """Until all of them are in the cluster."""
    block_until(lambda: len(seen(admin).brokers) == len(NODES), "three brokers are in the cluster")


def create_topics(
    admin: AdminClient, *names: str, partitions: int = PARTITIONS, in_store: Collection[str] = (), **config: str
) -> None:
    """Once all brokers are there: topics of factor 3 that need two in sync. ``config`` has ``_`` for ``.``. ``in_store``: as of
    ``lacking``."""
    wait_for_brokers(admin)
    settings = {"min.insync.replicas": "2"} | {name.replace("_", "."): value for name, value in config.items()}
    made = admin.create_topics([NewTopic(name, partitions, len(NODES), config=settings) for name in names])
    for one in made.values():
        one.result(WAIT_S)
    wait_until_whole(admin, f"{', '.join(names)} were created", in_store)


def have_left_the_disks(brokers: Brokers) -> bool:
    """Whether no broker has the first records of a partition any more that is written to."""
    oldest: dict[int, int] = {}
    for node_id in brokers.nodes:
        for partition in range(PARTITIONS):
            with suppress(FileNotFoundError):  # it is no replica, or not any more
                names = os.listdir(brokers.path / f"broker-{node_id}" / "data" / f"t-{partition}")
                starts = [int(Path(name).stem) for name in names if name.endswith(".log")]
                if starts:
                    oldest[partition] = min(*starts, oldest.get(partition, starts[0]))
    return len(oldest) == PARTITIONS and min(oldest.values()) > 0


def ends_of(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The first offset of a partition, and the next one that it will commit. Its leader may change meanwhile."""
    found: list[tuple[int, int]] = []

    def asked() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=5))
        except KafkaException:
            return False
        return True

    block_until(asked, f"a leader tells where {topic}-{partition} ends")
    return found[0]


def read(
    bootstrap: str, partition: int, topic: str = "t", client: Mapping[str, Any] | None = None
) -> list[tuple[int, int]]:
    """``(offset, number)`` of all that is committed. ``client``: settings with which a consumer gets in."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, **(client or {})}
    )
    found: list[tuple[int, int]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        low, high = ends_of(consumer, topic, partition)
        assert low == 0
        end = time.monotonic() + WAIT_S
        while not found or found[-1][0] < high - 1:
            assert time.monotonic() < end, f"{topic}-{partition} is read to {high}"
            for message in consumer.consume(5_000, 0.5):
                assert message.error() is None
                value = message.value()
                offset = message.offset()
                assert value is not None
                assert offset is not None
                found.append((offset, int(value)))
    finally:
        consumer.close()
    return found


def check_numbers(
    bootstrap: str,
    topic: str,
    acknowledged: Sequence[Mapping[int, int]],
    client: Mapping[str, Any] | None = None,
) -> None:
    """All numbers that were acknowledged are there once and in order. ``acknowledged``: offset by number, per partition; it is -1
    where the client was not told. ``client``: settings with which a consumer gets in."""
    for partition, offsets in enumerate(acknowledged):
        found = read(bootstrap, partition, topic, client)
        assert [number for _, number in found] == sorted({number for _, number in found}), "once, in order"
        at = {number: offset for offset, number in found}
        wrong = {number: offset for number, offset in offsets.items() if at.get(number) != offset}
        assert {number for number, offset in wrong.items() if offset >= 0 or number not in at} == set()
