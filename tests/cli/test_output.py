"""Tables: whatever is in them and however narrow the terminal is, nothing is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli import main
from app.cli.output import table_text

COLUMNS = ("NAME", ">COUNT", "~WHAT IT IS")
names = st.text(st.sampled_from("abc-._0123456789日"), min_size=1, max_size=70)
numbers = st.integers(0, 10**15).map("{:,}".format)
prose = st.lists(names, max_size=12).map(" ".join)
rows_of_a_table = st.lists(st.tuples(names, numbers, prose), max_size=5)


@settings(deadline=None)
@given(rows_of_a_table)
def test_where_nobody_looks_a_row_is_one_line_with_every_cell_whole(rows: list[tuple[str, str, str]]) -> None:
    head, *lines = table_text(COLUMNS, rows).splitlines()
    assert head.split() == ["NAME", "COUNT", "WHAT", "IT", "IS"]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert line.split() == " ".join(row).split()


@settings(deadline=None)
@given(rows_of_a_table, st.integers(1, 250))
def test_on_a_terminal_of_any_width_every_name_number_and_word_is_whole(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    text = table_text(COLUMNS, rows, width=width)
    shown = text.split()
    for row in rows:
        assert shown.count(row[0]) >= 1
        assert shown.count(row[1]) >= 1
        for word in row[2].split():
            assert word in shown


def test_prose_is_wrapped_before_columns_come_closer_than_can_be_read() -> None:
    rows = [("retention.ms", "604,800,000", "How long records of a topic are kept before they are deleted")]
    assert table_text(COLUMNS, rows, width=80) == (
        "NAME               COUNT WHAT IT IS\n"
        "retention.ms 604,800,000 How long records of a topic are kept before they are\n"
        "                         deleted\n"
    )
    assert table_text(COLUMNS, rows, width=40, title="Settings") == (
        "Settings\n"
        "NAME        retention.ms\n"
        "COUNT       604,800,000\n"
        "WHAT IT IS  How long records of a topic are kept before they are deleted\n"
    )


def test_columns_come_closer_before_a_table_becomes_blocks() -> None:
    rows = [("a", "1"), ("bcdefgh", "22")]
    assert table_text(("NAME", ">COUNT"), rows, width=13) == "NAME    COUNT\na           1\nbcdefgh    22\n"
    assert table_text(("NAME", ">COUNT"), rows, width=12) == ("NAME   a\nCOUNT  1\n\nNAME   bcdefgh\nCOUNT  22\n")


def test_what_users_put_into_names_ends_no_line_and_moves_no_cursor() -> None:
    assert table_text(("NAME",), [("a\nb\x1b[2Jc",)]) == "NAME\na\\nb\\x1b[2Jc\n"


def test_every_setting_is_listed_whole_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--list-settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["serve", "--list-settings", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(lines) == len(listed) + 1
    for line, setting in zip(lines[1:], listed, strict=True):
        assert setting["default"]
        whole = (setting["name"], setting["default"], setting["environment"], setting["documentation"])
        assert line.split() == " ".join(whole).split()
    defaults = {setting["name"]: setting["default"] for setting in listed}
    assert (defaults["num.partitions"], defaults["log.segment.bytes"]) == ("1", "1073741824")
    assert main(["serve", "--json"]) == 2
