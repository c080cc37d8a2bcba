"""The controller: the writer of the cluster log.

It groups the requested changes: while one entry is under way, changes wait, and together they become the next entry
(``decisions.py``). A single broker (level 0) is its own controller: it seals the cluster log, registers itself in the entry after
the seal, and ends when another broker takes over. Of several brokers each has a controller, and one of them is *active*: it ``takes
office`` with a seal, and when another has sealed it steps down and goes on as a broker (ADR 0023, C1, C2, C8).

Handlers call ``submit`` with a plan, a pure function in ``app/metadata/changes/``. They do not know whether the controller
is on this broker. While this controller is not active, a broker's own requests go ``elsewhere``. Its clients' requests are passed
on before they come here.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from app.configs import Durability
from app.core.errors import (
    ConflictError,
    CorruptionError,
    ErrorCode,
    FencedError,
    FirnError,
    LimitExceeded,
    RequestRejected,
    StorageUnavailable,
    copy_of,
)
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import Clock
from app.core.turns import Portion, Steps, run
from app.core.units import BrokerId, LeaderEpoch, LogSequence, TopicId, TopicIdPartition
from app.metadata.changes import (
    broker_changes,
    leader_changes,
    reassignments,
)
from app.metadata.changes import topic_changes as changes
from app.metadata.changes.broker_changes import BrokersChanged, RegistrationAnswer, RegistrationAsked
from app.metadata.changes.leader_changes import Election
from app.metadata.changes.reassignments import ReassignmentAnswer, ReassignmentAsked
from app.metadata.changes.scram_changes import ScramAnswer, ScramAsked, alter_scram_users
from app.metadata.changes.topic_changes import DEFAULT, Assignments, PlanInputs, Planned
from app.metadata.controller.decisions import GROUP_CHANGES_MAX, Answer, Decisions
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import TopicImage
from app.metadata.image.records import (
    ALL_BROKERS,
    LEVEL_FEATURE,
    OBJECT_LEVEL,
    ClusterRecord,
    ControllerRecord,
    broker_configs_change,
    cluster_change,
    controller_change,
    feature_change,
)
from app.metadata.image.wal_ranges import WalId
from app.metadata.log.log_format import KeyValue
from app.metadata.log.numbered_log import LONG_RECORDS_MIN
from app.metadata.view.registration import Registration, StartRefused
from app.metadata.view.view import ClusterView

T = TypeVar("T")

EPOCH_BUMPS_PER_CHANGE_MAX: Final = 10_000
"""Maximum partitions whose leader epochs rise in one change. More partitions need several changes."""

NAMED_PER_CHANGE_MAX: Final = 1_000
"""Maximum partitions of one change that a client names: about 10 ms. More partitions need several changes."""

START_TRIES_MAX: Final = 16
"""Maximum retries of a start because another writer was faster."""

_logger = logging.getLogger(__name__)


def not_controller() -> RequestRejected:
    """The refusal of a change by a broker that is not the controller. Nothing of it was made."""
    return RequestRejected(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")


def _pages(named: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(named), NAMED_PER_CHANGE_MAX):
        yield named[start : start + NAMED_PER_CHANGE_MAX]


class Elsewhere(Protocol):
    """The active controller on another broker, for a broker's own requests. Raises: as ``Controller``."""

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str | None], factor: int, fewer_replicas: bool
    ) -> TopicImage: ...

    async def allocate_producer_ids(self) -> range: ...

    async def bump_leader_epochs(
        self, partitions: Sequence[TopicIdPartition], above: Mapping[TopicIdPartition, int]
    ) -> dict[TopicIdPartition, LeaderEpoch]: ...

    async def make_first_users(self, asked: Sequence[ScramAsked]) -> Sequence[ScramAnswer]: ...


class Controller:
    """Makes changes of the cluster, one entry at a time. Belongs to one event loop: call ``start``, then keep ``run`` running.

    When a method that changes the cluster returns, the change is durable and in this broker's image. Each raises RequestRejected
    (nothing changed), FencedError (another broker has taken over for good), StorageUnavailable (the outcome is unknown; the image
    will show it), LimitExceeded. The cancellation of a caller does not undo its change.

    ``submit`` makes any change. A change that needs more than a plan has a method of its own: it needs several entries, a wait, a
    log line, or the controller on another broker. So has a change that several parts of the program ask for.
    """

    def __init__(
        self,
        view: ClusterView,
        *,
        rng: random.Random,
        clock: Clock,
        faults: Faults | None = None,
        log_line: Callable[[str], None] = _logger.info,
    ) -> None:
        self._view = view
        self._log_line = log_line
        self._log = view.log
        self._rng = rng
        self._clock = clock
        self._faults = faults if faults is not None else Faults(_logger.warning)
        self._decisions = Decisions()
        self._asking: dict[int, asyncio.Future[Any]] = {}
        """The callers that wait, by the numbers of their changes."""
        self._before_answering: Callable[[UUID], Awaitable[None]] | None = None
        self._on_unclean: Callable[[Sequence[TopicIdPartition]], None] | None = None
        self._work_waits = asyncio.Event()
        self._in_office = asyncio.Lock()
        """Held while an entry is under way, and from a seal until the entry after it (C1)."""
        self._active = True
        self._on_office: list[Callable[[], None]] = []
        self.wal_next: Callable[[WalId], int] = changes.never_told
        """The next number of a write-ahead log, from its broker's last heartbeat (J19)."""
        self.elsewhere: Elsewhere | None = None
        """Where the active controller of several brokers is asked."""
        self.confirmed_s = 0.0
        """Loop time at which the log was last known to have no other writer (C6)."""
        view.check_on_look(self._why_deposed)
        view.on_fenced(self.refuse_waiting)

    def before_answering(self, wait: Callable[[UUID], Awaitable[None]]) -> None:
        """Await ``wait(topic_id)`` before the creation of a topic, or of more partitions, returns."""
        self._before_answering = wait

    @property
    def active(self) -> bool:
        """Whether this broker is the controller, as far as it knows. Always for a single broker."""
        return self._active

    @active.setter
    def active(self, active: bool) -> None:
        if active != self._active:
            self._active = active
            for tell in self._on_office:
                tell()

    def on_office(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` whenever ``active`` has changed. It must not wait, nor raise."""
        self._on_office.append(tell)

    def on_unclean(self, tell: Callable[[Sequence[TopicIdPartition]], None]) -> None:
        """Call ``tell`` with the partitions whose leaders were elected uncleanly on request (E3)."""
        self._on_unclean = tell

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self, registration: Registration) -> bool:
        """Become the writer of the cluster log, which must be loaded, and register this broker in the same entry.

        An empty prefix becomes a new cluster. Costs a PUT for a heartbeat, two PUTs and a LIST.

        Returns: whether this broker is the cluster's one broker now. If not, the cluster turned out to be of several brokers.
        Raises: StartRefused, StorageUnavailable, CorruptionError.
        """
        log = self._log
        for _ in range(START_TRIES_MAX):
            before = log.state.image
            if before.level:
                return False
            await registration.prepare(before)
            try:
                sequence = await self._seal()
                await log.append(sequence + 1, [self._controllership(log.epoch), *registration.records(before)])
            except ConflictError:
                await log.poll()
                continue
            except FencedError:
                raise StartRefused(
                    f"Another broker is starting with node id {self._view.identity.broker_id} or in this cluster at this"
                    " moment: see which one is to run, and start only that one."
                ) from None
            self._view.publish()
            await self._renew_proofs()
            await registration.registered(before)
            return True
        raise StorageUnavailable("The cluster log is written by others again and again.")

    async def create_cluster(self, level: int, more: Sequence[KeyValue] = ()) -> bool:
        """Make an empty prefix a cluster of several brokers, with the records ``more``. The log must have been loaded.

        Returns: whether this broker has created it. If not, another one was faster: read the log again. Raises: StorageUnavailable,
        CorruptionError: it may have been created.
        """
        created = await self.take_office([*self._new_cluster(level), *more])
        self._log.step_down()
        return created

    def _new_cluster(self, level: int) -> list[KeyValue]:
        """The records of a new cluster of several brokers."""
        # Kafka's form of a cluster id: 16 bytes in URL-safe base 64.
        cluster_id = base64.urlsafe_b64encode(self._rng.randbytes(16)).rstrip(b"=").decode()
        return [
            cluster_change(ClusterRecord(2, cluster_id, self._clock.now_ms())),
            feature_change(LEVEL_FEATURE, level),
            *self._first_settings(level),
        ]

    async def register_alone(self, asked: RegistrationAsked, new_level: int) -> RegistrationAnswer | None:
        """Take the office and register this broker, in the entry after the seal: no other broker is registered (AL1).

        The broker is unfenced in the same entry if there are no topics. An empty prefix becomes a cluster of level ``new_level``.
        Returns: None if another writer was faster: read the log again. Raises: RequestRejected, StorageUnavailable,
        CorruptionError: it is not known whether the seal is there.
        """
        answer: RegistrationAnswer | None = None

        def plan(draft: ImageDraft, around: PlanInputs) -> Sequence[KeyValue]:
            nonlocal answer
            made = broker_changes.register_broker(draft, around, asked)
            answer = made.answer
            if draft.topics:
                return made.records  # it is unfenced when it has looked at its logs
            draft.apply(made.records)
            mine = answer.broker_id, answer.broker_epoch, answer.sequence
            return [*made.records, *broker_changes.unfence_brokers(draft, around, [mine]).records]

        first = [] if self._log.state.image.cluster_id else self._new_cluster(new_level)
        return answer if await self.take_office(first, plan) else None

    def _first_settings(self, level: int) -> Sequence[KeyValue]:
        """The dynamic settings of a new cluster. If a broker without a disk creates the cluster, new topics are kept in the object
        store, also under later controllers with disks (J47)."""
        if level < OBJECT_LEVEL or not self._view.config.firn_ephemeral:
            return ()
        return (broker_configs_change(ALL_BROKERS, {changes.DURABILITY: Durability.OBJECT.value}),)

    async def take_office(
        self,
        first: Sequence[KeyValue] = (),
        plan: Callable[[ImageDraft, PlanInputs], Sequence[KeyValue]] | None = None,
    ) -> bool:
        """Seal the cluster log with a higher controller epoch, and name this broker in the next entry (C1). That entry also has the
        records ``first``, and those of ``plan`` on the image after ``first``.

        ``plan`` is called before the seal, so that a refusal deposes no controller, and again after it.
        Returns: whether this broker is the active controller now; if not, another one was faster. The log must have been loaded.
        Raises: any error of ``plan``; StorageUnavailable, CorruptionError: it is not known whether the seal is there.
        """
        log = self._log
        async with self._in_office:
            if plan is not None:
                draft = ImageDraft(log.state.image)
                draft.apply([self._controllership(log.writer.epoch + 1), *first])
                plan(draft, self._surroundings(LogSequence(log.next_sequence + 1), placement_start=0))
            log.step_down()
            try:
                sequence = LogSequence(await self._seal() + 1)
                records = [self._controllership(log.epoch), *first]
                if plan is not None:
                    draft = ImageDraft(log.state.image)
                    draft.apply(records)
                    records += plan(draft, self._surroundings(sequence))
                before_s = asyncio.get_running_loop().time()
                await log.append(sequence, records)
            except (ConflictError, FencedError):
                log.step_down()
                await log.poll()
                self._view.publish()
                return False
            self._confirmed(before_s)
            self.active = True
            await self._renew_proofs()
        self._view.publish()
        return True

    def step_down(self) -> None:
        """Another broker is the controller: make no more changes, and refuse the waiting ones (C8)."""
        self.active = False
        self._log.step_down()
        self.refuse_waiting(not_controller())

    def notice_successor(self) -> None:
        """Step down if the log has a seal of another writer, as far as it was read (C9)."""
        if self.active and self._several and self._log.writer.writer_id != self._view.writer_id:
            self.step_down()

    async def confirm(self) -> None:
        """Make sure that no other broker has sealed (C6). One GET. Raises: StorageUnavailable, CorruptionError."""
        before_s = asyncio.get_running_loop().time()
        try:
            await self._log.confirm()
            self._view.publish()
        finally:
            self.notice_successor()  # a read that fails or is cancelled may have applied a seal
        if self.active:
            self._confirmed(before_s)

    def _confirmed(self, before_s: float) -> None:
        """A request that began at ``before_s`` has shown that the log had no other writer."""
        self.confirmed_s = max(self.confirmed_s, before_s)

    @property
    def _several(self) -> bool:
        return self._log.state.image.level > 0

    async def run(self) -> None:
        """Make changes until cancelled. Raises: FencedError."""
        try:
            while True:
                await self._work_waits.wait()
                self._work_waits.clear()
                while self._decisions.waiting:
                    if not self.active:
                        self.refuse_waiting(not_controller())
                        break
                    async with self._in_office:
                        await self._make_entry()
                    await asyncio.sleep(0)  # the next change is planned in another turn than the listeners of this one
        finally:
            self.refuse_waiting(StorageUnavailable("The broker is stopping."))

    # --- changes ----------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT,
        configs: Mapping[str, str | None] | None = None,
        replication_factor: int = DEFAULT,
        *,
        assignments: Assignments | None = None,
        fewer_replicas: bool = False,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic, or only check it (``validate_only``). -1 is the broker's default.

        The default factor, and with ``fewer_replicas`` any, is lowered to the number of live brokers.

        Rejected with INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
        INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG or INVALID_REQUEST.
        """
        if self.elsewhere is not None and not self.active:
            return await self.elsewhere.create_topic(
                name, partitions, configs or {}, replication_factor, fewer_replicas
            )
        topic_id = TopicId(UUID(bytes=self._rng.randbytes(16), version=4))
        topic = await self.submit(
            lambda draft, around: changes.create_topic.steps(
                draft,
                around,
                topic_id=topic_id,
                name=name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs or {},
                assignments=assignments,
                fewer_replicas=fewer_replicas,
            ),
            validate_only=validate_only,
        )
        await self._followed(topic, validate_only)
        return topic

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Raise a topic's partitions to ``count`` in all.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS or INVALID_REPLICA_ASSIGNMENT.
        """
        topic = await self.submit(
            lambda draft, around: changes.create_partitions.steps(
                draft, around, name=name, count=count, assignments=assignments
            ),
            validate_only=validate_only,
        )
        await self._followed(topic, validate_only)
        return topic

    async def _followed(self, topic: TopicImage, validate_only: bool) -> None:
        if self._before_answering is not None and not validate_only:
            await self._before_answering(topic.topic_id)

    async def allocate_producer_ids(self, broker_id: BrokerId | None = None) -> range:
        """Allocate a block of producer ids. No other caller ever gets them."""
        if self.elsewhere is not None and not self.active:
            return await self.elsewhere.allocate_producer_ids()
        owner = broker_id if broker_id is not None else self._view.identity.broker_id
        return await self.submit(lambda draft, _: changes.allocate_producer_ids(draft, owner))

    async def bump_leader_epochs(
        self,
        partitions: Iterable[TopicIdPartition],
        *,
        above: Mapping[TopicIdPartition, int] | None = None,
    ) -> dict[TopicIdPartition, LeaderEpoch]:
        """Raise leader epochs above the present ones and above ``above`` (epochs found elsewhere). Returns: the new epochs.

        More than ``EPOCH_BUMPS_PER_CHANGE_MAX`` partitions need several changes. Some may succeed although others fail.
        """
        wanted = list(partitions)
        if self.elsewhere is not None and not self.active:
            return await self.elsewhere.bump_leader_epochs(wanted, above or {})
        epochs: dict[TopicIdPartition, LeaderEpoch] = {}
        for start in range(0, len(wanted), EPOCH_BUMPS_PER_CHANGE_MAX):
            page = wanted[start : start + EPOCH_BUMPS_PER_CHANGE_MAX]
            epochs |= await self.submit(
                lambda draft, _, page=page: changes.bump_leader_epochs.steps(draft, page, above or {})  # type: ignore[misc]
            )
        return epochs

    async def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None, *, unclean: bool = False
    ) -> Sequence[Election]:
        """Have preferred leaders lead. With ``unclean``, let any living replica lead a partition without a leader.

        ``partitions``: by topic and index; None for all. The refusals are in the answer.
        """
        elections: list[Election] = []
        for page in [None] if partitions is None else _pages(partitions):
            made = await self.submit(
                lambda draft, around, page=page: leader_changes.elect_leaders.steps(
                    draft, around, page, unclean=unclean
                )  # type: ignore[misc]
            )
            self._tell_unclean(made.unclean)
            elections += made.elections
        return elections

    async def alter_reassignments(
        self, asked: Sequence[ReassignmentAsked], *, allow_factor_change: bool = True
    ) -> Sequence[ReassignmentAnswer]:
        """Begin, replace or cancel reassignments. The refusals are in the answer."""
        answers: list[ReassignmentAnswer] = []
        for page in _pages(asked):
            made = await self.submit(
                lambda draft, around, page=page: reassignments.alter_reassignments.steps(  # type: ignore[misc]
                    draft, around, page, allow_factor_change=allow_factor_change
                )
            )
            self._tell_unclean(made.unclean)
            answers += made.answers
        return answers

    async def make_first_users(self, asked: Sequence[ScramAsked], secret: bytes) -> Sequence[ScramAnswer]:
        """Add users that were left in this broker's data directory. All have a ``credential``. The refusals are in the answer.

        ``secret``: as for ``alter_scram_users``.
        """
        if self.elsewhere is not None and not self.active:
            return await self.elsewhere.make_first_users(asked)
        return await self.submit(lambda draft, _: alter_scram_users.steps(draft, asked, secret))

    async def unregister_broker(self, broker_id: int) -> BrokersChanged:
        """Take a broker out of the cluster. Rejected with BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST in a cluster of one."""
        made = await self.submit(lambda draft, around: broker_changes.unregister_broker.steps(draft, around, broker_id))
        self._tell_unclean(made.unclean)
        return made

    def _tell_unclean(self, partitions: Sequence[TopicIdPartition]) -> None:
        if partitions and self._on_unclean is not None:
            self._on_unclean(partitions)

    # --- making changes -----------------------------------------------------------------------------------------------

    async def submit(
        self,
        plan: Callable[[ImageDraft, PlanInputs], Planned[T] | Steps[Planned[T]]],
        *,
        validate_only: bool = False,
    ) -> T:
        """Make the change that ``plan`` derives from the newest image, in the order of the calls. Returns its result when it is
        durable.

        ``plan`` may be called again, on a newer image. Raises: any error of ``plan``; RequestRejected THROTTLING_QUOTA_EXCEEDED;
        StorageUnavailable (undecided), FencedError.
        """
        self._view.check_not_fenced()
        if not self.active:
            raise not_controller()
        number = self._decisions.submit(plan, validate_only=validate_only)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asking[number] = done
        self._work_waits.set()
        try:
            return await done
        finally:
            del done  # A refusal holds this frame and those of the whole request, and the future holds the refusal.

    def refuse_waiting(self, error: FirnError) -> None:
        """Refuse all changes that are not under way."""
        self._answer(self._decisions.refuse_waiting(error))

    def _answer(self, answers: Iterable[Answer]) -> None:
        for number, value, error in answers:
            done = self._asking.pop(number)
            if done.done():
                continue  # the caller was cancelled
            if error is not None:
                done.set_exception(copy_of(error))
            else:
                done.set_result(value)

    async def _make_entry(self) -> None:
        """Plan the waiting changes as one entry, make it durable, and answer. Raises: FencedError."""
        decisions, log = self._decisions, self._log
        try:
            if not log.is_writer:
                await self._become_writer()
            # Its number is taken before: it shows whether others wrote while the changes were planned.
            sequence = log.next_sequence
            decisions.begin(log.state.image, self._surroundings(sequence), self._lacking())
            await run(decisions.planning(GROUP_CHANGES_MAX), Portion(urgent=True))
            if decisions.entry:
                before_s = asyncio.get_running_loop().time()
                await log.append(sequence, decisions.entry)
                self._confirmed(before_s)
                if len(decisions.entry) >= LONG_RECORDS_MIN:
                    # The image took the last portion. Its listeners have a turn of their own.
                    await asyncio.sleep(0)
        except ConflictError:
            decisions.overtaken()
            await self._look_again()
            return
        except FencedError:
            decisions.overtaken()
            if self._several:
                self.step_down()
                return
            raise self._view.fence("Another broker has taken over the cluster; this broker stops.") from None
        except (StorageUnavailable, CorruptionError, LimitExceeded) as error:
            answers = decisions.undecided(error)
            self._answer(answers or decisions.refuse_waiting(error))
            return
        except BaseException:
            self._answer(
                decisions.undecided(StorageUnavailable("The broker is stopping; the change may have been made."))
            )
            raise
        self._view.publish()
        self._answer(decisions.durable())
        if log.snapshot_due:
            await self._snapshot()

    async def _renew_proofs(self) -> None:
        """Make a snapshot at once if the log has other proofs than this broker gives it (K6)."""
        if self._log.proofs_differ:
            await self._snapshot()

    async def _snapshot(self) -> None:
        log = self._log
        differed = log.proofs_differ
        try:
            await log.snapshot()
        except StorageUnavailable as error:
            self._faults.met("snapshots of", "the cluster log", f"no snapshot of the cluster log for now: {error}")
        else:
            if differed and not log.proofs_differ:
                self._log_line(
                    Event.CLUSTER_LOG_KEYS_COMPLETE.line(
                        "the whole cluster log has proofs by the first key of firn.cluster.log.key now; the next step of "
                        "introducing, changing or taking away the key can begin (ADR 0036)"
                    )
                )

    def _surroundings(self, sequence: LogSequence, placement_start: int | None = None) -> PlanInputs:
        return PlanInputs(
            self._view.config,
            self._live_brokers(),
            self._clock.now_ms(),
            self._rng.randrange(1 << 16) if placement_start is None else placement_start,
            sequence,
            self.wal_next,
        )

    def _live_brokers(self) -> Sequence[BrokerId]:
        """The brokers that may get new partitions; of level 0 this one."""
        image = self._log.state.image
        if not image.level:
            return (self._view.identity.broker_id,)
        return [broker.broker_id for _, broker in sorted(image.brokers.items()) if broker.active]

    # --- being the writer ---------------------------------------------------------------------------------------------

    async def _seal(self) -> int:
        """Become the writer of the cluster log with a new controller epoch. Raises: as ``NumberedLog.seal``."""
        self._log.epoch = self._log.writer.epoch + 1
        return await self._log.seal(self._log.next_sequence)

    def _controllership(self, epoch: int) -> KeyValue:
        """The controller record of a seal with this controller epoch. It is the first record of the entry after the seal."""
        mine = self._view.identity
        return controller_change(ControllerRecord(1, epoch, mine.broker_id, mine.incarnation))

    def _lacking(self) -> Sequence[KeyValue]:
        """The record of the seal, if an earlier try left the seal without it."""
        return (
            ()
            if self._log.state.image.controller.epoch == self._log.epoch
            else (self._controllership(self._log.epoch),)
        )

    async def _become_writer(self) -> None:
        """Seal again after an append that stayed undecided. Raises: as ``ClusterView.look`` and ``NumberedLog.seal``."""
        await self._view.look()
        self.notice_successor()
        if not self.active:
            raise FencedError("Another broker is the controller.")
        await self._seal()
        self._view.publish()

    async def _look_again(self) -> None:
        try:
            await self._view.look()
        except (StorageUnavailable, CorruptionError) as error:
            self.refuse_waiting(error)
        self.notice_successor()

    def _why_deposed(self) -> str | None:
        if self._several:
            return None  # it goes on as a broker (C8)
        writer = self._log.writer.writer_id
        return None if writer == self._view.writer_id else f"{writer} has taken over the cluster; this broker stops."
