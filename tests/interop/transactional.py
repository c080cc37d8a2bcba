"""Transactional clients."""

from __future__ import annotations

import time

import confluent_kafka

from tests.interop.java_programs import JavaProgram
from tests.interop.serving import Served

DEADLINE_S = 60.0


class JavaProducer:
    """One producer of the Java process."""

    def __init__(self, java: JavaProgram, name: str, firn: Served, transactional_id: str) -> None:
        self._java = java
        self.name = name
        assert self.ask("open", firn.bootstrap, transactional_id, 60_000) == "ok"

    def ask(self, *words: object) -> str:
        return self._java.ask(self.name, *words)

    def __call__(self, *words: object) -> str:
        answer = self.ask(*words)
        assert answer.split(" ")[0] == "ok", answer
        return answer


def consumed(
    firn: Served, topic: str, count: int, *, partition: int = 0, isolation: str = "read_committed"
) -> list[str]:
    """The values that a consumer sees of a partition, ``count`` of them, and that no more come."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": firn.bootstrap,
            "group.id": "none",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    values: list[str] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value().decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                if len(values) >= count:
                    break
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    assert len(values) == count, values
    return values
