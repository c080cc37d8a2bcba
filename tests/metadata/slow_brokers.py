"""Brokers whose loops turn late while their threads go on, on virtual time (ADR 0023: L6, C10).

Each broker has its ``TurnBoard``, ``PulseSender`` and ``Candidacy``; the controller, broker 1, has ``BrokerSessions`` as well.
Around them is what their owners do: they write turns down, send and answer heartbeats, and confirm the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from app.core.errors import BrokerUnavailable, ErrorCode
from app.core.units import BrokerId, TimestampMs
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.controller.candidacy import AskOthers, Candidacy, ReadLog, Seal
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import Endpoint
from app.metadata.peers.control import PulseRequest, PulseResponse
from app.metadata.peers.pace import Pace
from app.metadata.peers.pulses import PulseSender, Turn, TurnBoard
from tests.support.virtual_loop import VirtualLoop, run_virtual

STEP_S: Final = 0.05
STEPS_A_TURN: Final = 10
CONFIRM_STEPS: Final = 30
UNCONFIRMED_S: Final = 2.0
CONTROLLER: Final = 1
EPOCH: Final = 20
CONTROLLER_EPOCH: Final = 7


@dataclass(slots=True)
class _Broker:
    image: BrokerImage
    candidacy: Candidacy
    board: TurnBoard = field(default_factory=TurnBoard)
    pace: Pace = field(default_factory=Pace)
    turned_s: float = 0.0
    stands_until_s: float = 0.0
    """Its loop does not turn until then."""
    stopped_until_s: float = 0.0
    """Nothing of its process runs until then."""
    beats: bool = True
    confirmed_s: float = 0.0


def images_of(count: int) -> dict[int, BrokerImage]:
    """Brokers 1 to ``count``, registered and unfenced."""
    return {
        one: BrokerImage(
            BrokerId(one),
            UUID(int=one),
            UUID(int=100 + one),
            EPOCH,
            (Endpoint("PLAINTEXT", f"h{one}", 9092, "PLAINTEXT"),),
            None,
            TimestampMs(0),
            changed_at=EPOCH,
        )
        for one in range(1, count + 1)
    }


class SlowBrokers:
    """Brokers 1 to ``count``, of which 1 is the controller."""

    def __init__(self, loop: VirtualLoop, count: int = 4) -> None:
        self._loop = loop
        images = images_of(count)
        self.brokers = {
            one: _Broker(image, Candidacy(one, 0.0, controller_id=CONTROLLER, controller_epoch=CONTROLLER_EPOCH))
            for one, image in images.items()
        }
        self.sessions = BrokerSessions(3.0, 0.0)
        self.sessions.follow(images, 0.0)
        for broker in self.brokers.values():
            broker.candidacy.follow(images)
        self.fenced: dict[int, float] = {}
        self.unfenced: dict[int, float] = {}
        self.seals: list[tuple[int, float]] = []
        self.refuses_requests = False
        """Whether no request reaches the controller, although what it sends arrives."""
        self.bucket = True
        """Whether the controller reaches the bucket."""
        self.pulses: list[PulseRequest] = []

    async def run(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            async with asyncio.TaskGroup() as group:
                for one, broker in self.brokers.items():
                    sender = PulseSender(broker.board, _Link(self, one), now_s=self._loop.time)
                    group.create_task(sender.run())
                    group.create_task(self._live(one))

    def stand(self, one: int, seconds: float) -> None:
        """The loop of a broker does not turn for so long; its thread goes on."""
        self.brokers[one].stands_until_s = self._loop.time() + seconds

    def stop(self, one: int, seconds: float) -> None:
        """Neither its loop nor its thread goes on, as after SIGSTOP."""
        self.stand(one, seconds)
        self.brokers[one].stopped_until_s = self._loop.time() + seconds

    def turns(self, one: int) -> bool:
        return self._loop.time() >= self.brokers[one].stands_until_s

    # --- one broker -------------------------------------------------------------------------------------------------------

    async def _live(self, one: int) -> None:
        step = 0
        while True:
            await asyncio.sleep(STEP_S)
            step += 1
            if self.turns(one):
                self._turn(one, step)

    def _turn(self, one: int, step: int) -> None:
        broker, now_s = self.brokers[one], self._loop.time()
        late = now_s - broker.turned_s > 2 * STEP_S
        if late:
            broker.pace.came(broker.turned_s + STEP_S, now_s)
        broker.turned_s = now_s
        starved = broker.pace.is_starved(now_s)
        if one == CONTROLLER and self.bucket and (late or step % CONFIRM_STEPS == 0):
            broker.confirmed_s = now_s
        if late or step % STEPS_A_TURN == 0:
            broker.board.turn = self._written(one, starved=starved)
        if one == CONTROLLER:
            self._rule(now_s, starved=starved)
            return
        if broker.beats and (late or (step + one) % STEPS_A_TURN == 0):
            self._beat(one)
        broker.candidacy.starved = starved
        self._stand_for_office(one)

    def _written(self, one: int, *, starved: bool) -> Turn:
        controller = self.brokers[CONTROLLER].image
        others = tuple(each.image for other, each in self.brokers.items() if other != one)
        is_controller = one == CONTROLLER
        return Turn(
            self._loop.time(),
            "cluster",
            one,
            EPOCH,
            starved,
            None if is_controller else controller,
            others,
            CONTROLLER_EPOCH if is_controller else -1,
            self._loop.time() - self.brokers[one].confirmed_s if is_controller else -1.0,
        )

    def _beat(self, one: int) -> None:
        if self.refuses_requests or not self.turns(CONTROLLER):
            return
        now_s = self._loop.time()
        self.sessions.heard(one, EPOCH, now_s, applied=EPOCH + 50)
        confirmed = now_s - self.brokers[CONTROLLER].confirmed_s <= UNCONFIRMED_S
        self.brokers[one].candidacy.heard(CONTROLLER, now_s, confirmed=confirmed)

    def _rule(self, now_s: float, *, starved: bool) -> None:
        sessions = self.sessions
        sessions.starved = starved
        sessions.heard(CONTROLLER, EPOCH, now_s, applied=EPOCH + 50)
        changed = sessions.expired(now_s)
        back = sessions.to_unfence()
        for one in changed:
            self.fenced[one] = now_s
        for one in back:
            self.unfenced[one] = now_s
        for one in (*changed, *back):
            self.brokers[one].image = replace(self.brokers[one].image, fenced=one in changed, changed_at=EPOCH + 10)
        sessions.follow({one: each.image for one, each in self.brokers.items()}, now_s)

    def _stand_for_office(self, one: int) -> None:
        candidacy, now_s = self.brokers[one].candidacy, self._loop.time()
        while True:
            match candidacy.decide(now_s):
                case AskOthers(number, brokers):
                    for other in brokers:
                        self._ask(one, other, number)
                case ReadLog():
                    candidacy.log_read(now_s)
                case Seal():
                    self.seals.append((one, now_s))
                    candidacy.lost_race(now_s)
                    return
                case _:
                    return

    def _ask(self, one: int, other: int, number: int) -> None:
        if not self.turns(other) or (other == CONTROLLER and self.refuses_requests):
            return
        heard = other == CONTROLLER or self.brokers[other].candidacy.has_heard(self._loop.time())
        self.brokers[one].candidacy.answered(number, other, heard=heard, controller_epoch=CONTROLLER_EPOCH)

    # --- pulses -----------------------------------------------------------------------------------------------------------

    def take(self, to: int, pulse: PulseRequest) -> PulseResponse:
        now_s = self._loop.time()
        self.pulses.append(pulse)
        if to == CONTROLLER:
            if not pulse.late:
                return PulseResponse()
            turned_ago_s = pulse.turned_ms / 1000
            return PulseResponse(
                int(self.sessions.pulsed(pulse.broker_id, pulse.broker_epoch, now_s, turned_ago_s=turned_ago_s))
            )
        if pulse.late and pulse.controller_epoch >= 0:
            self.brokers[to].candidacy.pulsed(
                pulse.broker_id,
                pulse.controller_epoch,
                now_s,
                turned_ago_s=pulse.turned_ms / 1000,
                confirmed_ago_s=pulse.confirmed_ms / 1000,
            )
        return PulseResponse(int(ErrorCode.NOT_CONTROLLER))


class _Link:
    """From the thread of one broker to the loops of the others."""

    def __init__(self, world: SlowBrokers, one: int) -> None:
        self._world, self._one = world, one

    async def pulse(self, to: BrokerImage, asked: Callable[[], PulseRequest]) -> PulseResponse:
        world, loop = self._world, asyncio.get_running_loop()
        while loop.time() < world.brokers[self._one].stopped_until_s:
            await asyncio.sleep(STEP_S)
        pulse = asked()
        try:
            async with asyncio.timeout(2.0):
                while not world.turns(to.broker_id):
                    await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise BrokerUnavailable("no answer") from None
        return world.take(to.broker_id, pulse)

    async def close(self) -> None: ...


def met(happens: Callable[[SlowBrokers], None], *, after_s: float = 20.0, count: int = 4) -> SlowBrokers:
    """What has become of brokers to whom something happens at 10 s, ``after_s`` later."""

    async def main(loop: VirtualLoop) -> SlowBrokers:
        world = SlowBrokers(loop, count)
        loop.call_later(10.0, happens, world)
        try:
            await world.run(10.0 + after_s)
        except TimeoutError:
            return world
        raise AssertionError("the brokers have ended by themselves")

    return run_virtual(main)
