"""Three broker processes under a producer: killed, paused and stopped in order, one after another (ADR 0023, 0024)."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster import NODES, PARTITIONS, WAIT_S, Writing, all_in_sync, brokers_running, read, seen, until

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("faults", "seed"), [(8, 1), *(pytest.param(50, seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))]
)
def test_every_acknowledged_record_is_there_once_and_in_order(tmp_path: Path, faults: int, seed: int) -> None:
    rng = random.Random(seed)
    with brokers_running(tmp_path) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: len(seen(admin).brokers) == 3, "three brokers are in the cluster")
        topic = NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(WAIT_S)
        writing = Writing(brokers.bootstrap)
        try:
            writing.wait_for_more()
            for fault in range(faults):
                node_id = rng.choice(NODES)
                how = ("kill", "stop", "pause")[fault % 3]
                if how == "pause":
                    brokers.processes[node_id].send_signal(signal.SIGSTOP)
                    writing.wait_for_more()
                    brokers.processes[node_id].send_signal(signal.SIGCONT)
                else:
                    brokers.end(node_id, signal.SIGKILL if how == "kill" else signal.SIGTERM)
                    writing.wait_for_more()
                    brokers.start(node_id)
                until(lambda: all_in_sync(admin), f"all are in sync after the {how} of broker {node_id}")
                writing.wait_for_more()
        finally:
            writing.finish()
        assert writing.refused == []
        for partition in range(PARTITIONS):
            found = read(brokers.bootstrap, partition)
            assert [number for _, number in found] == sorted({number for _, number in found}), "once, in order"
            at = {number: offset for offset, number in found}
            assert writing.acknowledged[partition].items() <= at.items()
