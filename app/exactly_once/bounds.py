"""Limits of the keys and bytes of results that a broker keeps, in all and for one principal (ADR 0043, EO12). Pure.

Every request costs memory for as long as results are kept, and one principal could fill a shared bound. So a principal gets half
of it at most, and the last tenth is kept for principals that have few keys. Tests: ``tests/exactly_once/test_bounds.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from app.core.limits import GIB

KEYS_MAX: Final = 10_000_000
BYTES_MAX: Final = 8 * GIB
SMALL_PART: Final = 1_000
"""A principal is small while it has less than a thousandth of the bound."""
PRINCIPAL_BYTES: Final = 200
"""Bytes that each principal counts for by itself, because its name is kept."""


class Bounds(NamedTuple):
    """The limits of a broker."""

    keys_max: int = KEYS_MAX
    bytes_max: int = BYTES_MAX


@dataclass(slots=True)
class Amount:
    """Keys and bytes of their records."""

    keys: int = 0
    bytes: int = 0

    def add(self, other: Amount, sign: int = 1) -> None:
        """Add another amount, or take it away with the sign -1."""
        self.keys += sign * other.keys
        self.bytes += sign * other.bytes

    @property
    def nothing(self) -> bool:
        """Whether there is no key."""
        return self.keys == 0


@dataclass(slots=True)
class Usage:
    """The results that a broker keeps, over all partitions that it leads."""

    bounds: Bounds = field(default_factory=Bounds)
    total: Amount = field(default_factory=Amount)
    by_principal: dict[str, Amount] = field(default_factory=dict)

    def change(self, principal: str, amount: Amount, sign: int = 1) -> None:
        """Note that results of a principal came, or went with the sign -1."""
        mine = self.by_principal.setdefault(principal, Amount())
        mine.add(amount, sign)
        self.total.add(amount, sign)
        assert mine.keys >= 0
        assert mine.bytes >= 0
        if mine.nothing:
            del self.by_principal[principal]

    def refusal(self, principal: str, size_bytes: int) -> str | None:
        """Why a principal may not have one more result of ``size_bytes`` now, in a sentence; None if it may."""
        mine = self.by_principal.get(principal, Amount())
        for has, all_have, limit, adds, unit in (
            (mine.keys, self.total.keys, self.bounds.keys_max, 1, "keys"),
            (mine.bytes, self.total.bytes, self.bounds.bytes_max, size_bytes + PRINCIPAL_BYTES, "bytes of results"),
        ):
            if has + adds > limit // 2:
                return f"The caller has {has} {unit}, and {limit // 2} are allowed. Try again when older ones have expired."
            is_small = has + adds <= max(limit // SMALL_PART, adds)
            if all_have + adds > (limit if is_small else limit - limit // 10):
                return (
                    f"This broker keeps {all_have} {unit}, and {limit} at most. Try again when older ones have expired."
                )
        return None
