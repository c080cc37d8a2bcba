"""One start of a broker: it follows the cluster log, registers, beats, may be the controller, and replicates."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from app.core.errors import ErrorCode, FirnError
from app.metadata.changes.broker_changes import RegistrationAnswer, RegistrationAsked
from app.metadata.image.image import ClusterImage
from app.metadata.peers.control import Heartbeat
from tests.replication_model.bucket import LogEntry
from tests.replication_model.disk import Marker
from tests.replication_model.network import REFUSED
from tests.replication_model.numbered import NumberedModel
from tests.replication_model.office import NOT_CONTROLLER, BeatAnswer, Office
from tests.replication_model.replicas import Replicas
from tests.replication_model.standing import Standing
from tests.sim.process import ModelProcess

if TYPE_CHECKING:
    from tests.replication_model.rules import Rules
    from tests.replication_model.world import Machine, World

BEAT_MS: Final = 500.0
SIGN_OF_LIFE_MS: Final = 10_000.0
RETRY_MS: Final = 300.0
LOST_THREAD_MS: Final = 1_500.0
"""How often a broker that hears no controller reads the bucket."""
CHECKPOINT_MS: Final = 5_000.0


class Process(ModelProcess):
    """See the module."""

    def __init__(self, world: World, machine: Machine, rules: Rules) -> None:
        super().__init__(world.timeline, machine.node_id, Random(machine.rng.getrandbits(64)))
        self.world = world
        self.machine = machine
        self.rules = rules
        self.name = f"{machine.node_id}/{self.rng.getrandbits(20):05x}"
        """The writer id too."""
        self.incarnation = UUID(int=self.rng.getrandbits(128))
        self._started_ms = world.now_ms
        self.image: ClusterImage = ClusterImage()
        self._kept: dict[int, LogEntry] = {}
        self.log = NumberedModel(self, world.bucket, "cluster", self.name, self._apply)
        self.office = Office(self)
        self.standing = Standing(self)
        self.replicas = Replicas(self)
        self.broker_epoch = -1
        """-1 until this start is registered."""
        self._must_apply = -1
        self._pending_epoch = -1
        self._registering = False
        self._asking_entries = False
        self._stopped: Callable[[], None] | None = None
        self.fenced = True
        self._read_ms = 0.0

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.world.timeline.now_ms / 1000

    @property
    def wall_clock_ms(self) -> float:
        """What the machine believes that the time is."""
        return self.world.timeline.now_ms + 1_000_000 + self.machine.clock_skew_ms

    def goes_on(self) -> None:
        self.trace("goes on")

    def trace(self, line: str) -> None:
        """Note what happens."""
        if self.world.traced:
            self.world.trace(f"{self.name} {line}")

    def die(self, why: str) -> None:
        """The process ends by itself, and is started again."""
        self.trace(f"ends: {why}")
        machine = self.machine
        machine.kill()
        self.world.timeline.after(1_000.0, machine.start)

    # --- life ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the cluster log, then go on for ever."""

        def loaded(ok: bool) -> None:
            if not ok:
                self.after(RETRY_MS, self.begin)
                return
            self.standing.begin()
            self._tick()
            self._ask_entries()
            self._give_sign_of_life()
            self.after(self.rng.uniform(0.0, CHECKPOINT_MS), self._checkpoint)

        self.log.poll(loaded)

    def _tick(self) -> None:
        """Register, and beat once that is done."""
        self.after(BEAT_MS if self.broker_epoch >= 0 else RETRY_MS, self._tick)
        if self.broker_epoch < 0:
            self._register()
        else:
            self._beat()

    def _checkpoint(self) -> None:
        self.after(CHECKPOINT_MS, self._checkpoint)
        self.replicas.checkpoint()

    def _give_sign_of_life(self) -> None:
        self.after(SIGN_OF_LIFE_MS, self._give_sign_of_life)
        self.world.bucket.beat(self, self.node_id)

    @property
    def controller_id(self) -> int:
        """The broker whose seal is the newest that is known (C7)."""
        name = self.log.writer[0]
        return int(name.split("/")[0]) if name else -1

    # --- the cluster log ----------------------------------------------------------------------------------------------

    def _apply(self, entry: LogEntry) -> None:
        self.world.checkers.entry_applied(
            self.node_id, self.broker_epoch if self._must_apply < 0 else self._pending_epoch, entry
        )
        before = self.image
        self.image = self.world.image_after(before, entry)
        self._kept[entry.sequence] = entry
        self._note_registration()
        self.standing.entry_applied(entry)
        self.office.entry_applied(entry)
        self.replicas.follow(before, self.image)
        self.office.wake()

    def kept_entries(self, start: int) -> list[LogEntry]:
        """The entries from ``start`` on."""
        return [self._kept[number] for number in range(start, self.log.next_sequence)]

    def _ask_entries(self) -> None:
        """Ask the controller for entries, again and again."""
        if self._asking_entries:
            return
        self._asking_entries = True

        def answered(entries: Any) -> None:
            self._asking_entries = False
            if isinstance(entries, list):
                self.standing.heard(controller)
                lost = False
                for entry in entries:
                    if entry.sequence >= self.log.next_sequence and not self.log.offer(entry):
                        lost = True
                if lost:
                    self._read_log()
                self._ask_entries()
                return
            if entries is REFUSED:
                self.standing.refused()
            if entries in ("lost", NOT_CONTROLLER):
                self._read_log()
            self.after(RETRY_MS, self._ask_entries)

        controller = self.controller_id
        if controller == self.node_id or controller < 0:
            self._asking_entries = False
            if not self.office.active and self.now_ms - self._read_ms > LOST_THREAD_MS:
                self._read_log()
            self.after(RETRY_MS, self._ask_entries)
            return
        if not self.standing.hears and self.now_ms - self._read_ms > LOST_THREAD_MS:
            self._read_log()
        self.world.network.call(
            self, controller, "entries", self.log.next_sequence, answered, timeout_ms=2500.0, once=True
        )

    def _read_log(self) -> None:
        self._read_ms = self.now_ms
        self.log.poll(lambda ok: self.office.notice_successor())

    # --- membership ---------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        if self._registering or self._must_apply >= 0:
            return
        known = self.image.brokers.get(self.node_id)
        marker = self.machine.disk.marker
        asked = RegistrationAsked(
            self.node_id,
            self.machine.disk.directory_id,
            self.incarnation,
            self.machine.boot_id,
            self.world.endpoints(self.node_id),
            1,
            1,
            replaces=known.broker_epoch if known is not None else -1,
            clean_epoch=marker.broker_epoch if marker is not None and marker.clean else -1,
            run_epoch=marker.broker_epoch if marker is not None and not marker.clean else -1,
            run_boot_id=marker.boot_id if marker is not None else "",
        )
        self._registering = True
        if self.office.active:
            self.office.serve("register", asked, self._registered)
        elif self.controller_id >= 0:
            self.world.network.call(self, self.controller_id, "register", asked, self._registered)
        else:
            self._registering = False

    def _registered(self, answer: Any) -> None:
        self._registering = False
        if isinstance(answer, RegistrationAnswer):
            if self.broker_epoch >= 0 or self._must_apply >= 0:
                return
            self._must_apply = answer.sequence
            self._pending_epoch = answer.broker_epoch
            self._note_registration()
        elif isinstance(answer, FirnError):
            self.trace(f"is not registered: {answer}")
            self._read_log()

    def _note_registration(self) -> None:
        """The registration counts when its entry is applied."""
        if self.broker_epoch >= 0 or self._must_apply < 0 or self.image.sequence < self._must_apply:
            return
        self.broker_epoch = self._pending_epoch
        self.world.checkers.entry_applied(self.node_id, self.broker_epoch, self.log.last)
        # Written, with its name, before anything is appended.
        self.machine.disk.marker = Marker(self.broker_epoch, False, self.machine.boot_id)
        self.trace(f"is registered with broker epoch {self.broker_epoch}")
        self.replicas.begin()

    def _beat(self) -> None:
        beat = Heartbeat(self.node_id, self.broker_epoch, int(self.image.sequence), self._stopped is not None)
        request = (beat, self.log.writer[1])
        if self.office.active:
            self.office.serve("heartbeat", request, self._beat_answered)
        elif self.controller_id >= 0:
            to = self.controller_id
            self.world.network.call(
                self, to, "heartbeat", request, lambda answer: self._beat_answered(answer, to), timeout_ms=1500.0
            )

    def _beat_answered(self, answer: Any, by: int = -1) -> None:
        if answer is REFUSED:
            self.standing.refused()
        if answer == NOT_CONTROLLER:
            self._read_log()
        if not isinstance(answer, BeatAnswer):
            return
        said, controller_epoch, next_sequence = answer
        if controller_epoch < self.log.writer[1]:
            return  # of a controller that is over
        if said.error is ErrorCode.NONE:
            self.standing.heard(by if by >= 0 else self.node_id)
            self.fenced = said.fenced
            if self._stopped is not None and said.may_stop:
                self._leave()
        elif said.error is ErrorCode.STALE_BROKER_EPOCH:
            self.standing.heard(by if by >= 0 else self.node_id)
            known = self.image.brokers.get(self.node_id)
            if known is not None and known.broker_epoch > self.broker_epoch:
                self.die("its place was given to another start")
                return
        if next_sequence > self.log.next_sequence + 1 or controller_epoch > self.log.writer[1]:
            self._read_log()

    # --- stopping -----------------------------------------------------------------------------------------------------

    def stop_in_order(self, stopped: Callable[[], None]) -> None:
        """Move leaderships away, sync everything, and end."""
        if self._stopped is None:
            self._stopped = stopped
            self.after(8_000.0, self._leave)  # the operator's patience

    def _leave(self) -> None:
        if self._stopped is None or not self.alive:
            return
        self.replicas.close()
        disk = self.machine.disk
        for log in disk.logs.values():
            log.synced_end = log.end
        if self.broker_epoch >= 0:
            disk.marker = Marker(self.broker_epoch, True, self.machine.boot_id)
            if not self.office.active and self.controller_id >= 0:
                self.world.network.call(
                    self, self.controller_id, "left", (self.node_id, self.broker_epoch), lambda _: None
                )
        self.alive = False
        self.trace("has stopped in order")
        stopped, self._stopped = self._stopped, None
        stopped()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def serve(self, method: str, request: Any, reply: Callable[[Any], None]) -> None:
        """Answer a request. None is the answer of who is not the one to ask."""
        match method:
            case "heard?":
                reply(self.standing.answer())
            case "fetch":
                self.replicas.serve_fetch(request, reply)
            case "produce":
                self.replicas.serve_produce(request, reply)
            case "latest":
                self.replicas.serve_latest(request, reply)
            case "entries" | "heartbeat" | "register" | "alter" | "left" | "reassign" | "min in-sync":
                self.office.serve(method, request, reply)
            case _:
                raise AssertionError(method)
