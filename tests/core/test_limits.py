"""Limits agree with each other and with Kafka.

docs/limits.md: every API that is served has a row, and what it leaves behind is bounded by a test that exists.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from app.core import limits
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
    return {
        "".join(map(str.capitalize, ApiKey(key).name.split("_")))
        for key in {*Apis(), *PRODUCE_AND_FETCH, ApiKey.FIRN_APPEND, ApiKey.FIRN_KEYED}
    }


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


def test_limits_that_kafka_draws_have_its_values() -> None:
    assert limits.REQUEST_BYTES_MAX == 104_857_600, "socket.request.max.bytes"
    assert limits.SEGMENT_BYTES_MIN == 1_048_576, "the least segment.bytes"
    assert limits.TAGGED_FIELDS_MAX == limits.PARTITIONS_MADE_MAX == 10_000
    assert limits.ARRAY_ELEMENTS_MAX == 1_000_000
    assert limits.CLIENT_ID_BYTES_MAX == 2**15 - 1, "an int16 has the length"
    assert len(str(UUID(int=0))) == limits.SHARE_MEMBER_ID_CHARS_MAX
    assert limits.TOPIC_NAME_CHARS_MAX + len("-") + len("99999") == 255, "the name of a directory"


def test_a_limit_leaves_room_for_the_longest_object_of_another_one() -> None:
    assert limits.CHUNK_BYTES_MAX >= limits.REQUEST_BYTES_MAX, "a chunk holds the longest batch"
    assert limits.DECOMPRESSED_BATCH_BYTES_MAX >= limits.REQUEST_BYTES_MAX
    longest = limits.WAL_BYTES_MAX + limits.REQUEST_BYTES_MAX + limits.WAL_FOOTER_BYTES_MAX
    assert longest <= limits.WAL_OBJECT_BYTES_MAX, "an object with a last batch as long as a request"
    assert limits.WAL_STATE_BYTES_MAX <= limits.WAL_FOOTER_BYTES_MAX
    assert limits.REQUEST_ELEMENTS_MAX > limits.PARTITIONS_PER_TOPIC_MAX * 4, "a reassignment to three replicas"
    assert limits.MESSAGE_ELEMENTS_MAX <= limits.ARRAY_ELEMENTS_MAX
