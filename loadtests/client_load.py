"""One real client, librdkafka through confluent-kafka, as fast as it goes.

    python -m loadtests.client_load produce --bootstrap 127.0.0.1:9092 --topic t --record-bytes 1000 --seconds 5
    python -m loadtests.client_load produce --bootstrap 127.0.0.1:9092 --topic t --commit-ms 100 --seconds 5
    python -m loadtests.client_load consume --bootstrap 127.0.0.1:9092 --topic t --seconds 5

``produce`` is idempotent with acks=all and librdkafka's defaults otherwise, and with ``--commit-ms`` one transaction after the
other; ``consume`` is assigned partition 0 and starts over at its end. Prints one JSON object: records and MB a second, and the CPU
that the server and the client spent.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from loadtests.processes import family_cpu_seconds

QUEUE_MESSAGES = 100_000
FIRST_TIMEOUT_S = 30.0


def produce(arguments: argparse.Namespace, begin: Callable[[], None]) -> tuple[int, int]:
    """Records and their bytes, all acknowledged."""
    failed: list[KafkaError] = []
    settings = {
        "bootstrap.servers": arguments.bootstrap,
        "enable.idempotence": True,
        "linger.ms": arguments.linger_ms,
        "queue.buffering.max.messages": QUEUE_MESSAGES,
        "on_delivery": lambda error, message: failed.append(error) if error else None,
    }
    transactional = arguments.commit_ms > 0
    producer = Producer(settings | ({"transactional.id": arguments.topic} if transactional else {}))
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    value = os.urandom(arguments.record_bytes)
    count = 0
    begin()
    began = time.monotonic()
    deadline = began + arguments.seconds
    while (now := time.monotonic()) < deadline:
        if transactional and now - began >= arguments.commit_ms / 1000:
            producer.commit_transaction(30)
            producer.begin_transaction()
            began = now
        for _ in range(1000):
            while True:
                try:
                    producer.produce(arguments.topic, value, partition=0)
                    break
                except BufferError:
                    producer.poll(0.01)
        count += 1000
        producer.poll(0)
    if transactional:
        producer.commit_transaction(30)
    if producer.flush(30) or failed:
        raise SystemExit(f"some records were not acknowledged: {failed[:1]}")
    return count, count * arguments.record_bytes


def consume(arguments: argparse.Namespace, begin: Callable[[], None]) -> tuple[int, int]:
    """Records and their bytes."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "load",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    start = TopicPartition(arguments.topic, 0, OFFSET_BEGINNING)
    consumer.assign([start])
    if not consumer.consume(1, FIRST_TIMEOUT_S):
        raise SystemExit("nothing came")
    begin()
    count = total = 0
    deadline = time.monotonic() + arguments.seconds
    while time.monotonic() < deadline:
        for message in consumer.consume(2000, 1.0):
            trouble = message.error()
            if trouble is None:
                count += 1
                total += len(message.value() or b"")
            elif trouble.code() == KafkaError._PARTITION_EOF:
                consumer.seek(start)
            else:
                raise SystemExit(str(trouble))
    consumer.close()
    return count, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("produce", "consume"))
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="client-load")
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--linger-ms", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--commit-ms", type=float, default=0, help="commit a transaction so often (0: no transactions)")
    parser.add_argument("--server-pid", type=int, required=True)
    arguments = parser.parse_args()
    before = own = started = 0.0

    def begin() -> None:
        nonlocal before, own, started
        before, own, started = family_cpu_seconds(arguments.server_pid), time.process_time(), time.perf_counter()

    count, total = (produce if arguments.work == "produce" else consume)(arguments, begin)
    elapsed, spent = time.perf_counter() - started, family_cpu_seconds(arguments.server_pid) - before
    if not count:
        raise SystemExit("nothing came")
    report = {
        "records_per_s": count / elapsed,
        "mb_per_s": total / elapsed / 1e6,
        "server_cpu_s_per_gb": spent / total * 1e9,
        "server_cpu_share": spent / elapsed,
        "client_cpu_s_per_gb": (time.process_time() - own) / total * 1e9,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
