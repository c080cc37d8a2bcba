"""Apache Kafka as a peer: one KRaft process on loopback, started from Maven's jars, ended by its process id.

Java has the flags with which Kafka's own start script runs it, and a heap of 2 GiB, twice what the script gives. Broker settings
are Kafka's defaults besides what a fair comparison needs, all of them in ``server_properties``: one node, topics created by hand,
and its test plugin ``LocalTieredStorage`` (a directory) as remote storage where cold reads are measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtests.system import System, SystemFailed, free_port, running

JVM_FLAGS = (
    "-Xms2g",
    "-Xmx2g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
"""Those of Kafka's own start script, but for the heap."""
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
START_TIMEOUT_S = 90.0


class PeerMissing(Exception):
    """Kafka cannot run here; the message says why."""


def kafka_libs() -> Path:
    """Folder of Kafka's jars, as `make kafka-libs` leaves it. Raises: PeerMissing."""
    libs = Path(os.environ.get("FIRN_KAFKA_LIBS", Path(__file__).parent.parent / ".cache" / "kafka" / "libs"))
    if shutil.which("java") is None:
        raise PeerMissing("no Java here")
    if not any(libs.glob("kafka_2.13-*.jar")):
        raise PeerMissing("Kafka's jars are not here (make kafka-libs)")
    return libs


def server_properties(directory: Path, port: int, controller_port: int, *, tiered: bool) -> dict[str, str]:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": str(directory / "logs"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
    }
    if tiered:
        properties |= {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
            "rsm.config.dir": str(directory / "remote"),
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "remote.log.manager.task.interval.ms": "1000",
            "log.retention.check.interval.ms": "1000",
        }
    return properties


@contextmanager
def kafka_running(
    directory: Path,
    *,
    core: int | None = None,
    tiered: bool = False,
    settings: Mapping[str, str] | None = None,
    port: int | None = None,
    users: Sequence[str] = (),
    classes: Path | None = None,
) -> Iterator[System]:
    """Format ``directory``, start Kafka in it (pinned to ``core`` if given), and end it when the block is left.

    ``settings`` are broker settings beside those of ``server_properties``, and ``port`` is where it listens then. ``users`` log in
    by SCRAM, written as the storage tool takes them. ``classes``: a folder of classes that Kafka loads beside its own.

    Raises: PeerMissing.
    """
    libs = kafka_libs()
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port() if port is None else port
    properties = directory / "server.properties"
    all_settings = server_properties(directory, port, free_port(), tiered=tiered) | dict(settings or {})
    properties.write_text("".join(f"{name}={value}\n" for name, value in all_settings.items()))
    # A broker that is killed leaves the libraries of its codecs where it has unpacked them.
    java = ["java", f"-Djava.io.tmpdir={directory}", "-cp", f"{libs}/*" if classes is None else f"{libs}/*:{classes}"]
    output = directory / "kafka.out"
    added = [part for user in users for part in ("--add-scram", user)]
    with output.open("wb") as out:
        formatted = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *added],
            stdout=out,
            stderr=out,
            check=False,
        )
    if formatted.returncode != 0:
        raise PeerMissing(f"Kafka's storage tool failed, see {output}")
    with ExitStack() as stack:
        try:
            system = stack.enter_context(
                running(
                    "Kafka",
                    [java[0], *JVM_FLAGS, *java[1:], "kafka.Kafka", str(properties)],
                    port=port,
                    output=output,
                    logs=directory / "logs",
                    timeout_s=START_TIMEOUT_S,
                    cores=None if core is None else str(core),
                )
            )
        except SystemFailed as failed:
            raise PeerMissing(str(failed)) from None
        yield system
