"""When a broker of a cluster is isolated, and when it is not any more (ADR 0040: IS1 to IS8).

Pure: signs of life go in, with the time on the broker's own monotonic clock. ``decide`` returns whether the broker is isolated,
the brokers to ask, and the latest time to decide again. The owner asks, reports each response, and shuts or opens the gate.

There are three signs of life:

1. A controller that has itself confirmed the log answered (``controller_heard``).
2. The end of the cluster log was read from the bucket (``log_read``).
3. Most of the unfenced hosts answered (``answered``). Brokers with one advertised host count once, and the broker's own host
   counts as one that answers. For the controller a heartbeat is an answer.

A broker without any of them for two session time-outs is isolated. The isolation ends with a sign that names a log number, once the
image has reached the highest number that was heard since it began.

Nothing here makes anything safe (INV-2). A wrong result costs clients a look for another broker, or a wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from app.metadata.controller.broker_sessions import SESSION_TIMEOUT_S

SILENT_TIMEOUTS: Final = 2
SILENT_S_MIN: Final = 2 * SESSION_TIMEOUT_S
"""Session time-outs, and time at least, without a sign before a broker is isolated. The least time is for the questions, whose pace
does not depend on the session time-out."""

ASK_INTERVAL_S: Final = 1.0
"""Between two questions to each other broker while signs 1 and 2 are silent. Each response is waited for as long."""

LATE_S: Final = 0.6
"""A decision that comes so much later than it was due shows a pause of the process (IS5)."""

GRACE_S: Final = 1.5
"""Time after a pause in which nothing is decided: waiting responses are read, and every broker is asked once more (IS5)."""

NO_NUMBER: Final = -1
"""A sign of life that names no log number."""


@dataclass(frozen=True, slots=True)
class IsolationState:
    """The result of ``Isolation.decide``."""

    isolated: bool
    ask: tuple[int, ...]
    """Brokers to ask now for the number of their next entry. Report each with ``answered``, or not at all."""
    until_s: float
    """Call ``decide`` again at this time at the latest."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """The last time that something was heard."""

    at_s: float = -inf
    numbered_s: float = -inf
    """The last time that it came with a log number."""


class Isolation:
    """Of one broker of a cluster. ``now_s`` never goes back. A broker that starts counts as one that has just had a sign."""

    def __init__(self, broker_id: int, now_s: float, *, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        """``session_timeout_s``: ``broker.session.timeout.ms`` in seconds."""
        assert session_timeout_s > 0
        self._broker_id = broker_id
        self.silent_s = max(SILENT_TIMEOUTS * session_timeout_s, SILENT_S_MIN)
        """Time without a sign after which the broker is isolated."""
        self._hosts: Mapping[int, str] = {}
        self._controller = _Sign(now_s)
        self._log = _Sign(now_s)
        self._answers: dict[int, _Sign] = {}
        self._isolated_since_s: float | None = None
        self._reach = NO_NUMBER
        """The highest number that was heard since the isolation began: of the next entry, not of the last one."""
        self._applied = 0
        self._due_s = now_s
        self._not_before_s = -inf
        self._ask_from_s = -inf

    @property
    def isolated(self) -> bool:
        return self._isolated_since_s is not None

    # --- events -------------------------------------------------------------------------------------------------------

    def follow(self, hosts: Mapping[int, str]) -> None:
        """Take over the advertised hosts of the unfenced brokers of the newest image, and of this broker."""
        assert self._broker_id in hosts
        self._hosts = dict(hosts)
        self._answers = {one: sign for one, sign in self._answers.items() if one in hosts}

    def applied(self, next_sequence: int) -> None:
        """The image has all entries below ``next_sequence``."""
        self._applied = max(self._applied, next_sequence)

    def controller_heard(self, now_s: float, next_sequence: int = NO_NUMBER) -> None:
        """A controller answered that has confirmed the log (sign 1). ``next_sequence``: the number of its next entry, if it named
        one."""
        self._controller = self._heard(self._controller, now_s, next_sequence)

    def log_read(self, at_s: float, next_sequence: int) -> None:
        """The bucket had no entry ``next_sequence`` at ``at_s`` (sign 2). A sign that is older than the newest one changes
        nothing."""
        if at_s > self._log.at_s:
            self._log = self._heard(self._log, at_s, next_sequence)

    def answered(self, broker_id: int, now_s: float, next_sequence: int = NO_NUMBER) -> None:
        """Another broker answered, or sent a heartbeat (sign 3). ``next_sequence``: of the next entry that it lacks, if it
        was asked for it just now. A heartbeat may have waited in the network, so it names none (IS6)."""
        if broker_id in self._hosts and broker_id != self._broker_id:
            self._answers[broker_id] = self._heard(self._answers.get(broker_id, _Sign()), now_s, next_sequence)

    def _heard(self, sign: _Sign, now_s: float, next_sequence: int) -> _Sign:
        if next_sequence == NO_NUMBER:
            return _Sign(max(sign.at_s, now_s), sign.numbered_s)
        if self._isolated_since_s is not None:
            self._reach = max(self._reach, next_sequence)
        return _Sign(max(sign.at_s, now_s), max(sign.numbered_s, now_s))

    # --- conclusions --------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> IsolationState:
        """Whether the broker is isolated, and the brokers to ask."""
        if now_s - self._due_s >= LATE_S:
            self._not_before_s = now_s + GRACE_S
            self._ask_from_s = now_s
        last_s = self.last_sign_s(now_s)
        if self._isolated_since_s is None:
            if now_s >= max(last_s + self.silent_s, self._not_before_s):
                self._isolated_since_s = now_s
                self._reach = NO_NUMBER
        elif self._may_end(now_s):
            self._isolated_since_s = None
        ask = self._whom_to_ask(now_s)
        if ask:
            self._ask_from_s = now_s + ASK_INTERVAL_S
        self._due_s = self._next_s(now_s)
        assert self._due_s > now_s
        return IsolationState(self.isolated, ask, self._due_s)

    def elsewhere(self, now_s: float) -> tuple[int, ...]:
        """The other brokers that may be on the other side of the cut: those that have not answered lately. All others, if all have
        (IS9). A broker that answers is cut off together with this one."""
        others = sorted(one for one in self._hosts if one != self._broker_id)
        lately_s = now_s - self.silent_s / 2
        return tuple(one for one in others if self._answers.get(one, _Sign()).at_s < lately_s) or tuple(others)

    def last_sign_s(self, now_s: float) -> float:
        """When the broker had a sign of life last."""
        return max(
            self._controller.at_s, self._log.at_s, self._most_s(now_s, {k: v.at_s for k, v in self._answers.items()})
        )

    def _most_s(self, now_s: float, answers: Mapping[int, float]) -> float:
        """The last time since which most of the hosts have answered. ``answers``: by broker."""
        mine = self._hosts.get(self._broker_id)
        by_host: dict[str, float] = {host: -inf for host in self._hosts.values() if host != mine}
        for broker_id, at_s in answers.items():
            host = self._hosts[broker_id]
            if host != mine:
                by_host[host] = max(by_host[host], at_s)
        most = (len(by_host) + 1) // 2 + 1
        others = most - 1
        if others <= 0:
            return now_s
        return sorted(by_host.values(), reverse=True)[others - 1]

    def _may_end(self, now_s: float) -> bool:
        since_s = self._isolated_since_s
        assert since_s is not None
        numbered = {one: sign.numbered_s for one, sign in self._answers.items()}
        last_s = max(self._controller.numbered_s, self._log.numbered_s, self._most_s(now_s, numbered))
        return last_s > since_s and now_s - last_s < self.silent_s and self._applied >= self._reach

    def _whom_to_ask(self, now_s: float) -> tuple[int, ...]:
        silent_from_s = max(self._controller.at_s, self._log.at_s)
        if not self.isolated and now_s < silent_from_s + self.silent_s / 2:
            return ()
        if now_s < self._ask_from_s or len(set(self._hosts.values())) <= 1:
            return ()
        return tuple(sorted(one for one in self._hosts if one != self._broker_id))

    def _next_s(self, now_s: float) -> float:
        if self.isolated:
            return now_s + ASK_INTERVAL_S / 2
        silent_from_s = max(self._controller.at_s, self._log.at_s)
        ask_s = max(silent_from_s + self.silent_s / 2, self._ask_from_s)
        judge_s = max(self.last_sign_s(now_s) + self.silent_s, self._not_before_s)
        return min(one for one in (ask_s, judge_s, now_s + self.silent_s / 2) if one > now_s)
