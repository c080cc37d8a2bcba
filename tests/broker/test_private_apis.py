"""Firn's own API keys, sent by somebody who can reach the listener and means no good (ADR 0003)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.core.errors import ErrorCode
from app.core.units import Offset, TimestampMs, TopicId
from app.handlers.state.draining import DrainState
from app.metadata.peers.control import (
    CREATE_TOPIC,
    LEAVE,
    ChangeRequest,
    ChangeResponse,
    EntriesRequest,
    EntriesResponse,
    HeardRequest,
    HeardResponse,
    HoldId,
    HoldRequest,
    HoldResponse,
    LookRequest,
    LookResponse,
    ManifestsRequest,
    ManifestsResponse,
    PulseRequest,
    PulseResponse,
    RegisterRequest,
    RegisterResponse,
)
from app.tiering.upload.tier_status import partition_status
from app.wire.apikeys import ApiKey
from app.wire.private import (
    PlaceRequest,
    PlaceResponse,
    TierSegmentsRequest,
    TierSegmentsResponse,
    TierStatusRequest,
    TierStatusResponse,
    pack,
    unpack,
)
from app.wire.versions import PRIVATE
from tests.handlers.conversation import batch, produce_one, talk
from tests.support.broker import running_broker
from tests.support.waiting import until


async def test_what_is_no_request_of_a_private_api_ends_its_connection_and_changes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        assert await produce_one(client) is ErrorCode.NONE
        for key in sorted(PRIVATE):
            for message in (b"", b"\xff\xff", b"\x80", b"\x90" * 1000):
                async with talk(broker.port) as forger:
                    forger.send(key, 0, message)
                    assert await forger.closed(), key
        assert broker.node.context.drain.state is DrainState.SERVING
        assert await produce_one(client) is ErrorCode.NONE
        assert broker.log("t").log_end_offset == 2


async def test_the_tiers_of_some_topics_are_told_without_a_look_at_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    def counted(partition: Any, now_ms: TimestampMs) -> Any:
        looked_at.append(partition.log.topic)
        return partition_status(partition, now_ms)

    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        for name in ("a", "b", "c"):
            await broker.create_topic(name, 2)
        await until(lambda: len(broker.node.context.remote_log_manager.status()) >= 6)
        monkeypatch.setattr("app.tiering.upload.remote_log_manager.partition_status", counted)

        async def told(*topics: str) -> list[tuple[str, int]]:
            answer = await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(TierStatusRequest([*topics])))
            return [(one.topic, one.partition) for one in unpack(TierStatusResponse, answer).partitions]

        assert await told("c", "a", "none") == [("a", 0), ("a", 1), ("c", 0), ("c", 1)]
        assert sorted(looked_at) == ["a", "a", "c", "c"]
        assert len(await told()) >= 6


async def test_the_compacted_part_of_a_log_is_told(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        for name, policy in (("t", "compact"), ("plain", "delete")):
            await broker.create_topic(name, cleanup_policy=policy)

        async def told() -> list[int]:
            answer = await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(TierStatusRequest(["t", "plain"])))
            return [one.cleaned_end_offset for one in unpack(TierStatusResponse, answer).partitions]

        await until(lambda: len(broker.node.context.remote_log_manager.status()) >= 2)
        assert await told() == [-1, 0]
        broker.log("t").cleaned_end_offset = Offset(7)
        broker.log("plain").cleaned_end_offset = Offset(7)
        assert await told() == [-1, 7], "nothing of the other topic is compacted any more"


async def test_partitions_and_offsets_that_there_are_not_are_answered_with_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")

        async def segments(topic: str, partition: int, offset: int = 0) -> TierSegmentsResponse:
            asked = TierSegmentsRequest(topic, partition, offset)
            return unpack(TierSegmentsResponse, await client.ask(ApiKey.FIRN_TIER_SEGMENTS, 0, pack(asked)))

        async with asyncio.timeout(60):
            while not (await segments("t", 0)).segments:  # it is not in the tier's hands before its manifest is there
                await asyncio.sleep(0.002)
        for topic, partition in (("../t", 0), ("", 0), ("t", 1), ("t", -1), ("t", 2**63)):
            found = await segments(topic, partition)
            assert (found.segments, found.error) == ([], f"There is no partition {topic}-{partition}.")
        for offset in (-(2**63), 0, 2**64 - 1):
            assert [one.state for one in (await segments("t", 0, offset)).segments] == ["ACTIVE"]
        asked = TierStatusRequest(["../t", "t", ""])
        status = unpack(TierStatusResponse, await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(asked)))
        assert ([one.topic for one in status.partitions], status.missing) == (["t"], ["", "../t"])


async def test_a_forged_notice_of_a_take_over_costs_a_look_and_the_broker_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.handlers.state.acknowledging.TOLD_INTERVAL_S", 3600.0)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", retention_ms="-1")
        assert await produce_one(client) is ErrorCode.NONE
        cluster_id, node_id = broker.node.cluster.image.cluster_id, broker.node.config.node_id
        directory_id = broker.node.cluster.identity.directory_id

        async def tell(*named: object, by: str = "somebody") -> PlaceResponse:
            asked = PlaceRequest(*named, by)  # type: ignore[arg-type]
            return unpack(PlaceResponse, await client.ask(ApiKey.FIRN_PLACE, 0, pack(asked)))

        for named in (
            ("another cluster", node_id, directory_id),
            (cluster_id, node_id + 1, directory_id),
            (cluster_id, node_id, UUID(int=1)),
        ):
            told = await tell(*named)
            assert not told.looks
            assert (told.untiered_bytes, told.untiered_partitions) == (0, 0)
            assert (told.cluster_id, told.node_id, told.directory_id) == (cluster_id, node_id, directory_id)
        assert not (await tell(cluster_id, node_id, directory_id, by="")).looks
        told = await tell(cluster_id, node_id, directory_id)
        assert (told.looks, told.untiered_bytes, told.untiered_partitions) == (True, len(batch()), 1)
        assert await produce_one(client) is ErrorCode.NONE, "it has looked, and nobody has its place"
        assert not (await tell(cluster_id, node_id, directory_id)).looks, "not again so soon"
        assert await produce_one(client) is ErrorCode.NONE
        assert broker.fenced is None
        assert broker.log("t").log_end_offset == 3


async def test_a_broker_that_is_no_controller_changes_nothing_for_another(tmp_path: Path) -> None:
    """One of level 0, here: it has no desk, whatever it is told (ADR 0023)."""
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        image = broker.node.cluster.image
        node_id, before = broker.node.config.node_id, broker.node.cluster.log.next_sequence
        for cluster_id in (image.cluster_id, "another cluster"):
            entries = EntriesRequest(cluster_id, 0, 2**40)
            found = unpack(EntriesResponse, await client.ask(ApiKey.FIRN_ENTRIES, 0, pack(entries)))
            assert (bool(found.error), found.entries) == (True, ())
            asked = RegisterRequest(
                cluster_id, node_id, UUID(int=7), UUID(int=8), -1, -1, -1, "", "", (), None, "", 0, 9, force=True
            )
            assert unpack(RegisterResponse, await client.ask(ApiKey.FIRN_REGISTER, 0, pack(asked))).error
            told = ManifestsRequest(cluster_id, node_id, "", -5, 2**40, ((UUID(int=7), -1, 2**70 % 2**63),))
            manifests = unpack(ManifestsResponse, await client.ask(ApiKey.FIRN_MANIFESTS, 0, pack(told)))
            assert (bool(manifests.error), manifests.entries, manifests.given) == (True, (), ())
            looked = LookRequest(cluster_id, 2**62, ((-1, 2**15),), (("t", 0, 7, -(2**62)),))
            answer = unpack(LookResponse, await client.ask(ApiKey.FIRN_TRANSACTIONS, 0, pack(looked)))
            assert (bool(answer.error_code), answer.led, answer.opened) == (True, (), ())
            epoch = image.controller.epoch
            for hold in (HoldId(TopicId(UUID(int=7)), epoch, 1), HoldId(TopicId(UUID(int=7)), 2**40, 1)):
                for partitions in ((), ((0, 0),)):
                    held = HoldRequest(cluster_id, hold, -1, partitions)
                    assert unpack(HoldResponse, await client.ask(ApiKey.FIRN_HOLD, 0, pack(held))).error
            assert not broker.node.remote_log_manager.held_topics
            pulse = PulseRequest(cluster_id, node_id, 0, True, 0, 0, 0)
            assert unpack(PulseResponse, await client.ask(ApiKey.FIRN_PULSE, 0, pack(pulse))).error
            heard = HeardRequest(cluster_id, node_id)
            assert not unpack(HeardResponse, await client.ask(ApiKey.FIRN_MEMBERS, 0, pack(heard))).heard
            for name in (LEAVE, CREATE_TOPIC, "format-the-disk"):
                for epoch in (-1, image.brokers[node_id].broker_epoch):
                    change = ChangeRequest(cluster_id, node_id, epoch, name, b"\xff")
                    assert unpack(ChangeResponse, await client.ask(ApiKey.FIRN_CHANGE, 0, pack(change))).error
        assert broker.node.cluster.log.next_sequence == before
        assert broker.fenced is None
