"""Faults planted into the rules of ADR 0037, one rule taken back at a time, by wrappers around the cores.

Each is found by what it does to acknowledged records, to readers, to memory or to the bucket. Checkers that restate a rule are
muted. What only a lagging taker does to a log (J10, J13) is planted in ``tests/wal/test_sealing.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import NO_TIMESTAMP, Offset, TimestampMs, TopicIdPartition
from app.hot.checkpoints import EpochStart
from app.hot.producers import ProducerStates
from app.metadata.image.wal_ranges import WalId, WalRange
from app.metadata.log.append_attempt import PutOutcome
from app.wal import takeover
from app.wal.format import SectionDraft, write_object
from app.wal.sealing import Action as SealAction
from app.wal.sealing import Found, Sealing
from app.wal.takeover import NeedsManifest, Piece, TakeOver, Tiered, continue_from, local_end
from app.wal.trimming import LogRegistration, WalNeeds, deletable
from app.wal.writer import Action, DurableObject, DurableSection, Put, WalWriter
from tests.wal_simulation.faults import KINDS
from tests.wal_simulation.rules import Rules


@dataclass(frozen=True, slots=True)
class Planted:
    """A rule taken back, and the checker meant for it."""

    rules: Rules
    found_by: str
    """By the harm that is done, never by a checker that restates the rule. Several names: any of these harms."""
    seeds: int
    """Within so many seeds it is found."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the seeds' plans: faults that the rule is about."""
    patches: Mapping[str, Any] = field(default_factory=dict)
    """Functions inside a core that are replaced, by their full names."""
    first: int = 0
    """The first seed."""


def _often(*kinds: str, weight: int = 30) -> dict[str, Any]:
    """Faults of these kinds often, and all others as usual."""
    assert KINDS.keys() >= set(kinds), kinds
    return {"weights": {**KINDS, **dict.fromkeys(kinds, weight)}}


def _only(**weights: int) -> dict[str, Any]:
    """Faults of these kinds, and no others."""
    assert KINDS.keys() >= weights.keys(), weights
    return {"weights": {**dict.fromkeys(KINDS, 0), **weights}}


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
                    drafts[index] = draft._replace(
                        parts=[*draft.parts, first.data], batches=[*draft.batches, first.fields]
                    )
                    self._take({first.partition: [first]}, number)
                    flight = self._in_flight[number]
                    data = write_object(self.wal, number, flight.nonce, TimestampMs(0), drafts)
                    self._in_flight_bytes += len(data) - len(flight.data)
                    flight.data = data
                    flight.sections = tuple(
                        DurableSection(
                            each.partition, each.batches[-1].end_offset, each.state_number, each.batches[0].leader_epoch
                        )
                        for each in drafts
                    )
                    break
        self._tried.add(number)
        return super().bytes_of(number)


def _with_window(writer: Any, other: int, *args: Any, **settings: Any) -> Any:
    """A writer of another window than that of the log."""
    return writer(*args, **{**settings, "window": other})


def _with_half_window(*args: Any, **settings: Any) -> WalWriter:
    """Legal: fewer objects are on their way than could be."""
    return WalWriter(*args, **{**settings, "window": (settings["window"] + 1) // 2})


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
            self._dues = deque((due_ms, 1 << 60) for due_ms, _ in self._dues)
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


class _HesitatingSealing(Sealing):
    """Legal: the first round is done twice."""

    def on_tails(self, found: Mapping[int, Found]) -> SealAction:
        return self.start() if self.rounds == 1 else super().on_tails(found)


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
    wal: WalId, numbers: Sequence[int], end: int, ranges: Collection[WalRange], said: LogRegistration
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


def _by_range_of_any_leadership(
    partition: TopicIdPartition, ranges: Sequence[WalRange], objects: Any
) -> list[list[Piece]]:
    """J20: every section of the partition counts, whoever wrote it."""
    return [
        [
            Piece(each.wal, number, section)
            for number in takeover.counted_run(each, objects)
            if (section := objects[each.wal][number].section_of(partition)) is not None
        ]
        for each in ranges
    ]


def _with_garbage(
    key: TopicIdPartition, ranges: Sequence[WalRange], objects: Any, tiered: Tiered | None
) -> TakeOver | NeedsManifest:
    """J12: what has landed above the end of a log counts. The core is given it as if it were in the range."""
    changed = {wal: dict(there) for wal, there in objects.items()}
    longer: list[WalRange] = []
    at: dict[tuple[Any, int], int] = {}
    for each in ranges:
        there = objects[each.wal]
        garbage = [
            number
            for number in sorted(there)
            if number > each.last + 1
            if any(one.partition == key and one.leader_epoch == each.leader_epoch for one in there[number].sections)
        ]
        if not there.get(each.last + 1) or not there[each.last + 1].is_seal:
            garbage = []
        for number, moved in zip(garbage, range(each.last + 1, 1 << 60), strict=False):
            changed[each.wal][moved] = there[number]
            at[each.wal, moved] = number
        longer.append(each._replace(last=each.last + len(garbage)))
    taken = continue_from(key, longer, changed, tiered)
    if isinstance(taken, NeedsManifest):
        return taken
    pieces = tuple(each._replace(number=at.get((each.wal, each.number), each.number)) for each in taken.pieces)
    return replace(taken, pieces=pieces)


def _without_producers(*args: Any) -> TakeOver | NeedsManifest:
    """J28."""
    taken = continue_from(*args)
    return replace(taken, producers=ProducerStates()) if isinstance(taken, TakeOver) and taken.producers else taken


def _with_last_batches(*args: Any) -> TakeOver | NeedsManifest:
    """J28: of each producer only the last batch is known, as in Kafka's snapshots."""
    taken = continue_from(*args)
    if isinstance(taken, TakeOver) and taken.producers is not None:
        for entry in taken.producers.entries.values():
            entry.batches = entry.batches[-1:]
    return taken


def _keep_local(start: Offset, end: Offset, epochs: Sequence[EpochStart], taken: TakeOver) -> Offset | None:
    """J27: local bytes are never cut."""
    return end if end >= taken.end_offset else local_end(start, end, epochs, taken)


def _closed_anyway(ranges: tuple[WalRange, ...], wal: WalId, end: int) -> tuple[WalRange, ...]:
    """J21: a range that ends before it begins is written, too."""
    return (*ranges[:-1], ranges[-1]._replace(last=end - 1))


# --- what is deleted ----------------------------------------------------------------------------------------------------


def _by_epoch_alone(wal: WalId, said: LogRegistration) -> bool:
    """J36: a log that an image does not know is dead, even if the image is older than the log."""
    return said.broker_epoch != wal.broker_epoch or said.wal_end >= 0


def _delete_by_epoch_alone(
    wal: WalId, numbers: Sequence[int], end: int, ranges: Collection[WalRange], said: LogRegistration
) -> list[int]:
    """J36, where it deletes."""
    return deletable(wal, numbers, end, ranges, LogRegistration(1 << 60, None)) if _by_epoch_alone(wal, said) else []


class _ForgettingNeeds(WalNeeds):
    """J34: what was given up is for others to look after."""

    def note_image(self, partition: TopicIdPartition, *, leader_epoch: int, ranges: Collection[WalRange]) -> None:
        super().note_image(partition, leader_epoch=leader_epoch, ranges=())


class _EagerNeeds(WalNeeds):
    """Legal: whatever is held back is rolled."""

    def to_roll(self, bytes_max: int) -> Iterator[TopicIdPartition]:
        return super().to_roll(0)


_NARROW: Final[Mapping[str, Any]] = {"window": 1, "object_bytes": 250, "buffer_bytes": 6000, "linger_ms": 2}
"""Many short objects and a small window: schedules that need a full window come soon."""

PLANTED: Final[Mapping[str, Planted]] = {
    "J1 a process goes on under the epoch of the process before": Planted(
        Rules(registers_anew=False), "lost", 5, _often("kill")
    ),
    "J2 a later try has other bytes": Planted(
        Rules(writer=partial(_with_window, _ChangingWriter, 1)),
        "lost",
        30,
        {"partitions": 1, "linger_ms": 2, "pause_ms": 40.0, "producers": 4} | _often("undecided", "suspect"),
        first=320,
    ),
    "J2 an object that exists counts unread": Planted(Rules(writer=_TrustingWriter), "lost", 40, _often("suspect")),
    "J3 a number is given up": Planted(Rules(writer=_ImpatientWriter), "lost", 5, _often("undecided")),
    "J4 the window is unbounded": Planted(
        Rules(writer=partial(_with_window, WalWriter, 10**6)),
        "lost",
        5,
        _NARROW | {"buffer_bytes": 12_000, "producers": 4} | _often("undecided", "slow", "suspect"),
    ),
    "J5 acknowledged beyond a hole": Planted(Rules(writer=_EagerWriter), "lost", 5, _often("undecided", "suspect")),
    "J6 newer batches go first": Planted(Rules(writer=_HastyOrderWriter), "lost damage", 5, _often("slow", "suspect")),
    "J7 the buffer is unbounded": Planted(
        Rules(writer=_UnboundedWriter),
        "memory",
        5,
        {"producers": 60, "partitions": 1, "object_bytes": 250, "buffer_bytes": 3000} | _often("bucket away"),
    ),
    "J9 a seal behind a gap": Planted(Rules(sealing=_GapSealing), "lost damage", 5, _often("undecided", "suspect")),
    "J9 seals of others are overlooked": Planted(
        Rules(sealing=_BlindSealing), "lost", 5, _often("undecided", "suspect", "new controller")
    ),
    "J11 seals are deleted": Planted(
        Rules(deletable=_delete_seals), "reused lost", 200, {"nodes": 3} | _only(undecided=6, pause=3)
    ),
    "J12 garbage above the end counts": Planted(
        Rules(continue_from=_with_garbage, ignores_garbage=False),
        "lost doubled damage",
        5,
        _often("undecided", "suspect", "slow"),
    ),
    "J14 a seal in the own log is skipped": Planted(
        Rules(writer=_SkippingWriter, sealed_joins_anew=False), "lost", 40, _often("suspect", "new controller")
    ),
    "J15 ranges are read before their end is known": Planted(
        Rules(reads_ended_ranges=False), "lost", 5, _often("suspect", "cut from brokers")
    ),
    "J16 a leader is replaced without release or seal": Planted(
        Rules(ends_with_seal=False), "lost", 5, _often("suspect", "cut from brokers")
    ),
    "J17 the next leader is named before the seal": Planted(
        Rules(elects_after_seal=False), "lost", 5, _often("suspect")
    ),
    "J18 a release is taken back": Planted(Rules(release_is_final=False), "lost", 60, _often("move")),
    "J18 a release is not flushed": Planted(Rules(release_is_flushed=False), "lost", 5, _often("move")),
    "J18 an old release is obeyed": Planted(
        Rules(release_names_epochs=False), "lost", 300, {"nodes": 2} | _often("move", "slow", "suspect")
    ),
    "J19 a range begins too late": Planted(
        Rules(first_number=lambda reported: reported + 10), "lost", 5, _often("suspect")
    ),
    "J20 sections of any leadership count": Planted(
        Rules(first_number=lambda reported: 0),
        "lost damage",
        5,
        {"lazy": 1, "partitions": 3, "idle_share": 0.03} | _often("move"),
        {"app.wal.takeover._by_range": _by_range_of_any_leadership},
    ),
    "J21 a range that ends before it begins is written": Planted(
        Rules(sealed=_closed_anyway), "alive", 5, {"idle_share": 0.03} | _often("suspect")
    ),
    "J22 a registration leaves no range open": Planted(
        Rules(registration_ends_leaderships=False), "lost", 5, _often("twin", "pause")
    ),
    "J24 logs of older broker epochs count": Planted(
        Rules(ignores_older_logs=False),
        "lost damage",
        60,
        {"nodes": 2, "partitions": 1, "sweep_share": 0.0, "idle_share": 0.2} | _only(suspect=1),
    ),
    "J25 trimmed ranges are believed": Planted(
        Rules(continue_from=_without_manifest),
        "lost",
        100,
        {"drop_share": 0.1, "idle_share": 0.03} | _often("suspect", "move"),
    ),
    "J26 gaps are not looked for": Planted(
        Rules(),
        "reader",
        5,
        _often("lose", "suspect"),
        {"app.wal.takeover._check_covered": lambda *args: None},
    ),
    "J27 local bytes past the end are served": Planted(
        Rules(local_end=_keep_local), "doubled", 5, _often("kill", "suspect")
    ),
    "J28 producers are forgotten": Planted(Rules(continue_from=_without_producers), "doubled", 5, _often("kill")),
    "J28 the last batch of each producer is known only": Planted(
        Rules(continue_from=_with_last_batches), "doubled", 5, {"lost_replies": 0.1} | _often("kill", "suspect")
    ),
    "known limit: segments have the last batch of each producer only": Planted(
        Rules(segments_have_older=False),
        "doubled",
        300,
        _NARROW | {"lost_replies": 0.1, "idle_share": 0.03, "partitions": 3} | _often("kill", "suspect", "slow"),
    ),
    "J31 a missing object is damage at once": Planted(
        Rules(polls_before_damage=False), "reader", 200, {"nodes": 3, "lazy": 0} | _often("suspect", "pause")
    ),
    "J32 holes are trimmed": Planted(
        Rules(trims_prefix=False), "lost", 100, {"lazy": 1, "partitions": 3, "idle_share": 0.03} | _often("suspect")
    ),
    "J33 trimmed before it is tiered": Planted(
        Rules(floor_is_durable=False), "lost damage", 100, _NARROW | _often("undecided", "suspect")
    ),
    "J34 a released range is forgotten": Planted(
        Rules(needs=_ForgettingNeeds), "lost damage reader", 5, _often("move", "suspect")
    ),
    "J35 a range is dropped before it is tiered": Planted(Rules(drops_tiered_only=False), "lost", 5, _often("suspect")),
    "J36 a controller of the past deletes what it does not know": Planted(
        Rules(has_ended=_by_epoch_alone, deletable=_delete_by_epoch_alone),
        "lost",
        5,
        _often("pause controller", "new controller", "suspect", "kill"),
    ),
    "J37 states of batches on their way are trimmed": Planted(
        Rules(writer=_ForgetfulWriter), "damage doubled", 200, {"idle_share": 0.03, "linger_ms": 2}
    ),
    "J38 nothing is rolled for the bucket's sake": Planted(
        Rules(rolls=False), "held", 5, {"lazy": 1, "partitions": 2, "retention_bytes": 4000}
    ),
    "J38 a partition that rolls once a week keeps its closed ranges": Planted(
        Rules(rolls_ended=False), "alive", 5, {"lazy": 1, "partitions": 2} | _often("suspect")
    ),
    "J40 durability is switched to object in one entry": Planted(
        Rules(two_entries_to_object=False), "lost", 5, {"replicas": 1} | _often("switch", "wipe")
    ),
    "J41 durability is switched from object in one entry": Planted(
        Rules(two_entries_from_object=False), "reader lost", 60, _often("switch", "kill", "suspect")
    ),
    "J42 a change fails over by the rule of afterwards": Planted(
        Rules(changes_fail_over_as_before=False), "lost", 5, {"replicas": 1} | _often("switch", "suspect")
    ),
}


LEGAL: Final[Mapping[str, Rules]] = {
    "J4 a writer that uses half of its window": Rules(writer=_with_half_window),
    "J9 a taker that begins anew for no reason": Rules(sealing=_HesitatingSealing),
    "J13 more objects stay": Rules(needs=lambda wal, window: WalNeeds(wal, window=window + 5)),
    "J19 every range begins at 0": Rules(first_number=lambda reported: 0),
    "J27 local bytes are never kept": Rules(local_end=lambda start, end, epochs, taken: None),
    "J38 everything is rolled as soon as possible": Rules(needs=_EagerNeeds),
}
"""Other ways to keep the rules: nothing may be found."""
