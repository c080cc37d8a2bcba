"""``firn serve`` as a process of its own, and a client made of a blocking socket that says exactly what a test wants.

The process is the whole broker, store process included. What it writes to its standard error is read as it comes; a test
that ends with a connection closed by the broker, or with a traceback, fails even if the client did not mind.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis import APIS
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.header import encode_request_header, parse_response_header
from loadtests.kafka_peer import PeerMissing, kafka_libs
from tests.faults import served as faults
from tests.support.waiting import block_until

START_S_MAX = 90
STOP_S_MAX = 90
ANSWER_S_MAX = 60
READY = re.compile(r"serves Kafka on 127\.0\.0\.1:(\d+)")
TROUBLE = re.compile(r"closing the connection|traceback|error|never retrieved|not known", re.IGNORECASE)

EARLIEST_LOCAL = -4

SETTINGS = {
    "firn_log_dir_free_bytes_min": 0,
    "log_retention_ms": -1,  # the tests' records are years old
    "remote_log_manager_task_interval_ms": 100,
}


def kafka_libs_or_skip() -> Path:
    """Folder of Apache Kafka's jars. Where they are not, the test is skipped with the reason."""
    try:
        return kafka_libs()
    except PeerMissing as missing:
        pytest.skip(str(missing))


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class Raw:
    """One connection; requests and responses by ``app.wire``'s client side."""

    def __init__(self, port: int, host: str = "127.0.0.1", source: str | None = None) -> None:
        """``source``: the address to connect from."""
        came_from = None if source is None else (source, 0)
        self.socket = socket.create_connection((host, port), timeout=ANSWER_S_MAX, source_address=came_from)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def frame(self) -> bytes:
        """The next frame. Raises: Closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self.socket.recv(count - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return data

    def ask(self, key: int, version: int, message: Any) -> Any:
        """The answer to one request, as the API's response class. Raises: Closed."""
        self.send(encode_request_header(key, version, 7, "raw") + codec.encode_request(key, version, message))
        frame = memoryview(self.frame())
        header = parse_response_header(frame, key, version)
        assert header.correlation_id == 7
        return codec.decode_response(key, version, frame[header.body_start :])


def message_class(key: int, name: str) -> Any:
    """A class of an API's module, by its name."""
    return getattr(import_module(f"app.wire.apis.{APIS[key].module}"), name)


def create_topic(port: int, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> UUID:
    """Make a topic; its id."""
    wanted = CreatableTopic(name, partitions, 1)
    wanted.configs = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
    with Raw(port) as raw:
        (result,) = raw.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest([wanted])).topics
    assert result.error_code == 0, result
    topic_id: UUID = result.topic_id
    return topic_id


def offset_of(port: int, topic: str, timestamp: int, partition: int = 0) -> int:
    """The offset that ListOffsets answers for a time or a named place."""
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, timestamp)])
    with Raw(port) as raw:
        answer = raw.ask(ApiKey.LIST_OFFSETS, 11, ListOffsetsRequest(-1, 0, [asked]))
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0, found
    return int(found.offset)


def is_in_cluster(port: int) -> bool:
    """Whether a broker tells of any. One that has only just registered does not."""
    with Raw(port) as raw:
        asked = message_class(ApiKey.METADATA, "MetadataRequest")(topics=[])
        return bool(raw.ask(ApiKey.METADATA, 12, asked).brokers)


class Served:
    """A running broker."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self.path = path
        self.port = 0
        self.lines: list[str] = []
        """Of its standard error, since it started."""
        self._ready = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = READY.search(line)
            if found:
                self.port = int(found.group(1))
                self._ready.set()
        self._ready.set()

    def wait_until_ready(self) -> None:
        assert self._ready.wait(START_S_MAX), "the broker did not start in time"
        assert self.port, "\n".join(self.lines)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.path / "data"

    @property
    def troubles(self) -> list[str]:
        """Lines that tell of a request that was not understood, or of a bug."""
        return [line for line in self.lines if TROUBLE.search(line)]

    def cpu_s(self) -> float:
        """CPU time that the broker process has used."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> int:
        """End it in order; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S_MAX)
        finally:
            self.end()

    def end(self) -> None:
        """Make sure that it is gone, whatever state it is in."""
        self.process.kill()
        self.process.wait()
        self._reading.join(STOP_S_MAX)
        assert self.process.stderr is not None
        self.process.stderr.close()


WITHOUT_DISK = (
    *("--ephemeral", "--create-store", "--node-id", "auto", "--set", "wal.linger.ms=10"),
    *("--set", "offsets.topic.num.partitions=5", "--set", "transaction.state.log.num.partitions=5"),
    *("--set", "share.coordinator.state.topic.num.partitions=5"),
)
"""Arguments of a broker all of whose topics have ``firn.durability=object``, the internal ones too. Each answer of a coordinator
waits for the linger time, and a start on an empty disk asks the store some questions for each partition."""
FACTOR = 3
"""Replicas that clients ask for of such a broker, though it is alone and shows one."""
BROKERS = [pytest.param((), id="disk"), pytest.param(WITHOUT_DISK, id="object", marks=pytest.mark.slow)]
"""Arguments of the brokers that a client is to find no difference between, for fixtures with parameters."""


@contextmanager
def firn_serving(path: Path, *arguments: str, **settings: object) -> Iterator[Served]:
    """A broker on ``path/data`` and ``path/store``, on a free port; ``settings`` have ``_`` for ``.``.

    Raises: AssertionError at the end if the broker did not end in order.
    """
    command = [sys.executable, "-m", "app.cli", "serve", "--listen", "127.0.0.1:0", "--http", "off"]
    command += ["--data-dir", str(path / "data"), "--store", f"file://{path / 'store'}", *arguments]
    settings = {**SETTINGS, **settings}
    for name, value in settings.items():
        command += ["--set", f"{name.replace('_', '.')}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    served = Served(process, path)
    try:
        served.wait_until_ready()
        block_until(lambda: is_in_cluster(served.port), "the broker leads")
        yield served
        assert served.stop() == 0, "\n".join(served.lines)
    finally:
        served.end()


def kill_and_start(broker: faults.Served, arguments: Sequence[str]) -> None:
    """SIGKILL to a broker with these arguments, and start it again; without what was on its disk if it needs none."""
    broker.kill()
    if arguments == WITHOUT_DISK:
        shutil.rmtree(broker.data_dir)
    broker.start()


COLD_CONFIGS = {"segment.bytes": "1048576", "local.retention.bytes": "0", "retention.ms": "-1"}
"""Of a topic whose closed segments leave the local disk as soon as they are in the store."""


def wait_until_cold(firn: Served, topic: str, partition: int = 0) -> int:
    """Wait until every closed segment has left the local disk; the first offset that is still local, which is above 0."""
    directory = firn.data_dir / f"{topic}-{partition}"

    def is_cold() -> bool:
        (first, *others) = sorted(int(file.stem) for file in directory.glob("*.log"))
        return first > 0 and not others

    block_until(is_cold, f"{topic} leaves the local disk")
    return offset_of(firn.port, topic, EARLIEST_LOCAL, partition)
