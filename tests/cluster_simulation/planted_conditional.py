"""Faults planted into conditional appends: one part of EO18 taken back at a time (ADR 0043)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from app.core.units import Offset
from app.handlers.produce import conditional
from app.hot.log import PartitionLog
from tests.cluster_simulation.conditional import INVARIANT
from tests.cluster_simulation.planted import Planted

PREPARED_S: Final = 0.002
"""How long the pool takes for a batch."""


def the_offset_alone_counts(patch: pytest.MonkeyPatch) -> None:
    check = conditional._Condition.check

    def by_offset(condition: Any, partition: Any, records: memoryview) -> None:
        asked = condition.asked
        epoch = conditional.epoch_below(partition.log, Offset(asked.end))
        offset_only = conditional.AppendRequest(asked.topic_id, asked.partition, asked.records, asked.end, epoch)
        check(condition._replace(asked=offset_only), partition, records)

    patch.setattr(conditional._Condition, "check", by_offset)


def the_check_is_made_before_the_turn(patch: pytest.MonkeyPatch) -> None:
    append = conditional.append_prepared

    async def checked_early(connection: Any, version: int, request: Any, topic: Any, partition: Any, *rest: Any) -> Any:
        *others, condition = rest
        condition(partition, others[0])
        await asyncio.sleep(PREPARED_S)  # as where a batch is prepared in between
        return await append(connection, version, request, topic, partition, *others)

    patch.setattr(conditional, "append_prepared", checked_early)


def the_check_comes_before_the_look_for_a_repeat(patch: pytest.MonkeyPatch) -> None:
    check = conditional._Condition.check

    def without_the_look(condition: Any, partition: Any, records: memoryview) -> None:
        has_batch = PartitionLog.has_batch
        PartitionLog.has_batch = lambda _log, _records: False  # type: ignore[method-assign]
        try:
            check(condition, partition, records)
        finally:
            PartitionLog.has_batch = has_batch  # type: ignore[method-assign]

    patch.setattr(conditional._Condition, "check", without_the_look)


def markers_count_as_data(patch: pytest.MonkeyPatch) -> None:
    async def at_the_end(log: PartitionLog, start: int) -> Offset | None:
        return Offset(start) if start == log.log_end_offset else None

    patch.setattr(conditional, "end_without_data", at_the_end)


def open_records_are_no_data(patch: pytest.MonkeyPatch) -> None:
    look = conditional.end_without_data

    async def committed_only(log: PartitionLog, start: int) -> Offset | None:
        stable = log.last_stable_offset
        return log.log_end_offset if stable <= start else await look(log, start)

    patch.setattr(conditional, "end_without_data", committed_only)


def the_leader_alone_acknowledges(patch: pytest.MonkeyPatch) -> None:
    append = conditional._append_when_looked

    async def at_once(*args: Any) -> Any:
        partition, _ = await append(*args)
        return partition, None

    patch.setattr(conditional, "_append_when_looked", at_once)


def refusals_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    async def at_once(partition: Any, why: str, _timeout_ms: int) -> Any:
        end, epoch = conditional._known_end(partition)
        return conditional.AppendResponse(error=why, moved=True, end=end, epoch=epoch)

    patch.setattr(conditional, "_refused", at_once)


CONDITIONAL: Final = {
    "seconds": 8.0,
    "pause_s": 1.0,
    "brokers": 3,
    "factor": 3,
    "pulses": True,
    "tiered": False,
    "unclean": False,
    "producers": 1,
    "actors": ("conditional", "transactions"),
}
"""The shape of a run with conditional appends, which need a cluster of the newest level."""
_PAIRS: Final = CONDITIONAL | {
    "seconds": 15.0,
    "pause_s": 3.0,
    "brokers": 4,
    "factor": 2,
    "partitions": 2,
    "min_in_sync": 1,
    "lag_ms": 30_000,
    "actors": ("conditional",),
}
REFUSED: Final = _PAIRS
LOST: Final = _PAIRS | {
    "seconds": 30.0,
    "pause_s": 4.0,
    "unclean": True,
    "partitions": 1,
    "lag_ms": 1_000,
    "producers": 0,
}

PLANTED: Final[dict[str, Planted]] = {
    "EO18 the offset alone": Planted(the_offset_alone_counts, INVARIANT, 6, ("end is lost",), LOST),
    "EO18 checked before the turn of the append": Planted(
        the_check_is_made_before_the_turn, INVARIANT, 3, ("kill leader",), CONDITIONAL
    ),
    "EO18 checked before the look for a repeat": Planted(
        the_check_comes_before_the_look_for_a_repeat, INVARIANT, 3, ("kill leader",), CONDITIONAL
    ),
    "EO18 markers are data": Planted(
        markers_count_as_data, INVARIANT, 6, ("reset",), CONDITIONAL | {"producers": 0, "partitions": 3}
    ),
    "EO18 records of open transactions are no data": Planted(
        open_records_are_no_data, INVARIANT, 3, ("kill leader",), CONDITIONAL
    ),
    "EO18 acknowledged by the leader alone": Planted(
        the_leader_alone_acknowledges, "INV-1", 6, ("isolate", "partition"), CONDITIONAL | {"seconds": 15.0}
    ),
    "EO18 a refusal at once": Planted(refusals_do_not_wait, INVARIANT, 3, ("refusal before a death",), REFUSED),
}
"""By name. Each is run with seeds from 0 on."""
