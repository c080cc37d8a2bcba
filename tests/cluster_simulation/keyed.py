"""Keyed requests in a simulated cluster, and their checker (ADR 0043, EO1 to EO11).

HTTP processes run the program's ``KeyedProducer`` over the simulated network. They are killed, and lose connections to brokers.
Callers ask for a key until it is answered, and some ask again. Several callers ask two processes for one key at a time. The first
process takes all steps of a try by itself. The other one has one broker take them, where that broker can (EO19). Some requests
have all their partitions at one broker, so that it can. What is checked:

- ``once`` (EO2, EO6, EO14): all answers to a key are the same. For readers of committed records, each record of an answered key is
  there once, at the offset of the answer.
- ``whole`` (EO4): of each key, all records are there, or none.
- ``EO3``: a result is refused only if another try of its key may have one.
- ``EO5``, ``EO19``: no caller is told that nothing is stored by the try whose records are committed.
- ``EO11``: when everything has healed, each key gets its answer in time.

A loss of records that is allowed may take keys and records: then nothing is checked.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection
from app.client.consumer import Consumer
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.core.units import BrokerId, Offset, PartitionIndex, TopicPartition
from app.exactly_once.attempt import Aborted, Attempt, Outcome
from app.exactly_once.records import TOPIC, RequestKey, Result, Tick, decode, encode_key
from app.http.errors import RestError, answer_of
from app.http.keyed import producing
from app.http.keyed.asked import KeyedRecord
from app.http.keyed.producing import KeyedProducer
from app.records.batch import parse_header
from app.wire.apikeys import ApiKey
from app.wire.apis.produce import ProduceRequest
from app.wire.private import KeyedRequest, KeyedResponse, RequestsRequest, unpack
from tests.cluster_simulation.machine import PORT
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.loop import Process
from tests.sim.violation import Violation
from tests.simulation.checkers import CRC_POSITION
from tests.simulation.history import Batch
from tests.support.virtual_loop import VirtualClock

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

PROCESSES: Final = 2
CALLERS: Final = 4
REQUEST_MS: Final = 1_500
BUDGET_MS: Final = 3_000
"""Of retries of one step of a request."""
PATIENCE_S: Final = (0.03, 0.3, 30.0, 30.0)
"""After which a caller gives an answer up."""
LOST_SHARE: Final = 0.1
"""Of appends of results and of ends of transactions whose connection breaks while they are under way."""
LOST_AT_ONCE_SHARE: Final = 0.3
"""As ``LOST_SHARE``, of tries whose steps one broker takes."""
LATE_SHARE: Final = 0.25
"""Of tries of new keys whose steps one broker takes: the request arrives when its process has given it up."""
LATE_S: Final = (0.0, 0.005, 0.02, 0.1)
GATHERED_SHARE: Final = 0.6
"""Of requests whose partitions one broker leads, that of the result among them."""
KEYS_TRIED: Final = 50
PRINCIPAL: Final = "User:ANONYMOUS"
REPEATED_SHARE: Final = 0.3
KILL_S: Final = (1.0, 6.0)
"""Between two kills of an HTTP process."""
ANSWERED_S: Final = 300.0
"""After everything has healed: a result that lost its marker is decided when it is two minutes old."""
ASKED_AGAIN_EACH: Final = 4
"""One of so many keys is asked for again at the end, though it was answered."""
READ_S: Final = 60.0
STREAM: Final = -3
AT_ONCE_FROM = 1
"""Processes from this one on have one broker take all steps of a try."""
AT_ONCE: Final = "at once"
"""In the trace: how far a broker came that was to take all steps of a try."""
AGAIN: Final = frozenset({409, 429, 500, 503})

Answer = tuple[object, ...]


@dataclass(slots=True, eq=False)
class Asked:
    """One key, and its request."""

    number: int
    topic: str
    records: tuple[KeyedRecord, ...]
    key: bytes
    answer: Answer | None = None
    result: Result | None = None
    offered: set[bytes] = field(default_factory=set)
    """Tries that have had a result to append."""
    aborted: set[bytes] = field(default_factory=set)
    """Tries of which a process was to tell that nothing is stored."""

    @property
    def digest(self) -> bytes:
        return sha256(self.key).digest()


class OncePerKey:
    """``EO``: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_digest: dict[bytes, Asked] = {}
        self.answered = 0

    def new(self) -> Asked:
        """A request with one to three records, some of them for partitions that they name."""
        world = self._world
        rng = world.rng
        topics = sorted({one.topic for one in world.histories.values() if not one.deleting})
        topic = rng.choice(topics)
        partitions = [one.index for one in world.histories.values() if one.topic == topic]
        number = world.next_number()
        key, places = b"key-%d" % number, (None, *partitions)
        if rng.random() < GATHERED_SHARE:
            places = (rng.choice(partitions),)
            key = self._key_at_leader_of(topic, places[0], key)
        records = tuple(
            KeyedRecord(rng.choice(places), rng.choice((None, b"%d" % number)), b"%d/%d" % (number, place))
            for place in range(rng.randint(1, 3))
        )
        asked = Asked(number, topic, records, key)
        self._by_digest[asked.digest] = asked
        return asked

    def _key_at_leader_of(self, topic: str, index: int, key: bytes) -> bytes:
        """A key whose result has the leader of a partition, as far as the image tells."""
        image = self._world.newest
        results, target = image.topic(TOPIC), image.topic(topic)
        if results is None or target is None:
            return key
        keys = (key + b".%d" % number for number in range(KEYS_TRIED))
        leader = target.partitions[index].leader
        return next(
            (one for one in keys if results.partitions[RequestKey(PRINCIPAL, one).partition].leader == leader), key
        )

    def of(self, digest: bytes) -> Asked:
        return self._by_digest[digest]

    def told(self, asked: Asked, result: Result) -> None:
        """A process answers a request with a result. Raises: Violation."""
        answer = (result.status, result.filled_ms, result.parts, result.places, result.answer)
        if asked.answer is None:
            asked.answer, asked.result = answer, result
            self.answered += 1
            self._world.acks += 1
        elif asked.answer != answer and not self._world.coordinated.losses:
            raise Violation("once", f"key {asked.number} is answered with {answer}, and was with {asked.answer}")
        self.look_at_aborted(asked)

    def look_at_aborted(self, asked: Asked) -> None:
        """Raises: Violation."""
        if asked.result is not None and asked.result.try_id in asked.aborted and not self._world.coordinated.losses:
            raise Violation("EO5", f"nothing was stored by the try of key {asked.number} that has its result")

    def refused(self, asked: Asked, try_id: bytes) -> None:
        """The result of a try was refused as that of another one. Raises: Violation."""
        if not asked.offered - {try_id} and not self._world.coordinated.losses:
            raise Violation("EO3", f"a try of key {asked.number} is refused, and no other try has a result")

    def check_read(self, found: dict[bytes, list[tuple[int, int]]]) -> None:
        """``found``: for each value that a reader of committed records got, its partitions and offsets. Raises: Violation."""
        for asked in self._by_digest.values():
            counts = Counter(len(found.get(record.value or b"", ())) for record in asked.records)
            if max(counts) > 1:
                raise Violation("once", f"key {asked.number} has a record that is stored {max(counts)} times")
            if len(counts) > 1:
                raise Violation("whole", f"key {asked.number} has records that are stored, and others that are not")
            if asked.result is None:
                continue
            if 0 in counts:
                raise Violation("once", f"key {asked.number} was answered, and its records are not stored")
            for record, (part, offset) in zip(asked.records, asked.result.offsets(), strict=True):
                if found[record.value or b""] != [(part.partition, offset)]:
                    raise Violation("once", f"key {asked.number} has a record that is not where its answer says")

    def to_ask_again(self) -> list[Asked]:
        """All keys without an answer, and some of the others."""
        return [
            one
            for place, one in enumerate(self._by_digest.values())
            if one.answer is None or place % ASKED_AGAIN_EACH == 0
        ]


@contextmanager
def chance(seed: int) -> Iterator[None]:
    """Within it, all that HTTP processes choose by chance follows from the seed."""
    rng = random.Random(f"keyed {seed}")
    secrets = SimpleNamespace(token_hex=lambda size: rng.randbytes(size).hex(), token_bytes=rng.randbytes)
    with mock.patch.multiple(producing, secrets=secrets, Attempt=Attempt):
        yield


def _watched_attempt(checker: OncePerKey, world: World) -> type[Attempt]:
    class Watched(Attempt):
        """Tells the checker of its steps."""

        __slots__ = ()

        def written(self, result: Result) -> None:
            Attempt.written(self, result)
            checker.of(self.digest).offered.add(self.try_id)

        def refused(self, error: Exception | None) -> None:
            if error is None:
                with world.judging():
                    checker.refused(checker.of(self.digest), self.try_id)
            Attempt.refused(self, error)

        def _done(self, outcome: Outcome) -> None:
            if isinstance(outcome, Aborted):
                asked = checker.of(self.digest)
                asked.aborted.add(self.try_id)
                with world.judging():
                    checker.look_at_aborted(asked)
            Attempt._done(self, outcome)

    return Watched


class HttpProcess:
    """An HTTP process, as far as keyed requests go. It is killed and started again."""

    def __init__(self, world: World, name: str, checker: OncePerKey, *, at_once: bool) -> None:
        """``at_once``: whether it has one broker take all steps of a try, where that can."""
        self.world, self.name, self.checker, self.at_once = world, name, checker, at_once
        self.rng = world.new_rng()
        self._starts = 0
        self._ends = asyncio.Event()
        self.start()

    def start(self) -> None:
        self._starts += 1
        self.process = Process(self.world.loop, f"{self.name}.{self._starts}")
        self.world.processes.append(self.process)
        self.process.context.run(self._make)

    def _make(self) -> None:
        world = self.world
        cluster = ClusterClient(
            [(machine.name, PORT) for machine in world.machines],
            rng=world.new_rng(),
            client_id=self.name,
            request_timeout_ms=REQUEST_MS,
            retry_budget_ms=BUDGET_MS,
            dial=world.network.dialer(self.name, self.process),
            kind=self._watched(),
        )
        self.producer = KeyedProducer(cluster, VirtualClock(world.loop))

    def kill(self) -> None:
        self.world.trace("kill", self.process.name)
        self.process.kill()
        self.world.network.process_died(self.process, told=True)
        self.start()

    def _watched(self) -> type[KafkaConnection]:
        http = self

        class Watched(KafkaConnection):
            """Tells of the batches that it sends, and breaks at times."""

            async def request(self, key: ApiKey, message: Any, **named: Any) -> Any:
                if key is ApiKey.FIRN_KEYED:
                    if not http.at_once:
                        raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, "It takes all steps by itself.")
                    asked = http._sends_at_once(unpack(KeyedRequest, message))
                    http._ends.set()
                    if asked.answer is None and http.rng.random() < LATE_SHARE:
                        http.world.go(http._late(BrokerId(int(self.host[1:])), message))
                        raise BrokerUnavailable("The connection has broken.")
                    http._breaks(self.host, LOST_AT_ONCE_SHARE)
                    body = await super().request(key, message, **named)
                    http.world.trace(AT_ONCE, http.name, self.host, unpack(KeyedResponse, body).found)
                    return body
                if key is ApiKey.PRODUCE:
                    http._sends(message)
                if key is ApiKey.END_TXN:
                    http._ends.set()
                if key is ApiKey.END_TXN or (
                    key is ApiKey.FIRN_REQUESTS and unpack(RequestsRequest, message).step == "append"
                ):
                    http._breaks(self.host, LOST_SHARE)
                return await super().request(key, message, **named)

        return Watched

    async def _late(self, broker_id: BrokerId, message: Any) -> None:
        """The network has held a request, and it arrives after the connection has broken for its process."""
        world = self.world
        cluster = ClusterClient(
            [(machine.name, PORT) for machine in world.machines],
            rng=world.new_rng(),
            client_id="late",
            request_timeout_ms=REQUEST_MS,
            retry_budget_ms=0,
            dial=world.network.dialer("late", None),
        )
        await asyncio.sleep(self.rng.choice(LATE_S))
        async with cluster:
            try:
                await cluster.refresh([])
                connection = await cluster.broker(broker_id)
                body = await connection.request(ApiKey.FIRN_KEYED, message, timeout_ms=REQUEST_MS)
            except FirnError as error:
                world.trace("late", self.name, broker_id, str(error))
            else:
                world.trace("late", self.name, broker_id, unpack(KeyedResponse, body).found)

    async def next_end(self) -> None:
        """Wait until it asks for the end of a transaction, or for all steps of one."""
        self._ends.clear()
        await self._ends.wait()

    def _breaks(self, host: str, share: float) -> None:
        if self.rng.random() < share:
            wait_s = self.rng.uniform(0.0, 0.02)
            loop, network = self.world.loop, self.world.network
            loop.call_later(wait_s, network.reset, (self.name, host), context=self.world.outside)

    def _sends(self, request: ProduceRequest) -> None:
        for topic in request.topic_data:
            for part in topic.partition_data:
                self._sends_batch(self.world.histories[topic.topic_id, part.index], memoryview(part.records or b""))

    def _sends_at_once(self, request: KeyedRequest) -> Asked:
        """The broker appends the batches of the request as they are, and a result of this try."""
        decoded = decode(encode_key(RequestKey(PRINCIPAL, request.key)), request.result)
        assert decoded is not None
        assert not isinstance(decoded, Tick)
        result = decoded[1]
        asked = self.checker.of(result.digest)
        asked.offered.add(result.try_id)
        for part, records in zip(result.parts, request.batches, strict=True):
            topic = self.world.newest.topic(part.topic)
            assert topic is not None
            self._sends_batch(self.world.histories[topic.topic_id, part.partition], memoryview(records))
        return asked

    def _sends_batch(self, history: ReplicatedHistory, records: memoryview) -> None:
        tail = bytes(records[CRC_POSITION:])
        if tail not in history.sent:
            count = int(parse_header(records).last_offset_delta) + 1
            history.sent[tail] = Batch(self.world.next_number(), STREAM, 0, count, tail, (), idempotent=True)
        history.sent[tail].attempts += 1

    def ask(self, asked: Asked) -> asyncio.Future[Result]:
        """The answer of the process, if it lives to give one."""
        answer: asyncio.Future[Result] = self.world.loop.create_future()
        self.process.spawn(self._serve(asked, answer))
        return answer

    async def _serve(self, asked: Asked, answer: asyncio.Future[Result]) -> None:
        try:
            result = await self.producer.produce(asked.key, asked.digest, asked.topic, asked.records, 200)
        except (RestError, FirnError) as error:
            if not answer.done():
                answer.set_exception(error)
        except BaseException as error:
            self.world.fail(error)
            raise
        else:
            if not answer.done():
                answer.set_result(result)


class Keyed:
    """The processes, the callers and the checker of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.checker = OncePerKey(world)
        self.rng = world.new_rng()
        producing.Attempt = _watched_attempt(self.checker, world)  # type: ignore[misc]
        self.processes = [
            HttpProcess(world, f"http{number}", self.checker, at_once=number >= AT_ONCE_FROM)
            for number in range(PROCESSES)
        ]
        self._shared: Asked | None = None
        """A key that the next caller asks for, too."""
        for number in range(CALLERS):
            world.go(self._call(f"caller{number}"))
        world.go(self._kill_processes())

    async def _call(self, name: str) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))
            if not self._world.producing:
                continue
            asked, self._shared = self._shared, None
            if asked is None:
                asked = self.checker.new()
                if self.rng.random() < 0.5:
                    self._shared = asked
            if not await self._ask_while_producing(name, asked):
                continue
            if self.rng.random() < REPEATED_SHARE:
                await self._ask_while_producing(name, asked)

    async def _ask_while_producing(self, name: str, asked: Asked) -> bool:
        while self._world.producing:
            if await self.ask_once(name, asked, self.rng.choice(PATIENCE_S)):
                return True
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        return False

    async def ask_once(self, name: str, asked: Asked, patience_s: float) -> bool:
        """Whether a process has answered with a result. Raises: Violation."""
        process = self.rng.choice(self.processes)
        answer = process.ask(asked)
        try:
            async with asyncio.timeout(patience_s):
                result = await answer
        except TimeoutError:
            self._world.trace("no answer", name, asked.number)
            return False
        except (RestError, FirnError) as error:
            told = answer_of(error)
            self._world.trace("refused", name, asked.number, told.status, told.message)
            if told.status not in AGAIN:
                raise Violation("errors", f"key {asked.number} is answered with {told.status} {told.message}") from None
            return False
        self._world.trace("answered", name, asked.number, *result[3:])
        self.checker.told(asked, result)
        return True

    async def _kill_processes(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(*KILL_S))
            if self._world.producing:
                self.rng.choice(self.processes).kill()

    async def finish(self) -> None:
        """Everything has healed. Raises: Violation."""
        world = self._world
        end_s = world.loop.time() + ANSWERED_S
        for asked in self.checker.to_ask_again():
            while not await self.ask_once("last", asked, 30.0):
                if world.loop.time() > end_s and not world.coordinated.losses:
                    raise Violation(
                        "EO11", f"key {asked.number} has no answer {ANSWERED_S:g} s after everything has healed"
                    )
                await asyncio.sleep(0.5)
        found = await self._read_all()
        if found is not None and not world.coordinated.losses:
            self.checker.check_read(found)

    async def _read_all(self) -> dict[bytes, list[tuple[int, int]]] | None:
        """All that a reader of committed records gets. Raises: Violation."""
        world = self._world
        cluster = ClusterClient(
            [(machine.name, PORT) for machine in world.machines],
            rng=world.new_rng(),
            client_id="committed",
            dial=world.network.dialer("committed", None),
        )
        ends = {
            TopicPartition(one.topic, PartitionIndex(one.index)): one.end
            for one in world.histories.values()
            if not one.deleting
        }
        found: dict[bytes, list[tuple[int, int]]] = {}
        end_s = world.loop.time() + READ_S
        async with cluster, Consumer(cluster, read_committed=True, max_wait_ms=100) as consumer:
            consumer.assign(dict.fromkeys(ends, Offset(0)))
            while any(consumer.position(one) < end for one, end in ends.items()):
                if world.loop.time() > end_s:
                    if world.coordinated.losses:
                        return None
                    raise Violation("EO11", f"committed records cannot be read to {ends}: {consumer.trouble}")
                for batch in await consumer.poll(200):
                    for record in batch.records():
                        place = (int(batch.partition.partition), int(record.offset))
                        found.setdefault(record.value or b"", []).append(place)
        return found
