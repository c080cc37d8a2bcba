"""The raise of the feature level in a simulated cluster: programs that understand different levels, and what is checked of them.

Every start of a machine's broker has a *program*: the highest level that it understands. All of them are this program, which is
told otherwise. A program of one level less than the others is what is there before an upgrade. INV-14:

- The level never falls, and rises only to what the program of every registered broker understands.
- Who does not understand the level does not serve, is not registered, and ends with a sentence that says so.
- While the level is 0, the cluster log has nothing that programs of level 0 do not know.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from app.core.errors import ErrorCode
from app.core.turns import Stepwise
from app.metadata.changes import features
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX, BrokerRecord, Kind, PartitionRecord
from app.metadata.log.log_format import KeyValue, decode_key
from app.metadata.membership import member, membership
from app.metadata.view.registration import StartRefused
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.sim.machine import Unreachable
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.cluster_simulation.machine import ClusterMachine
    from tests.cluster_simulation.world import World

NEXT: Final = LEVEL_MAX + 1
"""The level to which a running cluster is upgraded; nothing is written differently at it."""
RAISED_S: Final = 30.0
"""After all programs understand it and everything has healed, until the level is raised."""
REFUSED_S: Final = 60.0
"""Until a program that does not understand the level has ended."""

PROGRAM: ContextVar[int] = ContextVar("PROGRAM", default=LEVEL_MAX)
"""Set in the context of each process."""
_LENGTHS: Final = {
    Kind.BROKER: len(BrokerRecord.__struct_fields__),
    Kind.PARTITION: len(PartitionRecord.__struct_fields__),
}


class _Understood(int):
    """Compares as what the running process understands."""

    def __lt__(self, other: int) -> bool:  # of ``level > LEVEL_MAX``
        return PROGRAM.get() < other

    def __format__(self, spec: str) -> str:
        return format(PROGRAM.get(), spec)


@contextlib.contextmanager
def programs() -> Iterator[None]:
    """Within it, every process has its own program."""
    asked, update, known = member.RegistrationAsked, features.update_features, membership.LEVEL_MAX

    def asked_by_program(*args: Any, **named: Any) -> Any:
        return asked(*args, **named)._replace(level_max=PROGRAM.get())

    def update_by_program(*args: Any, **named: Any) -> Any:
        return update.steps(*args, **{"level_max": PROGRAM.get()} | named)

    member.RegistrationAsked = asked_by_program  # type: ignore[assignment, misc]
    features.update_features = Stepwise(update_by_program)
    if known == LEVEL_MAX:  # else somebody has planted a fault there
        membership.LEVEL_MAX = _Understood(known)  # type: ignore[misc]
    try:
        yield
    finally:
        member.RegistrationAsked, features.update_features = asked, update  # type: ignore[misc]
        membership.LEVEL_MAX = known  # type: ignore[misc]


class Levels:
    """INV-14, and whoever upgrades programs and raises the level: see the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._programs: dict[UUID, int] = {}
        """By start of a broker."""
        self.refused = 0
        """Programs that ended because they do not understand the level."""

    # --- checks -------------------------------------------------------------------------------------------------------

    def entry(self, records: list[KeyValue] | tuple[KeyValue, ...], before: ClusterImage, image: ClusterImage) -> None:
        """An entry of the cluster log is durable. Raises: Violation."""
        for machine in self._world.machines:
            node = machine.node
            if node is not None and node.claimed:
                self._programs.setdefault(node.membership.view.identity.incarnation, machine.runs)
        if image.level < before.level:
            raise Violation("INV-14", f"the level falls from {before.level} to {image.level}")
        if image.level > before.level:
            self._world.trace("level", image.level)
        changed = image.brokers is not before.brokers or image.level != before.level
        for broker in image.brokers.values() if changed and image.level else ():
            program = self._programs.get(broker.incarnation, LEVEL_MAX)
            if program < image.level:
                raise Violation(
                    "INV-14",
                    f"broker {broker.broker_id} is registered at level {image.level}; its program understands {program}",
                )
        if image.level == 0:
            for key, value in records:
                self._of_level_0(key, value)

    @staticmethod
    def _of_level_0(key: bytes, value: bytes | None) -> None:
        kind = Kind(decode_key(key)[0])
        fields = [] if value is None else msgspec.msgpack.decode(value)
        if kind in (Kind.FEATURE, Kind.COUNTERS) or (kind is Kind.CLUSTER and fields and fields[0] != 1):
            raise Violation("INV-14", f"a record {kind.name} of level 1 is written at level 0: {fields}")
        if len(fields) > _LENGTHS.get(kind, len(fields)):
            raise Violation("INV-14", f"a record {kind.name} has fields of level 1 at level 0: {fields}")

    def serves(self, machine: ClusterMachine) -> None:
        """A broker begins to serve. Raises: Violation."""
        level = self._world.newest.level
        if machine.runs < level:
            raise Violation("INV-14", f"{machine.name} serves at level {level}, and understands {machine.runs}")

    def ended(self, machine: ClusterMachine, error: Exception) -> None:
        """A broker has ended by itself. Raises: Violation."""
        if isinstance(error, StartRefused) and "understands" in str(error):
            self.refused += 1
            if machine.runs >= self._world.newest.level:
                raise Violation("INV-14", f"{machine.name} ends though it understands {machine.runs}: {error}")

    # --- a cluster that begins with one broker --------------------------------------------------------------------------

    async def rise_from_0(self) -> None:
        """As the manual says: raise the level of the one broker, restart it, and let the others join. Raises: Violation."""
        world, rng = self._world, self._world.new_rng()
        first = world.machines[0]
        for _ in range(2):
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            # Its program is of level 0 still, or has been upgraded.
            if await self.raise_to(LEVEL_MAX, on=first) and first.runs < LEVEL_MAX:
                raise Violation("INV-14", f"level {LEVEL_MAX} is reached by a program that does not understand it")
            if rng.random() < 0.5:
                world.crash(first, "kill")
        first.program = LEVEL_MAX
        first.stop()
        killer = world.go(self._kill_now_and_then(first, rng.choice((0, 0, 1, 2))))
        await world.until(lambda: first.alive and first.runs == LEVEL_MAX and first.up, 60, "the upgraded broker")
        end_s = world.loop.time() + RAISED_S
        while world.newest.level < LEVEL_MAX:
            if world.loop.time() > end_s:
                raise Violation("alive", "the one broker is upgraded, and the level is not raised")
            await self.raise_to(LEVEL_MAX, on=first)
            await asyncio.sleep(0.2)
        world.disturb(world.machines, 30.0)
        first.stop()
        for machine in world.machines:
            machine.program = LEVEL_MAX
        await killer
        await world.until(world._all_unfenced, 60, "all brokers to join the cluster of one")

    async def _kill_now_and_then(self, machine: ClusterMachine, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(self._world.rng.uniform(0.1, 1.0))
            self._world.crash(machine, "kill")

    async def spread(self) -> None:
        """Give the partitions of before as many replicas as the others have. Raises: Violation."""
        world, shape = self._world, self._world.shape
        factor = min(shape.factor, shape.brokers)
        for history in list(world.histories.values()):
            others = [one.node_id for one in world.machines if one.node_id not in history.replicas]
            wanted = [*history.replicas, *others][:factor]
            topic = ReassignableTopic(
                name=history.topic, partitions=[ReassignablePartition(partition_index=history.index, replicas=wanted)]
            )
            request = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[topic])
            end_s = world.loop.time() + 60
            while True:
                with contextlib.suppress(Unreachable):
                    await world.administrator.ask_any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
                await asyncio.sleep(0.5)
                image = world.partition_image(history)
                if image is not None and set(wanted) == set(image.isr) and not image.adding and not image.removing:
                    history.replicas = tuple(wanted)
                    break
                if world.loop.time() > end_s:
                    raise Violation("alive", f"{history.name} does not get more replicas")

    # --- a rolling upgrade ----------------------------------------------------------------------------------------------

    async def upgrade(self) -> None:
        """Upgrade programs while everything else goes on, go back now and then, and try to raise the level."""
        world, rng = self._world, self._world.new_rng()
        while True:
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            if rng.random() < 0.4:
                await self.raise_to(NEXT)
                continue
            machine = rng.choice(world.machines)
            if world.newest.level < NEXT and rng.random() < 0.2:
                machine.program = LEVEL_MAX
            elif rng.random() < 0.8:
                machine.program = NEXT
            world.disturb([machine], 12.0)
            if machine.runs != machine.program:
                machine.stop()

    async def raise_to(self, level: int, *, on: ClusterMachine | None = None) -> bool:
        """Ask for it, any broker if none is given; whether the answer is that it is so. Raises: Violation."""
        world = self._world
        update = FeatureUpdateKey(LEVEL_FEATURE, level, 1)
        node_id = on.node_id if on is not None else world.administrator.any_broker()
        try:
            answer = await world.administrator.ask(
                node_id, ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(3000, [update])
            )
        except Unreachable:
            return False
        code = ErrorCode(answer.error_code)
        world.trace("raise", level, code.name, answer.error_message)
        world.expect(code, {ErrorCode.INVALID_UPDATE_VERSION}, "UpdateFeatures")
        if code is ErrorCode.NONE and world.newest.level < level:
            raise Violation("INV-14", f"level {level} is said to be reached, and is {world.newest.level}")
        if code is ErrorCode.INVALID_UPDATE_VERSION and not answer.error_message:
            raise Violation("INV-14", f"level {level} is refused without a sentence")
        return code is ErrorCode.NONE

    async def finish(self) -> None:
        """Everything has healed: upgrade the rest, raise the level, and start a program of one level less. Raises: Violation."""
        world = self._world
        for machine in world.machines:
            machine.program = NEXT
            if machine.runs != NEXT:
                world.disturb([machine], 15.0)
                machine.stop()
                await world.until(lambda one=machine: one.up and one.runs == NEXT, 60, "an upgraded broker to serve")  # type: ignore[misc]
        await world.until(world._all_unfenced, 60, "all upgraded brokers to be unfenced")
        end_s = world.loop.time() + RAISED_S
        while not await self.raise_to(NEXT):
            if world.loop.time() > end_s:
                raise Violation("alive", f"all programs understand level {NEXT}, and it is not raised")
            await asyncio.sleep(0.3)
        older = world.rng.choice(world.machines)
        before = self.refused
        older.program = LEVEL_MAX
        world.disturb([older], 60.0)
        older.stop()
        await world.until(lambda: self.refused > before, REFUSED_S, "an older program to end with a sentence", "INV-14")
        older.program = NEXT
        await world.until(world._all_unfenced, 60, "the newer program to be back")
