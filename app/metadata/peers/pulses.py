"""Pulses: how a broker whose loop is late says that it lives (ADR 0023: L6, C10).

The loop writes a ``Turn`` on a ``TurnBoard`` twice a second. A ``PulseSender``, which runs beside the loop, reads it and tells
other brokers how old it is. It runs in a thread with a loop of its own (``app/broker/peers/pulse_thread.py``), so it goes on
while the broker's loop does not. It reads the board and nothing else of the broker.

A pulse gives this broker no right and is no sign of life for itself. Its receivers take it into ``BrokerSessions.pulsed`` and
``Candidacy.pulsed``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from app.core.errors import FirnError
from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import PulseRequest, PulseResponse

TURN_S: Final = 0.5
"""Between two turns of the loop that are written down."""
LATE_S: Final = 0.7
"""A loop that turned so long ago has missed its last turn: the sender looks between two of them."""
LOOK_S: Final = 0.5
SHORTEST_WAIT_S: Final = 0.01
KEEP_S: Final = 5.0
"""Between two pulses of a loop that is not late."""
AGAIN_S: Final = 0.5
AGAIN_S_MAX: Final = 4.0
"""After a pulse that failed; twice as long after each further one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The note that the loop writes when it turns."""

    turned_s: float
    cluster_id: str
    broker_id: int
    broker_epoch: int
    starved: bool
    """By L5."""
    controller: BrokerImage | None
    """Another broker; None if this one is the controller, or none is known."""
    others: tuple[BrokerImage, ...]
    """All other unfenced brokers, and the controller."""
    controller_epoch: int = -1
    """If this broker is the controller."""
    confirmed_ago_s: float = -1.0
    """How long before ``turned_s`` this controller confirmed the log."""


@dataclass(slots=True)
class TurnBoard:
    """One writer, the loop, and one reader beside it. The turn is replaced whole."""

    turn: Turn | None = None


class PulseLink(Protocol):
    """Reaches other brokers. Belongs to the sender's loop."""

    async def pulse(self, to: BrokerImage, asked: Callable[[], PulseRequest]) -> PulseResponse:
        """Send a pulse, which is made when there is a connection. Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        ...

    async def close(self) -> None: ...


class Pulses(Protocol):
    """A sender that runs."""

    error: BaseException | None
    """Why it has ended by itself; None while it runs."""

    def stop(self) -> Awaitable[None]:
        """End it. Returns after a second at the latest, ended or not."""
        ...


StartPulses = Callable[[TurnBoard], Pulses]


@dataclass(slots=True)
class _Peer:
    """The state of sending to one broker."""

    under_way: bool = False
    takes: bool = True
    """Whether it took the last pulse."""
    sent_s: float = -inf
    not_before_s: float = -inf
    again_s: float = AGAIN_S


class PulseSender:
    """Sends pulses by the turn on the board. ``now_s`` is the clock of the board."""

    def __init__(self, board: TurnBoard, link: PulseLink, *, now_s: Callable[[], float]) -> None:
        self._board = board
        self._link = link
        self._now_s = now_s
        self._peers: dict[int, _Peer] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for to in self.due():
                        group.create_task(self._send(to))
                    await asyncio.sleep(self._until_look_s())
        finally:
            await self._link.close()

    def _until_look_s(self) -> float:
        """Looks are in the middle between turns, which are at multiples of ``TURN_S`` on the clock of the loop."""
        wait_s = LOOK_S - (self._now_s() - LOOK_S / 2) % LOOK_S
        return wait_s if wait_s > SHORTEST_WAIT_S else wait_s + LOOK_S

    def due(self) -> list[BrokerImage]:
        """The brokers to send a pulse now. Each is counted as under way until its ``_send`` has ended."""
        turn, now_s = self._board.turn, self._now_s()
        if turn is None:
            return []
        late = is_late(turn, now_s)
        found = []
        for to in self._whom(turn, late=late):
            peer = self._peers.setdefault(to.broker_id, _Peer())
            if peer.under_way or now_s < peer.not_before_s or (not late and now_s < peer.sent_s + KEEP_S):
                continue
            peer.under_way = True
            peer.sent_s = now_s
            found.append(to)
        return found

    def _whom(self, turn: Turn, *, late: bool) -> tuple[BrokerImage, ...]:
        controller = turn.controller
        if controller is None:
            return turn.others
        known = self._peers.get(controller.broker_id)
        if late and known is not None and not known.takes:
            return turn.others  # one of them may be the controller by now, and a late loop has not heard of it
        return (controller,)

    async def _send(self, to: BrokerImage) -> None:
        peer = self._peers[to.broker_id]
        try:
            answer = await self._link.pulse(to, self.request)
        except FirnError:
            # It is away, or it is asked for more than it can; the next pulse says the same.
            peer.takes = False
            peer.not_before_s = self._now_s() + peer.again_s
            peer.again_s = min(2 * peer.again_s, AGAIN_S_MAX)
        else:
            peer.takes = not answer.error
            peer.again_s = AGAIN_S
        finally:
            peer.under_way = False

    def request(self) -> PulseRequest:
        """The pulse to send now, by the newest turn of the loop."""
        turn, now_s = self._board.turn, self._now_s()
        assert turn is not None
        age_s = now_s - turn.turned_s
        is_controller = turn.controller_epoch >= 0
        return PulseRequest(
            turn.cluster_id,
            turn.broker_id,
            turn.broker_epoch,
            is_late(turn, now_s),
            int(age_s * 1000),
            turn.controller_epoch,
            int((age_s + turn.confirmed_ago_s) * 1000) if is_controller else -1,
        )


def is_late(turn: Turn, now_s: float) -> bool:
    """Whether the loop that wrote this turn missed the next one, or is starved."""
    return turn.starved or now_s - turn.turned_s >= LATE_S
