"""Asks the brokers that lead `__http_requests` for keys, and gives them results (ADR 0043).

The broker names the principal of the connection, and so tells which partition a key is in, and who leads it. Tests:
``tests/http/keyed/test_keyed_requests.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.client.cluster import ClusterClient, refusal
from app.client.connection import KafkaConnection
from app.client.feature_levels import require_level
from app.client.retry import NO_SHORTER, retrying
from app.client.transactions import Transaction, busy
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.core.units import BrokerId, ProducerEpoch, ProducerId, TopicPartition
from app.exactly_once.attempt import Busy, Known, Unknown
from app.exactly_once.records import (
    PARTS_MAX,
    TOPIC,
    RequestKey,
    Result,
    Tick,
    decode,
    encode_key,
    encode_result,
)
from app.metadata.image.records import LEVEL_FEATURE, REQUESTS_LEVEL
from app.wire.apikeys import ApiKey
from app.wire.private import KeyedRequest, KeyedResponse, RequestsRequest, RequestsResponse, pack, unpack

ANSWER_MS: Final = 20_000
"""How long one answer may take: a broker waits up to 15 s until the topic is made, and up to 10 s for other brokers."""
TAKEN: Final = frozenset({"failed", "taken", "accepted", "committed"})
"""The answers of a broker that has begun to take the steps of a try."""
ELSEWHERE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER})


class NewKey(NamedTuple):
    """The key has no result, and is reserved for the try that asked."""

    prefix: str
    """Of the caller's transactional ids."""
    timeout_ms: int
    """How long the transaction may be open."""


class Done(NamedTuple):
    """A broker has taken steps of a try by itself (EO19)."""

    found: str
    """``failed``, ``taken``, ``accepted`` or ``committed``."""
    error: FirnError | None
    """Why a try has failed."""
    result: Result | None
    """With its offsets, if it was accepted."""
    after: Transaction | None
    """The identity for the next transaction of the id, if this one is committed."""


class ResultClient:
    """The results of one caller."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._principal: str | None = None
        self._leaders: list[int] = []
        self.level = 0
        """Of the cluster, as the last broker told it."""

    async def look(
        self, key: bytes, try_id: bytes, partitions: Sequence[TopicPartition], size_bytes: int
    ) -> Known | Busy | NewKey:
        """Look a key up, and reserve it for a request that writes to ``partitions``. Raises: RequestRejected, BrokerUnavailable."""
        if len(partitions) > PARTS_MAX:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"A request with a key writes to {PARTS_MAX} partitions at most. Send fewer records.",
            )
        asked = RequestsRequest("look", key, try_id, [*partitions], size_bytes)
        answer = await self._asked(asked)
        found = self._found(key, answer)
        return NewKey(answer.prefix, answer.timeout_ms) if isinstance(found, Unknown) else found

    async def write(
        self, key: bytes, result: Result, transaction: Transaction, timeout_ms: int, batches: list[bytes]
    ) -> Known | Busy | NewKey | Done:
        """Have the broker that leads the key's partition take all steps of a try, or look the key up if it cannot (EO19).

        Raises: RequestRejected, with nothing written; FirnError if there is no answer, and it may be carried out.
        """
        principal = self._principal
        assert principal is not None  # a look came before
        _, value = encode_result(RequestKey(principal, key), result)
        asked = KeyedRequest(key, result.try_id, *transaction, timeout_ms, value, batches)
        try:
            connection = await self._connection(key)
        except BrokerUnavailable as not_sent:
            self._leaders = []
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(not_sent)) from None
        try:
            body = await connection.request(ApiKey.FIRN_KEYED, pack(asked), timeout_ms=ANSWER_MS)
        except BrokerUnavailable:
            self._leaders = []
            raise
        answer = unpack(KeyedResponse, body)
        self._principal, self._leaders = answer.principal, answer.leaders
        error = refusal(answer.error_code, TOPIC, answer.error) if answer.error_code else None
        if answer.found in TAKEN:
            written = None
            if len(answer.offsets) == len(result.parts):
                written = result._replace(
                    parts=tuple(
                        part._replace(base_offset=offset, log_append_ms=append_ms)
                        for part, (offset, append_ms) in zip(result.parts, answer.offsets, strict=True)
                    )
                )
            after = None
            if answer.producer_id >= 0:
                after = Transaction(
                    transaction.transactional_id, ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch)
                )
            return Done(answer.found, error, written, after)
        if error is not None:
            raise error
        found = self._found(key, answer)
        return NewKey(answer.prefix, answer.timeout_ms) if isinstance(found, Unknown) else found

    async def settle(self, key: bytes, try_id: bytes) -> Known | Busy | Unknown:
        """Look a key up, and reserve nothing. Raises: RequestRejected, BrokerUnavailable."""
        return self._found(key, await self._asked(RequestsRequest("settle", key, try_id)))

    async def append(self, key: bytes, result: Result, transaction: Transaction, budget_ms: int, busy_ms: int) -> bool:
        """Have a result appended in a transaction (EO2). A lost answer is asked for again (EO3).

        ``busy_ms``: how long to try while an earlier transaction of the id has an open result in the partition (EO11).

        Returns: False if the key has another result.

        Raises: RequestRejected, BrokerUnavailable. Then the result may be in the log: abort the transaction.
        """
        principal = self._principal
        assert principal is not None  # a look came before
        _, value = encode_result(RequestKey(principal, key), result)
        asked = RequestsRequest(
            "append",
            key,
            result.try_id,
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            result=value,
        )
        answer = await self._asked(asked, budget_ms, busy(busy_ms))
        return answer.found == "accepted"

    async def release(self, key: bytes, try_id: bytes) -> None:
        """Free a key that was reserved for a try. Raises: RequestRejected, BrokerUnavailable."""
        await self._ask(RequestsRequest("release", key, try_id))

    def _found(self, key: bytes, answer: RequestsResponse) -> Known | Busy | Unknown:
        match answer.found:
            case "known":
                return Known(self._known(key, answer))
            case "open" | "reserved":
                return Busy(answer.try_id)
            case "unknown":
                return Unknown()
            case other:
                raise BrokerUnavailable(
                    f"The broker says that a key is {other[:64]!r}, which this version does not know."
                )

    @staticmethod
    def _known(key: bytes, answer: RequestsResponse) -> Result:
        decoded = decode(encode_key(RequestKey(answer.principal, key)), answer.result)
        assert decoded is not None
        assert not isinstance(decoded, Tick)
        return decoded[1]

    # --- brokers ------------------------------------------------------------------------------------------------------

    async def _asked(
        self,
        asked: RequestsRequest,
        budget_ms: int | None = None,
        shorter_ms: Mapping[ErrorCode, int] = NO_SHORTER,
    ) -> RequestsResponse:
        """The answer of the leader. Raises: RequestRejected, BrokerUnavailable."""

        async def look_again(error: FirnError) -> None:
            del error
            await self._cluster.refresh([])

        return await retrying(
            lambda: self._ask(asked),
            rng=self._cluster.rng,
            budget_ms=self._cluster.retry_budget_ms if budget_ms is None else budget_ms,
            before_retry=look_again,
            also_final=frozenset({ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
            shorter_ms=shorter_ms,
        )

    async def _ask(self, asked: RequestsRequest) -> RequestsResponse:
        """One question, and another one if the first broker does not lead the partition.

        Raises: RequestRejected, BrokerUnavailable.
        """
        answer = await self.ask_once(asked)
        if answer.error_code in ELSEWHERE and self._leader_of(asked.key) is not None:
            answer = await self.ask_once(asked)
        if answer.error_code:
            raise refusal(answer.error_code, TOPIC, answer.error)
        return answer

    async def ask_once(self, asked: RequestsRequest) -> RequestsResponse:
        try:
            connection = await self._connection(asked.key)
            await require_level(connection, REQUESTS_LEVEL, "Requests with an Idempotency-Key need")
            self.level = connection.features.get(LEVEL_FEATURE, 0)
            body = await connection.request(ApiKey.FIRN_REQUESTS, pack(asked), timeout_ms=ANSWER_MS)
        except BrokerUnavailable:
            self._leaders = []
            raise
        answer = unpack(RequestsResponse, body)
        self._principal, self._leaders = answer.principal, answer.leaders
        return answer

    def leads(self, key: bytes) -> bool:
        """Whether a broker is known that leads the partition of a key."""
        return self._leader_of(key) is not None

    def _leader_of(self, key: bytes) -> BrokerId | None:
        if self._principal is None:
            return None
        partition = RequestKey(self._principal, key).partition
        leader = self._leaders[partition] if partition < len(self._leaders) else -1
        return BrokerId(leader) if leader >= 0 else None

    async def _connection(self, key: bytes) -> KafkaConnection:
        leader = self._leader_of(key)
        if leader is None:
            return await self._cluster.any_broker()
        if leader not in self._cluster.view.brokers:
            await self._cluster.refresh([])
        return await self._cluster.broker(leader)
