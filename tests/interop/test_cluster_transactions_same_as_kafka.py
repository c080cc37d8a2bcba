"""Transactional requests to three brokers of Firn and to three of Apache Kafka while markers cannot be written: equal codes.

The broker that leads one of the transaction's partitions stands still, so the transaction stays prepared until it goes on. Each
question is asked once, of the coordinator or of a leader that is well: a client is told what it would be told in passing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.wire.apikeys import ApiKey
from loadtests.cluster_peer import NODES, Cluster, firn_cluster, kafka_cluster
from tests.interop.peers import Peer, batch, make, produce, request
from tests.interop.serving import kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CONCURRENT_TRANSACTIONS = 51
PASSING = frozenset({3, 14, 15, 16, CONCURRENT_TRANSACTIONS})
ONE_COPY = {
    f"{topic}.log.replication.factor" if topic.startswith("transaction") else f"{topic}.replication.factor": "1"
    for topic in ("transaction.state", "offsets.topic")
} | {
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
}
"""A broker that stands still holds nothing up but what it leads."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("clusters")
    with (
        kafka_cluster(path / "kafka", settings=ONE_COPY) as kafka,
        firn_cluster(path / "firn", settings=ONE_COPY) as firn,
    ):
        for cluster in (kafka, firn):
            cluster.make_topic_on("t", [[node] for node in NODES])
            for kind in (0, 1):
                coordinator(cluster, kind, "any")
        yield [kafka, firn]


def ask(cluster: Cluster, node_id: int, key: ApiKey, version: int, message: Any) -> Any:
    return Peer(cluster.name, cluster.brokers[node_id].port).ask(key, version, message)


def coordinator(cluster: Cluster, kind: int, key: str) -> int:
    asked = request(ApiKey.FIND_COORDINATOR, key_type=kind, coordinator_keys=[key])
    found: list[int] = []

    def known() -> bool:
        (answer,) = ask(cluster, NODES[0], ApiKey.FIND_COORDINATOR, 4, asked).coordinators
        found[:] = [answer.node_id]
        return bool(answer.error_code == 0)

    cluster.wait(known, f"{key} has a coordinator")
    return found[0]


class Talk:
    """A producer of a cluster whose coordinator and group coordinator are on a broker that is not the controller, and the broker
    that is to stand still, which is neither."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        controller = cluster.controller()
        self.asleep = next(node for node in NODES if node != controller)
        self.id = next(one for one in (f"{name}{n}" for n in range(100)) if coordinator(cluster, 1, one) != self.asleep)
        self.group = next(one for one in (f"g{n}" for n in range(100)) if coordinator(cluster, 0, one) != self.asleep)
        self.coordinator = coordinator(cluster, 1, self.id)
        self.group_coordinator = coordinator(cluster, 0, self.group)
        self.awake = next(node for node in NODES if node != self.asleep)
        self.producer_id = self.epoch = -1
        self.found: list[tuple[str, Any]] = []

    def note(self, what: str, value: Any) -> None:
        self.found.append((what, value))

    def settled(self, what: Any) -> Any:
        """Ask until what is passing has passed."""
        end = time.monotonic() + 60
        while True:
            code, answer = what()
            if code not in PASSING:
                assert code == 0, (self.cluster.name, code)
                return answer
            assert time.monotonic() < end, (self.cluster.name, code)
            time.sleep(0.02)

    # --- each request once: its code ---

    def init(self, version: int = 4, **fields: int) -> tuple[int, Any]:
        asked = request(ApiKey.INIT_PRODUCER_ID, transactional_id=self.id, transaction_timeout_ms=60_000, **fields)
        answer = ask(self.cluster, self.coordinator, ApiKey.INIT_PRODUCER_ID, version, asked)
        return answer.error_code, answer

    def add(self, epoch: int, producer_id: int, version: int = 3) -> tuple[int, Any]:
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        asked = request(
            key,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[make(key, "AddPartitionsToTxnTopic", name="t", partitions=[self.asleep - 1])],
        )
        (topic,) = ask(self.cluster, self.coordinator, key, version, asked).results_by_topic_v3_and_below
        (one,) = topic.results_by_partition
        return one.partition_error_code, one

    def add_offsets(self, epoch: int, producer_id: int) -> tuple[int, Any]:
        key = ApiKey.ADD_OFFSETS_TO_TXN
        asked = request(
            key, transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, group_id=self.group
        )
        answer = ask(self.cluster, self.coordinator, key, 3, asked)
        return answer.error_code, answer

    def write(self, node_id: int, epoch: int, sequence: int, version: int) -> tuple[int, Any]:
        records = batch(
            1, producer_id=self.producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        asked = produce(("t", node_id - 1, records), transactional_id=self.id)
        (topic,) = ask(self.cluster, node_id, ApiKey.PRODUCE, version, asked).responses
        return topic.partition_responses[0].error_code, topic

    def commit_offsets(self, epoch: int, version: int) -> tuple[int, Any]:
        key = ApiKey.TXN_OFFSET_COMMIT
        partition = make(key, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=1)
        asked = request(
            key,
            transactional_id=self.id,
            group_id=self.group,
            producer_id=self.producer_id,
            producer_epoch=epoch,
            topics=[make(key, "TxnOffsetCommitRequestTopic", name="t", partitions=[partition])],
        )
        (topic,) = ask(self.cluster, self.group_coordinator, key, version, asked).topics
        return topic.partitions[0].error_code, topic

    def end(self, commit: bool, version: int, epoch: int, producer_id: int) -> tuple[int, Any]:
        key = ApiKey.END_TXN
        asked = request(key, transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, committed=commit)
        answer = ask(self.cluster, self.coordinator, key, version, asked)
        return answer.error_code, answer

    def state(self) -> str:
        asked = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[self.id])
        (answer,) = ask(self.cluster, self.coordinator, ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
        return str(answer.transaction_state)

    # --- the conversation ---

    def prepare(self, commit: bool, version: int) -> None:
        """End a transaction whose markers cannot be written."""
        answer = self.settled(self.init)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        if version < 5:
            self.settled(lambda: self.add(self.epoch, self.producer_id))
        self.settled(lambda: self.write(self.asleep, self.epoch, 0, 9 if version < 5 else 12))
        self.cluster.brokers[self.asleep].send(signal.SIGSTOP)
        answer = self.settled(lambda: self.end(commit, version, self.epoch, self.producer_id))
        self.note("prepared", answer.producer_epoch)
        self.cluster.wait(lambda: self.state().startswith("Prepare"), "it is prepared")

    def ask_all(self) -> None:
        for change in (-1, 0, 1, 2):
            epoch = max(0, self.epoch + change)
            for other in (0, 5):
                producer_id = self.producer_id + other
                for version in (3, 4, 5):
                    for commit in (True, False):
                        code, _ = self.end(commit, version, epoch, producer_id)
                        self.note(f"end v{version} {commit} {change} {other}", code)
                for version in (1, 3):
                    self.note(f"add v{version} {change} {other}", self.add(epoch, producer_id, version)[0])
                self.note(f"add offsets {change} {other}", self.add_offsets(epoch, producer_id)[0])
                for version in (3, 4):
                    code, _ = self.init(version, producer_id=producer_id, producer_epoch=epoch)
                    self.note(f"init v{version} {change} {other}", code)
            self.note(f"produce v12 {change}", self.write(self.awake, epoch, 0, 12)[0])
            self.note(f"produce v9 {change}", self.write(self.awake, epoch, 0, 9)[0])
            for version in (3, 5):
                self.note(f"commit offsets v{version} {change}", self.commit_offsets(epoch, version)[0])
        self.note("init", self.init()[0])
        self.note("state", self.state())

    def wake(self) -> None:
        self.cluster.brokers[self.asleep].send(signal.SIGCONT)
        self.cluster.wait(lambda: self.state().startswith("Complete"), "its markers are written")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_while_markers_cannot_be_written_clients_hear_what_kafka_tells_them(
    clusters: list[Cluster], version: int, commit: bool
) -> None:
    found = []
    for cluster in clusters:
        talk = Talk(cluster, f"v{version}{commit}")
        try:
            talk.prepare(commit, version)
            talk.ask_all()
        finally:
            talk.wake()
        talk.note("state", talk.state())
        after = talk.epoch if version < 5 else talk.epoch + 1
        talk.settled(lambda talk=talk, after=after: talk.init(producer_id=talk.producer_id, producer_epoch=after))
        found.append(talk.found)
        cluster.wait_together()
    kafka, firn = found
    different = [(theirs, ours) for theirs, ours in zip(kafka, firn, strict=True) if theirs != ours]
    assert different == []
    assert sum(code == CONCURRENT_TRANSACTIONS for _, code in kafka) > 40
