"""Entries of segment manifests, as a leader hands them to a follower (ADR 0024, T8)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from app.core.errors import ErrorCode, ProtocolError
from app.core.units import PartitionIndex, TopicId, TopicIdPartition
from app.handlers.apis import manifests
from app.handlers.apis.manifests import APIS, handle_manifests
from app.metadata.manifest.manifest_entries import ManifestEntries
from app.metadata.peers.control import ManifestInfo, ManifestsRequest, ManifestsResponse
from app.wire.apikeys import ApiKey
from app.wire.private import pack, unpack
from tests.support.virtual_loop import VirtualLoop, run_virtual

TOPIC = TopicId(UUID(int=1))
FOLLOWER, TERM = 2, "term"


def key(index: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, PartitionIndex(index))


class Leader:
    """Leads partitions 0 to 2; the follower has replicas of the first two. Partition 2 of the image has no manifest."""

    def __init__(self) -> None:
        self.manifest_entries: ManifestEntries | None = ManifestEntries(TERM)
        self.versions = {key(0): 0, key(1): 0, key(3): 0}
        replicas = {0: (1, FOLLOWER), 1: (1, FOLLOWER), 2: (1, FOLLOWER), 3: (1,)}
        self.image = SimpleNamespace(
            cluster_id="c",
            brokers={1: None, FOLLOWER: None},
            partition=lambda _topic_id, index: SimpleNamespace(replicas=replicas[index]) if index in replicas else None,
        )
        self.remote_log_manager = self

    def manifest_of(self, partition: TopicIdPartition) -> Any:
        version = self.versions.get(partition)
        return None if version is None else SimpleNamespace(version=version)

    def stored(self, index: int, body: bytes) -> None:
        assert self.manifest_entries is not None
        self.manifest_entries.add(key(index), self.versions[key(index)], body)
        self.versions[key(index)] += 1

    async def ask(self, *asked: tuple[int, int], **fields: Any) -> ManifestsResponse:
        """``asked``: partitions with the number of the next entry."""
        request = {"cluster_id": "c", "broker_id": FOLLOWER, "term": TERM, "place": 0, "wait_ms": 0} | fields
        message = ManifestsRequest(**request, asked=tuple((TOPIC, index, number) for index, number in asked))
        context: Any = self
        nothing: Any = None
        return unpack(ManifestsResponse, await handle_manifests(context, nothing, pack(message)))


def test_the_api_is_served() -> None:
    assert APIS[ApiKey.FIRN_MANIFESTS].handle is handle_manifests


async def test_new_entries_of_the_followers_partitions_are_handed_on_in_their_order() -> None:
    leader = Leader()
    for index, body in ((0, b"a"), (3, b"not the follower's"), (1, b"b"), (0, b"c")):
        leader.stored(index, body)
    assert await leader.ask() == ManifestsResponse(
        0, TERM, 4, False, ((TOPIC, 0, 0, b"a"), (TOPIC, 1, 0, b"b"), (TOPIC, 0, 1, b"c"))
    )
    assert await leader.ask(place=3) == ManifestsResponse(0, TERM, 4, False, ((TOPIC, 0, 1, b"c"),))


async def test_a_follower_of_another_cluster_or_of_none_gets_nothing() -> None:
    leader = Leader()
    leader.stored(0, b"a")
    assert await leader.ask(cluster_id="d") == ManifestsResponse(int(ErrorCode.INCONSISTENT_CLUSTER_ID))
    assert await leader.ask(broker_id=9) == ManifestsResponse(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    leader.manifest_entries = None
    assert await leader.ask() == ManifestsResponse(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    nothing: Any = None
    with pytest.raises(ProtocolError):
        await handle_manifests(nothing, nothing, b"\xff")


async def test_a_follower_of_another_term_asks_for_each_partition_and_goes_on_from_the_end() -> None:
    leader = Leader()
    leader.stored(0, b"a")
    leader.stored(0, b"b")
    given = (ManifestInfo(TOPIC, 0, 2, (b"b",)),)
    assert await leader.ask((0, 1), term="older", place=77) == ManifestsResponse(0, TERM, 2, True, (), given)


async def test_a_place_whose_entries_are_gone_is_lost() -> None:
    leader = Leader()
    leader.manifest_entries = ManifestEntries(TERM, entries_max=1)
    leader.stored(0, b"a")
    leader.stored(0, b"b")
    given = (ManifestInfo(TOPIC, 0, 2, (b"b",)),)
    assert await leader.ask((0, 1)) == ManifestsResponse(0, TERM, 2, True, (), given)
    assert await leader.ask((0, 0)) == ManifestsResponse(0, TERM, 2, True, (), (ManifestInfo(TOPIC, 0, 2),))


async def test_manifests_that_are_not_known_or_not_the_followers_have_no_version() -> None:
    leader = Leader()
    leader.stored(3, b"a")
    answer = await leader.ask((2, 0), (3, 0), (4, 0), (1, 0))
    assert answer.given == tuple(
        ManifestInfo(TOPIC, index, version) for index, version in ((2, -1), (3, -1), (4, -1), (1, 0))
    )


async def test_an_answer_about_many_partitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    leader.stored(0, b"four")
    leader.stored(1, b"four")
    monkeypatch.setattr(manifests, "BYTES_MAX", 8)
    assert [one.entries for one in (await leader.ask((0, 0), (1, 0))).given] == [(b"four",), (b"four",)]
    monkeypatch.setattr(manifests, "BYTES_MAX", 7)
    assert [one.entries for one in (await leader.ask((0, 0), (1, 0))).given] == [(b"four",), ()]
    monkeypatch.setattr(manifests, "ASKED_MAX", 1)
    assert [one.partition for one in (await leader.ask((0, 0), (1, 0))).given] == [0]


def waited_s(entry_after_s: float | None, **fields: Any) -> tuple[float, int]:
    """How long an answer takes, and its entries, if an entry becomes durable after some time."""
    found: list[tuple[float, int]] = []

    async def main(loop: VirtualLoop) -> None:
        leader = Leader()
        if entry_after_s is not None:
            loop.call_later(entry_after_s, leader.stored, 0, b"a")
        answer = await leader.ask(**fields)
        found.append((loop.time(), len(answer.entries)))

    run_virtual(main, seconds_max=100)
    return found[0]


def test_a_follower_waits_for_the_next_entry() -> None:
    assert waited_s(3.0, wait_ms=5_000) == (pytest.approx(3.0, abs=0.1), 1)


@pytest.mark.parametrize(("wait_ms", "wait_s"), [(5_000, 5), (60_000, 10), (-1, 0)])
def test_a_wait_without_an_entry_ends_in_time(wait_ms: int, wait_s: float) -> None:
    took_s, count = waited_s(None, wait_ms=wait_ms)
    assert (took_s, count) == (pytest.approx(wait_s, abs=0.2), 0)


async def test_a_follower_that_asks_for_partitions_does_not_wait() -> None:
    leader = Leader()
    async with asyncio.timeout(5):
        assert (await leader.ask((0, 0), wait_ms=60_000)).entries == ()
