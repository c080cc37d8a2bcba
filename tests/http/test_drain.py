"""A hook that takes a machine away has its broker drain."""

from __future__ import annotations

import httpx

from tests.support.broker import RunningBroker


async def test_a_hook_begins_a_drain_once_and_hears_how_far_it_is(
    http: httpx.AsyncClient, broker: RunningBroker
) -> None:
    first = await http.post("/v1/drain")
    assert first.status_code == 202
    assert first.json() == {"node_id": 1, "state": "draining", "left_bytes": 0, "left_partitions": 0}
    assert broker.node.context.drain.refusal is not None
    assert (await http.post("/v1/drain")).status_code == 202
    assert (await http.get("/v1/drain")).status_code == 405
