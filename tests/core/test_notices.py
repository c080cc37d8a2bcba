"""Lines for the operator: one line each, safe on a terminal."""

from __future__ import annotations

import re

import pytest

from app.core.notices import log_line, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("topic t is there", "topic t is there"),
        ("two\nlines", "two lines"),
        ("bell\a and \x1b[2J", "bell\\x07 and \\x1b[2J"),
        ("Zürich", "Zürich"),
        ("\u202eright to left", "\\u202eright to left"),
    ],
)
def test_a_name_of_a_peer_ends_no_line_and_moves_no_cursor(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_a_line_begins_with_the_time_in_utc(capfd: pytest.CaptureFixture[str]) -> None:
    log_line("it\nserves")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ it serves\n", capfd.readouterr().err)
