"""Callers without a login: one for handlers that a test calls without a connection, and a doorkeeper that takes all for one."""

from __future__ import annotations

from typing import Final

from app.handlers.policy.callers import ANONYMOUS, Caller, KnownRights, OpenDoor, Rights

RIGHTS: Final = Rights(ANONYMOUS)
SOMEBODY: Final = Caller(RIGHTS, host="127.0.0.1", port=50_000)


class Everybody(OpenDoor):
    """A doorkeeper that takes everybody who comes for one user, and may be told another."""

    def __init__(self, known: KnownRights, principal: str) -> None:
        super().__init__(known)
        self.principal = principal

    def admit(self, listener: str, host: str, port: int) -> Caller:
        return Caller(self._known.of(self.principal, host), listener, host, port)
