"""The next step of a broker after an attempt to be registered that has failed. Pure.

``ClusterMember`` makes the attempts and carries the steps out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.core.errors import (
    BrokerUnavailable,
    ErrorCode,
    ProtocolError,
    RequestRejected,
    StorageUnavailable,
    clause,
)
from app.metadata.peers.control import NotSent

PLACE_S: Final = 10.0
"""How long a broker whose node id another directory has waits for the controller to fence that one. The waiting broker has found
the other one silent in the bucket. A new controller takes a session time-out to find the same."""
TELL_S: Final = 10.0
"""Between two lines about a registration that is waited for."""


class Attempts(NamedTuple):
    """The attempts so far."""

    told_s: float
    """Loop time of the last line about the wait, or of the first attempt."""
    refused_s: float | None = None
    """Loop time at which the controller first said that another directory has the node id."""


class TryAgain(NamedTuple):
    """Attempt it again, after a short pause and a read of the cluster log."""

    attempts: Attempts
    line: str | None
    """The end of a line about the wait, if it is time for one."""


class GiveUp(NamedTuple):
    """Refuse the start."""

    why: str


def after_attempt(
    attempts: Attempts,
    error: RequestRejected | BrokerUnavailable | ProtocolError | StorageUnavailable | None,
    now_s: float,
    *,
    by_login: bool,
) -> TryAgain | GiveUp:
    """Derive the next step. ``error``: of the attempt; None if there was no controller to ask.

    ``by_login``: brokers log in. Then this broker may turn the controller away, because it has not read of its user yet."""
    refused_s, why = attempts.refused_s, ""
    if isinstance(error, RequestRejected):
        if error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION or (
            by_login and error.code is ErrorCode.INVALID_REQUEST
        ):
            # If all brokers come back with new directories, one of them must stay to be the controller that fences.
            refused_s = now_s if refused_s is None else refused_s
            if now_s - refused_s >= PLACE_S:
                return GiveUp(str(error))
        elif error.code is ErrorCode.BROKER_NOT_AVAILABLE:
            why = f". The last attempt: {clause(error)}"
        elif error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH):
            return GiveUp(str(error))
    elif isinstance(error, NotSent):
        why = f". The last attempt: {clause(error)}"
    tells = now_s - attempts.told_s >= TELL_S
    return TryAgain(Attempts(now_s if tells else attempts.told_s, refused_s), why if tells else None)
