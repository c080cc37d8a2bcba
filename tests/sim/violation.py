"""The error of a checker."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        """``invariant``: the name of the checker, such as "INV-4"."""
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
