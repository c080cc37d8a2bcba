"""Write ``requests.json``: what real clients send, first frame of each API and version.

    python tests/wire/golden/capture.py        needs a JDK, and Kafka's jars (make kafka-libs)

A proxy before a broker keeps the requests of librdkafka, aiokafka, kafka-python and the Java client, which go through
producing (plain, idempotent and in transactions), fetching, groups of each kind and administration. Frames are kept as they
came, in hexadecimal, size prefix and all. Run it again to take in a new version of a client; the tests only read the file.

What a run does not ask again is kept: the logins of librdkafka were captured once, at a listener with SASL.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path

from app.wire import codec, framing, header
from app.wire.apikeys import ApiKey
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.config_resources import ConfigResourceType
from loadtests.kafka_peer import kafka_libs
from tests.faults.producing import link
from tests.faults.served import serving

HERE = Path(__file__).parent
FILE = HERE / "requests.json"
TOPIC = "golden"
CLIENT_S_MAX = 120.0


class Proxy:
    """Passes everything on to a broker, and keeps the requests."""

    def __init__(self) -> None:
        self.frames: dict[str, str] = {}
        self.broker_port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
        answers = asyncio.create_task(self._answers(from_broker, writer))
        frames = self.frames
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                prefix = await reader.readexactly(4)
                frame = prefix + await reader.readexactly(framing.SIZE.unpack(prefix)[0])
                frames.setdefault(self._name(frame), frame.hex())
                to_broker.write(frame)
        to_broker.close()
        await answers

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    def _name(self, frame: bytes) -> str:
        head = header.parse_request_header(frame[4:])
        key, version = head.api_key, head.api_version
        name = f"{ApiKey(key).name} {version}"
        if key == ApiKey.METADATA:
            request = codec.decode_request(key, version, frame[4 + head.body_start :])
            return name if request.topics is not None else f"{name} of all topics"
        if key == ApiKey.FETCH:
            request = codec.decode_request(key, version, frame[4 + head.body_start :])
            return name if request.topics else f"{name} of a session"
        return name


def librdkafka(address: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ConfigResource,
        NewTopic,
        ResourcePatternType,
        ResourceType,
    )

    for idempotent in (False, True):
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": idempotent, "compression.type": "lz4"})
        producer.produce(TOPIC, b"value", b"key", headers={"h": b"v"})
        producer.flush(5)
    producer = Producer({"bootstrap.servers": address, "transactional.id": "t"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(TOPIC, b"value", partition=0)
    metadata = Consumer({"bootstrap.servers": address, "group.id": "g"})
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 1)], metadata.consumer_group_metadata(), 10)
    producer.commit_transaction(10)
    metadata.close()
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    consumer.poll(1.5)
    with contextlib.suppress(Exception):
        consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=2)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": address})
    rule = ("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
    for future in [
        *admin.create_topics([NewTopic("new", 2, 1, config={"segment.bytes": "1048576"})]).values(),
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)]).values(),
        *admin.alter_configs([ConfigResource(ResourceType.TOPIC, TOPIC, {"retention.ms": "86400000"})]).values(),
        *admin.delete_topics(["old"]).values(),
        admin.describe_cluster(),
        *admin.create_acls([AclBinding(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, *rule)]).values(),
        admin.describe_acls(AclBindingFilter(ResourceType.TOPIC, TOPIC, ResourcePatternType.MATCH, *rule)),
        *admin.delete_acls([AclBindingFilter(ResourceType.TOPIC, TOPIC, ResourcePatternType.MATCH, *rule)]).values(),
    ]:
        with contextlib.suppress(Exception):
            future.result(3)
    admin.list_topics(timeout=3)


def kafka_python(address: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

    for idempotent in (False, True):
        producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=idempotent)
        producer.send(TOPIC, b"value", b"key")
        producer.flush(5)
        producer.close(timeout=3)
    consumer = KafkaConsumer(bootstrap_servers=address)
    consumer.assign([TopicPartition(TOPIC, 0)])
    consumer.seek_to_beginning()
    consumer.poll(1000)
    consumer.close()
    with contextlib.suppress(Exception):
        admin = KafkaAdminClient(bootstrap_servers=address)
        with contextlib.suppress(Exception):
            admin.create_topics([NewTopic("new", 2, 1)])
        with contextlib.suppress(Exception):
            admin.describe_cluster()
        admin.close()


def aio_kafka(address: str) -> None:
    async def work() -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        for idempotent in (False, True):
            producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=idempotent)
            await producer.start()
            await producer.send_and_wait(TOPIC, b"value", b"key")
            await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        consumer.assign([TopicPartition(TOPIC, 0)])
        await consumer.seek_to_beginning()
        await consumer.getmany(timeout_ms=1000)
        await consumer.stop()

    asyncio.run(work())


def run(client: Callable[[str], None], address: str) -> None:
    thread = threading.Thread(target=client, args=(address,), daemon=True)
    thread.start()
    thread.join(CLIENT_S_MAX)


def java(address: str) -> None:
    classpath = f"{kafka_libs()}/*"
    subprocess.run(["java", "-cp", classpath, str(HERE / "Requests.java"), address, TOPIC], check=True)


async def main() -> None:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    java_version = next(kafka_libs().glob("kafka-clients-*.jar")).stem.removeprefix("kafka-clients-")
    clients: list[tuple[str, Callable[[str], None]]] = [
        (f"confluent-kafka {version_of('confluent-kafka')}", librdkafka),
        (f"aiokafka {version_of('aiokafka')}", aio_kafka),
        (f"kafka-python {version_of('kafka-python')}", kafka_python),
        (f"kafka-clients {java_version}", java),
    ]
    known = json.loads(FILE.read_text())
    found = {}
    for name, client in clients:
        # A broker for each, so that all of them begin at the same offsets.
        with tempfile.TemporaryDirectory() as directory, serving(Path(directory), "--advertise", address) as broker:
            async with link(broker.port) as connection:
                await connection.create_topic(TOPIC)
                # So that clients push their metrics (KIP-714).
                settings = [AlterableConfig("metrics", 0, "*"), AlterableConfig("interval.ms", 0, "100")]
                change = AlterConfigsResource(ConfigResourceType.CLIENT_METRICS, "all", settings)
                await connection.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest([change]))
            proxy.frames, proxy.broker_port = {}, broker.port
            await asyncio.to_thread(run, client, address)
            found[name] = dict(sorted({**known.get(name, {}), **proxy.frames}.items()))
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
