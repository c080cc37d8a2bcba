"""Keyed requests in a simulated cluster without faults by chance: what a script and its test share (ADR 0043).

An HTTP process is the program's ``KeyedProducer`` over the simulated network, with the time limits of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from app.client.cluster import LATEST, ClusterClient
from app.client.connection import KafkaConnection
from app.client.consumer import Consumer
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.exactly_once.attempt import Attempt
from app.exactly_once.records import Result
from app.http.errors import RestError
from app.http.gateway import RETRY_BUDGET_MS
from app.http.keyed import producing
from app.http.keyed.asked import KeyedRecord
from app.http.keyed.producing import KeyedProducer
from app.records.record import iter_records
from app.wire.apikeys import ApiKey
from app.wire.private import KeyedResponse, unpack
from tests.cluster_simulation.machine import PORT, ClusterMachine
from tests.support.virtual_loop import VirtualClock

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

T = TypeVar("T")


class Answered(NamedTuple):
    """The answer to a keyed request."""

    status: int
    after_s: float
    result: Result | None


class Caller:
    """An HTTP process and its callers."""

    def __init__(self, world: World, *, at_once: bool) -> None:
        """``at_once``: whether one broker takes all steps of a try, where it can (EO19). Run it in a world whose actors are
        ``keyed``: that undoes what this changes."""
        self.world = world
        self.attempts = 0
        """Tries that have begun."""
        self.committed_at_once = 0
        """Tries all of whose steps one broker has taken."""
        self.ids: dict[bytes, list[str]] = {}
        """Transactional ids with which the record of a key was sent."""
        self.cluster = self._client(at_once)
        self.producer = KeyedProducer(self.cluster, VirtualClock(world.loop))
        caller = self

        class Counted(Attempt):
            """Counts tries."""

            __slots__ = ()

            def __init__(self, *args: Any) -> None:
                Attempt.__init__(self, *args)
                caller.attempts += 1

        producing.Attempt = Counted  # type: ignore[misc]

    def _client(self, at_once: bool) -> ClusterClient:
        caller = self

        class Watched(KafkaConnection):
            """Tells which way a request goes."""

            async def request(self, key: ApiKey, message: Any, **named: Any) -> Any:
                if key is ApiKey.PRODUCE:
                    records = bytes(message.topic_data[0].partition_data[0].records)
                    (record,) = iter_records(memoryview(records))
                    caller.ids.setdefault(bytes(record.value or b""), []).append(message.transactional_id)
                if key is not ApiKey.FIRN_KEYED:
                    return await super().request(key, message, **named)
                if not at_once:
                    raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, "It takes all steps by itself.")
                body = await super().request(key, message, **named)
                caller.committed_at_once += unpack(KeyedResponse, body).found == "committed"
                return body

        world = self.world
        return ClusterClient(
            [(machine.name, PORT) for machine in world.machines],
            rng=world.new_rng(),
            client_id="http",
            retry_budget_ms=RETRY_BUDGET_MS,
            dial=world.network.dialer("http", None),
            kind=Watched,
        )

    async def ask(self, key: bytes, topic: str, partition: int = 0) -> Answered:
        """Write a record whose value is the key."""
        loop = self.world.loop
        begun_s = loop.time()
        record = KeyedRecord(partition, None, key)
        try:
            result = await self.producer.produce(key, sha256(key).digest(), topic, [record], 200)
        except RestError as error:
            self.world.trace("refused", key, error.answer.status, error.answer.message)
            return Answered(error.answer.status, loop.time() - begun_s, None)
        self.world.trace("answered", key)
        return Answered(200, loop.time() - begun_s, result)

    async def committed(self, topic: str, partition: int = 0) -> Counter[bytes]:
        """The values that a reader of committed records gets."""
        place = TopicPartition(topic, PartitionIndex(partition))
        end = (await self.cluster.list_offsets({place: LATEST}))[place].offset
        found: Counter[bytes] = Counter()
        async with Consumer(self.cluster, read_committed=True) as consumer:
            consumer.assign({place: Offset(0)})
            while consumer.position(place) < end:
                for batch in await consumer.poll(5_000):
                    found.update(record.value or b"" for record in batch.records())
        return found


@asynccontextmanager
async def caller_of(world: World, *, at_once: bool = True) -> AsyncIterator[Caller]:
    caller = Caller(world, at_once=at_once)
    async with caller.cluster:
        yield caller
        await caller.producer.close(60.0)


async def started(world: World) -> None:
    """Start all brokers, and wait until they are unfenced."""
    world.machines[0].start()
    await world.until(lambda: world.machines[0].up, 60, "the first start")
    world.go(world._keep_running())
    await world.until(world._all_unfenced, 60, "all brokers to join")


async def on(machine: ClusterMachine, work: Coroutine[Any, Any, T]) -> T:
    """Do something as a part of a broker's process."""
    assert machine.process is not None
    done = machine.world.loop.create_future()

    async def do() -> None:
        done.set_result(await work)

    machine.process.spawn(do())
    found: T = await done
    return found
