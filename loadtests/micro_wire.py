"""What the hot messages of the wire cost, in isolation: ``python loadtests/micro_wire.py``.

Prints the median and the best of several rounds in nanoseconds; the best is the cost without the neighbours' noise.
"""

from __future__ import annotations

import statistics
import timeit
import uuid
from collections.abc import Callable

from app.wire import codec, fetch, header, produce
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ROUNDS = 7
TOPIC = "orders-by-region"
TOPIC_ID = uuid.UUID("6f1d1a2e-5f0e-4c8f-9a35-2f9f6cb5a001")


def measure(name: str, work: Callable[[], object]) -> None:
    """Print the nanoseconds of one call, less those of an empty call."""
    count = 1
    while timeit.timeit(work, number=count) < 0.02:
        count *= 2
    empty = min(timeit.repeat(lambda: None, number=count, repeat=ROUNDS))
    rounds = [(taken - empty) / count * 1e9 for taken in timeit.repeat(work, number=count, repeat=ROUNDS)]
    print(f"{name:52}{statistics.median(rounds):10.0f} ns{min(rounds):10.0f} ns")


def produce_body(version: int, topics: int, partitions: int, record_bytes: int) -> memoryview:
    pieces = produce.encode_produce_request(
        version,
        1,
        None,
        [
            (TOPIC_ID if version >= 13 else TOPIC, [(index, bytes(record_bytes)) for index in range(partitions)])
            for _ in range(topics)
        ],
        acks=-1,
        timeout_ms=30_000,
    )
    frame = memoryview(b"".join(pieces))[4:]
    return frame[header.parse_request_header(frame).body_start :]


def main() -> None:
    request = memoryview(header.encode_request_header(ApiKey.PRODUCE, 11, 7, "rdkafka"))
    measure("request header, flexible", lambda: header.parse_request_header(request))
    for version in (7, 11, 13):
        body = produce_body(version, 1, 1, 1024)
        measure(f"Produce v{version} request, 1 partition", lambda: produce.decode_produce(version, body))  # noqa: B023
    body = produce_body(11, 4, 25, 1024)
    measure("Produce v11 request, 4 topics of 25 partitions", lambda: produce.decode_produce(11, body))
    topic: produce.TopicRef
    for version in (7, 11, 13):
        topic = TOPIC_ID if version >= 13 else TOPIC
        measure(
            f"Produce v{version} response, 1 partition",
            lambda: produce.encode_produce_success(version, 1, topic, 0, 1234, -1, 0),  # noqa: B023
        )
    results = [(TOPIC, [produce.PartitionResult(index, 0, 1234, -1, 0) for index in range(25)]) for _ in range(4)]
    measure("Produce v11 response, 4 topics of 25 partitions", lambda: produce.encode_produce_response(11, 1, results))

    for version in (11, 12, 17):
        topic = TOPIC_ID if version >= 13 else TOPIC
        for count in (0, 1, 100):
            plain = fetch.FetchRequest(
                topics=[(topic, [fetch.FetchPartition(index, 5, 1234) for index in range(count)])] if count else []
            )
            body = memoryview(fetch.encode_fetch_body(version, plain))
            measure(
                f"Fetch v{version} request, {count} partitions",
                lambda: fetch.decode_fetch(version, body),  # noqa: B023
            )
    for version in (11, 12, 17):
        topic = TOPIC_ID if version >= 13 else TOPIC
        for count in (1, 100):
            answers = [
                fetch.PartitionData(index, 0, 5678, 5678, 0, records=fetch.RecordsRef(1 << 20))
                for index in range(count)
            ]
            measure(
                f"Fetch v{version} response, {count} partitions",
                lambda: fetch.encode_fetch_response(version, 1, [(topic, answers)]),  # noqa: B023
            )

    asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    encoded = codec.encode_request(ApiKey.METADATA, 12, asked)
    measure("Metadata v12 request, 1 topic, decode", lambda: codec.decode_request(ApiKey.METADATA, 12, encoded))
    answer = MetadataResponse(
        brokers=[MetadataResponseBroker(node, "broker.example", 9092) for node in range(3)],
        topics=[
            MetadataResponseTopic(
                name=TOPIC,
                topic_id=TOPIC_ID,
                partitions=[
                    MetadataResponsePartition(0, index, 1, 5, [1, 2, 3], [1, 2, 3], []) for index in range(100)
                ],
            )
        ],
    )
    encoded = codec.encode_response(ApiKey.METADATA, 12, answer)
    measure("Metadata v12 response, 100 partitions, encode", lambda: codec.encode_response(3, 12, answer))
    measure("Metadata v12 response, 100 partitions, decode", lambda: codec.decode_response(3, 12, encoded))


if __name__ == "__main__":
    main()
