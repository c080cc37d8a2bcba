"""``If-Match`` of requests that produce: append only if the partition ends where the caller has read to (ADR 0043, EO18).

An ETag names a topic's id, an offset, and the leader epoch of the last batch below it. It is opaque for callers. Routes that show a
partition return it, and so do answers of conditional appends. Tests: ``tests/http/keyed/test_if_match.py``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from fastapi import Request

from app.client.cluster import ClusterClient
from app.client.conditional_appends import ConditionalWriter, EndMoved, SeenEnd, partition_end
from app.client.producer import Acknowledged
from app.client.transactional_batches import Row
from app.core.errors import BrokerUnavailable, RequestRejected, clause
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicPartition
from app.http.errors import RestError
from app.http.keyed.asked import KeyedRecord

IF_MATCH: Final = b"if-match"
"""The name of the header, as a request's scope has it."""
_FORM: Final = re.compile(rb'\s*"([0-9a-f]{32})\.(0|[1-9][0-9]{0,18})\.(-1|0|[1-9][0-9]{0,9})"\s*')
ETAG_WITHIN_S: Final = 2.0
"""A silent leader does not hold up the answer about its partition for longer."""
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1


def etag_of(seen: SeenEnd) -> str:
    """The ETag of a place in a partition."""
    return f'"{seen.topic_id.hex}.{seen.end}.{seen.epoch}"'


def seen_end(request: Request) -> SeenEnd | None:
    """The place that a request names; None for a request without the header. Raises: RestError 400."""
    values = [value for name, value in request.scope["headers"] if name == IF_MATCH]
    if not values:
        return None
    found = _FORM.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or int(found[2]) > OFFSET_MAX or int(found[3]) > EPOCH_MAX:
        raise RestError(
            400,
            "The header If-Match must have one ETag, in the form in which GET of a partition or of its records returns it.",
        )
    return SeenEnd(UUID(found[1].decode()), Offset(int(found[2])), LeaderEpoch(int(found[3])))


async def etag_now(cluster: ClusterClient, partition: TopicPartition) -> str | None:
    """The ETag of the end of a partition's committed records; None if its leader does not tell it now."""
    try:
        async with asyncio.timeout(ETAG_WITHIN_S):
            return etag_of(await partition_end(cluster, partition, budget_ms=0))
    except (RequestRejected, BrokerUnavailable, TimeoutError):
        return None  # the rest of the answer does not depend on it


def one_partition(topic: str, records: Sequence[KeyedRecord]) -> TopicPartition:
    """The partition that each record names. Raises: RestError 400."""
    named = {record.partition for record in records}
    (partition,) = named if len(named) == 1 else (None,)
    if partition is None:
        raise RestError(400, "With the header If-Match, each record must have a partition_id, and all the same.")
    return TopicPartition(topic, PartitionIndex(partition))


def moved(error: EndMoved) -> RestError:
    """412, with the ETag of the partition's end if it is known."""
    etag = None if error.end is None else etag_of(error.end)
    return RestError(
        412, f"Nothing was stored: {clause(error)}. The ETag of If-Match is not the partition's end.", etag=etag
    )


async def append(
    writer: ConditionalWriter, topic: str, seen: SeenEnd, records: Sequence[KeyedRecord], filled_ms: TimestampMs
) -> tuple[list[Acknowledged], str]:
    """Append records as one batch. ``filled_ms``: the timestamp of records without one.

    Returns: where each is, and the ETag of the place behind them. Raises: RestError 400, 412, 503; RequestRejected.
    """
    partition = one_partition(topic, records)
    rows: list[Row] = [
        (filled_ms if one.timestamp is None else one.timestamp, one.key, one.value, one.headers) for one in records
    ]
    try:
        appended = await writer.append(partition, seen, rows)
    except EndMoved as error:
        raise moved(error) from None
    written = appended.batch
    return [
        Acknowledged(
            partition,
            Offset(written.base_offset + place),
            row[0] if written.log_append_ms < 0 else TimestampMs(written.log_append_ms),
        )
        for place, row in enumerate(rows)
    ], etag_of(appended.end)
