"""A controller looks for partitions without a leader when it begins, and after changes of settings that may allow elections."""

from __future__ import annotations

import pytest

from app.core.turns import STRIDE, whole
from app.core.units import LogSequence, TopicId
from app.metadata.changes.allowed_elections import AllowedElections
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.replicas.elections import NOBODY
from tests.metadata.several import NOW, TOPIC_ID, change, several
from tests.metadata.support import uuid_of

NOTHING = ImageDelta(frozenset(), brokers=False, broker_configs=False, deleting=False)
OF_TOPIC = NOTHING._replace(topics=frozenset([TOPIC_ID, TopicId(uuid_of(7))]))  # the second one was deleted


def image_of(*, leader: int | None = None, allowed: str | None = "true") -> ClusterImage:
    configs = {} if allowed is None else {"unclean_leader_election_enable": allowed}
    draft = several((1, 2), (2, 3), **configs)
    if leader is not None:
        change(draft, leader=leader)
    return draft.freeze(LogSequence(NOW))


def looked() -> AllowedElections:
    """A controller has looked at all topics already."""
    elections = AllowedElections()
    assert not whole(elections.due(image_of()))
    assert not elections.noted
    return elections


def test_a_new_controller_looks_at_all_topics_once() -> None:
    elections = AllowedElections()
    assert elections.noted
    assert whole(elections.due(image_of(leader=NOBODY, allowed=None)))
    assert not elections.noted


@pytest.mark.parametrize(("allowed", "noted"), [("true", True), ("false", False), (None, False)])
def test_a_change_of_a_topic_that_allows_unclean_elections_is_looked_at(allowed: str | None, noted: bool) -> None:
    elections, image = looked(), image_of(leader=NOBODY, allowed=allowed)
    elections.follow(image, OF_TOPIC)
    assert elections.noted is noted
    assert whole(elections.due(image)) is noted
    assert not elections.noted


def test_settings_of_brokers_concern_all_topics_and_a_failed_election_is_tried_again() -> None:
    elections, image = looked(), image_of(leader=NOBODY, allowed=None)
    elections.follow(image, NOTHING._replace(broker_configs=True))
    elections.follow(image, OF_TOPIC)
    assert whole(elections.due(image))
    elections.again()
    assert whole(elections.due(image))


def test_other_changes_and_partitions_with_leaders_need_no_election() -> None:
    elections = looked()
    elections.follow(image_of(leader=NOBODY), NOTHING._replace(brokers=True))
    assert not elections.noted
    elections.follow(image_of(), OF_TOPIC)
    assert not whole(elections.due(image_of()))


def test_many_partitions_are_looked_at_in_steps() -> None:
    image = several(*[(1, 2)] * (2 * STRIDE)).freeze(LogSequence(NOW))
    assert sum(1 for _ in AllowedElections().due(image)) == 2
