"""An application that reads a topic, changes every record and writes it to another, exactly once (KIP-98, KIP-447).

    python -m tests.faults.pipeline 127.0.0.1:9092 range

Records of ``in`` go to the same partition of ``out``, in upper case. What it read and what it wrote are committed in one
transaction. The second argument is the group's protocol (``PROTOCOLS``). Whatever goes wrong ends it with exit code 1: whoever runs
it starts it again.
"""

from __future__ import annotations

import faulthandler
import sys
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer

INPUT: Final = "in"
OUTPUT: Final = "out"
GROUP: Final = "pipeline"
RECORDS_MAX: Final = 100
"""Of one transaction."""
WAIT_S: Final = 10.0
STUCK_S: Final = 2 * WAIT_S
"""librdkafka's ``send_offsets_to_transaction`` can wait for ever, whatever its time-out says, for a group coordinator that
has come back (librdkafka #5456, #5511): as a supervisor would, the application ends itself then."""
QUIET: Final = {"log_level": 2}
"""A client says a lot about a broker that is down; that is no news here."""
STATIC: Final = {"group.instance.id": GROUP, "session.timeout.ms": 6_000}
"""A static member takes its place again as soon as it is back; but in KIP-848 not before its session is over, if it was killed."""
PROTOCOLS: Final[dict[str, dict[str, object]]] = {
    "range": {**STATIC},
    "cooperative-sticky": {**STATIC, "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
"""Settings of the consumer: of the classic protocol, eager and cooperative (KIP-429), and of the newer one."""


def transformed(value: bytes) -> bytes:
    return value.upper()


def run(bootstrap: str, protocol: str) -> None:
    """Until killed. Raises: KafkaException."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": GROUP, "transaction.timeout.ms": 10_000, "linger.ms": 0}
        | QUIET
    )
    producer.init_transactions(WAIT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
        | PROTOCOLS[protocol]
        | QUIET
    )
    consumer.subscribe([INPUT])
    while True:
        messages = consumer.consume(RECORDS_MAX, 0.1)
        if messages:
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            pass_on(consumer, producer, messages)
            faulthandler.cancel_dump_traceback_later()


def pass_on(consumer: Consumer, producer: Producer, messages: list[Message]) -> None:
    producer.begin_transaction()
    for message in messages:
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        producer.produce(OUTPUT, transformed(value), partition=partition)
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
    )
    producer.commit_transaction(WAIT_S)


if __name__ == "__main__":
    try:
        run(sys.argv[1], sys.argv[2])
    except KafkaException as error:
        sys.exit(str(error))
