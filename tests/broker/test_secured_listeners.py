"""Real clients of listeners with TLS and logins."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.broker import RunningBroker, running_broker
from tests.support.secured import certificates, listener, security


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c", "client", "other")


def round_trip(settings: dict[str, Any], count: int = 20) -> list[bytes | None]:
    """Produce and consume with librdkafka."""
    producer = Producer({**settings, "message.timeout.ms": 15_000})
    for number in range(count):
        producer.produce("t", value=b"%d" % number * 1000)
    left = producer.flush(20)
    assert left == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    try:
        got: list[bytes | None] = []
        while len(got) < count:
            message = consumer.poll(15)
            assert message is not None, f"only {len(got)} records came"
            assert message.error() is None, message.error()
            got.append(message.value())
        return got
    finally:
        consumer.close()


def of_librdkafka(broker: RunningBroker, protocol: str, folder: Path, **more: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.node.ports[protocol]}",
        "security.protocol": protocol,
        "ssl.ca.location": str(folder / "ca.pem"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_librdkafka_produces_and_consumes(tmp_path: Path, folder: Path, protocol: str) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "alice-secret"}
    async with running_broker(
        tmp_path, group_initial_rebalance_delay_ms=0, **security(listener(protocol, folder))
    ) as broker:
        await broker.create_topic("t")
        settings = of_librdkafka(broker, protocol, folder, **(login if "SASL" in protocol else {}))
        got = await asyncio.to_thread(round_trip, settings)
        assert got == [b"%d" % number * 1000 for number in range(20)]
