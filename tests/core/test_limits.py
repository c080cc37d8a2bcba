"""docs/limits.md: every API that is served has a row, and what it leaves behind is bounded by a test that exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from app.handlers.serving.dispatch import Apis
from app.wire.apikeys import ApiKey

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits.md"
NONE = "–"
PRODUCE_AND_FETCH = {ApiKey.PRODUCE, ApiKey.FETCH}
"""They are served without the table of APIs."""


class Row(NamedTuple):
    api: str
    leaves: str
    one: str
    total: str
    released: str
    test: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| API ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def served() -> set[str]:
    return {"".join(map(str.capitalize, ApiKey(key).name.split("_"))) for key in {*Apis(), *PRODUCE_AND_FETCH}}


def test_every_api_that_is_served_has_a_row_and_no_other() -> None:
    assert {row.api for row in rows()} == served()


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.api}: {row.leaves}")
def test_what_an_api_leaves_has_bounds_and_an_end(row: Row) -> None:
    if row.leaves == "nothing":
        assert row[2:] == (NONE, NONE, NONE, NONE)
    elif row.api != "Envelope":
        assert NONE not in (row.one, row.total, row.released)


def test_what_is_kept_in_memory_alone_is_tested_where_a_client_chooses_its_size() -> None:
    tested = {row.api for row in rows() if row.test != NONE}
    assert tested >= {"Produce", "Fetch", "JoinGroup", "SaslAuthenticate", "CreateDelegationToken", "CreateAcls"}


@cache
def names_in(path: str) -> frozenset[str]:
    found = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("test", sorted({row.test for row in rows()} - {NONE}))
def test_the_test_of_a_bound_exists(test: str) -> None:
    path, _, name = test.strip("`").partition("::")
    assert name in names_in(path)
