"""The same transactional requests, good and bad, to Firn and to Apache Kafka: equal codes, equal epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from app.wire.apikeys import ApiKey
from loadtests.kafka_peer import kafka_running
from tests.interop.peers import Peer, batch, make, produce, request
from tests.interop.serving import firn_serving, kafka_libs_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CONCURRENT_TRANSACTIONS = 51
PASSING = frozenset({14, 15, 16, CONCURRENT_TRANSACTIONS})
"""Kafka writes markers after it has answered, and asks again itself only for a tenth of a second."""


@pytest.fixture(scope="module")
def peers(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    kafka_libs_or_skip()
    path = tmp_path_factory.mktemp("peers")
    with kafka_running(path / "kafka") as kafka, firn_serving(path, *how) as firn:
        both = [Peer("Kafka", kafka.port), Peer("Firn", firn.port)]
        for peer in both:
            peer.create("t", 3)
            for kind in (0, 1):
                asked = request(ApiKey.FIND_COORDINATOR, key_type=kind, coordinator_keys=["x"])
                settled(lambda peer=peer, asked=asked: peer.ask(ApiKey.FIND_COORDINATOR, 4, asked).coordinators[0])
        yield both


def settled(ask: Any) -> Any:
    """Ask until what is passing has passed."""
    deadline = time.monotonic() + 60
    while True:
        answer = ask()
        if answer.error_code not in PASSING or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


class Talk:
    """A transactional producer of one broker; what can be compared of every answer is noted."""

    def __init__(self, peer: Peer, transactional_id: str) -> None:
        self.peer = peer
        self.id = transactional_id
        self.producer_id = self.epoch = -1
        self.found: list[tuple[str, Any]] = []

    def note(self, what: str, value: Any) -> None:
        self.found.append((what, value))

    def init(self, version: int = 4, *, timeout_ms: int = 60_000, name: str | None = None, **fields: int) -> None:
        key = ApiKey.INIT_PRODUCER_ID
        asked = request(
            key, transactional_id=self.id if name is None else name, transaction_timeout_ms=timeout_ms, **fields
        )
        answer = settled(lambda: self.peer.ask(key, version, asked))
        self.note(f"init v{version} {sorted(fields)}", (answer.error_code, answer.producer_epoch))
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(
        self, version: int = 3, *, epoch: int = 0, producer_id: int = 0, partitions: tuple[int, ...] = (0,)
    ) -> None:
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        asked = request(
            key,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id + producer_id,
            v3_and_below_producer_epoch=self.epoch + epoch,
            v3_and_below_topics=[make(key, "AddPartitionsToTxnTopic", name="t", partitions=list(partitions))],
        )
        deadline = time.monotonic() + 60
        while True:
            (topic,) = self.peer.ask(key, version, asked).results_by_topic_v3_and_below
            codes = sorted((one.partition_index, one.partition_error_code) for one in topic.results_by_partition)
            if all(code not in PASSING for _, code in codes) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.note(f"add v{version} {epoch} {producer_id} {partitions}", codes)

    def write(
        self,
        partition: int,
        sequence: int,
        version: int,
        *,
        epoch: int = 0,
        named: bool = True,
        transactional: bool = True,
    ) -> None:
        records = batch(
            1,
            producer_id=self.producer_id,
            producer_epoch=self.epoch + epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        asked = produce(("t", partition, records), transactional_id=self.id if named else None)
        answer = settled(lambda: self.peer.ask(ApiKey.PRODUCE, version, asked).responses[0].partition_responses[0])
        self.note(f"produce v{version} {partition} {sequence} {epoch} {named}", answer.error_code)

    def end(self, commit: bool, version: int, *, epoch: int = 0, producer_id: int = 0) -> None:
        key = ApiKey.END_TXN
        asked = request(
            key,
            transactional_id=self.id,
            producer_id=self.producer_id + producer_id,
            producer_epoch=self.epoch + epoch,
            committed=commit,
        )
        answer = settled(lambda: self.peer.ask(key, version, asked))
        self.note(f"end v{version} {commit} {epoch} {producer_id}", (answer.error_code, answer.producer_epoch))
        if version >= 5 and answer.error_code == 0:
            self.epoch = answer.producer_epoch

    def state(self, name: str | None = None) -> None:
        key = ApiKey.DESCRIBE_TRANSACTIONS
        asked = request(key, transactional_ids=[self.id if name is None else name])

        def ask() -> Any:
            return self.peer.ask(key, 0, asked).transaction_states[0]

        answer = settled(ask)
        deadline = time.monotonic() + 60
        while answer.transaction_state.startswith("Prepare") and time.monotonic() < deadline:
            time.sleep(0.02)
            answer = ask()
        topics = sorted((topic.topic, sorted(topic.partitions)) for topic in answer.topics)
        self.note("state", (answer.error_code, answer.transaction_state, answer.producer_epoch, topics))

    def wait_for(self, state: str) -> None:
        """Wait until the transaction is in a state; Kafka looks for overdue ones every ten seconds."""
        asked = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[self.id])
        deadline = time.monotonic() + 60
        while True:
            (answer,) = self.peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked).transaction_states
            if answer.transaction_state == state:
                return
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)


def compare(peers: list[Peer], transactional_id: str, script: Callable[[Talk], None]) -> None:
    """Play the script with both, and hold the answers against each other one by one."""
    talks = [Talk(peer, transactional_id) for peer in peers]
    for talk in talks:
        script(talk)
    kafka, firn = (talk.found for talk in talks)
    for number, (theirs, ours) in enumerate(zip(kafka, firn, strict=True)):
        assert ours == theirs, (number, kafka[: number + 1])


def test_the_first_protocol(peers: list[Peer]) -> None:
    def script(talk: Talk) -> None:
        talk.init()
        talk.state()
        for version in (1, 4):
            talk.end(True, version)
            talk.end(False, version)
        talk.add(partitions=(0, 7))
        talk.add(epoch=1)
        talk.add(producer_id=5)
        talk.add(1, epoch=1)
        talk.add()
        talk.add()
        talk.state()
        talk.write(0, 0, 9)
        for version in (9, 11):
            talk.write(1, 0, version)
            talk.write(1, 0, version, epoch=1)
        talk.write(0, 1, 9, named=False)
        talk.write(0, 1, 9, transactional=False)
        for version in (1, 4):
            talk.end(True, version, epoch=-1)
            talk.end(True, version, epoch=1)
            talk.end(True, version, producer_id=5)
        talk.end(True, 4)
        talk.state()
        talk.end(True, 4)
        talk.end(False, 4)
        talk.write(0, 1, 9)
        talk.write(0, 1, 11)
        talk.add(partitions=(0, 1))
        talk.write(1, 0, 9)
        talk.end(False, 4)
        talk.state()

    compare(peers, "first", script)


def test_identities(peers: list[Peer]) -> None:
    def script(talk: Talk) -> None:
        for timeout_ms in (0, -1, 1 << 30):
            talk.init(timeout_ms=timeout_ms)
        talk.init(name="")
        talk.init(producer_id=5)
        talk.init(producer_epoch=5)
        talk.init()
        first = talk.producer_id
        talk.init()
        for version in (3, 4):
            talk.init(version, producer_id=first, producer_epoch=0)
            talk.init(version, producer_id=first + 1, producer_epoch=1)
        talk.init(producer_id=first, producer_epoch=1)
        talk.init(producer_id=first, producer_epoch=1)
        talk.state()
        talk.add()
        talk.state()
        talk.init()
        talk.state()
        talk.state("nobody")
        talk.state("")

    compare(peers, "identities", script)


def test_the_second_protocol(peers: list[Peer]) -> None:
    def script(talk: Talk) -> None:
        talk.init()
        talk.end(True, 5)
        talk.end(False, 5)
        talk.state()
        talk.write(0, 0, 12)
        talk.state()
        talk.write(1, 0, 12)
        talk.write(2, 0, 12, epoch=1)
        talk.write(2, 0, 12, epoch=-1)
        talk.end(True, 5, epoch=1)
        talk.end(True, 5, epoch=-1)
        talk.end(True, 5)
        talk.state()
        talk.end(True, 5, epoch=-1)
        talk.end(False, 5, epoch=-1)
        talk.end(True, 5)
        talk.write(0, 1, 12, epoch=-1)
        talk.write(0, 0, 12)
        talk.end(False, 5)
        talk.state()
        talk.end(False, 5)
        talk.end(True, 5)
        talk.state()
        # What a fenced client is told.
        talk.write(0, 0, 12)
        producer_id, epoch = talk.producer_id, talk.epoch
        talk.init()
        talk.producer_id, talk.epoch = producer_id, epoch
        talk.write(0, 1, 12)
        talk.write(1, 0, 12)
        talk.end(True, 5)
        talk.end(False, 5)

    compare(peers, "second", script)


def test_a_transaction_whose_time_is_up(peers: list[Peer]) -> None:
    def script(talk: Talk) -> None:
        talk.init(timeout_ms=1_000)
        talk.write(0, 0, 12)
        talk.wait_for("CompleteAbort")
        talk.write(0, 1, 12)
        talk.write(1, 0, 12)
        # A commit is PRODUCER_FENCED here since KAFKA-20785, and INVALID_TXN_STATE in 4.3.1.
        talk.end(False, 5)
        talk.write(0, 0, 12)
        talk.end(True, 5)
        talk.init(timeout_ms=1_000)
        talk.add()
        talk.write(0, 0, 9)
        talk.wait_for("CompleteAbort")
        talk.write(0, 1, 9)
        talk.end(True, 4)
        talk.end(False, 4)
        talk.init(producer_id=talk.producer_id, producer_epoch=talk.epoch)
        talk.state()

    compare(peers, "timed", script)


def test_markers_and_what_is_not_there(peers: list[Peer]) -> None:
    found: list[list[Any]] = []
    for peer in peers:
        key = ApiKey.WRITE_TXN_MARKERS
        topics = [make(key, "WritableTxnMarkerTopic", name=name, partition_indexes=[0, 9]) for name in ("t", "none")]
        marker = make(
            key, "WritableTxnMarker", producer_id=77, producer_epoch=0, transaction_result=False, topics=topics
        )
        answer = peer.ask(key, 1, request(key, markers=[marker]))
        codes = sorted(
            (topic.name, one.partition_index, one.error_code)
            for one_marker in answer.markers
            for topic in one_marker.topics
            for one in topic.partitions
        )
        key = ApiKey.LIST_TRANSACTIONS
        listed = peer.ask(key, 2, request(key, state_filters=["Empty", "Nonsense"], transactional_id_pattern="none.*"))
        bad = peer.ask(key, 2, request(key, transactional_id_pattern="("))
        key = ApiKey.DESCRIBE_PRODUCERS
        asked = [make(key, "TopicRequest", name=name, partition_indexes=[0, 9]) for name in ("t", "none")]
        described = peer.ask(key, 0, request(key, topics=asked))
        producers = sorted(
            (topic.name, one.partition_index, one.error_code) for topic in described.topics for one in topic.partitions
        )
        key = ApiKey.ADD_OFFSETS_TO_TXN
        offsets = [
            peer.ask(key, version, request(key, transactional_id=name, producer_id=1, producer_epoch=0, group_id="g"))
            for version in (1, 3)
            for name in ("unknown", "")
        ]
        found.append(
            [
                codes,
                listed.error_code,
                listed.unknown_state_filters,
                bad.error_code,
                producers,
                [o.error_code for o in offsets],
            ]
        )
    assert found[1] == found[0]
