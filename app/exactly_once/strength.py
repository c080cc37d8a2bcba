"""Whether a result partition survives each failure that one of the data partitions survives (ADR 0043, EO7). Pure.

If a failure took the result and left the records, a retry would write them again. Tests:
``tests/exactly_once/test_strength.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from app.configs import Durability


class Strength(NamedTuple):
    """The failures that acknowledged records of a partition survive."""

    power: bool
    """All machines lose power at once."""
    machine: bool
    """One machine is lost with its disk."""
    replicas: bool
    """All machines are lost with their disks."""

    def covers(self, other: Strength) -> bool:
        """Whether this survives all that ``other`` survives."""
        return all(mine or not its for mine, its in zip(self, other, strict=True))


def strength_of(durability: Durability, min_insync_replicas: int, replicas: int) -> Strength:
    """The strength of a partition with that many replicas, for acks=all."""
    if durability is Durability.OBJECT:
        return Strength(power=True, machine=True, replicas=True)
    return Strength(
        power=durability is Durability.DISK, machine=min(min_insync_replicas, replicas) >= 2, replicas=False
    )


def weaker(result: Strength, data: Strength) -> str | None:
    """A failure that the data survive and the result does not, as a phrase; None if there is none."""
    if result.covers(data):
        return None
    if data.power and not result.power:
        return "a loss of power"
    return "the loss of a machine" if data.machine and not result.machine else "the loss of all machines"
