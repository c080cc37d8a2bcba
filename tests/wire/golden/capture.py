"""Write ``requests.json``: what real clients send, first frame of each API and version.

    python tests/wire/golden/capture.py

A listener answers just enough, by Firn's own codec, that librdkafka, aiokafka and kafka-python go through producing (plain
and idempotent), fetching, creating and describing topics. Frames are kept as they came, in hexadecimal, size prefix and all.
Run it again to take in a new version of a client; the test only reads the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any
from uuid import UUID

from app.wire import codec, framing, header, negotiation
from app.wire.apikeys import ApiKey
from app.wire.apis import (
    api_versions,
    create_topics,
    describe_configs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from app.wire.codec import struct_name

FILE = Path(__file__).with_name("requests.json")
TOPIC = "golden"
TOPIC_ID = UUID("6f1d1a2e-5f0e-4c8f-9a35-2f9f6cb5a001")


class Listener:
    """Answers requests and keeps them."""

    def __init__(self) -> None:
        self.frames: dict[str, dict[str, str]] = {}
        self.current: dict[str, str] = {}
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = self.current
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                prefix = await reader.readexactly(4)
                frame = await reader.readexactly(framing.frame_bytes(prefix))
                head = header.parse_request_header(frame)
                key, version = head.api_key, head.api_version
                if key == ApiKey.API_VERSIONS and not negotiation.is_api_versions_known(version):
                    frames.setdefault(f"{ApiKey(key).name} {version}", (prefix + frame).hex())
                    writer.write(negotiation.unknown_api_versions_frame(head.correlation_id))
                    continue
                request = codec.decode_request(key, version, frame[head.body_start :])
                everything = " of all topics" if key == ApiKey.METADATA and request.topics is None else ""
                frames.setdefault(f"{ApiKey(key).name} {version}{everything}", (prefix + frame).hex())
                answer = self.answer(key, request)
                writer.write(framing.response_frame(key, version, head.correlation_id, answer))
        writer.close()

    def answer(self, key: int, request: Any) -> Any:
        match key:
            case ApiKey.API_VERSIONS:
                keys = negotiation.advertised_api_keys()
                return api_versions.ApiVersionsResponse(api_keys=keys)
            case ApiKey.METADATA:
                broker = metadata.MetadataResponseBroker(0, "127.0.0.1", self.port)
                partition = metadata.MetadataResponsePartition(0, 0, 0, 0, [0], [0], [])
                topic = metadata.MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
                return metadata.MetadataResponse(brokers=[broker], cluster_id="c", controller_id=0, topics=[topic])
            case ApiKey.PRODUCE:
                result = produce.PartitionProduceResponse(index=0, base_offset=0, log_start_offset=0)
                topics = [produce.TopicProduceResponse(name=TOPIC, topic_id=TOPIC_ID, partition_responses=[result])]
                return produce.ProduceResponse(responses=topics)
            case ApiKey.FETCH:
                return fetch.FetchResponse(session_id=0)
            case ApiKey.LIST_OFFSETS:
                found = list_offsets.ListOffsetsPartitionResponse(partition_index=0, offset=0, leader_epoch=0)
                return list_offsets.ListOffsetsResponse(
                    topics=[list_offsets.ListOffsetsTopicResponse(name=TOPIC, partitions=[found])]
                )
            case ApiKey.INIT_PRODUCER_ID:
                return init_producer_id.InitProducerIdResponse(producer_id=7, producer_epoch=0)
            case ApiKey.FIND_COORDINATOR:
                return find_coordinator.FindCoordinatorResponse(error_code=15)
            case ApiKey.CREATE_TOPICS:
                topics = [create_topics.CreatableTopicResult(name=topic.name) for topic in request.topics]
                return create_topics.CreateTopicsResponse(topics=topics)
            case ApiKey.DESCRIBE_CONFIGS:
                results = [
                    describe_configs.DescribeConfigsResult(
                        resource_type=item.resource_type, resource_name=item.resource_name
                    )
                    for item in request.resources
                ]
                return describe_configs.DescribeConfigsResponse(results=results)
        module = __import__(f"app.wire.apis.{ApiKey(key).name.lower()}", fromlist=["x"])
        return getattr(module, struct_name(key, False))()


def librdkafka(address: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

    for idempotent in (False, True):
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": idempotent, "compression.type": "lz4"})
        producer.produce(TOPIC, b"value", b"key", headers={"h": b"v"})
        producer.flush(5)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    consumer.poll(1.5)
    with contextlib.suppress(Exception):
        consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=2)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": address})
    for future in [
        *admin.create_topics([NewTopic("new", 2, 1, config={"segment.bytes": "1048576"})]).values(),
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)]).values(),
        *admin.delete_topics(["old"]).values(),
        admin.describe_cluster(),
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
    thread.join(25)


async def main() -> None:
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    for package, client in (("confluent-kafka", librdkafka), ("aiokafka", aio_kafka), ("kafka-python", kafka_python)):
        listener.frames[f"{package} {version_of(package)}"] = listener.current = {}
        await asyncio.to_thread(run, client, f"127.0.0.1:{listener.port}")
    frames = {client: dict(sorted(frames.items())) for client, frames in listener.frames.items()}
    FILE.write_text(json.dumps(frames, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
