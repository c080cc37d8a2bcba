"""``df.write`` and ``writeStream``: rows to records, through the brokers.

Columns as Spark's Kafka sink takes them: ``value`` and, if wanted, ``key``, ``topic``, ``partition``, ``headers``, ``timestamp``.

**Batch**: idempotent producers, all in-sync replicas. A task that fails and is run again writes its rows again, as with Spark's
Kafka sink.

**Stream**: exactly once. Every task attempt opens a transaction of its own, fills it, leaves it open, and returns the data
needed to end it. The commit of a micro-batch is a record, the *intent*, in a compacted topic (``commitTopic``), keyed by the
query: which transactions batch n is made of. Only when that is acknowledged is each transaction committed. A batch that is
repeated finds its own intent: its tasks write nothing, and the commit ends the transactions that the first attempt could not
end.

**The fence.** A driver that was given up may still be at work, or its requests may be on their way. So an intent is written in
a transaction too, under one transactional id for the query. A commit first takes that id. From then on brokers refuse every
unfinished request of an earlier holder (INVALID_PRODUCER_EPOCH), so no earlier intent can come any more. Then it looks whether
the batch has an intent, and writes its own only if there is none. Hence a batch has one intent for ever. A commit that finds
another's intent finishes that one, and gives up its own transactions. A commit that finds the intent of a later batch stops.
Intents are read at read_committed, by a commit up to the end of the topic, since another query's open transaction may hide an
intent of this one. A task does not wait for that: the commit finds an intent that the task missed.

**Reuse of ids.** A coordinator remembers a transactional id for a week (``transactional.id.expiration.ms``), so tasks do not
make one for every batch: the intent also says which id each task's winner used, and in the batch after it the first attempt at
that task takes it again. No other writer can hold it: the winner is done, and an id that another attempt or another run of the
query has used is never handed on. (Only a stage that Spark runs again may see two first attempts; the later one then fences the
other, and the batch fails before its intent.) The topic of intents is made of small segments, so that compaction keeps it
small.

**The window.** An open transaction is aborted by its coordinator ``transactionTimeout`` after its first record. One that is over
when the batch is to be committed fails the batch before its intent, and it is written again when the query is started again. But
if the driver dies after writing an intent and comes back only after that time, the transactions are gone and cannot be written
again: the stream stops and says so, rather than lose or repeat a batch. Attempts that were killed leave their transactions open
until then, too, and readers at read_committed wait for them that long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, StructType

from app.client.admin import AdminClient
from app.client.cluster import LATEST, ClusterClient
from app.client.consumer import Consumer
from app.client.producer import Acknowledged, Producer
from app.client.transactions import Transaction, begin_transaction, end_transaction, is_open
from app.configs.numbers import INT_MAX
from app.core.errors import (
    BrokerUnavailable,
    ConfigError,
    CorruptionError,
    ErrorCode,
    FencedError,
    FirnError,
    RequestRejected,
    clause,
)
from app.core.limits import MIB
from app.core.units import Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs, TopicPartition
from app.machine.runtime import SystemClock
from app.records.compression import CODEC_NAMES, Codec
from pyspark_firn.options import parse_addresses
from pyspark_firn.shadowing import Shipped
from pyspark_firn.telling import plainly

COMMIT_TOPIC_DEFAULT: Final = "firn-spark-commits"
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 900_000
"""The most that a broker allows unless ``transaction.max.timeout.ms`` says otherwise."""
SENDS_AT_ONCE: Final = 10_000
"""Records that wait for their acknowledgement before the next rows are taken."""
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Spark makes the run of a streaming query its job group."""
INTENT_VERSION: Final = 2
"""Since 2 an intent belongs to a transaction, and counts with its commit."""
INTENT_VERSIONS_READ: Final = frozenset({1, 2})
INTENT_TIMEOUT_MS: Final = 60_000
"""From an intent to the end of its transaction; one that is left open holds up commits of other queries so long."""
INTENT_READ_S_MAX: Final = 150.0
"""For all that is open in the topic of intents to end: more than its time-out, and the interval in which Kafka looks for those."""
COMMIT_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(MIB),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}
"""Every task reads the topic: it must stay small, and only whole segments are compacted. Markers of transactions stay for the
retention of deletes, by default a day."""

_OVER: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""A coordinator's errors for the commit of a transaction that it has aborted, or has forgotten since."""

_logger = logging.getLogger("pyspark_firn")

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark passes on although they are meant for Spark itself."""
_OPTIONS: Final = ("bootstrap", "kafka.bootstrap.servers", "topic", "compression", "commitTopic", "transactionTimeout")
_STREAM_ONLY: Final = ("commitTopic", "transactionTimeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where to write and how."""

    bootstrap: tuple[tuple[str, int], ...]
    topic: str | None
    """For rows without a topic of their own; takes precedence over the column, as in Spark's Kafka sink."""
    compression: Codec
    commit_topic: str
    transaction_timeout_ms: int


def parse_write_options(given: Mapping[str, str], schema: StructType, *, streaming: bool = True) -> WriteOptions:
    """Parse a user's options for rows of ``schema``. Raises: ConfigError, one sentence."""
    known = {name.lower(): name for name in _OPTIONS}
    options: dict[str, str] = {}
    for written, value in given.items():
        name = known.get(written.lower())
        if written.lower() in _SPARKS_OWN:
            continue
        if name is None:
            raise ConfigError(f"There is no option {written!r} for writing: there are {', '.join(_OPTIONS)}.")
        if name in _STREAM_ONLY and not streaming:
            raise ConfigError(f"The option {name!r} does not go with a batch, which has no transactions: leave it out.")
        options["bootstrap" if name == "kafka.bootstrap.servers" else name] = value
    if "bootstrap" not in options:
        raise ConfigError("The option 'bootstrap' is missing: write brokers like host:9092,other:9092.")
    _check_schema(schema, has_topic="topic" in options)
    codec = CODEC_NAMES.get(options.get("compression", "none").lower())
    if codec is None:
        raise ConfigError(f"The option 'compression' is {options['compression']!r}: write {', '.join(CODEC_NAMES)}.")
    timeout = options.get("transactionTimeout", str(TRANSACTION_TIMEOUT_MS_DEFAULT))
    if re.fullmatch(r"[0-9]{1,10}", timeout) is None or not 1 <= int(timeout) <= INT_MAX:
        raise ConfigError(f"The option 'transactionTimeout' is {timeout!r}: write milliseconds, from 1 to {INT_MAX}.")
    return WriteOptions(
        bootstrap=parse_addresses("bootstrap", options["bootstrap"]),
        topic=options.get("topic"),
        compression=codec,
        commit_topic=options.get("commitTopic", COMMIT_TOPIC_DEFAULT),
        transaction_timeout_ms=int(timeout),
    )


def _check_schema(schema: StructType, *, has_topic: bool) -> None:
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    for name, kind in types.items():
        allowed = _COLUMNS.get(name)
        if allowed is None:
            raise ConfigError(f"A record has no column {name!r}: there are {', '.join(_COLUMNS)}.")
        if kind.simpleString() not in allowed:
            raise ConfigError(f"The column {name!r} is {kind.simpleString()}: it must be {' or '.join(allowed)}.")
    if "value" not in types:
        raise ConfigError("The column 'value' is missing.")
    if "topic" not in types and not has_topic:
        raise ConfigError("Nothing says which topic to write to: add the option or the column 'topic'.")


# --- rows -----------------------------------------------------------------------------------------------------------


async def _produce(options: WriteOptions, batches: Iterator[pa.RecordBatch], producer: Producer) -> int:
    """Send every row and wait for its acknowledgement. Raises: FirnError, with some rows written."""
    count = 0
    for batch in batches:
        for start in range(0, batch.num_rows, SENDS_AT_ONCE):
            rows = batch.slice(start, SENDS_AT_ONCE).to_pylist()
            answers: list[asyncio.Future[Acknowledged]] = []
            for row in rows:
                topic = options.topic if options.topic is not None else row.get("topic")
                if topic is None:
                    raise ConfigError("A row has no topic: fill the column 'topic', or use the option.")
                moment = row.get("timestamp")
                answers.append(
                    await producer.send(
                        topic,
                        _bytes(row["value"]),
                        key=_bytes(row.get("key")),
                        headers=tuple((header["key"], header["value"]) for header in row.get("headers") or ()),
                        timestamp=None if moment is None else TimestampMs(round(moment.timestamp() * 1000)),
                        partition=row.get("partition"),
                    )
                )
            # Flushing raises nothing of its own: each record's answer does.
            await producer.flush()
            for answer in answers:
                await answer
            count += len(rows)
    return count


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _cluster(options: WriteOptions) -> ClusterClient:
    return ClusterClient(options.bootstrap, rng=random.Random(), client_id="firn-spark")


# --- batch ----------------------------------------------------------------------------------------------------------


@dataclass
class WrittenRows(WriterCommitMessage):
    """The message of a task of a batch write."""

    count: int


class FirnWriter(Shipped, DataSourceArrowWriter):
    """``df.write.format("firn")``: every row at least once; once if no task fails."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return WrittenRows(asyncio.run(self.write_batches(iterator)))

    async def write_batches(self, batches: Iterator[pa.RecordBatch]) -> int:
        async with (
            _cluster(self._options) as cluster,
            Producer(cluster, SystemClock(), compression=self._options.compression) as producer,
        ):
            return await _produce(self._options, batches, producer)


# --- stream ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a task in a run of a query, where its transactional id is handed on from batch to batch."""

    run_id: str
    task: int
    is_first_attempt: bool


@dataclass
class OpenTransaction(WriterCommitMessage):
    """The message of a task of a micro-batch: the transaction that it left open."""

    query_id: str
    transaction: tuple[str, int, int] | None
    """Transactional id, producer id, epoch; None: it wrote nothing."""
    already_intended: bool = False
    """The batch had an intent when the task began."""
    slot: Slot | None = None
    transactional_id: str = ""
    """The id that the next batch's first attempt may use, if this attempt wins."""


@dataclass(frozen=True, slots=True)
class Intent:
    """The content of the newest commit of a query."""

    batch_id: int
    transactions: tuple[Transaction, ...]
    run_id: str = ""
    handed_on: Mapping[int, str] = field(default_factory=dict)
    """Transactional id by task, for the next batch of the same run."""

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": INTENT_VERSION,
                "batch": self.batch_id,
                "transactions": [list(one) for one in self.transactions],
                "run": self.run_id,
                "ids": self.handed_on,
            }
        ).encode()


def _transaction(name: str, producer_id: int, epoch: int) -> Transaction:
    return Transaction(name, ProducerId(producer_id), ProducerEpoch(epoch))


def decode_intent(data: bytes, query_id: str) -> Intent:
    """Inverse of ``Intent.encode``. Raises: CorruptionError."""
    try:
        found = json.loads(data)
        if found["version"] not in INTENT_VERSIONS_READ:
            raise CorruptionError(f"The intent of query {query_id} has version {found['version']}: use a newer Firn.")
        transactions = tuple(
            _transaction(str(name), int(producer), int(epoch)) for name, producer, epoch in found["transactions"]
        )
        handed_on = {int(task): str(name) for task, name in found.get("ids", {}).items()}
        return Intent(int(found["batch"]), transactions, str(found.get("run", "")), handed_on)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"The intent of query {query_id} is damaged: {error!r}.") from None


class FirnStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """``writeStream.format("firn")``: every row of every micro-batch exactly once, for readers at read_committed."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    # --- in a task --------------------------------------------------------------------------------------------------

    @plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> OpenTransaction:
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query_id is not None
        assert batch_id is not None
        run_id = context.getLocalProperty(RUN_ID)
        assert run_id is not None
        slot = Slot(run_id, context.partitionId(), is_first_attempt=context.attemptNumber() == 0)
        # Spark counts attempts anew in every run.
        attempt = f"{run_id}-{slot.task}-{context.taskAttemptId()}"
        return asyncio.run(self.write_attempt(iterator, query_id, int(batch_id), attempt, slot=slot))

    async def write_attempt(
        self,
        batches: Iterator[pa.RecordBatch],
        query_id: str,
        batch_id: int,
        attempt: str,
        *,
        slot: Slot | None = None,
    ) -> OpenTransaction:
        """One attempt at one part of micro-batch ``batch_id``; its transaction stays open.

        Args:
            attempt: told apart from every other attempt of the query.
            slot: where a transactional id is taken from and handed on to; without one the id is new and is not used again.

        Raises: FirnError.
        """
        async with _cluster(self._options) as cluster:
            intent = await read_intent(cluster, self._options.commit_topic, query_id)
            if intent is not None and intent.batch_id >= batch_id:
                return OpenTransaction(query_id, None, already_intended=True)
            name = _handed_on(intent, batch_id, slot) or f"firn-{query_id}-{batch_id}-{attempt}"
            nothing = OpenTransaction(query_id, None, slot=slot, transactional_id=name)
            first = next(batches, None)
            if first is None:
                return nothing
            transaction = await begin_transaction(cluster, name, timeout_ms=self._options.transaction_timeout_ms)
            try:
                async with Producer(
                    cluster, SystemClock(), compression=self._options.compression, transaction=transaction
                ) as producer:
                    count = await _produce(self._options, _chained(first, batches), producer)
            except BaseException:
                # After any failure, also a row that Arrow cannot read or an interrupt: readers would wait for the time-out.
                await self._abandon(cluster, transaction)
                raise
            if count == 0:  # It was begun, but nothing has joined it: there is nothing to end.
                return nothing
        opened = (transaction.transactional_id, int(transaction.producer_id), int(transaction.producer_epoch))
        return OpenTransaction(query_id, opened, slot=slot, transactional_id=name)

    @staticmethod
    async def _abandon(cluster: ClusterClient, transaction: Transaction) -> None:
        """Abort now, so that readers need not wait for the time-out; if that fails, the time-out does it."""
        try:
            await end_transaction(cluster, transaction, commit=False)
        except FirnError as error:
            _logger.warning("Transaction %s is left to its time-out: %s", transaction.transactional_id, error)

    # --- on the driver ----------------------------------------------------------------------------------------------

    @plainly()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        asyncio.run(self.commit_batch([one for one in messages if isinstance(one, OpenTransaction)], batchId))

    async def commit_batch(self, messages: Sequence[OpenTransaction], batch_id: int) -> None:
        """Write the intent, then end its transactions; or finish an intent that is there.

        Without an intent yet, a transaction that is over already fails the batch, which Spark then writes again. Every
        transaction of an intent is tried, also after one that cannot be committed.
        Raises: FencedError (another start of the query is at work, whose batch it is now), other FirnError.
        """
        if not messages:
            return
        query_id = messages[0].query_id
        opened = tuple(_transaction(*one.transaction) for one in messages if one.transaction is not None)
        async with _cluster(self._options) as cluster:
            intent = await self._find_intent(cluster, query_id, batch_id)
            if intent is None:
                is_known = any(one.already_intended for one in messages)
                slots = {one.slot.task: one.transactional_id for one in messages if one.slot is not None}
                if not (opened or slots or is_known):
                    return
                run_id = next((one.slot.run_id for one in messages if one.slot is not None), "")
                own = Intent(batch_id, opened, run_id, slots)
                intent = await self.intend(cluster, query_id, own, is_known=is_known)
            for transaction in opened:
                if transaction not in intent.transactions:
                    await self._abandon(cluster, transaction)
            if intent.batch_id > batch_id:
                if not opened:
                    return
                raise FencedError(
                    f"Batch {batch_id} of query {query_id} is not committed: another start of the query has gone on to batch"
                    f" {intent.batch_id}. Let only one of them run."
                )
            failures: list[FirnError] = []
            for transaction in intent.transactions:
                try:
                    await self.finish(cluster, transaction, batch_id)
                except FirnError as error:
                    failures.append(error)
            if failures:
                # One that is lost for good says more than one that may be tried again.
                raise next((error for error in failures if isinstance(error, ConfigError)), failures[0])

    async def _find_intent(
        self, cluster: ClusterClient, query_id: str, batch_id: int, *, settled: bool = False
    ) -> Intent | None:
        """The intent of a batch, or of a later one; as ``read_intent``."""
        newest = await read_intent(cluster, self._options.commit_topic, query_id, settled=settled)
        return None if newest is None or newest.batch_id < batch_id else newest

    async def intend(self, cluster: ClusterClient, query_id: str, own: Intent, *, is_known: bool) -> Intent:
        """Make ``own`` the intent of its batch, and answer it; or the one that is there.

        It was looked for before, so that a driver which is batches behind does not take the id from the one ahead.
        ``is_known``: a task has seen one. Raises: CorruptionError if that is gone, and as ``check_open`` and ``write_intent``.
        """
        await ensure_commit_topic(cluster, self._options.commit_topic)
        timeout_ms = min(INTENT_TIMEOUT_MS, self._options.transaction_timeout_ms)
        writer = await begin_transaction(cluster, f"firn-{query_id}-commits", timeout_ms=timeout_ms)
        found = await self._find_intent(cluster, query_id, own.batch_id, settled=True)
        if found is not None:
            return found
        if is_known:
            raise CorruptionError(
                f"The intent of batch {own.batch_id} of query {query_id} was there when its tasks began, and is gone from topic"
                f" '{self._options.commit_topic}'. Nobody can tell which transactions it named."
            )
        await self.check_open(cluster, own)
        await self.write_intent(cluster, query_id, own, writer)
        return own

    @staticmethod
    async def check_open(cluster: ClusterClient, intent: Intent) -> None:
        """Raises: ConfigError if one is over: an intent must be possible to commit; RequestRejected, BrokerUnavailable."""
        for transaction in intent.transactions:
            if not await is_open(cluster, transaction):
                raise ConfigError(
                    f"Transaction {transaction.transactional_id} was over before batch {intent.batch_id} could be committed:"
                    " nothing of the batch is committed. Start the query again to write the batch anew. If it took longer than"
                    " transactionTimeout, raise that or make the batches smaller."
                )

    async def write_intent(self, cluster: ClusterClient, query_id: str, intent: Intent, writer: Transaction) -> None:
        """Have the intent in the topic, committed by its transaction ``writer``.

        Raises: FencedError (another start has the query now; it is there only if the answer to its end was lost), BrokerUnavailable
        (it may be there), RequestRejected.
        """
        try:
            async with Producer(cluster, SystemClock(), transaction=writer) as producer:
                answer = await producer.send(
                    self._options.commit_topic, intent.encode(), key=query_id.encode(), partition=0
                )
                await producer.flush()
                await answer
            await end_transaction(cluster, writer, commit=True)
        except RequestRejected as error:
            if error.code not in _OVER:
                raise
            raise FencedError(
                f"This driver may no longer commit batch {intent.batch_id} of query {query_id}: another start of the query has"
                f" begun to commit it, or its intent took longer than {INTENT_TIMEOUT_MS // 1000} s ({clause(error)}). Let only one"
                " of them run; if there is no other, start the query again."
            ) from error

    @staticmethod
    async def finish(cluster: ClusterClient, transaction: Transaction, batch_id: int) -> None:
        try:
            await end_transaction(cluster, transaction, commit=True)
        except RequestRejected as error:
            if error.code not in _OVER:
                raise
            raise ConfigError(
                f"Transaction {transaction.transactional_id} of batch {batch_id} cannot be committed ({clause(error)}): its"
                " time-out had passed before the driver came back. Its rows are not in the topic. Write the batch again from"
                " its source into another query, and raise transactionTimeout."
            ) from error

    @plainly()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        asyncio.run(self.abort_batch([one for one in messages if isinstance(one, OpenTransaction)], batchId))

    async def abort_batch(self, messages: Sequence[OpenTransaction], batch_id: int) -> None:
        """Abort the transactions that the tasks of a failed micro-batch left open, unless its intent names them.

        Spark asks for this also when the commit itself has failed, perhaps after the intent: then the batch is to be finished
        when it is repeated. Transactions in doubt are left to their time-out.
        """
        opened = [(one.query_id, _transaction(*one.transaction)) for one in messages if one.transaction is not None]
        if not opened:
            return
        query_id = opened[0][0]
        async with _cluster(self._options) as cluster:
            try:
                intent = await read_intent(cluster, self._options.commit_topic, query_id, settled=True)
            except FirnError as error:
                _logger.warning("The transactions of batch %d are left to their time-out: %s", batch_id, error)
                return
            # A later intent comes from another start, which has ended the transactions of this batch's intent.
            kept = intent.transactions if intent is not None and intent.batch_id == batch_id else ()
            for _, transaction in opened:
                if transaction not in kept:
                    await self._abandon(cluster, transaction)


def _handed_on(newest: Intent | None, batch_id: int, slot: Slot | None) -> str | None:
    """The transactional id that the batch before has left for this attempt, if any."""
    if slot is None or not slot.is_first_attempt or newest is None:
        return None
    is_next = newest.batch_id == batch_id - 1 and newest.run_id == slot.run_id
    return newest.handed_on.get(slot.task) if is_next else None


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


async def ensure_commit_topic(cluster: ClusterClient, name: str) -> None:
    """Make the topic of intents if there is none. Raises: RequestRejected, BrokerUnavailable."""
    try:
        await AdminClient(cluster).create_topic(name, partitions_count=1, configs=COMMIT_TOPIC_CONFIGS)
    except RequestRejected as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


async def read_intent(cluster: ClusterClient, topic: str, query_id: str, *, settled: bool = False) -> Intent | None:
    """The newest intent of a query that is committed; None if there is none.

    Args:
        settled: wait until everything that is in the topic now is committed or aborted, also that of other queries. Otherwise an
            intent behind an open transaction is not seen.

    Raises: CorruptionError, RequestRejected, BrokerUnavailable.
    """
    partition = TopicPartition(topic, PartitionIndex(0))
    await cluster.refresh()
    if topic not in cluster.view.topics:
        return None
    end = (await cluster.list_offsets({partition: LATEST}, read_committed=not settled))[partition].offset
    newest: bytes | None = None
    async with Consumer(cluster, read_committed=True, reset_to=None) as consumer:
        consumer.assign({partition: Offset(0)})
        try:
            async with asyncio.timeout(INTENT_READ_S_MAX):
                while consumer.position(partition) < end:
                    for batch in await consumer.poll(10_000):
                        for record in batch.records():
                            if record.key == query_id.encode():
                                newest = record.value
        except TimeoutError:
            raise BrokerUnavailable(
                f"Topic '{topic}' could be read to offset {consumer.position(partition)} of {end} in {INTENT_READ_S_MAX:.0f} s: a"
                " transaction in it stays open."
            ) from None
    return None if newest is None else decode_intent(newest, query_id)
