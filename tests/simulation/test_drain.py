"""Drains while producers and transactions write, the store fails, and the broker is killed, stopped, or told to go on (ADR 0019).

Each story ends with a broker that said "drained", its end, and a start on an empty data directory. Every acknowledged record of
tiered topics is there then. Each rule of the decision is taken back once, and its checker finds that with stated
seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest

from app.configs import TopicConfig
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import TopicIdPartition
from app.handlers.base.context import Context
from app.handlers.state.draining import Drain, DrainState
from app.hot.log import PartitionLog
from app.objectstore.memory import Fault, FaultKind
from app.records.builder import build_batch
from app.transactions.coordinator import TransactionCoordinator
from app.transactions.state import TransactionState
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.private import DrainRequest, DrainResponse, pack, unpack
from app.wire.produce import encode_produce_request
from tests.sim.machine import Unreachable
from tests.sim.planted import assert_found
from tests.sim.violation import Violation
from tests.simulation.actors import EXPECTED, Actor
from tests.simulation.checkers import CRC_POSITION
from tests.simulation.history import Batch, PartitionHistory
from tests.simulation.machine import Machine
from tests.simulation.small import SMALL
from tests.simulation.transactions import TransactionalProducer
from tests.simulation.world import Outcome, World, run_seed

STORIES = (
    "quiet",
    "store away",
    "store flaky",
    "store slow",
    "killed",
    "killed at an upload",
    "power",
    "store away, stopped",
    "drained by two",
    "taken back",
    "disk full",
    "an open transaction",
    "a late transaction",
    "store away, killed, taken back",
)
SEEDS = 14
SLOW_SEEDS = 448
SETTINGS: TopicConfig = SMALL
WHOLE_S = 60.0
"""The longest that a drain may take when nothing goes wrong any more: the tail is small here."""
LONG_MS = 600_000
RULE = "the drain"


class DrainedMeansTiered:
    """What is checked of a drain: writes are refused while it lasts, and what was acknowledged before is in the store."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tiered: set[Any] = set()
        """Topic ids."""
        self._draining: tuple[object, float] | None = None
        """The process that drains, and since when somebody knows."""

    def began(self, machine: Machine) -> None:
        if self._draining is None or self._draining[0] is not machine.process:
            self._draining = (machine.process, self._world.loop.time())

    def taken_back(self) -> None:
        self._draining = None

    def look(self, machine: Machine) -> None:
        """No transaction began since the broker drains. Raises: Violation."""
        node = machine.node
        if self._draining is None or self._draining[0] is not machine.process or node is None or not machine.up:
            return
        if node.context.transactions.refusal is None:
            return  # taken back, or never begun, by this process
        began_ms = node.context.drain.began_ms
        with contextlib.suppress(RequestRejected):
            for some in node.context.transactions.all():
                for one in some:
                    if one.state is TransactionState.ONGOING and one.started_ms > began_ms:
                        raise Violation(
                            RULE, f"the transaction of {one.transactional_id} began while the broker drained"
                        )

    def acked(self, machine: Machine, sent_s: float) -> None:
        """A batch that was sent at ``sent_s``, outside of transactions, was acknowledged. Raises: Violation."""
        if self._draining is not None and self._draining[0] is machine.process and sent_s > self._draining[1]:
            raise Violation(RULE, f"a batch sent at {sent_s:.3f} was taken by a broker that drains")

    def told(self, machine: Machine) -> None:
        """The broker says that it has drained. Raises: Violation if the bucket does not have everything."""
        node = machine.node
        assert node is not None
        for history in self._tiered():
            log = node.logs.get(history.topic, history.index)
            if log is not None:  # else the broker has ended meanwhile: ``gone`` looks
                self._check(history, int(log.log_end_offset), "said to be drained")

    def gone(self) -> None:
        """The broker is gone: everything that was ever acknowledged is in the bucket. Raises: Violation."""
        for history in self._tiered():
            self._check(history, max((one.end for one in history.bound.values() if one.acked), default=0), "gone")

    def back(self, machine: Machine) -> None:
        """A broker with an empty disk serves. Raises: Violation if it does not go on where the other one ended."""
        node = machine.node
        assert node is not None
        for history in self._tiered():
            log = node.logs.get(history.topic, history.index)
            manifest = self._world.one_writer.manifest(history.topic_id, history.index)
            if log is None or log.log_end_offset < max(int(manifest.tiered_end), history.high_watermark):
                raise Violation(RULE, f"{history.name} is not back at {manifest.tiered_end}: {log}")

    def _tiered(self) -> list[PartitionHistory]:
        return [one for one in self._world.histories.values() if one.topic_id in self.tiered]

    def _check(self, history: PartitionHistory, end: int, when: str) -> None:
        state = self._world.one_writer.manifest(history.topic_id, history.index)
        covered = max(int(state.tiered_end), int(state.log_start_offset))
        if covered < end:
            raise Violation(RULE, f"{history.name} ends at {end}, and the bucket has it up to {covered}, when {when}")


class Writer(Actor):
    """Writes to all topics, whatever it is answered."""

    def __init__(self, world: World, name: str, checker: DrainedMeansTiered) -> None:
        super().__init__(world, name)
        self.checker = checker
        self.acknowledged = self.refused = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.01, 0.2))
            try:
                await self._write(self.rng.choice(list(self.world.histories.values())))
            except Unreachable:
                continue

    async def _write(self, history: PartitionHistory) -> None:
        wire = self.connect()
        machine, sent_s = self.machine, self.world.loop.time()
        assert machine is not None
        when, number, count = int(self.world.clock.now_ms()), self.world.next_number(), self.rng.randint(1, 3)
        data = build_batch([(when, None, b"%d" % number + b"v" * self.rng.choice((10, 90)), ())] * count)
        batch = Batch(number, 0, number, count, data[CRC_POSITION:], (when,) * count, idempotent=False, attempts=1)
        history.sent[batch.tail] = batch
        frame = encode_produce_request(
            13,
            wire.next_correlation_id(),
            "sim",
            [(history.topic_id, [(history.index, data)])],
            acks=self.rng.choice((-1, 1)),
            timeout_ms=3000,
        )
        process = machine.process
        answer = await self.answered(wire, wire.send(ApiKey.PRODUCE, 13, b"".join(map(bytes, frame))))
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        self.world.expect(code, EXPECTED | {ErrorCode.NOT_ENOUGH_REPLICAS}, "Produce")
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            self.refused += 1
        if code is ErrorCode.NONE and self.owns() and machine.process is process:
            self.acknowledged += 1
            self.world.acked_means_kept.acked(history, batch, result.base_offset, machine)
            self.checker.acked(machine, sent_s)


class Drainer(Actor):
    """Whoever drains the broker."""

    def __init__(self, world: World, name: str, checker: DrainedMeansTiered) -> None:
        super().__init__(world, name)
        self.checker = checker
        self.drained: object = None
        """The process that said so."""
        self.waits = False
        """It asks for nothing now."""

    @property
    def has_drained(self) -> bool:
        """Whether the owner's newest process said that it has drained."""
        return self.drained is not None and self.drained is self.world.owner.process

    async def step(self, step: str) -> DrainResponse:
        """Raises: Unreachable, Violation."""
        answer = unpack(DrainResponse, await self.ask(ApiKey.FIRN_DRAIN, 0, pack(DrainRequest(step))))
        machine = self.machine
        assert machine is not None
        self.world.trace("drain", self.name, step, answer.state, answer.left_bytes, answer.error)
        self.checker.look(machine)
        if answer.state == DrainState.DRAINED:
            self.checker.told(machine)
            self.drained = machine.process
        if answer.state == DrainState.SERVING:
            self.checker.taken_back()
        elif step == "begin":
            self.checker.began(machine)
        return answer

    async def drain(self, seconds: float) -> bool:
        """Ask for it until it is done, or the time is up; whether the broker said that it has drained. Raises: Violation."""
        end_s = self.world.loop.time() + seconds
        while self.world.loop.time() < end_s:
            try:
                if not self.waits and (await self.step("begin")).state == DrainState.DRAINED:
                    return True
            except Unreachable:
                self.hang_up()
            await asyncio.sleep(self.rng.uniform(0.02, 0.4))
        return False


def listen(world: World, checker: DrainedMeansTiered) -> None:
    """Have the bucket looked at in the moment in which the broker says that it has drained."""
    trace = world.trace

    def heard(*parts: object) -> None:
        trace(*parts)
        if parts[0] == "line" and "the broker has drained" in str(parts[2]):
            with world.judging():
                checker.told(world.owner)

    world.trace = heard  # type: ignore[method-assign]


async def create(world: World, checker: DrainedMeansTiered) -> None:
    """A tiered topic, and one that is not."""
    actor, rng = Actor(world, "maker"), world.rng
    for name, partitions, tiered in (("t", 2, True), ("u", 1, False)):
        durability = rng.choice(("memory", "disk"))
        configs = {"firn.durability": durability, "remote.storage.enable": "true" if tiered else "false"}
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
            ],
            timeout_ms=3000,
        )
        result = (await actor.ask(ApiKey.CREATE_TOPICS, 7, request)).topics[0]
        assert result.error_code == 0
        world.know_topic(name, result.topic_id, partitions, disk=durability == "disk", expires=False)
        if tiered:
            checker.tiered.add(result.topic_id)


async def again(world: World) -> None:
    """Start a broker that has ended on the same disk."""
    machine = world.owner
    if machine.process is None or machine.process.dead:
        machine.start()
    await world.until(lambda: machine.up or machine.ended.is_set(), 60, "the start")


async def trouble(world: World, story: str, drainer: Drainer) -> None:
    """What goes wrong while the broker drains; all of it is over when this returns."""
    rng, machine = world.rng, world.owner
    await asyncio.sleep(rng.uniform(0.0, 0.4))
    faults = {
        "store away": [Fault(FaultKind.UNAVAILABLE)],
        "store flaky": [
            Fault(kind, probability=0.3, latency_ms=(1, 900))
            for kind in (FaultKind.UNAVAILABLE, FaultKind.LOST_ANSWER, FaultKind.LATENCY)
        ],
        "store slow": [Fault(FaultKind.LATENCY, latency_ms=(50, 700))],
    }
    for name, some in faults.items():
        if name in story:
            await world._for_a_while(some, rng.uniform(0.5, 6.0))
    if "killed at" in story:
        world._dies_at_upload = True
        await asyncio.sleep(rng.uniform(0.2, 3.0))
        world._dies_at_upload = False
        await asyncio.sleep(1.2)
    elif ("killed" in story or "power" in story) and machine.up:
        machine.crash("power" if "power" in story else "kill")
    if "stopped" in story:
        machine.stop()
        await world.until(lambda: machine.process is None or machine.process.dead, 60, "the stop")
    if "disk full" in story:
        machine.disk.capacity_bytes = machine.disk.used
        await asyncio.sleep(rng.uniform(0.2, 3.0))
        machine.disk.capacity_bytes = 1 << 40
    if not drainer.has_drained:
        drainer.waits = True
        await asyncio.sleep(1.0)  # what it has asked is answered, or never will be
        await again(world)
        if "stopped" in story and machine.up and not drainer.has_drained:
            state = (await Drainer(world, "looker", drainer.checker).step("status")).state
            if state != DrainState.SERVING:
                raise Violation(RULE, "a broker that was started again drains, though nobody asked it to")
        drainer.waits = False
    if "taken back" in story:
        try:
            taken = await drainer.step("take-back")
        except Unreachable:
            return
        if taken.state == DrainState.SERVING:
            await asyncio.sleep(rng.uniform(0.1, 2.0))
        elif not taken.error:
            raise Violation(RULE, "it is too late to take the drain back, and nobody says so")


async def linger(world: World, story: str) -> TransactionalProducer:
    """A transaction that stays open: in the tiered topic, or in the other one alone, with the tiered one added to it."""
    producer = TransactionalProducer(world, "open", "open", second_protocol=world.rng.random() < 0.5)
    if "late" in story:
        producer.second = False
    producer.timeout_ms = LONG_MS
    histories = list(world.histories.values())
    tiered = [one for one in histories if one.topic == "t"]
    other = next(one for one in histories if one.topic == "u")
    for _ in range(100):
        try:
            await producer.identify()
            if world.transactions.newest_of("open") is not None:
                producer.begin()
                if "late" in story:
                    await producer.produce(other)
                    if producer.is_in_transaction and await producer.add(tiered[0]):
                        return producer
                else:
                    await producer.produce(tiered[0])
                    if producer.is_in_transaction:
                        return producer
        except Unreachable:
            pass
        await asyncio.sleep(0.2)
    raise Violation("liveness", "no transaction could be begun")


async def a_drain(world: World) -> None:
    rng = world.rng
    story = STORIES[world.seed % len(STORIES)]
    checker = DrainedMeansTiered(world)
    listen(world, checker)
    await create(world, checker)
    writers = [Writer(world, f"w{number}", checker) for number in range(2)]
    writing = [world._go(one.run()) for one in writers]
    # A loss of power may leave a transaction in the data and take it from its coordinator (ADR 0010): no drain gets past that.
    for number in range(0 if "power" in story else rng.randint(0, 2)):
        name = f"x{number}"
        producer = TransactionalProducer(world, name, name, second_protocol=rng.random() < 0.5)
        writing.append(world._go(producer.run()))
    await asyncio.sleep(rng.uniform(0.5, 5.0))
    late = await linger(world, story) if "transaction" in story else None
    drainer = Drainer(world, "drainer", checker)
    if rng.random() < 0.3:
        for task in writing:
            task.cancel()  # idle tails are tiered too
    going_wrong = world._go(trouble(world, story, drainer))
    if "drained by two" in story:
        world._go(Drainer(world, "other", checker).drain(WHOLE_S))
    await asyncio.sleep(rng.uniform(0.0, 0.8))
    first = asyncio.ensure_future(drainer.drain(rng.uniform(3.0, 12.0)))
    await asyncio.wait([first, going_wrong], return_when=asyncio.ALL_COMPLETED)
    world.calm()
    if not drainer.has_drained:
        await again(world)
        if not await drainer.drain(WHOLE_S) and not _has_drained(world.owner):
            raise Violation(RULE, f"not whole in {WHOLE_S:g} s")
    await _end(world, drainer, late)
    for task in writing:
        task.cancel()
    checker.gone()
    checker.taken_back()
    new = Machine(world, "b")
    world.machines.append(new)
    await world.bring_up(new)
    checker.back(new)
    await world._read_all()
    await world.bucket_is_enough.prove()


def _has_drained(machine: Machine) -> bool:
    node = machine.node
    return node is not None and node.context.drain.state is DrainState.DRAINED


async def _end(world: World, drainer: Drainer, late: TransactionalProducer | None) -> None:
    """The broker said that it has drained. It ends: because that was acknowledged, by itself, or by a crash."""
    rng, machine = world.rng, world.owner
    ending = rng.choice(("acknowledged", "by itself", "kill", "power"))
    if rng.random() < 0.5 and machine.up:
        try:
            if (await drainer.step("take-back")).state != DrainState.DRAINED:
                raise Violation(RULE, "a broker that has drained went on")
        except Unreachable:
            pass
    if late is not None and late.is_in_transaction and machine.up:
        tiered = next(one for one in world.histories.values() if one.topic == "t")
        try:
            await late.produce(tiered)
            if late.is_in_transaction:
                await late.end(commit=True)
        except Unreachable:
            pass
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    if machine.up and ending in ("kill", "power"):
        machine.crash(ending)
    elif machine.up and ending == "acknowledged":
        with contextlib.suppress(Unreachable):
            await drainer.step("stop")
    await world.until(lambda: machine.process is None or machine.process.dead, 60, "the drained broker to end")


def played(seed: int) -> Outcome:
    return run_seed(seed, script=a_drain, topic_defaults=SETTINGS)


@pytest.mark.ci
@pytest.mark.parametrize("start", range(0, SEEDS, 7))
def test_after_a_drain_an_empty_directory_has_every_acknowledged_record(start: int) -> None:
    for seed in range(start, start + 7):
        outcome = played(seed)
        assert outcome.violation is None, (seed, outcome.violation, outcome.lines[-30:])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(20_000, 20_000 + SLOW_SEEDS, 56))
def test_after_hundreds_of_drains_an_empty_directory_has_every_acknowledged_record(start: int) -> None:
    for seed in range(start, start + 56):
        outcome = played(seed)
        assert outcome.violation is None, (seed, outcome.violation, outcome.lines[-30:])


# --- each rule taken back ---------------------------------------------------------------------------------------------


def takes_writes_while_it_drains(patch: pytest.MonkeyPatch) -> None:
    def only_for_room(context: Context) -> None:
        context.refusal = context.no_room

    patch.setattr(Context, "decide_refusal", only_for_room)


def lets_transactions_begin(patch: pytest.MonkeyPatch) -> None:
    add = TransactionCoordinator.add_partitions

    def generous(coordinator: TransactionCoordinator, *args: Any) -> Any:
        refusal, coordinator.refusal = coordinator.refusal, None
        try:
            return add(coordinator, *args)
        finally:
            coordinator.refusal = refusal

    patch.setattr(TransactionCoordinator, "add_partitions", generous)


def waits_for_open_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Drain, "_abort_transactions", lambda _drain: None)


def rolls_once(patch: pytest.MonkeyPatch) -> None:
    rolled: set[PartitionLog] = set()

    def once(_drain: Drain, log: PartitionLog, found: Any) -> Any:
        if log not in rolled:
            rolled.add(log)
            log.roll()
        return found

    patch.setattr(Drain, "_rolled", once)


def looks_at_rolled_segments_only(patch: pytest.MonkeyPatch) -> None:
    def is_left(drain: Drain, log: PartitionLog) -> bool:
        return drain._covered_end(log) < log.segments()[-1].base_offset

    patch.setattr(Drain, "_is_left", is_left)


def counts_what_is_being_uploaded(patch: pytest.MonkeyPatch) -> None:
    covered_end = Drain._covered_end

    def hasty(drain: Drain, log: PartitionLog) -> int:
        found = drain._remote_log_manager._partitions.get(TopicIdPartition(log.topic_id, log.partition))
        copying = None if found is None else found.progress.copying
        return max(covered_end(drain, log), 0 if copying is None else copying[1])

    patch.setattr(Drain, "_covered_end", hasty)


def does_not_seal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "seal", lambda _log, _error: None)
    patch.setattr(Drain, "sealed", property(lambda _drain: False))


def is_taken_back_after_it_said_so(patch: pytest.MonkeyPatch) -> None:
    take_back = Drain.take_back

    def late(drain: Drain) -> None:
        drain.state = DrainState.DRAINING if drain.state is DrainState.DRAINED else drain.state
        take_back(drain)

    patch.setattr(Drain, "take_back", late)


def is_remembered(patch: pytest.MonkeyPatch) -> None:
    begin, run = Drain.begin, Drain.run
    begun: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    def remembering(drain: Drain) -> None:
        begun.add(asyncio.get_running_loop())
        begin(drain)

    async def going_on(drain: Drain) -> None:
        if asyncio.get_running_loop() in begun:
            begin(drain)
        await run(drain)

    patch.setattr(Drain, "begin", remembering)
    patch.setattr(Drain, "run", going_on)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[int, ...]]] = {
    "1: writes are taken": (takes_writes_while_it_drains, (0, 1, 2)),
    "2: transactions begin": (lets_transactions_begin, (1, 2, 11)),
    "2: transactions stay open": (waits_for_open_transactions, (11, 25)),
    "3: rolled once": (rolls_once, (2, 11, 25)),
    "4: the active segment is not looked at": (looks_at_rolled_segments_only, (4, 5, 6)),
    "4: an upload under way counts": (counts_what_is_being_uploaded, (13, 16, 27)),
    "5: not sealed": (does_not_seal, (12, 26)),
    "7: taken back too late": (is_taken_back_after_it_said_so, (0, 2, 8)),
    "8: remembered": (is_remembered, (7, 21, 35)),
}
"""Each rule of the decision, taken back: how, and seeds of which one at least finds it. Rule 6 has its order from rules 4 and 5."""


@pytest.mark.ci
@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_that_is_taken_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seeds = PLANTED[name]
    plant(monkeypatch)
    assert_found(RULE, seeds, lambda seed: played(seed).violation)
