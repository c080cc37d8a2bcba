"""The table of transitions: every role meets every image, and what comes of it keeps to its rules."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.units import BrokerId, LeaderEpoch, PartitionIndex
from app.metadata.image.image import PartitionImage
from app.replication.roles import TRANSITIONS, Role, Transition, Wanted, wanted_by

ME, OTHER, NOBODY = BrokerId(1), BrokerId(2), BrokerId(-1)
ROLES: tuple[Role | None, ...] = (None, *Role)


def image(leader: BrokerId, *replicas: BrokerId) -> PartitionImage:
    return PartitionImage(PartitionIndex(0), leader, LeaderEpoch(0), 0, replicas or (ME, OTHER), (ME,))


def test_the_table_says_something_of_every_role_and_image() -> None:
    assert set(TRANSITIONS) == set(itertools.product(ROLES, Wanted))


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [
        (None, Wanted.NOTHING),
        (image(ME), Wanted.LEADER),
        (image(OTHER), Wanted.FOLLOWER),
        (image(NOBODY), Wanted.FOLLOWER),
        (image(OTHER, OTHER), Wanted.ANOTHER),
        (image(NOBODY, OTHER), Wanted.ANOTHER),
    ],
)
def test_an_image_wants_a_broker_to_lead_if_it_names_it_and_to_follow_if_it_is_a_replica(
    partition: PartitionImage | None, wanted: Wanted
) -> None:
    assert wanted_by(partition, ME) is wanted


def test_whoever_has_lost_the_leadership_always_resigns() -> None:
    for role in (Role.LEADER, Role.OFFLINE):
        assert TRANSITIONS[role, Wanted.FOLLOWER] is Transition.RESIGN


def test_a_log_that_another_broker_led_is_never_led_without_being_held_against_its_manifest() -> None:
    assert TRANSITIONS[Role.FOLLOWER, Wanted.LEADER] is Transition.OPEN


def test_a_log_is_deleted_only_if_its_partition_is_gone_or_has_its_replicas_elsewhere() -> None:
    for (role, wanted), transition in TRANSITIONS.items():
        gone = wanted in (Wanted.NOTHING, Wanted.ANOTHER)
        assert (transition is Transition.DROP) == (role is not None and gone)


AFTER = {
    Transition.MAKE: Role.LEADER,
    Transition.FOLLOW: Role.FOLLOWER,
    Transition.OPEN: Role.LEADER,
    Transition.RAISE: Role.LEADER,
    Transition.RESIGN: Role.FOLLOWER,
    Transition.DROP: None,
}


@given(st.lists(st.sampled_from(Wanted)))
def test_after_any_images_this_broker_leads_only_what_the_last_one_says(images: list[Wanted]) -> None:
    role: Role | None = None
    for wanted in images:
        role = AFTER.get(TRANSITIONS[role, wanted], role)
        assert (role is Role.LEADER) == (wanted is Wanted.LEADER)
        assert (role is None) <= (wanted is not Wanted.LEADER)
