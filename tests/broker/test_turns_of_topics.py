"""INV-15 for changes of the cluster: none of 10,000 partitions, or of many topics, holds the loop for more than 50 ms of CPU.

CPU time of the loop's thread is counted, garbage collection included, until the broker has followed the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.machine.garbage import ShortCollections
from app.machine.runtime import raise_descriptor_limit, settle_memory
from app.metadata.image.records import LEVEL_MAX
from app.wire.apikeys import ApiKey
from app.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.elect_leaders import ElectLeadersRequest
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.codec import decode_response
from app.wire.framing import request_frame
from app.wire.header import parse_response_header
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import unfenced
from tests.support.turns import TRIES, TURN_MS_MAX, CountedPool, Line, Measured
from tests.support.waiting import until

TIMEOUT_MS = 60_000
TOPIC, BROKER = 2, 4
WIDE = 10_000
TOPICS = 1_000


class Asker(NamedTuple):
    """A broker that is measured."""

    measured: Measured
    line: Line
    numbers: Iterator[int]

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        answer = self.line.ask(request_frame(key, version, 1, "topics", message))
        assert answer is not None
        view = memoryview(answer)
        return decode_response(key, version, view[parse_response_header(view, key, version).body_start :])

    def check(self, name: str, change: Callable[[], Any]) -> None:
        """Fail if each of several tries had a turn that was too long. ``change`` changes other topics each time."""
        loop = self.measured.loop
        assert loop is not None
        found = []
        for _ in range(TRIES):
            self.measured.settle()
            loop.begin()
            change()
            self.measured.settle()
            found.append(loop.longest_ns / 1e6)
            if found[-1] <= TURN_MS_MAX:
                return
        raise AssertionError(f"{name}: the longest turns had {[round(each) for each in found]} ms of CPU")

    def create(self, names: list[str], partitions: int) -> None:
        made = self.ask(
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], []) for name in names], TIMEOUT_MS),
        )
        assert {one.error_code for one in made.topics} == {0}

    def delete(self, names: list[str]) -> None:
        states = [DeleteTopicState(name) for name in names]
        made = self.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=states, timeout_ms=TIMEOUT_MS))
        assert {one.error_code for one in made.responses} == {0}

    def alter(self, kind: int, names: list[str], setting: str) -> None:
        changed = [AlterableConfig(setting, 0, str(100_000_000 + next(self.numbers)))]
        resources = [AlterConfigsResource(kind, name, changed) for name in names]
        made = self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources, False))
        assert {one.error_code for one in made.responses} == {0}

    def new(self, count: int, kind: str) -> list[str]:
        return [f"{kind}-{next(self.numbers)}" for _ in range(count)]


@pytest.fixture(params=[0, LEVEL_MAX], ids=["alone", "newest level"])
def asker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Asker]:
    @asynccontextmanager
    async def live() -> AsyncIterator[RunningBroker]:
        async with running_broker(
            tmp_path, new_level=request.param, pool=CountedPool(4), descriptors_max=raise_descriptor_limit()
        ) as broker:
            if request.param:
                await until(lambda: unfenced(broker))
            collections = ShortCollections(asyncio.get_running_loop().call_soon_threadsafe)
            settle_memory(collections)  # as the process of a broker does
            try:
                yield broker
            finally:
                collections.end()

    measured = Measured(live)
    try:
        with Line(measured.made.port) as line:
            asker = Asker(measured, line, count())
            asker.create(["first"], 1)
            yield asker
    finally:
        measured.close()


@pytest.mark.slow
def test_no_change_of_a_topic_of_10_000_partitions_holds_the_loop(asker: Asker) -> None:
    made: list[str] = []

    def create() -> None:
        made.extend(asker.new(1, "wide"))
        asker.create(made[-1:], WIDE)

    asker.check("creation", create)
    asker.check("setting of the topic", lambda: asker.alter(TOPIC, made[-1:], "retention.ms"))
    asker.check("setting of the brokers", lambda: asker.alter(BROKER, [""], "log.retention.ms"))
    asker.check("election", lambda: asker.ask(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(0, None, TIMEOUT_MS)))
    asker.check("deletion", lambda: asker.delete([made.pop()]) if made else create())


@pytest.mark.slow
def test_no_growth_to_10_000_partitions_and_no_change_of_topics_of_1_000_holds_the_loop(asker: Asker) -> None:
    small = asker.new(TRIES, "small")
    asker.create(small, 1)

    def grow() -> None:
        grown = [CreatePartitionsTopic(small.pop(), WIDE, None)]
        made = asker.ask(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(grown, TIMEOUT_MS, False))
        assert {one.error_code for one in made.results} == {0}

    asker.check("growth", grow)
    made: list[list[str]] = []

    def create() -> None:
        made.append(asker.new(10, "tall"))
        asker.create(made[-1], WIDE // 10)

    asker.check("creation", create)
    asker.check("settings", lambda: asker.alter(TOPIC, made[-1], "retention.ms"))
    asker.check("deletion", lambda: asker.delete(made.pop()) if made else create())


@pytest.mark.slow
def test_no_change_of_1_000_topics_holds_the_loop(asker: Asker) -> None:
    made: list[list[str]] = []

    def create() -> None:
        made.append(asker.new(TOPICS, "many"))
        asker.create(made[-1], 1)

    asker.check("creation", create)
    asker.check("settings of topics", lambda: asker.alter(TOPIC, made[-1], "retention.ms"))
    asker.check("setting of the brokers", lambda: asker.alter(BROKER, [""], "log.retention.ms"))
    asker.check("deletion", lambda: asker.delete(made.pop()) if made else create())
