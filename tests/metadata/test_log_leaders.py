"""Who leads partitions in write-ahead logs (ADR 0037, J16 to J23)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.configs import Durability, TopicConfig
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import TopicId, TopicIdPartition
from app.metadata.changes.broker_changes import (
    RegistrationAsked,
    begin_stop,
    fence_brokers,
    register_broker,
    unfence_brokers,
    unregister_broker,
)
from app.metadata.changes.topic_changes import (
    PlanInputs,
    Planned,
    bump_leader_epochs,
    create_partitions,
    create_topic,
    replace_configs,
)
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import TopicImage
from app.metadata.image.records import broker_change
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalId, WalRange
from app.metadata.replicas.elections import NOBODY
from tests.metadata.leaders import telling
from tests.metadata.several import NOW, TOPIC_ID, applied, around, ids, in_logs, partition, several
from tests.metadata.support import uuid_of

NEW = TopicId(uuid_of(901))


def created(draft: ImageDraft, surroundings: PlanInputs | None = None, **more: object) -> Planned[TopicImage]:
    asked: dict[str, object] = {
        "topic_id": NEW,
        "name": "new",
        "partitions": 3,
        "replication_factor": -1,
        "configs": {"firn.durability": "object"},
        "assignments": None,
    }
    return create_topic(draft, surroundings or telling(), **asked | more)  # type: ignore[arg-type]


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
def test_object_durability_needs_level_3(level: int) -> None:
    with pytest.raises(
        RequestRejected, match=f"it is {level}: run `firn cluster features --upgrade firn.version=3`"
    ) as e:
        created(several(level=level))
    assert e.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("asked", "kept"), [(-1, 1), (1, 1), (3, 3), (99, 99)])
def test_any_factor_is_accepted_and_kept_once(asked: int, kept: int) -> None:
    draft = several(level=3)
    topic = applied(draft, created(draft, replication_factor=asked))
    assert draft.topic("new") == topic
    assert topic.replication_factor == kept
    for each in topic.partitions:
        assert each.replicas == each.isr == (each.leader,)
    with pytest.raises(RequestRejected, match="greater than 0"):
        created(draft, name="other", replication_factor=0)


def test_j19_a_new_partitions_range_begins_at_the_number_that_its_broker_told() -> None:
    draft = several(level=3)
    made = applied(draft, created(draft, telling({WalId(2, 12): 40, WalId(3, 99): 7}), partitions=5)).partitions
    assert sorted(each.leader for each in made) == [1, 2, 3, 4, 5]
    for each in made:
        assert each.durability is PartitionDurability.OBJECT
        first = 40 if each.leader == 2 else 0
        assert each.wal_ranges == (WalRange(each.leader, 10 + each.leader, 0, first, OPEN),)
    grown = applied(draft, create_partitions(draft, telling(), name="new", count=7, assignments=None)).partitions
    assert grown[:5] == made
    assert [len(each.wal_ranges) for each in grown] == [1] * 7
    assert [each.replicas for each in grown[5:]] == [(each.leader,) for each in grown[5:]]


def test_replicas_by_hand_name_the_leader_and_the_factor() -> None:
    draft = several(level=3, fenced=[4])
    topic = applied(draft, created(draft, partitions=-1, assignments={0: [4, 2, 3], 1: [5, 1, 2]}))
    assert [each.leader for each in topic.partitions] == [2, 5]
    assert [each.replicas for each in topic.partitions] == [ids(2), ids(5)]
    assert topic.replication_factor == 3
    with pytest.raises(RequestRejected, match="have 3 replicas each"):
        create_partitions(draft, telling(), name="new", count=3, assignments=[[1]])
    grown = applied(draft, create_partitions(draft, telling(), name="new", count=3, assignments=[[1, 2, 3]]))
    assert grown.partitions[2].replicas == ids(1)


def test_a_broker_whose_log_has_ended_gets_no_new_partition() -> None:
    draft = several(level=3, brokers=[1, 2])
    draft.apply([broker_change(1, replace(draft.brokers[1], wal_end=5).record())])
    assert {each.leader for each in created(draft).answer.partitions} == {2}
    with pytest.raises(RequestRejected, match="write-ahead log of broker 1 has ended"):
        created(draft, partitions=-1, assignments={0: [1]})


def test_a_default_is_written_into_new_topics_that_can_have_it() -> None:
    draft = several(level=3)
    default = telling(topic_defaults=TopicConfig(firn_durability=Durability.OBJECT))
    topic = applied(draft, created(draft, default, configs={}))
    assert topic.configs == {"firn.durability": "object"}
    assert topic.partitions[0].durability is PartitionDurability.OBJECT
    for configs in ({"remote.storage.enable": "false"}, {"firn.durability": "memory"}):
        other = created(draft, default, name="other", configs=configs).answer
        assert (other.configs, other.replication_factor) == (configs, -1)
        assert other.partitions[0].durability is PartitionDurability.REPLICAS


def test_a_client_that_does_not_know_of_the_default_leaves_a_topic_where_it_is() -> None:
    """AlterConfigs names all settings that are to stay. Clients of Kafka do not name this one."""
    draft = several(level=3)
    default = telling(topic_defaults=TopicConfig(firn_durability=Durability.OBJECT))
    applied(draft, created(draft, default, configs={"retention.ms": "1000"}))

    def after(around: PlanInputs, **configs: str) -> Mapping[str, str]:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        return replace_configs(draft, around, resource_type=2, resource_name="new", configs=named).answer

    assert after(default, segment_ms="70000") == {"segment.ms": "70000", "firn.durability": "object"}
    assert after(telling(), segment_ms="70000") == {"segment.ms": "70000"}
    assert after(default, firn_durability="disk") == {"firn.durability": "disk"}


def test_a_leader_epoch_is_not_raised_by_the_leader_alone() -> None:
    draft = in_logs(1)
    key = TopicIdPartition(TOPIC_ID, partition(draft).partition_index)
    assert bump_leader_epochs(draft, [key], {}) == Planned([], {})


# --- leaderships that end ---------------------------------------------------------------------------------------------


def registration(broker_id: int = 1, *, directory: int | None = None, epoch: int | None = None) -> RegistrationAsked:
    return RegistrationAsked(
        broker_id,
        uuid_of(100 + broker_id if directory is None else directory),
        uuid_of(700),
        "boot",
        (),
        1,
        3,
        replaces=10 + broker_id if epoch is None else epoch,
        force=True,
    )


def orphan(leader: int) -> tuple[object, ...]:
    """A partition of that leader after its leadership has ended."""
    return NOBODY, 1, 1, (leader,), (), (WalRange(leader, 10 + leader, 0, 0, OPEN),)


def seen(draft: ImageDraft, index: int = 0) -> tuple[object, ...]:
    image = partition(draft, index)
    return image.leader, image.leader_epoch, image.partition_epoch, image.replicas, image.isr, image.wal_ranges


def test_j16_j22_an_entry_that_ends_a_leadership_names_nobody_and_leaves_the_range_open() -> None:
    draft = in_logs(1, 2, 1)
    others = partition(draft, 1)
    applied(draft, fence_brokers(draft, around(), [(1, 11)]))
    assert (seen(draft, 0), seen(draft, 2), partition(draft, 1)) == (orphan(1), orphan(1), others)

    for asked in (registration(), registration(directory=77)):
        draft = in_logs(1, 2)
        applied(draft, register_broker(draft, around(), asked))
        assert (seen(draft), draft.brokers[1].broker_epoch) == (orphan(1), NOW)

    draft = in_logs(1, 2)
    applied(draft, unregister_broker(draft, around(), 1))
    assert seen(draft) == orphan(1)


def test_a_broker_that_stops_leads_on_until_it_releases() -> None:
    draft = in_logs(1, 2, 1)
    before = partition(draft)
    assert applied(draft, begin_stop(draft, around(), 1, 11)) == 2
    assert partition(draft) == before
    alone = in_logs(1, brokers=[1])
    assert begin_stop(alone, around(), 1, 11).answer == 0, "nobody else could lead"


def test_j14_a_broker_whose_log_is_to_end_is_not_unfenced_under_that_epoch() -> None:
    draft = in_logs(1, 2)
    applied(draft, fence_brokers(draft, around(), [(1, 11), (3, 13), (4, 14)]))
    draft.apply([broker_change(4, replace(draft.brokers[4], wal_end=4).record())])
    back = [(1, 11, NOW), (3, 13, NOW), (4, 14, NOW)]
    assert applied(draft, unfence_brokers(draft, around(), back)).brokers == ids(3)
    assert [each.fenced for each in draft.brokers.values()] == [True, False, False, True, False]
    assert seen(draft) == orphan(1), "and nobody is elected while the range is open"
    applied(draft, register_broker(draft, around(NOW + 1), registration()))
    assert applied(draft, unfence_brokers(draft, around(NOW + 2), [(1, NOW + 1, NOW + 1)])).brokers == ids(1)
    assert seen(draft) == orphan(1)


def test_j14_a_process_registers_again_and_has_lost_nothing() -> None:
    draft = in_logs(1, 2)
    first = registration(epoch=11)._replace(incarnation=draft.brokers[1].incarnation, boot_id="")
    assert register_broker(draft, around(), first).records == [], "M8: the same incarnation gets the same answer"
    again = first._replace(anew=11)
    assert applied(draft, register_broker(draft, around(), again)).broker_epoch == NOW
    broker = draft.brokers[1]
    assert (broker.fenced, broker.broker_epoch, broker.changed_at, broker.wal_end) == (True, NOW, NOW, -1)
    assert seen(draft) == orphan(1)
    for late in (again, first, first._replace(replaces=NOW)):
        planned = register_broker(draft, around(NOW + 5), late)
        assert (planned.records, planned.answer.broker_epoch, planned.answer.sequence) == ([], NOW, NOW)

    kept = several([1, 2], level=3, min_insync_replicas="2")
    again = again._replace(incarnation=kept.brokers[1].incarnation)
    applied(kept, register_broker(kept, around(), again))
    assert partition(kept).eligible == ids(1), "M3 does not apply: its disk and its memory are as they were"
