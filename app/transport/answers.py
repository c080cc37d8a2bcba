"""Connections whose waiting responses became done together, told once in a turn of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from app.transport.core import ConnectionCore


class Answers:
    """The connections with answers that became due in this turn of the loop. Belongs to one loop."""

    __slots__ = ("_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[ConnectionCore, None] = {}

    def due(self, connection: ConnectionCore) -> None:
        """Let the connection hand over its finished responses, soon."""
        if not self._due:
            self._loop.call_soon(self._tell)
        self._due[connection] = None

    def _tell(self) -> None:
        due, self._due = self._due, {}
        for connection in due:
            connection.hand_over()
