"""Error messages are sentences of one form (``tools/error_sentences.py``)."""

from __future__ import annotations

import ast

import pytest

from app.core.errors import ProtocolError, StorageUnavailable, clause
from tools.error_sentences import FRAGMENTS, PLACES, all_messages, error_classes, fault, messages, trees

ERRORS = frozenset({"FirnError", "ConfigError"})


def test_every_error_message_is_a_sentence() -> None:
    found = list(all_messages())
    assert {one.file.split("/")[0] for one in found} >= set(PLACES) - {"firn_broker"}
    told = [f"{one.file}:{one.line}: {one.kind}: {why}: {one.text!r}" for one in found if (why := fault(one))]
    assert not told, "\n".join(told)


def test_classes_whose_messages_are_fragments_are_raised_and_are_no_errors_of_the_tree() -> None:
    parsed = trees()
    called = {
        getattr(node.func, "id", getattr(node.func, "attr", ""))
        for tree in parsed.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert FRAGMENTS.keys() <= called
    assert not FRAGMENTS.keys() & error_classes(parsed)


def test_the_tree_of_errors_is_found_by_the_bases_of_classes() -> None:
    source = "class A(FirnError): ...\nclass B(errors.A): ...\nclass C(Exception): ..."
    assert error_classes({"a.py": ast.parse(source)}) == {"FirnError", "A", "B"}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('raise ConfigError("The file is missing.")', ""),
        ('raise ConfigError(f"{path} is missing.")', ""),
        ('raise ConfigError("log.dirs is empty.")', ""),
        ('raise ConfigError("--store is missing.")', ""),
        ('raise ConfigError("firn doctor found a fault.")', ""),
        ('raise ConfigError("the file is missing.")', "lower case"),
        ('raise ConfigError("missing: the file.")', "lower case"),
        ('raise ConfigError("The file is missing")', "no full stop"),
        ('raise ConfigError(f"The file is missing: {path}")', "no full stop"),
        ('raise ConfigError(f"The file is missing.{hint}")', ""),
        ('raise ConfigError(f"It failed:\\n{output}")', ""),
        ('raise ConfigError("The file " + name + " is missing.")', ""),
        ('raise ConfigError("The file is missing." if a else "no file is there.")', "lower case"),
        ('raise ConfigError(f"Cannot open it: {error}.")', "clause(error)"),
        ('raise ConfigError(f"Cannot open it: {str(error)}.")', "clause(error)"),
        ('raise ConfigError(f"Cannot open it: {clause(error)}.")', ""),
        ('raise ConfigError(f"{error} Start it again.")', ""),
        ('return RequestRejected(ErrorCode.INVALID_REQUEST, "no such topic")', "lower case"),
        ('answer = Result(name, ErrorCode.NONE, error_message="Too few")', "no full stop"),
        ('raise storage_error(error, "Cannot read a")', ""),
        ('raise storage_error(error, "cannot read a")', "lower case"),
        ('raise storage_error(error, "Cannot read a.")', "the reason follows"),
        ('raise ValueError("not a number")', ""),
    ],
)
def test_a_message_is_judged_by_its_first_and_last_characters(source: str, why: str) -> None:
    found = [fault(one) for one in messages("app/a.py", ast.parse(f"def f():\n    {source}"), ERRORS)]
    assert (why in "".join(found)) if why else not any(found)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ProtocolError("The message ends early."), "the message ends early"),
        (StorageUnavailable("Cannot read a.log: the disk is full."), "cannot read a.log: the disk is full"),
        (ProtocolError("Redis does not answer."), "Redis does not answer"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        ("No space left on device", "No space left on device"),
        (ValueError("not a number"), "not a number"),
        ("Another broker leads t-0.", "another broker leads t-0"),
        ("", ""),
    ],
)
def test_an_error_goes_into_a_longer_sentence_as_a_clause(error: BaseException | str, text: str) -> None:
    assert clause(error) == text
