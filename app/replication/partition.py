"""One partition as this broker has it: the log on its disk, its role, its leader, its in-sync set, and its stored end.

Handlers and coordinators ask a ``PartitionTable``. It returns a ``Partition`` for reads and writes only while this
broker leads; a log that is on the disk is not a reason to serve it.

A record is committed when all replicas that may count as in sync have stored it (ADR 0024). Consumers see the committed
records, which are those below the high watermark. A partition with one replica commits the records that this broker has stored.
With several, the leader counts (``in_sync.py``), and a follower learns from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import ErrorCode, NotLeader, RequestRejected, clause
from app.core.units import BrokerId, LeaderEpoch, PartitionIndex, TopicId, TopicIdPartition
from app.core.wake import Wake
from app.replication.commits import CommitQueue, FutureWaiter, Waiter
from app.replication.in_sync import LAG_MS_MAX, NEVER_MS, InSync
from app.replication.looks import Looks
from app.replication.roles import Role
from app.replication.selecting import ReplicaView, select_by_rack

if TYPE_CHECKING:
    from app.hot.log import PartitionLog
    from app.metadata.image.image import BrokerImage, ClusterImage, PartitionImage


NOBODY: Final = BrokerId(-1)
WHY_SHUT: Final = "it hears neither the controller, nor the object store, nor most of the other hosts"
LEVEL_OF_FOLLOWERS: Final = 1
"""Below this level of ``firn.version`` there is one broker, and no follower."""


class Partition:
    """Its role is changed by ``PartitionTable`` alone; everybody else reads."""

    __slots__ = (
        "_waiting",
        "accepts_all",
        "adding",
        "commits_alone",
        "counting",
        "eligible",
        "followed",
        "in_sync",
        "index",
        "leader",
        "leader_epoch",
        "leadership",
        "log",
        "partition_epoch",
        "replicas",
        "role",
        "shut",
        "starts_moved",
        "topic",
        "topic_id",
        "unclean_epoch",
        "why_offline",
    )

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.topic = log.topic
        self.topic_id: TopicId = log.topic_id
        self.index: PartitionIndex = log.partition
        self.role = Role.FOLLOWER
        self.leader = NOBODY
        """As of the image that the role follows."""
        self.leader_epoch: LeaderEpoch = log.leader_epoch
        self.partition_epoch = -1
        self.unclean_epoch = -1
        """The leader epoch of the last unclean election, as of the newest image."""
        self.replicas: tuple[BrokerId, ...] = ()
        self.in_sync: tuple[BrokerId, ...] = ()
        """As of the newest image, as are ``partition_epoch`` and ``replicas``. Empty if none was noted yet."""
        self.adding: tuple[BrokerId, ...] = ()
        """Replicas that a reassignment adds, as of the newest image."""
        self.eligible: tuple[BrokerId, ...] = ()
        """Eligible leader replicas (KIP-966), as of the newest image."""
        self.followed: PartitionImage | None = None
        """The image that role, sets and epochs are in line with, so that nothing is left to be done about it; else None."""
        self.commits_alone = True
        """Whether there is no other replica, so that records are committed as soon as this broker has stored them."""
        self.accepts_all = False
        """Whether a Produce with acks=all may be appended now: this broker leads, and ``enough_in_sync``. After a change of the
        topic's settings it is right once ``refresh`` was called."""
        self.counting: InSync | None = None
        """Counts how far the replicas have stored while this broker leads and there are others."""
        self.leadership = 0
        """Rises whenever this broker stops to lead: a wait of an older leadership must not end as stored."""
        self.shut = False
        """Whether clients are refused because this broker is isolated, and other brokers may serve them (ADR 0040, IS4)."""
        self.starts_moved = Wake()
        """Wakes when a follower has told where its log begins, or the in-sync set or the leader has changed."""
        self.why_offline = ""
        """Why it cannot be opened, in a sentence, while the role is OFFLINE."""
        self._waiting = CommitQueue()
        """Those who wait for commits of this leadership. Empty without others that must store the records."""

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} {self.role.value}>"

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.index)

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def serves(self) -> bool:
        """Whether this broker leads, and clients are served."""
        return self.role is Role.LEADER and not self.shut

    def note_follower(
        self,
        broker_id: int,
        broker_epoch: int,
        *,
        fetch_offset: int,
        stored_end: int,
        log_end: int,
        now_ms: int,
        log_start: int = -1,
    ) -> None:
        """Count how far a follower is, by its fetch, and commit the records that all have stored."""
        counting = self.counting
        if counting is not None:
            log = self.log
            counting.note_own(log.stored_end_offset, log.log_end_offset)
            counting.note_follower(
                broker_id,
                broker_epoch,
                fetch_offset=fetch_offset,
                stored_end=stored_end,
                log_end=log_end,
                now_ms=now_ms,
                log_start=log_start,
            )
            log.commit(counting.high_watermark)
            if self.starts_moved:
                self.starts_moved.wake()

    async def wait_log_start(self, offset: int) -> None:
        """Wait until all followers that are in sync begin at ``offset`` or later. They learn the log start by their fetches.

        Raises: NotLeader.
        """
        leadership = self.leadership
        while True:
            if self.leadership != leadership or not self.serves:
                raise self.lost_leadership()
            if self.counting is None or self.counting.begins_at(offset):
                return
            await self.starts_moved.wait()

    def note_stored(self) -> None:
        """This broker has stored more, as leader of several replicas: count it, and commit the records that all have stored.

        Appends in memory need it only while no other replica counts: else those decide, and each of their fetches counts this
        broker's end too.
        """
        counting = self.counting
        if counting is not None:
            log = self.log
            counting.note_own(log.stored_end_offset, log.log_end_offset)
            log.commit(counting.high_watermark)

    @property
    def end_is_known(self) -> bool:
        """Whether the high watermark has reached the start of this broker's leadership. Before that, records that were committed
        under an earlier leader may lie above it (KIP-207, A5)."""
        return self.counting is None or self.counting.reached_epoch_start

    def refresh(self) -> None:
        """Settings, role or sets may have changed."""
        self.accepts_all = self.leads and self.enough_in_sync
        if self.counting is not None:
            self.log.appends_decide = self.counting.counts_alone

    @property
    def enough_in_sync(self) -> bool:
        """Whether ``check_in_sync`` has nothing to raise."""
        wanted = self.log.config.min_insync_replicas
        return wanted <= 1 or len(self.in_sync) >= min(wanted, len(self.replicas))

    @property
    def reader_epoch(self) -> LeaderEpoch:
        """The leader epoch that readers may name: the one in which this broker leads, or which it follows (V1)."""
        return self.log.leader_epoch if self.leads else self.leader_epoch

    def preferred_replica(self, rack: str, offset: int, brokers: Mapping[int, BrokerImage]) -> BrokerId | None:
        """The follower from which a consumer in ``rack`` should read ``offset``; None for this broker, or if it does not lead.

        Only followers that are in the committed in-sync set and alive, and have all records from ``offset`` on that are committed
        here (V2).
        """
        counting = self.counting
        own = brokers.get(self.leader)
        if counting is None or not self.leads or own is None:
            return None
        able: list[ReplicaView] = []
        for broker_id in self.in_sync:
            follower, broker = counting.replica(broker_id), brokers.get(broker_id)
            if follower is None or broker is None or broker.fenced or follower.broker_epoch != broker.broker_epoch:
                continue
            if 0 <= follower.log_start <= offset <= follower.stored_end:
                able.append(ReplicaView(follower.stored_end, follower.last_caught_up_ms, broker_id, broker.rack))
        found = select_by_rack(rack, own.rack, able)
        return None if found is None else BrokerId(found)

    def check_in_sync(self) -> None:
        """Whether as many replicas are in sync as ``min.insync.replicas`` asks, or as there are.

        Raises: RequestRejected NOT_ENOUGH_REPLICAS.
        """
        if not self.enough_in_sync:
            raise RequestRejected(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.in_sync)} replicas are in sync, min.insync.replicas is {self.log.config.min_insync_replicas}.",
            )

    def wait_stored(self, offset_end: int, *, in_sync: bool = True) -> Awaitable[None] | None:
        """None if everything below ``offset_end`` is stored as the topic's durability asks; else an awaitable of that.

        Stored by all replicas in sync, which is committed; or (``in_sync=False``) by this broker alone. After
        the wait compare ``leadership`` with its value before: if it rose, the records may or may not be stored. The awaitable
        raises StorageUnavailable if they can no longer be stored.
        """
        log = self.log
        if self.commits_alone or not in_sync:
            return log.wait_stored(offset_end)
        if offset_end <= log.high_watermark:
            return None
        log.request_stored(offset_end)
        waiter = FutureWaiter(offset_end)
        self.wait_committed(waiter)
        return waiter.future

    def wait_committed(self, waiter: Waiter) -> None:
        """Call ``waiter``, whose records are not committed yet, when they are; or when this broker stops to lead, or the log
        refuses."""
        log = self.log
        if log.offline_error is not None:
            waiter.failed(log.offline_error)
            return
        if self._waiting.empty:
            log.add_waiter(self._log_moved)
        self._waiting.add(waiter)

    def _log_moved(self) -> None:
        """The high watermark has moved, or the log refuses or is not led any more."""
        log, waiting = self.log, self._waiting
        waiting.reached(log.high_watermark)
        if not waiting.empty and log.offline_error is not None:
            waiting.fail(log.offline_error)
        if waiting.empty:
            log.remove_waiter(self._log_moved)

    def end_waits(self) -> None:
        """End waits for commits and for reads: their clients look for another broker. Called by ``PartitionTable`` alone."""
        error = self.lost_leadership()
        if not self._waiting.empty:
            self._waiting.fail(error)
            self.log.remove_waiter(self._log_moved)
        self.log.end_waits(error)
        self.starts_moved.wake()

    def leave_leadership(self) -> None:
        """End waits for commits: their clients ask the next leader. Called by ``PartitionTable`` alone."""
        self.leadership += 1
        if not self._waiting.empty:
            self._waiting.fail(self.lost_leadership())
            self.log.remove_waiter(self._log_moved)

    def wait_stored_as_leader(self, offset_end: int) -> Awaitable[None] | None:
        """As ``wait_stored``; the awaitable raises NotLeader if this broker has stopped to lead meanwhile."""
        stored = self.wait_stored(offset_end)
        return None if stored is None else _StoredAsLeader(self, stored)

    def request_stored(self, offset_end: int) -> None:
        """Have everything below ``offset_end`` stored as the topic asks, soon, without a wait."""
        self.log.request_stored(offset_end)

    def lost_leadership(self) -> NotLeader:
        """The refusal for records of a leadership that is over, or that this broker cannot speak for while it is isolated:
        whether they count is for the next leader to say."""
        if self.shut:
            return NotLeader(f"This broker is isolated: {WHY_SHUT}.", NOBODY, self.leader_epoch)
        return NotLeader(
            f"This broker does not lead {self.topic}-{self.index} any more.", self.leader, self.leader_epoch
        )


class _StoredAsLeader(Awaitable[None]):
    """That records were stored, and that this broker led all the while."""

    __slots__ = ("_leadership", "_partition", "_stored")

    def __init__(self, partition: Partition, stored: Awaitable[None]) -> None:
        self._partition = partition
        self._stored = stored
        self._leadership = partition.leadership

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._stored.__await__()
        if self._partition.leadership != self._leadership:
            raise self._partition.lost_leadership()


def _others_may_lead(image: PartitionImage) -> bool:
    """Whether another broker may lead a partition by now, though this one has not heard of it."""
    return len(image.replicas) > 1 or image.is_journaled


def loop_now_ms() -> int:
    """Loop time in milliseconds."""
    return int(asyncio.get_running_loop().time() * 1000)


class PartitionTable:
    """All partitions that this broker has a log of. Belongs to its loop."""

    def __init__(
        self, broker_id: BrokerId, image: Callable[[], ClusterImage], now_ms: Callable[[], int] = loop_now_ms
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._all: dict[tuple[str, int], Partition] = {}
        self._led: dict[tuple[str, int], Partition] = {}
        self._offline: dict[TopicIdPartition, str] = {}
        self.isolated = False
        """Whether the gate of isolation is shut (ADR 0040)."""
        self.elsewhere: tuple[BrokerId, ...] = ()
        """Other brokers that may lead by now what this one has led, while the gate is shut (IS9)."""
        self.offline_changes = 0
        """Rises with every change of ``offline`` and ``isolated``, which change the leaders that clients are told."""
        self.now_ms = now_ms
        """Loop time in milliseconds: it never steps."""
        self.lag_ms_max = LAG_MS_MAX
        """``replica.lag.time.max.ms``."""
        self._looks: Looks[Partition] = Looks()
        """At the partitions whose replicas this broker counts: their in-sync set may have to be proposed anew."""
        self.on_look: Callable[[], None] | None = None
        """Called when a partition wants a look, and none did before. ``InSyncSets`` sets it."""
        self.on_touched: Callable[[], None] | None = None
        """Called when the first partition was touched since ``take_touched``: its leader, its epoch or its role here may be
        another. ``Followers`` sets it."""
        self._touched: dict[Partition, None] = {}
        self.on_lead: Callable[[], None] | None = None
        """Called whenever this broker begins to lead a partition that others follow, or leads it under another epoch."""
        self.shrinks = self.expands = 0
        """How often a replica left the in-sync set of a partition that is led here, and how often one came."""
        self.given_up = 0
        """Committed offsets that followers cut away after unclean elections (A3)."""
        self.make_missing: Callable[[str, int], None] | None = None
        """Makes the log of a partition that a request names, if it is still missing. The owner of the logs sets it."""
        self._watchers: dict[str, list[Callable[[Partition], None]]] = {}

    # --- asking -------------------------------------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition | None:
        """A partition of any role; None if there is no log of it here."""
        return self._all.get((topic, index))

    def led(self, topic: str, index: int) -> Partition | None:
        """A partition that this broker leads; None if it does not. Its log is made now if it is still missing."""
        found = self._led.get((topic, index))
        if found is None and self.make_missing is not None:
            self.make_missing(topic, index)
            found = self._led.get((topic, index))
        return found

    def led_log(self, topic: str, index: int) -> PartitionLog | None:
        """The log of a partition that this broker leads; None if it does not."""
        found = self.led(topic, index)
        return None if found is None else found.log

    @property
    def led_count(self) -> int:
        """How many partitions this broker leads."""
        return len(self._led)

    def all_led(self) -> list[Partition]:
        return list(self._led.values())

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._all.values()))

    @property
    def offline(self) -> Mapping[TopicIdPartition, str]:
        """Partitions that this broker should lead but cannot open, with the reason in a sentence."""
        return self._offline

    def require_replica(self, topic: str, index: int) -> Partition:
        """A partition that this broker may serve to consumers: one that it leads, or one that it follows (V1, V3).

        Raises: as ``require``.
        """
        found = self._led.get((topic, index))
        if found is None or found.shut:
            found = self._all.get((topic, index))
            if (
                found is None
                or found.shut
                or found.role is not Role.FOLLOWER
                or found.leader == self._broker_id
                or self._broker_id not in found.replicas
                or not self._is_followed(found)
            ):
                return self.require_served(topic, index)
        return found

    def _is_followed(self, partition: Partition) -> bool:
        """Whether its topic is the one of that name, and brokers follow one another: else the committed end is not known."""
        image = self._image()
        of_topic = image.topics_by_name.get(partition.topic)
        return image.level >= LEVEL_OF_FOLLOWERS and of_topic is not None and of_topic.topic_id == partition.topic_id

    def require(self, topic: str, index: int) -> Partition:
        """A partition that this broker leads.

        Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION; NotLeader, with who leads; RequestRejected KAFKA_STORAGE_ERROR if this
        broker is to lead it and its log is not there: being made, being opened, or it cannot be opened.
        """
        found = self.led(topic, index)
        if found is not None:
            return found
        of_topic = self._image().topics_by_name.get(topic)
        if of_topic is None or not 0 <= index < len(of_topic.partitions):
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}.")
        image = of_topic.partitions[index]
        if image.leader != self._broker_id:
            raise NotLeader(f"This broker does not lead {topic}-{index}.", image.leader, image.leader_epoch)
        why = self._offline.get(TopicIdPartition(of_topic.topic_id, PartitionIndex(index)))
        raise RequestRejected(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"The log of {topic}-{index} is not available."
            if why is None
            else f"{topic}-{index} is offline: {clause(why)}.",
        )

    # --- partitions for clients ----------------------------------------------------------------------------------------

    def served(self, topic: str, index: int) -> Partition | None:
        """As ``led``, for a client's request. None also for a partition that the gate of isolation shuts."""
        found = self.led(topic, index)
        return None if found is None or found.shut else found

    def require_served(self, topic: str, index: int) -> Partition:
        """As ``require``, for a client's request. Raises: as ``require``; NotLeader without a leader, if this broker is to lead the
        partition and the gate of isolation shuts it."""
        found = self._led.get((topic, index))
        if found is not None and not found.shut:
            return found
        if self.isolated:
            of_topic = self._image().topics_by_name.get(topic)
            if of_topic is not None and 0 <= index < len(of_topic.partitions):
                image = of_topic.partitions[index]
                if self.is_shut(image):
                    raise NotLeader(f"This broker is isolated: {WHY_SHUT}.", NOBODY, image.leader_epoch)
        return self.require(topic, index)

    def is_shut(self, image: PartitionImage) -> bool:
        """Whether this broker would serve a partition if it were not isolated."""
        return self.isolated and image.leader == self._broker_id and _others_may_lead(image)

    def shut_gate(self, elsewhere: Sequence[int]) -> list[Partition]:
        """This broker is isolated: refuse clients all partitions that another broker may lead by now. Roles, logs and journals stay
        as they are. ``elsewhere``: the brokers that may lead them. Returns: the partitions for which ``end_waits`` is to be called,
        some in each turn of the loop."""
        assert not self.isolated
        self.isolated = True
        self.elsewhere = tuple(map(BrokerId, elsewhere))
        self.offline_changes += 1
        shut = []
        for partition in self._all.values():
            of_topic = self._image().topics_by_id.get(partition.topic_id)
            if of_topic is None or partition.index >= len(of_topic.partitions):
                continue
            if _others_may_lead(of_topic.partitions[partition.index]):
                partition.shut = True
                partition.log.forget_short_ways()
                shut.append(partition)
        return shut

    def end_waits(self, partition: Partition) -> None:
        """End the requests that wait for a partition that was shut."""
        if partition.shut and self._all.get((partition.topic, partition.index)) is partition:
            partition.end_waits()
            self._tell(partition)

    def open_gate(self) -> None:
        """This broker is not isolated any more."""
        assert self.isolated
        self.isolated = False
        self.elsewhere = ()
        self.offline_changes += 1
        for partition in self._all.values():
            if partition.shut:
                partition.shut = False
                self._tell(partition)

    def watch(self, topic: str, callback: Callable[[Partition], None]) -> None:
        """Call ``callback`` whenever this broker begins to lead a partition of ``topic``, leads it on under another epoch, stops to
        lead it, or begins or stops to serve it. The roles have changed by then. It must not change them, nor raise."""
        self._watchers.setdefault(topic, []).append(callback)

    def _tell(self, partition: Partition) -> None:
        for callback in self._watchers.get(partition.topic, ()):
            callback(partition)

    # --- who follows ---------------------------------------------------------------------------------------------------

    def take_touched(self) -> list[Partition]:
        """The partitions that were touched since the last call, dropped ones among them."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def leader_to_follow(self, partition: Partition) -> BrokerId | None:
        """The broker that this one has to fetch a partition from; None if there is nothing to fetch."""
        if partition.role is not Role.FOLLOWER or self._all.get((partition.topic, partition.index)) is not partition:
            return None
        leader = partition.leader
        return leader if leader >= 0 and leader != self._broker_id else None

    def _touch(self, partition: Partition) -> None:
        if self.on_touched is not None:
            if not self._touched:
                self.on_touched()
            self._touched[partition] = None

    # --- changing roles ----------------------------------------------------------------------------------------------

    def hold(self, log: PartitionLog) -> Partition:
        """There is a log of a partition now; its role is FOLLOWER until it is changed."""
        partition = self._all[log.topic, log.partition] = Partition(log)
        return partition

    def note(self, partition: Partition, image: PartitionImage) -> None:
        """Note the present leader and in-sync set. If this broker goes on leading in its epoch, and no other replica
        is in sync any more, all that is stored is committed."""
        if partition.leader != image.leader or partition.leader_epoch != image.leader_epoch:
            self._touch(partition)
        partition.leader, partition.leader_epoch = image.leader, image.leader_epoch
        if partition.leads and image.isr != partition.in_sync:
            self.shrinks += not set(partition.in_sync) <= set(image.isr)
            self.expands += not set(image.isr) <= set(partition.in_sync)
        partition.partition_epoch, partition.unclean_epoch = image.partition_epoch, image.unclean_epoch
        sets_changed = partition.in_sync != image.isr or partition.replicas != image.replicas
        partition.replicas, partition.in_sync, partition.eligible = image.replicas, image.isr, image.eligible
        partition.adding = image.adding
        partition.shut = self.isolated and _others_may_lead(image)
        partition.commits_alone = not any(replica != self._broker_id for replica in image.replicas)
        counting = partition.counting
        if not partition.leads or image.leader != self._broker_id:
            return
        if counting is not None and image.leader_epoch != counting.leader_epoch:
            return  # the states of the others are of a leadership that is over: they may have cut records away since (R11)
        partition.log.commit_alone(partition.commits_alone)
        if partition.commits_alone:
            self._stop_counting(partition)
        elif counting is None:
            self._count(partition)
        else:
            counting.note_image(
                image.partition_epoch,
                image.isr,
                image.replicas,
                partition.log.config.min_insync_replicas,
                self.now_ms(),
            )
            partition.note_stored()
        partition.refresh()
        if sets_changed:
            partition.log.wake_followers()  # a follower out of sync has to be counted with each request (W3)
        partition.starts_moved.wake()

    def lead(self, partition: Partition, epoch: LeaderEpoch) -> None:
        """Take records and answer readers from now on, in ``epoch``."""
        partition.followed = None
        partition.log.become_leader(epoch)
        partition.log.commit_alone(partition.commits_alone)
        partition.leader, partition.leader_epoch = self._broker_id, epoch
        self._stop_counting(partition)
        if not partition.commits_alone:
            self._count(partition)
            if self.on_lead is not None:
                self.on_lead()
        partition.role, partition.why_offline = Role.LEADER, ""
        self._forget_offline(partition)
        self._led[partition.topic, partition.index] = partition
        partition.refresh()
        self._tell(partition)
        self._touch(partition)

    def _count(self, partition: Partition) -> None:
        """Begin to count the replicas in the present leadership: nothing is known of the others (R6)."""
        log = partition.log
        partition.counting = InSync(
            self._broker_id,
            partition.leader_epoch,
            epoch_start=log.log_end_offset,
            replicas=partition.replicas,
            in_sync=partition.in_sync,
            partition_epoch=partition.partition_epoch,
            min_in_sync=log.config.min_insync_replicas,
            high_watermark=log.high_watermark,
            now_ms=self.now_ms(),
            lag_ms_max=self.lag_ms_max,
            on_look=lambda: self._want_look(partition),
        )
        log.on_stored = partition.note_stored
        partition.note_stored()

    def _want_look(self, partition: Partition) -> None:
        first = not self._looks.wanted
        self._looks.want(partition)
        if first and self.on_look is not None:
            self.on_look()

    def take_looks(self, now_ms: int, at_most: int) -> list[Partition]:
        """Partitions whose in-sync set may have to be proposed anew, ``at_most`` of them. Call ``looked_at`` with each."""
        return self._looks.take(now_ms, at_most)

    def looked_at(self, partition: Partition) -> None:
        """``proposal`` was asked: look at the partition again when its time comes, though nothing happens."""
        counting = partition.counting
        if counting is not None and counting.next_look_ms < NEVER_MS:
            self._looks.want_at(partition, counting.next_look_ms)

    def next_look_ms(self) -> int | None:
        """When to look though nothing happens; None for never."""
        return self._looks.next_ms()

    @property
    def wants_look(self) -> bool:
        """Whether ``on_look`` was called for partitions that were not taken yet."""
        return self._looks.wanted

    def _stop_counting(self, partition: Partition) -> None:
        if partition.counting is not None:
            partition.counting = None
            partition.log.on_stored = None
            partition.log.appends_decide = True
            self._looks.forget(partition)

    def follow(self, partition: Partition, high_watermark: int) -> None:
        """Fetch from the leader. ``high_watermark``: the committed end that is known from before (A4)."""
        partition.followed = None
        partition.log.resign()
        partition.log.commit_alone(False)
        partition.log.trust_high_watermark(high_watermark)
        self._touch(partition)

    def resign(self, partition: Partition) -> None:
        """Take no more records. Waits for the log end, and find that another broker leads."""
        self._leave(partition)
        partition.role = Role.FOLLOWER
        partition.log.commit_alone(False)  # the next leader decides the committed end
        partition.log.resign()
        self._tell(partition)

    def put_offline(self, partition: Partition, why: str) -> None:
        """The partition cannot be opened, for ``why``; it is not read or written. Also with another reason than before."""
        if partition.leads:
            partition.log.resign()  # shapes that were learnt of it must not go on writing
        self._leave(partition)
        partition.role, partition.why_offline = Role.OFFLINE, why
        self._offline[partition.key] = why
        self.offline_changes += 1
        self._tell(partition)

    def take_out(self, partition: Partition) -> None:
        """Its topic was deleted: from now on nobody finds the partition, reads it or writes it. Cheap. Call ``drop`` later."""
        place = partition.topic, partition.index
        for known in (self._all, self._led):
            if known.get(place) is partition:
                del known[place]
        partition.shut = True
        partition.log.forget_short_ways()

    def drop(self, partition: Partition) -> None:
        """There is no log of it any more."""
        led = partition.leads
        self._leave(partition)
        place = partition.topic, partition.index
        if self._all.get(place) is partition:
            del self._all[place]
        if led:
            partition.role = Role.FOLLOWER
            self._tell(partition)

    def _leave(self, partition: Partition) -> None:
        partition.followed = None
        self._touch(partition)
        place = partition.topic, partition.index
        if self._led.get(place) is partition:
            del self._led[place]
        if partition.leads:
            partition.leave_leadership()
            partition.accepts_all = False
            partition.starts_moved.wake()
        self._stop_counting(partition)
        self._forget_offline(partition)
        partition.why_offline = ""

    def _forget_offline(self, partition: Partition) -> None:
        if self._offline.pop(partition.key, None) is not None:
            self.offline_changes += 1
