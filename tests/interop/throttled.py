"""Clients under a quota."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.cluster import WAIT_S, Brokers

SECONDS = 30.0
VALUE = b"x" * 16_000


def produced(brokers: Brokers, topic: str, leaders: int) -> float:
    """Bytes a second that were acknowledged over 30 s, after the burst of a first second."""
    acknowledged = 0

    def done(error: object, message: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += len(VALUE)

    producer = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "client.id": topic,
            "linger.ms": 0,
            "batch.size": 20_000,
            "queue.buffering.max.messages": 50 * leaders,
            "message.timeout.ms": 120_000,
        }
    )
    began = counted_from = time.monotonic()
    before = number = 0
    while (now := time.monotonic()) < began + SECONDS + 3:
        if counted_from == began and now >= began + 3:
            counted_from, before = now, acknowledged
        try:
            producer.produce(topic, VALUE, partition=number % leaders, on_delivery=done)
            number += 1
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
    rate = (acknowledged - before) / (time.monotonic() - counted_from)
    producer.flush(WAIT_S)
    return rate


def consumed(brokers: Brokers, topic: str, leaders: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "client.id": topic,
            "group.id": topic,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": 50_000,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(leaders)])
    began = counted_from = time.monotonic()
    read = before = 0
    while (now := time.monotonic()) < began + SECONDS + 3:
        if counted_from == began and now >= began + 3:
            counted_from, before = now, read
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            read += len(message.value())
            if message.offset() % 500 == 499:  # what was written is soon read: begin again
                consumer.seek(TopicPartition(topic, message.partition(), 0))
    rate = (read - before) / (time.monotonic() - counted_from)
    consumer.close()
    return rate
