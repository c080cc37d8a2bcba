"""Deadlines for work: a late end is the fault of the store, and the work's own errors stay as they are."""

from __future__ import annotations

import asyncio

import pytest

from app.core.errors import CorruptionError, StorageUnavailable
from app.tiering.upload.deadlines import within


async def test_work_that_is_done_in_time_returns_its_result() -> None:
    assert await within(60, "reading", asyncio.sleep(0, "done")) == "done"


async def test_work_that_is_late_is_cancelled_and_counts_as_no_response() -> None:
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled = True

    with pytest.raises(StorageUnavailable, match=r"^deleting: no response within 0\.001 s\.$"):
        await within(0.001, "deleting", work())
    assert cancelled


async def test_errors_of_the_work_stay_as_they_are() -> None:
    async def work() -> None:
        raise CorruptionError("The footer is damaged.")

    with pytest.raises(CorruptionError):
        await within(60, "reading", work())
