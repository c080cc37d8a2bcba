"""One transaction after the other for the raw load generator, in Kafka's second protocol (KIP-890).

The end of a transaction waits for all that is in flight, as it does in a client; then the producer goes on under the next epoch.
"""

from __future__ import annotations

import time
from typing import Any, Final

from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.end_txn import EndTxnRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from loadtests.raw_wire import Wire

PRODUCE_VERSION: Final = 12
"""The first whose brokers add partitions by themselves."""
READY_S: Final = 60.0
COORDINATOR: Final = 1
PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
COMES_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""Answers to a Produce that begins a transaction while the one before is being ended, and to those behind it."""


class RawTransactions:
    """The producer's identity, and when its transaction is to be committed."""

    def __init__(self, wire: Wire, transactional_id: str, commit_ms: float) -> None:
        self._wire = wire
        self.transactional_id = transactional_id
        self._commit_s = commit_ms / 1000
        self.commits = 0
        asked = FindCoordinatorRequest(key_type=COORDINATOR, coordinator_keys=[transactional_id])
        deadline = time.monotonic() + READY_S
        while self._wire.ask(ApiKey.FIND_COORDINATOR, 4, asked).coordinators[0].error_code:
            if time.monotonic() > deadline:
                raise SystemExit("there is no transaction coordinator")
            time.sleep(0.05)
        found = self._ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id, 60_000))
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch
        self.due_s = 0.0
        self.begin()

    def _ask(self, key: ApiKey, version: int, message: object) -> Any:
        deadline = time.monotonic() + READY_S
        while (answer := self._wire.ask(key, version, message)).error_code in PASSING:
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        if answer.error_code:
            raise SystemExit(f"{key.name} answers error {answer.error_code}")
        return answer

    def begin(self) -> None:
        """The next transaction begins now."""
        self.due_s = time.perf_counter() + self._commit_s

    def commit(self) -> None:
        """Commit what was produced; nothing may be in flight."""
        message = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, committed=True)
        answer = self._ask(ApiKey.END_TXN, 5, message)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.commits += 1
        self.begin()
