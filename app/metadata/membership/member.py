"""One broker of several: it registers, beats, follows the cluster log, and becomes the controller if it has to (ADR 0023).

The loops of ``run`` know the controller from the newest seal that they have read. Their requests to it go through the
``ControlLink``. If this broker is the controller itself, they go to its own ``Desk``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

import msgspec

from app.core.errors import (
    BrokerUnavailable,
    CorruptionError,
    ErrorCode,
    FencedError,
    FirnError,
    ProtocolError,
    RequestRejected,
    StorageUnavailable,
    clause,
)
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.loop_time import loop_time_s
from app.core.seams import Clock, shared_wait_s
from app.core.units import LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.metadata.changes.broker_changes import ProposedSet, RegistrationAsked
from app.metadata.changes.scram_changes import ScramAnswer, ScramAsked
from app.metadata.changes.wal_store_changes import MAIN_STORE, why_not_this_store
from app.metadata.controller.candidacy import AskOthers, Candidacy, LookAtSignOfLife, ReadLog, Seal, Wait
from app.metadata.controller.controller import Controller, Elsewhere, not_controller
from app.metadata.controller.desk import Desk
from app.metadata.controller.log_ends import LogEnds, OrphanedLogs, SealLog
from app.metadata.image.image import BrokerImage, ClusterImage, ImageDelta, TopicImage
from app.metadata.image.records import LEVEL_MAX, PULSE_LEVEL, Endpoint
from app.metadata.image.wal_ranges import WalId
from app.metadata.membership.isolation import ASK_INTERVAL_S, NO_NUMBER, Isolation
from app.metadata.membership.joining import Attempts, GiveUp, after_attempt
from app.metadata.peers.control import (
    CREATE_TOPIC,
    FIRST_USERS,
    FORGET_TOPIC,
    LEAVE,
    PRODUCER_IDS,
    RAISE_EPOCHS,
    ChangeRequest,
    ChangeResponse,
    ControlLink,
    CreateTopicChange,
    DropAsked,
    EntriesRequest,
    FirstUsersChange,
    FirstUsersMade,
    ForgetTopicChange,
    HeardRequest,
    HeardResponse,
    Heartbeat,
    HeartbeatAnswer,
    InSyncAnswer,
    InSyncAsked,
    NotSent,
    OfLog,
    ProducerIdsChange,
    PulseRequest,
    RaiseChange,
    RegisterRequest,
    ReleaseAsked,
    SwitchAsked,
)
from app.metadata.peers.liveness import BEAT_INTERVAL_MS, Liveness
from app.metadata.peers.place import Places
from app.metadata.peers.pulses import TURN_S, Pulses, StartPulses, Turn, TurnBoard
from app.metadata.replicas.replica_changes import ProposedReplica
from app.metadata.view.registration import Registration, StartRefused
from app.metadata.view.view import ClusterView
from app.metadata.view.wal_store import find_wal_store
from app.objectstore.api import ObjectStore

M = TypeVar("M", bound=msgspec.Struct)

STEP_S: Final = 0.1
"""Pause between two looks of a loop that has nothing to do."""
ENTRIES_WAIT_MS: Final = 2_000
UNHEARD_READ_S: Final = 1.0
"""A broker that has not heard the controller for this time reads the bucket, twice a second, for a new seal."""
CHANGE_S: Final = 30.0
"""How long a change waits for a controller, and for its entry to be applied here."""
ASK_S: Final = 1.0
SIGN_S: Final = 10.0
PULSES_AGAIN_S: Final = 5.0
"""After the end of the thread for pulses by a fault, until another one is started."""
ALONE_LOOK_S: Final = 0.5
"""Between two looks whether a broker that stops is the last one."""
TELL_S: Final = 10.0
"""Between two lines about a WAL store that is waited for."""
STOP_S: Final = 10.0
"""How long a stop in order waits until others lead."""
LINGER_S: Final = 0.5
"""For how long a broker then still answers clients. A client with a request under way, or with a next one, learns the new leader.
Without an answer, the client would first have to notice that its connection is closed, and then find another broker."""

_logger = logging.getLogger(__name__)


class LastRuns(Protocol):
    """Where a broker keeps under which broker epoch it ran (M4)."""

    def registered(self, broker_epoch: int) -> Awaitable[None]:
        """A run under this epoch begins. Raises: StorageUnavailable."""
        ...


class ClusterMember(Elsewhere):
    """Belongs to one event loop. Load the view's log first, call ``start``, then keep ``run`` running. ``joined`` returns when the
    broker is registered."""

    def __init__(
        self,
        view: ClusterView,
        controller: Controller,
        registration: Registration,
        link: ControlLink,
        *,
        endpoints: Sequence[Endpoint],
        signs: Liveness,
        places: Places | None,
        rng: random.Random,
        clock: Clock,
        boot_id: str = "",
        last_run: tuple[int, bool, str] = (-1, False, ""),
        last_runs: LastRuns | None = None,
        take_over: bool = False,
        seal_log: SealLog | None = None,
        store: ObjectStore | None = None,
        start_pulses: StartPulses | None = None,
        elapsed_s: Callable[[], float] | None = None,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
    ) -> None:
        """``last_run``: broker epoch, whether it was stopped in order, and boot id of the last run in this data directory.
        ``seal_log`` ends a write-ahead log; without it the controller ends none. ``store``: where the marker of the WAL store
        is, if the config names one. ``start_pulses``: without it this broker sends no pulses (L6). ``elapsed_s`` is their clock."""
        self._view = view
        self._controller = controller
        self._registration = registration
        self._link = link
        self._endpoints = tuple(endpoints)
        self._signs = signs
        self._rng = rng
        self._clock = clock
        self._boot_id = boot_id
        self._last_run = last_run
        self._last_runs = last_runs
        self._take_over = take_over
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        orphans = OrphanedLogs(view)
        self.desk = Desk(
            view,
            controller,
            link,
            orphans=orphans,
            places=places,
            session_timeout_s=view.config.broker_session_timeout_ms / 1000,
            log_line=log_line,
            faults=self._faults,
        )
        self._log_ends = (
            None
            if seal_log is None
            else LogEnds(
                view,
                controller,
                partial(self._seal, seal_log),
                orphans,
                rng=rng,
                log_line=log_line,
                faults=self._faults,
            )
        )
        self._store = store
        self._start_pulses = start_pulses
        self._elapsed_s = self._now_s if elapsed_s is None else elapsed_s
        self._wal_store: str | None = None if view.config.wal_store_url else MAIN_STORE
        """The id of this broker's store of write-ahead logs; None until it was read (J62)."""
        self.wal_next: Callable[[], int] = _nothing_begun
        """Tells a number that this broker's write-ahead log has not begun (J19)."""
        self.broker_epoch = -1
        """Of this registration; -1 before it."""
        self._epoch_over = -1
        """A broker epoch whose write-ahead log has ended: this broker is to register again (J14)."""
        self._beat_look = asyncio.Event()
        self._joined: asyncio.Event = asyncio.Event()
        self._ready = asyncio.Event()
        self._applied = asyncio.Event()
        self._wants_stop = False
        self._may_stop = asyncio.Event()
        self._heard_s = -1e9
        self._candidacy: Candidacy | None = None
        self._isolation: Isolation | None = None
        """None until this broker is registered: before that it serves no client."""
        self._isolation_look = asyncio.Event()
        self.on_isolated: Callable[[bool], Awaitable[None]] = _nothing_shut
        """Shuts (True) and opens the gate of isolation. It returns when the requests are refused that have waited."""
        self.desk.on_beat = self._answered
        # Each is set when the inputs of the loop of its name may have changed.
        self._office_look = asyncio.Event()
        self._entries_look = asyncio.Event()
        self._candidacy_look = asyncio.Event()
        self._turn_look = asyncio.Event()
        self._known_controller = view.image.controller
        controller.on_office(self._look)
        controller.active = False
        controller.elsewhere = self
        view.registered = False
        view.on_change(self._see)

    # --- who is the controller ----------------------------------------------------------------------------------------

    @property
    def _image(self) -> ClusterImage:
        return self._view.image

    def _controller_broker(self) -> BrokerImage | None:
        """The broker that the newest known record of a controller names, if that is another one."""
        image = self._image
        if self._controller.active or image.controller.broker_id == self._view.identity.broker_id:
            return None
        return image.brokers.get(image.controller.broker_id)

    def hears_controller(self) -> bool:
        """Whether this broker has heard the controller within the last two seconds (C3)."""
        if self._controller.active:
            return self.desk.serving
        return self._candidacy is not None and self._candidacy.has_heard(self._now_s())

    @property
    def alone(self) -> bool:
        """Whether no other broker is registered, and this one is the controller."""
        return self._controller.active and len(self._image.brokers) == 1

    def _hear(self, broker_id: int) -> None:
        """Another broker has answered as the controller, and has confirmed the log."""
        self._heard_s = self._now_s()
        if self._isolation is not None:
            self._isolation.controller_heard(self._heard_s)
        if self._candidacy is not None:
            self._candidacy.heard(broker_id, self._heard_s)

    def _look(self) -> None:
        """Wake the loops: the controller or the set of brokers may have changed."""
        self._office_look.set()
        self._entries_look.set()
        self._candidacy_look.set()
        self._turn_look.set()

    def _note_seal(self) -> None:
        writer = self._view.log.writer
        if self._candidacy is not None and writer.epoch > self._candidacy.controller_epoch:
            self._candidacy.seal_seen(writer.epoch, _sealer(writer.writer_id), self._now_s())
            self._candidacy_look.set()

    _now_s = staticmethod(loop_time_s)

    def _see(self, image: ClusterImage, delta: ImageDelta) -> None:
        self._applied.set()
        self._applied = asyncio.Event()
        if delta.brokers or image.controller != self._known_controller:
            self._known_controller = image.controller
            self._look()
        if delta.features:
            self._turn_look.set()

    async def _read(self) -> bool:
        """Read the bucket. Returns: whether the log was read up to its end. Raises: FencedError."""
        try:
            await self._view.log.poll()
        except (StorageUnavailable, CorruptionError) as error:
            self._faults.met(
                "reading", "the cluster log", Event.CLUSTER_LOG_FAILED.line(f"cannot read the cluster log: {error}")
            )
            return False
        self._published()
        if self._isolation is not None:
            self._isolation.log_read(self._now_s(), self._view.log.next_sequence)
            self._isolation_look.set()
        return True

    def _published(self) -> None:
        """Pass on the entries that were read or taken. Raises: FencedError."""
        self._view.publish()
        self._controller.notice_successor()
        self._note_seal()  # the winner's seal is its first sign (C7)
        self._view.check_place()

    async def wait_applied(self, sequence: int) -> None:
        """Wait until this broker has applied entry ``sequence`` (F2). Raises: RequestRejected REQUEST_TIMED_OUT."""
        try:
            async with asyncio.timeout(CHANGE_S):
                while self._view.log.next_sequence <= sequence or self._image.sequence < sequence:
                    await self._applied.wait()
        except TimeoutError:
            raise RequestRejected(
                ErrorCode.REQUEST_TIMED_OUT, "The change was made, and this broker has not heard of it yet."
            ) from None

    # --- joining ------------------------------------------------------------------------------------------------------

    async def joined(self) -> None:
        """Wait until this broker is registered, by ``run``."""
        await self._joined.wait()

    def ready(self) -> None:
        """The broker can lead and follow: send heartbeats, so that it is unfenced."""
        self._ready.set()

    async def start(self, new_level: int) -> bool:
        """Take this broker's place, as far as it may before it serves. Nothing is written where it may not have the place.

        Where no other broker is registered, this one takes the office and registers, in one entry (AL1). An empty store becomes a
        cluster of level ``new_level``. Otherwise ``run`` registers it, because it must answer the controller meanwhile.
        Returns: False if another writer was faster, or may have been: read the log and call it again.
        Raises: StartRefused, StorageUnavailable, CorruptionError, FencedError.
        """
        before = self._view.log.state.image
        mine = self._view.identity.broker_id
        await self._registration.prepare_member(before, self._signs)
        if any(one != mine for one in before.brokers):
            return True
        if not before.cluster_id and self._wal_store is None:
            # The marker in its store of write-ahead logs names the cluster, so the cluster comes first.
            created = await self._controller.create_cluster(new_level)
            self._controller.active = False
            if not created:
                return False
            before = self._view.log.state.image
        if await self._find_wal_store():
            return False  # it waited, and read the log: another broker may have this place, or the office, by now
        try:
            # The place was found free just now, and no other broker could fence its earlier owner.
            answer = await self._controller.register_alone(self._asked(force=True), new_level)
        except RequestRejected as error:
            raise StartRefused(str(error)) from None
        if answer is None:
            return False
        await self._registered(before, answer.broker_epoch, answer.sequence)
        return True

    async def _registered(self, before: ClusterImage, epoch: int, sequence: int) -> None:
        """This broker was registered by entry ``sequence``; ``before`` was an image without it. Raises: FencedError,
        StorageUnavailable."""
        await self._take_place(epoch, sequence)
        self._view.registered = True
        self._view.check_place()
        await self._registration.registered(
            before
        )  # the place's earlier owner is told before this broker leads anything (AL3)
        self._joined.set()

    async def _join(self) -> None:
        """Raises: StartRefused, FencedError."""
        if self._joined.is_set():
            return
        await self._find_wal_store()
        attempts = Attempts(self._now_s())
        before = self._image
        while True:
            if not self._is_registered(self._image):
                before = self._image  # an attempt whose answer was lost may be in the image already
            try:
                answer = await self._register()
            except (RequestRejected, BrokerUnavailable, ProtocolError, StorageUnavailable) as error:
                # After an attempt whose answer was lost the same incarnation gets the same answer (M8).
                step = after_attempt(attempts, error, self._now_s(), by_login=self._by_login)
            else:
                if answer is not None:
                    await self._registered(before, *answer)
                    return
                step = after_attempt(attempts, None, self._now_s(), by_login=self._by_login)
            if isinstance(step, GiveUp):
                raise StartRefused(step.why)
            attempts = step.attempts
            if step.line is not None:
                self._log_line(Event.BROKER_WAITS.line(f"waits to be registered: {self._who_is_silent()}{step.line}"))
            await asyncio.sleep(self._rng.uniform(0.1, 0.2))
            await self._read()

    def _is_registered(self, image: ClusterImage) -> bool:
        """Whether ``image`` has the registration of this start of this broker."""
        mine = self._view.identity
        bound = image.brokers.get(mine.broker_id)
        return bound is not None and bound.incarnation == mine.incarnation

    async def _find_wal_store(self) -> bool:
        """Learn which store this broker's write-ahead logs are in. Returns: whether it had to wait, and has read the log meanwhile.

        Raises: StartRefused, FencedError.
        """
        told_s = self._now_s() - TELL_S
        waited = False
        while self._wal_store is None:
            assert self._store is not None
            try:
                self._wal_store = await find_wal_store(
                    self._store, self._view.config.wal_store_url, self._image, self._rng
                )
            except CorruptionError as error:
                raise StartRefused(str(error)) from None
            except StorageUnavailable as error:
                if self._now_s() - told_s >= TELL_S:
                    told_s = self._now_s()
                    self._log_line(
                        Event.BROKER_WAITS.line(f"waits for its WAL store, {self._view.config.wal_store_url}: {error}")
                    )
                waited = True
                await asyncio.sleep(self._rng.uniform(0.5, 1.0))
                await self._read()
        return waited

    async def _seal(self, seal_log: SealLog, wal: WalId) -> int:
        """End a log in the store that the cluster names (J62). Raises: StorageUnavailable, CorruptionError."""
        if self._wal_store != self._image.wal_store:
            raise StorageUnavailable(
                f"This broker does not know the WAL store {self._image.wal_store}."
                if self._wal_store is None
                else why_not_this_store(self._image.wal_store, self._wal_store)
            )
        return await seal_log(wal)

    async def _take_place(self, epoch: int, sequence: int) -> None:
        """Read the log up to the entry that registered this broker. Raises: FencedError, StorageUnavailable."""
        while self._view.log.next_sequence <= sequence:
            await self._read()
            if self._view.log.next_sequence <= sequence:
                await asyncio.sleep(STEP_S)
        if self._last_runs is not None:
            await self._last_runs.registered(epoch)
        self.broker_epoch = epoch
        self._view.publish()

    def register_again(self, broker_epoch: int) -> None:
        """The write-ahead log of this broker epoch has ended: have this broker registered under the next one (J14).

        Does nothing if it is registered under another epoch already. ``broker_epoch`` and the image tell when it is done.
        """
        if broker_epoch == self.broker_epoch:
            self._epoch_over = broker_epoch
            self._beat_look.set()

    async def _register_anew(self) -> None:
        """One attempt to be registered under a new broker epoch. Raises: FencedError."""
        try:
            answer = await self._register(anew=self.broker_epoch)
        except FencedError:
            raise
        except (FirnError, TimeoutError) as error:
            self._faults.met(
                "registering again", "this broker", f"this broker is to register again, and cannot now: {error}"
            )
            return
        if answer is None:
            return
        self._faults.over("registering again", "this broker")
        before = self.broker_epoch
        try:
            await self._take_place(*answer)
        except StorageUnavailable as error:
            self._faults.met(
                "registering again", "this broker", f"this broker is registered again, and cannot note it: {error}"
            )
            return
        self._log_line(
            Event.BROKER_REGISTERED_AGAIN.line(
                f"broker {self._view.identity.broker_id} is registered under broker epoch {self.broker_epoch}: its write-ahead log"
                f" of broker epoch {before} has ended",
                broker_epoch=int(self.broker_epoch),
            )
        )

    @property
    def _by_login(self) -> bool:
        """Whether brokers log in with a user that the cluster log has."""
        return self._view.config.served[0].protocol.sasl

    def _who_is_silent(self) -> str:
        controller = self._image.brokers.get(self._image.controller.broker_id)
        if controller is None or controller.broker_id == self._view.identity.broker_id:
            return "there is no controller yet"
        return (
            f"the controller, broker {controller.broker_id}, does not answer at {controller.host}:{controller.port}. If it runs, it"
            " must advertise an address that this broker can reach (--advertise HOST:PORT)"
        )

    async def _register(self, *, anew: int = -1) -> tuple[int, int] | None:
        """One attempt. ``anew``: the broker epoch of this process that is over.

        Returns: broker epoch, and the number of the entry; None if there is no controller to ask. Raises: FirnError.
        """
        asked = self._asked(force=self._take_over, anew=anew)
        if self._controller.active:
            made = await self.desk.register(asked, check_endpoints=False)
            return made.broker_epoch, made.sequence
        to = self._controller_broker()
        if to is None:
            return None
        answer = await self._link.register(
            to,
            RegisterRequest(
                self._image.cluster_id,
                asked.broker_id,
                asked.directory_id,
                asked.incarnation,
                asked.replaces,
                asked.clean_epoch,
                asked.run_epoch,
                asked.run_boot_id,
                asked.boot_id,
                asked.endpoints,
                asked.rack,
                asked.instance_id,
                asked.level_min,
                asked.level_max,
                asked.force,
                asked.anew,
                asked.ephemeral,
                asked.wal_store,
            ),
        )
        if answer.error != ErrorCode.NOT_CONTROLLER:
            self._hear(to.broker_id)
        if answer.error:
            raise RequestRejected(ErrorCode(answer.error), answer.message)
        return answer.broker_epoch, answer.sequence

    def _asked(self, *, force: bool, anew: int = -1) -> RegistrationAsked:
        """The registration of this process. ``force``: it takes the place of an unfenced broker."""
        mine = self._view.identity
        bound = self._image.brokers.get(mine.broker_id)
        epoch, clean, boot_id = self._last_run
        return RegistrationAsked(
            mine.broker_id,
            mine.directory_id,
            mine.incarnation,
            self._boot_id,
            self._endpoints,
            1,
            LEVEL_MAX,
            -1 if bound is None else bound.broker_epoch,
            epoch if clean else -1,
            epoch,
            boot_id,
            self._view.config.broker_rack,
            self._view.config.firn_instance_id,
            force,
            anew,
            self._view.config.firn_ephemeral,
            self._wal_store or MAIN_STORE,
        )

    def lacks_records(self) -> None:
        """Records of the last run are missing on the disk: this broker is to leave the in-sync sets at its registration (M4).
        Call it before ``run``."""
        self._last_run = (-1, False, "")

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Register, then be a member until cancelled. Raises: StartRefused, FencedError, in an ExceptionGroup."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hold_office())
                group.create_task(self._stand())
                group.create_task(self._join())
                group.create_task(self._follow_entries())
                group.create_task(self._beat())
                group.create_task(self._give_signs())
                group.create_task(self._watch_isolation(group))
                if self._start_pulses is not None:
                    group.create_task(self._turn(self._start_pulses))
                if self._log_ends is not None:
                    group.create_task(self._log_ends.run())
        finally:
            await self._link.close()

    async def _hold_office(self) -> None:
        while True:
            self._office_look.clear()
            if self._controller.active:
                if not self.alone:
                    self._log_line(
                        Event.CONTROLLER_ELECTED.line(
                            f"broker {self._view.identity.broker_id} is the controller",
                            broker_id=int(self._view.identity.broker_id),
                        )
                    )
                await self.desk.run()
                self._log_line(
                    Event.CONTROLLER_RESIGNED.line(
                        f"broker {self._view.identity.broker_id} is not the controller any more",
                        broker_id=int(self._view.identity.broker_id),
                    )
                )
            else:
                await self._office_look.wait()

    async def _beat(self) -> None:
        """Tell the controller that this broker lives, as soon as it is ready."""
        await self._joined.wait()
        await self._ready.wait()
        while True:
            beat = Heartbeat(
                self._view.identity.broker_id,
                self.broker_epoch,
                self._view.log.next_sequence - 1,
                self._wants_stop,
                self.wal_next(),
            )
            answer: HeartbeatAnswer | None = None
            to = self._controller_broker()
            try:
                if self._controller.active:
                    answer = await self.desk.heard(beat)
                elif to is not None:
                    answer = await self._link.heartbeat(to, beat)
            except (RequestRejected, BrokerUnavailable, ProtocolError, StorageUnavailable) as error:
                self._note_refused(error)
            if answer is not None and to is not None:
                self._answered(to.broker_id)
            if answer is not None and answer.error is not ErrorCode.NOT_CONTROLLER:
                if to is not None:
                    self._hear(to.broker_id)
                if answer.may_stop:
                    self._may_stop.set()
                if answer.error is not ErrorCode.NONE:
                    await self._read()  # the log names the owner of this place
                if answer.error is ErrorCode.STALE_BROKER_EPOCH:
                    self._epoch_over = self.broker_epoch  # it is still this process's (J14)
            elif self._now_s() - self._heard_s > UNHEARD_READ_S and not self._controller.active:
                await self._read()
            self._beat_look.clear()
            over = self._epoch_over == self.broker_epoch and not self._wants_stop
            if over:
                await self._register_anew()
            mine = self._image.brokers.get(self._view.identity.broker_id)
            hurried = over or (mine is not None and mine.fenced and answer is not None)
            stops = self._wants_stop and not self._may_stop.is_set()
            interval_s = self._view.config.broker_heartbeat_interval_ms / 1000
            wait_s = min(STEP_S, interval_s) if hurried or stops else shared_wait_s(self._now_s(), interval_s)
            due_s = self._now_s() + wait_s
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._beat_look.wait()
            self.desk.pace.came(due_s, self._now_s())

    async def _turn(self, start: StartPulses) -> None:
        """Write each turn of this loop down for the sender of pulses, while there is another broker to send them to (L6, C10)."""
        await self._joined.wait()
        board = TurnBoard()
        pulses: Pulses | None = None
        try:
            while True:
                self._turn_look.clear()
                board.turn = self._this_turn()
                if board.turn is None:
                    if pulses is not None:
                        await pulses.stop()
                        pulses = None
                    await self._turn_look.wait()
                    continue
                if pulses is not None and pulses.error is not None:
                    self._faults.met("sending", "pulses", f"the thread for pulses has ended: {pulses.error!r}")
                    pulses = None
                    await asyncio.sleep(PULSES_AGAIN_S)
                    continue
                if pulses is None:
                    pulses = start(board)
                await asyncio.sleep(shared_wait_s(self._now_s(), TURN_S))
        finally:
            if pulses is not None:
                await pulses.stop()

    def _this_turn(self) -> Turn | None:
        """None while no pulses are sent: there is no other broker, or some program may not know them."""
        image, mine, now_s = self._image, self._view.identity.broker_id, self._now_s()
        if image.level < PULSE_LEVEL:
            return None
        controller = self._controller_broker()
        others = tuple(
            one
            for broker_id, one in image.brokers.items()
            if broker_id != mine and (not one.fenced or one is controller)
        )
        if not others:
            return None
        active = self._controller.active
        return Turn(
            self._elapsed_s(),
            image.cluster_id,
            mine,
            self.broker_epoch,
            self.desk.pace.is_starved(now_s),
            controller,
            others,
            self._view.log.writer.epoch if active else -1,
            now_s - self._controller.confirmed_s if active else -1.0,
        )

    def pulsed(self, pulse: PulseRequest) -> ErrorCode:
        """The pulse of another broker: L6 for the controller, C10 for the others. It is no sign for isolation (ADR 0040)."""
        if self._controller.active:
            return self.desk.pulsed(pulse)
        if pulse.late and pulse.controller_epoch >= 0 and self._candidacy is not None:
            self._candidacy.pulsed(
                pulse.broker_id,
                pulse.controller_epoch,
                self._now_s(),
                turned_ago_s=pulse.turned_ms / 1000,
                confirmed_ago_s=pulse.confirmed_ms / 1000,
            )
        return ErrorCode.NOT_CONTROLLER

    def _note_refused(self, error: FirnError) -> None:
        if isinstance(error, NotSent) and self._candidacy is not None:
            self._candidacy.controller_refused(self._now_s())
            self._candidacy_look.set()

    async def _follow_entries(self) -> None:
        """Take new entries from the controller as they are made."""
        while True:
            self._entries_look.clear()
            to = self._controller_broker()
            if to is None:
                await self._entries_look.wait()
                continue
            log = self._view.log
            start = log.next_sequence
            try:
                answer = await self._link.entries(
                    to,
                    EntriesRequest(
                        self._image.cluster_id,
                        start,
                        ENTRIES_WAIT_MS,
                        self._view.identity.broker_id,
                        int(self._clock.now_ms()),
                    ),
                )
            except (BrokerUnavailable, RequestRejected, ProtocolError) as error:
                self._note_refused(error)
                await asyncio.sleep(2 * STEP_S)
                continue
            if answer.error:
                await self._read()
                await asyncio.sleep(2 * STEP_S)
                continue
            self._hear(to.broker_id)
            if answer.lost:
                await self._read()
                continue
            try:
                for sequence, body in enumerate(answer.entries, start):
                    if not await log.take(sequence, body):
                        await log.poll()
                        break
            except (CorruptionError, StorageUnavailable) as error:
                self._faults.met(
                    "following",
                    "the cluster log",
                    Event.CLUSTER_LOG_FAILED.line(f"cannot follow the cluster log: {error}"),
                )
                await self._read()
                await asyncio.sleep(2 * STEP_S)
                continue
            if answer.entries:
                self._published()

    async def _give_signs(self) -> None:
        """Give signs of life in the bucket: a cut-off candidate looks there (C4), and so does a take-over (ADR 0018)."""
        while True:
            await asyncio.sleep(BEAT_INTERVAL_MS / 1000)  # ``start`` gave one
            if not self._controller.active:
                await self._read()
            try:
                async with asyncio.timeout(BEAT_INTERVAL_MS / 1000):
                    await self._signs.beat(self._view.identity)
            except (StorageUnavailable, TimeoutError) as error:
                self._faults.met("the sign of life of", "this broker", f"no sign of life was put: {error}")

    # --- becoming the controller ----------------------------------------------------------------------------------------

    async def _stand(self) -> None:
        """Become the controller when the present one is not heard (C3, C4, C7)."""
        mine = self._view.identity.broker_id
        writer = self._view.log.writer
        candidacy = self._candidacy = Candidacy(
            mine,
            self._now_s(),
            controller_id=_sealer(writer.writer_id),
            controller_epoch=writer.epoch,
            jitter_s=self._rng.uniform(0.0, 0.1),
        )
        while True:
            self._candidacy_look.clear()
            if self._controller.active:
                await self._candidacy_look.wait()
                continue
            candidacy.follow([broker_id for broker_id, one in self._image.brokers.items() if not one.fenced])
            candidacy.starved = self.desk.pace.is_starved(self._now_s())
            match candidacy.decide(self._now_s()):
                case Wait(until_s):
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(until_s):
                            await self._candidacy_look.wait()
                case ReadLog():
                    if await self._read():
                        candidacy.log_read(self._now_s())
                    else:
                        candidacy.log_unread(self._now_s())
                case AskOthers(round_number, brokers):
                    await self._ask_others(candidacy, round_number, brokers)
                case LookAtSignOfLife(controller_id):
                    await self._look_at_sign_of_life(candidacy, controller_id)
                case Seal():
                    await self._take_office(candidacy)
                    if not self._controller.active:
                        await asyncio.sleep(STEP_S)  # the seal may be due still: the log could not be read

    async def _ask_others(self, candidacy: Candidacy, round_number: int, brokers: Sequence[int]) -> None:
        async def ask(broker: BrokerImage) -> None:
            answer = await self._ask_heard(broker, ASK_S)
            if answer is None:
                return  # counted as such when the round ends
            candidacy.answered(
                round_number, broker.broker_id, heard=answer.heard, controller_epoch=answer.controller_epoch
            )

        known = self._image.brokers
        await asyncio.gather(*(ask(known[broker_id]) for broker_id in brokers if broker_id in known))

    async def _ask_heard(self, broker: BrokerImage, within_s: float) -> HeardResponse | None:
        """Ask a broker whether it has heard the controller. Returns: None without a response."""
        asked = HeardRequest(self._image.cluster_id, self._view.identity.broker_id)
        try:
            async with asyncio.timeout(within_s):
                answer = await self._link.heard(broker, asked)
        except (FirnError, TimeoutError):
            return None
        if answer.next_sequence >= 0:  # else it is of another cluster
            self._answered(broker.broker_id, answer.next_sequence)
            if answer.heard and broker.broker_id == self._image.controller.broker_id and self._isolation is not None:
                self._isolation.controller_heard(self._now_s(), answer.next_sequence)
        return answer

    # --- isolation (ADR 0040) -------------------------------------------------------------------------------------------

    def _answered(self, broker_id: int, next_sequence: int = NO_NUMBER) -> None:
        if self._isolation is not None:
            self._isolation.answered(broker_id, self._now_s(), next_sequence)
            if self._isolation.isolated:
                self._isolation_look.set()

    def elsewhere(self) -> tuple[int, ...]:
        """The brokers that may lead this broker's partitions while it is isolated (IS9)."""
        if self._isolation is None:
            return ()
        self._isolation.follow(self._hosts())
        return self._isolation.elsewhere(self._now_s())

    def _hosts(self) -> dict[int, str]:
        """The advertised hosts of the unfenced brokers, and of this one: without a host while an image does not have it."""
        mine = self._view.identity.broker_id
        known = self._image.brokers.items()
        return {mine: ""} | {int(one): broker.host for one, broker in known if one == mine or not broker.fenced}

    async def _watch_isolation(self, group: asyncio.TaskGroup) -> None:
        """Shut the gate when this broker is isolated, and open it when it is not any more."""
        await self._joined.wait()
        mine = self._view.identity.broker_id
        isolation = self._isolation = Isolation(
            mine, self._now_s(), session_timeout_s=self._view.config.broker_session_timeout_ms / 1000
        )
        isolated = False
        while True:
            self._isolation_look.clear()
            image = self._image
            isolation.follow(self._hosts())
            isolation.applied(image.sequence + 1)
            if self._controller.active:
                isolation.log_read(self._controller.confirmed_s, self._view.log.next_sequence)
            standing = isolation.decide(self._now_s())
            for broker_id in standing.ask:
                group.create_task(self._ask_for_isolation(image.brokers[broker_id]))
            if standing.isolated != isolated:
                isolated = standing.isolated
                self._log_line(
                    Event.BROKER_ISOLATED.line(
                        f"broker {mine} is isolated: it hears neither the controller, nor the object store, nor most of the other"
                        " hosts. Clients are refused the partitions that other brokers may lead by now",
                        broker_id=int(mine),
                    )
                    if isolated
                    else Event.BROKER_REJOINED.line(f"broker {mine} is not isolated any more", broker_id=int(mine))
                )
                await self.on_isolated(isolated)
            wait_s = max(standing.until_s - self._now_s(), 0.0)
            if not isolated:
                await asyncio.sleep(shared_wait_s(self._now_s(), wait_s))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._isolation_look.wait()

    async def _ask_for_isolation(self, broker: BrokerImage) -> None:
        await self._ask_heard(broker, ASK_INTERVAL_S)

    async def _look_at_sign_of_life(self, candidacy: Candidacy, controller_id: int) -> None:
        holder = self._image.brokers.get(controller_id)
        if holder is None:
            candidacy.sign_of_life(None, self._now_s())
            return
        try:
            async with asyncio.timeout(SIGN_S):
                age_ms = await self._signs.age_ms(holder.broker_id, holder.directory_id)
        except (StorageUnavailable, TimeoutError):
            candidacy.sign_of_life_unknown(self._now_s())
        else:
            candidacy.sign_of_life(None if age_ms is None else age_ms / 1000, self._now_s())

    async def _take_office(self, candidacy: Candidacy) -> None:
        # A seal that came meanwhile is seen here, and not fought.
        if not await self._read() or candidacy.decide(self._now_s()) != Seal():
            return
        try:
            won = await self._controller.take_office()
        except (StorageUnavailable, CorruptionError) as error:
            self._faults.met("becoming", "the controller", f"the seal stayed undecided: {error}")
            won = False
        self._note_seal()
        if not won:
            candidacy.lost_race(self._now_s())
            self._view.check_place()

    # --- this broker's own requests -------------------------------------------------------------------------------------

    async def _change(self, name: str, body: msgspec.Struct | None, *, may_repeat: bool = False) -> bytes:
        """Have the controller make a change. It is sent once (F1); while there is no controller it waits. ``may_repeat``: it does
        no harm twice, so the next controller is asked if this one is replaced before it answers. Raises: RequestRejected,
        StorageUnavailable."""
        deadline_s = self._now_s() + CHANGE_S
        while True:
            to = self._controller_broker()
            if self._controller.active:
                raise not_controller()  # it has just become the controller: the caller asks it again
            if to is not None:
                asked = ChangeRequest(
                    self._image.cluster_id,
                    self._view.identity.broker_id,
                    self.broker_epoch,
                    name,
                    b"" if body is None else msgspec.msgpack.encode(body),
                )
                try:
                    answer = await (self._ask_in_office(to, asked) if may_repeat else self._link.change(to, asked))
                except NotSent:
                    answer = None
                except (BrokerUnavailable, ProtocolError) as error:
                    raise StorageUnavailable(
                        f"The controller did not answer, and may have made the change: {clause(error)}."
                    ) from None
                if answer is not None and answer.error != ErrorCode.NOT_CONTROLLER:
                    if answer.error:
                        raise RequestRejected(ErrorCode(answer.error), answer.message)
                    await self.wait_applied(answer.sequence)
                    return answer.body
            if self._now_s() >= deadline_s:
                raise StorageUnavailable("There is no controller.")
            await asyncio.sleep(2 * STEP_S)

    async def _ask_in_office(self, to: BrokerImage, asked: ChangeRequest) -> ChangeResponse | None:
        """Ask for a change; None as soon as another broker is the controller. Raises: as ``ControlLink.change``."""
        asking = asyncio.ensure_future(self._link.change(to, asked))
        try:
            while not asking.done():
                changed = asyncio.ensure_future(self._applied.wait())
                try:
                    await asyncio.wait((asking, changed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                now = self._controller_broker()
                if not asking.done() and (now is None or now.broker_id != to.broker_id):
                    return None
            return await asking
        finally:
            asking.cancel()

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str | None], factor: int, fewer_replicas: bool
    ) -> TopicImage:
        await self._change(CREATE_TOPIC, CreateTopicChange(name, partitions, dict(configs), factor, fewer_replicas))
        topic = self._image.topic(name)
        if topic is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' was deleted at once.")
        return topic

    async def allocate_producer_ids(self) -> range:
        # A block that was granted and not heard of is lost, and nothing else.
        answer = await self._change(PRODUCER_IDS, None, may_repeat=True)
        block = msgspec.msgpack.decode(answer, type=ProducerIdsChange)
        return range(block.start, block.end)

    async def bump_leader_epochs(
        self, partitions: Sequence[TopicIdPartition], above: Mapping[TopicIdPartition, int]
    ) -> dict[TopicIdPartition, LeaderEpoch]:
        asked = RaiseChange(tuple((key.topic_id, key.partition, above.get(key, -1)) for key in partitions))
        made = msgspec.msgpack.decode(await self._change(RAISE_EPOCHS, asked), type=RaiseChange)
        return {
            TopicIdPartition(TopicId(topic_id), PartitionIndex(index)): LeaderEpoch(epoch)
            for topic_id, index, epoch in made.epochs
        }

    async def make_first_users(self, asked: Sequence[ScramAsked]) -> Sequence[ScramAnswer]:
        users = tuple((one.user, one.mechanism, one.credential) for one in asked if one.credential is not None)
        answer = await self._change(FIRST_USERS, FirstUsersChange(users), may_repeat=True)
        made = msgspec.msgpack.decode(answer, type=FirstUsersMade)
        return [ScramAnswer(user, ErrorCode(code), sentence) for user, code, sentence in made.users]

    async def forget_topic(self, topic_id: UUID) -> None:
        """Nothing of a deleted topic is left in the bucket. Raises: as ``_change``."""
        await self._change(FORGET_TOPIC, ForgetTopicChange(topic_id))

    async def alter_in_sync(self, asked: Sequence[InSyncAsked]) -> Sequence[InSyncAnswer]:
        """Propose in-sync sets to the controller. Raises: RequestRejected, BrokerUnavailable, StorageUnavailable."""
        if self._controller.active:
            proposals = [
                ProposedSet(
                    one.topic_id,
                    one.partition,
                    one.leader_epoch,
                    one.partition_epoch,
                    [ProposedReplica(*member) for member in one.members],
                )
                for one in asked
            ]
            made = await self.desk.alter_in_sync(self._view.identity.broker_id, self.broker_epoch, proposals)
            return [InSyncAnswer(one.topic_id, one.partition, one.error) for one in made]
        to = self._controller_broker()
        if to is None:
            raise NotSent("There is no controller.")
        return await self._link.alter_in_sync(to, self._view.identity.broker_id, self.broker_epoch, asked)

    async def release(self, asked: Sequence[ReleaseAsked]) -> Sequence[InSyncAnswer]:
        """Give partitions up that this broker leads in its write-ahead log (J18). From the call on it must take no records of them
        until the image has a higher partition epoch, also if this call fails.

        The answer is NONE where another broker leads now, and ELIGIBLE_LEADERS_NOT_AVAILABLE where no other broker can. A call
        without an answer may be repeated. Raises: RequestRejected, BrokerUnavailable, ProtocolError, StorageUnavailable.
        """
        return await self._alter_logs(asked)

    async def drop_ranges(self, asked: Sequence[DropAsked]) -> Sequence[InSyncAnswer]:
        """Have closed ranges taken out of the records of partitions that this broker leads (J35). Raises: as ``release``."""
        return await self._alter_logs(asked)

    async def switch(self, asked: Sequence[SwitchAsked]) -> Sequence[InSyncAnswer]:
        """Have the new rule alone count for partitions that this broker leads, and that change their durability (J40, J41).

        From the call on it must take no records of them, as for ``release``. Raises: as ``release``.
        """
        return await self._alter_logs(asked)

    async def _alter_logs(self, asked: Sequence[OfLog]) -> Sequence[InSyncAnswer]:
        mine = self._view.identity.broker_id
        if self._controller.active:
            made = await self.desk.alter_logs(mine, self.broker_epoch, asked)
            return [InSyncAnswer(one.topic_id, one.partition, one.error) for one in made]
        to = self._controller_broker()
        if to is None:
            raise NotSent("There is no controller.")
        return await self._link.alter_logs(to, mine, self.broker_epoch, asked)

    # --- requests of clients --------------------------------------------------------------------------------------------

    def needed(self) -> bool:
        """Whether a client's request is to be passed on: this broker is not the controller."""
        return not self._controller.active

    async def pass_on(self, frame: bytes, principal: bytes, client_address: bytes) -> bytes:
        """Have the controller answer a client's request (F1, F2). Raises: RequestRejected."""
        deadline_s = self._now_s() + CHANGE_S
        while True:
            to = self._controller_broker()
            try:
                if to is None:
                    raise NotSent("There is no controller.")
                sequence, answer = await self._link.pass_on(to, frame, principal, client_address)
            except NotSent as error:
                why = str(error)
            except RequestRejected as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                why = str(error)
            except (BrokerUnavailable, ProtocolError) as error:
                raise RequestRejected(
                    ErrorCode.REQUEST_TIMED_OUT, f"The controller may have done what was asked: {clause(error)}."
                ) from None
            else:
                await self.wait_applied(sequence)
                return answer
            if self._now_s() >= deadline_s:
                raise RequestRejected(ErrorCode.NOT_CONTROLLER, f"No controller was found: {clause(why)}.")
            await asyncio.sleep(2 * STEP_S)

    # --- leaving --------------------------------------------------------------------------------------------------------

    async def _is_last(self) -> bool:
        """Whether no other broker could lead anything: each is fenced, stopping, or refuses connections while there is no
        controller."""
        mine = self._view.identity.broker_id
        others = [one for broker_id, one in self._image.brokers.items() if broker_id != mine and one.active]
        if not others:
            return True
        if self._controller.active or self.hears_controller():
            return False  # it knows more, and answers
        refusing = await asyncio.gather(*(self._link.refuses(one.endpoints[0]) for one in others if one.endpoints))
        return all(refusing)

    async def leave_in_order(self) -> None:
        """Have others lead this broker's partitions before it stops (M13). Returns at once if no other broker could, and after
        ``STOP_S`` at the latest. Clients are answered for ``LINGER_S`` more. Call it while ``run`` runs."""
        if not self._joined.is_set() or not self._ready.is_set():
            return
        led = self._leads_any()
        self._wants_stop = True
        try:
            async with asyncio.timeout(STOP_S):
                while not self._may_stop.is_set() and not await self._is_last():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ALONE_LOOK_S):
                            await self._may_stop.wait()
        except TimeoutError:
            self._log_line(
                Event.BROKER_LEFT_BY_ITSELF.line("the controller has not let this broker stop; it stops all the same")
            )
        else:
            if led and self._may_stop.is_set():
                await self.linger()

    async def linger(self) -> None:
        """Clients are answered a little longer."""
        await asyncio.sleep(LINGER_S)

    def _leads_any(self) -> bool:
        mine = self._view.identity.broker_id
        return any(
            partition.leader == mine for topic in self._image.topics_by_id.values() for partition in topic.partitions
        )

    async def left(self) -> None:
        """After the last write: have the controller fence this broker at once, unless no other broker is left."""
        mine = self._image.brokers.get(self._view.identity.broker_id)
        if mine is not None and mine.ephemeral:
            self._view.registered = False  # it asks to be forgotten: its record may be gone before it has ended (J48)
        try:
            async with asyncio.timeout(2.0):
                if not self._controller.active and await self._is_last():
                    return
                if self.alone and mine is not None and not mine.ephemeral:
                    return  # alone: a later broker tries its address, and looks for signs of life
                if self._controller.active:
                    await self.desk.left(self._view.identity.broker_id, self.broker_epoch)
                else:
                    await self._change(LEAVE, None)
        except (FirnError, TimeoutError) as error:
            self._log_line(
                Event.BROKER_LEFT_BY_ITSELF.line(
                    f"the other brokers will notice by themselves that this one has left: {error}"
                )
            )


async def _nothing_shut(isolated: bool) -> None:
    """A broker without a gate."""


def _nothing_begun() -> int:
    """A broker without a write-ahead log."""
    return 0


def _sealer(writer_id: str) -> int:
    """The broker that a writer id names, -1 for none."""
    number = writer_id.partition("/")[0]
    return int(number) if number.isdecimal() else -1
