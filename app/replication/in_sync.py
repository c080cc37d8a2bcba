"""How far the replicas of one partition have stored, as its leader counts it (ADR 0024, R1 to R11). Pure; time is an argument.

The *committed* set is the in-sync set of the newest image. A *proposal* is a set that the leader asked the controller for and has
no decision on. Everything counts over the *maximal* set, which is both together and this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from app.core.units import BrokerId, LeaderEpoch, Offset

LAG_MS_MAX: Final = 30_000
"""Default of ``replica.lag.time.max.ms``."""

AGAIN_MS: Final = 500
"""Pause before a proposal without a decision is sent again."""

NO_EPOCH: Final = -1
NEVER_MS: Final = 1 << 62


class ReplicaEpoch(NamedTuple):
    """A member of a proposed in-sync set, with its broker epoch (R5)."""

    broker_id: int
    broker_epoch: int


class Proposal(NamedTuple):
    """An in-sync set that the controller is asked for."""

    leader_epoch: int
    partition_epoch: int
    members: tuple[ReplicaEpoch, ...]


class Ride(Protocol):
    """The requests of a follower that had all records, and does not name the partition again while it has them (W2)."""

    @property
    def asked_ms(self) -> int:
        """When its last request came at which it had all records."""
        ...


class Replica:
    """The state of one follower in this leadership."""

    __slots__ = (
        "asked_end",
        "asked_ms",
        "broker_epoch",
        "caught_up_ms",
        "fetch_offset",
        "log_start",
        "ride",
        "stored_end",
    )

    def __init__(self, now_ms: int) -> None:
        self.broker_epoch = NO_EPOCH
        self.fetch_offset = -1
        self.stored_end = -1
        """-1: nothing is known, so that nothing is committed while it counts."""
        self.log_start = -1
        """The first offset that it can serve, as its newest fetch told; -1 if that did not."""
        self.caught_up_ms = now_ms
        """When it last had all that the leader had. A new leadership gives every follower time to come."""
        self.asked_end = -1
        """The leader's log end when it asked last, and when that was: a fetch that reaches it shows that it was caught up then."""
        self.asked_ms = -1
        self.ride: Ride | None = None

    @property
    def last_caught_up_ms(self) -> int:
        return self.caught_up_ms if self.ride is None else max(self.caught_up_ms, self.ride.asked_ms)

    def end_ride(self) -> None:
        """From here on its own requests count."""
        if self.ride is not None:
            asked_ms = self.ride.asked_ms
            self.caught_up_ms = max(self.caught_up_ms, asked_ms)
            self.asked_ms = max(self.asked_ms, asked_ms)
            self.ride = None

    def begin_anew(self, broker_epoch: int) -> None:
        """Another process answers for this replica now: nothing is known of it (R6)."""
        self.broker_epoch = broker_epoch
        self.ride = None
        self.fetch_offset = self.stored_end = self.log_start = self.asked_end = self.asked_ms = -1


class InSync:
    """Belongs to one leadership of one partition."""

    __slots__ = (
        "_again_ms",
        "_broker_id",
        "_committed",
        "_deadline_ms",
        "_epoch_start",
        "_followers",
        "_high_watermark",
        "_lag_ms_max",
        "_leader_epoch",
        "_log_end",
        "_looks",
        "_maximal",
        "_min_in_sync",
        "_on_look",
        "_partition_epoch",
        "_proposal",
        "_proposed",
        "_replicas",
        "_stored_end",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        leader_epoch: LeaderEpoch,
        *,
        epoch_start: Offset,
        replicas: Sequence[BrokerId],
        in_sync: Sequence[BrokerId],
        partition_epoch: int,
        min_in_sync: int,
        high_watermark: Offset,
        now_ms: int,
        lag_ms_max: int = LAG_MS_MAX,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """``epoch_start``: the log end at which this leadership began. ``high_watermark``: the known committed end.
        ``on_look`` is called whenever ``proposal`` may have something to say before ``next_look_ms``, also in a new leadership."""
        self._broker_id = broker_id
        self._leader_epoch = leader_epoch
        self._epoch_start: int = epoch_start
        self._lag_ms_max = lag_ms_max
        self._high_watermark: int = high_watermark
        self._stored_end = -1
        self._log_end = -1
        self._proposal: Proposal | None = None
        self._proposed: frozenset[int] = frozenset()
        """Members of all proposals since the last decision: any of them may have been accepted (R4)."""
        self._again_ms = 0
        self._on_look = on_look
        self._looks = True
        self._deadline_ms = 0
        self._partition_epoch = partition_epoch
        self._min_in_sync = min_in_sync
        self._replicas = tuple(replicas)
        self._committed = frozenset(in_sync)
        self._followers: dict[int, Replica] = {replica: Replica(now_ms) for replica in replicas if replica != broker_id}
        self._maximal: tuple[Replica, ...] = ()
        self._settle()
        self._want_look()

    # --- the present state --------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """Of the leadership in which it counts."""
        return self._leader_epoch

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed. It never goes back (R1)."""
        return self._high_watermark

    @property
    def committed(self) -> frozenset[int]:
        """The in-sync set of the newest image."""
        return self._committed

    @property
    def maximal(self) -> frozenset[int]:
        """Every replica that may be in sync by the controller's decision: committed, proposed, and this broker (R1, R3)."""
        return self._committed | self._proposed | {self._broker_id}

    @property
    def reached_epoch_start(self) -> bool:
        """Whether all that earlier leaders may have committed is known to be (A5)."""
        return self._high_watermark >= self._epoch_start

    @property
    def pending(self) -> Proposal | None:
        """The proposal without a decision."""
        return self._proposal

    @property
    def counts_alone(self) -> bool:
        """Whether no other replica may count as in sync."""
        return not self._maximal

    def begins_at(self, offset: int) -> bool:
        """Whether the log of every follower that is in sync begins at ``offset`` or later, as they told."""
        return all(
            follower.log_start >= offset
            for broker_id, follower in self._followers.items()
            if broker_id in self._committed
        )

    def replica(self, broker_id: int) -> Replica | None:
        """The state of a follower; None for a broker that is none."""
        return self._followers.get(broker_id)

    def wants_look(self, now_ms: int) -> bool:
        """Whether ``proposal`` may have something to say now."""
        return self._looks or now_ms >= self._deadline_ms

    @property
    def next_look_ms(self) -> int:
        """When ``proposal`` may have something to say though nothing happens; ``NEVER_MS`` if then it never has. As of its last
        call: later events may have moved it to a later time."""
        return self._deadline_ms

    def _want_look(self) -> None:
        self._looks = True
        self._on_look()

    # --- events -------------------------------------------------------------------------------------------------------

    def note_own(self, stored_end: int, log_end: int) -> None:
        """This broker has stored everything below ``stored_end``."""
        self._log_end = log_end
        if stored_end > self._stored_end:
            self._stored_end = stored_end
            self._advance()

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
        """A fetch of a follower whose history was found to be this log's, in this leader epoch: it has everything from
        ``log_start`` to ``fetch_offset``, and has stored the records below ``stored_end``. ``log_end``: of this log now."""
        follower = self._followers.get(broker_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return
        if broker_epoch > follower.broker_epoch:
            follower.begin_anew(broker_epoch)
        follower.end_ride()
        if fetch_offset >= log_end:
            follower.caught_up_ms = now_ms
        elif fetch_offset >= follower.asked_end >= 0:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.asked_ms)
        follower.asked_end, follower.asked_ms = log_end, now_ms
        follower.fetch_offset, follower.log_start = fetch_offset, log_start
        if stored_end > follower.stored_end:
            follower.stored_end = stored_end
            self._advance()
        if broker_id not in self._committed and self._may_count(follower):
            self._want_look()

    def let_ride(self, broker_id: int, broker_epoch: int, log_end: int, ride: Ride) -> bool:
        """Whether a follower may go without being noted while it has all records: it has them now, by a position that counts, and
        is in sync, so that no request of it is a reason for a proposal."""
        follower = self._followers.get(broker_id)
        if (
            follower is None
            or follower.broker_epoch != broker_epoch
            or follower.fetch_offset < log_end
            or broker_id not in self._committed
        ):
            return False
        follower.ride = ride
        return True

    def note_image(
        self,
        partition_epoch: int,
        in_sync: Sequence[BrokerId],
        replicas: Sequence[BrokerId],
        min_in_sync: int,
        now_ms: int,
    ) -> None:
        """A newer image. A higher partition epoch decides the proposal, whether or not it was accepted (R4)."""
        self._min_in_sync = min_in_sync
        if partition_epoch > self._partition_epoch:
            self._partition_epoch = partition_epoch
            self._proposal, self._proposed = None, frozenset()
            self._committed = frozenset(in_sync)
            self._replicas = tuple(replicas)
            for replica in replicas:
                if replica != self._broker_id and replica not in self._followers:
                    self._followers[replica] = Replica(now_ms)
            for gone in self._followers.keys() - set(replicas):
                del self._followers[gone]
            self._want_look()
        self._settle()

    # --- proposals ----------------------------------------------------------------------------------------------------

    def proposal(
        self, now_ms: int, *, may_join: Callable[[int], bool], broker_epochs: Mapping[int, int]
    ) -> Proposal | None:
        """The request to the controller now: a new proposal, or the pending one again after a pause; None if there is nothing.

        It counts from here on, before the request leaves (R3). A proposal that the controller will refuse, because a member was
        fenced or has another broker epoch, is replaced by one without it. That may be the committed set: an accepted proposal
        raises the partition epoch in any case, and so ends a pending one. Until then all that was proposed counts (R4).

        ``may_join``: whether a broker is unfenced and not stopping. ``broker_epochs``: as the image has them.
        """
        if self._proposal is not None and now_ms < self._again_ms:
            return None
        self._looks = False
        self._deadline_ms = NEVER_MS
        members = self._members(now_ms, may_join, broker_epochs)
        if self._proposal is None and {member.broker_id for member in members} == self._committed | {self._broker_id}:
            return None
        self._proposal = Proposal(self._leader_epoch, self._partition_epoch, members)
        self._proposed |= {member.broker_id for member in members}
        self._again_ms = self._deadline_ms = now_ms + AGAIN_MS
        self._settle()
        return self._proposal

    def _members(
        self, now_ms: int, may_join: Callable[[int], bool], broker_epochs: Mapping[int, int]
    ) -> tuple[ReplicaEpoch, ...]:
        """The set that is due now; notes when it is to be looked at again."""
        members = [ReplicaEpoch(self._broker_id, broker_epochs.get(self._broker_id, NO_EPOCH))]
        for broker_id, follower in self._followers.items():
            epoch = broker_epochs.get(broker_id, NO_EPOCH)
            if broker_id in self._committed:
                late_ms = follower.last_caught_up_ms + self._lag_ms_max
                if now_ms >= late_ms or not may_join(broker_id):
                    continue
                self._deadline_ms = min(self._deadline_ms, late_ms)
                members.append(ReplicaEpoch(broker_id, epoch))
            elif self._may_count(follower) and follower.broker_epoch == epoch and may_join(broker_id):
                # Who may not join now asks for a look with its next fetch; a dead broker makes no work.
                members.append(ReplicaEpoch(broker_id, epoch))
        return tuple(members)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _may_count(self, follower: Replica) -> bool:
        """Whether a follower may be proposed (R7)."""
        return follower.stored_end >= max(self._high_watermark, self._epoch_start)

    def _settle(self) -> None:
        """The sets have changed."""
        maximal = self.maximal
        self._maximal = tuple(follower for broker_id, follower in self._followers.items() if broker_id in maximal)
        self._advance()

    def _advance(self) -> None:
        if len(self._committed) < min(self._min_in_sync, len(self._replicas)):
            return
        end = self._stored_end
        for follower in self._maximal:
            if follower.stored_end < end:
                end = follower.stored_end
        if end > self._high_watermark:
            self._high_watermark = end
