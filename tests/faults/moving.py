"""Who moves leaderships all the time, as an operator's tools do: reassignments, some of them taken back, and elections."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from confluent_kafka.admin import AdminClient

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.elect_leaders import ElectLeadersRequest
from tests.interop.serving import Closed, Raw
from tests.support.cluster import WAIT_S, seen

ANSWER_S = 10.0
KNOWN = {
    ErrorCode.NONE,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,  # that broker is fenced, or gone
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # of a broker that knows nothing yet
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


class Moving:
    """A thread. What it is told in answer does not matter, as long as it is an answer that clients know."""

    name = "who moves leaderships"
    between_brokers = False

    def __init__(
        self, bootstrap: str, ports: Sequence[int], seed: int, *, pause_s: float = 1.0, at_once: int = 4
    ) -> None:
        self.answers: Counter[str] = Counter()
        self.moved = 0
        self.wrong: list[str] = []
        self.failed: BaseException | None = None
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._ports = ports
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._at_once = at_once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._rng.uniform(0, 2 * self._pause_s)):
                try:
                    self._step()
                except (OSError, Closed) as error:
                    self.answers[type(error).__name__] += 1
        except BaseException as error:
            self.failed = error
            raise

    def _step(self) -> None:
        port = self._rng.choice(self._ports)
        if self._rng.random() < 0.2:
            self._elect(port)
        else:
            self._reassign(port)

    def _elect(self, port: int) -> None:
        with Raw(port) as raw:
            raw.socket.settimeout(ANSWER_S)
            answer = raw.ask(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(0, None, 5_000))
        codes = [answer.error_code]
        codes += [one.error_code for topic in answer.replica_election_results for one in topic.partition_result]
        self._note("elect", codes)

    def _reassign(self, port: int) -> None:
        metadata = seen(self._admin)
        nodes = list(metadata.brokers)
        places = [(name, index) for name, topic in metadata.topics.items() for index in topic.partitions]
        if not nodes or not places:
            return
        topics: dict[str, list[ReassignablePartition]] = {}
        for name, index in self._rng.sample(places, min(self._at_once, len(places))):
            targets = None if self._rng.random() < 0.1 else [self._rng.choice(nodes)]
            topics.setdefault(name, []).append(ReassignablePartition(index, targets))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5_000, topics=[ReassignableTopic(name, partitions) for name, partitions in topics.items()]
        )
        with Raw(port) as raw:
            raw.socket.settimeout(ANSWER_S)
            answer = raw.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        codes = [answer.error_code] + [one.error_code for topic in answer.responses for one in topic.partitions]
        self.moved += sum(one.error_code == ErrorCode.NONE for topic in answer.responses for one in topic.partitions)
        self._note("move", codes)

    def _note(self, what: str, codes: Sequence[int]) -> None:
        for code in codes:
            self.answers[f"{what} {ErrorCode(code).name}"] += 1
            if code not in KNOWN:
                self.wrong.append(f"{what}: {ErrorCode(code).name}")

    def more(self) -> Callable[[], bool]:
        before = self.moved
        return lambda: self.moved > before

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def check(self) -> None:
        assert self.failed is None
        assert self.wrong == []
