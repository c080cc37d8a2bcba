"""A registry that responds to no page of the console: the time of each question is over at once."""

from __future__ import annotations

import pytest

from app.http.registry.record_schemas import RecordSchemas


class SilentRegistry:
    """It counts the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int | str] = []

        async def by_ref(_: RecordSchemas, ref: int | str) -> None:
            self.asked.append(ref)
            raise TimeoutError

        monkeypatch.setattr(RecordSchemas, "by_ref", by_ref)
