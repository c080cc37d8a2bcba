"""Bytes within a zone and between zones, as brokers count them by ``broker.rack``, ``client.rack`` and client ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.metrics import Registry
from app.handlers.state import zones
from app.handlers.state.zones import ZoneMeter, zone_of
from app.wire.fetch import FetchPartition
from tests.broker.three import three
from tests.handlers.conversation import batch, talk
from tests.handlers.fetching import ask, only, request
from tests.support.broker import RunningBroker, running_broker


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("orders", ""),
        ("zone_id=use1-az1", "use1-az1"),
        ("orders,ws_az=us-east-1a", "us-east-1a"),
        ("orders;zone=a;other=b", "a"),
        ("automq_type=producer&automq_az=us-east-1b", "us-east-1b"),
        ("orders,diskless_az=a", "a"),
        ("time_zone=b", ""),
        ("orders,zone=", ""),
        ("", ""),
    ],
)
def test_a_client_id_may_name_a_zone(client_id: str, zone: str) -> None:
    assert zone_of(client_id) == zone


def counted(registry: Registry) -> dict[tuple[str, str], float]:
    """Bytes by (direction, zone), without those of which there are none."""
    found = {}
    for sample in registry.samples():
        if sample.name == "firn_zone_bytes_total" and sample.value:
            labels = dict(sample.labels)
            found[labels["direction"], labels["zone"]] = sample.value
    return found


def test_zones_of_many_client_ids_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "CLIENTS_MAX", 3)
    registry = Registry()
    meter = ZoneMeter(registry, "a")
    for number in range(10):
        meter.produced(f"{number},zone=b", 1)
        meter.produced(f"{number}", 1)
    assert counted(registry) == {("in", "other"): 10}
    assert len(meter._zones) <= 3


ZONE = "rack-1"


def of(broker: RunningBroker) -> dict[tuple[str, str], float]:
    return counted(broker.node.registry)


async def test_what_clients_send_and_are_sent_is_counted_by_zones(tmp_path: Path) -> None:
    records = batch(3)
    size = len(records)
    async with running_broker(tmp_path, broker_rack=ZONE) as broker:
        await broker.create_topic("t")
        ids = {"silent": 1, f"near,ws_az={ZONE}": 3, "far,zone_id=rack-2": 5}
        for client_id, times in ids.items():
            async with talk(broker.port) as client:
                client.client_id = client_id
                for _ in range(times):  # the first goes the long way
                    await client.produce(9, [("t", [(0, records)])])
        produced = {("in", "same"): 3 * size, ("in", "other"): 5 * size}
        assert of(broker) == produced
        asked = FetchPartition(0, -1, 0, partition_max_bytes=size)
        racks = {("", "silent"): 1, (ZONE, "silent"): 2, ("rack-2", "near,ws_az=rack-1"): 4, ("", "far;zone=b"): 6}
        for (rack, client_id), times in racks.items():
            async with talk(broker.port) as client:
                client.client_id = client_id
                for _ in range(times):  # what was asked for before is kept for others
                    found = only(await ask(client, 12, request(asked, rack_id=rack)))
                    assert len(found.records) == size
        assert of(broker) == produced | {("out", "same"): 2 * size, ("out", "other"): 10 * size}


async def test_a_broker_without_a_rack_counts_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        async with talk(broker.port) as client:
            client.client_id = "zone_id=a"
            await client.produce(9, [("t", [(0, batch())])])
        assert broker.node.context.metrics.zones is None
        assert of(broker) == {}


async def test_what_followers_in_other_racks_are_sent_is_counted(tmp_path: Path) -> None:
    records = batch(3)
    async with three(tmp_path) as cluster:
        await cluster.fill(records)
        await cluster.everywhere(3)
        assert of(cluster.leader) == {("replication", "other"): 2 * len(records)}
