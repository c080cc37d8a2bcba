"""The log of schemas over the brokers: ``app.registry.schema_log.SchemaLog``, by FirnSchemas (ADR 0041).

One object serves all requests that share a ``ClusterClient``, and so the rights of one caller. Reads that wait are one read: a
caller joins a read that has not begun yet, so that the end of the log is learned after its call. An append whose answer was lost
is sent again with the same condition. If the log has moved on by then, its records are looked for where they would be.
Tests: ``tests/broker/test_schema_log.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from app.client.cluster import ClusterClient, refusal
from app.client.connection import KafkaConnection
from app.client.retry import backoff_ms, is_retriable
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, clause, copy_of
from app.core.units import BrokerId
from app.metadata.image.records import LEVEL_FEATURE, REGISTRY_LEVEL, upgrade_needed
from app.registry.schema_log import TOPIC, EndMoved, Entry
from app.wire.apikeys import ApiKey
from app.wire.private import SchemasRequest, SchemasResponse, pack, unpack

ANSWER_MS: Final = 20_000
"""How long one answer may take: a broker waits up to 10 s for other brokers, and up to 15 s until the topic is made."""


class _OutcomeUnknown(RequestRejected):
    """The leader appended the records, and does not know whether they count."""


class BrokerSchemaLog:
    """Reads `_schemas` and appends to it, with the rights of the caller whose connections ``cluster`` has."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._leader: BrokerId | None = None
        """The broker that led the topic last, as an answer has told."""
        self._history = ""
        """Of the last read. The log may have lost its end since then, and have grown again."""
        self._reading: dict[int, asyncio.Task[tuple[list[Entry], int]]] = {}
        """By first offset: the read that is under way."""
        self._next: dict[int, asyncio.Task[tuple[list[Entry], int]]] = {}
        """By first offset: the read that begins after it."""

    # --- reads --------------------------------------------------------------------------------------------------------

    async def read(self, start: int) -> tuple[list[Entry], int]:
        """As ``SchemaLog.read``. An end of 0 also says that records may be gone that an earlier read returned: read all again."""
        task = self._next.get(start)
        if task is None:
            before = self._reading.get(start)
            task = asyncio.create_task(self._read_after(before, start))
            if before is None:
                self._reading[start] = task
            else:
                self._next[start] = task
            task.add_done_callback(lambda done: self._ended(start, done))
        try:
            return await asyncio.shield(task)
        except FirnError as error:
            raise copy_of(error) from None
        finally:
            del task  # an error holds this frame, and the task holds the error

    async def _read_after(
        self, before: asyncio.Task[tuple[list[Entry], int]] | None, start: int
    ) -> tuple[list[Entry], int]:
        if before is not None:
            await asyncio.wait([before])
            task = self._next.pop(start)
            self._reading[start] = task
        return await self._read_now(start)

    def _ended(self, start: int, done: asyncio.Task[tuple[list[Entry], int]]) -> None:
        for tasks in (self._reading, self._next):
            if tasks.get(start) is done:
                del tasks[start]
        if not done.cancelled():
            done.exception()  # mark it as read: each waiter gets it, too

    async def _read_now(self, start: int) -> tuple[list[Entry], int]:
        request = SchemasRequest("read", start)
        deadline = self._deadline_s()
        attempt = 0
        while True:
            try:
                answer = await self.ask(request)
                if start and answer.history != self._history:
                    self._history = ""
                    return [], 0  # what was read below ``start`` may be gone
                self._history = answer.history
                return [Entry(*one) for one in answer.records], answer.end
            except (BrokerUnavailable, RequestRejected) as error:
                attempt += 1
                await self._pause(error, attempt, deadline)

    # --- appends ------------------------------------------------------------------------------------------------------

    async def append(
        self, expected_end: int, subject: str | None, records: Sequence[tuple[bytes, bytes | None]]
    ) -> int:
        """As ``SchemaLog.append``."""
        request = SchemasRequest("append", expected_end, subject, list(records), self._history)
        deadline = self._deadline_s()
        attempt = 0
        lost = False
        while True:
            try:
                answer = await self.ask(request)
            except (BrokerUnavailable, RequestRejected) as error:
                lost = lost or isinstance(error, BrokerUnavailable | _OutcomeUnknown)
                attempt += 1
                try:
                    await self._pause(error, attempt, deadline)
                except FirnError:
                    if not lost:
                        raise
                    raise BrokerUnavailable(
                        f"It is not known whether the records for {TOPIC} were stored: {clause(error)}."
                    ) from None
                continue
            if answer.wait_ms and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(answer.wait_ms / 1000)
                continue
            if answer.wait_ms:
                raise BrokerUnavailable(f"Other callers write to {TOPIC} all the time. Try again in a moment.")
            if not answer.moved:
                return answer.end
            if lost and await self._has(expected_end, records):
                return expected_end + len(records)
            raise EndMoved(answer.end)

    async def _has(self, start: int, records: Sequence[tuple[bytes, bytes | None]]) -> bool:
        """Whether the batch at ``start`` has these records: then the append counted whose answer was lost."""
        found: list[Entry] = []
        while len(found) < len(records):
            more, end = await self._read_now(start + len(found))
            found += more
            if not more or end <= start:
                return False
        at = [(start + place, key, value) for place, (key, value) in enumerate(records)]
        return at == [(one.offset, one.key, one.value) for one in found[: len(records)]]

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self._cluster.retry_budget_ms / 1000

    async def _pause(self, error: FirnError, attempt: int, deadline_s: float) -> None:
        """Wait before the next try. Raises: the error, if no other try is worth it."""
        pause_s = backoff_ms(attempt, self._cluster.rng) / 1000
        if not is_retriable(error) or asyncio.get_running_loop().time() + pause_s >= deadline_s:
            raise error
        await asyncio.sleep(pause_s)

    async def ask(self, request: SchemasRequest) -> SchemasResponse:
        """The answer of the broker that leads the topic, as far as it is known. Raises: RequestRejected, BrokerUnavailable."""
        try:
            connection = await self._connection()
            await _check_level(connection)
            body = await connection.request(ApiKey.FIRN_SCHEMAS, pack(request), timeout_ms=ANSWER_MS)
        except BrokerUnavailable:
            self._leader = None
            raise
        answer = unpack(SchemasResponse, body)
        if answer.error_code:
            self._leader = BrokerId(answer.leader) if answer.leader >= 0 else None
            error = refusal(answer.error_code, TOPIC, answer.error)
            raise _OutcomeUnknown(error.code, str(error)) if answer.may_count else error
        return answer

    async def _connection(self) -> KafkaConnection:
        """Raises: BrokerUnavailable, RequestRejected."""
        leader = self._leader
        if leader is None:
            return await self._cluster.any_broker()
        if leader not in self._cluster.view.brokers:
            await self._cluster.refresh([])
        return await self._cluster.broker(leader)


async def _check_level(connection: KafkaConnection) -> None:
    """Raises: RequestRejected UNSUPPORTED_VERSION if the cluster is of a lower level, whose brokers may not know the request."""
    if connection.features.get(LEVEL_FEATURE, 0) < REGISTRY_LEVEL:
        await connection.learn_features()
    level = connection.features.get(LEVEL_FEATURE, 0)
    if level < REGISTRY_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            upgrade_needed("The schema registry needs", REGISTRY_LEVEL, level),
        )
