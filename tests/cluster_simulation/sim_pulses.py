"""The thread for pulses of a simulated broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.peers.control_link import KafkaControlLink
from app.metadata.peers.pulses import PulseSender, TurnBoard
from tests.sim.loop import Process

if TYPE_CHECKING:
    from tests.cluster_simulation.machine import ClusterMachine


class SimPulses:
    """The thread for pulses of a simulated broker: it goes on while the broker's process stands."""

    def __init__(self, machine: ClusterMachine, owner: Process, board: TurnBoard) -> None:
        world = machine.world
        self.error: BaseException | None = None
        self.process = Process(world.loop, f"{owner.name}.pulses")
        world.processes.append(self.process)
        link = KafkaControlLink(dial=world.network.dialer(machine.name, self.process))
        self.process.spawn(PulseSender(board, link, now_s=world.loop.time).run())

    async def stop(self) -> None:
        if not self.process.dead:
            self.process.kill()
