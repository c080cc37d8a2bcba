"""When a broker tries to become the controller (ADR 0023: C3, C4, C6, C7, C10).

Pure: events go in, with the time on the broker's own monotonic clock. ``decide`` returns the next action. The owner carries it out,
reports the outcome, and calls ``decide`` again. It calls only while its broker is not the controller itself.

One attempt is a *round*, and a sign of the controller at any point of it ends it:

1. The controller is unheard for 2 s, or its address refuses connections. The broker waits for its turn, by its rank.
2. It asks the other unfenced brokers (``AskOthers``). If most have not heard the controller either, it seals (C3).
3. Without answers from most it reads the log, looks at the controller's sign of life in the store, and seals if that is stale (C4).
4. Otherwise it asks again after a pause, which grows from 0.25 s to 2 s.

Who counts is the controller that the newest known seal names. A newer seal is a sign of its writer (C7).

Nothing here makes anything safe: seals decide. A wrong result costs a needless change of controller, or a late one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final, TypeAlias

from app.metadata.controller.broker_sessions import REFUSALS, REFUSALS_WITHIN_S
from app.metadata.peers.liveness import BEAT_INTERVAL_MS
from app.metadata.peers.pace import STARVED_PATIENCE_S

UNHEARD_S: Final = 2.0
"""Without a sign of the controller for so long, it is unheard (C3)."""

RANK_DELAY_S: Final = 0.25
RANK_MAX: Final = 4
"""Later ranks take the turn of this one, so that the last of a large cluster does not wait for long."""

ASK_S: Final = 1.0
"""A broker that is asked and has not answered within it counts as not answering."""

PAUSE_S_MIN: Final = 0.25
PAUSE_S_MAX: Final = 2.0

LOST_RACE_S: Final = 2.0
"""Time without a sign of the winner after which a loser may seal again (C7)."""

SIGN_STALE_S: Final = BEAT_INTERVAL_MS / 1000 + 2.0
"""A sign of life of this age is stale. It is due every 10 s (C4). The other 2 s are for its PUT: an age of little more than 10 s
is seen of every living controller just before its next sign arrives."""

NOBODY: Final = -1
"""The controller of a log without a seal."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until then, or until something is reported."""

    until_s: float


@dataclass(frozen=True, slots=True)
class AskOthers:
    """Ask these brokers whether they have heard the controller. Report each with ``answered``, or not at all.

    Returned once for each round; ``decide`` returns ``Wait`` until the answers suffice."""

    round_number: int
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the cluster log up to its end. Report newer seals with ``seal_seen``, then ``log_read``."""


@dataclass(frozen=True, slots=True)
class LookAtSignOfLife:
    """Ask the store for the age of the controller's sign of life. Report ``sign_of_life``, or ``sign_of_life_unknown``."""

    controller_id: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal the log. Report ``seal_seen`` with this broker, or ``lost_race``."""


Action: TypeAlias = Wait | AskOthers | ReadLog | LookAtSignOfLife | Seal


class _Answers(Enum):
    """The conclusion from the answers of a round."""

    OPEN = auto()
    UNHEARD_BY_MOST = auto()
    HEARD = auto()
    """Most have answered, or will, but most have not gone without the controller."""
    TOO_FEW = auto()


@dataclass(slots=True)
class _Round:
    """One attempt."""

    number: int
    voters: frozenset[int]
    ends_s: float
    has_heard: dict[int, bool]
    """Whether a voter has heard the controller: this broker has not, and the others as they answered."""
    must_read: bool = False
    """Whether an answer named a controller epoch that is not known here."""
    has_read: bool = False
    sign_is_stale: bool = False

    def answers(self, now_s: float) -> _Answers:
        """The conclusion so far. It is ``OPEN`` while a further answer can change it."""
        voters, most = len(self.voters), len(self.voters) // 2 + 1
        answered, heard = len(self.has_heard), sum(self.has_heard.values())
        if answered - heard >= most:
            return _Answers.UNHEARD_BY_MOST
        if voters - heard < most:
            return _Answers.HEARD
        if now_s < self.ends_s:
            return _Answers.OPEN
        return _Answers.HEARD if answered >= most else _Answers.TOO_FEW


class Candidacy:
    """Of one broker, while it is not the controller.

    To be made when the broker has read the log up to its end. ``controller_id`` and ``controller_epoch`` are of the newest seal,
    which is no sign of life, because it may be old. ``jitter_s`` is added to the delay by rank, so that brokers of the same turn do
    not move together."""

    def __init__(
        self,
        broker_id: int,
        now_s: float,
        *,
        controller_id: int = NOBODY,
        controller_epoch: int = -1,
        jitter_s: float = 0.0,
        sign_stale_s: float = SIGN_STALE_S,
    ) -> None:
        self._broker_id = broker_id
        self._controller_id = controller_id
        self._controller_epoch = controller_epoch
        self._jitter_s = jitter_s
        self._sign_stale_s = sign_stale_s
        self._unfenced: frozenset[int] = frozenset()
        self._heard_s: float | None = None
        self._unheard_since_s = now_s if self._controller_is_gone else now_s + UNHEARD_S
        self._pulsed_until_s = -inf
        """Until when pulses keep the controller from being unheard (C10)."""
        self._refusals_s: list[float] = []
        self._refuses = False
        """Whether the controller's address refuses connections."""
        self.starved = False
        """Whether this broker's own loop is starved: then only a longer silence of the controller counts (L5)."""
        self._not_before_s = now_s
        self._pause_s = PAUSE_S_MIN
        self._sign_due_s = now_s
        """Not before it is another look at the sign of life worth its requests."""
        self._round: _Round | None = None
        self._rounds = 0

    @property
    def controller_id(self) -> int:
        """The broker that the newest known seal names."""
        return self._controller_id

    @property
    def controller_epoch(self) -> int:
        return self._controller_epoch

    def has_heard(self, now_s: float) -> bool:
        """Whether this broker has heard the controller within the last 2 s, or a pulse counts for it (C10).

        This is its answer to others that ask."""
        return self._heard_s is not None and now_s < self._unheard_from_s

    # --- events -------------------------------------------------------------------------------------------------------

    def follow(self, unfenced: Collection[int]) -> None:
        """Take over the unfenced brokers of the newest image, this one among them or not."""
        unfenced = frozenset(unfenced)
        if unfenced != self._unfenced:
            self._unfenced = unfenced
            self._round = None

    def seal_seen(self, controller_epoch: int, broker_id: int, now_s: float) -> None:
        """A seal was read in the log. One that is newer than the known one is a sign of its writer (C7)."""
        if controller_epoch <= self._controller_epoch:
            return
        self._controller_epoch = controller_epoch
        self._controller_id = broker_id
        self._seen_alive(now_s)

    def heard(self, broker_id: int, now_s: float, *, confirmed: bool = True) -> None:
        """A broker answered a heartbeat, or handed on an entry. ``confirmed``: it did not say that it is not the controller, or
        cannot confirm the log (C6)."""
        if confirmed and broker_id == self._controller_id:
            self._seen_alive(now_s)

    def pulsed(
        self, broker_id: int, controller_epoch: int, now_s: float, *, turned_ago_s: float, confirmed_ago_s: float
    ) -> None:
        """A pulse of a broker whose loop is late, and that was the controller of this epoch when it turned last (C10).

        It counts if that is the newest known controller, was heard by other means, and its address does not refuse; until 9 s after
        the loop turned, and 11 s after the log was confirmed and the controller was heard.
        """
        if (broker_id, controller_epoch) != (self._controller_id, self._controller_epoch):
            return
        if self._heard_s is None or self._refuses:
            return
        turned_s, confirmed_s = now_s - max(turned_ago_s, 0.0), now_s - max(confirmed_ago_s, 0.0)
        # Both were due within C6's 2 s before the last turn.
        longest_s = min(turned_s, min(confirmed_s, self._heard_s) + UNHEARD_S) + STARVED_PATIENCE_S
        self._pulsed_until_s = max(self._pulsed_until_s, min(now_s + UNHEARD_S, longest_s))
        if now_s < self._pulsed_until_s:
            self._round = None

    def controller_refused(self, now_s: float) -> None:
        """The controller's address refused a connection. Three times within 0.5 s make the controller unheard at once."""
        self._refusals_s = [*self._refusals_s[1 - REFUSALS :], now_s]
        if len(self._refusals_s) == REFUSALS and now_s - self._refusals_s[0] <= REFUSALS_WITHIN_S:
            self._unheard_since_s = min(self._unheard_since_s, now_s)
            self._refuses = True

    def answered(self, round_number: int, broker_id: int, *, heard: bool, controller_epoch: int) -> None:
        """A broker's answer to ``AskOthers``. An answer to an earlier round counts for nothing."""
        attempt = self._round
        if attempt is None or attempt.number != round_number or broker_id not in attempt.voters:
            return
        if controller_epoch > self._controller_epoch:
            attempt.must_read = True
        else:
            # A controller of an older epoch was deposed: to hear that one is not to hear the controller.
            attempt.has_heard[broker_id] = heard and controller_epoch == self._controller_epoch

    def log_read(self, now_s: float) -> None:
        """The log was read up to its end, and its seals were reported."""
        attempt = self._round
        if attempt is None:
            return
        attempt.has_read = True
        if attempt.must_read:
            # Another broker knows of a seal that is missing in the log as this broker sees it.
            self._pause(now_s)

    def log_unread(self, now_s: float) -> None:
        """The log could not be read up to its end."""
        self._pause(now_s)

    def sign_of_life(self, age_s: float | None, now_s: float) -> None:
        """Age of the controller's sign of life. None: it has none, or one that is too old to be known."""
        attempt = self._round
        if attempt is None:
            return
        if age_s is None or age_s >= self._sign_stale_s:
            attempt.sign_is_stale = True
        else:
            self._sign_due_s = now_s + self._sign_stale_s - age_s
            self._pause(now_s)

    def sign_of_life_unknown(self, now_s: float) -> None:
        """The store could not tell the age."""
        self._pause(now_s)

    def lost_race(self, now_s: float) -> None:
        """This broker sealed in vain: another one was first, or the store did not answer (C7)."""
        self._not_before_s = max(self._not_before_s, now_s + LOST_RACE_S)
        self._round = None

    # --- conclusions --------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Action:
        """The next action. It is returned again until its outcome is reported, except for ``AskOthers``."""
        turn_s = self._turn_s()
        if now_s < turn_s:
            return Wait(turn_s)
        attempt = self._round
        if attempt is None:
            self._rounds += 1
            voters = self._unfenced | {self._broker_id}
            attempt = self._round = _Round(self._rounds, voters, now_s + ASK_S, {self._broker_id: False})
            if len(voters) > 1:
                return AskOthers(attempt.number, tuple(sorted(voters - {self._broker_id})))
        if attempt.must_read:
            return ReadLog()
        match attempt.answers(now_s):
            case _Answers.OPEN:
                return Wait(attempt.ends_s)
            case _Answers.UNHEARD_BY_MOST:
                return Seal()
            case _Answers.HEARD:
                return self._pause(now_s)
            case _Answers.TOO_FEW:
                return self._without_most(attempt, now_s)

    def _without_most(self, attempt: _Round, now_s: float) -> Action:
        """C4. The log comes first: the sign of life of a controller that was deposed meanwhile says nothing."""
        if not attempt.has_read:
            return ReadLog()
        if self._controller_is_gone or attempt.sign_is_stale:
            return Seal()
        if now_s < self._sign_due_s:
            return self._pause(now_s)
        return LookAtSignOfLife(self._controller_id)

    @property
    def _controller_is_gone(self) -> bool:
        """Whether there is certainly no controller: the log has no seal, or only this broker's own from before its start."""
        return self._controller_id in (NOBODY, self._broker_id)

    @property
    def _unheard_from_s(self) -> float:
        """From when on the controller counts as unheard. An address that refuses needs no patience."""
        if self._refuses or self._controller_is_gone:
            return self._unheard_since_s
        patience_s = STARVED_PATIENCE_S - UNHEARD_S if self.starved else 0.0
        return max(self._unheard_since_s + patience_s, self._pulsed_until_s)

    def _turn_s(self) -> float:
        """When this broker may begin, or go on with, an attempt."""
        others = self._unfenced - {self._broker_id, self._controller_id}
        # A fenced broker comes after all others.
        earlier = sum(each < self._broker_id for each in others) if self._broker_id in self._unfenced else len(others)
        delay_s = max(min(earlier, RANK_MAX) * RANK_DELAY_S + self._jitter_s, 0.0)
        return max(self._unheard_from_s + delay_s, self._not_before_s)

    def _seen_alive(self, now_s: float) -> None:
        self._heard_s = now_s
        self._unheard_since_s = now_s if self._controller_is_gone else now_s + UNHEARD_S
        self._sign_due_s = now_s
        self._refusals_s.clear()
        self._refuses = False
        self._pause_s = PAUSE_S_MIN
        self._round = None

    def _pause(self, now_s: float) -> Wait:
        """Give the round up, and begin another one later."""
        self._round = None
        self._not_before_s = max(self._not_before_s, now_s + self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        return Wait(self._not_before_s)
