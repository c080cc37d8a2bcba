"""The last log line of a replaced broker: the records that the new broker does not have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from app.core.errors import FirnError
from app.core.log_events import Event
from app.core.units import TopicIdPartition
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.tiering.upload.remote_log_manager import RemoteLogManager

REFRESH_S: Final = 5.0
"""How long a replaced broker reads manifests, to log the records that they lack."""
PARTITIONS_NAMED_MAX: Final = 10
"""Partitions in one log line."""


async def tell_what_stays_behind(
    logs: LogManager, tier: RemoteLogManager, *, data_dir: str, log_line: Callable[[str], None]
) -> None:
    """Name the records that the new broker does not have, as far as the manifests can be read now."""
    all_logs = logs.logs()
    starts = {log: _first_left_behind(log, tier) for log in all_logs}
    unsure = False
    try:
        async with asyncio.timeout(REFRESH_S):
            for log in all_logs:
                manifest = tier.last_manifest_of(TopicIdPartition(log.topic_id, log.partition))
                if manifest is not None and log.log_end_offset > starts[log]:
                    # The new broker may have finished an upload that was under way.
                    await manifest.refresh()
                    starts[log] = _first_left_behind(log, tier)
    except (TimeoutError, FirnError):
        unsure = True
    behind = [
        f"{log.topic}-{log.partition} [{starts[log]}, {log.log_end_offset})"
        for log in all_logs
        if log.log_end_offset > starts[log]
    ]
    if behind:
        more = f" and {len(behind) - PARTITIONS_NAMED_MAX} more" if len(behind) > PARTITIONS_NAMED_MAX else ""
        older = " (as far as this broker knows: it cannot read the store)" if unsure else ""
        log_line(
            Event.PARTITION_RECORDS_LOST.line(
                f"records that were not in the store at the take-over are only in {data_dir}, and the new broker may"
                f" have given their offsets to other records{older}: {', '.join(behind[:PARTITIONS_NAMED_MAX])}{more}",
                partitions=len(behind),
            )
        )


def _first_left_behind(log: PartitionLog, tier: RemoteLogManager) -> int:
    """The first offset of ``log`` whose record by this broker is not in the store."""
    manifest = tier.last_manifest_of(TopicIdPartition(log.topic_id, log.partition))
    if manifest is None:
        return log.log_start_offset
    # Records that were tiered later under a leader epoch that this log does not have there are the new broker's.
    mine = {one.epoch: one.start_offset for one in log.leader_epochs()}
    oldest = min(mine, default=0)
    others = [
        start
        for epoch, start in manifest.state.leader_epochs()
        if mine and epoch > oldest and start < mine.get(epoch, log.log_end_offset)
    ]
    return max(min([manifest.tiered_end, *others]), log.log_start_offset)
