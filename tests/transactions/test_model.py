"""Transactions against everything that goes wrong: answers lost, requests late and repeated, kills, losses of power, silence.

Clients are played as client libraries play them, in both protocols. What must always hold, once everything has settled:

- a transaction is all or nothing: what was acknowledged in it is seen at read_committed in every partition if its client was told
  that it committed, and nothing of it is seen if it was aborted, or never asked to be committed;
- nothing is seen twice, and offsets committed in a transaction go with it;
- nothing hangs past its time-out: in the end the last stable offset is the high watermark, whatever was left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from app.configs import Durability
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex, TopicPartition
from app.handlers.clients.admission import ADDS_PARTITIONS
from app.records.builder import build_batch
from app.transactions.state import VERSION_1, VERSION_2, ProducerIdentity
from app.wire.apis.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.virtual_loop import VirtualLoop
from tests.transactions.world import DATA_TOPICS, World

T = TypeVar("T")

TIMEOUT_MS: Final = 5_000
AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Codes after which a client sends the same again."""


class Lost(Exception):
    """No answer came."""


@dataclass
class Attempt:
    """One transaction, as its client means it."""

    number: int
    acknowledged: set[tuple[str, bytes]] = field(default_factory=set)
    commit_asked: bool = False
    outcome: bool | None = None
    """What the client was told: committed, aborted, or nothing."""
    offset_acknowledged: bool = False


@dataclass
class Client:
    """An instance of an application, with its producer."""

    transactional_id: str
    version: int
    identity: ProducerIdentity | None = None
    sequences: dict[str, int] = field(default_factory=dict)
    added: set[str] = field(default_factory=set)
    attempt: Attempt | None = None
    unanswered: Callable[[], Awaitable[Any]] | None = None
    """What has to be answered before anything else is sent: a Produce, or the end of the transaction."""
    must_abort: bool = False

    @property
    def produce_version(self) -> int:
        return ADDS_PARTITIONS if self.version == VERSION_2 else 9


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.lost: list[str] = []
        self.loop.set_exception_handler(
            lambda _, context: self.lost.append(f"{context['message']}: {context.get('exception')!r}")
        )
        asyncio.set_event_loop(self.loop)
        self.world: World
        self.clients: list[Client] = []
        self.attempts: list[Attempt] = []
        self.late: list[Callable[[], Awaitable[Any]]] = []
        """Requests that the network may deliver, again or for the first time."""
        self.committed_offsets: dict[str, list[Attempt]] = {}

    @initialize(
        seed=st.integers(0, 2**32),
        durability=st.sampled_from(Durability),
        versions=st.lists(st.sampled_from([VERSION_1, VERSION_2]), min_size=3, max_size=3),
    )
    def begin(self, seed: int, durability: Durability, versions: list[int]) -> None:
        if durability is Durability.OBJECT:
            durability = Durability.DISK
        self.world = World(self.loop, seed=seed, durability=durability)
        self.run(self.world.start())
        self.rest(0.1)
        self.clients = [Client(f"t{number % 2}", version) for number, version in enumerate(versions)]
        for number in range(2):
            self.init(number, "ok", goes_on=False)

    def run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await work

        return self.loop.run_until_complete(main())

    def rest(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def teardown(self) -> None:
        try:
            if self.clients:
                self.check_everything()
        finally:
            if hasattr(self, "world"):
                self.run(self.world.stop())
            self.loop.close()
            asyncio.set_event_loop(None)
        assert not self.lost, self.lost

    # --- the network ---

    def ask(self, request: Callable[[], Awaitable[T]], fate: str) -> T:
        """Send a request. Raises: Lost; RequestRejected."""
        if fate == "late":
            self.late.append(request)
            raise Lost
        if fate in ("kill", "power"):
            self.run(self._die_during(request, power=fate == "power"))
            self.rest(0.1)
            raise Lost
        answer = self.run(request())
        if fate == "answer lost":
            self.late.append(request)
            raise Lost
        return answer

    async def _die_during(self, request: Callable[[], Awaitable[Any]], *, power: bool) -> None:
        task = asyncio.ensure_future(request())
        await asyncio.wait([task], timeout=self.world.fs.rng.choice([0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.0045]))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        await self.world.restart(power=power and self.world.durability is Durability.DISK)

    # --- what happens ---

    fates = st.sampled_from(["ok"] * 12 + ["answer lost", "late", "late", "kill", "power"])
    clients_drawn = st.integers(0, 2)

    @rule(number=clients_drawn, fate=fates, goes_on=st.booleans())
    def begin_anew(self, number: int, fate: str, goes_on: bool) -> None:
        self.init(number, fate, goes_on=goes_on)

    def init(self, number: int, fate: str, *, goes_on: bool) -> None:
        client = self.clients[number]
        expected = client.identity if goes_on else None
        world = self.world

        def request() -> Awaitable[ProducerIdentity]:
            return world.transactions.initialize(client.transactional_id, TIMEOUT_MS, expected)

        client.identity, client.attempt, client.unanswered, client.must_abort = None, None, None, False
        try:
            client.identity = self.ask(request, fate)
        except (Lost, RequestRejected):
            return
        client.sequences.clear()
        client.added.clear()

    @rule(
        number=clients_drawn,
        topics=st.lists(st.sampled_from(DATA_TOPICS), min_size=1, max_size=3),
        fate=fates,
        add_fate=fates,
    )
    def produce_some(self, number: int, topics: list[str], fate: str, add_fate: str) -> None:
        """Only the last of several requests has trouble."""
        for topic in topics[:-1]:
            self.produce(number, topic, "ok", "ok")
        self.produce(number, topics[-1], fate, add_fate)

    def produce(self, number: int, topic: str, fate: str, add_fate: str) -> None:
        client = self.clients[number]
        if client.identity is None and client.unanswered is None:
            self.init(number, "ok", goes_on=False)
        if client.identity is None or client.unanswered is not None or client.must_abort:
            return
        self.open(client)
        if client.version == VERSION_1 and not self.add(client, topic, add_fate):
            return
        assert client.attempt is not None
        sequence = client.sequences.get(topic, 0)
        value = b"%d/%d/%s" % (client.attempt.number, sequence, topic.encode())
        records = build_batch(
            [(self.world.clock.now_ms(), None, value, ())],
            producer_id=client.identity.producer_id,
            producer_epoch=client.identity.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        client.sequences[topic] = sequence + 1
        attempt, world, version = client.attempt, self.world, client.produce_version

        async def send() -> None:
            result = await world.produce(version, client.transactional_id, topic, records)
            if result.error_code:
                raise RequestRejected(ErrorCode(result.error_code))

        client.unanswered = lambda: self._acknowledge(send, attempt, (topic, value))
        self.try_unanswered(client, fate)

    async def _acknowledge(
        self, send: Callable[[], Awaitable[None]], attempt: Attempt, record: tuple[str, bytes]
    ) -> Callable[[], None]:
        await send()
        return lambda: attempt.acknowledged.add(record)

    def open(self, client: Client) -> None:
        if client.attempt is None:
            client.attempt = Attempt(len(self.attempts))
            self.attempts.append(client.attempt)

    def add(self, client: Client, topic: str, fate: str) -> bool:
        """AddPartitionsToTxn of the first protocol; whether the partition is known to be in the transaction."""
        if topic in client.added:
            return True
        identity, world = client.identity, self.world
        assert identity is not None

        async def request() -> None:
            added = world.transactions.add_partitions(
                client.transactional_id, identity, [TopicPartition(topic, PartitionIndex(0))], VERSION_1
            )
            if isinstance(added, Awaitable):
                await added

        try:
            self.ask(request, fate)
        except Lost:
            return False
        except RequestRejected as error:
            self.refused(client, error)
            return False
        client.added.add(topic)
        return True

    def refused(self, client: Client, error: RequestRejected) -> None:
        if error.code in AGAIN:
            return
        client.unanswered = None
        if error.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            client.identity = client.attempt = None
        else:
            client.must_abort = True

    def try_unanswered(self, client: Client, fate: str) -> None:
        assert client.unanswered is not None
        try:
            accept = self.ask(client.unanswered, fate)
        except Lost:
            return
        except RequestRejected as error:
            self.refused(client, error)
            return
        client.unanswered = None
        accept()

    @rule(number=clients_drawn, fate=fates)
    def again(self, number: int, fate: str) -> None:
        client = self.clients[number]
        if client.unanswered is not None and client.identity is not None:
            self.try_unanswered(client, fate)

    @rule(number=clients_drawn, fate=fates, add_fate=fates)
    def commit_offsets(self, number: int, fate: str, add_fate: str) -> None:
        client = self.clients[number]
        if client.identity is None or client.unanswered is not None or client.must_abort:
            return
        self.open(client)
        if client.version == VERSION_1 and not self.add(client, "__consumer_offsets", add_fate):
            return
        attempt, identity, world = client.attempt, client.identity, self.world
        assert attempt is not None
        partition = TxnOffsetCommitRequestPartition(0, attempt.number)
        message = TxnOffsetCommitRequest(
            client.transactional_id,
            f"group-{client.transactional_id}",
            identity.producer_id,
            identity.epoch,
            topics=[TxnOffsetCommitRequestTopic("a", [partition])],
        )

        async def send() -> Callable[[], None]:
            code = await world.commit_offsets(5 if client.version == VERSION_2 else 3, message)
            assert code == 0
            return lambda: setattr(attempt, "offset_acknowledged", True)

        client.unanswered = send
        self.try_unanswered(client, fate)

    @rule(number=clients_drawn, fate=fates, commit=st.booleans())
    def end(self, number: int, fate: str, commit: bool) -> None:
        client = self.clients[number]
        attempt, identity, world = client.attempt, client.identity, self.world
        if identity is None or attempt is None or (commit and (client.unanswered is not None or client.must_abort)):
            return
        if client.unanswered is not None and client.version == VERSION_1:
            # What was sent may still arrive, under an epoch that goes on: clients of the first protocol begin anew then.
            client.must_abort = True
        attempt.commit_asked |= commit

        async def send() -> Callable[[], None]:
            answered = await world.transactions.end(
                client.transactional_id, identity, commit=commit, client_version=client.version
            )
            return lambda: self.ended(client, attempt, answered, commit)

        if client.version == VERSION_2:
            client.unanswered = send
            self.try_unanswered(client, fate)
            return
        # In the first protocol an EndTxn that comes late may end the next transaction: it is never sent twice by the network.
        client.unanswered = send
        self.try_unanswered(client, "ok" if fate in ("late", "answer lost") else fate)

    def ended(self, client: Client, attempt: Attempt, identity: ProducerIdentity, commit: bool) -> None:
        attempt.outcome = commit
        if commit and attempt.offset_acknowledged:
            self.committed_offsets.setdefault(client.transactional_id, []).append(attempt)
        client.attempt = None
        client.added.clear()
        if identity != client.identity:
            client.sequences.clear()
        client.identity = None if client.must_abort and client.version == VERSION_1 else identity
        client.must_abort = False

    @rule(which=st.integers(0, 1 << 16))
    def arrive_late(self, which: int) -> None:
        """The network delivers an old request; nobody waits for its answer."""
        if not self.late:
            return
        request = self.late[which % len(self.late)]
        try:
            self.run(request())
        except RequestRejected:
            return

    @rule(seconds=st.sampled_from([0.001, 0.3, 3.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.rest(seconds)

    @rule(power=st.booleans())
    def restart(self, power: bool) -> None:
        self.run(self.world.restart(power=power and self.world.durability is Durability.DISK))
        self.rest(0.1)

    # --- what must hold ---

    @rule(now=st.integers(0, 9))
    def check_sometimes(self, now: int) -> None:
        if now == 0:
            self.check_everything()

    def check_everything(self) -> None:
        self.rest(2 * TIMEOUT_MS / 1000 + 5)
        world = self.world
        assert self.run(world.settled())
        seen: dict[int, set[tuple[str, bytes]]] = {}
        for topic in DATA_TOPICS:
            log = world.log(topic)
            assert log.last_stable_offset == log.high_watermark == log.log_end_offset, "something hangs"
            values = self.run(world.read_committed(topic))
            assert len(values) == len(set(values)), "a record is there twice"
            for value in values:
                seen.setdefault(int(value.split(b"/")[0]), set()).add((topic, value))
        for attempt in self.attempts:
            found = seen.get(attempt.number, set())
            if attempt.outcome:
                assert attempt.acknowledged <= found, (attempt, found)
            elif attempt.outcome is False or not attempt.commit_asked:
                assert not found, (attempt, found)
            else:
                assert not found or attempt.acknowledged <= found, (attempt, found)
        for client in self.clients:
            # What was open is over by now; the client would find out by its next request.
            client.identity = client.attempt = client.unanswered = None
            client.must_abort = False
        for transactional_id, attempts in self.committed_offsets.items():
            offset = self.run(world.committed_offset(f"group-{transactional_id}", "a"))
            assert offset >= attempts[-1].number, (offset, attempts[-1])
            assert self.attempts[offset].outcome or (
                self.attempts[offset].outcome is None and self.attempts[offset].commit_asked
            ), "an offset of a transaction that was not committed"


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
class TestManyTransactions(TransactionMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=2_000, stateful_step_count=60, deadline=None)
