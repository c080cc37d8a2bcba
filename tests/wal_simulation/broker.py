"""A broker's process: it registers, follows images, leads partitions, and writes its log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import FencedError
from app.core.units import TopicIdPartition
from app.metadata.image.wal_ranges import WalId
from app.metadata.log.append_attempt import PutOutcome, ReadOutcome
from app.wal.format import WalFooter
from app.wal.writer import Action, Done, Put, ReadBack, WalWriter
from tests.wal_simulation.bucket import Stored
from tests.wal_simulation.cluster import NOBODY, Image
from tests.wal_simulation.leading import Fetched, Leading
from tests.wal_simulation.office import Office
from tests.wal_simulation.process import Process
from tests.wal_simulation.sealer import end_log

if TYPE_CHECKING:
    from tests.wal_simulation.world import Machine, World

POLL_MS: Final = (40.0, 160.0)
BEAT_MS: Final = (150.0, 250.0)
TRIM_MS: Final = (200.0, 600.0)
CANDIDATE_MS: Final = 2500.0
STOP_MS: Final = 2500.0


class Broker(Process):
    """One process on one machine."""

    def __init__(self, world: World, machine: Machine, incarnation: int, rng: Random) -> None:
        super().__init__(world.timeline, machine.node_id, incarnation, rng)
        self.world = world
        self.machine = machine
        self.image = Image()
        self.broker_epoch = -1
        self.writer: WalWriter | None = None
        self.needs: Any = None
        self.led: dict[TopicIdPartition, Leading] = {}
        self.office: Office | None = None
        self.disk = machine.disk
        self.read_early: dict[WalId, dict[int, WalFooter]] = {}
        """Planted (J15): footers that were read before their log had ended."""
        self._stopping = False
        self._trimmed = 0
        self._heard_ms = self.now_ms
        self.repeat(POLL_MS, self._poll)
        self.repeat(BEAT_MS, self._beat)
        self.repeat(TRIM_MS, self._trim)

    # --- the cluster ------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        self.world.log.read(self, self._on_image)

    def refresh(self, done: Callable[[], None]) -> None:
        """Read the newest image, and follow it."""

        def told(image: Image) -> None:
            self._on_image(image)
            done()

        self.until_known(lambda answer: self.world.log.read(self, answer), told)

    def take_office(self) -> None:
        """Try to become the controller."""
        self.office = Office(self)
        self.office.take()

    def _beat(self) -> None:
        controller = self.image.controller
        if controller == self.node_id and (self.office is None or not self.office.open):
            self.take_office()
        if self.broker_epoch >= 0 and self.writer is not None:
            next_number = self.writer.next_number
            self.ask_controller("heard", self.node_id, self.broker_epoch, next_number)
            if self.now_ms - self._heard_ms > CANDIDATE_MS * self.rng.uniform(1.0, 2.0):
                self._heard_ms = self.now_ms
                self.take_office()
        else:
            self._register()

    def ask_controller(self, what: str, *args: Any) -> None:
        """Tell the controller something, by a message that may be lost."""
        sender = self

        def deliver(other: Broker) -> None:
            office = other.office
            if office is not None and office.active:
                self.world.send(other.node_id, sender.node_id, lambda back: back.note_heard())
                getattr(office, what)(*args)

        self.world.send(self.node_id, self.image.controller, deliver)

    def note_heard(self) -> None:
        """The controller lives."""
        self._heard_ms = self.now_ms

    def _register(self) -> None:
        if self._stopping:
            return
        mine = self.image.brokers.get(self.node_id)
        if self.image.sequence == 0:
            return
        known = mine.incarnation if mine is not None else -1
        if self.image.controller == NOBODY or self.now_ms - self._heard_ms > CANDIDATE_MS * self.rng.uniform(1.0, 2.0):
            self._heard_ms = self.now_ms
            self.take_office()
        elif known != self.incarnation:
            self.ask_controller("register", self.node_id, self.incarnation, known)

    def _on_image(self, image: Image | None) -> None:
        if image is None or image.sequence <= self.image.sequence:
            return
        before, self.image = self.image, image
        if not self.world.rules.reads_ended_ranges:
            self._read_early()
        mine = image.brokers.get(self.node_id)
        rules = self.world.rules
        if (
            mine is not None
            and self.broker_epoch < 0
            and (mine.incarnation == self.incarnation or not rules.registers_anew)
        ):
            self._joined(mine.broker_epoch)
            self.incarnation = mine.incarnation
        if self.broker_epoch < 0:
            return
        if mine is None or mine.incarnation != self.incarnation:
            if self.machine.process is not self:
                self.end()  # another process of this node has come
            else:
                self.join_anew()
            return
        wal = WalId(self.node_id, self.broker_epoch)
        if (mine.sealed_at is not None or wal in image.orphaned_wals()) and rules.sealed_joins_anew:
            self.join_anew()
            return
        for key in before.partitions.keys() - image.partitions.keys():
            self.needs.note_gone(key)  # this broker need not lead it: it may hold what it released
        self._follow()

    def _read_early(self) -> None:
        for wal in self.image.orphaned_wals():
            if wal not in self.read_early:
                log = self.world.bucket.wals.get(wal, {})
                self.read_early[wal] = {number: one.footer for number, one in log.items()}

    def _joined(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        wal = WalId(self.node_id, broker_epoch)
        rules, plan = self.world.rules, self.world.plan
        self.writer = rules.writer(
            wal,
            new_nonce=self.world.new_nonce,
            object_bytes=plan.object_bytes,
            buffer_bytes=plan.buffer_bytes,
            window=plan.window,
            waiting_bytes=0,
        )
        self.needs = rules.needs(wal, window=plan.window)
        self._trimmed = 0
        self.world.checkers.writer_began(wal)

    def join_anew(self) -> None:
        """J14: give everything up, and come back as a new incarnation."""
        for leading in self.led.values():
            leading.close()
        self.led = {}
        self.writer, self.needs, self.broker_epoch = None, None, -1
        self.incarnation = self.world.new_incarnation()

    def end(self) -> None:
        """The process exits."""
        self.alive = False
        if self.machine.process is self:
            self.machine.process = None

    def stop(self) -> None:
        """A clean stop: release everything, seal the own log, and exit. Whoever is to take over may be away, so it has a limit."""
        if not self._stopping:
            self._stopping = True
            for leading in self.led.values():
                leading.release()
            self._stop_at_ms = self.now_ms + STOP_MS
            self._stop_on()

    def _stop_on(self) -> None:
        if self.led and self.now_ms < self._stop_at_ms and self.writer is not None:
            self.after(50.0, self._stop_on)
        elif self.writer is not None and self.writer.sealed_at is None:
            end_log(self, self.writer.wal, lambda end: self._stopped())
        else:
            self._stopped()

    def _stopped(self) -> None:
        self.end()
        self.timeline.after(self.rng.uniform(200, 2000), self.machine.start)

    def _follow(self) -> None:
        assert self.writer is not None
        for key in [each for each in self.led if each not in self.image.partitions]:
            self.led.pop(key).close()
            self.writer.forget(key)
        for key, record in self.image.partitions.items():
            leading = self.led.get(key)
            if record.leader == self.node_id:
                if leading is None or leading.leader_epoch < record.leader_epoch:
                    if leading is not None:
                        leading.close()
                        self.writer.forget(key)
                    found = record.open_range
                    if record.mode.fails_over_by_log and (found is None or found.wal != self.writer.wal):
                        continue  # an image of an earlier registration
                    self.led[key] = Leading(self, key, record)
                    self.led[key].begin()
                else:
                    leading.note_record(record)
            elif leading is not None and record.leader_epoch > leading.leader_epoch:
                leading.close()
                self.writer.forget(key)
                del self.led[key]
            self.needs.note_image(key, leader_epoch=record.leader_epoch, ranges=record.ranges)

    # --- the log ----------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Cut what is due, and come again when more will be."""
        writer = self.writer
        if writer is None:
            return
        while (put := writer.cut(int(self.now_ms))) is not None:
            self._do(writer, put)
        if writer.cut_ms is not None:
            self.after(max(1.0, writer.cut_ms - self.now_ms + 1), self._pump_of, writer)

    def _pump_of(self, writer: WalWriter) -> None:
        if writer is self.writer:
            self.pump()

    def _do(self, writer: WalWriter, action: Action) -> None:
        match action:
            case Put(number, delay_s):
                self.after(delay_s * 1000, self._put, writer, number)
            case ReadBack(number, delay_s):
                self.after(delay_s * 1000, self._read_back, writer, number)
            case Done():
                self._told(writer)

    def _put(self, writer: WalWriter, number: int) -> None:
        if writer is not self.writer or not writer.wants(number):
            return

        def told(written: bool | None) -> None:
            if writer is self.writer and writer.wants(number):
                outcome = {None: PutOutcome.UNDECIDED, True: PutOutcome.WRITTEN, False: PutOutcome.EXISTS}[written]
                self._do(writer, writer.on_put(number, outcome))

        self.world.bucket.put(self, writer.wal, number, writer.bytes_of(number), told)

    def _read_back(self, writer: WalWriter, number: int) -> None:
        if writer is not self.writer or not writer.wants(number):
            return

        def told(found: Any) -> None:
            if writer is not self.writer or not writer.wants(number):
                return
            outcome: Any = ReadOutcome.UNDECIDED if found is None else ReadOutcome.MISSING
            if isinstance(found, Stored):
                outcome = found.footer
            try:
                action = writer.on_read(number, outcome)
            except FencedError:
                self.world.checkers.foreign_object(writer.wal, number)
                return
            self._do(writer, action)

        self.world.bucket.read(self, writer.wal, number, told)

    def _told(self, writer: WalWriter) -> None:
        """Something may be acknowledged, or the log has ended."""
        self.world.checkers.writer_is(writer)
        for durable in writer.take_acknowledged():
            self.needs.note_object(durable)
            for section in durable.sections:
                leading = self.led.get(section.partition)
                if leading is not None and leading.leader_epoch == section.leader_epoch:
                    leading.acknowledged(section.end_offset)
        if writer.sealed_at is not None:
            if writer.durable_end >= writer.sealed_at and self.world.rules.sealed_joins_anew:
                self.join_anew()
            return
        self.pump()

    def _trim(self) -> None:
        """J32."""
        writer = self.writer
        if writer is None:
            return
        if self.world.rules.rolls:
            for key in self.needs.to_roll(self.world.plan.retention_bytes):
                if key in self.led:
                    self.led[key].roll()
        if writer.sealed_at is not None:
            return
        end = writer.begin_trim(self.needs.trim_end(writer.durable_end))
        if not self.world.rules.trims_prefix:
            self._trim_holes(writer)
        if end <= self._trimmed:
            return

        def told(deleted: bool | None) -> None:
            if deleted and writer is self.writer:
                self._trimmed = max(self._trimmed, end)
                self.needs.note_deleted(end)

        self.world.bucket.delete(self, writer.wal, list(range(self._trimmed, end)), told)

    def _trim_holes(self, writer: WalWriter) -> None:
        """Planted: every object goes that nobody needs."""
        needed = {number for each in self.needs._partitions.values() for need in each.needs for number in need[:3:2]}
        numbers = range(self._trimmed, writer.durable_end - (self.world.plan.window + 1))
        doomed = [number for number in numbers if number not in needed]
        if doomed:
            self.world.bucket.delete(self, writer.wal, doomed, lambda deleted: None)

    # --- clients ----------------------------------------------------------------------------------------------------------

    def produce(self, key: TopicIdPartition, batch: bytes, value: int, reply: Callable[[str, int], None]) -> None:
        """One batch of a producer."""
        leading = self.led.get(key)
        if leading is None:
            reply("not leader", -1)
        else:
            leading.produce(batch, value, reply)

    def fetch(self, key: TopicIdPartition, offset: int, reply: Callable[[Fetched], None], *, committed: bool) -> None:
        """Values from ``offset`` on."""
        leading = self.led.get(key)
        if leading is not None:
            leading.fetch(offset, reply, committed=committed)

    def move(self, key: TopicIdPartition) -> None:
        """The operator wants another broker to lead."""
        leading = self.led.get(key)
        if leading is not None and leading.mode.fails_over_by_log:
            leading.release()
        elif leading is not None:
            self.ask_controller("transfer", key)

    # --- for the tests ----------------------------------------------------------------------------------------------------

    def under_way(self) -> set[str]:
        """The steps that a fault would hit now."""
        steps = {name for name, count in self.steps.items() if count > 0}
        if self.writer is not None:
            if self.writer.held_bytes > 0:
                steps.add("buffer")
            if self.world.checkers.landed_above(self.writer.wal, self.writer.durable_end):
                steps.add("acknowledge")
        return steps
