"""Errors that are kept, to be told later or more than once. Kafka's code of each error."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from app.core.errors import (
    KAFKA_CODE,
    BrokerUnavailable,
    ConfigError,
    ConflictError,
    CorruptionError,
    ErrorCode,
    FencedError,
    FirnError,
    LimitExceeded,
    ProtocolError,
    RequestRejected,
    StorageFull,
    StorageUnavailable,
    copy_of,
    kafka_code,
    without_frames,
)
from tools.source_trees import tree_of

ROOT = Path(__file__).parents[2]
PROGRAM = ("app", "firn_broker", "pyspark_firn")


def raised(error: FirnError) -> FirnError:
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise error from cause
    except FirnError as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        RequestRejected(ErrorCode.INVALID_RECORD, "a sentence"),
        RequestRejected(ErrorCode.INVALID_RECORD),
        ProtocolError("a sentence", ErrorCode.CORRUPT_MESSAGE),
        StorageFull("a sentence"),
    ],
)
def test_a_copy_of_an_error_says_the_same_and_holds_no_frames(error: FirnError) -> None:
    copy = copy_of(raised(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert (copy.__traceback__, copy.__cause__, copy.__context__) == (None, None, None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FencedError("x"), 6),
        (ConflictError("x"), 7),
        (BrokerUnavailable("x"), 13),
        (StorageUnavailable("x"), 56),
        (StorageFull("x"), 56),
        (CorruptionError("x"), 56),
        (LimitExceeded("x"), 44),
        (ConfigError("x"), 40),
        (ProtocolError("x", ErrorCode.CORRUPT_MESSAGE), 2),
        (RequestRejected(ErrorCode.INVALID_RECORD), 87),
        (ValueError("x"), -1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_kafkas_code(error: BaseException, code: int) -> None:
    assert kafka_code(error) == code


def test_each_error_of_the_table_has_its_code_and_no_earlier_entry_takes_it() -> None:
    assert {kind: kafka_code(kind("x")) for kind, _ in KAFKA_CODE} == dict(KAFKA_CODE)


def test_the_codes_have_kafkas_numbers_without_a_gap() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, len(ErrorCode) - 1))
    assert (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.FENCED_LEADER_EPOCH) == (0, 41, 74)


def test_an_error_without_frames_is_the_same_error() -> None:
    error = raised(StorageFull("a sentence"))
    assert error.__traceback__ is not None
    assert without_frames(error) is error
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_no_error_is_raised_straight_from_an_attribute_or_a_collection() -> None:
    """A stored error is raised as its copy: each raise would add the frames of one more caller to the stored one."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: raise {ast.unparse(node.exc)}"
        for package in PROGRAM
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Raise) and node.exc is not None and is_stored(node.exc)
    ]
    assert found == []


def is_stored(expression: ast.expr) -> bool:
    match expression:
        case ast.Attribute(value=ast.Name(id="typer")):
            return False  # a class of another package
        case ast.Attribute() | ast.Subscript():
            return True
        case ast.BoolOp(values=parts):
            return any(is_stored(part) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return is_stored(one) or is_stored(other)
        case _:
            return False


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("self._refusal", True),
        ("errors[0]", True),
        ("self._fenced or first_error(failures)", True),
        ("one.error if one else KeyError()", True),
        ("copy_of(self._refusal)", False),
        ("KeyError('x')", False),
        ("failure", False),
    ],
)
def test_stored_errors_are_recognised(text: str, stored: bool) -> None:
    assert is_stored(ast.parse(text, mode="eval").body) is stored
