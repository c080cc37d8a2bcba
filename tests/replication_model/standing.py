"""How a broker hears the controller, and stands for the office when it does not: the shell of ``Candidacy`` (C3, C4, C7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.metadata.controller.candidacy import AskOthers, LookAtSignOfLife, ReadLog, Seal, Wait
from tests.replication_model.bucket import LogEntry

if TYPE_CHECKING:
    from tests.replication_model.process import Process

STEP_MS: Final = 200.0


class Said(NamedTuple):
    """The answer to: have you heard the controller?"""

    heard: bool
    controller_epoch: int


class Standing:
    """Of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._candidacy: Any = None
        self._busy = False

    @property
    def hears(self) -> bool:
        """Whether the controller was heard within the last two seconds."""
        process = self._process
        return process.office.serving or (self._candidacy is not None and self._candidacy.has_heard(process.now_s))

    def answer(self) -> Said:
        """To another broker that asks."""
        return Said(self.hears, self._process.log.writer[1])

    def begin(self) -> None:
        """The log was read."""
        process = self._process
        self._candidacy = process.rules.candidacy(
            process.node_id,
            process.now_s,
            controller_id=process.controller_id,
            controller_epoch=process.log.writer[1],
            jitter_s=process.rng.uniform(0.0, 0.1),
        )
        self._step()

    def heard(self, controller_id: int) -> None:
        """The controller gave a sign."""
        if self._candidacy is not None:
            self._candidacy.heard(controller_id, self._process.now_s)

    def refused(self) -> None:
        """Nobody listens at the controller's address."""
        if self._candidacy is not None:
            self._candidacy.controller_refused(self._process.now_s)

    def entry_applied(self, entry: LogEntry) -> None:
        """A seal is a sign of its writer (C7)."""
        if entry.is_seal and self._candidacy is not None:
            process = self._process
            self._candidacy.seal_seen(entry.epoch, process.controller_id, process.now_s)

    def _step(self) -> None:
        process = self._process
        process.after(STEP_MS, self._step)
        if self._busy:
            return
        candidacy = self._candidacy
        if process.office.active:
            return
        candidacy.follow([int(key) for key, broker in process.image.brokers.items() if not broker.fenced])
        match candidacy.decide(process.now_s):
            case Wait():
                return
            case ReadLog():
                self._busy = True
                process.log.poll(self._log_read)
            case AskOthers(number, brokers):
                for broker in brokers:
                    self._ask(number, broker)
            case LookAtSignOfLife(controller_id):
                self._busy = True
                process.world.bucket.ages_ms(process, lambda ages_ms: self._ages(ages_ms, controller_id))
            case Seal():
                self._busy = True
                process.log.poll(self._take)

    def _log_read(self, ok: bool) -> None:
        self._busy = False
        process = self._process
        process.office.notice_successor()
        if ok:
            self._candidacy.log_read(process.now_s)
        else:
            self._candidacy.log_unread(process.now_s)

    def _ask(self, number: int, broker: int) -> None:
        def answered(said: Any) -> None:
            if isinstance(said, Said):
                self._candidacy.answered(number, broker, heard=said.heard, controller_epoch=said.controller_epoch)

        self._process.world.network.call(self._process, broker, "heard?", None, answered)

    def _ages(self, ages_ms: dict[int, float] | None, controller_id: int) -> None:
        self._busy = False
        now_s = self._process.now_s
        if ages_ms is None:
            self._candidacy.sign_of_life_unknown(now_s)
        else:
            age_ms = ages_ms.get(controller_id)
            self._candidacy.sign_of_life(None if age_ms is None else age_ms / 1000, now_s)

    def _take(self, ok: bool) -> None:
        process = self._process

        def ended(took: bool) -> None:
            self._busy = False
            if not took:
                self._candidacy.lost_race(process.now_s)

        if not ok or not isinstance(self._candidacy.decide(process.now_s), Seal):
            self._busy = False
            return
        process.office.take(ended)
