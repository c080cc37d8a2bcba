"""Brokers with a key of the cluster log (ADR 0036): what they do when somebody else writes there, and changes of the key."""

from __future__ import annotations

import base64
import random
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import CorruptionError, FencedError
from app.core.units import TimestampMs
from app.metadata.log import layout
from app.metadata.log.log_format import decode_proven, encode_entry
from app.metadata.view.registration import StartRefused
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import broker_on, image_of, unfenced
from tests.support.waiting import until

A, B = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))


def put_forged(path: Path, broker: RunningBroker) -> str:
    """Somebody who writes into the bucket adds an entry. Returns: its key."""
    log = broker.node.cluster.log
    number = log.next_sequence
    key = layout.entry_key(layout.CLUSTER_PREFIX, number)
    last = layout.entry_key(layout.CLUSTER_PREFIX, number - 1)
    before = decode_proven(last, number - 1, (path / "store" / last).read_bytes()).entry
    data = encode_entry(
        number,
        (),
        writer_id="mallory",
        nonce=bytes(16),
        is_seal=True,
        epoch=before.epoch + 1,
        previous=before.nonce,
        timestamp_ms=TimestampMs(1),
    )
    (path / "store" / key).write_bytes(data)
    return key


@pytest.mark.parametrize("level", [0, 2])
async def test_a_running_broker_stops_at_an_entry_that_no_broker_wrote(tmp_path: Path, level: int) -> None:
    async with running_broker(tmp_path, new_level=level, firn_cluster_log_key=A) as broker:
        await broker.create_topic("t")
        if level:
            await until(lambda: unfenced(broker))
        key = put_forged(tmp_path, broker)
        with pytest.raises((CorruptionError, FencedError)):
            await broker.node.cluster.look()
        await broker.ended.wait()
        assert broker.fenced is not None
        why = str(broker.fenced)
        assert "The cluster log cannot be trusted, so this broker stops" in why
        assert key in why
        assert "restore cluster/" in why
    assert A not in "".join(broker.lines)
    with pytest.raises(CorruptionError, match="has no proof"):
        async with running_broker(tmp_path, new_level=level, firn_cluster_log_key=A):
            pass


async def test_a_broker_starts_again_with_its_key_and_not_without_or_with_another(tmp_path: Path) -> None:
    async with running_broker(tmp_path, firn_cluster_log_key=A) as broker:
        await broker.create_topic("t")
        cluster_id = broker.node.cluster.image.cluster_id
    for key, why in ((None, "this broker has no key"), (B, "was proven with the key")):
        with pytest.raises(CorruptionError, match=why):
            async with running_broker(tmp_path, firn_cluster_log_key=key):
                pass
    async with running_broker(tmp_path, firn_cluster_log_key=A) as broker:
        assert broker.node.cluster.image.topic("t") is not None
    image = await image_of(tmp_path)
    assert (image.cluster_id, image.topic("t") is not None) == (cluster_id, True), "readers need no key"


async def test_a_broker_that_is_alone_takes_a_key_and_lays_it_down_by_restarts(tmp_path: Path) -> None:
    introducing = {"firn_cluster_log_key": A, "firn_cluster_log_key_introducing": True}
    rng = random.Random(5)  # other ids at each start
    for settings in ({}, introducing, {"firn_cluster_log_key": A}, introducing, {}):
        async with running_broker(tmp_path, rng=rng, **settings) as broker:  # type: ignore[arg-type]
            assert broker.node.cluster.image.level == 0
    async with running_broker(tmp_path, rng=rng) as broker:
        await broker.create_topic("t")
    with pytest.raises(CorruptionError, match="has no proof"):
        async with running_broker(tmp_path, rng=rng, firn_cluster_log_key=A):
            pass


async def test_a_broker_does_not_start_on_a_log_from_before_its_last_registration(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"new_level": 2, "node_id": 1, "firn_cluster_log_key": A}
    log, old = tmp_path / "store" / "cluster", tmp_path / "old"
    async with broker_on(tmp_path, "b1", **settings) as broker:
        await until(lambda: unfenced(broker))
    shutil.copytree(log, old)
    for _ in range(2):  # and who was there all the time starts again
        async with broker_on(tmp_path, "b1", **settings) as broker:
            await until(lambda: unfenced(broker))
            await broker.create_topic(f"t{broker.node.cluster.image.sequence}")
    shutil.rmtree(log)
    shutil.copytree(old, log)
    with pytest.raises(StartRefused, match="somebody has put an older state of it back"):
        async with broker_on(tmp_path, "b1", **settings):
            pass
    (tmp_path / "b1" / "data" / ".firn" / "registration").unlink()
    async with broker_on(tmp_path, "b1", **settings) as broker:
        assert not broker.node.cluster.image.topics_by_name, "the operator has put it back"


class Rolling:
    """A cluster whose brokers are started again one by one with other settings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stacks: dict[str, AsyncExitStack] = {}
        self.brokers: dict[str, RunningBroker] = {}
        self.made = 0

    async def start(self, name: str, **settings: Any) -> None:
        stack = self._stacks[name] = AsyncExitStack()
        self.brokers[name] = await stack.enter_async_context(broker_on(self._path, name, **settings))

    async def restart(self, **settings: Any) -> None:
        """Every broker, while the others serve."""
        for name in list(self.brokers):
            await self._stacks.pop(name).aclose()
            others = [one for other, one in self.brokers.items() if other != name]
            await self.start(name, **settings)
            for one in (self.brokers[name], *others):
                await until(lambda one=one: len(unfenced(one)) == len(self.brokers))  # type: ignore[misc]
            await self.brokers[name].create_topic(f"t{self.made}")
            self.made += 1
            assert all(one.fenced is None for one in self.brokers.values())

    @property
    def proven(self) -> bool:
        """Whether the whole log has the proofs that the controller gives it."""
        [log] = [one.node.cluster.log for one in self.brokers.values() if one.node.membership.controller.active]
        return log._proofs is not None and log._proofs.mark is not None and not log.proofs_differ

    async def close(self) -> None:
        for stack in self._stacks.values():
            await stack.aclose()


@pytest.mark.slow
async def test_a_key_is_introduced_changed_and_taken_away_while_the_cluster_serves(tmp_path: Path) -> None:
    cluster = Rolling(tmp_path)
    try:
        for name in ("b1", "b2", "b3"):
            await cluster.start(name)
        for broker in cluster.brokers.values():
            await until(lambda broker=broker: len(unfenced(broker)) == 3)
        await cluster.restart(firn_cluster_log_key=A, firn_cluster_log_key_introducing=True)
        await until(lambda: cluster.proven)
        await cluster.restart(firn_cluster_log_key=A)
        await until(lambda: cluster.proven)
        assert any("the whole cluster log has proofs" in line for one in cluster.brokers.values() for line in one.lines)
        for wrong, why in ((None, "this broker has no key"), (B, "was proven with the key")):
            with pytest.raises(CorruptionError, match=why):
                async with broker_on(tmp_path, "b4", firn_cluster_log_key=wrong):
                    pass
        await cluster.restart(firn_cluster_log_key=f"{A},{B}")
        await cluster.restart(firn_cluster_log_key=f"{B},{A}")
        await until(lambda: cluster.proven)
        await cluster.restart(firn_cluster_log_key=B)
        await cluster.restart(firn_cluster_log_key=B, firn_cluster_log_key_introducing=True)
        await until(lambda: cluster.proven)
        await cluster.restart()
    finally:
        await cluster.close()
    assert set((await image_of(tmp_path)).topics_by_name) == {f"t{number}" for number in range(21)}
