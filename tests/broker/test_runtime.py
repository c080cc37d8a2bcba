"""What the machine's side of a broker does by itself."""

from __future__ import annotations

import pytest

from app.broker.runtime import one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe: 5 µs … done", "größe: 5 µs … done"),
        ("two\nlines", "two lines"),
        ("\x1b[2Jcleared\r", "\\x1b[2Jcleared\\r"),
        ("a\u2028b\x00", "a\\u2028b\\x00"),
        ("file \udcff", "file \\udcff"),
    ],
)
def test_what_a_peer_names_cannot_end_a_log_line_or_move_the_cursor(text: str, shown: str) -> None:
    assert one_line(text) == shown
