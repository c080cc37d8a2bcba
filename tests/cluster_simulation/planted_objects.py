"""Faults planted into the shells of object durability, one rule of ADR 0037 taken back at a time.

``tests/wal_simulation/planted.py`` takes the rules back in the pure parts. Here it is the brokers' own code that goes wrong: who
asks the store and the controller, when, and with what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

import pytest

from app.broker.composing.cluster_parts import LogSealer
from app.broker.composing.object_journal import ObjectJournal
from app.broker.write_ahead import restore as write_ahead_restore
from app.broker.write_ahead import sweep as write_ahead_sweep
from app.broker.write_ahead.switching import DurabilityChanges
from app.broker.write_ahead.write_ahead import WriteAhead, _Led
from app.core.errors import CorruptionError
from app.core.units import Offset, TopicIdPartition
from app.handlers.produce import produce
from app.hot.log import PartitionLog
from app.metadata.image.wal_ranges import WalId
from app.metadata.log.append_attempt import PutOutcome
from app.wal.format import WalFooter
from app.wal.objects import list_sizes
from app.wal.owner import WalOwner
from app.wal.trimming import WalNeeds, deletable
from app.wal.writer import DurableObject, WalWriter
from tests.cluster_simulation.objects import ObjectShape
from tests.cluster_simulation.planted import SHORT, Planted


def answers_before_the_object_is_durable(patch: pytest.MonkeyPatch) -> None:
    take = _Led.take

    def at_once(led: _Led, records: memoryview) -> None:
        take(led, records)
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: led.log.note_journaled(led.log.log_end_offset))

    patch.setattr(_Led, "take", at_once)


def releases_up_to_the_object_before_the_last(patch: pytest.MonkeyPatch) -> None:
    last_number = WriteAhead.last_number

    def too_low(wal: WriteAhead, partition: TopicIdPartition) -> int | None:
        found = last_number(wal, partition)
        return found - 1 if found is not None and found >= 0 else found

    patch.setattr(WriteAhead, "last_number", too_low)


def releases_before_it_is_flushed(patch: pytest.MonkeyPatch) -> None:
    async def at_once(_wal: WriteAhead, _partitions: Collection[TopicIdPartition]) -> None:
        """Nothing is waited for."""

    def durable_so_far(wal: WriteAhead, partition: TopicIdPartition) -> int | None:
        led = wal._stopped(partition)
        return None if led is None else led.writer.durable_end - 1

    patch.setattr(WriteAhead, "flushed", at_once)
    patch.setattr(WriteAhead, "last_number", durable_so_far)


def keeps_what_its_disk_has_past_the_end(patch: pytest.MonkeyPatch) -> None:
    continue_log = write_ahead_restore.continue_log

    async def kept(*args: Any, **named: Any) -> Any:
        try:
            return await continue_log(*args, **named)
        except CorruptionError as error:
            if "after it was restored" in str(error):
                return None
            raise

    patch.setattr(write_ahead_restore, "_cut", lambda _log, _end: None)
    patch.setattr(write_ahead_restore, "continue_log", kept)


def trims_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    def committed(journal: ObjectJournal, partition: TopicIdPartition) -> tuple[Offset, Offset] | None:
        manifest = journal._tier.manifest_of(partition)
        led = journal.write_ahead._led.get(partition) if journal.write_ahead is not None else None
        return None if manifest is None or led is None else (led.log.high_watermark, manifest.log_start_offset)

    patch.setattr(ObjectJournal, "floor_of", committed)


def forgets_what_it_has_given_up(patch: pytest.MonkeyPatch) -> None:
    resign = WriteAhead.resign

    def forgotten(wal: WriteAhead, log: PartitionLog) -> None:
        resign(wal, log)
        if wal._needs is not None:
            wal._needs.note_gone(TopicIdPartition(log.topic_id, log.partition))

    patch.setattr(WriteAhead, "resign", forgotten)


def sweeps_what_ranges_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        write_ahead_sweep, "deletable", lambda wal, numbers, end, _ranges, said: deletable(wal, numbers, end, (), said)
    )


def goes_on_in_its_sealed_log(patch: pytest.MonkeyPatch) -> None:
    on_read = WalWriter.on_read

    def unmoved(writer: WalWriter, number: int, outcome: Any) -> Any:
        if isinstance(outcome, WalFooter) and outcome.is_seal:
            return writer._durable(number)
        return on_read(writer, number, outcome)

    patch.setattr(WalWriter, "on_read", unmoved)


def takes_what_exists_for_its_own(patch: pytest.MonkeyPatch) -> None:
    on_put = WalWriter.on_put

    def trusting(writer: WalWriter, number: int, outcome: PutOutcome) -> Any:
        return on_put(writer, number, PutOutcome.WRITTEN if outcome is PutOutcome.EXISTS else outcome)

    patch.setattr(WalWriter, "on_put", trusting)


def closes_logs_without_a_seal(patch: pytest.MonkeyPatch) -> None:
    async def end(sealer: LogSealer, wal: WalId) -> int:
        return max(await list_sizes(sealer._around.store, wal), default=-1) + 1

    patch.setattr(LogSealer, "seal", end)


def switches_before_everything_is_tiered(patch: pytest.MonkeyPatch) -> None:
    async def tiered(*_: Any) -> None:
        """Nothing is waited for."""

    patch.setattr(DurabilityChanges, "_tiered", tiered)


def acknowledges_beyond_a_hole(patch: pytest.MonkeyPatch) -> None:
    tell, note_object = WalOwner._tell, WalNeeds.note_object

    def tell_all(owner: WalOwner) -> None:
        tell(owner)
        for number, flight in owner._writer._in_flight.items():
            if flight.durable:
                owner._on_acknowledged(DurableObject(number, 0, flight.sections))

    patch.setattr(WalOwner, "_tell", tell_all)
    patch.setattr(WalNeeds, "note_object", lambda needs, one: note_object(needs, one) if one.size_bytes else None)


_ALONE: Final = SHORT | {"objects": ObjectShape(alone=True), "actors": (), "producers": 3}
_LONG: Final[Mapping[str, Any]] = _ALONE | {"seconds": 15.0, "pause_s": 1.0}
_TIERED_SOON: Final[Mapping[str, Any]] = _LONG | {
    "objects": ObjectShape(alone=True, linger_ms=20, object_bytes=500, retention_bytes=4000)
}
_HASTY: Final[Mapping[str, Any]] = _LONG | {"objects": ObjectShape(alone=True, linger_ms=10, object_bytes=500)}


def judges_batches_behind_a_missing_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(produce, "check_held", lambda *_: None)


_BUMPING: Final = SHORT | {
    "bumping": True,
    "actors": (),
    "seconds": 3.0,
    "pause_s": 1.0,
    "partitions": 1,
    "producers": 1,
}

PLANTED: Final[dict[str, Planted]] = {
    "a batch behind a refused one judged by its sequence": Planted(
        judges_batches_behind_a_missing_one,
        "INV-1",
        3,
        ("room at times",),
        _BUMPING | {"objects": ObjectShape(alone=True, linger_ms=10)},
    ),
    "J2 what exists is taken for the own object": Planted(
        takes_what_exists_for_its_own, "INV-1", 20, ("isolate", "pause", "partition"), _HASTY
    ),
    "J5 answered before the object is durable": Planted(
        answers_before_the_object_is_durable, "INV-1", 3, ("wal out of order",), _ALONE
    ),
    "J5 acknowledged beyond a hole": Planted(acknowledges_beyond_a_hole, "INV-1", 5, ("wal out of order",), _HASTY),
    "J14 a process goes on in its sealed log": Planted(
        goes_on_in_its_sealed_log, "INV-1", 20, ("isolate", "pause", "partition"), _HASTY
    ),
    "J16 a log is closed without a seal": Planted(
        closes_logs_without_a_seal, "INV-1", 20, ("isolate", "pause", "partition"), _HASTY
    ),
    "J18 released up to the object before the last": Planted(
        releases_up_to_the_object_before_the_last, "INV-1", 10, ("restart", "stop and lose"), _LONG
    ),
    "J18 released before it is flushed": Planted(
        releases_before_it_is_flushed, "INV-1", 20, ("restart", "wal out of order", "join"), _LONG
    ),
    "J27 local records past the end are kept": Planted(
        keeps_what_its_disk_has_past_the_end, "INV-1", 20, ("kill leader", "wal away", "wal out of order"), _LONG
    ),
    "J33 trimmed when it is committed": Planted(
        trims_what_is_committed, "INV-5", 10, ("tier away", "disks lost"), _TIERED_SOON
    ),
    "J34 a leader forgets what it has given up": Planted(
        forgets_what_it_has_given_up, "INV-5", 30, ("join", "reassign", "tier away"), _TIERED_SOON
    ),
    "J36 sweeps what ranges name": Planted(sweeps_what_ranges_name, "INV-5", 20, ("kill", "tier away"), _LONG),
    "J40 switched before everything is tiered": Planted(
        switches_before_everything_is_tiered,
        "INV-1",
        20,
        ("alter durability", "tier away"),
        _LONG | {"objects": ObjectShape(altered=True)},
    ),
}
"""By name. Each is run with seeds from 0 on."""
