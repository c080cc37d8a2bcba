"""Brokers that try to become the controller, on virtual time: a plain loop, no asyncio.

Each broker has a ``Candidacy``. Around it is what its owner would do: heartbeats, questions, reads of the log, looks at signs of
life, and seals that take a while and lose if another one was first.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, assert_never

from app.metadata.controller.broker_sessions import TICK_INTERVAL_S
from app.metadata.controller.candidacy import AskOthers, Candidacy, LookAtSignOfLife, ReadLog, Seal, Wait
from app.metadata.peers.pace import Pace

STEPS_PER_S: Final = 20
BEAT_STEPS: Final = STEPS_PER_S // 2
POLL_STEPS: Final = STEPS_PER_S
"""How often a broker without a controller reads the log."""
CONFIRM_STEPS: Final = STEPS_PER_S * 3 // 2
SIGN_STEPS: Final = STEPS_PER_S * 10
REFUSAL_STEPS: Final = 3
UNCONFIRMED_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Sealed:
    """A seal that won."""

    broker_id: int
    controller_epoch: int
    time_s: float
    after_last_sign_s: float
    """Since the last sign of the former controller that any broker had."""


@dataclass(slots=True)
class _Broker:
    broker_id: int
    candidacy: Candidacy
    beats_at: int
    """Its heartbeats are sent at these steps of each interval."""
    signs_at: int
    sign_delay_steps: int
    sign_arrives_at: int = -1
    alive: bool = True
    refuses: bool = False
    bucket: bool = True
    is_controller: bool = False
    confirmed_s: float = 0.0
    seals_at: int | None = None
    """The step at which its seal reaches the bucket, while it seals."""
    sealing_epoch: int = 0
    pace: Pace = field(default_factory=Pace)
    period_steps: int = 1
    """It gets a processor once in so many steps."""
    phase: int = 0
    lived_s: float = 0.0
    sent_to: int = -1
    sent_s: float = 0.0
    """Its last heartbeat. A starved controller reads it when it gets a processor."""
    last_sign_s: float = 0.0


class Candidates:
    """A cluster of brokers 1 to ``brokers``; 1 is the controller. The same seed gives the same run."""

    def __init__(self, brokers: int, seed: int, *, jitter_max_s: float = 0.1, seal_steps: int = 2) -> None:
        rng = random.Random(seed)
        self._seal_steps = seal_steps
        self._step = 0
        self._cuts: set[frozenset[int]] = set()
        self._log: list[int] = [1]
        """The broker of each controller epoch's seal."""
        self._brokers: dict[int, _Broker] = {}
        self.seals: list[Sealed] = []
        self.lost_races = 0
        self.questions: Counter[int] = Counter()
        self.looks: Counter[int] = Counter()
        self.signs_s: dict[int, float] = {}
        for broker_id in range(1, brokers + 1):
            jitter_s = rng.uniform(-jitter_max_s, jitter_max_s)
            candidacy = Candidacy(broker_id, 0.0, controller_id=1, controller_epoch=0, jitter_s=jitter_s)
            candidacy.follow(range(1, brokers + 1))
            self._brokers[broker_id] = _Broker(
                broker_id,
                candidacy,
                rng.randrange(BEAT_STEPS),
                rng.randrange(SIGN_STEPS),
                rng.randrange(STEPS_PER_S * 3 // 2),
            )
            self.signs_s[broker_id] = 0.0
        self._brokers[1].is_controller = True

    # --- what a test does ---------------------------------------------------------------------------------------------

    def others(self, broker_id: int) -> list[int]:
        return [each for each in self._brokers if each != broker_id]

    def vanish(self, broker_id: int) -> None:
        """The machine is gone: connections to it are not even refused."""
        self._brokers[broker_id].alive = False

    def kill(self, broker_id: int) -> None:
        """The process is gone, and the machine refuses connections to it."""
        self.vanish(broker_id)
        self._brokers[broker_id].refuses = True

    def starve(self, broker_id: int, period_s: float, phase_s: float) -> None:
        """It gets a processor for a moment, once in so many seconds."""
        broker = self._brokers[broker_id]
        broker.period_steps, broker.phase = int(period_s * STEPS_PER_S), int(phase_s * STEPS_PER_S)
        broker.lived_s = self._now_s

    def cut(self, one: int, other: int) -> None:
        self._cuts.add(frozenset((one, other)))

    def cut_from_bucket(self, broker_id: int) -> None:
        self._brokers[broker_id].bucket = False

    def heal(self) -> None:
        self._cuts.clear()
        for broker in self._brokers.values():
            broker.bucket = True

    def all_follow(self, broker_id: int) -> bool:
        """Whether every living broker takes this one for the controller, and hears it."""
        return all(
            each.is_controller if each.broker_id == broker_id else self._follows(each, broker_id)
            for each in self._brokers.values()
            if each.alive
        )

    def _follows(self, broker: _Broker, broker_id: int) -> bool:
        candidacy = broker.candidacy
        return not broker.is_controller and candidacy.controller_id == broker_id and candidacy.has_heard(self._now_s)

    def run(self, until_s: float) -> None:
        while self._now_s < until_s:
            self._step += 1
            for broker in self._brokers.values():
                if broker.alive and self._step % broker.period_steps == broker.phase % broker.period_steps:
                    self._live(broker)

    # --- what brokers do ----------------------------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        return self._step / STEPS_PER_S

    def _reaches(self, one: int, other: int) -> bool:
        return self._brokers[other].alive and frozenset((one, other)) not in self._cuts

    def _live(self, broker: _Broker) -> None:
        if broker.bucket and self._step % SIGN_STEPS == broker.signs_at:
            # Every other PUT takes a while, so its predecessor gets older than the interval.
            broker.sign_arrives_at = self._step + broker.sign_delay_steps * (self._step // SIGN_STEPS % 2)
        if self._step == broker.sign_arrives_at:
            self.signs_s[broker.broker_id] = self._now_s
        starves = broker.period_steps > 1
        if starves:
            broker.pace.came(broker.lived_s + TICK_INTERVAL_S, self._now_s)
        broker.lived_s = self._now_s
        broker.candidacy.starved = broker.pace.is_starved(self._now_s)
        if broker.is_controller:
            self._rule(broker)
            return
        if broker.seals_at is not None:
            if self._step >= broker.seals_at:
                self._finish_seal(broker)
            return
        if starves or self._step % BEAT_STEPS == broker.beats_at:
            self._beat(broker)
        if not broker.candidacy.has_heard(self._now_s) and self._step % POLL_STEPS == broker.beats_at:
            self._read_log(broker)
        self._meet_refusals(broker)
        self._decide(broker)

    def _rule(self, broker: _Broker) -> None:
        """C6: confirm the log; C8: go on as a broker if it has a newer seal."""
        if broker.bucket and (broker.period_steps > 1 or self._step % CONFIRM_STEPS == 0):
            broker.confirmed_s = self._now_s
            self._read_log(broker)
            broker.is_controller = self._log[-1] == broker.broker_id

    def _confirmed(self, broker: _Broker) -> bool:
        return broker.is_controller and self._now_s - broker.confirmed_s <= UNCONFIRMED_S

    def _beat(self, broker: _Broker) -> None:
        controller_id = broker.candidacy.controller_id
        if controller_id != broker.broker_id and self._reaches(broker.broker_id, controller_id):
            controller = self._brokers[controller_id]
            if controller.period_steps > 1 and broker.sent_to == controller_id and controller.lived_s <= broker.sent_s:
                return  # it has not read the last one yet
            confirmed = self._confirmed(controller)
            if controller.period_steps == 1 or broker.sent_to == controller_id:
                broker.candidacy.heard(controller_id, self._now_s, confirmed=confirmed)
                if confirmed:
                    broker.last_sign_s = self._now_s
            broker.sent_to, broker.sent_s = controller_id, self._now_s

    def _meet_refusals(self, broker: _Broker) -> None:
        controller_id = broker.candidacy.controller_id
        cut = frozenset((broker.broker_id, controller_id)) in self._cuts
        if self._brokers[controller_id].refuses and not cut and self._step % REFUSAL_STEPS == 0:
            broker.candidacy.controller_refused(self._now_s)

    def _read_log(self, broker: _Broker) -> None:
        known = broker.candidacy.controller_epoch
        for epoch in range(known + 1, len(self._log)):
            broker.candidacy.seal_seen(epoch, self._log[epoch], self._now_s)

    def _decide(self, broker: _Broker) -> None:
        candidacy, now_s = broker.candidacy, self._now_s
        while True:
            match action := candidacy.decide(now_s):
                case Wait():
                    assert action.until_s > now_s
                    return
                case AskOthers():
                    self.questions[broker.broker_id] += 1
                    for other in action.brokers:
                        self._ask(broker, other, action.round_number)
                case ReadLog():
                    if broker.bucket:
                        self._read_log(broker)
                        candidacy.log_read(now_s)
                    else:
                        candidacy.log_unread(now_s)
                case LookAtSignOfLife():
                    self.looks[broker.broker_id] += 1
                    if broker.bucket:
                        candidacy.sign_of_life(now_s - self.signs_s[action.controller_id], now_s)
                    else:
                        candidacy.sign_of_life_unknown(now_s)
                case Seal():
                    broker.seals_at = self._step + self._seal_steps
                    broker.sealing_epoch = candidacy.controller_epoch + 1
                    return
                case _:
                    assert_never(action)

    def _ask(self, broker: _Broker, other_id: int, round_number: int) -> None:
        if self._reaches(broker.broker_id, other_id):
            other = self._brokers[other_id]
            heard = self._confirmed(other) if other.is_controller else other.candidacy.has_heard(self._now_s)
            broker.candidacy.answered(
                round_number, other_id, heard=heard, controller_epoch=other.candidacy.controller_epoch
            )

    def _finish_seal(self, broker: _Broker) -> None:
        broker.seals_at = None
        if broker.bucket and broker.sealing_epoch == len(self._log):
            signs_s = max(each.last_sign_s for each in self._brokers.values())
            self._log.append(broker.broker_id)
            self.seals.append(Sealed(broker.broker_id, broker.sealing_epoch, self._now_s, self._now_s - signs_s))
            broker.candidacy.seal_seen(broker.sealing_epoch, broker.broker_id, self._now_s)
            broker.is_controller = True
            broker.confirmed_s = self._now_s
            return
        self.lost_races += 1
        if broker.bucket:
            self._read_log(broker)
        broker.candidacy.lost_race(self._now_s)
