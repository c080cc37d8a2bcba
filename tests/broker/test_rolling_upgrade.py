"""A rolling upgrade, with a program that understands one level less than the others (ADR 0023, 0029)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from app.core.errors import RequestRejected
from app.metadata.changes import features
from app.metadata.changes.features import FeatureAsked
from app.metadata.image.records import LEVEL_MAX
from app.metadata.membership import member, membership
from app.metadata.view.registration import StartRefused
from tests.support.broker import RunningBroker
from tests.support.changing import update_features
from tests.support.several import broker_on, unfenced
from tests.support.waiting import until

NEXT = LEVEL_MAX + 1
"""The level of the program to which the brokers are upgraded. The present one is the older one here."""
RAISE = [FeatureAsked("firn.version", NEXT)]


@asynccontextmanager
async def program(path: Path, name: str, level_max: int, patch: pytest.MonkeyPatch) -> AsyncIterator[RunningBroker]:
    """A broker whose program understands levels up to ``level_max``."""
    patch.setattr(member, "LEVEL_MAX", level_max)
    patch.setattr(membership, "LEVEL_MAX", level_max)
    async with broker_on(path, name) as broker:
        yield broker


async def test_the_level_rises_when_the_last_broker_was_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(features.update_features.steps.__kwdefaults__ or {}, "level_max", NEXT)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(program(tmp_path, "a", NEXT, monkeypatch))
        controller = first.node.membership.controller
        async with program(tmp_path, "b", LEVEL_MAX, monkeypatch) as old:
            third = await stack.enter_async_context(program(tmp_path, "c", NEXT, monkeypatch))
            await until(lambda: unfenced(first) == unfenced(third) == [1, 2, 3])
            assert [one.level_max for _, one in sorted(first.node.cluster.image.brokers.items())] == [
                NEXT,
                LEVEL_MAX,
                NEXT,
            ]
            with pytest.raises(RequestRejected, match=r"The programs of brokers \[2\] are older"):
                await update_features(controller, RAISE)
            assert first.node.cluster.image.level == LEVEL_MAX
            await controller.create_topic("t", assignments={0: [2, 1]})
            await until(lambda: old.node.partitions.table.led_log("t", 0) is not None)
            assert unfenced(third) == [1, 2, 3], "it goes on serving"
        with pytest.raises(RequestRejected, match=r"The programs of brokers \[2\] are older"):
            await update_features(controller, RAISE)  # it might come back as it was
        async with program(tmp_path, "b", NEXT, monkeypatch) as new:
            await until(lambda: unfenced(first) == [1, 2, 3])
            await update_features(controller, RAISE)
            await until(lambda: {one.node.cluster.image.level for one in (first, new, third)} == {NEXT})
        with pytest.raises(
            StartRefused, match=f"firn.version is {NEXT}, and this program understands {LEVEL_MAX} at most"
        ):
            async with program(tmp_path, "b", LEVEL_MAX, monkeypatch):
                pass
        await until(lambda: unfenced(first) == [1, 3])
