"""Faults planted into the rules of ADR 0023 and 0024, one rule taken back at a time, by wrappers around the cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from app.core.errors import ErrorCode, RequestRejected
from app.metadata.changes.broker_changes import RegistrationAsked, alter_in_sync, register_broker
from app.metadata.changes.topic_changes import Planned
from app.metadata.controller.broker_sessions import BrokerSessions
from app.metadata.image.records import broker_change, partition_change
from app.metadata.peers.control import Heartbeat
from app.replication.following import step
from app.replication.in_sync import InSync
from tests.replication_model.faults import KINDS
from tests.replication_model.leading_shell import LeaderShell
from tests.replication_model.office import TICK_MS
from tests.replication_model.process import Process
from tests.replication_model.replicas import Replica
from tests.replication_model.rules import RULES, Rules, alter, change_min_in_sync, completed_in_the_same_epoch


@dataclass(frozen=True, slots=True)
class Planted:
    """A rule taken back, and the checker meant for it."""

    rules: Rules
    found_by: str
    seeds: int
    """Within so many seeds it is found."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the seeds' plans: clusters and faults that the rule is about."""


def _often(*kinds: str, weight: int = 50) -> dict[str, int]:
    """Faults of these kinds often, and all others as usual."""
    assert KINDS.keys() >= set(kinds), kinds
    return KINDS | dict.fromkeys(kinds, weight)


# --- C ----------------------------------------------------------------------------------------------------------------


def _expired_sessions(timeout_s: float, now_s: float) -> BrokerSessions:
    """C5: silence counts from before the controller took office."""
    return BrokerSessions(0.3, now_s, tick_interval_s=TICK_MS / 1000)


# --- M ----------------------------------------------------------------------------------------------------------------


def _register_and_lead_on(draft: Any, around: Any, asked: RegistrationAsked) -> Planned[Any]:
    """M2."""
    planned = register_broker(draft, around, asked)
    records = [record for record in planned.records if record[0] == broker_change(int(asked.broker_id), None)[0]]
    if not records:
        return planned
    broker = draft.brokers[asked.broker_id]
    registered = replace(
        broker,
        incarnation=asked.incarnation,
        broker_epoch=around.sequence,
        changed_at=around.sequence,
        boot_id=asked.boot_id,
        directory_id=asked.directory_id,
    )
    return Planned([broker_change(int(asked.broker_id), registered.record())], planned.answer)


def _register_kept(draft: Any, around: Any, asked: RegistrationAsked) -> Planned[Any]:
    """M3: whoever registers stays in the sets."""
    broker = draft.brokers[asked.broker_id]
    return register_broker(
        draft, around, asked._replace(directory_id=broker.directory_id, clean_epoch=broker.broker_epoch)
    )


def _register_any_marker(draft: Any, around: Any, asked: RegistrationAsked) -> Planned[Any]:
    """M4: a clean marker counts whichever broker epoch it names."""
    if asked.clean_epoch >= 0:
        asked = asked._replace(clean_epoch=draft.brokers[asked.broker_id].broker_epoch)
    return register_broker(draft, around, asked)


def _register_any_boot(draft: Any, around: Any, asked: RegistrationAsked) -> Planned[Any]:
    """M4: an unclean stop counts as clean although the machine has booted since."""
    return register_broker(draft, around, asked._replace(run_boot_id=asked.boot_id))


def _register_twice(draft: Any, around: Any, asked: RegistrationAsked) -> Planned[Any]:
    """M8: the same start registers anew."""
    broker = draft.brokers[asked.broker_id]
    planned = register_broker(
        draft, around, asked._replace(incarnation=UUID(int=around.sequence), replaces=broker.broker_epoch)
    )
    registered = replace(
        broker,
        incarnation=asked.incarnation,
        broker_epoch=planned.answer.broker_epoch,
        fenced=True,
        changed_at=planned.answer.sequence,
        boot_id=asked.boot_id,
        directory_id=asked.directory_id,
    )
    return Planned([*planned.records, broker_change(int(asked.broker_id), registered.record())], planned.answer)


def _register_whatever_it_replaces(draft: Any, around: Any, asked: RegistrationAsked) -> Planned[Any]:
    """M9."""
    return register_broker(draft, around, asked._replace(replaces=draft.brokers[asked.broker_id].broker_epoch))


def _heard_whatever_epoch(sessions: BrokerSessions, process: Process, beat: Heartbeat) -> ErrorCode:
    """M5."""
    broker = process.image.brokers[beat.broker_id]  # type: ignore[index]
    return RULES.heard(sessions, process, beat._replace(broker_epoch=broker.broker_epoch, applied=1 << 40))


class _HastySessions(BrokerSessions):
    """M7: unfenced at the first heartbeat."""

    def applied(self, broker_id: int) -> int:
        return 1 << 40

    def to_unfence(self) -> list[int]:
        return [broker_id for broker_id, one in self._sessions.items() if one.fenced and one.alive_s > 0]


def _hasty_sessions(timeout_s: float, now_s: float) -> BrokerSessions:
    return _HastySessions(timeout_s, now_s, tick_interval_s=TICK_MS / 1000)


# --- R ----------------------------------------------------------------------------------------------------------------


class _OwnEnd(InSync):
    """R1: the leader's own end is the high watermark."""

    def _advance(self) -> None:
        if len(self._committed) >= min(self._min_in_sync, len(self._replicas)):
            self._high_watermark = max(self._high_watermark, self._stored_end)


class _AnySize(InSync):
    """R2: a set below ``min.insync.replicas`` commits."""

    def _advance(self) -> None:
        end = min([self._stored_end, *(follower.stored_end for follower in self._maximal)])
        self._high_watermark = max(self._high_watermark, end)


class _RemovedAtOnce(InSync):
    """R3: a member that is proposed for removal does not count any more."""

    @property
    def maximal(self) -> frozenset[int]:
        if self._proposal is None:
            return super().maximal
        return frozenset(member.broker_id for member in self._proposal.members)


class _AddedLate(InSync):
    """R3: a member that is proposed for addition counts when an image shows it."""

    @property
    def maximal(self) -> frozenset[int]:
        return self._committed | {self._broker_id}


class _RefusalDecides(InSync):
    """R4: a refused proposal is over."""

    def refused(self) -> None:
        """The controller refused."""
        self._proposal, self._proposed = None, frozenset()
        self._settle()


def _refusal_decides(shell: LeaderShell, answer: Any) -> None:
    refused = isinstance(answer, RequestRejected) or (
        isinstance(answer, list) and any(each.error is not ErrorCode.NONE for each in answer)
    )
    if refused and shell.core is not None:
        shell.core.refused()


def _alter_whatever_epoch(draft: Any, around: Any, broker_id: int, broker_epoch: int, proposals: Any) -> Planned[Any]:
    """R5: members are taken by their node ids, and a proposal of an older partition epoch too."""
    named = []
    for asked in proposals:
        image = draft.topic_by_id(asked.topic_id).partitions[asked.partition]
        members = [
            member._replace(broker_epoch=draft.brokers[member.broker_id].broker_epoch) for member in asked.members
        ]
        named.append(asked._replace(members=members, partition_epoch=image.partition_epoch))
    return alter(draft, around, broker_id, draft.brokers[broker_id].broker_epoch, named)


class _PositionsStay(InSync):
    """R6: a position outlives the process that told it."""

    def note_follower(self, broker_id: int, broker_epoch: int, **told: Any) -> None:
        follower = self._followers.get(broker_id)
        if follower is not None and follower.broker_epoch >= 0:
            follower.broker_epoch = broker_epoch
        super().note_follower(broker_id, broker_epoch, **told)


class _AnyPosition(InSync):
    """R7: whoever has fetched may enter the set."""

    def _may_count(self, follower: Any) -> bool:
        return bool(follower.stored_end >= 0)


def _change_min_in_sync_alone(draft: Any, around: Any, value: int) -> Planned[Any]:
    """R9: eligible replicas stay eligible."""
    planned = change_min_in_sync(draft, around, value)
    return Planned(planned.records[:1], None)


def _alter_and_keep_eligible(
    draft: Any, around: Any, broker_id: int, broker_epoch: int, proposals: Any
) -> Planned[Any]:
    """R9: who left the set stays eligible when the set is large enough."""
    planned = alter(draft, around, broker_id, broker_epoch, proposals)
    return Planned(_with_eligible(draft, planned.records, planned.answer), planned.answer)


def _with_eligible(draft: Any, records: Any, answers: Any) -> list[Any]:
    changed = []
    for answer in answers:
        if answer.image is None or answer.error not in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            continue
        before = draft.topic_by_id(answer.topic_id).partitions[answer.partition]
        kept = tuple(each for each in (*before.eligible, *before.isr) if each not in answer.image.isr)
        image = answer.image._replace(eligible=tuple(dict.fromkeys((*answer.image.eligible, *kept))))
        changed.append(partition_change(answer.topic_id, answer.partition, image.record()))
    return changed


def _alter_in_one_epoch(draft: Any, around: Any, broker_id: int, broker_epoch: int, proposals: Any) -> Planned[Any]:
    """R6: a replica that leaves and comes back does so in one leader epoch."""
    return alter_in_sync(draft, around, broker_id, broker_epoch, proposals, after=completed_in_the_same_epoch)


# --- A ----------------------------------------------------------------------------------------------------------------


def _step_any_copy(asked: Any, now: Any, answered: Any, **more: Any) -> Any:
    """A1."""
    return step(now, now, answered, **more)


def _begins_at_end(log: Any) -> int:
    """A4: all that is there counts as committed."""
    return int(log.end)


def _trusts_tiered_end(log: Any) -> int:
    """A4 without a look at the epochs: the tiered end counts for whatever history this log has."""
    return int(min(max(log.checkpoint, log.known_tiered_end, log.start), log.end))


# --- T ----------------------------------------------------------------------------------------------------------------


def _starts_past_tier(replica: Replica) -> int:
    """T5: at the high watermark of the leader, which is above the tiered end."""
    return replica.tiered_end + 3


LEADERS_IN_TURN: Final[Mapping[str, Any]] = {
    "nodes": 3,
    "partitions": 6,
    "factor": 2,
    "min_in_sync": 1,
    "disk": False,
    "pause_ms": (1_000.0, 3_000.0),
    "weights": {"kill leader": 20, "stop": 10},
}
"""A broker comes back while the other one has just started too. Its last record is often the last one before the other's local
start, and the other one has not read the manifest yet."""

PLANTED: Final[dict[str, Planted]] = {
    "C1 told before durable": Planted(replace(RULES, tells_before_durable=True), "INV-13", 10),
    "C2 undecided taken for written": Planted(
        replace(RULES, reads_after_undecided=False),
        "INV-13",
        100,
        {"weights": _often("bucket cut", "bucket away", "kill leader")},
    ),
    "C5 sessions do not begin anew": Planted(replace(RULES, sessions=_expired_sessions), "calm", 40),
    "M2 leadership kept over a restart": Planted(replace(RULES, register=_register_and_lead_on), "INV-13", 10),
    "M3 whoever registers is kept": Planted(replace(RULES, register=_register_kept), "INV-1", 30),
    "M4 any clean marker counts": Planted(
        replace(RULES, register=_register_any_marker), "INV-1", 120, {"weights": _often("old image")}
    ),
    "M4 boots do not count": Planted(
        replace(RULES, register=_register_any_boot), "INV-1", 80, {"disk": False, "weights": _often("power")}
    ),
    "M5 heartbeats of any broker epoch count": Planted(replace(RULES, heard=_heard_whatever_epoch), "member", 60),
    "M7 unfenced before it has applied": Planted(replace(RULES, sessions=_hasty_sessions), "member", 10),
    "M8 a start registers twice": Planted(replace(RULES, register=_register_twice), "member", 10),
    "M9 a late registration replaces": Planted(
        replace(RULES, register=_register_whatever_it_replaces),
        "member",
        80,
        {"weights": _often("late and doubled", "kill")},
    ),
    "R1 and R3 an addition counts late": Planted(replace(RULES, in_sync=_AddedLate), "INV-1", 20),
    "R1 the leader's end is the high watermark": Planted(replace(RULES, in_sync=_OwnEnd), "INV-1", 10),
    "R2 a set of any size commits": Planted(replace(RULES, in_sync=_AnySize), "INV-1", 10, {"min_in_sync": 2}),
    "R3 a removal counts at once": Planted(replace(RULES, in_sync=_RemovedAtOnce), "INV-1", 20),
    "R4 a refusal ends a proposal": Planted(
        replace(RULES, in_sync=_RefusalDecides, answers_decide=_refusal_decides),
        "INV-1",
        20,
        {"weights": _often("late and doubled")},
    ),
    "R5 members without broker epochs": Planted(
        replace(RULES, alter=_alter_whatever_epoch), "INV-1", 420, {"weights": _often("late and doubled", "disk lost")}
    ),
    "R6 positions outlive processes": Planted(
        replace(RULES, in_sync=_PositionsStay),
        "INV-1",
        100,
        {"tier": False, "disk": True, "factor": 2, "min_in_sync": 2, "weights": _often("disk lost")},
    ),
    "R6 a replica leaves and comes back in one leader epoch": Planted(
        replace(RULES, alter=_alter_in_one_epoch),
        "INV-1",
        600,
        {"nodes": 5, "factor": 3, "weights": _often("reassign")},
    ),
    "R7 any position may enter": Planted(replace(RULES, in_sync=_AnyPosition), "INV-1", 140),
    "R9 eligible in spite of a change": Planted(
        replace(RULES, change_min_in_sync=_change_min_in_sync_alone),
        "INV-1",
        200,
        {"min_in_sync": 2, "weights": _often("min in-sync")},
    ),
    "R9 eligible beside a full set": Planted(replace(RULES, alter=_alter_and_keep_eligible), "INV-1", 30),
    "S1 what is fetched counts as stored": Planted(
        replace(RULES, counts_stored_end=False), "INV-1", 20, {"disk": True}
    ),
    "A1 any copy of a response is applied": Planted(replace(RULES, step=_step_any_copy), "INV-13", 10),
    "A2 epochs are not compared": Planted(replace(RULES, compares_epochs=False), "INV-3", 10),
    "A2 cut back to the high watermark": Planted(replace(RULES, cuts_to_high_watermark=True), "INV-1", 30),
    "A4 a log begins committed": Planted(replace(RULES, first_high_watermark=_begins_at_end), "INV-3", 10),
    "A4 any tiered end is committed": Planted(
        replace(RULES, first_high_watermark=_trusts_tiered_end), "INV-3", 90, {"tier": True}
    ),
    "A5 the end is told too early": Planted(replace(RULES, knows_latest_at_once=True), "INV-3", 20),
    "T1 uploaded above the high watermark": Planted(
        replace(RULES, uploads_below_high_watermark=False), "INV-4", 20, {"tier": True}
    ),
    "T1 manifests are not sealed": Planted(replace(RULES, seals_manifests=False), "INV-2", 10, {"tier": True}),
    "T2 lazy after an unclean election": Planted(
        replace(RULES, seals_after_unclean=False),
        "INV-4",
        100,
        {"tier": True, "unclean": True, "weights": _often("power", "kill leader")},
    ),
    "T2 own end against another history": Planted(
        replace(RULES, compares_with_tier=False), "INV-4", 40, {"tier": True, "unclean": True}
    ),
    "T3 local segments deleted above the tier": Planted(
        replace(RULES, drops_untiered=True), "INV-4", 10, {"tier": True}
    ),
    "T5 begins above the tiered end": Planted(
        replace(RULES, start_in_tier=_starts_past_tier), "INV-4", 40, {"tier": True}
    ),
    "T7 the manifest's epochs do not answer": Planted(
        replace(RULES, asks_manifest_for_epochs=False), "INV-4", 30, LEADERS_IN_TURN | {"tier": True}
    ),
}
"""By name. Each is run with seeds from 0 on."""
