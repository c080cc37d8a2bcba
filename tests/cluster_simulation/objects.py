"""Topics of object durability in a simulated cluster: the shape of such runs, and what the bucket alone must be enough for.

A run has such topics only if its shape says so, or its seed is one of ``SEEDS_FROM`` and more. All that is drawn for them comes
from a random stream of their own: the other seeds' runs stay as they are.

What these topics promise (ADR 0037), as harm that can be seen:

- An acknowledged record, and one that readers could see, could be read from the bucket alone at that moment (INV-1). So the loss of
  all disks excuses nothing.
- No object of a write-ahead log is deleted while a partition's record names it, and it has records that are not tiered (INV-5).
- A number of a write-ahead log never has two contents with records (INV-2), and an offset of a leader epoch has one batch (INV-13).
- The high watermark does not go back with the next leader (INV-3).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from app.broker.partitions import sweeping
from app.configs import BrokerConfig, InternalDurability
from app.core.errors import CorruptionError, ErrorCode
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.image.wal_ranges import WalId
from app.metadata.log import layout
from app.records.batch import iter_headers
from app.wal import writer
from app.wal.format import decode_whole
from app.wire.apikeys import ApiKey
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.cluster_simulation.faults import FAULTS
from tests.cluster_simulation.machine import ClusterMachine
from tests.cluster_simulation.object_faults import OBJECT_FAULTS
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation
from tests.simulation.checkers import CRC_POSITION

if TYPE_CHECKING:
    from tests.cluster_simulation.truth import ReplicatedHistory
    from tests.cluster_simulation.world import Shape, World

SEEDS_FROM: Final = 50_000
"""Seeds from here on have such topics."""
MACHINES_MAX: Final = 6
SWEEP_PAUSE_S: Final = 3.0
STATE_EVERY: Final = 4
BACK_S: Final = 60.0
"""After all brokers were lost with their disks, until every one serves again."""
LED_S: Final = 20.0
"""After that, until every partition has a leader."""


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """What a run has of object durability."""

    topics: int = 1
    """Topics of it that are there from the beginning, beside the usual one."""
    alone: bool = False
    """The usual topic has it, too."""
    internal: bool = False
    """The topics of the coordinators have it."""
    altered: bool = False
    """Durability is altered while the run lasts."""
    linger_ms: int = 100
    object_bytes: int = 8 << 20
    retention_bytes: int = 1 << 30
    all_lost: bool = True
    """At the end all disks are lost at once."""
    level: int = OBJECT_LEVEL
    """Of the cluster that is made."""

    @classmethod
    def of(cls, seed: int) -> ObjectShape:
        rng = random.Random(f"cluster objects {seed}")
        return cls(
            topics=rng.randint(1, 2),
            alone=rng.random() < 0.5,
            internal=rng.random() < 0.6,
            altered=rng.random() < 0.4,
            linger_ms=rng.choice((10, 50, 250)),
            object_bytes=rng.choice((500, 2000, 8 << 20)),
            retention_bytes=rng.choice((4000, 20_000, 1 << 30)),
            all_lost=rng.random() < 0.7,
        )


@contextlib.contextmanager
def hurried(seed: int) -> Iterator[None]:
    """Within it, what else takes minutes comes to pass in a run."""
    pause_s, every = sweeping.ENDED_LOGS_PAUSE_S, writer.STATE_EVERY
    sweeping.ENDED_LOGS_PAUSE_S = SWEEP_PAUSE_S  # type: ignore[misc]
    if seed % 2:
        writer.STATE_EVERY = STATE_EVERY  # type: ignore[misc]
    try:
        yield
    finally:
        sweeping.ENDED_LOGS_PAUSE_S, writer.STATE_EVERY = pause_s, every  # type: ignore[misc]


def shaped(seed: int, shape: Shape, faults: Sequence[str] | None) -> Shape:
    """The shape of a run with such topics."""
    rng = random.Random(f"cluster object faults {seed}")
    objects = shape.objects or ObjectShape.of(seed)
    if faults is None:
        usual = sorted(FAULTS)
        own = sorted(OBJECT_FAULTS.keys() - (set() if objects.altered else {"alter durability"}))
        chosen = [*rng.sample(usual, rng.randint(0, 4)), *rng.sample(own, rng.randint(1, 4))]
        if objects.altered:
            chosen.append("alter durability")
        shape = replace(shape, faults=tuple(chosen))
    return replace(shape, objects=objects, tiered=True, from_0=False, unclean=False)


class _Log:
    """One write-ahead log, as it is in the bucket."""

    __slots__ = ("ever", "prefix", "seals", "sections")

    def __init__(self) -> None:
        self.ever: dict[int, bytes] = {}
        """What was under a number, with records, at any time."""
        self.seals: set[int] = set()
        self.sections: dict[int, list[tuple[tuple[UUID, int], int, int]]] = {}
        """Of each object: partition, leader epoch and end offset."""
        self.prefix = 0
        """The first number that never had records: objects below count, as far as anybody can know."""


@dataclass(slots=True)
class _Told:
    """What the bucket has of a partition beside its segments."""

    ends: dict[int, int] = field(default_factory=dict)
    """The end of the last section that counts, by leader epoch."""


class ObjectLogs:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._logs: dict[WalId, _Log] = {}
        self._told: dict[tuple[UUID, int], _Told] = {}
        self.objects = 0

    # --- the bucket -----------------------------------------------------------------------------------------------------

    def stored(self, key: str, data: bytes) -> None:
        """Raises: Violation."""
        named = layout.parse_wal_key(key)
        if named is None:
            return
        wal, number = WalId(int(named.broker_id), named.broker_epoch), named.number
        log = self._logs.setdefault(wal, _Log())
        try:
            footer = decode_whole(data, key, wal, number)
        except CorruptionError as error:
            raise Violation("INV-2", f"{key} is stored, and nobody can read it: {error}") from error
        if footer.is_seal:
            log.seals.add(number)
            return
        known = log.ever.setdefault(number, footer.nonce)
        if known != footer.nonce:
            raise Violation("INV-2", f"{key} has records again, and they are others")
        if number in log.sections:
            return  # a late repetition of what was trimmed
        self.objects += 1
        sections = log.sections[number] = []
        for section in footer.sections:
            place = (section.partition.topic_id, int(section.partition.partition))
            sections.append((place, int(section.leader_epoch), int(section.end_offset)))
            history = self._world.histories.get(place)  # type: ignore[arg-type]
            if history is None:
                continue
            records = memoryview(data)[section.position : section.position + section.size_bytes]
            for position, header in iter_headers(records):
                tail = bytes(records[position + CRC_POSITION : position + header.size_bytes])
                where = (int(header.leader_epoch), int(header.base_offset))
                if history.offsets.setdefault(where, tail) != tail:
                    raise Violation(
                        "INV-13", f"{history.name}: offset {where[1]} of epoch {where[0]} is another batch in {key}"
                    )
        while log.prefix in log.sections:
            for place, epoch, end in log.sections[log.prefix]:
                ends = self._told.setdefault(place, _Told()).ends  # type: ignore[arg-type]
                ends[epoch] = max(end, ends.get(epoch, 0))
            log.prefix += 1

    def removed(self, key: str) -> None:
        """Raises: Violation if somebody needs it."""
        named = layout.parse_wal_key(key)
        if named is None:
            return
        wal, number = WalId(int(named.broker_id), named.broker_epoch), named.number
        log = self._logs[wal]
        for place, epoch, end in log.sections.get(number, ()):
            history = self._world.histories.get(place)  # type: ignore[arg-type]
            if history is None or history.deleting:
                continue
            image = self._world.partition_image(history)
            if image is None:
                continue
            needed = any(
                each.wal == wal and each.leader_epoch == epoch and each.covers(number) for each in image.wal_ranges
            )
            tiered_end = int(self._world.one_writer.manifest(*place).tiered_end)  # type: ignore[arg-type]
            if needed and number < log.prefix and end > tiered_end:
                raise Violation(
                    "INV-5",
                    f"{key} goes; it has {history.name} up to {end}, which is tiered up to {tiered_end}, and its record is"
                    f" {image.wal_ranges}",
                )

    def end_of(self, history: ReplicatedHistory, epoch: int = 1 << 60) -> int:
        """Up to where the bucket alone has the partition, as leaders of an epoch and before have put it there."""
        found = self._told.get((history.topic_id, history.index))
        ends = [end for of, end in found.ends.items() if of <= epoch] if found is not None else []
        return max([int(self._world.one_writer.manifest(history.topic_id, history.index).tiered_end), *ends])

    def shown(self, history: ReplicatedHistory, epoch: int, end: int, who: str) -> None:
        """Somebody was told that everything below ``end`` stays. Raises: Violation."""
        if not history.by_log or history.deleting:
            return
        there = self.end_of(history, epoch)
        if there < end:
            raise Violation(
                "INV-1",
                f"{history.name}: {who} says that it has records up to {end}; the bucket has them up to {there}",
            )


class Objects:
    """What a run has beside its other parts, if it has topics of object durability."""

    def __init__(self, world: World, shape: ObjectShape) -> None:
        self.world, self.shape = world, shape
        self.rng = random.Random(f"cluster objects run {world.seed}")
        self.logs = ObjectLogs(world)
        self.to_zero = False
        """All brokers are on their way down, and are started together."""

    def broker_config(self, config: BrokerConfig) -> BrokerConfig:
        return replace(
            config,
            wal_bytes=self.shape.object_bytes,
            wal_buffer_bytes=max(60_000, 2 * self.shape.object_bytes),
            wal_retention_bytes=self.shape.retention_bytes,
            firn_internal_durability=InternalDurability.OBJECT if self.shape.internal else InternalDurability.MEMORY,
            leader_imbalance_check_interval_seconds=3,
        )

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What a new topic has beside the rest."""
        if self.is_object(name):
            return {
                "firn.durability": "object",
                "remote.storage.enable": "true",
                "firn.wal.linger.ms": str(self.shape.linger_ms),
            }
        return {}

    def is_object(self, name: str) -> bool:
        number = int(name[1:])
        return self.shape.alone or number % 2 == 0

    # --- administration -------------------------------------------------------------------------------------------------

    async def alter(self, topic: str, durability: str) -> None:
        world = self.world
        config = AlterableConfig(name="firn.durability", value=durability)
        resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
        try:
            answer = await world.administrator.ask_any(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource])
            )
        except Unreachable:
            return
        world.trace("alter", topic, durability, ErrorCode(answer.responses[0].error_code).name)

    def join(self) -> ClusterMachine | None:
        """A new machine comes, and is started by whoever keeps brokers running."""
        world = self.world
        if len(world.machines) >= MACHINES_MAX:
            return None
        machine = ClusterMachine(world, len(world.machines) + 1)
        world.machines.append(machine)
        world.trace("joins", machine.name)
        return machine

    async def stop_all(self, *, lost: float, within_s: float = 12.0) -> None:
        """All brokers stop in order, some disks are lost, and all are started again."""
        world = self.world
        if self.to_zero:
            return
        self.to_zero = True
        try:
            world.disturb(world.machines, within_s + 10.0)
            for machine in world.machines:
                machine.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while any(one.alive for one in world.machines):
                        await asyncio.sleep(0.1)
            for machine in world.machines:
                world.crash(machine, "kill")
                if self.rng.random() < lost and not machine.alive:
                    world.lose_disk(machine)
        finally:
            self.to_zero = False

    async def lose_all(self) -> None:
        """Everything is healed: all machines die at once, and their disks with them. Raises: Violation."""
        world = self.world
        world.trace("all is lost")
        world.disturb(world.machines, BACK_S)
        for machine in world.machines:
            world.lose_disk(machine)
            world._restart_s.pop(machine.name, None)
        await world.until(lambda: all(one.up for one in world.machines), BACK_S, "all brokers to be back without disks")
        await world.until(world._all_unfenced, BACK_S, "all brokers without disks to be unfenced")
        await world.until(self._all_led, LED_S, "every partition to have a leader after all disks were lost")

    def _all_led(self) -> bool:
        images = [
            self.world.partition_image(one) for one in self.world.all_histories() if one.by_log and not one.deleting
        ]
        return all(image is None or image.leader >= 0 for image in images)
