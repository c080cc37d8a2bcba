"""What a leader counts as committed, and which in-sync sets it asks for: a test for each rule of ADR 0024, R1 to R8, and a model.

The model has a controller that hears each proposal late, twice or never, followers that lose records when they start again, and a
leader whose image is behind. Whatever happens, all that counts as committed is stored by every set that the controller has or may
still come to have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.core.units import BrokerId, LeaderEpoch, Offset
from app.replication.in_sync import AGAIN_MS, LAG_MS_MAX, InSync, Proposal, ReplicaEpoch

ME, B, C = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = (ME, B, C)
LEADER_EPOCH = LeaderEpoch(5)
PARTITION_EPOCH = 7
START = Offset(100)
BROKER_EPOCHS = {ME: 11, B: 12, C: 13}


def leadership(
    in_sync: Sequence[BrokerId] = ALL,
    *,
    replicas: Sequence[BrokerId] = ALL,
    min_in_sync: int = 1,
    epoch_start: Offset = START,
    high_watermark: Offset = START,
) -> InSync:
    """A leadership of broker 1 that begins at time 0 with a log end of 100, all of it committed."""
    return InSync(
        ME,
        LEADER_EPOCH,
        epoch_start=epoch_start,
        replicas=replicas,
        in_sync=in_sync,
        partition_epoch=PARTITION_EPOCH,
        min_in_sync=min_in_sync,
        high_watermark=high_watermark,
        now_ms=0,
    )


def fetched(
    counting: InSync,
    broker_id: int,
    stored_end: int,
    *,
    fetch_offset: int | None = None,
    log_end: int = 150,
    now_ms: int = 0,
    broker_epoch: int | None = None,
) -> None:
    """A follower fetches; by default it has stored all that it has."""
    counting.note_follower(
        broker_id,
        BROKER_EPOCHS[BrokerId(broker_id)] if broker_epoch is None else broker_epoch,
        fetch_offset=stored_end if fetch_offset is None else fetch_offset,
        stored_end=stored_end,
        log_end=log_end,
        now_ms=now_ms,
    )


def anybody(broker_id: int) -> bool:
    return True


def propose(
    counting: InSync,
    now_ms: int = 0,
    *,
    may_join: Callable[[int], bool] = anybody,
    broker_epochs: Mapping[int, int] = BROKER_EPOCHS,
) -> Proposal | None:
    return counting.proposal(now_ms, may_join=may_join, broker_epochs=broker_epochs)


def members(proposal: Proposal | None) -> set[int]:
    assert proposal is not None
    return {member.broker_id for member in proposal.members}


# --- R1: the high watermark ---------------------------------------------------------------------------------------------


def test_r1_the_slowest_member_decides() -> None:
    counting = leadership()
    counting.note_own(150, 150)
    fetched(counting, B, 140)
    fetched(counting, C, 120)
    assert counting.high_watermark == 120
    fetched(counting, C, 150)
    assert counting.high_watermark == 140


def test_r1_the_leader_itself_counts() -> None:
    counting = leadership()
    fetched(counting, B, 150)
    fetched(counting, C, 150)
    assert counting.high_watermark == START
    counting.note_own(130, 150)
    assert counting.high_watermark == 130


def test_r1_the_leader_counts_though_it_is_not_in_the_set() -> None:
    counting = leadership((B,))
    fetched(counting, B, 150)
    counting.note_own(130, 150)
    assert counting.maximal == {ME, B}
    assert counting.high_watermark == 130


def test_r1_a_replica_that_is_not_in_sync_holds_nothing_back() -> None:
    counting = leadership((ME, B))
    counting.note_own(150, 150)
    fetched(counting, C, 20)
    fetched(counting, B, 150)
    assert counting.high_watermark == 150


def test_r1_nothing_is_committed_before_every_member_has_told_its_position() -> None:
    counting = leadership()
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    assert counting.high_watermark == START


def test_r1_the_high_watermark_never_goes_back() -> None:
    counting = leadership((ME, B))
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    counting.note_image(PARTITION_EPOCH + 1, ALL, ALL, 1, 0)  # C has told nothing yet
    fetched(counting, C, 110)
    fetched(counting, B, 0, broker_epoch=99)
    assert counting.high_watermark == 150


def test_r1_positions_that_arrive_late_take_nothing_back() -> None:
    counting = leadership((ME, B))
    counting.note_own(120, 150)
    fetched(counting, B, 140)
    fetched(counting, B, 110)
    counting.note_own(110, 150)
    counting.note_own(150, 150)
    assert counting.high_watermark == 140


def test_s1_what_is_fetched_but_not_stored_is_not_committed() -> None:
    counting = leadership((ME, B))
    counting.note_own(150, 150)
    fetched(counting, B, 130, fetch_offset=150)
    assert counting.high_watermark == 130


# --- R2: the size of the set --------------------------------------------------------------------------------------------


def test_r2_a_set_that_is_too_small_commits_nothing() -> None:
    counting = leadership((ME,), min_in_sync=2)
    counting.note_own(150, 150)
    assert counting.high_watermark == START


def test_r2_a_proposed_member_does_not_make_the_set_larger() -> None:
    counting = leadership((ME,), min_in_sync=2)
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    assert members(propose(counting)) == {ME, B}
    assert counting.high_watermark == START
    counting.note_image(PARTITION_EPOCH + 1, (ME, B), ALL, 2, 0)
    assert counting.high_watermark == 150


def test_r2_more_than_all_replicas_are_never_asked_for() -> None:
    counting = leadership((ME, B), replicas=(ME, B), min_in_sync=3)
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    assert counting.high_watermark == 150


def test_r2_another_min_insync_replicas_counts_without_another_partition_epoch() -> None:
    counting = leadership((ME,), min_in_sync=2)
    counting.note_own(120, 120)
    counting.note_image(PARTITION_EPOCH, (ME,), ALL, 1, 0)
    assert counting.high_watermark == 120
    counting.note_image(PARTITION_EPOCH, (ME,), ALL, 2, 0)
    counting.note_own(150, 150)
    assert counting.high_watermark == 120


# --- R3 and R4: proposals -----------------------------------------------------------------------------------------------


def test_r3_an_addition_counts_from_when_it_is_proposed() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    assert members(propose(counting)) == {ME, B, C}
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    assert counting.committed == {ME, B}
    assert counting.maximal == {ME, B, C}
    assert counting.high_watermark == 110


def test_r3_a_removal_counts_when_an_image_shows_it() -> None:
    counting = leadership((ME, B))
    counting.note_own(150, 150)
    assert members(propose(counting, LAG_MS_MAX)) == {ME}
    assert counting.high_watermark == START
    counting.note_image(PARTITION_EPOCH + 1, (ME,), ALL, 1, LAG_MS_MAX)
    assert counting.high_watermark == 150


@pytest.mark.parametrize("decided", [(ME, B), (ME, B, C), (ME,)])
def test_r4_a_higher_partition_epoch_decides_whatever_it_says(decided: tuple[BrokerId, ...]) -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    propose(counting)
    counting.note_image(PARTITION_EPOCH + 1, decided, ALL, 1, 0)
    assert counting.pending is None
    assert counting.committed == counting.maximal == set(decided)


@pytest.mark.parametrize("partition_epoch", [PARTITION_EPOCH, PARTITION_EPOCH - 1])
def test_r4_an_image_of_no_higher_partition_epoch_decides_nothing(partition_epoch: int) -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    proposal = propose(counting)
    counting.note_image(partition_epoch, (ME,), ALL, 1, 0)
    assert counting.pending == proposal
    assert counting.committed == {ME, B}
    assert counting.maximal == {ME, B, C}


def test_r4_a_pending_proposal_is_sent_again_as_it_was_after_a_pause() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    proposal = propose(counting)
    assert not counting.wants_look(AGAIN_MS - 1)
    assert propose(counting, AGAIN_MS - 1) is None
    assert counting.wants_look(AGAIN_MS)
    assert propose(counting, AGAIN_MS) == proposal


def test_r4_a_member_of_any_proposal_counts_until_there_is_a_decision() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    propose(counting)
    withdrawn = propose(counting, AGAIN_MS, may_join=lambda broker_id: broker_id != C)
    assert members(withdrawn) == {ME, B}, "the committed set is proposed: if it is accepted, the first proposal is over"
    assert counting.maximal == {ME, B, C}
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    assert counting.high_watermark == 110


def test_r4_a_proposal_that_was_decided_is_not_sent_again() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    propose(counting)
    counting.note_image(PARTITION_EPOCH + 1, ALL, ALL, 1, 0)
    assert propose(counting, AGAIN_MS) is None


# --- R5: what a proposal names ------------------------------------------------------------------------------------------


def test_r5_a_proposal_names_both_epochs_and_each_member_with_its_broker_epoch() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 110)
    assert propose(counting) == (
        LEADER_EPOCH,
        PARTITION_EPOCH,
        (ReplicaEpoch(ME, 11), ReplicaEpoch(B, 12), ReplicaEpoch(C, 13)),
    )


def test_r5_the_next_proposal_names_the_partition_epoch_of_the_newest_image() -> None:
    counting = leadership((ME, B))
    counting.note_image(PARTITION_EPOCH + 2, (ME, B), ALL, 1, 0)
    fetched(counting, C, 110)
    proposal = propose(counting)
    assert proposal is not None
    assert proposal.partition_epoch == PARTITION_EPOCH + 2


def test_r5_a_follower_is_not_proposed_under_a_broker_epoch_that_it_did_not_fetch_under() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 150)
    assert propose(counting, broker_epochs={**BROKER_EPOCHS, C: 14}) is None


def test_r5_whoever_may_not_join_is_not_proposed() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 150)
    assert propose(counting, may_join=lambda broker_id: broker_id != C) is None


def test_r5_a_member_that_may_not_stay_is_proposed_for_removal() -> None:
    assert members(propose(leadership(), may_join=lambda broker_id: broker_id != C)) == {ME, B}


# --- W: followers that need not be noted --------------------------------------------------------------------------------


class Riding:
    """The requests of a follower's session."""

    def __init__(self, asked_ms: int) -> None:
        self.asked_ms = asked_ms


def test_w2_a_follower_that_rides_is_not_late_while_its_session_asks() -> None:
    counting = leadership((ME, B))
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    ride = Riding(0)
    assert counting.let_ride(B, BROKER_EPOCHS[B], 150, ride)
    ride.asked_ms = LAG_MS_MAX
    assert propose(counting, LAG_MS_MAX + 1) is None
    assert members(propose(counting, 2 * LAG_MS_MAX)) == {ME}, "it has not asked for so long"


def test_w2_a_ride_ends_with_the_next_request_that_is_noted_and_what_it_showed_stays() -> None:
    counting = leadership((ME, B))
    counting.note_own(150, 150)
    fetched(counting, B, 150)
    ride = Riding(1_000)
    assert counting.let_ride(B, BROKER_EPOCHS[B], 150, ride)
    fetched(counting, B, 150, log_end=160, now_ms=5_000)
    ride.asked_ms = 9_000
    follower = counting.replica(B)
    assert follower is not None
    assert follower.last_caught_up_ms == 1_000, "the last request at which it had all"
    fetched(counting, B, 160, log_end=170, now_ms=6_000)
    assert follower.last_caught_up_ms == 5_000, "it reached the end that it was shown then"


@pytest.mark.parametrize(("broker_id", "broker_epoch", "log_end"), [(C, 13, 150), (B, 11, 150), (B, 12, 151)])
def test_w3_who_is_not_in_sync_or_not_at_the_end_or_another_process_does_not_ride(
    broker_id: int, broker_epoch: int, log_end: int
) -> None:
    counting = leadership((ME, B))
    for follower in (B, C):
        fetched(counting, follower, 150)
    assert not counting.let_ride(broker_id, broker_epoch, log_end, Riding(0))


def test_w2_another_process_does_not_go_on_with_a_ride() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 150)
    assert counting.let_ride(B, BROKER_EPOCHS[B], 150, Riding(7_000))
    fetched(counting, B, 110, broker_epoch=20, now_ms=8_000)
    follower = counting.replica(B)
    assert follower is not None
    assert follower.last_caught_up_ms == 0


# --- R6: broker epochs --------------------------------------------------------------------------------------------------


def test_r6_under_a_new_broker_epoch_a_follower_begins_at_nothing() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 150)
    fetched(counting, B, 110, broker_epoch=20)
    counting.note_own(150, 150)
    assert counting.high_watermark == 110


def test_r6_a_fetch_of_an_older_broker_epoch_counts_for_nothing() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 110, broker_epoch=20)
    fetched(counting, B, 150, broker_epoch=19, now_ms=9)
    counting.note_own(150, 150)
    follower = counting.replica(B)
    assert follower is not None
    assert (follower.broker_epoch, follower.fetch_offset, follower.caught_up_ms) == (20, 110, 0)
    assert counting.high_watermark == 110


def test_r6_the_end_that_another_process_was_told_does_not_show_that_this_one_caught_up() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 100, log_end=120, now_ms=1_000)
    fetched(counting, B, 120, log_end=150, now_ms=2_000, broker_epoch=20)
    follower = counting.replica(B)
    assert follower is not None
    assert follower.caught_up_ms == 0


def test_r6_a_replica_that_left_begins_at_nothing_when_it_comes_back() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 150)
    counting.note_image(PARTITION_EPOCH + 1, (ME, B), (ME, B), 1, 0)
    assert counting.replica(C) is None
    fetched(counting, C, 150)  # a late one
    counting.note_image(PARTITION_EPOCH + 2, (ME, B), ALL, 1, 0)
    assert propose(counting) is None


# --- R7: who is proposed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high_watermark", "stored_end", "joins"),
    [
        (Offset(60), 99, False),  # above the high watermark, and perhaps below what an earlier leader committed
        (Offset(60), 100, True),
        (Offset(120), 119, False),
        (Offset(120), 120, True),
    ],
)
def test_r7_a_follower_joins_at_the_high_watermark_and_the_start_of_the_leader_epoch(
    high_watermark: Offset, stored_end: int, joins: bool
) -> None:
    counting = leadership((ME, B), high_watermark=high_watermark)
    fetched(counting, C, stored_end)
    assert (propose(counting) is not None) == joins


def test_r7_what_a_follower_has_fetched_does_not_let_it_join_before_it_is_stored() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 99, fetch_offset=150)
    assert propose(counting) is None


def test_r7_a_follower_that_fell_behind_the_high_watermark_does_not_join_any_more() -> None:
    counting = leadership((ME,))
    fetched(counting, B, 110)
    assert counting.wants_look(0)
    counting.note_own(150, 150)
    assert propose(counting) is None


def test_r7_several_join_with_one_proposal() -> None:
    counting = leadership((ME,))
    fetched(counting, B, 110)
    fetched(counting, C, 120)
    assert members(propose(counting)) == {ME, B, C}


# --- R8: who is removed -------------------------------------------------------------------------------------------------


def test_r8_a_member_that_does_not_reach_the_end_in_time_is_removed() -> None:
    counting = leadership((ME, B))
    assert propose(counting, LAG_MS_MAX - 1) is None
    assert members(propose(counting, LAG_MS_MAX)) == {ME}


def test_r8_a_member_that_fetches_and_never_reaches_the_end_is_removed() -> None:
    counting = leadership((ME, B))
    for second in range(30):
        fetched(counting, B, 100 + second, log_end=200 + second, now_ms=1000 * second)
    assert members(propose(counting, LAG_MS_MAX)) == {ME}


def test_r8_a_member_that_is_at_the_end_is_in_time() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 150, log_end=150, now_ms=20_000)
    assert propose(counting, 20_000 + LAG_MS_MAX - 1) is None
    assert members(propose(counting, 20_000 + LAG_MS_MAX)) == {ME}


def test_r8_a_member_that_reaches_the_end_of_its_previous_fetch_was_caught_up_then() -> None:
    """Otherwise a member that keeps up with a busy leader would never be at the end."""
    counting = leadership((ME, B))
    fetched(counting, B, 100, log_end=120, now_ms=10_000)
    fetched(counting, B, 120, log_end=150, now_ms=20_000)
    assert propose(counting, 10_000 + LAG_MS_MAX - 1) is None
    assert members(propose(counting, 10_000 + LAG_MS_MAX)) == {ME}


def test_r8_for_lag_the_fetch_offset_counts_not_the_stored_end() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 100, fetch_offset=150, log_end=150, now_ms=20_000)
    assert propose(counting, LAG_MS_MAX) is None


def test_r8_a_late_fetch_of_earlier_does_not_make_a_member_late() -> None:
    counting = leadership((ME, B))
    fetched(counting, B, 100, log_end=150, now_ms=1_000)
    fetched(counting, B, 160, log_end=160, now_ms=2_000)
    fetched(counting, B, 160, log_end=170, now_ms=1_500)
    follower = counting.replica(B)
    assert follower is not None
    assert follower.caught_up_ms == 2_000


def test_r8_one_is_removed_and_another_joins_with_one_proposal() -> None:
    counting = leadership((ME, B))
    fetched(counting, C, 150, now_ms=LAG_MS_MAX)
    assert members(propose(counting, LAG_MS_MAX)) == {ME, C}


def test_r8_a_new_replica_has_time_to_come() -> None:
    counting = leadership((ME, B), replicas=(ME, B))
    counting.note_image(PARTITION_EPOCH + 1, ALL, ALL, 1, 50_000)
    fetched(counting, B, 150, log_end=150, now_ms=50_000)
    assert propose(counting, 50_000 + LAG_MS_MAX - 1) is None


# --- A5 -----------------------------------------------------------------------------------------------------------------


def test_a5_the_start_of_the_epoch_is_reached_when_all_before_it_is_known_to_be_committed() -> None:
    counting = leadership((ME, B), high_watermark=Offset(60))
    counting.note_own(150, 150)
    fetched(counting, B, 99)
    assert not counting.reached_epoch_start
    fetched(counting, B, 100)
    assert counting.reached_epoch_start


# --- when to look -------------------------------------------------------------------------------------------------------


def test_a_partition_whose_followers_keep_up_wants_no_look() -> None:
    counting = leadership()
    assert counting.wants_look(0)
    assert propose(counting) is None
    for now_ms in range(0, LAG_MS_MAX, 500):
        fetched(counting, B, 150 + now_ms, log_end=150 + now_ms, now_ms=now_ms)
        fetched(counting, C, 150 + now_ms, log_end=150 + now_ms, now_ms=now_ms)
        assert not counting.wants_look(now_ms)
    assert counting.wants_look(LAG_MS_MAX), "the first deadline: it is moved only by a look"
    assert propose(counting, LAG_MS_MAX) is None
    assert not counting.wants_look(LAG_MS_MAX)


def test_a_follower_that_may_join_wants_a_look() -> None:
    counting = leadership((ME, B))
    propose(counting)
    fetched(counting, C, 99)
    assert not counting.wants_look(0)
    fetched(counting, C, 100)
    assert counting.wants_look(0)


def test_the_earliest_deadline_wants_a_look() -> None:
    counting = leadership()
    fetched(counting, B, 150, log_end=150, now_ms=5_000)
    fetched(counting, C, 150, log_end=150, now_ms=3_000)
    propose(counting, 5_000)
    assert not counting.wants_look(3_000 + LAG_MS_MAX - 1)
    assert counting.wants_look(3_000 + LAG_MS_MAX)


def test_a_replica_that_may_not_join_wants_no_look_until_it_fetches_again() -> None:
    """A dead broker may have been at the end of thousands of partitions."""
    counting = leadership((ME,))
    fetched(counting, B, 150)
    assert propose(counting, may_join=lambda broker_id: False) is None
    assert not counting.wants_look(24 * 3_600_000)
    fetched(counting, B, 150, now_ms=1_000)
    assert counting.wants_look(1_000)
    assert members(propose(counting, 1_000)) == {ME, B}


def test_a_decision_wants_a_look() -> None:
    counting = leadership()
    propose(counting)
    counting.note_image(PARTITION_EPOCH + 1, (ME, B), ALL, 1, 0)
    assert counting.wants_look(0)


# --- the model ----------------------------------------------------------------------------------------------------------

FOLLOWERS = (2, 3, 4)
OFFSETS = st.integers(0, 12)
EPOCH_START = 8
LAG_MS = 1_000


class Image(NamedTuple):
    """What an entry of the cluster log makes of the partition and its brokers."""

    partition_epoch: int
    in_sync: frozenset[int]
    min_in_sync: int
    broker_epochs: dict[int, int]
    active: frozenset[int]


class Fetch(NamedTuple):
    broker_id: int
    broker_epoch: int
    fetch_offset: int
    stored_end: int


@dataclass
class Disk:
    """What a follower really has."""

    end: int
    stored_end: int


@dataclass
class Network:
    """All that was sent: each of it may arrive at any time, any number of times."""

    proposals: list[Proposal] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)


class Leadership(RuleBasedStateMachine):
    """One leadership of broker 1; the other replicas are 2, 3 and 4."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.network = Network()
        self.wanted = False
        """Whether a look was asked for since the last one."""

    @initialize(
        stored=st.tuples(*[st.integers(0, EPOCH_START)] * 3),
        in_sync=st.sets(st.sampled_from(FOLLOWERS)),
        data=st.data(),
        min_in_sync=st.integers(1, 3),
    )
    def begin(self, stored: tuple[int, int, int], in_sync: set[int], data: Any, min_in_sync: int) -> None:
        """Earlier leaders committed something; this leader knows of no more than that."""
        self.disks = {1: Disk(EPOCH_START, EPOCH_START)}
        self.disks |= {broker_id: Disk(end, end) for broker_id, end in zip(FOLLOWERS, stored, strict=True)}
        least = min(self.disks[broker_id].stored_end for broker_id in {1, *in_sync})
        self.committed_before = data.draw(st.integers(0, least))
        known = data.draw(st.integers(0, self.committed_before))
        everybody = frozenset({1, *FOLLOWERS})
        self.controller = Image(
            7, frozenset({1, *in_sync}), min_in_sync, {broker_id: broker_id for broker_id in everybody}, everybody
        )
        self.images = [self.controller]
        self.seen = 0
        self.counting = InSync(
            ME,
            LEADER_EPOCH,
            epoch_start=Offset(EPOCH_START),
            replicas=tuple(BrokerId(broker_id) for broker_id in sorted(everybody)),
            in_sync=tuple(BrokerId(broker_id) for broker_id in self.controller.in_sync),
            partition_epoch=7,
            min_in_sync=min_in_sync,
            high_watermark=Offset(known),
            now_ms=0,
            lag_ms_max=LAG_MS,
            on_look=self.want_look,
        )
        self.last_high_watermark = known

    def want_look(self) -> None:
        self.wanted = True

    @invariant()
    def nobody_has_to_ask_again_and_again_whether_there_is_something_to_propose(self) -> None:
        if self.counting.pending is None and self.counting.wants_look(self.now_ms):
            assert self.wanted or self.now_ms >= self.counting.next_look_ms

    # --- the leader ---

    @rule(records=st.integers(1, 4))
    def append(self, records: int) -> None:
        self.disks[1].end += records
        self.counting.note_own(self.disks[1].stored_end, self.disks[1].end)

    @rule()
    def sync(self) -> None:
        self.disks[1].stored_end = self.disks[1].end
        self.counting.note_own(self.disks[1].stored_end, self.disks[1].end)

    @rule(passed_ms=st.sampled_from([0, 100, AGAIN_MS, LAG_MS]))
    def look(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        if self.counting.wants_look(self.now_ms):
            seen = self.image
            proposal = self.counting.proposal(
                self.now_ms, may_join=lambda broker_id: broker_id in seen.active, broker_epochs=seen.broker_epochs
            )
            self.wanted = False
            if proposal is not None:
                self.network.proposals.append(proposal)

    @property
    def image(self) -> Image:
        """As the leader has it."""
        return self.images[self.seen]

    @precondition(lambda self: self.seen + 1 < len(self.images))
    @rule()
    def next_image(self) -> None:
        self.seen += 1
        self.counting.note_image(
            self.image.partition_epoch,
            tuple(BrokerId(broker_id) for broker_id in self.image.in_sync),
            tuple(BrokerId(broker_id) for broker_id in sorted(self.disks)),
            self.image.min_in_sync,
            self.now_ms,
        )
        self.the_high_watermark_rises_only_and_only_over_a_set_that_is_large_enough()

    @rule()
    def newest_image(self) -> None:
        while self.seen + 1 < len(self.images):
            self.next_image()

    # --- the followers ---

    @rule(broker_id=st.sampled_from(FOLLOWERS), records=st.integers(0, 8), syncs=st.booleans())
    def fetch(self, broker_id: int, records: int, syncs: bool) -> None:
        """A follower that has no other history takes records over, and tells of it."""
        disk = self.disks[broker_id]
        disk.end = min(disk.end + records, self.disks[1].end)
        if syncs:
            disk.stored_end = disk.end
        epoch = self.controller.broker_epochs[broker_id]
        self.network.fetches.append(Fetch(broker_id, epoch, disk.end, disk.stored_end))

    @precondition(lambda self: self.network.fetches)
    @rule(data=st.data())
    def fetch_arrives(self, data: Any) -> None:
        self._count(data.draw(st.sampled_from(self.network.fetches)))

    @precondition(lambda self: self.network.fetches)
    @rule()
    def newest_fetch_arrives(self) -> None:
        self._count(self.network.fetches[-1])

    def _count(self, fetch: Fetch) -> None:
        self.counting.note_follower(
            fetch.broker_id,
            fetch.broker_epoch,
            fetch_offset=fetch.fetch_offset,
            stored_end=fetch.stored_end,
            log_end=self.disks[1].end,
            now_ms=self.now_ms,
        )

    @rule(broker_id=st.sampled_from(FOLLOWERS), kept=OFFSETS)
    def start_again(self, broker_id: int, kept: int) -> None:
        """A broker registers anew, without its last records: it is out of the set (M3)."""
        disk = self.disks[broker_id]
        disk.end = disk.stored_end = min(kept, disk.stored_end)
        epochs = {**self.controller.broker_epochs, broker_id: max(self.controller.broker_epochs.values()) + 1}
        self._decide(in_sync=self.controller.in_sync - {broker_id}, broker_epochs=epochs)

    # --- the controller ---

    @rule(broker_id=st.sampled_from(FOLLOWERS))
    def fence_or_unfence(self, broker_id: int) -> None:
        active = self.controller.active ^ {broker_id}
        self._decide(active=active, in_sync=self.controller.in_sync & active)

    @rule(min_in_sync=st.integers(1, 4))
    def change_min_in_sync(self, min_in_sync: int) -> None:
        self._decide(min_in_sync=min_in_sync)

    @precondition(lambda self: self.network.proposals)
    @rule(data=st.data())
    def proposal_arrives(self, data: Any) -> None:
        proposal = data.draw(st.sampled_from(self.network.proposals))
        if self._acceptable(proposal):
            self._decide(accepted=True, in_sync=frozenset(member.broker_id for member in proposal.members))

    def _acceptable(self, proposal: Proposal) -> bool:
        """R5."""
        controller = self.controller
        return proposal.partition_epoch == controller.partition_epoch and all(
            member.broker_id in controller.active and controller.broker_epochs[member.broker_id] == member.broker_epoch
            for member in proposal.members
        )

    def _decide(self, *, accepted: bool = False, **changes: Any) -> None:
        changed = self.controller._replace(**changes)
        if accepted or changed.in_sync != self.controller.in_sync:
            changed = changed._replace(partition_epoch=changed.partition_epoch + 1)
        self.controller = changed
        self.images.append(changed)

    # --- what must be so ---

    @invariant()
    def committed_records_are_stored_by_every_set_that_may_be_in_sync(self) -> None:
        if not hasattr(self, "counting"):
            return
        committed = max(self.counting.high_watermark, self.committed_before)
        possible = [self.controller.in_sync]
        possible += [
            frozenset(member.broker_id for member in proposal.members)
            for proposal in self.network.proposals
            if self._acceptable(proposal)
        ]
        for in_sync in possible:
            for broker_id in in_sync:
                assert self.disks[broker_id].stored_end >= committed, (broker_id, in_sync)

    @invariant()
    def the_high_watermark_rises_only_and_only_over_a_set_that_is_large_enough(self) -> None:
        if not hasattr(self, "counting"):
            return
        now, before = self.counting.high_watermark, self.last_high_watermark
        assert now >= before
        if now > before:
            assert len(self.image.in_sync) >= min(self.image.min_in_sync, len(self.disks))
        self.last_high_watermark = now

    def teardown(self) -> None:
        """When everything works again, everything is committed, and by everybody."""
        if not hasattr(self, "counting"):
            return
        self._decide(active=frozenset(self.disks))
        for _ in range(4):
            self.newest_image()
            self.sync()
            for broker_id in FOLLOWERS:
                self.fetch(broker_id, self.disks[1].end, True)
                self.newest_fetch_arrives()
            self.look(AGAIN_MS)
            if self.network.proposals and self._acceptable(newest := self.network.proposals[-1]):
                self._decide(accepted=True, in_sync=frozenset(member.broker_id for member in newest.members))
        assert self.counting.high_watermark == self.disks[1].end
        assert self.counting.committed == self.counting.maximal == set(self.disks)
        assert self.counting.pending is None


TestLeadership = Leadership.TestCase
TestLeadership.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
