"""The controller's part of a broker: it plans on the newest image through the real ``Decisions``, and hands durable entries out.

The shell is written after ADR 0023, C; ``app/metadata/controller/controller.py`` and ``desk.py`` are the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.core.errors import ErrorCode, FirnError, RequestRejected, StorageUnavailable
from app.core.units import BrokerId, LogSequence, TimestampMs
from app.metadata.changes.broker_changes import begin_stop
from app.metadata.changes.topic_changes import ConfigChange, PlanInputs, Planned, alter_configs
from app.metadata.controller.decisions import Answer, Decisions
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import ControllerRecord, controller_change
from app.metadata.peers.control import Heartbeat, HeartbeatAnswer
from app.metadata.replicas.replica_changes import clear_eligible
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.replication_model.bucket import LogEntry
from tests.replication_model.numbered import Outcome

if TYPE_CHECKING:
    from tests.replication_model.process import Process

TICK_MS: Final = 200.0
CONFIRM_MS: Final = 1500.0
UNCONFIRMED_MS: Final = 2000.0
SESSION_TIMEOUT_S: Final = 3.0
ENTRIES_WAIT_MS: Final = 1000.0
LEADERS_BACK_MS: Final = 5000.0

NOT_CONTROLLER: Final = "NOT_CONTROLLER"
"""The answer of a broker that is not the controller, or cannot confirm the log (C6)."""

Answered = Callable[[Any, FirnError | None], None]


class BeatAnswer(NamedTuple):
    """A heartbeat's answer, with what C9 adds."""

    answer: HeartbeatAnswer
    controller_epoch: int
    next_sequence: int


def not_controller() -> RequestRejected:
    """The refusal of a broker that is not the controller."""
    return RequestRejected(ErrorCode.NOT_CONTROLLER, "not the controller")


class Office:
    """The controller's part of one process. It exists for the whole life of the process, and is ``active`` for some of it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._rules = process.rules
        self._log = process.log
        self.active = False
        self.confirmed_ms = 0.0
        self._taking = False
        self._busy = False
        self._confirming = False
        self._decisions = Decisions()
        self._asking: dict[int, Answered] = {}
        self._waiting: list[tuple[int, Callable[[Any], None]]] = []
        """Who waits for an entry, and from which number on."""
        self._term = 0
        self.sessions: Any = None
        self._settling = False
        self._leaders_back_ms = 0.0

    @property
    def serving(self) -> bool:
        """C6."""
        return self.active and self._process.now_ms - self.confirmed_ms <= UNCONFIRMED_MS

    # --- taking it, and leaving it ------------------------------------------------------------------------------------

    def take(self, done: Callable[[bool], None]) -> None:
        """Seal, and name this broker in the entry after the seal (C1). ``done`` gets whether it is the controller now."""
        if self._taking or self.active:
            done(self.active)
            return
        process, log = self._process, self._log
        self._taking = True
        started_ms = process.now_ms

        def end(took: bool) -> None:
            self._taking = False
            done(took)

        def sealed(outcome: Outcome) -> None:
            if outcome is not Outcome.OURS:
                log.poll(lambda ok: end(False))
                return
            log.append(log.next_sequence, [self._controllership()], named)

        def named(outcome: Outcome) -> None:
            if outcome is not Outcome.OURS:
                log.poll(lambda ok: end(False))
                return
            self._begin(started_ms)
            end(True)

        log.seal(log.writer[1] + 1, sealed)

    def _begin(self, confirmed_ms: float) -> None:
        process = self._process
        self.active = True
        self.confirmed_ms = confirmed_ms
        self._term += 1
        self.sessions = self._rules.sessions(SESSION_TIMEOUT_S, process.now_s)
        self.sessions.follow(process.image.brokers, process.now_s)
        self._settling = False
        self._leaders_back_ms = process.now_ms + LEADERS_BACK_MS
        process.trace("takes office")
        process.after(TICK_MS, self._tick, self._term)

    def step_down(self) -> None:
        """Another broker is the controller (C8)."""
        if self.active:
            self._process.trace("steps down")
        self.active = False
        self._log.sealed = False
        self.sessions = None
        self._answer(self._decisions.refuse_waiting(not_controller()))
        self._wake(NOT_CONTROLLER)

    def notice_successor(self) -> None:
        """C9."""
        if self.active and self._log.writer[0] != self._process.name:
            self.step_down()

    def entry_applied(self, entry: LogEntry) -> None:
        """This broker applied an entry."""
        if entry.is_seal and entry.writer_id != self._process.name:
            self.notice_successor()
        if self.active and self.sessions is not None:
            self.sessions.follow(self._process.image.brokers, self._process.now_s)

    # --- changes ------------------------------------------------------------------------------------------------------

    def submit(self, plan: Callable[[ImageDraft, PlanInputs], Planned[Any]], answered: Answered) -> None:
        """Make a change. ``answered`` gets its result, or an error, when it is durable."""
        if not self.active:
            answered(None, not_controller())
            return
        self._asking[self._decisions.submit(plan)] = answered
        self._work()

    def _answer(self, answers: list[Answer]) -> None:
        for number, value, error in answers:
            self._asking.pop(number)(value, error)

    def _controllership(self) -> Any:
        process = self._process
        return controller_change(
            ControllerRecord(1, self._log.writer[1], BrokerId(process.node_id), process.incarnation)
        )

    def _work(self) -> None:
        if self._busy or not self.active or not self._decisions.waiting:
            return
        self._busy = True
        if not self._log.sealed:
            self._log.poll(self._read_before_sealing)
            return
        self._plan()

    def _read_before_sealing(self, ok: bool) -> None:
        """C2: read the log, then seal again."""

        def sealed(outcome: Outcome) -> None:
            if outcome is Outcome.OURS and self.active:
                self._plan()
                return
            self._answer(self._decisions.refuse_waiting(StorageUnavailable("undecided")))
            self._busy = False
            self.notice_successor()

        self.notice_successor()
        if not self.active:
            self._busy = False
        elif not ok:
            self._answer(self._decisions.refuse_waiting(StorageUnavailable("undecided")))
            self._busy = False
        else:
            self._log.seal(self._log.writer[1] + 1, sealed)

    def _plan(self) -> None:
        process, decisions = self._process, self._decisions
        image = process.image
        sequence = self._log.next_sequence
        live = [broker.broker_id for _, broker in sorted(image.brokers.items()) if broker.active]
        around = PlanInputs(
            process.world.broker_config,
            live,
            TimestampMs(int(process.wall_clock_ms)),
            0,
            LogSequence(sequence),
        )
        first = () if image.controller.epoch == self._log.writer[1] else (self._controllership(),)
        decisions.begin(image, around, first)
        while decisions.plan(32):
            pass
        started_ms = process.now_ms
        if not decisions.entry:
            self._appended(Outcome.OURS, self.confirmed_ms)
            return
        self._log.append(
            sequence,
            list(decisions.entry),
            lambda outcome: self._appended(outcome, started_ms),
            then=self._wake_early if self._rules.tells_before_durable else None,
        )

    def _appended(self, outcome: Outcome, started_ms: float) -> None:
        decisions = self._decisions
        if outcome is Outcome.OURS:
            self.confirmed_ms = max(self.confirmed_ms, started_ms)
            self._busy = False
            answers = decisions.durable()
            self._answer(answers)
            self._work()
        elif outcome is Outcome.CONFLICT:
            decisions.overtaken()
            self._log.poll(self._after_conflict)
        elif not self._rules.reads_after_undecided:
            self._busy = False
            self._log.take_for_written()
            self._answer(decisions.durable())
        else:
            self._busy = False
            error = StorageUnavailable("undecided")
            self._answer(decisions.undecided(error))
            self._answer(decisions.refuse_waiting(error))

    def _after_conflict(self, ok: bool) -> None:
        self._busy = False
        self.notice_successor()
        if not ok:
            self._answer(self._decisions.refuse_waiting(StorageUnavailable("Cannot read")))
        elif self.active:
            self._work()
        else:
            self._answer(self._decisions.refuse_waiting(not_controller()))

    # --- the clock ----------------------------------------------------------------------------------------------------

    def _tick(self, term: int) -> None:
        process = self._process
        if not self.active or term != self._term:
            return
        process.after(TICK_MS, self._tick, term)
        sessions = self.sessions
        sessions.tick(process.now_s)
        if not self._rules.confirms:
            self.confirmed_ms = process.now_ms
        if process.now_ms - self.confirmed_ms >= CONFIRM_MS and not self._confirming and not self._busy:
            self._confirming = True
            before_ms = process.now_ms
            self._log.poll(lambda ok: self._confirmed(ok, before_ms))
        if self.serving and not self._settling:
            self._settle()

    def _confirmed(self, ok: bool, before_ms: float) -> None:
        self._confirming = False
        self.notice_successor()
        if ok and self.active:
            self.confirmed_ms = max(self.confirmed_ms, before_ms)

    def _settle(self) -> None:
        """Make the changes that the sessions call for."""
        process, sessions, rules = self._process, self.sessions, self._rules
        brokers = process.image.brokers
        expired = [
            (broker_id, brokers[broker_id].broker_epoch)
            for broker_id in sessions.expired(process.now_s)
            if broker_id in brokers and not brokers[broker_id].fenced
        ]
        back = [
            (broker_id, broker.broker_epoch, sessions.applied(broker_id))
            for broker_id in sessions.to_unfence()
            if (broker := brokers.get(broker_id)) is not None and broker.fenced
        ]
        left = {"open": 0}

        def settled(value: Any, error: FirnError | None) -> None:
            left["open"] -= 1
            if not left["open"]:
                self._settling = False

        plans = []
        if expired:
            plans.append(lambda draft, around: rules.fence(draft, around, expired))
        if back:
            plans.append(lambda draft, around: rules.unfence(draft, around, back))
        if process.now_ms >= self._leaders_back_ms:
            self._leaders_back_ms = process.now_ms + LEADERS_BACK_MS
            plans.append(lambda draft, around: rules.leaders_back(draft, around, 1000))
        left["open"] = len(plans)
        self._settling = bool(plans)
        for plan in plans:
            self.submit(plan, settled)

    # --- what brokers ask ---------------------------------------------------------------------------------------------

    def serve(self, method: str, request: Any, reply: Callable[[Any], None]) -> None:
        """Answer a broker."""
        if method == "heartbeat":
            self._heard(request, reply)
            return
        if not self.serving:
            reply(NOT_CONTROLLER)
            return
        match method:
            case "entries":
                self._entries(request, reply)
            case "register":
                self.submit(
                    lambda draft, around: self._rules.register(draft, around, request),
                    lambda value, error: reply(error if error is not None else value),
                )
            case "alter":
                broker_id, broker_epoch, proposals = request
                self.submit(
                    lambda draft, around: self._rules.alter(draft, around, broker_id, broker_epoch, proposals),
                    lambda value, error: reply(error if error is not None else value),
                )
            case "left":
                self.submit(
                    lambda draft, around: self._rules.fence(draft, around, [request]), lambda value, error: reply(True)
                )
            case "reassign":
                self.submit(
                    lambda draft, around: self._rules.reassign(draft, around, *request),
                    lambda value, error: reply(error),
                )
            case "min in-sync":
                self.submit(
                    lambda draft, around: self._rules.change_min_in_sync(draft, around, request),
                    lambda value, error: reply(error),
                )
            case _:
                raise AssertionError(method)

    def _heard(self, request: tuple[Heartbeat, int], reply: Callable[[Any], None]) -> None:
        beat, known_epoch = request

        def go_on(ok: bool) -> None:
            self.notice_successor()
            process, sessions = self._process, self.sessions
            if not self.serving or sessions is None:
                reply(NOT_CONTROLLER)
                return
            error = self._rules.heard(sessions, process, beat)
            if error is not ErrorCode.NONE:
                reply(BeatAnswer(HeartbeatAnswer(error), self._log.writer[1], self._log.next_sequence))
                return
            if beat.wants_stop:
                self.submit(
                    lambda draft, around: begin_stop(draft, around, beat.broker_id, beat.broker_epoch), stop_planned
                )
            else:
                answer(False)

        def stop_planned(value: Any, error: FirnError | None) -> None:
            if error is not None:
                reply(None)
            else:
                answer(value == 0)

        def answer(may_stop: bool) -> None:
            broker = self._process.image.brokers.get(beat.broker_id)
            fenced = broker is None or broker.fenced
            caught_up = broker is not None and beat.applied >= broker.changed_at
            reply(
                BeatAnswer(
                    HeartbeatAnswer(ErrorCode.NONE, caught_up, fenced, may_stop),
                    self._log.writer[1],
                    self._log.next_sequence,
                )
            )

        ahead = beat.applied >= self._log.next_sequence or known_epoch > self._log.writer[1]
        if self.active and ahead and self._rules.reads_when_behind:
            self._log.poll(go_on)  # C9
        else:
            go_on(True)

    # --- handing entries out ------------------------------------------------------------------------------------------

    def _entries(self, start: int, reply: Callable[[Any], None]) -> None:
        next_sequence = self._log.next_sequence
        if start > next_sequence:
            reply("lost")
        elif start < next_sequence:
            reply(self._process.kept_entries(start))
        else:
            self._waiting.append((start, reply))
            self._process.after(ENTRIES_WAIT_MS, self._wait_is_over, start, reply)

    def _wait_is_over(self, start: int, reply: Callable[[Any], None]) -> None:
        if (start, reply) in self._waiting:
            self._waiting.remove((start, reply))
            reply([] if self.serving else NOT_CONTROLLER)

    def wake(self) -> None:
        """Entries were appended: hand them out."""
        if self._waiting and self.active:
            waiting, self._waiting = self._waiting, []
            for start, reply in waiting:
                reply(self._process.kept_entries(start))

    def _wake_early(self, entry: LogEntry) -> None:
        """Planted: told before it is durable."""
        waiting, self._waiting = self._waiting, []
        for start, reply in waiting:
            reply([*self._process.kept_entries(start), entry])

    def _wake(self, answer: Any) -> None:
        waiting, self._waiting = self._waiting, []
        for _, reply in waiting:
            reply(answer)


def change_min_in_sync(draft: ImageDraft, around: PlanInputs, value: int) -> Planned[Any]:
    """Change ``min.insync.replicas`` of the topic, and clear the eligible replicas in the same entry (R9)."""
    planned = alter_configs(
        draft,
        around,
        resource_type=ConfigResourceType.TOPIC,
        resource_name="model",
        changes=[ConfigChange("min.insync.replicas", ConfigOperation.SET, str(value))],
    )
    return Planned([*planned.records, *clear_eligible(draft.topics)] if planned.records else [], None)
