"""Writes the records of a keyed request and its result in one transaction (ADR 0043, EO1 to EO8).

A request runs in a task of its own, which the client's leaving does not cancel. ``Attempt`` decides each step; this module does it.
Tests: ``tests/http/keyed/test_keyed_requests.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from app.client.cluster import LATEST, ClusterClient
from app.client.conditional_appends import EndMoved, SeenEnd, append_in_transaction
from app.client.partitioner import partition_of_key
from app.client.transactional_batches import Row, WrittenBatch, encoded_batch, write_batches
from app.client.transactions import Transaction, begin_transaction, end_transaction
from app.core.errors import RETRIABLE, BrokerUnavailable, ErrorCode, FirnError, RequestRejected, clause
from app.core.limits import KIB
from app.core.seams import Clock
from app.core.turns import Portion
from app.core.units import PartitionIndex, TimestampMs, TopicPartition
from app.exactly_once.attempt import (
    Aborted,
    Attempt,
    Busy,
    InProgress,
    Known,
    OtherBody,
    Outcome,
    Refused,
    Step,
    Stored,
    Undecided,
    Unknown,
)
from app.exactly_once.records import RECORDS_MAX, TRY_ID_BYTES, Part, Result
from app.exactly_once.transactional_ids import IDS_MAX, TransactionalIds
from app.http.errors import REST_CODE, RestError, answer_of
from app.http.keyed.asked import KeyedRecord
from app.http.keyed.if_match import moved
from app.http.keyed.results import Done, NewKey, ResultClient
from app.metadata.image.records import APPEND_LEVEL
from app.wire.private import KEYED_BATCHES_MAX, KEYED_BYTES_MAX, KEYED_RECORDS_MAX

APPEND_BUDGET_MS: Final = 5_000
"""A result that is not appended in this time aborts its transaction, whose own time may soon be over."""
SETTLE_S: Final = 15.0
SETTLE_PAUSE_S: Final = 0.1
IDENTITY_KEPT_S: Final = 300.0
"""Brokers forget an id that is at rest for 10 minutes: before that, it gets a new identity."""
PROCESS_BYTES: Final = 8
BUSY_MS: Final = 500
"""An id whose last transaction is not ended after this time is set aside, and another id is taken (EO8)."""
IDS_TRIED_MAX: Final = 3
MOVED: Final = 412
AT_ONCE_BYTES_MAX: Final = KEYED_BYTES_MAX - 16 * KIB
"""Keys, values, headers and result of a request whose steps one broker may take: the rest is for what surrounds them."""
ID_WITHIN_S: Final = 5.0
"""How long a request waits for an id while all are in use."""
OF_TRANSACTION: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Codes that end a transaction, such as one that was open for too long. The next try has another transaction."""


class _Kept(NamedTuple):
    """The identity for the next transaction of an id."""

    transaction: Transaction
    timeout_ms: int
    until_s: float


class _Plan(NamedTuple):
    """Which record goes where, decided once and before anything is written."""

    partitions: tuple[TopicPartition, ...]
    places: tuple[int, ...]
    """For each record, the index of its partition."""
    batches: dict[TopicPartition, list[Row]]
    filled_ms: int
    seen: SeenEnd | None
    """Where the only partition must end (EO18)."""
    answer: bytes
    """As ``Result.answer``."""

    @property
    def result_bytes(self) -> int:
        """Of the result, at most."""
        names = sum(len(one.topic.encode()) for one in self.partitions)
        return 100 + names + 26 * len(self.partitions) + 8 * len(self.places) + len(self.answer)


class KeyedProducer:
    """The keyed requests of one caller."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._results = ResultClient(cluster)
        self._process = secrets.token_hex(PROCESS_BYTES)
        self._ids: TransactionalIds | None = None
        self._kept: dict[str, _Kept] = {}
        self._timeout_ms = 0
        """Of the last transaction; 0 before the first."""
        self._waiting: deque[asyncio.Future[str]] = deque()
        """Requests that wait for an id, in their order."""
        self._wake: asyncio.TimerHandle | None = None
        """When the first id that is set aside is due, while requests wait."""
        self._running: set[asyncio.Task[Any]] = set()

    async def produce(
        self,
        key: bytes,
        digest: bytes,
        topic: str,
        records: Sequence[KeyedRecord],
        status: int,
        seen: SeenEnd | None = None,
        answer: bytes = b"",
    ) -> Result:
        """Write records, unless a request with the key has done so. Returns: the result of the request that did.

        Args:
            digest: of the request. A request with the key and another digest is refused.
            status: of the answer.
            answer: fields of the answer that are not in the request.
            seen: where the partition of all records must end for a new key.

        Raises: RestError 409 with Retry-After, 412, 422, 429, 503; RestError of another status, with nothing written.
        """
        task = asyncio.create_task(self._run(key, digest, topic, records, status, seen, answer))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return _stored(await asyncio.shield(task))

    async def known(self, key: bytes, digest: bytes) -> Result | None:
        """The result of an earlier try of a request that cannot be served now; None if its key has none.

        Raises: RestError 409 with Retry-After while one is open, 422 for the key of another request, and 503 if it cannot be looked
        up now.
        """
        try:
            found = await self._results.settle(key, secrets.token_bytes(TRY_ID_BYTES))
        except RequestRejected as error:
            if error.code in RETRIABLE and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return _stored(Undecided())
            return None  # there is no key at all, or no cluster that takes any
        except BrokerUnavailable:
            return _stored(Undecided())
        match found:
            case Known(result):
                return _stored(Stored(result) if result.digest == digest else OtherBody())
            case Busy():
                return _stored(InProgress())
            case Unknown():
                return None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as read: the request may have no reader any more

    async def close(self, timeout_s: float) -> None:
        """Let requests end that are being served, for a time; then leave them to the time-outs of their transactions."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        left = [*self._running]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    # --- one request --------------------------------------------------------------------------------------------------

    async def _run(
        self,
        key: bytes,
        digest: bytes,
        topic: str,
        records: Sequence[KeyedRecord],
        status: int,
        seen: SeenEnd | None,
        answer: bytes,
    ) -> Outcome:
        try:
            plan = await self._plan(topic, records, seen, answer)
        except RequestRejected as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                found = await self.known(key, digest)  # topics are deleted, and made anew with fewer partitions (EO6)
                if found is not None:
                    return Stored(found)
            raise (_error_of(error) if _comes_again(error.code) else error) from None
        one = _Try(self, Attempt(secrets.token_bytes(TRY_ID_BYTES), digest), key, plan, status)
        await one.write_at_once()
        outcome = await one.end()
        if isinstance(outcome, Aborted) and (one.is_lost or (one.id_is_busy and seen is None)):
            # Nothing of it can be committed any more. Another try takes its steps one by one, each of which may be repeated.
            await one.release()
            one = _Try(self, Attempt(secrets.token_bytes(TRY_ID_BYTES), digest), key, plan, status)
            outcome = await one.end()
        return await one.unless_stored(outcome)

    async def _plan(self, topic: str, records: Sequence[KeyedRecord], seen: SeenEnd | None, answer: bytes) -> _Plan:
        """Raises: RestError, RequestRejected."""
        if len(records) > RECORDS_MAX:
            raise RestError(
                413, f"A request with an Idempotency-Key has at most {RECORDS_MAX} records. Send more requests."
            )
        count = len((await self._cluster.topic(topic)).partitions)
        filled_ms = TimestampMs(self._clock.now_ms())
        sticky = self._cluster.rng.randrange(count)
        numbers: dict[int, int] = {}
        places: list[int] = []
        rows: list[list[Row]] = []
        portion = Portion()
        for record in records:
            if record.partition is not None:
                index = record.partition
            else:
                index = sticky if record.key is None else partition_of_key(record.key, count)
            if not 0 <= index < count:
                raise RequestRejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic} has {count} partitions and no partition {index}.",
                )
            place = numbers.setdefault(index, len(numbers))
            if place == len(rows):
                rows.append([])
            timestamp = filled_ms if record.timestamp is None else record.timestamp
            rows[place].append((timestamp, record.key, record.value, record.headers))
            places.append(place)
            if portion.spent_by():
                await portion.rest()
        partitions = tuple(TopicPartition(topic, PartitionIndex(index)) for index in numbers)
        return _Plan(partitions, tuple(places), dict(zip(partitions, rows, strict=True)), filled_ms, seen, answer)

    # --- transactional ids --------------------------------------------------------------------------------------------

    async def take(self, prefix: str) -> str:
        """An id for one transaction, which waits for its turn if all are in use. Raises: RestError 503."""
        if self._ids is None:
            self._ids = TransactionalIds(prefix, self._process)
        self._serve_waiting(self._ids)
        taken = None if self._waiting else self._ids.take(self._now_ms())
        if taken is not None:
            return taken
        given: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        self._wake_when_due(self._ids)
        try:
            async with asyncio.timeout(ID_WITHIN_S):
                return await given
        except TimeoutError:
            if given.done() and not given.cancelled():  # it came in the turn in which the time was up
                return given.result()
            raise RestError(
                503,
                f"{IDS_MAX} requests with an Idempotency-Key are being served for the caller. Try again in a moment.",
                error_code=50302,
            ) from None
        finally:
            if given in self._waiting:
                self._waiting.remove(given)
            if not self._waiting:
                self._wake_when_due(self._ids)

    async def take_ready(self) -> _Kept | None:
        """An identity for a transaction; None if no id is free, if nothing is known of ids yet, or if no broker gives one."""
        if self._ids is None or self._waiting or not self._timeout_ms:
            return None
        taken = self._ids.take(self._now_ms())
        if taken is None:
            return None
        until_s = asyncio.get_running_loop().time()
        kept = self._kept.pop(taken, None)
        if kept is not None and kept.until_s > until_s:
            return kept
        timeout_ms = self._timeout_ms
        try:
            transaction = await begin_transaction(self._cluster, taken, timeout_ms=timeout_ms, once=True)
        except FirnError as error:
            # It has begun nothing. Were each id set aside, a coordinator that is away for a moment would take all of them.
            self._ids.give_back(taken, self._now_ms(), complete=not _is_busy(error))
            self._serve_waiting(self._ids)
            return None
        return _Kept(transaction, timeout_ms, until_s + IDENTITY_KEPT_S)

    def _serve_waiting(self, ids: TransactionalIds) -> None:
        """Give ids that are free to requests that wait, in their order."""
        while self._waiting:
            if not self._waiting[0].done():  # a done one has left
                taken = ids.take(self._now_ms())
                if taken is None:
                    break
                self._waiting[0].set_result(taken)
            self._waiting.popleft()
        self._wake_when_due(ids)

    def _wake_when_due(self, ids: TransactionalIds) -> None:
        """Requests that wait get an id that was set aside as soon as it is due, though no request gives one back."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._waiting and ids.aside_until_ms is not None:
            self._wake = asyncio.get_running_loop().call_at(ids.aside_until_ms / 1000, self._serve_waiting, ids)

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _begun(self, transactional_id: str, timeout_ms: int) -> Transaction:
        self._timeout_ms = timeout_ms
        kept = self._kept.pop(transactional_id, None)
        if kept is not None and kept.timeout_ms == timeout_ms and kept.until_s > asyncio.get_running_loop().time():
            return kept.transaction
        return await begin_transaction(self._cluster, transactional_id, timeout_ms=timeout_ms, busy_ms=BUSY_MS)

    def keep(self, kept: _Kept) -> None:
        """An identity of ``take_ready`` that was not used."""
        assert self._ids is not None
        transactional_id = kept.transaction.transactional_id
        self._kept[transactional_id] = kept
        self._ids.put_back(transactional_id)
        self._serve_waiting(self._ids)

    def give_back(self, transactional_id: str, after: Transaction | None, timeout_ms: int) -> None:
        """``after``: the identity for the next transaction; None if the end of the last one is not known."""
        assert self._ids is not None
        self._ids.give_back(transactional_id, self._now_ms(), complete=after is not None)
        if after is not None:
            until_s = asyncio.get_running_loop().time() + IDENTITY_KEPT_S
            self._kept[transactional_id] = _Kept(after, timeout_ms, until_s)
        self._serve_waiting(self._ids)

    def _abandon(self, transaction: Transaction, timeout_ms: int) -> None:
        """Abort a transaction that could not begin everywhere, beside the requests. Its id is in use, and then at rest or aside."""
        task = asyncio.create_task(self._abort(transaction, timeout_ms))
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _abort(self, transaction: Transaction, timeout_ms: int) -> None:
        try:
            after = await end_transaction(self._cluster, transaction, commit=False)
        except FirnError:
            after = None  # the coordinator aborts it when its time is over
        self.give_back(transaction.transactional_id, after, timeout_ms)


class _Try:
    """One try of one request."""

    def __init__(self, producer: KeyedProducer, attempt: Attempt, key: bytes, plan: _Plan, status: int) -> None:
        self._producer = producer
        self._cluster = producer._cluster
        self._results = producer._results
        self._attempt = attempt
        self._key = key
        self._plan = plan
        self._status = status
        self._new: NewKey | None = None
        self._transaction: Transaction | None = None
        self._settle_until_s: float | None = None
        self.id_is_busy = False
        """Whether an earlier transaction of the id has an open result where this one's was to be, so that another id may do."""

    async def unless_stored(self, outcome: Outcome) -> Outcome:
        """The outcome of the try. If the partition did not end where it must, it may be another try of the request that has moved
        the end: then its outcome counts. Its records may be open yet."""
        if not isinstance(outcome, Aborted) or not isinstance(outcome.error, RestError):
            return outcome
        if outcome.error.answer.status != MOVED:
            return outcome
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._wait_decided()
                found = await self._settled()
        except (FirnError, TimeoutError):
            return Undecided()
        if found is None:
            return outcome
        return Stored(found) if found.digest == self._attempt.digest else OtherBody()

    async def _wait_decided(self) -> None:
        """Wait until all records that the only partition has now are committed or aborted. Raises: FirnError."""
        (partition,) = self._plan.partitions
        end = (await self._cluster.list_offsets({partition: LATEST}))[partition].offset
        while True:
            decided = await self._cluster.list_offsets({partition: LATEST}, read_committed=True)
            if decided[partition].offset >= end:
                return
            await asyncio.sleep(SETTLE_PAUSE_S)

    async def _settled(self) -> Result | None:
        """The result of the key, if it has one that is committed. An open one is waited for. Raises: FirnError."""
        while True:
            match await self._results.settle(self._key, self._attempt.try_id):
                case Known(result):
                    return result
                case Unknown():
                    return None
                case Busy():
                    await asyncio.sleep(SETTLE_PAUSE_S)

    @property
    def is_lost(self) -> bool:
        """Whether a broker that was to take all steps has not answered, or could not take one of them for now."""
        return self._attempt.lost

    async def end(self) -> Outcome:
        """Take all steps that are left."""
        while self._attempt.outcome is None:
            await self.do()
        return self._attempt.outcome

    async def write_at_once(self) -> None:
        """Have one broker take all steps, if it may be able to (EO19). The attempt goes on from where it came to."""
        attempt, plan = self._attempt, self._plan
        if not self._may_write_at_once():
            return
        kept = await self._producer.take_ready()
        if kept is None:
            return
        transaction = kept.transaction
        batches = [encoded_batch(transaction, rows) for rows in plan.batches.values()]
        parts = tuple(Part(*one, -1, len(rows), -1) for one, rows in plan.batches.items())
        asked = self._result(parts)
        try:
            done = await self._results.write(self._key, asked, transaction, kept.timeout_ms, batches)
        except RequestRejected:
            self._producer.keep(kept)
            return  # nothing was written; the look-up says why, or finds another broker
        except FirnError as error:
            self._transaction, self._new = transaction, NewKey("", kept.timeout_ms)
            attempt.unanswered(error)
            return
        match done:
            case Known() | Busy():
                self._producer.keep(kept)
                attempt.found(done)
            case NewKey():
                self._new = done
                if done.timeout_ms == kept.timeout_ms:
                    self._transaction = transaction
                else:
                    self._producer.keep(kept)
                attempt.found(Unknown())
            case Done():
                self._transaction, self._new = transaction, NewKey("", kept.timeout_ms)
                self._went_on(done, asked)

    def _may_write_at_once(self) -> bool:
        """Small requests alone, to brokers that know how. ``If-Match`` has a condition of its own."""
        plan = self._plan
        return (
            plan.seen is None
            and self._results.level >= APPEND_LEVEL
            and self._results.leads(self._key)
            and len(plan.partitions) <= KEYED_BATCHES_MAX
            and len(plan.places) <= KEYED_RECORDS_MAX
            and sum(map(_size, chain.from_iterable(plan.batches.values()))) + plan.result_bytes <= AT_ONCE_BYTES_MAX
        )

    def _went_on(self, done: Done, asked: Result) -> None:
        """The broker has begun the transaction, and has come so far."""
        attempt = self._attempt
        if isinstance(done.error, RequestRejected) and done.found == "failed" and done.error.code in RETRIABLE:
            attempt.unanswered(done.error)
            return
        attempt.found(Unknown())
        attempt.began()
        if done.found == "failed":
            assert done.error is not None
            attempt.failed(done.error)
            return
        attempt.written(asked if done.result is None else done.result)
        if done.found == "taken":
            attempt.refused(None)
            return
        attempt.accepted()
        if done.after is not None:
            assert self._transaction is not None
            assert self._new is not None
            self._producer.give_back(self._transaction.transactional_id, done.after, self._new.timeout_ms)
            attempt.ended(success=True)

    async def do(self) -> None:
        """Do the next step."""
        match self._attempt.step:
            case Step.LOOK:
                await self._look()
            case Step.WRITE:
                await self._write()
            case Step.RESULT:
                await self._append()
            case Step.COMMIT:
                await self._end(commit=True)
            case Step.ABORT:
                await self._end(commit=False)
            case Step.SETTLE:
                await self._settle()
            case step:
                raise AssertionError(step)

    async def _look(self) -> None:
        attempt = self._attempt
        try:
            if attempt.wrote:
                attempt.found(await self._results.settle(self._key, attempt.try_id))
                return
            found = await self._results.look(self._key, attempt.try_id, self._plan.partitions, self._plan.result_bytes)
        except FirnError as error:
            attempt.found(Refused(error))
            return
        if isinstance(found, NewKey):
            self._new = found
            attempt.found(Unknown())
        else:
            attempt.found(found)

    async def _write(self) -> None:
        attempt, plan = self._attempt, self._plan
        written: dict[TopicPartition, WrittenBatch] | None = None
        error: Exception | None = None
        for _ in range(IDS_TRIED_MAX):
            try:
                written = await self._written()
                break
            except (RestError, FirnError) as refused:
                error = refused
                if not _is_busy(refused):
                    break
            if self._transaction is not None:
                assert self._new is not None
                self._producer._abandon(self._transaction, self._new.timeout_ms)
                self._transaction = None
        if written is None:
            assert error is not None
            attempt.failed(error)
            if attempt.outcome is not None:
                await self.release()
            return
        parts = tuple(
            Part(
                partition.topic,
                partition.partition,
                written[partition].base_offset,
                len(plan.batches[partition]),
                written[partition].log_append_ms,
            )
            for partition in plan.partitions
        )
        attempt.written(self._result(parts))

    def _result(self, parts: tuple[Part, ...]) -> Result:
        attempt, plan = self._attempt, self._plan
        # Older brokers cannot read it.
        answer = plan.answer if self._results.level >= APPEND_LEVEL else b""
        return Result(attempt.try_id, attempt.digest, self._status, 0, plan.filled_ms, parts, plan.places, answer)

    async def _written(self) -> dict[TopicPartition, WrittenBatch]:
        """Write the records in a transaction of one id. Raises: RestError 503, FirnError."""
        new = self._new
        assert new is not None
        if self._transaction is None:
            transactional_id = await self._producer.take(new.prefix)
            try:
                self._transaction = await self._producer._begun(transactional_id, new.timeout_ms)
            except FirnError:
                self._producer.give_back(transactional_id, None, new.timeout_ms)
                raise
        self._attempt.began()
        if self._plan.seen is not None:
            ((partition, rows),) = self._plan.batches.items()
            try:
                return {
                    partition: await append_in_transaction(
                        self._cluster, self._transaction, partition, self._plan.seen, rows
                    )
                }
            except EndMoved as error:
                raise moved(error) from None
        return await write_batches(self._cluster, self._transaction, self._plan.batches, busy_ms=BUSY_MS)

    async def _append(self) -> None:
        attempt = self._attempt
        assert attempt.result is not None
        assert self._transaction is not None
        try:
            accepted = await self._results.append(
                self._key, attempt.result, self._transaction, APPEND_BUDGET_MS, BUSY_MS
            )
        except FirnError as error:
            self.id_is_busy = _is_busy(error)
            attempt.refused(error)
            return
        if accepted:
            attempt.accepted()
        else:
            attempt.refused(None)

    async def _end(self, *, commit: bool) -> None:
        transaction, new = self._transaction, self._new
        assert new is not None
        if transaction is None:  # each id that was tried is being ended by itself
            assert not commit
            self._attempt.ended(success=False)
            await self.release()
            return
        after: Transaction | None = None
        try:
            after = await end_transaction(self._cluster, transaction, commit=commit)
        except FirnError:
            after = None  # no answer but a success is believed: the attempt looks the result up (EO5)
        self._producer.give_back(transaction.transactional_id, None if self.id_is_busy else after, new.timeout_ms)
        self._attempt.ended(success=after is not None)
        if not commit and self._attempt.outcome is not None:
            await self.release()

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        if self._settle_until_s is None:
            self._settle_until_s = loop.time() + SETTLE_S
        try:
            found = await self._results.settle(self._key, self._attempt.try_id)
        except FirnError as error:
            self._attempt.found(Refused(error))
        else:
            self._attempt.found(found)
        if self._attempt.outcome is None:
            if loop.time() >= self._settle_until_s:
                self._attempt.gave_up()
            else:
                await asyncio.sleep(SETTLE_PAUSE_S)

    async def release(self) -> None:
        """The key is free for the next try at once; without this, in 10 s."""
        try:
            await self._results.release(self._key, self._attempt.try_id)
        except FirnError:
            return  # the broker frees it by itself


def _is_busy(error: Exception) -> bool:
    """Whether an id was refused for a transaction of its own that has not ended, so that another id may do."""
    return isinstance(error, RequestRejected) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS


def _size(row: Row) -> int:
    """Bytes of a record, at most."""
    _, key, value, headers = row
    of_headers = sum([len(name.encode()) + len(content or b"") + 10 for name, content in headers])
    return 40 + len(key or b"") + len(value or b"") + of_headers


def _stored(outcome: Outcome) -> Result:
    """The result of a request that is stored. Raises: RestError for another outcome."""
    match outcome:
        case Stored(result):
            return result
        case OtherBody():
            raise RestError(422, "Another request had this Idempotency-Key. Choose a new key for each request.")
        case InProgress():
            raise RestError(
                409, "A request with this Idempotency-Key is being served. Try again later.", comes_again=True
            )
        case Undecided():
            raise RestError(
                503,
                "It is not known yet whether the records are stored. Try again with the same Idempotency-Key.",
                error_code=50302,
            )
        case Aborted(error):
            raise _error_of(error)


def _error_of(error: Exception | None) -> RestError:
    """The answer of a try that wrote nothing."""
    if isinstance(error, RestError):
        return error
    if isinstance(error, RequestRejected) and _comes_again(error.code):
        message = f"Nothing was stored: {clause(error)}. Try again with the same Idempotency-Key."
        return RestError(503, message, error_code=50302)
    if isinstance(error, FirnError):
        answer = answer_of(error)
        return RestError(answer.status, answer.message, error_code=answer.error_code)
    return RestError(
        503, "The brokers know of no stored record. Try again with the same Idempotency-Key.", error_code=50302
    )


def _comes_again(code: ErrorCode) -> bool:
    """Whether the same request may be served later, though its code has no status of its own."""
    return code not in REST_CODE and (code in RETRIABLE or code in OF_TRANSACTION)
