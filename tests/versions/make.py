"""Makes ``one_broker.tar.xz``: data directories and buckets of the version before clusters of several brokers.

    python tests/versions/make.py CHECKOUT

``CHECKOUT`` is a checkout of commit e5cbfa3, the last one whose brokers are alone. Its brokers are run from there. The archive has
``stopped`` (a broker that was stopped in order) and ``killed`` (by SIGKILL), each with ``data`` and ``store``. ``what.py`` says
what is in both. Run it again only to add to what is kept: the point of the archive is that an old program wrote it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.demo import sizes_of
from tests.support.waiting import block_until
from tests.versions.what import ABORTED, COMPACTED, GROUP, KEYS, OFFSETS, TIERED, TOPICS, TRANSACTIONAL, records

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fill(bootstrap: str, path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, count, 1, config=dict(settings)) for name, (count, settings) in TOPICS.items()]
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for name, (count, _) in TOPICS.items():
        if name == TRANSACTIONAL:
            continue
        for partition in range(count):
            for number, (key, value) in enumerate(records(name, partition)):
                producer.produce(name, value, key, partition, timestamp=1_700_000_000_000 + number)
                if number % 20 == 19:
                    assert producer.flush(30) == 0  # many batches
    assert producer.flush(30) == 0
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "w"})
    writer.init_transactions(30)
    for number, (key, value) in enumerate(records(TRANSACTIONAL, 0)):
        writer.begin_transaction()
        writer.produce(TRANSACTIONAL, value, key, 0)
        writer.flush(30)
        if number in ABORTED:
            writer.abort_transaction(30)
        else:
            writer.commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    consumer.commit(
        offsets=[TopicPartition(TIERED, partition, offset) for partition, offset in OFFSETS.items()], asynchronous=False
    )
    consumer.close()
    store, data = path / "store", path / "data"
    block_until(lambda: len(list((store / "data").rglob("*.seg"))) >= 8, "segments are tiered")
    block_until(lambda: not list(data.glob(f"{TIERED}-0/00000000000000000000.log")), "old segments have left the disk")
    sizes = lambda: sum(sizes_of(data.glob(f"{COMPACTED}-0/*.log")))  # noqa: E731
    block_until(lambda: sizes() < sum(len(value) for _, value in records(COMPACTED, 0)) // 2, "the topic is compacted")
    assert len(KEYS) * 2 < len(list(records(COMPACTED, 0)))


BROKER = """
import asyncio, signal, sys
from pathlib import Path
import uvloop
from tests.support.broker import running_broker

async def serve():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with running_broker(
        Path(sys.argv[1]),
        listen_port=int(sys.argv[2]),
        offsets_topic_num_partitions=2,
        transaction_state_log_num_partitions=2,
        remote_log_manager_task_interval_ms=500,
        log_retention_check_interval_ms=500,
        log_cleaner_backoff_ms=500,
    ):
        print("ready", flush=True)
        await stopped.wait()

uvloop.run(serve())
"""
"""The broker of the checkout, with the store and the cleaner in its own process: both need no time to start."""


def make(checkout: Path, path: Path, how: signal.Signals) -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, str(path), str(port)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
    ) as broker:
        try:
            assert broker.stdout is not None
            assert b"ready" in broker.stdout.readline()
            fill(f"127.0.0.1:{port}", path)
        finally:
            broker.send_signal(how)
            broker.wait(60)


def main() -> None:
    checkout = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with tarfile.open(HERE / "one_broker.tar.xz", "w:xz") as archive:
            for kind, how in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
                (root / kind).mkdir()
                make(checkout, root / kind, how)
                for part in ("data", "store"):
                    archive.add(root / kind / part, f"{kind}/{part}")


if __name__ == "__main__":
    main()
