"""Callers of conditional appends in a simulated cluster, and their checker (ADR 0043, EO18).

A caller asks for the end of a partition, reads all batches below it by Kafka's protocol, and appends behind that end by the client
of the HTTP processes. Or it reads all that there is, records of open transactions too, and appends behind that. Several callers,
plain producers and transactions write to the same partitions. The answers of callers get lost. What is checked:

- **Behind what was seen**: in no log does a conditional batch follow a data batch other than the last one that its caller had read.
  Logs are only cut and grown at their ends, so this needs no excuse, whatever is lost.
- **One winner**: in no log do two conditional batches name the same end.
- **Repeats**: a repeat of a stored append gets the offset of the first one, and no batch is in a log twice.
- **No needless refusal**: an append is refused only if the leader has data behind the end, or another history below it.
- **Nothing was appended**: a batch that was refused is in no log in the end.

That an acknowledged batch stays is INV-1.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from app.client.cluster import ClusterClient
from app.client.conditional_appends import LANE, Appended, ConditionalWriter, EndMoved, SeenEnd, partition_end
from app.client.connection import KafkaConnection
from app.core.errors import FirnError
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicPartition
from app.hot.log import PartitionLog
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from app.wire.private import AppendRequest, AppendResponse, pack, unpack
from tests.cluster_simulation.checkers import Replication
from tests.cluster_simulation.clients import Client
from tests.cluster_simulation.machine import PORT, ClusterMachine
from tests.cluster_simulation.truth import ReplicatedHistory, batches_of
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation.checkers import CRC_POSITION, served_batches
from tests.simulation.history import Batch

if TYPE_CHECKING:
    from tests.cluster_simulation.world import World

INVARIANT: Final = "EO18"
CALLERS: Final = 4
REQUEST_MS: Final = 1_500
BUDGET_MS: Final = 6_000
"""Of retries of one append: leaders change meanwhile."""
THINKS_S: Final = (0.0, 0.0, 0.02, 0.08, 0.4)
"""Between the read and the append."""
LOST_SHARE: Final = 0.15
"""Of appends whose connection breaks while they are under way."""
REPEATED_SHARE: Final = 0.3
ALL_SHARE: Final = 0.4
"""Of reads that take the records of open transactions, too."""
LOOK_S: Final = 0.3
STREAM: Final = -2


@dataclass(slots=True, eq=False)
class Asked:
    """One append of a caller."""

    number: int
    history: ReplicatedHistory
    seen: SeenEnd
    last: bytes | None
    """The last data batch below the end that its caller has read; None if there is none."""
    sent: list[AppendRequest] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    leaders: set[str] = field(default_factory=set)
    """Hosts that it was sent to."""
    refused: bool = False


class BehindSeen:
    """``EO18``: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_tail: dict[bytes, Asked] = {}
        self.appended = self.refused = 0

    def sent(self, asked: Asked, request: AppendRequest) -> None:
        """A batch leaves for a broker."""
        tail = request.records[CRC_POSITION:]
        if tail not in self._by_tail:
            batch = Batch(asked.number, STREAM, 0, 1, tail, (), idempotent=True)
            asked.history.sent[tail] = batch
            self._by_tail[tail] = asked
            asked.sent.append(request)
            asked.batches.append(batch)
        asked.batches[-1].attempts += 1

    async def watch(self) -> None:
        """Look at all logs now and then."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Raises: Violation."""
        for machine in self._world.machines:
            for history in self._world.histories.values():
                log = self._log_of(machine, history)
                if log is not None:
                    self._judge(machine, history, log)

    @staticmethod
    def _log_of(machine: ClusterMachine, history: ReplicatedHistory) -> PartitionLog | None:
        node = machine.node
        if node is None or not machine.alive or node.load_report is None:
            return None
        log = node.logs.get(history.topic, history.index)
        return log if log is not None and log.topic_id == history.topic_id and log.offline_error is None else None

    def _judge(self, machine: ClusterMachine, history: ReplicatedHistory, log: PartitionLog) -> None:
        last: bytes | None = None
        ends: dict[SeenEnd, int] = {}
        for batch in batches_of(machine.disk, log, 0):
            asked = self._by_tail.get(batch.tail)
            if asked is not None:
                if ends.setdefault(asked.seen, asked.number) != asked.number:
                    raise Violation(
                        INVARIANT, f"{history.name}: appends {ends[asked.seen]} and {asked.number} name the same end"
                    )
                if last != asked.last:
                    raise Violation(
                        INVARIANT,
                        f"{history.name}: append {asked.number} behind {asked.seen.end} is at {batch.base} of"
                        f" {machine.name}, behind a batch that its caller had not read",
                    )
            if not batch.is_control:
                last = batch.tail

    def stored(self, asked: Asked, base: int, losses: int) -> None:
        """An append was acknowledged. Raises: Violation."""
        self.appended += 1
        self._world.acks += 1
        Replication.acked(asked.history, asked.batches[-1], base, losses)
        self.look()

    def was_refused(self, asked: Asked, led_by: tuple[int, int]) -> None:
        """An append was refused because the end had moved. ``led_by``: before it was sent. Raises: Violation."""
        self.refused += 1
        asked.refused = True
        known, history, seen = self._world.coordinated, asked.history, asked.seen
        leader, epoch = led_by
        if known.led_by(history) != led_by or not known.knows(leader, history) or asked.leaders != {f"n{leader}"}:
            return
        log = self._log_of(self._world.machine(leader), history)
        if log is None:
            return
        end, epoch_below = 0, -1
        for batch in batches_of(self._world.machine(leader).disk, log, 0):
            if batch.end <= seen.end:
                end, epoch_below = batch.end, batch.epoch
            elif not batch.is_control:
                return
        if (end, epoch_below) == (seen.end, seen.epoch):
            raise Violation(
                INVARIANT,
                f"{history.name}: append {asked.number} behind {seen.end} was refused, and n{leader} of epoch {epoch} has"
                " no data there",
            )

    def finish(self) -> None:
        """Everything has healed. Raises: Violation."""
        self.look()
        for history in self._world.histories.values():
            leader, _ = self._world.coordinated.led_by(history)
            log = self._log_of(self._world.machine(leader), history) if leader > 0 else None
            if log is None or history.losses or history.excused:
                continue
            for batch in batches_of(self._world.machine(leader).disk, log, 0):
                asked = self._by_tail.get(batch.tail)
                if asked is not None and asked.refused:
                    raise Violation(
                        INVARIANT,
                        f"{history.name}: append {asked.number} was refused, as if nothing was appended, and is at"
                        f" {batch.base}",
                    )


class ConditionalCaller:
    """See the module."""

    def __init__(self, world: World, name: str, checker: BehindSeen) -> None:
        self.world, self.name, self.checker = world, name, checker
        self.rng = world.new_rng()
        self.client = Client(world, name)
        self.cluster = ClusterClient(
            [(machine.name, PORT) for machine in world.machines],
            rng=self.rng,
            client_id=name,
            request_timeout_ms=REQUEST_MS,
            retry_budget_ms=BUDGET_MS,
            dial=world.network.dialer(name, None),
            kind=self._watched(),
        )
        self.writer = ConditionalWriter(self.cluster)
        self._asked: Asked | None = None

    def _watched(self) -> type[KafkaConnection]:
        caller = self

        class Watched(KafkaConnection):
            """Tells of the batches that it sends."""

            async def request(self, key: ApiKey, message: Any, **named: Any) -> Any:
                if key is ApiKey.FIRN_APPEND:
                    caller._sends(self.host, unpack(AppendRequest, message))
                return await super().request(key, message, **named)

        return Watched

    def _sends(self, host: str, request: AppendRequest) -> None:
        if request.records and self._asked is not None:
            self._asked.leaders.add(host)
            self.checker.sent(self._asked, request)
            if self.rng.random() < LOST_SHARE:
                wait_s = self.rng.uniform(0.0, 0.01)
                self.world.loop.call_later(
                    wait_s, self.world.network.reset, (self.name, host), context=self.world.outside
                )

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            if self.world.producing:
                history = self.rng.choice([one for one in self.world.histories.values() if not one.deleting])
                with contextlib.suppress(Unreachable, FirnError):
                    await self.turn(history)

    async def turn(self, history: ReplicatedHistory) -> None:
        """Read to the end, and append there; then perhaps once more behind the own batch.

        Raises: Unreachable, FirnError, Violation.
        """
        asked = await self.read(history)
        if asked is None:
            return
        await asyncio.sleep(self.rng.choice(THINKS_S))
        appended = await self.append(asked)
        if appended is not None and self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.choice(THINKS_S))
            tail = asked.batches[-1].tail
            await self.append(Asked(self.world.next_number(), history, appended.end, tail))

    # --- one append ---------------------------------------------------------------------------------------------------

    async def read(self, history: ReplicatedHistory) -> Asked | None:
        """Ask for the end, and read all that is below it; or read all that there is.

        Returns: an append there; None if the log is another one by now. Raises: Unreachable, FirnError.
        """
        if self.rng.random() < ALL_SHARE:
            return await self._read_to(history, None)
        return await self._read_to(history, await partition_end(self.cluster, _place(history), budget_ms=1_000))

    async def _read_to(self, history: ReplicatedHistory, seen: SeenEnd | None) -> Asked | None:
        offset, epoch, last = 0, -1, None
        while seen is None or offset < seen.end:
            leader = await self.client.leader_of(history)
            wanted = FetchPartition(partition=history.index, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic_id=history.topic_id, partitions=[wanted])]
            )
            try:
                answer = await self.client.ask(leader, ApiKey.FETCH, request, 13)
            except Unreachable:
                self.client.forget_leader(history)
                raise
            records = memoryview((answer.responses[0].partitions[0].records if answer.responses else None) or b"")
            begun = offset
            for position, header in served_batches(records, history.name):
                if seen is not None and header.end_offset > seen.end:
                    break
                offset, epoch = int(header.end_offset), int(header.leader_epoch)
                if not header.is_control:
                    last = bytes(records[position + CRC_POSITION : position + header.size_bytes])
            if offset == begun:
                self.client.forget_leader(history)
                if seen is not None:
                    return None
                seen = SeenEnd(history.topic_id, Offset(offset), LeaderEpoch(epoch))
        if (offset, epoch) != (seen.end, seen.epoch):
            return None
        return Asked(self.world.next_number(), history, seen, last)

    async def append(self, asked: Asked) -> Appended | None:
        """Append behind the end that was read. Returns: None if that failed. Raises: FirnError, Violation."""
        history, known = asked.history, self.world.coordinated
        led_by = known.led_by(history)
        losses = history.losses
        before = led_by if known.knows(led_by[0], history) else (-1, -1)
        now_ms = TimestampMs(1_700_000_000_000 + int(self.world.loop.time() * 1000))
        self._asked = asked
        try:
            appended = await self.writer.append(_place(history), asked.seen, [(now_ms, None, b"%d" % asked.number, ())])
        except EndMoved:
            self.world.trace("moved", self.name, history.name, asked.number, asked.seen.end)
            self.checker.was_refused(asked, before)
            return None
        except FirnError as error:
            self.world.trace("append failed", self.name, history.name, asked.number, str(error))
            raise
        finally:
            self._asked = None
        base = int(appended.batch.base_offset)
        self.world.trace("appended", self.name, history.name, asked.number, asked.seen.end, base)
        self.checker.stored(asked, base, losses)
        if self.rng.random() < REPEATED_SHARE:
            await self.repeat(asked, base, losses)
        return appended

    async def repeat(self, asked: Asked, base: int, losses: int) -> None:
        """Send the bytes of a stored append again. Raises: FirnError, Violation."""
        history = asked.history
        connection = await self.cluster.leader(_place(history), LANE)
        body = await connection.request(
            ApiKey.FIRN_APPEND, pack(asked.sent[-1]), version=0, timeout_ms=REQUEST_MS + 1_000
        )
        answer = unpack(AppendResponse, body)
        if answer.error_code or history.losses != losses or history.excused:
            return
        if answer.moved or answer.base_offset != base:
            raise Violation(
                INVARIANT,
                f"{history.name}: a repeat of append {asked.number}, which is at {base}, is answered with"
                f" {answer.base_offset} {answer.error}",
            )


def _place(history: ReplicatedHistory) -> TopicPartition:
    return TopicPartition(history.topic, PartitionIndex(history.index))


async def begin(world: World) -> BehindSeen:
    """Let callers append until the world stops to produce."""
    checker = BehindSeen(world)
    for number in range(CALLERS):
        world.go(ConditionalCaller(world, f"caller{number}", checker).run())
    world.go(checker.watch())
    return checker
