from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from app.core.units import BrokerId
from app.http.console.pages.brokers import MOVED_PARTITIONS_MAX, move_progress, numbers_of, progress_of
from app.security.acls import Operation, ResourceType
from app.wire.private import ClusterMove, MetricSample, PartitionTierStatus, TierStatusResponse
from tests.http.secured import secured

MOVE = ClusterMove("t", 0, [1, 2, 3], [2, 3], [1])


def sample(name: str, value: float, **labels: str) -> MetricSample:
    return MetricSample(name, "gauge", "", name, [*labels.items()], value)


def status(end: int, role: str = "follower", start: int = 100, topic: str = "t") -> TierStatusResponse:
    fields: dict[str, object] = {}
    for one in msgspec.structs.fields(PartitionTierStatus):
        if one.required:
            fields[one.name] = topic if one.name == "topic" else "off" if one.name == "state" else 0
    offsets = {"log_start_offset": start, "high_watermark": 1100, "log_end_offset": end, "role": role}
    made = PartitionTierStatus(**{**fields, **offsets})  # type: ignore[arg-type]
    return TierStatusResponse([made])


async def test_the_numbers_of_a_brokers_processes_are_added_up() -> None:
    told = {
        BrokerId(1): [
            sample("firn_build_info", 1, version="9.9", python="3"),
            sample("process_resident_memory_bytes", 10, process="broker"),
            sample("process_resident_memory_bytes", 5, process="store"),
            sample("process_start_time_seconds", 50, process="store"),
            sample("process_start_time_seconds", 40, process="broker"),
        ]
    }
    (own,) = (await numbers_of(told)).values()
    assert own.version == "9.9"
    assert own.get("process_resident_memory_bytes") == 15
    assert own.get("process_start_time_seconds") == 40
    assert own.get("firn_draining") is None


def test_a_move_is_as_far_as_its_new_replica_furthest_behind() -> None:
    told = {BrokerId(1): status(1100, "leader"), BrokerId(2): status(1100), BrokerId(3): status(350)}
    (found,) = progress_of([MOVE], {("t", 0): [1, 2]}, told)
    assert (found.caught_up, found.left, found.part) == (1, 750, 0.25)


def test_a_move_whose_brokers_do_not_tell_has_no_progress() -> None:
    leader = {BrokerId(1): status(1100, "leader")}
    for told in ({}, leader, {**leader, BrokerId(2): status(1100)}, {**leader, BrokerId(2): status(1, topic="u")}):
        (found,) = progress_of([MOVE], {}, told)
        assert (found.caught_up, found.left, found.part) == (0, None, None)


def test_a_move_of_an_empty_partition_has_all_of_it() -> None:
    told = {BrokerId(1): status(1100, "leader", start=1100), BrokerId(2): status(1100), BrokerId(3): status(1100)}
    (found,) = progress_of([MOVE], {}, told)
    assert (found.left, found.part) == (0, 1.0)


async def test_the_page_has_each_broker_with_its_version_and_state(http: httpx.AsyncClient, cluster: str) -> None:
    text = (await http.get("/console/brokers")).text
    assert '<td data-label="Version">' in text
    assert '<span class="quiet">alive</span>' in text
    assert '<span class="tag">controller</span>' in text
    assert "No partition is being moved." in text
    assert "firn cluster rebalance --dry-run" in text


async def test_a_caller_without_the_right_sees_addresses_and_the_reason(tmp_path: Path) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol", "dave")
        await http.allow("dave", (Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"))
        assert 'data-label="Version"' in (await http.ask("dave", "/console/brokers")).text
        page = await http.ask("carol", "/console/brokers")
        assert page.status_code == 200
        assert f"127.0.0.1:{http.port}" in page.text
        assert "DESCRIBE" in page.text
        assert 'data-label="Version"' not in page.text


async def test_a_drain_is_told_in_the_brokers_own_sentence(
    http: httpx.AsyncClient, cluster: str, broker: object
) -> None:
    before = (await http.get("/console/brokers")).text
    assert "draining" not in before
    broker.node.context.drain.begin()  # type: ignore[attr-defined]
    text = (await http.get("/console/brokers")).text
    assert '<span class="tag will">draining</span>' in text
    assert broker.node.context.drain.sentence() in text  # type: ignore[attr-defined]


class Many(tuple[Any, ...]):
    """Partitions that no page may go through."""

    def __iter__(self) -> Any:
        raise AssertionError("All partitions of a topic were looked at.")


@pytest.mark.parametrize("topics", [{}, {"t": SimpleNamespace(partitions=Many(()))}])
async def test_moves_of_topics_that_are_gone_have_no_progress(topics: dict[str, Any]) -> None:
    assert [one.caught_up for one in await move_progress(gateway_with(topics), [MOVE], [])] == [0]


async def test_the_progress_of_a_move_looks_at_the_partitions_that_move_alone() -> None:
    some = Many([SimpleNamespace(in_sync_replicas=(1, 2))] * (MOVED_PARTITIONS_MAX + 1))
    (found,) = await move_progress(gateway_with({"t": SimpleNamespace(partitions=some)}), [MOVE], [BrokerId(1)])
    assert (found.caught_up, found.left) == (1, None)


def gateway_with(topics: dict[str, Any]) -> Any:
    async def refresh(names: Any) -> Any:
        return SimpleNamespace(topics=topics)

    return SimpleNamespace(cluster=SimpleNamespace(refresh=refresh))


async def test_the_settings_of_a_broker_are_explained_and_those_that_differ_come_first(
    http: httpx.AsyncClient, cluster: str
) -> None:
    [path] = set(re.findall(r'href="(/console/brokers/[^"]+)"', (await http.get("/console/brokers")).text))
    text = (await http.get(path)).text
    changed, others = text.split(">Defaults <")
    assert "<code>listeners</code>" in changed
    assert 'data-label="Otherwise"' in changed
    assert '<code>auto.create.topics.enable</code></summary><p class="quiet">' in text
    assert 'class="quiet from">default</td>' in others
    assert 'class="quiet from">default</td>' not in changed
    for missing in ("99", "x", "-1", "9" * 40):
        assert (await http.get(f"/console/brokers/{missing}")).status_code == 404, missing
