"""A broker's reports of its health to the HTTP process beside it: one line of JSON each, sent at every change.

Tests: ``tests/broker/test_health.py``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

LINE_BYTES_MAX: Final = 64 * 1024


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of something that a broker needs."""

    state: Literal["ok", "away", "full", "offline"]
    why: str = ""
    """A sentence unless it is ok."""


class Health(msgspec.Struct, frozen=True):
    """Whether a broker can serve any partition that it leads, and the state of its store and disk."""

    ready: bool
    store: Part
    disk: Part
    leaders: int
    """Partitions that the broker leads and serves."""
    offline: int
    """Partitions that it should lead and cannot open."""
    isolated: bool
    """Whether it hears neither other brokers nor the store. It then refuses writes to partitions that others may lead by now."""

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    def shown(self) -> dict[str, Any]:
        """For the body of ``/readyz``."""
        return {
            "store": self.store,
            "disk": self.disk,
            "leaders": self.leaders,
            "offline": self.offline,
            "isolated": self.isolated,
        }

    def sentence(self) -> str:
        """Why the broker is not ready."""
        if self.disk.state == "offline":
            return self.disk.why
        if self.isolated:
            return "The broker is isolated: it hears neither other brokers nor the object store."
        return f"None of the {self.offline} partitions that the broker should lead can be opened."


class HealthReader:
    """Reads lines as they come, and knows the newest health."""

    def __init__(self) -> None:
        self.newest: Health | None = None
        """None until the first line."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Raises: msgspec.MsgspecError if the other end is no broker of this version."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        assert len(self._rest) <= LINE_BYTES_MAX, len(self._rest)
        if lines:
            self.newest = msgspec.json.decode(lines[-1], type=Health)
