"""What applications of Java's client notice of a broker that is killed and comes back: nothing but a pause.

A broker without a disk begins again with an empty directory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.served import Served, serving
from tests.interop.consumers import DEADLINE_S, Java, described, produce, read_all, settle
from tests.interop.java_programs import JavaProgram, running
from tests.interop.serving import create_topic, kill_and_start
from tests.interop.transactional import JavaProducer, consumed
from tests.interop.workers import Worker, configure
from tests.support.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.slow]

COOPERATIVE = (
    *("group.protocol=classic", "heartbeat.interval.ms=200", "session.timeout.ms=20000"),
    "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
)
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 100,
}


@pytest.fixture
def broker(tmp_path: Path, how: Sequence[str]) -> Iterator[Served]:
    """One that is found where it was when it comes back."""
    with serving(tmp_path, "--listen", f"127.0.0.1:{free_port()}", *how, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def consumers() -> Iterator[JavaProgram]:
    with running("GroupConsumers.java") as program:
        yield program


@pytest.fixture(scope="module")
def workers() -> Iterator[JavaProgram]:
    with running("ShareConsumers.java") as program:
        yield program


@pytest.fixture(scope="module")
def producers() -> Iterator[JavaProgram]:
    with running("TransactionalProducer.java") as program:
        yield program


@pytest.mark.parametrize("protocol", [COOPERATIVE, ("group.protocol=consumer",)], ids=["cooperative", "consumer"])
def test_static_members_read_on_where_they_were(
    broker: Served, how: Sequence[str], consumers: JavaProgram, protocol: tuple[str, ...]
) -> None:
    create_topic(broker.port, "t", 4)
    readers = [Java(consumers, broker, "g", *protocol, f"group.instance.id=i{number}") for number in range(2)]
    for reader in readers:
        reader("subscribe", "t")
    settle(readers, [2, 2], 4)
    had = [reader.assignment() for reader in readers]
    epoch = described(broker, "g").group_epoch
    values: list[str] = []
    for kills in range(3):
        produce(broker, "t", 4, more := [f"v{kills}-{number}" for number in range(100)])
        values += more
        read_all(readers, values)
        if kills == 1:
            for reader in readers:
                reader.commit()
        kill_and_start(broker, how)
    produce(broker, "t", 4, more := [f"w{number}" for number in range(100)])
    read_all(readers, [*values, *more])
    assert [reader.assignment() for reader in readers] == had
    # A member that closes for a moment is not missed: it finds its partitions, and reads on behind what was committed.
    for reader in readers:
        reader.commit()
    readers[0].close()
    readers[0] = Java(consumers, broker, "g", *protocol, "group.instance.id=i0")
    readers[0]("subscribe", "t")
    settle(readers, [2, 2], 4)
    assert [reader.assignment() for reader in readers] == had
    assert described(broker, "g").group_epoch == epoch
    produce(broker, "t", 4, last := [f"x{number}" for number in range(100)])
    read_all(readers, last)
    assert not set(readers[0].values) & set(values), "it went on where it was"
    for reader in readers:
        reader.close()


def test_a_transaction_goes_on_and_its_producer_is_fenced_by_its_twin(
    broker: Served, how: Sequence[str], producers: JavaProgram
) -> None:
    create_topic(broker.port, "t", 1)
    one = JavaProducer(producers, "one", broker, "twins")
    one("init")
    one("begin")
    one("send", "t", 0, "a")
    kill_and_start(broker, how)
    one("send", "t", 0, "b")
    one("commit")
    assert consumed(broker, "t", 2) == ["a", "b"]
    one("begin")
    one("send", "t", 0, "lost")
    kill_and_start(broker, how)
    other = JavaProducer(producers, "other", broker, "twins")
    other("init")
    assert "ProducerFenced" in one.ask("commit") or "InvalidProducerEpoch" in one.ask("commit")
    other("begin")
    other("send", "t", 0, "c")
    other("commit")
    assert consumed(broker, "t", 3) == ["a", "b", "c"]
    assert consumed(broker, "t", 4, isolation="read_uncommitted") == ["a", "b", "lost", "c"]
    for producer in (one, other):
        producer("close")


def test_what_share_consumers_accepted_does_not_come_again_and_everything_else_does(
    broker: Served, how: Sequence[str], workers: JavaProgram
) -> None:
    create_topic(broker.port, "t", 2)
    configure(broker, "g", share_auto_offset_reset="earliest", share_record_lock_duration_ms="15000")
    team = [Worker(workers, broker, "g", "t") for _ in range(2)]
    values: list[str] = []
    accepted: set[str] = set()
    refused: set[str] = set()
    for kills in range(5):
        produce(broker, "t", 2, more := [f"v{kills}-{number}" for number in range(50)])
        values += more
        deadline = time.monotonic() + DEADLINE_S
        is_killed = kills == 4  # the last time everything goes well
        while set(values) - accepted:
            assert time.monotonic() < deadline, (len(values), len(accepted))
            for worker in team:
                polled = {value.partition(":")[0] for value in worker("poll", 100)}
                assert not polled & accepted
                if polled and not is_killed:
                    kill_and_start(broker, how)
                    is_killed = True
                if polled:
                    worker("acknowledge", "accept")
                    (accepted if worker.ask("commit") == "ok" else refused).update(polled)
    assert refused, "the broker that came back knew nothing of what was acquired"
    for worker in team:
        worker("close")
