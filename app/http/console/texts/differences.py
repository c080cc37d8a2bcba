"""The difference of two texts, line by line. Pure.

``difflib`` cannot yield, and its time grows with the square of the equal lines. The time of these steps is bounded by the number of
edits (Myers, "An O(ND) Difference Algorithm", 1986). Other work of the loop runs between the steps (INV-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from app.core.turns import Steps, Stepwise

LINES_MAX: Final = 5_000
"""Of a text, between the lines that both texts begin and end with."""
EDITS_MAX: Final = 300
CONTEXT: Final = 3
"""Equal lines that are shown before and after an edit."""
MOVES_A_STEP: Final = 5_000
"""About 1 ms."""

Kind = Literal["same", "added", "removed", "gap"]
_Reached = dict[int, int]
"""The furthest place in the old text, by the diagonal: a place in the old text less one in the new text."""


class DifferenceLine(NamedTuple):
    """A line of a difference."""

    kind: Kind
    text: str
    """Of a gap empty."""
    left_out: int = 0
    """Of a gap: how many equal lines it stands for."""


@Stepwise
def difference(old: str, new: str) -> Steps[list[DifferenceLine] | None]:
    """The fewest lines to remove from ``old`` and to add to it so that it is ``new``, with equal lines around them. Empty if the
    texts are equal. Returns: None if they differ in more than ``EDITS_MAX`` lines, or in a part of over ``LINES_MAX`` lines."""
    if old == new:
        return []
    before, after = old.split("\n"), new.split("\n")
    yield
    begin, end = 0, 0
    shorter = min(len(before), len(after))
    while begin < shorter and before[begin] == after[begin]:
        begin += 1
        if not begin % MOVES_A_STEP:
            yield
    while end < shorter - begin and before[-1 - end] == after[-1 - end]:
        end += 1
        if not end % MOVES_A_STEP:
            yield
    left, right = before[begin : len(before) - end], after[begin : len(after) - end]
    if max(len(left), len(right)) > LINES_MAX:
        return None
    numbers: dict[str, int] = {}
    trace = yield from _rounds(
        [numbers.setdefault(line, len(numbers)) for line in left],
        [numbers.setdefault(line, len(numbers)) for line in right],
    )
    if trace is None:
        return None
    edits = _lines(left, right, trace)
    yield
    return _folded(before[:begin], edits, before[len(before) - end :])


def _rounds(left: Sequence[int], right: Sequence[int]) -> Steps[list[_Reached] | None]:
    """The places that each number of edits reaches, before the round of that number; None if ``EDITS_MAX`` edits do not suffice."""
    reached: _Reached = {1: 0}
    trace: list[_Reached] = []
    moves = 0
    for edits in range(min(len(left) + len(right), EDITS_MAX) + 1):
        trace.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            place = reached[diagonal + 1] if _down(reached, diagonal, edits) else reached[diagonal - 1] + 1
            other = place - diagonal
            moves += 1
            while place < len(left) and other < len(right) and left[place] == right[other]:
                place, other, moves = place + 1, other + 1, moves + 1
            reached[diagonal] = place
            if place >= len(left) and other >= len(right):
                return trace
            if moves >= MOVES_A_STEP:
                moves = 0
                yield
    return None


def _down(reached: _Reached, diagonal: int, edits: int) -> bool:
    """Whether the furthest way to a diagonal adds a line, or else removes one."""
    return diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])


def _lines(left: Sequence[str], right: Sequence[str], trace: Sequence[_Reached]) -> list[DifferenceLine]:
    place, other = len(left), len(right)
    found: list[DifferenceLine] = []
    for edits in reversed(range(len(trace))):
        reached, diagonal = trace[edits], place - other
        added = _down(reached, diagonal, edits)
        from_diagonal = diagonal + 1 if added else diagonal - 1
        from_place = reached[from_diagonal]
        from_other = from_place - from_diagonal
        while place > from_place and other > max(0, from_other):
            place, other = place - 1, other - 1
            found.append(DifferenceLine("same", left[place]))
        if edits:
            place, other = from_place, from_other
            found.append(DifferenceLine("added", right[other]) if added else DifferenceLine("removed", left[place]))
    return found[::-1]


def _folded(before: Sequence[str], edits: Sequence[DifferenceLine], after: Sequence[str]) -> list[DifferenceLine]:
    """The lines near edits. A gap stands for the others."""
    lines = [
        *(DifferenceLine("same", line) for line in before[-CONTEXT:]),
        *edits,
        *(DifferenceLine("same", line) for line in after[:CONTEXT]),
    ]
    hidden = max(0, len(before) - CONTEXT)
    found = [DifferenceLine("gap", "", hidden)] if hidden else []
    edited = [index for index, line in enumerate(lines) if line.kind != "same"]
    near = {place for index in edited for place in range(index - CONTEXT, index + CONTEXT + 1)}
    end = 0
    for place in sorted(place for place in near if 0 <= place < len(lines)):
        if place > end:
            found.append(DifferenceLine("gap", "", place - end))
        found.append(lines[place])
        end = place + 1
    if hidden := max(0, len(after) - CONTEXT):
        found.append(DifferenceLine("gap", "", hidden))
    return found
