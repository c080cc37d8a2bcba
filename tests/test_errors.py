"""Errors that are kept, to be told later or more than once."""

from __future__ import annotations

import pytest

from app.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, StorageFull, copy_of, without_frames


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


def test_an_error_without_frames_is_the_same_error() -> None:
    error = raised(StorageFull("a sentence"))
    assert error.__traceback__ is not None
    assert without_frames(error) is error
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
