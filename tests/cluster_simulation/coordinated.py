"""Clients of coordinators in a simulated cluster, and what they and their checkers need to know of it.

The clients and the checkers are those of the simulation of one broker. Here each request goes to whom a client would send it: to
the coordinator that was found last, or to the leader of a partition.

What was acknowledged counts whoever acknowledged it, since nobody can commit without the replicas. What a broker only tells (an
offset, an assignment, records of a share group) counts if it led before it was asked and when the answer came: a broker that does
not know yet that it was replaced may tell what was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from app.client.connection import KafkaConnection
from app.configs import Durability
from app.coordinator.topics import CONSUMER_OFFSETS, HTTP_REQUESTS, INTERNAL, TRANSACTION_STATE, partition_for
from app.core.errors import BrokerUnavailable, ErrorCode, ProtocolError, RequestRejected
from app.metadata.image.image import ClusterImage
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.cluster_simulation import conditional
from tests.cluster_simulation.checkers import Replication
from tests.cluster_simulation.clients import ANSWER_MS, Client
from tests.cluster_simulation.directed import DIRECTED
from tests.cluster_simulation.truth import ReplicatedHistory
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation import assigned, sharing
from tests.simulation.actors import Actor
from tests.simulation.assigned import AssignedMember, OneOwner
from tests.simulation.groups import COORDINATOR_TROUBLE, CommittedOffsets, Member
from tests.simulation.history import Batch, PartitionHistory
from tests.simulation.sharing import Place, SharedOnce, Worker
from tests.simulation.transactions import GROUP_ID, CommittedReader, TransactionalProducer, Transactions

if TYPE_CHECKING:
    from tests.cluster_simulation.conditional import BehindSeen
    from tests.cluster_simulation.keyed import Keyed
    from tests.cluster_simulation.machine import ClusterMachine
    from tests.cluster_simulation.world import World

ACTORS: Final = ("transactions", "groups", "assigned", "sharing", "upgrade")
"""What a run may have beside plain producers and readers. Only runs that name them have ``conditional`` and ``keyed`` ones."""
STABLE_S: Final = 60.0
"""After everything has healed, until no transaction is open."""

GROUP, TRANSACTIONAL_ID = 0, 1
"""Types of coordinators."""
Led = tuple[int, int]
"""Leader and leader epoch."""
Key = tuple[int, str]
"""What a coordinator is looked for by."""
_COORDINATED_BY: Final[dict[int, Callable[[Any], Key]]] = {
    ApiKey.INIT_PRODUCER_ID: lambda asked: (TRANSACTIONAL_ID, asked.transactional_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda asked: (TRANSACTIONAL_ID, asked.v3_and_below_transactional_id),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda asked: (TRANSACTIONAL_ID, asked.transactional_id),
    ApiKey.END_TXN: lambda asked: (TRANSACTIONAL_ID, asked.transactional_id),
    ApiKey.TXN_OFFSET_COMMIT: lambda asked: (GROUP, asked.group_id),
    ApiKey.JOIN_GROUP: lambda asked: (GROUP, asked.group_id),
    ApiKey.SYNC_GROUP: lambda asked: (GROUP, asked.group_id),
    ApiKey.HEARTBEAT: lambda asked: (GROUP, asked.group_id),
    ApiKey.LEAVE_GROUP: lambda asked: (GROUP, asked.group_id),
    ApiKey.OFFSET_COMMIT: lambda asked: (GROUP, asked.group_id),
    ApiKey.OFFSET_FETCH: lambda asked: (GROUP, asked.groups[0].group_id),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda asked: (GROUP, asked.group_id),
    ApiKey.SHARE_GROUP_HEARTBEAT: lambda asked: (GROUP, asked.group_id),
}


def error_codes(answer: Any) -> Iterator[ErrorCode]:
    """All that an answer names."""
    if is_dataclass(answer):
        for each in fields(answer):
            value = getattr(answer, each.name)
            if each.name.endswith("error_code"):
                yield ErrorCode(value)
            else:
                yield from error_codes(value)
    elif isinstance(answer, list):
        for one in answer:
            yield from error_codes(one)


class Routed(Actor):
    """A client of the simulation of one broker, before all others in the order of its classes: it finds whom to ask."""

    world: World  # type: ignore[assignment] # what these actors need of a world this one has

    def __init__(self, world: World, name: str, *args: Any, **named: Any) -> None:
        super().__init__(world, name, *args, **named)  # type: ignore[arg-type]
        self.client = Client(world, name)
        self._coordinators: dict[Key, int] = {}
        self._asked_of: dict[ReplicatedHistory | None, Led] = {}
        """What the last request was about, and who led."""
        self._losses = -1
        """Of the world, when it left."""
        self._history_losses = 0

    async def ask(self, key: int, version: int, message: Any) -> Any:
        """Raises: Unreachable, Violation."""
        if key == ApiKey.FIND_COORDINATOR:
            return await self._find(message)
        by = _COORDINATED_BY.get(key)
        if key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
            return await self.client.ask_any(ApiKey(key), message, version)
        if by is None:
            return await self.ask_leader(self._history_of(key, message), key, version, message)
        coordinator = by(message)
        if coordinator not in self._coordinators:
            await self._find(FindCoordinatorRequest(key_type=coordinator[0], coordinator_keys=[coordinator[1]]))
        node_id = self._coordinators.get(coordinator)
        if node_id is None:
            raise Unreachable(f"nobody coordinates {coordinator[1]}")
        self._note(node_id, [self.world.coordinated.partition_of(*coordinator)])
        try:
            answer = await self.client.ask(node_id, ApiKey(key), message, version)
        except Unreachable:
            self._coordinators.pop(coordinator, None)
            raise
        if COORDINATOR_TROUBLE.intersection(error_codes(answer)):
            self._coordinators.pop(coordinator, None)
        return answer

    async def _find(self, message: FindCoordinatorRequest) -> Any:
        found = await self.client.ask_any(ApiKey.FIND_COORDINATOR, message, 4)
        first = found.coordinators[0]
        self.world.expect(first.error_code, COORDINATOR_TROUBLE, f"FindCoordinator of {first.key}")
        if first.error_code == 0:
            self._coordinators[message.key_type, first.key] = first.node_id
        return found

    def _history_of(self, key: int, message: Any) -> ReplicatedHistory:
        topic = message.topics[0]
        for history in self.world.histories.values():
            if key == ApiKey.FETCH and (history.topic_id, history.index) == (
                topic.topic_id,
                topic.partitions[0].partition,
            ):
                return history
            if key == ApiKey.LIST_OFFSETS and (history.topic, history.index) == (
                topic.name,
                topic.partitions[0].partition_index,
            ):
                return history
        raise AssertionError(ApiKey(key).name)

    async def ask_leader(self, history: ReplicatedHistory, key: int, version: int, message: Any) -> Any:
        """Raises: Unreachable."""
        leader = await self.client.leader_of(history)
        self._note(leader, [history])
        try:
            answer = await self.client.ask(leader, ApiKey(key), message, version)
        except Unreachable:
            self.client.forget_leader(history)
            raise
        if any(error_codes(answer)):
            self.client.forget_leader(history)
        return answer

    async def ask_to_produce(self, history: Any, version: int, data: bytes, *, transactional_id: str | None) -> Any:
        partition = PartitionProduceData(index=history.index, records=data)
        topic = TopicProduceData(partition_data=[partition])
        if version >= 13:
            topic.topic_id = history.topic_id
        else:
            topic.name = history.topic
        request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=3000, topic_data=[topic])
        self._history_losses = history.losses
        answer = await self.ask_leader(history, ApiKey.PRODUCE, version, request)
        return answer.responses[0].partition_responses[0]

    def _note(self, node_id: int, partitions: Iterable[ReplicatedHistory | None]) -> None:
        known = self.world.coordinated
        self._losses = known.losses
        self._asked_of = {one: known.led_by(one) for one in partitions if known.knows(node_id, one)}

    def sure(self) -> bool:
        return self._losses == self.world.coordinated.losses

    def current(self) -> bool:
        return all(map(self._led_on, self._asked_of)) if self._asked_of else False

    def _led_on(self, history: ReplicatedHistory | None) -> bool:
        """Whether who was asked about a partition has led it for as long as the last request lasted, and has known it."""
        known, led_by = self.world.coordinated, self._asked_of.get(history)
        return (
            led_by is not None and self.sure() and known.led_by(history) == led_by and known.knows(led_by[0], history)
        )

    def owns(self) -> bool:
        return True

    def acknowledged(self, history: Any, batch: Batch, base: int) -> None:
        Replication.acked(history, batch, base, self._history_losses)


class RoutedTransactionalProducer(Routed, TransactionalProducer):
    """Each transactional id commits offsets of a group of its own: of two, nobody could say which was committed last."""

    def __init__(self, world: World, name: str, transactional_id: str, *, second_protocol: bool) -> None:
        super().__init__(world, name, transactional_id, second_protocol=second_protocol)
        self.group_id = f"{GROUP_ID} {transactional_id}"
        self._begun_s = 0.0

    def begin(self) -> None:
        super().begin()
        self._begun_s = self.world.loop.time()

    async def write_everywhere(self) -> bool:
        """Write to every partition in one transaction. Returns: whether it is open."""
        for _ in range(20):
            with contextlib.suppress(Unreachable):
                if self._producer_id < 0:
                    await self.identify()
                else:
                    self.begin()
                    for history in _lasting(self.world):
                        if self.is_in_transaction:
                            await self.produce(history)  # type: ignore[arg-type]
                    if self.is_in_transaction:
                        return True
            await asyncio.sleep(0.05)
        return False

    async def commit_and_forget(self) -> None:
        with contextlib.suppress(Unreachable):
            await self.end(commit=True)
        self._forget()

    async def commit_and_abort_at_once(self) -> None:
        """Commit, and ask for the end of the next transaction while the markers of this one may be on their way.

        Raises: Violation if the producer is told that it is not the owner of its transactional id, which no other has.
        """
        await self._end_until_told(commit=True)
        if self._producer_id >= 0:
            self.begin()
            while (
                not self.second and self._producer_id >= 0
            ):  # this protocol has nothing to end before it has added something
                with contextlib.suppress(Unreachable):
                    if await self.add(_lasting(self.world)[0]):
                        break
                await asyncio.sleep(self.rng.uniform(0.0, 0.02))
            await self._end_until_told(commit=False)
        in_time = self.world.loop.time() < self._begun_s + self.timeout_ms / 1000  # later the coordinator aborts it
        if self.last_code in FENCED and self.sure() and in_time:
            raise Violation(
                "INV-9", f"{self.transactional_id} is told {self.last_code.name}, and no other producer has the id"
            )

    async def _end_until_told(self, *, commit: bool) -> None:
        """Ask again until the transaction has ended, or the producer cannot go on."""
        self._commits = commit
        while self._producer_id >= 0 and self._commits is commit:
            with contextlib.suppress(Unreachable):
                await self.end()
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))

    async def begin_anew(self) -> None:
        """As an application that was started again: what it had begun is aborted."""
        for _ in range(40):
            with contextlib.suppress(Unreachable):
                await self.identify()
                if self._producer_id >= 0:
                    return
            await asyncio.sleep(0.1)


FENCED: Final = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
"""A producer that is told one of these cannot go on."""


def _lasting(world: World) -> list[PartitionHistory]:
    """Partitions of topics that stay: with the others their offsets go."""
    return [one for one in world.histories.values() if not one.deleting and one.topic.startswith("t")]


class RoutedMember(Routed, Member):
    """See its bases."""

    def partitions(self) -> list[PartitionHistory]:
        return _lasting(self.world)


class RoutedAssignedMember(Routed, AssignedMember):
    """See its bases."""

    def partitions(self) -> list[PartitionHistory]:
        return _lasting(self.world)

    def topics(self) -> list[str]:
        return sorted({one.topic for one in self.partitions()})


@dataclass(frozen=True, slots=True)
class _Grip:
    """What a worker of a share group has lasts as long as its connection and the leadership."""

    connection: KafkaConnection
    led_by: Led
    now_led_by: Callable[[], Led] = field(compare=False)

    @property
    def open(self) -> bool:
        return self.connection.usable and self.led_by == self.now_led_by()


class RoutedWorker(Routed, Worker):
    """It has a session with one leader at a time, and moves on to another one now and then."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._leader = -1
        self._connection: KafkaConnection | None = None

    async def turn(self) -> None:
        if self.rng.random() < 0.1:
            self.move_on()
        await super().turn()

    def partitions(self) -> list[PartitionHistory]:
        return _lasting(self.world)

    def topics(self) -> list[str]:
        return sorted({one.topic for one in self.partitions()})

    def move_on(self) -> None:
        self.hang_up()
        self._leader = -1

    def move_to(self, node_id: int) -> None:
        """To a certain broker."""
        self.hang_up()
        self._leader = node_id

    def hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.world.go(connection.close())

    def _histories(self) -> list[ReplicatedHistory]:
        return [self.world.histories[place] for place in self.places]

    async def session_connection(self) -> KafkaConnection:
        if self._leader < 0:
            if not self.places:
                raise Unreachable("it has no partitions")
            history = self.rng.choice(self._histories())
            self.client.forget_leader(history)
            self._leader = await self.client.leader_of(history)
        if self._connection is None or not self._connection.usable:
            self.hang_up()
            try:
                self._connection = await self.client.connect(self._leader)
            except BaseException:
                self._leader = -1
                raise
        return self._connection

    def places_here(self) -> list[Place]:
        # Of who leads the others it will hear when they refuse.
        led_by = self.world.coordinated.led_by
        return [(one.topic_id, one.index) for one in self._histories() if led_by(one)[0] == self._leader]

    async def ask(self, key: int, version: int, message: Any) -> Any:
        if key not in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
            return await super().ask(key, version, message)
        connection = self._connection
        assert connection is not None
        self._note(self._leader, self._histories())
        try:
            answer = await connection.request(ApiKey(key), message, version=version, timeout_ms=ANSWER_MS)
        except (BrokerUnavailable, RequestRejected, ProtocolError) as error:
            self.move_on()
            raise Unreachable(str(error)) from None
        if ErrorCode.NOT_LEADER_OR_FOLLOWER in error_codes(answer):
            self._leader = -1  # with the next connection
        return answer

    def current_in(self, place: Place) -> bool:
        return self._led_on(self.world.histories[place])

    def grip(self, place: Place) -> _Grip:
        history = self.world.histories[place]
        assert self._connection is not None
        led_by = self.world.coordinated.led_by
        return _Grip(self._connection, led_by(history), lambda: led_by(history))


class RoutedCommittedReader(Routed, CommittedReader):
    """See its bases."""


class Coordinated:
    """What a run has of coordinators: who asks them, who checks them, and what is known of their partitions."""

    def __init__(self, world: World, actors: tuple[str, ...]) -> None:
        self._world, self._actors = world, actors
        self.internal: dict[tuple[UUID, int], ReplicatedHistory] = {}
        """Partitions of internal topics."""
        self.losses = 0
        """How often a partition of any kind has lost records in a way that is allowed."""
        self.transactions = Transactions(world)  # type: ignore[arg-type] # needs of a world what this one has
        self.committed_offsets = CommittedOffsets(world)  # type: ignore[arg-type]
        self.one_owner = OneOwner(world)  # type: ignore[arg-type]
        self.shared_once = SharedOnce(world)  # type: ignore[arg-type]
        self._group_ids: list[str] = []
        """Groups whose committed offsets are read in the end."""
        self.onlookers: list[RoutedMember] = []
        """One for each group whose members commit, for faults that have committed offsets read: it joins nothing."""
        self.crowd: list[RoutedWorker] = []
        self.enders: list[RoutedTransactionalProducer] = []
        """Workers and producers that do what faults have them do."""
        self.behind_seen: BehindSeen | None = None
        """Of runs with callers of conditional appends."""
        self.keyed: Keyed | None = None
        """Of runs with keyed requests."""

    # --- what is known ------------------------------------------------------------------------------------------------

    def changed(self, before: ClusterImage, image: ClusterImage, broker_epochs: dict[int, int]) -> None:
        """An entry of the cluster log is durable."""
        disk = self._world.topic_defaults.firn_durability is Durability.DISK
        for name in (*INTERNAL, HTTP_REQUESTS.name):
            topic = image.topic(name)
            if topic is None or topic is before.topic(name):
                continue
            for partition in topic.partitions:
                index = int(partition.partition_index)
                history = self.internal.get((topic.topic_id, index))
                if history is None:
                    history = ReplicatedHistory(name, topic.topic_id, index, disk or name == HTTP_REQUESTS.name, False)
                    self.internal[topic.topic_id, index] = history
                self._world.trace("image", history.name, *partition[1:])
                excused = history.excused
                history.replicas = tuple(int(one) for one in partition.replicas)
                history.note_image(partition, broker_epochs)
                self.noticed(history, excused=excused)
                above = history.excused_above
                if above is not None and int(partition.leader_epoch) > above and partition.leader >= 0:
                    history.excused_above = None

    def noticed(self, history: ReplicatedHistory, *, excused: bool) -> None:
        """Something has happened to a partition; whether its loss was ``excused`` before that."""
        if history.excused and not excused:
            self._world.trace("may be lost", history.name)
            self.losses += 1
            self.transactions.lost()
            self.committed_offsets.lost()
            self.one_owner.lost()
            self.shared_once.lost()

    def partition_of(self, kind: int, key: str) -> ReplicatedHistory | None:
        """Whose leader coordinates."""
        topic = self._world.newest.topic((CONSUMER_OFFSETS, TRANSACTION_STATE)[kind].name)
        if topic is None:
            return None
        return self.internal.get((topic.topic_id, int(partition_for(key, len(topic.partitions)))))

    def led_by(self, history: ReplicatedHistory | None) -> Led:
        """Who leads, as is durable."""
        image = self._world.partition_image(history) if history is not None else None
        return (int(image.leader), int(image.leader_epoch)) if image is not None else (-1, -1)

    def knows(self, node_id: int, history: ReplicatedHistory | None) -> bool:
        """Whether a broker leads a partition, and in the epoch that is durable."""
        leader, epoch = self.led_by(history)
        if history is None or leader != node_id or leader < 0:
            return False
        node = self._world.machine(node_id).node
        if node is None or node.load_report is None:
            return False
        partition = node.partitions.table.get(history.topic, history.index)
        return partition is not None and partition.leads and int(partition.leader_epoch) == epoch

    def leader_knows(self, history: ReplicatedHistory) -> bool:
        """As ``knows``, of whoever leads."""
        return self.knows(self.led_by(history)[0], history)

    # --- the run ------------------------------------------------------------------------------------------------------

    @property
    def _directed(self) -> bool:
        """Whether the run meets faults that need clients of their own. These draw random numbers of the world."""
        return not DIRECTED.keys().isdisjoint(self._world.shape.faults)

    async def begin(self) -> None:
        world = self._world
        if not self._actors:
            return
        rng = world.new_rng()
        if "transactions" in self._actors:
            for number in range(rng.randint(1, 3)):
                name = f"x{number}"
                producer = RoutedTransactionalProducer(
                    world, name, rng.choice(("x", name, name)), second_protocol=rng.random() < 0.5
                )
                producer.pause_s = rng.choice((0.05, 0.15))
                world.go(producer.run())
                world.go(RoutedCommittedReader(world, f"c{number}").run())
                self._group_ids.append(producer.group_id)
            if self._directed:
                self.enders = [
                    RoutedTransactionalProducer(world, f"e{number}", f"e{number}", second_protocol=bool(number % 2))
                    for number in range(2)
                ]
        if "groups" in self._actors:
            for group_id in ("g", "h")[: rng.randint(1, 2)]:
                self._group_ids.append(group_id)
                for number in range(rng.randint(1, 3)):
                    world.go(RoutedMember(world, f"{group_id}{number}", group_id).run())
            if self._directed:
                self.onlookers = [RoutedMember(world, f"{one} seen", one) for one in dict.fromkeys(self._group_ids)]
        if "assigned" in self._actors:
            for number in range(rng.randint(2, 3)):
                world.go(RoutedAssignedMember(world, f"m{number}").run())
        if "sharing" in self._actors:
            await sharing.begin(Routed(world, "share configs"))
            for number in range(rng.randint(1, 3)):
                world.go(RoutedWorker(world, f"s{number}").run())
            if self._directed:
                self.crowd = [RoutedWorker(world, f"crowd {number}") for number in range(3)]
        if "conditional" in self._actors:
            self.behind_seen = await conditional.begin(world)
        if "keyed" in self._actors:
            from tests.cluster_simulation.keyed import (
                Keyed,
            )  # it brings the framework of HTTP, which no other run needs

            self.keyed = Keyed(world)

    async def finish(self) -> None:
        """Everything has healed. Raises: Violation."""
        if self.behind_seen is not None:
            self.behind_seen.finish()
        if self.keyed is not None:
            await self.keyed.finish()
        if "transactions" in self._actors:
            if not self.losses:
                await self._world.until(self._is_stable, STABLE_S, "the last transactions to end", "INV-9")
            await self._read_committed()
        for group_id in dict.fromkeys(self._group_ids):
            await self._read_offsets(group_id)
        if "assigned" in self._actors:
            await assigned.settle(self._world, lambda name: RoutedAssignedMember(self._world, name))  # type: ignore[arg-type]
        if "sharing" in self._actors:
            await sharing.drain(RoutedWorker(self._world, "last worker"))

    async def _read_offsets(self, group_id: str) -> None:
        """A new member gets its part in time, and reads what was committed. Raises: Violation."""
        member = RoutedMember(self._world, f"{group_id} all", group_id)
        for step in (member.join, member.read_offsets):
            for _ in range(20):
                with contextlib.suppress(Unreachable):
                    if await step():
                        break
                await asyncio.sleep(0.5)
            else:
                raise Violation("alive", f"no new member of {group_id} can {step.__name__.replace('_', ' ')}")

    def _is_stable(self) -> bool:
        return all(
            history.deleting or self._stable_at(self._world.machine(self.led_by(history)[0]), history)
            for history in self._world.all_histories()
        )

    @staticmethod
    def _stable_at(machine: ClusterMachine, history: ReplicatedHistory) -> bool:
        node = machine.node
        log = node.logs.get(history.topic, history.index) if machine.up and node is not None else None
        return log is not None and log.last_stable_offset >= log.high_watermark

    async def _read_committed(self) -> None:
        """Every transaction is there or is not. Raises: Violation."""
        reader = RoutedCommittedReader(self._world, "all committed")
        reader.bytes_choices = (2000, 100_000)
        for _ in range(40):
            try:
                seen = await reader.read_all()
            except Unreachable:
                seen = None
            if seen is not None:
                if not self.losses:
                    self.transactions.whole(seen)
                return
            await asyncio.sleep(0.5)
        if not self.losses:
            raise Violation("INV-9", "what is committed cannot be read to its end")
