"""What a seed does to the cluster: which faults, when, and to whom. Everything is healed at ``Plan.heal_ms``."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.replication_model.world import Machine, World

FIRST_FAULT_MS: Final = 6_000.0
HEAL_MS: Final = 60_000.0
END_MS: Final = 100_000.0

KINDS: Final[dict[str, int]] = {
    "kill": 10,
    "power": 6,
    "power of all": 1,
    "disk lost": 3,
    "old image": 4,
    "pause": 10,
    "stop": 5,
    "cut a link": 8,
    "isolate": 6,
    "partition": 4,
    "bucket cut": 5,
    "bucket away": 2,
    "bucket undecided": 6,
    "losses": 5,
    "late and doubled": 8,
    "reassign": 5,
    "min in-sync": 2,
    "kill controller": 4,
    "pause controller": 6,
    "kill leader": 8,
    "pause leader": 6,
    "power of leader": 4,
    "cut leader from controller": 5,
}
"""Weights of the faults."""


@dataclass(slots=True)
class Plan:
    """A seed's cluster, and its weights."""

    nodes: int = 3
    partitions: int = 2
    factor: int = 3
    min_in_sync: int = 2
    disk: bool = False
    unclean: bool = False
    tier: bool = True
    pause_ms: tuple[float, float] = (2_000.0, 5_000.0)
    """Between two faults."""
    weights: dict[str, int] = field(default_factory=lambda: dict(KINDS))

    @classmethod
    def of(cls, rng: Random, **fixed: object) -> Plan:
        """Draw one. ``fixed`` fields are as given."""
        nodes = rng.choice((3, 3, 4, 5))
        plan = cls(
            nodes=nodes,
            partitions=rng.choice((1, 2, 2, 3)),
            factor=rng.choice((2, 3, 3, 3)),
            disk=rng.random() < 0.4,
            unclean=rng.random() < 0.12,
            tier=rng.random() < 0.7,
        )
        plan.min_in_sync = rng.choice((1, 2, 2)) if plan.factor > 2 else rng.choice((1, 1, 2))
        eager = rng.random()
        plan.pause_ms = (400.0, 2_000.0) if eager < 0.3 else (1_500.0, 5_000.0)
        # Some kinds more often than others, so that seeds differ.
        for kind in plan.weights:
            plan.weights[kind] *= rng.choice((0, 1, 1, 3))
        for name, value in fixed.items():
            setattr(plan, name, value)
        return plan


class FaultActor:
    """Does one fault after another, and heals everything in the end."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self.done: list[str] = []
        self._kinds = [kind for kind, weight in world.plan.weights.items() if weight]
        self._weights = [world.plan.weights[kind] for kind in self._kinds]
        world.timeline.after(FIRST_FAULT_MS, self._next)
        world.timeline.after(HEAL_MS, self._heal)

    def _next(self) -> None:
        world, rng = self._world, self._rng
        if world.now_ms >= HEAL_MS or not self._kinds:
            return
        world.timeline.after(rng.uniform(*world.plan.pause_ms), self._next)
        (kind,) = rng.choices(self._kinds, self._weights)
        self.do(kind)

    def do(self, kind: str) -> None:
        """Do one fault now."""
        world, rng = self._world, self._rng
        machine = rng.choice(world.machines_in_order)
        if kind.endswith("controller") and kind != "cut leader from controller":
            machine = world.machines.get(world.controller_id, machine)
        elif kind.endswith("leader") or kind.startswith("cut leader"):
            machine = world.machines.get(world.leader_of(rng.randrange(world.plan.partitions)), machine)
        world.trace(f"fault: {kind} ({machine.node_id})")
        self.done.append(kind)
        match kind:
            case "kill" | "kill controller" | "kill leader":
                machine.kill()
                self._restart(machine)
            case "power" | "power of leader":
                machine.lose_power()
                self._restart(machine)
            case "power of all":
                for each in world.machines_in_order:
                    each.lose_power()
                    self._restart(each)
            case "disk lost":
                machine.kill()
                machine.lose_disk()
                self._restart(machine)
            case "old image":
                self._old_image(machine)
            case "pause" | "pause controller" | "pause leader":
                machine.pause(rng.choice((300.0, 1_500.0, 2_500.0, 4_000.0, 9_000.0)) * rng.uniform(0.8, 1.2))
            case "stop":
                machine.stop_in_order(rng.uniform(300.0, 6_000.0))
            case "cut a link":
                other = rng.choice(world.machines_in_order)
                pairs = {(machine.node_id, other.node_id)}
                if rng.random() < 0.5:
                    pairs.add((other.node_id, machine.node_id))
                self._cut(pairs)
            case "cut leader from controller":
                pairs = {(machine.node_id, world.controller_id), (world.controller_id, machine.node_id)}
                if rng.random() < 0.4:
                    pairs.pop()
                self._cut(pairs)
            case "isolate":
                ids = [each.node_id for each in world.machines_in_order if each is not machine]
                both = rng.random() < 0.6
                self._cut(
                    {(machine.node_id, other) for other in ids}
                    | ({(o, machine.node_id) for o in ids} if both else set())
                )
            case "partition":
                ids = [each.node_id for each in world.machines_in_order]
                rng.shuffle(ids)
                at = rng.randrange(1, len(ids))
                self._cut({pair for a in ids[:at] for b in ids[at:] for pair in ((a, b), (b, a))})
            case "bucket cut":
                self._bucket_away({machine.node_id} if rng.random() < 0.5 else {world.controller_id})
            case "bucket away":
                self._bucket_away({each.node_id for each in world.machines_in_order})
            case "bucket undecided":
                world.bucket.undecided_share = rng.choice((0.2, 0.6))
                world.disturb(None, 20_000.0)
                world.timeline.after(rng.uniform(1_000.0, 8_000.0), self._decided)
            case "losses":
                world.network.lost_share = rng.choice((0.05, 0.3))
                world.disturb(None, 6_000.0)
                world.timeline.after(rng.uniform(1_000.0, 6_000.0), self._quiet)
            case "late and doubled":
                world.network.late_share = rng.choice((0.05, 0.25))
                world.disturb(None, 9_000.0)
                world.network.doubled_share = rng.choice((0.1, 0.4))
                world.timeline.after(rng.uniform(2_000.0, 9_000.0), self._quiet)
            case "reassign":
                world.ask_reassignment(rng)
            case "min in-sync":
                world.ask_min_in_sync(rng.choice((1, 2)))
            case _:
                raise AssertionError(kind)

    def _restart(self, machine: Machine) -> None:
        again_ms = self._rng.choice((150.0, 800.0, 3_000.0, 9_000.0)) * self._rng.uniform(0.8, 1.3)
        self._world.timeline.after(again_ms, machine.start)

    def _old_image(self, machine: Machine) -> None:
        """Take an image now, or put back the one that was taken."""
        if machine.disk_image is None:
            if self._rng.random() < 0.6:
                # A clean one: the machine was stopped in order when it was taken.
                machine.stop_in_order(self._rng.uniform(300.0, 5_000.0), take_image=True)
            else:
                machine.disk_image = machine.disk.copy()
            return
        machine.kill()
        machine.put_back_image()
        self._restart(machine)

    def _cut(self, pairs: set[tuple[int, int]]) -> None:
        world = self._world
        pairs = {(a, b) for a, b in pairs if a != b}
        world.network.cut |= pairs
        for node_id in {node_id for pair in pairs for node_id in pair}:
            world.disturb(node_id, 16_000.0)

        def over() -> None:
            world.network.cut -= pairs
            world.network.release()

        world.timeline.after(self._rng.choice((1_000.0, 4_000.0, 12_000.0)) * self._rng.uniform(0.7, 1.3), over)

    def _bucket_away(self, nodes: set[int]) -> None:
        world = self._world
        world.bucket.away_from |= nodes
        world.disturb(None, 16_000.0)

        def over() -> None:
            world.bucket.away_from -= nodes

        world.timeline.after(self._rng.choice((1_500.0, 4_000.0, 12_000.0)) * self._rng.uniform(0.7, 1.3), over)

    def _decided(self) -> None:
        self._world.bucket.undecided_share = 0.0

    def _quiet(self) -> None:
        network = self._world.network
        network.lost_share = network.late_share = network.doubled_share = 0.0

    def _heal(self) -> None:
        world = self._world
        world.trace("everything is healed")
        world.network.heal()
        world.bucket.away_from.clear()
        world.bucket.undecided_share = 0.0
        for machine in world.machines_in_order:
            machine.start()
