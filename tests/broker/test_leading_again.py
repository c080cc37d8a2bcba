"""A broker that is alone and starts again: it is ready when it leads, and tells what a take-over has lost whenever that is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.broker.node import Node
from app.broker.partitions.opening import Opening
from app.broker.partitions.start_report import StartReport
from app.core.errors import FencedError
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.talking import produce, tier_everything
from tests.support.waiting import until

LOST = "lost with the former data directory"
BACK = "recovered from the store"


async def lose_the_directory(path: Path) -> None:
    """A broker that is alone has a tiered topic, and an untiered one. Then its data directory is gone."""
    async with running_broker(path, new_level=1) as broker, talk(broker.port) as client:
        await broker.create_topic("t", segment_bytes="1048576")
        await broker.create_topic("here", remote_storage_enable="false")
        assert await produce(client, "t", batch(10)) == [0]
        await tier_everything(broker, "t")
    shutil.rmtree(path / "data")


@pytest.fixture
def hold_leading(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """While it is not set, another leader seems to have sealed each manifest; and a start waits for no time until it leads."""
    let = asyncio.Event()
    let.set()
    opens = Opening.open

    async def held(self: Opening, *args: Any, **more: Any) -> Any:
        if not let.is_set():
            raise FencedError("another leader has sealed the manifest")
        return await opens(self, *args, **more)

    monkeypatch.setattr(Opening, "open", held)
    monkeypatch.setattr("app.broker.node.LEAD_S", 0)
    return let


def told(broker: RunningBroker, what: str) -> list[str]:
    return [line for line in broker.lines if line.startswith(what)]


async def test_a_take_over_that_leads_after_the_start_tells_what_is_lost_and_what_is_back(
    tmp_path: Path, hold_leading: asyncio.Event
) -> None:
    await lose_the_directory(tmp_path)
    hold_leading.clear()
    async with running_broker(tmp_path, new_level=1, take_over=True) as broker:
        assert (told(broker, LOST), told(broker, BACK), broker.node.context.back) == ([], [], [])
        await broker.create_topic("new", remote_storage_enable="false")
        hold_leading.set()
        broker.node.partitions.opener.wake()
        await until(lambda: broker.node.context.back)
        assert broker.node.context.back == [("t", 1, 10)]
        assert told(broker, BACK)[0].startswith(
            f"{BACK}: 1 tiered topic with 1 partition; the end offsets add up to 10"
        )
        [untiered] = [line for line in told(broker, LOST) if "untiered" in line]
        assert "1 untiered topic: here (" in untiered, "a topic that was made since then has lost nothing"


async def test_a_take_over_that_leads_at_once_tells_it_once(tmp_path: Path) -> None:
    await lose_the_directory(tmp_path)
    async with running_broker(tmp_path, new_level=1, take_over=True) as broker:
        assert broker.node.context.back == [("t", 1, 10)]
        assert len([line for line in told(broker, LOST) if "untiered" in line]) == 1
        assert len([line for line in told(broker, BACK) if "1 tiered topic" in line]) == 1


async def test_a_bug_in_leading_again_ends_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: StartReport, *, new_directory: bool) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(StartReport, "until_led", fails)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug"), flatten_subgroups=True):
        async with running_broker(tmp_path, new_level=1):
            pass


async def test_a_broker_that_is_stopped_before_it_leads_again_is_never_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readied: list[Node] = []
    run = Node.run

    async def watched(self: Node, ready: Callable[[], None] | None = None) -> None:
        async def is_stopped(*, new_directory: bool) -> None:
            self.request_stop()
            await asyncio.Event().wait()

        monkeypatch.setattr(self.partitions.report, "until_led", is_stopped)
        await run(self, lambda: readied.append(self))

    monkeypatch.setattr(Node, "run", watched)
    async with running_broker(tmp_path, new_level=1) as broker:
        assert broker.ended.is_set()
    assert readied == []
