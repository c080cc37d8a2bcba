"""Faults planted into the rules of ADR 0037, one rule taken back at a time, by wrappers around the cores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from app.errors import ErrorCode, RequestRejected
from app.hot.checkpoints import EpochStart
from app.hot.producers import ProducerStates
from app.metadata.append_attempt import PutOutcome
from app.metadata.wal_ranges import WalId, WalRange
from app.units import NO_TIMESTAMP, Offset, TimestampMs, TopicIdPartition
from app.wal.format import SectionDraft, WalFooter, encode_object
from app.wal.sealing import Action as SealAction
from app.wal.sealing import Found, Sealed, Sealing
from app.wal.takeover import NeedsManifest, TakeOver, Tiered, continue_from, local_end
from app.wal.trimming import Registration, WalNeeds, deletable
from app.wal.writer import Action, DurableObject, DurableSection, Put, WalWriter
from tests.wal_simulation.faults import KINDS
from tests.wal_simulation.rules import Rules


@dataclass(frozen=True, slots=True)
class Planted:
    """A rule taken back, and the checker meant for it."""

    rules: Rules
    found_by: str
    seeds: int
    """Within so many seeds it is found."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the seeds' plans: faults that the rule is about."""


def _often(*kinds: str, weight: int = 30) -> dict[str, Any]:
    """Faults of these kinds often, and all others as usual."""
    assert KINDS.keys() >= set(kinds), kinds
    return {"weights": {**KINDS, **dict.fromkeys(kinds, weight)}}


# --- how an object becomes durable ------------------------------------------------------------------------------------


class _ChangingWriter(WalWriter):
    """J2: a try that comes later has more records."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._drafts: dict[int, list[SectionDraft]] = {}
        self._tried: set[int] = set()

    def _draft(self, partition: TopicIdPartition, batches: Sequence[Any], number: int) -> SectionDraft:
        draft = super()._draft(partition, batches, number)
        self._drafts.setdefault(number, []).append(draft)
        return draft

    def bytes_of(self, number: int) -> bytes:
        if number in self._tried and self._waiting and number == self.next_number - 1:
            first = self._waiting[0]
            drafts = self._drafts[number]
            for index, draft in enumerate(drafts):
                if draft.partition == first.partition and first.state is None:
                    self._waiting.popleft()
                    self._waiting_bytes -= len(first.data)
                    self._led[first.partition].waiting -= 1
                    drafts[index] = draft._replace(
                        parts=[*draft.parts, first.data], batches=[*draft.batches, first.fields]
                    )
                    flight = self._in_flight[number]
                    data, footer = encode_object(self.wal, number, flight.nonce, TimestampMs(0), drafts)
                    self._in_flight_bytes += len(data) - len(flight.data)
                    flight.data = data
                    flight.sections = tuple(
                        DurableSection(each.partition, each.end_offset, each.state_number, each.leader_epoch)
                        for each in footer.sections
                    )
                    break
        self._tried.add(number)
        return super().bytes_of(number)


class _TrustingWriter(WalWriter):
    """J2: an object that exists is taken for the own one."""

    def on_put(self, number: int, outcome: PutOutcome) -> Action:
        return super().on_put(number, PutOutcome.WRITTEN if outcome is PutOutcome.EXISTS else outcome)


class _ImpatientWriter(WalWriter):
    """J3: a number is given up after a few tries."""

    def on_put(self, number: int, outcome: PutOutcome) -> Action:
        if outcome is PutOutcome.UNDECIDED and self._in_flight[number].failures >= 2:
            return super().on_put(number, PutOutcome.WRITTEN)
        return super().on_put(number, outcome)


class _EagerWriter(WalWriter):
    """J5: an object counts as soon as it is durable itself."""

    def _durable(self, number: int) -> Any:
        flight = self._in_flight[number]
        if not flight.durable:
            self._acknowledged.append(DurableObject(number, 0, flight.sections))
        counted = len(self._acknowledged)
        done = super()._durable(number)
        del self._acknowledged[counted:]
        return done


class _HastyOrderWriter(WalWriter):
    """J6: the newest batches that fit go first."""

    def cut(self, now_ms: int, created_ms: TimestampMs = NO_TIMESTAMP) -> Put | None:
        waiting = list(self._waiting)
        ready = all(batch.state is None and self._led[batch.partition].state_number >= 0 for batch in waiting)
        if ready and self.window_is_open and self._waiting_bytes > self._object_bytes:
            size = count = 0
            begins: dict[TopicIdPartition, Offset] = {}
            for batch in reversed(waiting):
                fits = size + len(batch.data) <= self._object_bytes
                if not fits or begins.get(batch.partition, batch.fields.end_offset) != batch.fields.end_offset:
                    break
                begins[batch.partition] = batch.fields.base_offset
                size, count = size + len(batch.data), count + 1
            self._waiting.rotate(count)
            object_bytes, self._object_bytes = self._object_bytes, size
            put = super().cut(now_ms, created_ms)
            self._object_bytes = object_bytes
            return put
        return super().cut(now_ms, created_ms)


class _UnboundedWriter(WalWriter):
    """J7."""

    def check_room(self, partition: TopicIdPartition, size_bytes: int) -> None:
        try:
            super().check_room(partition, size_bytes)
        except RequestRejected as error:
            if error.code != ErrorCode.NOT_ENOUGH_REPLICAS:
                raise


class _SkippingWriter(WalWriter):
    """J14: a seal is a number like others."""

    def _ended(self, number: int) -> Action:
        return self._durable(number)


class _ForgetfulWriter(WalWriter):
    """J37: objects that batches on their way name for their state are deleted."""

    def begin_trim(self, end: int) -> int:
        return end


# --- how a log ends ---------------------------------------------------------------------------------------------------


class _UncheckedSealing(Sealing):
    """J10."""

    def on_put(self, *, written: bool) -> SealAction:
        return Sealed(self._number) if written else super().on_put(written=written)


class _HalfCheckedSealing(Sealing):
    """J10: only objects above the window are looked for."""

    def on_tails(self, found: Mapping[int, Found]) -> SealAction:
        if self._stage.name == "CHECK_TAILS":
            return Sealed(self._number)
        return super().on_tails(found)


class _BlindSealing(Sealing):
    """J9: seals of others are not looked for."""

    def on_tails(self, found: Mapping[int, Found]) -> SealAction:
        if self._stage.name == "SCAN_TAILS":
            found = {number: kind if kind is Found.MISSING else Found.RECORDS for number, kind in found.items()}
        return super().on_tails(found)


class _GapSealing(Sealing):
    """J9: the seal is put above everything that is there."""

    def on_tails(self, found: Mapping[int, Found]) -> SealAction:
        if self._stage.name == "SCAN_TAILS" and Found.SEAL not in found.values():
            self._listed = frozenset(range(max(self._listed, default=-1) + 1))
        return super().on_tails(found)


def _delete_seals(
    wal: WalId, numbers: Sequence[int], end: int, ranges: Collection[WalRange], said: Registration
) -> list[int]:
    """J11."""
    doomed = deletable(wal, numbers, end, ranges, said)
    return [number for number in numbers if number == end or number in doomed]


# --- how a partition goes on --------------------------------------------------------------------------------------------


def _without_manifest(
    key: TopicIdPartition, ranges: Sequence[WalRange], objects: Any, tiered: Tiered | None
) -> TakeOver | NeedsManifest:
    """J25: a range without a section is looked over, trimmed or not."""
    taken = continue_from(key, ranges, objects, tiered)
    for count in range(len(ranges) - 1, 0, -1):
        if isinstance(taken, NeedsManifest):
            taken = continue_from(key, ranges[:count], objects, None)
    return taken


def _of_any_leadership(
    key: TopicIdPartition, ranges: Sequence[WalRange], objects: Any, tiered: Tiered | None
) -> TakeOver | NeedsManifest:
    """J20: every section of the partition counts, whoever wrote it."""
    epochs = {each.wal: each.leader_epoch for each in ranges}
    renamed: dict[Any, dict[int, WalFooter]] = {}
    for wal, there in objects.items():
        renamed[wal] = {
            number: replace(
                footer,
                sections=tuple(
                    replace(each, batches=tuple(one._replace(leader_epoch=epochs[wal]) for one in each.batches))
                    for each in footer.sections
                ),
            )
            for number, footer in there.items()
        }
    ranges = [each._replace(leader_epoch=epochs[each.wal]) for each in ranges]
    return continue_from(key, ranges, renamed, tiered)


def _without_producers(*args: Any) -> TakeOver | NeedsManifest:
    """J28."""
    taken = continue_from(*args)
    return replace(taken, producers=ProducerStates()) if isinstance(taken, TakeOver) and taken.producers else taken


def _keep_local(end: Offset, epochs: Sequence[EpochStart], taken: TakeOver) -> Offset | None:
    """J27: local bytes are never cut."""
    return end if end >= taken.end_offset else local_end(end, epochs, taken)


# --- what is deleted ----------------------------------------------------------------------------------------------------


class _ForgettingNeeds(WalNeeds):
    """J34: what was given up is for others to look after."""

    def note_image(self, partition: TopicIdPartition, *, leader_epoch: int, ranges: Collection[WalRange]) -> None:
        super().note_image(partition, leader_epoch=leader_epoch, ranges=())


PLANTED: Final[Mapping[str, Planted]] = {
    "J1 a registration keeps the broker epoch": Planted(Rules(registers_anew=False), "writers", 5),
    "J2 a later try has other bytes": Planted(
        Rules(writer=partial(_ChangingWriter, window=1)),
        "lost",
        100,
        {"partitions": 1, "linger_ms": 2, "pause_ms": 40.0, "producers": 4} | _often("undecided", "suspect"),
    ),
    "J2 an object that exists counts unread": Planted(Rules(writer=_TrustingWriter), "seal", 20, _often("suspect")),
    "J3 a number is given up": Planted(Rules(writer=_ImpatientWriter), "lost", 20, _often("undecided")),
    "J4 the window is unbounded": Planted(Rules(writer=partial(WalWriter, window=10**6)), "window", 20),
    "J5 acknowledged beyond a hole": Planted(Rules(writer=_EagerWriter), "lost", 60, _often("undecided", "suspect")),
    "J6 newer batches go first": Planted(Rules(writer=_HastyOrderWriter), "damage", 20, _often("slow", "suspect")),
    "J7 the buffer is unbounded": Planted(
        Rules(writer=_UnboundedWriter),
        "memory",
        20,
        {"producers": 60, "partitions": 1, "object_bytes": 250, "buffer_bytes": 3000} | _often("bucket away"),
    ),
    "J9 a seal behind a gap": Planted(Rules(sealing=_GapSealing), "lost", 60, _often("undecided", "suspect")),
    "J9 seals of others are overlooked": Planted(
        Rules(sealing=_BlindSealing), "seal", 60, _often("undecided", "suspect")
    ),
    "J10 a seal is not checked": Planted(
        Rules(sealing=_UncheckedSealing), "seal", 300, _often("pause controller", "new controller", "suspect")
    ),
    "J10 seals above are overlooked": Planted(
        Rules(sealing=_HalfCheckedSealing), "seal", 300, _often("pause controller", "new controller", "suspect")
    ),
    "J11 seals are deleted": Planted(Rules(deletable=_delete_seals), "seal", 10),
    "J12 garbage behind the seal counts": Planted(
        Rules(counts_ranges_only=False), "lost", 60, _often("undecided", "suspect")
    ),
    "J13 the newest objects are trimmed": Planted(
        Rules(needs=partial(WalNeeds, window=-1)), "seal", 60, _often("suspect", "pause controller")
    ),
    "J14 a seal in the own log is skipped": Planted(
        Rules(writer=_SkippingWriter, sealed_joins_anew=False), "seal", 20, _often("suspect")
    ),
    "J16 a leader is replaced without release or seal": Planted(
        Rules(ends_with_seal=False), "lost", 20, _often("suspect", "cut from brokers")
    ),
    "J17 the entry comes before the seal": Planted(Rules(seals_before_entry=False), "lost", 100, _often("suspect")),
    "J18 a release is taken back": Planted(Rules(release_is_final=False), "lost", 60, _often("move")),
    "J18 a release is not flushed": Planted(Rules(release_is_flushed=False), "lost", 60, _often("move")),
    "J19 a range begins too late": Planted(
        Rules(first_number=lambda reported: reported + 10), "lost", 60, _often("suspect")
    ),
    "J20 sections of any leadership count": Planted(
        Rules(continue_from=_of_any_leadership), "damage", 300, _often("move", "new controller")
    ),
    "J25 trimmed ranges are believed": Planted(
        Rules(continue_from=_without_manifest),
        "lost",
        100,
        {"drop_share": 0.1, "idle_share": 0.03} | _often("suspect", "move"),
    ),
    "J27 local bytes past the end are served": Planted(
        Rules(local_end=_keep_local), "doubled", 20, _often("kill", "suspect")
    ),
    "J28 producers are forgotten": Planted(Rules(continue_from=_without_producers), "doubled", 20, _often("kill")),
    "J33 trimmed before it is tiered": Planted(Rules(floor_is_durable=False), "needed", 20, _often("undecided")),
    "J34 a released range is forgotten": Planted(Rules(needs=_ForgettingNeeds), "needed", 60, _often("move")),
    "J35 a range is dropped before it is tiered": Planted(Rules(drops_tiered_only=False), "needed", 20),
    "J37 states of batches on their way are trimmed": Planted(
        Rules(writer=_ForgetfulWriter), "needed", 100, {"idle_share": 0.03, "linger_ms": 2}
    ),
    "J40 durability is switched in one entry": Planted(
        Rules(two_entries=False), "lost", 60, {"replicas": 1} | _often("switch", "wipe")
    ),
}
