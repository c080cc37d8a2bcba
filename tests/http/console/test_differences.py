from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.turns import whole
from app.http.console.texts import differences
from app.http.console.texts.differences import DifferenceLine, difference

LINES = st.lists(st.sampled_from("abc"), max_size=12).map("\n".join)


def kinds(lines: list[DifferenceLine]) -> list[str]:
    marks = {"same": " ", "added": "+", "removed": "-"}
    return [f"{marks[one.kind]}{one.text}" if one.kind != "gap" else f"~{one.left_out}" for one in lines]


def test_equal_texts_have_no_difference() -> None:
    assert difference("a\nb", "a\nb") == []


def test_edits_stand_between_three_equal_lines_and_gaps() -> None:
    old = "\n".join(f"line {number}" for number in range(20))
    new = old.replace("line 8", "eight").replace("line 19", "line 19\nline 20")
    found = difference(old, new)
    assert found is not None
    assert kinds(found) == [
        "~5", " line 5", " line 6", " line 7", "-line 8", "+eight", " line 9", " line 10", " line 11", "~5",
        " line 17", " line 18", " line 19", "+line 20",
    ]  # fmt: skip


@given(LINES, LINES)
def test_a_difference_makes_the_new_text_of_the_old_one_by_the_fewest_edits(old: str, new: str) -> None:
    found = difference(old, new)
    assert found is not None
    before, after = old.split("\n"), new.split("\n")
    if not found:
        assert before == after
        return
    rebuilt: list[str] = []
    place = 0
    for line in found:
        if line.kind == "gap":
            rebuilt += before[place : place + line.left_out]
            place += line.left_out
            continue
        if line.kind != "added":
            assert before[place] == line.text
            place += 1
        if line.kind != "removed":
            rebuilt.append(line.text)
    assert (rebuilt, place) == (after, len(before))
    edits = sum(line.kind in ("added", "removed") for line in found)
    assert edits == len(before) + len(after) - 2 * _common(before, after)


def _common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, by the table of all pairs."""
    row = [0] * (len(other) + 1)
    for line in one:
        above = row[:]
        for place, second in enumerate(other):
            row[place + 1] = above[place] + 1 if line == second else max(row[place], above[place + 1])
    return row[-1]


def test_texts_that_differ_too_much_have_no_difference_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "EDITS_MAX", 4)
    assert difference("a\nb\nc", "d\ne\nf") is None
    assert difference("a\nb\nc", "d\ne\nc") is not None
    monkeypatch.setattr(differences, "LINES_MAX", 2)
    assert difference("a\nb\nc", "d\nb\nf") is None
    assert difference("x\na\nb\ny", "x\na\nc\ny") is not None


def test_the_worst_texts_are_compared_in_short_steps() -> None:
    lines = [str(number % 7) for number in range(differences.LINES_MAX)]
    old, new = "\n".join(lines), "\n".join(str(number % 11) for number in range(differences.LINES_MAX))
    steps = 0
    for _ in difference.steps(old, new):
        steps += 1
    assert steps > 5
    assert whole(difference.steps(old, new)) is None
