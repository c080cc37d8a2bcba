"""The active controller's service for brokers: they register, send heartbeats, fetch entries and ask for changes (ADR 0023).

It serves only while this broker is the active controller and the log was confirmed within two seconds (C6). Otherwise callers get
NOT_CONTROLLER, and count this controller as unheard. While there is no other broker, the log is confirmed every ten seconds, and
before the first request of another broker is answered (AL2). ``BrokerSessions`` decides which brokers live. The changes that follow
are made like any others.

Tests: ``tests/metadata/test_member.py``, ``tests/metadata/test_joining.py``, ``tests/broker/test_cluster.py``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import shared_wait_s
from app.core.turns import run
from app.core.units import BrokerId, TopicIdPartition
from app.metadata.changes import reassignments
from app.metadata.changes.allowed_elections import AllowedElections
from app.metadata.changes.broker_changes import (
    AlteredSet,
    ProposedSet,
    RegistrationAnswer,
    RegistrationAsked,
    allot_node_id,
    alter_in_sync,
    begin_stop,
    elect_where_nobody_leads,
    fence_brokers,
    forget_broker,
    register_broker,
    unfence_brokers,
)
from app.metadata.changes.internal_topics import MoreReplicas, add_replicas
from app.metadata.changes.leader_changes import ELECTIONS_PER_CHANGE_MAX, Comebacks, preferred_leaders_back
from app.metadata.changes.wal_changes import drop_ranges, release_partitions, switch_partitions
from app.metadata.controller.broker_sessions import TICK_INTERVAL_S, BrokerSessions
from app.metadata.controller.controller import Controller, not_controller
from app.metadata.controller.log_ends import OrphanedLogs
from app.metadata.image.image import BrokerImage, ClusterImage, ImageDelta
from app.metadata.image.records import Endpoint
from app.metadata.image.wal_ranges import WalId
from app.metadata.peers.control import (
    ControlLink,
    DropAsked,
    Heartbeat,
    HeartbeatAnswer,
    OfLog,
    PulseRequest,
    ReleaseAsked,
    SwitchAsked,
)
from app.metadata.peers.liveness import BEAT_INTERVAL_MS
from app.metadata.peers.pace import Pace
from app.metadata.peers.place import ASK_S, Holder, Places, Stranger
from app.metadata.replicas.log_leaders import log_has_ended
from app.metadata.view.view import ClusterView

AGAIN_S: Final = 0.1
"""Pause before a failed step is tried again."""
CONFIRM_S: Final = 1.5
"""After this time without an append, the log is confirmed by a read."""
CONFIRM_EARLY_S: Final = 0.25
"""… so much earlier, if the service wakes up anyway."""
UNCONFIRMED_S: Final = 2.0
ALONE_CONFIRM_S: Final = BEAT_INTERVAL_MS / 1000
"""``CONFIRM_S`` of a controller that is alone (AL2): as often as it gives a sign of life."""
ALONE_UNCONFIRMED_S: Final = ALONE_CONFIRM_S + UNCONFIRMED_S
ALONE_AGAIN_S: Final = 1.0
"""``AGAIN_S`` of a controller that is alone."""
ASKED_S: Final = 60.0
"""So long after another broker has asked something, this controller is not alone."""
CONFIRM_ASKED_S: Final = 0.5
"""How long the first request of another broker waits until the log is confirmed. Brokers wait 1 s for an answer, and ask again."""
ENTRIES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one answer; one entry may be longer."""
REFUSAL_PAUSE_S: Final = 0.15
PROBES_MAX: Final = 12
"""Of one broker's address. A process that is being killed may close its connections before it stops to listen."""
EPHEMERAL_KEPT_S: Final = 600.0
"""After so long without a heartbeat, a broker without a disk is taken out of the cluster: its next start has another id (J48)."""
CLOCKS_APART_MS: Final = 10_000
"""A clock that differs by so much is told of."""
CLOCK_OF: Final = "the clock of"

_logger = logging.getLogger(__name__)


class Desk:
    """Belongs to one event loop. Keep ``run`` running while the controller is active."""

    def __init__(
        self,
        view: ClusterView,
        controller: Controller,
        link: ControlLink,
        *,
        orphans: OrphanedLogs,
        places: Places | None,
        session_timeout_s: float,
        log_line: Callable[[str], None] = _logger.warning,
        faults: Faults | None = None,
    ) -> None:
        self._view = view
        self.controller = controller
        self._link = link
        self._orphans = orphans
        self._places = places
        self._session_timeout_s = session_timeout_s
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        self._sessions: BrokerSessions | None = None
        self._new_entry = asyncio.Event()
        self._look = asyncio.Event()
        """Set when a session, a broker or the controller has changed in a way that may call for a change."""
        self.on_beat: Callable[[int], None] | None = None
        """Called with the broker id of each heartbeat, also while this controller cannot confirm the log (ADR 0040, IS1)."""
        self.pace = Pace()
        """Of this broker's loop."""
        self._asked_until_s = -math.inf
        """Until then another broker counts as near, because it has asked something (AL2)."""
        self._failed_s = -math.inf
        """When the log could not be confirmed last."""
        self._clocks_ms: dict[int, int] = {}
        self._probing: dict[int, asyncio.Task[None]] = {}
        self._allowed: AllowedElections | None = None
        """None while this broker is not the controller."""
        self._away_since_s: dict[tuple[int, int], float] = {}
        """Ephemeral brokers that are fenced, by node id and broker epoch, and since when this controller knows of it."""
        self.unclean_elections = 0
        """Leaders that were elected although they may lack committed records, by this controller."""
        controller.wal_next = self._wal_next
        view.log.on_own_entry(self._see_entry)
        view.on_change(self._follow)
        controller.on_unclean(self._count_unclean)
        controller.on_office(self._look.set)

    @property
    def serving(self) -> bool:
        """Whether this broker is the controller, and sure enough of it."""
        now_s = asyncio.get_running_loop().time()
        within_s = ALONE_UNCONFIRMED_S if self._alone(now_s) else UNCONFIRMED_S
        return self.controller.active and now_s - self.controller.confirmed_s <= within_s

    def _alone(self, now_s: float) -> bool:
        """Whether no other broker is registered, nor has asked anything lately (AL2)."""
        mine = self._view.identity.broker_id
        return now_s >= self._asked_until_s and all(one == mine for one in self._view.image.brokers)

    async def asked(self) -> None:
        """Another broker asks for something, and is to be answered after this. A controller that was alone until now confirms the
        log first, and from now on as often as one of several (AL2)."""
        now_s = asyncio.get_running_loop().time()
        was_alone = self._alone(now_s)
        self._asked_until_s = now_s + ASKED_S
        if was_alone and self.controller.active:
            self._look.set()
            if not self.serving:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONFIRM_ASKED_S):
                        await self._confirm()

    def _in_office(self) -> bool:
        return self.controller.active

    def _check(self) -> None:
        """Raises: RequestRejected NOT_CONTROLLER."""
        if not self.serving:
            raise not_controller()

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fence, unfence and confirm while this broker is the controller; returns when it is not any more."""
        loop = asyncio.get_running_loop()
        sessions = self._sessions = BrokerSessions(self._session_timeout_s, loop.time())
        sessions.follow(self._view.image.brokers, loop.time())
        for broker_id in self._view.image.brokers:
            self.lost_connection(
                broker_id
            )  # it never had one to this controller, and may have died with the one before
        config = self._view.config
        comebacks = Comebacks(config.leader_imbalance_check_interval_seconds, loop.time())
        more_replicas = MoreReplicas()
        allowed = self._allowed = AllowedElections()
        try:
            while self._in_office():
                await self._wait(sessions)
                sessions.starved = self.pace.is_starved(loop.time())
                sessions.tick(loop.time())
                if loop.time() >= self._confirm_due_s(loop.time()) - CONFIRM_EARLY_S:
                    await self._confirm()
                    if not self._in_office():
                        break
                    sessions.tick(loop.time())
                if self.serving:
                    await self._settle(sessions)
                    await self._elect_where_allowed(allowed)
                    if config.auto_leader_rebalance_enable:
                        stable = comebacks.due(loop.time(), sessions.steady_since())
                        if stable:
                            await self._let_preferred_lead(stable)
                    await self._add_replicas(more_replicas)
                    await self._forget_ephemeral(loop.time())
        finally:
            self._sessions = self._allowed = None
            self._away_since_s.clear()
            self._clocks_ms.clear()
            for task in self._probing.values():
                task.cancel()
            self._probing.clear()
            self._new_entry.set()

    async def _wait(self, sessions: BrokerSessions) -> None:
        """Until a session ends, the log is to be confirmed, or something has changed.

        In any case until the next tick of the sessions: a pause of this loop is noticed by its absence (L1). Internal topics that
        may get more replicas, and the preferred leaders, are looked at then too: neither is urgent.
        """
        now_s = asyncio.get_running_loop().time()
        end_s = now_s + shared_wait_s(now_s, TICK_INTERVAL_S)
        for due_s in (sessions.next_deadline_s(), self._confirm_due_s(now_s)):
            if due_s is not None:
                # A step that is due already was tried a moment ago: it is held back (L4), or failed.
                end_s = min(end_s, due_s if due_s > now_s else now_s + AGAIN_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_s):
                await self._look.wait()
        self._look.clear()

    def _confirm_due_s(self, now_s: float) -> float:
        """When the log is to be confirmed next; in the past if that has failed."""
        if not self._alone(now_s):
            return self.controller.confirmed_s + CONFIRM_S
        return max(self.controller.confirmed_s + ALONE_CONFIRM_S, self._failed_s + ALONE_AGAIN_S)

    async def _confirm(self) -> None:
        try:
            await self.controller.confirm()
        except FirnError as error:
            self._failed_s = asyncio.get_running_loop().time()
            self._faults.met("confirming", "the cluster log", f"the controller cannot read the cluster log: {error}")

    async def _let_preferred_lead(self, stable: frozenset[BrokerId]) -> None:
        """Let the first replicas lead again that are in sync, on these brokers (E5)."""
        try:
            while True:
                back = await self.controller.submit(
                    lambda draft, around: preferred_leaders_back.steps(draft, around, stable, ELECTIONS_PER_CHANGE_MAX)
                )
                if back:
                    self._log_line(
                        Event.LEADERSHIP_PREFERRED.line(
                            f"preferred leaders lead again: {back} partitions", partitions=back
                        )
                    )
                if back < ELECTIONS_PER_CHANGE_MAX:
                    return
        except FirnError as error:
            self._faults.met("electing", "preferred leaders", f"preferred leaders cannot lead again now: {error}")

    async def _settle(self, sessions: BrokerSessions) -> None:
        """Make the changes that the sessions call for."""
        brokers = self._view.image.brokers
        expired = [
            (broker_id, brokers[broker_id].broker_epoch)
            for broker_id in sessions.expired(asyncio.get_running_loop().time())
            if broker_id in brokers and not brokers[broker_id].fenced
        ]
        back = [
            (broker_id, broker.broker_epoch, sessions.applied(broker_id))
            for broker_id in sessions.to_unfence()
            if (broker := brokers.get(broker_id)) is not None and broker.fenced and not self._has_ended_log(broker)
        ]
        try:
            if expired:
                named = ", ".join(str(broker_id) for broker_id, _ in expired)
                changed = await self.controller.submit(
                    lambda draft, around: fence_brokers.steps(draft, around, expired)
                )
                self._log_line(
                    Event.BROKER_FENCED.line(
                        f"broker {named} is not heard any more: it is fenced, and others lead what it led"
                    )
                )
                self._count_unclean(changed.unclean)
            if back:
                changed = await self.controller.submit(lambda draft, around: unfence_brokers.steps(draft, around, back))
                self._count_unclean(changed.unclean)
        except FirnError as error:
            self._faults.met("fencing", "brokers", f"the controller cannot fence or unfence brokers now: {error}")

    async def _elect_where_allowed(self, allowed: AllowedElections) -> None:
        """Elect leaders of partitions without one, after a setting has allowed unclean elections (E3)."""
        if not allowed.noted or not await run(allowed.due(self._view.image)):
            return
        try:
            changed = await self.controller.submit(elect_where_nobody_leads.steps)
        except FirnError as error:
            allowed.again()
            self._faults.met("electing", "leaders", f"partitions without a leader get none now: {error}")
            return
        self._count_unclean(changed.unclean)

    async def _forget_ephemeral(self, now_s: float) -> None:
        """Take brokers out of the cluster that had no disk, and have not been back for long (J48)."""
        brokers, before = self._view.image.brokers, self._away_since_s
        self._away_since_s = {
            key: before.get(key, now_s)
            for broker_id, one in brokers.items()
            if one.ephemeral and one.fenced and (key := (broker_id, one.broker_epoch))
        }
        for (broker_id, broker_epoch), since_s in self._away_since_s.items():
            if now_s - since_s >= EPHEMERAL_KEPT_S and self._in_office():
                try:
                    if await self._unregister_fenced(broker_id, broker_epoch):
                        self._log_line(
                            Event.BROKER_FORGOTTEN.line(
                                f"broker {broker_id} had no disk and has not been back: it is out of the cluster",
                                broker_id=int(broker_id),
                            )
                        )
                except FirnError as error:
                    self._faults.met("forgetting", f"broker {broker_id}", f"broker {broker_id} stays for now: {error}")

    async def _unregister_fenced(self, broker_id: int, broker_epoch: int) -> bool:
        made = await self.controller.submit(
            lambda draft, around: forget_broker.steps(draft, around, broker_id, broker_epoch, only_fenced=True)
        )
        return bool(made.brokers)

    async def _add_replicas(self, more: MoreReplicas) -> None:
        """Begin to add replicas to internal topics that were made when there were fewer brokers (ADR 0025, N2)."""
        config = self._view.effective_broker_config()
        places = more.due(self._view.image, config)
        if not places:
            return
        try:
            made = await self.controller.submit(lambda draft, around: add_replicas.steps(draft, around, config, places))
        except FirnError as error:
            more.again()
            self._faults.met("adding replicas to", "internal topics", f"no replicas are added for now: {error}")
            return
        more.begun(places)
        self._count_unclean(made.unclean)
        refused = [each for each in made.answers if each.error]
        if refused:
            first = refused[0]
            self._log_line(
                Event.REPLICAS_NOT_ADDED.line(
                    f"{first.topic}-{first.partition} gets no more replicas for now: {first.why}", topic=first.topic
                )
            )
        names = sorted({each.topic for each in made.answers if not each.error})
        if names:
            begun = len(made.answers) - len(refused)
            self._log_line(
                Event.REPLICAS_ADDED.line(
                    f"{begun} partitions of {', '.join(names)} get more replicas, as there are more brokers now",
                    partitions=begun,
                )
            )

    def _count_unclean(self, partitions: Sequence[TopicIdPartition]) -> None:
        if partitions:
            self.unclean_elections += len(partitions)
            named = ", ".join(self._named(one) for one in partitions[:10])
            more = f" and {len(partitions) - 10} more" if len(partitions) > 10 else ""
            self._log_line(
                Event.LEADERSHIP_UNCLEAN.line(
                    f"unclean election of {named}{more}: their new leaders may lack acknowledged records"
                )
            )

    def _named(self, key: TopicIdPartition) -> str:
        topic = self._view.image.topic_by_id(key.topic_id)
        return f"{topic.name if topic is not None else key.topic_id}-{key.partition}"

    def _see_entry(self) -> None:
        self._new_entry.set()
        self._new_entry = asyncio.Event()

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers and self._sessions is not None:
            self._sessions.follow(image.brokers, asyncio.get_running_loop().time())
            self._look.set()
        if self._allowed is not None:
            self._allowed.follow(image, delta)
            if self._allowed.noted:
                self._look.set()

    # --- requests of brokers ------------------------------------------------------------------------------------------

    async def register(self, asked: RegistrationAsked, *, check_endpoints: bool = True) -> RegistrationAnswer:
        """Register a broker whose endpoints answer (M1 to M12). Raises: RequestRejected, StorageUnavailable."""
        self._check()
        if check_endpoints:
            await self._check_endpoints(asked)
        answer = await self.controller.submit(lambda draft, around: register_broker.steps(draft, around, asked))
        self._count_unclean(answer.unclean)
        return answer

    async def allot_node_id(self) -> int:
        """A node id for a broker that has none yet (M10). Raises: RequestRejected, StorageUnavailable."""
        self._check()
        return await self.controller.submit(lambda draft, _: allot_node_id(draft))

    async def _check_endpoints(self, asked: RegistrationAsked) -> None:
        """Raises: RequestRejected, naming the endpoint that this broker cannot reach (M12)."""
        if self._places is None:
            return
        if not asked.endpoints:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "The broker names no address.")
        for endpoint in asked.endpoints[
            :1
        ]:  # the others are for clients: their listeners may demand credentials that brokers do not have
            found = await self._who_answers(endpoint, asked.directory_id, asked.broker_id)
            if isinstance(found, Stranger):
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"The controller, broker {self._view.identity.broker_id}, cannot ask the new broker at"
                    f" {endpoint.host}:{endpoint.port} ({endpoint.listener}) who it is: {found.why} Mend the certificates or users"
                    " of both, and start it again.",
                )
            if found is None and self._had_address(asked, endpoint):
                raise RequestRejected(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"The controller, broker {self._view.identity.broker_id}, got no answer at {endpoint.host}:{endpoint.port}"
                    f" ({endpoint.listener}) yet. If it never gets one, advertise an address that the other brokers can reach.",
                )
            if found is None or found.directory_id != asked.directory_id:
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"The controller, broker {self._view.identity.broker_id}, cannot reach the new broker at"
                    f" {endpoint.host}:{endpoint.port} ({endpoint.listener}): advertise an address that the other brokers"
                    " can reach (--advertise HOST:PORT, or advertised.listeners), and start it again.",
                )

    def _had_address(self, asked: RegistrationAsked, endpoint: Endpoint) -> bool:
        """Whether the broker was registered with this address before, maybe with a disk that it has lost since: it is slow to
        answer, or away again."""
        known = self._view.image.brokers.get(asked.broker_id)
        return known is not None and endpoint in known.endpoints

    async def _who_answers(self, endpoint: Endpoint, directory_id: UUID, broker_id: int) -> Holder | Stranger | None:
        assert self._places is not None
        try:
            async with asyncio.timeout(ASK_S):
                return await self._places.ask(
                    endpoint, cluster_id=self._view.image.cluster_id, node_id=broker_id, directory_id=directory_id
                )
        except TimeoutError:
            return None

    async def heard(self, beat: Heartbeat) -> HeartbeatAnswer:
        """A heartbeat. Raises: RequestRejected NOT_CONTROLLER."""
        if self.on_beat is not None:
            self.on_beat(beat.broker_id)
        if self.controller.active and beat.applied >= self._view.log.next_sequence:
            await self._confirm()  # it has entries that this controller does not know: another one wrote them (C9)
        sessions = self._sessions
        if sessions is None:
            raise not_controller()
        loop = asyncio.get_running_loop()
        error = sessions.heard(
            beat.broker_id,
            beat.broker_epoch,
            loop.time(),
            applied=beat.applied,
            wants_stop=beat.wants_stop,
            wal_next=beat.wal_next,
        )
        self._check()  # not before: while the store is away no broker is answered, but heartbeats must still count
        if error is not ErrorCode.NONE:
            return HeartbeatAnswer(error)
        broker = self._view.image.brokers.get(beat.broker_id)
        if broker is not None and self._has_ended_log(broker) and not beat.wants_stop:
            return HeartbeatAnswer(ErrorCode.STALE_BROKER_EPOCH)  # it is to register again (J14)
        may_stop = False
        if beat.wants_stop:
            left = await self.controller.submit(
                lambda draft, around: begin_stop.steps(draft, around, beat.broker_id, beat.broker_epoch)
            )
            may_stop = left == 0
        broker = self._view.image.brokers.get(beat.broker_id)
        fenced = broker is None or broker.fenced
        if fenced:
            self._look.set()  # it may be unfenced now
        caught_up = broker is not None and beat.applied >= broker.changed_at
        return HeartbeatAnswer(ErrorCode.NONE, caught_up, fenced, may_stop)

    def pulsed(self, pulse: PulseRequest) -> ErrorCode:
        """A pulse of a broker whose loop may be late (L6). Returns: NOT_CONTROLLER, or as ``BrokerSessions.pulsed``."""
        sessions = self._sessions
        if sessions is None or not self.controller.active:
            return ErrorCode.NOT_CONTROLLER
        if not pulse.late:
            return ErrorCode.NONE
        return sessions.pulsed(
            pulse.broker_id,
            pulse.broker_epoch,
            asyncio.get_running_loop().time(),
            turned_ago_s=pulse.turned_ms / 1000,
        )

    def _has_ended_log(self, broker: BrokerImage) -> bool:
        return log_has_ended(broker, self._orphans.waiting)

    def _wal_next(self, wal: WalId) -> int:
        return 0 if self._sessions is None else self._sessions.wal_next(*wal)

    async def left(self, broker_id: int, broker_epoch: int) -> None:
        """A broker has stopped in order: fence it at once, or forget it if it has no disk, and another broker goes on (J48).

        Raises: as ``Controller.submit``.
        """
        brokers = self._view.image.brokers
        broker = brokers.get(broker_id)
        if broker is not None and broker.ephemeral and any(one.active for one in brokers.values() if one is not broker):
            changed = await self.controller.submit(
                lambda draft, around: forget_broker.steps(draft, around, broker_id, broker_epoch)
            )
        else:
            changed = await self.controller.submit(
                lambda draft, around: fence_brokers.steps(draft, around, [(broker_id, broker_epoch)])
            )
        self._count_unclean(changed.unclean)

    def note_clock(self, broker_id: int, ahead_ms: int) -> None:
        """A broker's clock is so far before this one's. Nothing rests on it, but times of records do not fit together."""
        broker = self._view.image.brokers.get(broker_id)
        if broker is None or not self.controller.active:
            return
        self._clocks_ms[broker_id] = ahead_ms
        who = f"broker {broker_id}"
        if abs(ahead_ms) < CLOCKS_APART_MS:
            self._faults.over(CLOCK_OF, who)
            return
        way = "ahead of" if ahead_ms > 0 else "behind"
        self._faults.met(
            CLOCK_OF,
            who,
            f"the clock of {who} ({broker.host}) is {abs(ahead_ms) / 1000:,.0f} s {way} the clock of the controller, broker"
            f" {self._view.identity.broker_id}: set both by NTP. No record is lost by it, but times of records and retention"
            " jump when leaders change",
        )

    def clock_ms(self, broker_id: int) -> int | None:
        """How far a broker's clock is before this controller's; None if it is not known."""
        if not self.controller.active:
            return None
        return 0 if broker_id == self._view.identity.broker_id else self._clocks_ms.get(broker_id)

    def applied(self, broker_id: int) -> int:
        """Number of the newest entry that a broker has applied, as far as this controller knows; -1 if it does not."""
        if broker_id == self._view.identity.broker_id:
            return self._view.image.sequence
        return -1 if self._sessions is None else self._sessions.applied(broker_id)

    def lost_connection(self, broker_id: int) -> None:
        """A broker has no connection to this controller any more, or not yet: try its address, for it may be dead (L2)."""
        if self._sessions is None or not self.controller.active or broker_id in self._probing:
            return
        broker = self._view.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker_id == self._view.identity.broker_id:
            return
        task = asyncio.create_task(self._probe(broker_id, broker.broker_epoch, broker.endpoints))
        self._probing[broker_id] = task
        task.add_done_callback(lambda _: self._probing.pop(broker_id, None))

    async def _probe(self, broker_id: int, broker_epoch: int, endpoints: Sequence[Endpoint]) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(PROBES_MAX if endpoints else 0):
            refused = await self._link.refuses(endpoints[0])
            broker = self._view.image.brokers.get(broker_id)
            if self._sessions is None or broker is None or broker.fenced or broker.broker_epoch != broker_epoch:
                return
            if refused:
                self._sessions.refused(broker_id, broker_epoch, loop.time())
                self._look.set()
            await asyncio.sleep(REFUSAL_PAUSE_S)

    async def entries(self, start: int, wait_s: float) -> list[bytes] | None:
        """The entries from number ``start`` on; waits for the next one if there is none yet. None: they are not at hand, or
        ``start`` is above the next entry of this controller. Raises: RequestRejected NOT_CONTROLLER."""
        self._check()
        log = self._view.log
        if start >= log.next_sequence:
            if start > log.next_sequence:
                return None
            appended = self._new_entry
            try:
                async with asyncio.timeout(shared_wait_s(asyncio.get_running_loop().time(), wait_s)):
                    await appended.wait()
            except TimeoutError:
                return []
            self._check()
            if start >= log.next_sequence:
                return []
        return log.recent(start, ENTRIES_BYTES_MAX)

    async def alter_in_sync(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[ProposedSet]
    ) -> list[AlteredSet]:
        """Decide in-sync sets that a leader proposes. Raises: RequestRejected, StorageUnavailable."""
        self._check()
        return await self.controller.submit(
            lambda draft, around: alter_in_sync.steps(
                draft, around, broker_id, broker_epoch, proposals, after=reassignments.completed
            )
        )

    async def alter_logs(self, broker_id: int, broker_epoch: int, asked: Sequence[OfLog]) -> list[AlteredSet]:
        """Decide on a leader's requests for partitions in its write-ahead log (J18, J35, J40). Raises: as ``alter_in_sync``."""
        self._check()
        released = [one for one in asked if isinstance(one, ReleaseAsked)]
        done = [one for one in asked if isinstance(one, DropAsked)]
        switched = [one for one in asked if isinstance(one, SwitchAsked)]
        answers: list[AlteredSet] = []
        if released:
            answers += await self.controller.submit(
                lambda draft, around: release_partitions.steps(draft, around, broker_id, broker_epoch, released)
            )
        if done:
            answers += await self.controller.submit(
                lambda draft, _: drop_ranges.steps(draft, broker_id, broker_epoch, done)
            )
        if switched:
            answers += await self.controller.submit(
                lambda draft, around: switch_partitions.steps(draft, around, broker_id, broker_epoch, switched)
            )
        return answers
