"""Three brokers of a kind as one system under test: Firn on one bucket directory, or Apache Kafka in combined mode.

Each broker is a process of its own on loopback, as ``firn serve`` and Kafka's start script run it, on whatever cores the machine
has: the load shares them. A figure of CPU is of all three, with their children.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from app.broker.security.first_users import FirstUser, write_first_users
from app.machine.files import PosixFileSystem
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX
from app.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from loadtests.firn_peer import START_TIMEOUT_S, serve_command
from loadtests.kafka_peer import CLUSTER_ID, JVM_FLAGS, PeerMissing, kafka_libs
from loadtests.processes import family_cpu_seconds
from loadtests.raw_wire import Wire
from loadtests.system import ROOT, STOP_TIMEOUT_S, System, SystemFailed, free_port, keep_priority

NODES = (1, 2, 3)
FACTOR = len(NODES)
MIN_IN_SYNC = 2
TOGETHER_TIMEOUT_S = 240.0
"""Until all brokers are in the cluster, or all replicas in sync."""
UPDATE_FEATURES_VERSION = 1
HEAP = ("-Xms1g", "-Xmx1g")
"""Of each Kafka broker: what its own start script gives."""
MECHANISM = ScramMechanism.SCRAM_SHA_256
USERS = {"broker": "broker-secret", "client": "client-secret"}
"""Of guarded clusters. The passwords protect nothing but brokers on loopback."""
LOGIN = (
    f'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="{USERS["broker"]}";'
)
BETWEEN = {
    "inter.broker.listener.name": "BROKERS",
    "sasl.enabled.mechanisms": MECHANISM.sasl_name,
    "sasl.mechanism.inter.broker.protocol": MECHANISM.sasl_name,
    "listener.name.brokers.scram-sha-256.sasl.jaas.config": LOGIN,
    "listener.name.logins.scram-sha-256.sasl.jaas.config": LOGIN,
    "super.users": "User:broker",
}
"""Brokers log in to each other on a listener of their own, so that ACLs are for clients alone. Clients may log in, too."""
PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "BROKERS": "SASL_PLAINTEXT", "LOGINS": "SASL_PLAINTEXT"}


@dataclass(slots=True)
class Broker:
    """One broker of a cluster, which may be ended and started again."""

    node_id: int
    port: int
    command: Sequence[str]
    output: Path
    process: subprocess.Popen[bytes] | None = None
    http_port: int = 0
    """Where its metrics are; 0 if it serves no HTTP."""
    login_port: int = 0
    """Where clients log in; 0 if they cannot."""
    logs: str = "logs"
    """Folder with one folder for each local partition log, beside ``output``."""

    @property
    def pid(self) -> int:
        assert self.process is not None, f"broker {self.node_id} does not run"
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; it serves some time later."""
        with self.output.open("ab") as out:
            self.process = subprocess.Popen([*self.command], stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
        keep_priority(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it in order, and wait for that. Kills it if it takes too long."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """kill -9, and wait for that."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def wait_accepting(self, timeout_s: float) -> None:
        """Raises: SystemFailed if it ends or accepts no connection in time."""
        end = time.monotonic() + timeout_s
        while True:
            if not self.runs:
                raise SystemFailed(f"broker {self.node_id} ended, see {self.output}")
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if time.monotonic() > end:
                raise SystemFailed(f"broker {self.node_id} does not listen, see {self.output}")
            time.sleep(0.02)


@dataclass(slots=True)
class Cluster:
    """Three brokers."""

    name: str
    brokers: dict[int, Broker]
    directory: Path
    _admin: AdminClient | None = field(default=None)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    @property
    def login_bootstrap(self) -> str:
        """Where clients log in by SCRAM-SHA-256, if the cluster is ``guarded``."""
        return ",".join(f"127.0.0.1:{broker.login_port}" for broker in self.brokers.values())

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self.brokers.values() if broker.runs]

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            # 0: what librdkafka has to say of brokers that come and go is not of interest.
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def cpu_seconds(self) -> float:
        """CPU time of all brokers that run, with their children."""
        return sum(family_cpu_seconds(pid) for pid in self.pids)

    def make_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic with a replica on every broker, and wait until all are in sync; ``config`` has ``_`` for ``.``."""
        settings = {"min_insync_replicas": str(MIN_IN_SYNC)} | config
        self._create(topic, partitions, settings, replication_factor=FACTOR)
        self.wait(lambda: self._in_sync(topic, partitions), f"all replicas of {topic} are in sync")

    def make_topic_on(self, topic: str, replicas: Sequence[Sequence[int]], **config: str) -> None:
        """Create a topic with each partition on these brokers, the first of them the leader, and wait until they lead."""
        self._create(topic, len(replicas), config, replica_assignment=[[*of_one] for of_one in replicas])
        leaders = {partition: of_one[0] for partition, of_one in enumerate(replicas)}
        self.wait(lambda: self.leaders(topic) == leaders, f"{topic} is led")

    def _create(self, topic: str, partitions: int, config: Mapping[str, str], **where: Any) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        wanted = NewTopic(topic, num_partitions=partitions, config=settings, **where)
        self.admin.create_topics([wanted], request_timeout=TOGETHER_TIMEOUT_S)[topic].result(TOGETHER_TIMEOUT_S)

    def drop_topic(self, topic: str) -> None:
        with suppress(KafkaException):
            self.admin.delete_topics([topic])[topic].result(TOGETHER_TIMEOUT_S)

    def leaders(self, topic: str) -> dict[int, int]:
        """Node id of the leader, by partition; -1 if there is none."""
        found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {index: one.leader for index, one in found.items()}

    def controller(self) -> int:
        """Node id of the broker that DescribeCluster calls the controller. Raises: SystemFailed."""
        found: list[int] = []

        def asked() -> bool:
            found[:] = [int(self.admin.describe_cluster().result(30).controller.id)]
            return found[0] >= 0

        self.wait(asked, "there is a controller")
        return found[0]

    def leader(self, topic: str, partition: int = 0) -> System:
        """The leader's broker, as the generators take it."""
        broker = self.brokers[self.leaders(topic)[partition]]
        return System(self.name, "127.0.0.1", broker.port, broker.pid, 0.0, broker.output.parent / broker.logs)

    def wait_together(self) -> None:
        """Until every broker is in the cluster."""
        self.wait(lambda: len(self.admin.list_topics(timeout=10).brokers) == len(self.brokers), "all brokers are there")

    def wait_in_sync(self, topic: str) -> None:
        self.wait(lambda: self._in_sync(topic, 0), f"all replicas of {topic} are in sync")

    def _in_sync(self, topic: str, partitions: int) -> bool:
        found = self.admin.list_topics(timeout=30).topics.get(topic)
        return (
            found is not None
            and len(found.partitions) >= max(partitions, 1)
            and all(one.leader >= 0 and len(one.isrs) == FACTOR for one in found.partitions.values())
        )

    def wait(self, holds: Callable[[], bool], what: str, timeout_s: float = TOGETHER_TIMEOUT_S) -> None:
        """Raises: SystemFailed if it does not come to hold."""
        end = time.monotonic() + timeout_s
        while True:
            with suppress(KafkaException):
                if holds():
                    return
            if time.monotonic() > end:
                raise SystemFailed(f"{self.name}: not within {timeout_s:.0f} s: {what}")
            time.sleep(0.05)

    def start_all(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        for broker in self.brokers.values():
            broker.wait_accepting(TOGETHER_TIMEOUT_S)
        self.wait_together()

    def stop_all(self) -> None:
        for broker in self.brokers.values():
            if broker.runs:
                broker.send(signal.SIGCONT)
                broker.send(signal.SIGTERM)
        for broker in self.brokers.values():
            if broker.runs:
                broker.stop()


@contextmanager
def firn_cluster(
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    metrics: bool = False,
    racks: Sequence[str] = (),
    guarded: bool = False,
) -> Iterator[Cluster]:
    """Three Firn brokers on one bucket of the newest level, with an HTTP process each if ``metrics`` are asked for. Ends them when
    the block is left. ``racks``: of the brokers, one each. ``guarded``: with the listeners of ``BETWEEN``. Raises: SystemFailed."""
    brokers = {}
    for node_id in NODES:
        own = directory / f"firn-{node_id}"
        own.mkdir(parents=True, exist_ok=True)
        port = free_port()
        bucket = (directory / "bucket").resolve().as_uri()
        http_port = free_port() if metrics else 0
        http = f"127.0.0.1:{http_port}" if metrics else "off"
        given = dict(settings or {}) | ({"broker.rack": racks[node_id - 1]} if racks else {})
        ports = _ports(port, guarded=guarded)
        command = [*serve_command(own, port, settings=given, store=bucket, http=http), "--node-id", str(node_id)]
        if guarded:
            file = own / "server.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in (BETWEEN | _listeners(ports)).items()))
            command.remove("--listen")
            command.remove(f"127.0.0.1:{port}")
            command += ["--config", str(file)]
            write_first_users(PosixFileSystem(), str(own / "data"), _first_users())
        brokers[node_id] = Broker(
            node_id,
            port,
            command,
            own / "firn.out",
            http_port=http_port,
            login_port=ports.get("LOGINS", 0),
            logs="data",
        )
    cluster = Cluster("Firn", brokers, directory)
    try:
        if not guarded:  # else the first broker has users, and makes a cluster of the newest level
            _raise_level(brokers[NODES[0]])
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop_all()


def _first_users() -> list[FirstUser]:
    """As a data directory has them before its first start."""
    made = []
    for name, password in USERS.items():
        salt = name.encode().ljust(SALT_BYTES)
        salted = salted_password(MECHANISM, password, salt, ITERATIONS_MIN)
        made.append(FirstUser(name, int(MECHANISM), credential_of(MECHANISM, salted, salt, ITERATIONS_MIN)))
    return made


def _ports(port: int, *, guarded: bool) -> dict[str, int]:
    """By listener."""
    return {"PLAINTEXT": port} | ({"BROKERS": free_port(), "LOGINS": free_port()} if guarded else {})


def _listeners(ports: Mapping[str, int]) -> dict[str, str]:
    where = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    protocols = ",".join(f"{name}:{PROTOCOLS[name]}" for name in ports)
    return {"listeners": where, "advertised.listeners": where, "listener.security.protocol.map": protocols}


def _raise_level(broker: Broker) -> None:
    """Make the bucket one of several brokers. Raises: SystemFailed."""
    broker.start()
    try:
        broker.wait_accepting(START_TIMEOUT_S)
        wire = Wire("127.0.0.1", broker.port)
        update = FeatureUpdateKey(feature=LEVEL_FEATURE, max_version_level=LEVEL_MAX, upgrade_type=1)
        answer = wire.ask(
            ApiKey.UPDATE_FEATURES, UPDATE_FEATURES_VERSION, UpdateFeaturesRequest(feature_updates=[update])
        )
        wire.socket.close()
        if answer.error_code:
            raise SystemFailed(f"the level cannot be raised: {answer.error_message}")
    finally:
        broker.stop()


@contextmanager
def kafka_cluster(
    directory: Path,
    *,
    settings: Mapping[str, str] | None = None,
    racks: Sequence[str] = (),
    guarded: bool = False,
) -> Iterator[Cluster]:
    """Three Kafka brokers that are controllers too, as ``firn_cluster``. Raises: PeerMissing, SystemFailed."""
    libs = kafka_libs()
    ports = {node_id: (free_port(), free_port()) for node_id in NODES}
    users = [f"{MECHANISM.sasl_name}=[name={name},password={password}]" for name, password in USERS.items()]
    added = [part for user in users for part in ("--add-scram", user)] if guarded else []
    voters = ",".join(f"{node_id}@127.0.0.1:{controller}" for node_id, (_, controller) in ports.items())
    brokers = {}
    for node_id, (port, controller_port) in ports.items():
        own = directory / f"kafka-{node_id}"
        own.mkdir(parents=True, exist_ok=True)
        listening = _ports(port, guarded=guarded)
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": str(own / "logs"),
            "auto.create.topics.enable": "false",
        } | dict(settings or {})
        properties |= _listeners(listening)
        properties["listeners"] += f",CONTROLLER://127.0.0.1:{controller_port}"
        properties["listener.security.protocol.map"] += f",CONTROLLER:{'SASL_PLAINTEXT' if guarded else 'PLAINTEXT'}"
        if guarded:
            properties |= BETWEEN | {
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required "
                    f'username="broker" password="{USERS["broker"]}" user_broker="{USERS["broker"]}";'
                ),
            }
        if racks:
            properties["broker.rack"] = racks[node_id - 1]
        file = own / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        java = ["java", f"-Djava.io.tmpdir={own}", "-cp", f"{libs}/*"]
        output = own / "kafka.out"
        with output.open("wb") as out:
            formatted = subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file), *added],
                stdout=out,
                stderr=out,
                check=False,
            )
        if formatted.returncode != 0:
            raise PeerMissing(f"Kafka's storage tool failed, see {output}")
        flags = [*HEAP, *(flag for flag in JVM_FLAGS if not flag.startswith(("-Xms", "-Xmx")))]
        command = [java[0], *flags, *java[1:], "kafka.Kafka", str(file)]
        brokers[node_id] = Broker(node_id, port, command, output, login_port=listening.get("LOGINS", 0))
    cluster = Cluster("Kafka", brokers, directory)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop_all()


@contextmanager
def clusters(directory: Path, note: Callable[[str], None]) -> Iterator[dict[str, Cluster]]:
    """Firn, and Kafka if it is there, each in new folders."""
    with ExitStack() as stack:
        found = {"Firn": stack.enter_context(firn_cluster(directory / "firn"))}
        try:
            found["Kafka"] = stack.enter_context(kafka_cluster(directory / "kafka"))
        except (PeerMissing, SystemFailed) as missing:
            note(f"Apache Kafka is left out: {missing}.")
        yield found
