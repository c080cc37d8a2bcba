"""Hands entries of segment manifests to the followers of the partitions that this broker leads (ADR 0024, T8).

Only entries that are durable are handed on, as they are in the bucket. So it does no harm if this broker does not lead any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from app.core.errors import ErrorCode
from app.core.units import BrokerId, PartitionIndex, TopicId, TopicIdPartition
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import PeersView
from app.metadata.manifest.manifest_entries import ManifestEntries
from app.metadata.peers.control import ManifestInfo, ManifestsRequest, ManifestsResponse
from app.wire.apikeys import ApiKey
from app.wire.private import pack, unpack

WAIT_MS_MAX: Final = 10_000
BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of one answer. A single entry may be longer."""
ASKED_MAX: Final = 10_000
"""Partitions in one response. The follower asks for the others again."""


async def handle_manifests(context: PeersView, request: Request, message: bytes) -> bytes:
    """New entries of the manifests that a follower follows, and those that it lacks. Raises: ProtocolError."""
    del request
    asked = unpack(ManifestsRequest, message)
    if asked.cluster_id != context.image.cluster_id:
        return pack(ManifestsResponse(int(ErrorCode.INCONSISTENT_CLUSTER_ID)))
    entries = context.manifest_entries
    if entries is None or asked.broker_id not in context.image.brokers:
        return pack(ManifestsResponse(int(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    broker_id = BrokerId(asked.broker_id)

    def wanted(key: TopicIdPartition) -> bool:
        image = context.image.partition(key.topic_id, key.partition)
        return image is not None and broker_id in image.replicas

    if asked.term != entries.term:
        # This follower has no entries of this term yet. It asks for each partition first, and gets new entries from now on.
        return pack(
            ManifestsResponse(0, entries.term, entries.end, True, (), _given(context, entries, asked.asked, wanted))
        )
    if not asked.asked:
        found = entries.after(asked.place, wanted, BYTES_MAX)
        if found is not None and not found[0]:
            await entries.wait(min(max(asked.wait_ms, 0), WAIT_MS_MAX) / 1000)
    found = entries.after(asked.place, wanted, BYTES_MAX)
    given = _given(context, entries, asked.asked, wanted)
    if found is None:
        return pack(ManifestsResponse(0, entries.term, entries.end, True, (), given))
    some, place = found
    return pack(
        ManifestsResponse(
            0, entries.term, place, False, tuple((*one.key, one.sequence, one.body) for one in some), given
        )
    )


def _given(
    context: PeersView,
    entries: ManifestEntries,
    asked: tuple[tuple[UUID, int, int], ...],
    wanted: Callable[[TopicIdPartition], bool],
) -> tuple[ManifestInfo, ...]:
    given: list[ManifestInfo] = []
    left = BYTES_MAX
    for topic_id, index, sequence in asked[:ASKED_MAX]:
        key = TopicIdPartition(TopicId(topic_id), PartitionIndex(index))
        manifest = context.remote_log_manager.manifest_of(key)
        if manifest is None or not wanted(key):
            given.append(ManifestInfo(topic_id, index, -1))
            continue
        bodies = entries.of(key, sequence, manifest.version) or []
        left -= sum(map(len, bodies))
        given.append(ManifestInfo(topic_id, index, manifest.version, tuple(bodies) if left >= 0 else ()))
    return tuple(given)


def _refuse(request: Request, message: object, code: ErrorCode, why: str) -> None:
    return None


APIS: Final[ApiTable] = {ApiKey.FIRN_MANIFESTS: Api(handle_manifests, _refuse)}
